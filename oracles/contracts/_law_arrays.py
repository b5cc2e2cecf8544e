"""What laws about tables and buffers share: arrays of an input taken apart, moved and refilled, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from oracles.arrays import DTYPES, Array, Inputs
from oracles.contracts._laws import WrongShape

Numbers = npt.NDArray[Any]
FAR = 1 << 31


def one(inputs: Inputs, name: str) -> Array:
    """An input that is a tensor."""
    return cast(Array, inputs[name])


def several(inputs: Inputs, name: str) -> tuple[Array, ...]:
    """An input that is a list of tensors."""
    return cast(tuple[Array, ...], inputs[name])


def number(inputs: Inputs, name: str) -> int:
    """An input that is a Python int."""
    return cast(int, inputs[name])


def part(whole: Array, begin: int, end: int) -> Array:
    """``whole[begin:end]``, where it lies in the same tensor."""
    data = np.ascontiguousarray(whole.data[begin:end])
    return Array(whole.dtype, data, whole.strides, whole.offset + begin * whole.layout[0])


def refilled(old: Array, values: npt.ArrayLike) -> Array:
    """Values of another shape in place of the old ones, in their dtype and, of one dimension, with their stride."""
    data = np.asarray(values, dtype=DTYPES[old.dtype], order="C")
    # A stride of 0 suits one element only, and one past 2^31 few of them.
    kept = old.strides if data.ndim == 1 and old.strides and 0 < old.strides[0] < FAR else None
    return Array(old.dtype, data, kept, old.offset)


def highest(array: Array) -> int:
    """The largest number that an integer array's dtype holds."""
    return int(np.iinfo(array.data.dtype).max)


def turned_round(numbers: Numbers, count: int) -> Numbers:
    """Requests with their rows in reverse order; numbers that are no request stay what they are."""
    return np.where((numbers >= 0) & (numbers < count), count - 1 - numbers, numbers)


def swapped_names(values: Numbers, names: Numbers) -> Numbers:
    """Values that are among ``names`` (sorted, each once) renamed: the first one as the last, and so on."""
    places = np.minimum(np.searchsorted(names, values), max(len(names) - 1, 0))
    return np.where(np.isin(values, names), names[::-1][places], values) if len(names) else values


def cut_smaller(table: Numbers, parts: int) -> Numbers:
    """A table of blocks as one of ``parts`` times as many smaller blocks, numbered on without gaps (int64)."""
    wide = table.astype(np.int64)[:, :, None] * parts + np.arange(parts)
    return wide.reshape(table.shape[0], table.shape[1] * parts)


def shaped(name: str, found: object, shape: tuple[int, ...]) -> Numbers:
    """A result as an array. Refused with :class:`WrongShape`: another shape."""
    values = np.asarray(found)
    if values.shape != shape:
        raise WrongShape(f"{name} has shape {values.shape}, not {shape}")
    return values


def difference(what: str, found: Numbers, wanted: Numbers) -> str | None:
    """The first element of two arrays of one shape that is not the same, in one sentence; else ``None``."""
    places = np.argwhere(found != wanted)
    if not len(places):
        return None
    at = tuple(places[0].tolist())
    return f"{what}[{', '.join(map(str, at))}] is {found[at]}, {wanted[at]} follows from the law"


def first_difference(what: str, found: Sequence[Numbers], wanted: Sequence[Numbers]) -> str | None:
    """The same for the tables of all groups."""
    for group, (left, right) in enumerate(zip(found, wanted, strict=True)):
        problem = difference(f"{what}: group {group}", left, right)
        if problem:
            return problem
    return None
