"""Floating-point formats in kernels, by their bits: the same rounding on every target and in Triton's interpreter.

bfloat16 and float8 are rounded with integers, since conversions differ between targets in what becomes of infinity, of
numbers that are too large, and of ties.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def as_bits(pointer):
    """A pointer to unsigned integers as wide as what it points to."""
    if pointer.dtype.element_ty.primitive_bitwidth == 8:
        return pointer.to(tl.pointer_type(tl.uint8), bitcast=True)
    elif pointer.dtype.element_ty.primitive_bitwidth == 16:
        return pointer.to(tl.pointer_type(tl.uint16), bitcast=True)
    else:
        return pointer.to(tl.pointer_type(tl.uint32), bitcast=True)


@triton.jit
def as_pairs(pointers):
    """Pointers to pairs of neighbours, from those to the bits of their first members."""
    if pointers.dtype.scalar.element_ty.primitive_bitwidth == 8:
        return pointers.to(tl.pointer_type(tl.uint16), bitcast=True)
    elif pointers.dtype.scalar.element_ty.primitive_bitwidth == 16:
        return pointers.to(tl.pointer_type(tl.uint32), bitcast=True)
    else:
        return pointers.to(tl.pointer_type(tl.uint64), bitcast=True)


@triton.jit
def members(pairs):
    """Bits of the first and of the second members of pairs of 16 or 32 bits each."""
    if pairs.dtype.primitive_bitwidth == 32:
        return pairs.to(tl.uint16), (pairs >> 16).to(tl.uint16)
    else:
        return pairs.to(tl.uint32), (pairs >> 32).to(tl.uint32)


@triton.jit
def paired(first, second):
    """Pairs from the bits of their members."""
    if first.dtype.primitive_bitwidth == 8:
        return first.to(tl.uint16) | (second.to(tl.uint16) << 8)
    elif first.dtype.primitive_bitwidth == 16:
        return first.to(tl.uint32) | (second.to(tl.uint32) << 16)
    else:
        return first.to(tl.uint64) | (second.to(tl.uint64) << 32)


@triton.jit
def decoded(bits, FORMAT: tl.constexpr):
    """Bits of float32, float16 or bfloat16 as the float32 numbers that they are."""
    if FORMAT.is_bf16():
        return (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return bits.to(FORMAT, bitcast=True).to(tl.float32)


@triton.jit
def encoded(numbers, FORMAT: tl.constexpr):
    """float32 numbers rounded to float32, float16 or bfloat16, as bits."""
    if FORMAT.is_bf16():
        bits = numbers.to(tl.uint32, bitcast=True)
        # A carry out of the fraction raises the exponent, up to infinity.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded).to(tl.uint16)
    elif FORMAT.is_fp16():
        return numbers.to(tl.float16).to(tl.uint16, bitcast=True)
    else:
        return numbers.to(tl.uint32, bitcast=True)


@triton.jit
def encoded_float8(numbers, FNUZ: tl.constexpr):
    """float32 numbers rounded to float8_e4m3fn or float8_e4m3fnuz, as bits.

    Ties go to even, what is too large becomes the largest number, and so does infinity.
    """
    bits = numbers.to(tl.uint32, bitcast=True)
    size = (bits & 0x7FFFFFFF).to(tl.int32)
    exponent = size >> 23
    least: tl.constexpr = 120 if FNUZ else 121  # the float32 exponent of the smallest normal number
    largest: tl.constexpr = 0x7F if FNUZ else 0x7E
    # In units of the last place a number is an integer; below the normal numbers that place stays where it is. From a
    # shift of 25 on, nothing is left of any number, those without the leading 1 that is assumed here included.
    shift = tl.minimum(20 + tl.maximum(least - exponent, 0), 25)
    significand = (size & 0x7FFFFF) | 0x800000
    units = (significand + (1 << (shift - 1)) - 1 + ((significand >> shift) & 1)) >> shift
    # Patterns count upwards through the exponents, so that units which reach the next power of two carry.
    code = tl.minimum(((tl.maximum(exponent, least) - least) << 3) + units, largest)
    sign = (bits >> 24).to(tl.int32) & 0x80
    if FNUZ:
        code = tl.where(code > 0, code | sign, 0)
        code = tl.where(size > 0x7F800000, 0x80, code)
    else:
        code = tl.where(size > 0x7F800000, 0x7F, code) | sign
    return code.to(tl.uint8)
