"""Numbers of launches that travel in tuples, one for each of several tensors.

Of what is in a tuple, Triton assumes things, whatever the kernel asks for (that a number fits 32 bits, is 1, is a
multiple of 16), and compiles again where they change: so the numbers travel as odd ones of 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import triton
import triton.language as tl

_T = TypeVar("_T")

_BIAS = tl.constexpr(2**62 + 1)


def odd(number: int) -> int:
    """A number in ``0..2**61 - 1`` as an odd one that needs 64 bits."""
    return 2 * number + _BIAS.value


def filled(values: Sequence[_T], size: int) -> tuple[_T, ...]:
    """So many values: the given ones, at least one, and the first of them again."""
    return (*values, *[values[0]] * (size - len(values)))


@triton.jit
def even(number):
    """In a kernel: a number as it was before it became odd."""
    return (number - _BIAS) >> 1
