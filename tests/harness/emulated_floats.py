"""Kernels that compute with narrow floating-point numbers, for their machine code."""

import triton
import triton.language as tl


@triton.jit
def rotate(x, positions, cosines, sines, y, HALF: tl.constexpr):
    """Rotary embedding of one token a program: halves of its vector are turned against each other."""
    token = tl.program_id(0)
    at = tl.arange(0, HALF)
    angle = tl.load(positions + token) * HALF + at
    cosine, sine = tl.load(cosines + angle).to(tl.float32), tl.load(sines + angle).to(tl.float32)
    first = tl.load(x + token * 2 * HALF + at).to(tl.float32)
    second = tl.load(x + token * 2 * HALF + HALF + at).to(tl.float32)
    tl.store(y + token * 2 * HALF + at, (first * cosine - second * sine).to(y.dtype.element_ty))
    tl.store(y + token * 2 * HALF + HALF + at, (second * cosine + first * sine).to(y.dtype.element_ty))


@triton.jit
def convert(x, y, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty))


@triton.jit
def quantise(x, scales, y, B: tl.constexpr):
    """A row a program: divided by its scale, and rounded to 8 bits."""
    row = tl.program_id(0)
    at = row * B + tl.arange(0, B)
    tl.store(y + at, (tl.load(x + at).to(tl.float32) / tl.load(scales + row)).to(y.dtype.element_ty))
