"""Divisions by compile-time sizes, in the fewest instructions: without a sign, and of 32 bits where those do."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def divided(numbers, SIZE: tl.constexpr):
    """Quotient, int64, and remainder, modulo 2**32 as int32, of int32 or int64 numbers; garbage for negative ones.

    ``SIZE`` lies in ``1..2**63``.
    """
    size = unsigned(SIZE, numbers.dtype)
    numbers = numbers.to(size.dtype)
    quotients = numbers // size
    return quotients.to(tl.int64), (numbers - quotients * size).to(tl.int32)


@triton.jit
def spread(first, places, SIZE: tl.constexpr):
    """Quotient and remainder, int64, of ``first + places``: an int64 of at least 0, and places in a tile.

    ``SIZE`` lies in ``1..2**63 - 1``.
    """
    quotient = first // SIZE
    numbers = first - quotient * SIZE + places
    if SIZE < 2**31:
        # From that multiple on, 32 bits do.
        size = tl.full((), SIZE, tl.uint32)
        numbers = numbers.to(tl.uint32)
        steps = numbers // size
        rest = (numbers - steps * size).to(tl.int64)
    else:
        steps = numbers // SIZE
        rest = numbers - steps * SIZE
    return quotient + steps.to(tl.int64), rest


@triton.jit
def unsigned(SIZE: tl.constexpr, dtype: tl.constexpr):
    """A size, or the least that no number of that dtype reaches, without a sign. It is at most 2**63."""
    if dtype == tl.int32:
        return tl.full((), min(SIZE, 2**31), tl.uint32)
    else:
        return tl.full((), SIZE, tl.uint64)
