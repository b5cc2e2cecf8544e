"""Numbers that a device tensor may hold and that mean nothing: what every family breaks its batches with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracles.domain import Source

DTYPES = ("int32", "int64")
"""What length, offset, position, slot and index tensors may be."""

FLAVOURS = ("engine", "garbage", "refused")
"""A step as an engine makes it; one with numbers that mean nothing; an input that must be refused."""

MORE_FLAVOURS = (*FLAVOURS, "apart", "crowd")
"""And steps by a rule: with a tensor whose elements lie far apart, and with many requests."""

GARBAGE = (-1, -(1 << 31), (1 << 31) - 1, 1 << 31, 1 << 33, -(1 << 40), (1 << 62) + 1)
"""Numbers that mean nothing, as far as a tensor's dtype has them."""


def draw_flavour(source: Source, flavours: Sequence[str] = FLAVOURS) -> str:
    """Mostly a step as an engine makes it."""
    weights = (12, 4, 3) if flavours == FLAVOURS else (24, 8, 6, 3, 1)
    flavour = source.choose(flavours, weights=weights)
    source.event(f"flavour: {flavour}")
    return flavour


def draw_dtype(source: Source) -> str:
    """int32 or int64; small scopes have int32 only."""
    return source.choose(DTYPES, small=1)


def garbage(source: Source, dtype: str, near: Sequence[int] = ()) -> int:
    """A number that the dtype has and that means nothing, ``near`` ones first."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return source.choose([n for n in dict.fromkeys((*near, *GARBAGE)) if low <= n <= high], small=2)


def spoil(source: Source, values: list[int], dtype: str, near: Sequence[int] = ()) -> None:
    """Put such a number somewhere into a list of them that has elements."""
    at = source.integer(0, len(values) - 1, near=(len(values) - 1,))
    values[at] = garbage(source, dtype, near)
