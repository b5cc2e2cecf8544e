"""The values that cases are made of: arrays with a layout, plain scalars, and tuples of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DTYPES: dict[str, np.dtype] = {
    **{name: np.dtype(name) for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64")},
    **{name: np.dtype(name) for name in ("float16", "float32", "float64")},
    "bfloat16": np.dtype("uint16"),
    "float8_e4m3fn": np.dtype("uint8"),
    "float8_e4m3fnuz": np.dtype("uint8"),
}
"""Torch dtype name -> the NumPy dtype that holds its bits."""


@dataclass(frozen=True, eq=False)
class Array:
    """One tensor of a case: its values and where in memory they lie.

    ``data`` holds the values in C order. ``strides`` (in elements; ``None`` for contiguous) and ``offset`` (elements
    between an aligned address and the first element, as in a sliced view) are the layout that the implementation sees.
    """

    dtype: str
    data: npt.NDArray[Any]
    strides: tuple[int, ...] | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.data.dtype != DTYPES[self.dtype]:
            raise ValueError(f"data: {self.data.dtype} cannot hold the bits of {self.dtype}")
        if self.strides is not None and len(self.strides) != self.data.ndim:
            raise ValueError(f"strides: {self.strides} does not fit shape {self.data.shape}")
        if self.offset < 0 or any(stride < 0 for stride in self.strides or ()):
            raise ValueError(f"strides and offset: {self.strides}, {self.offset} must not be negative")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return tuple(self.data.shape)

    @property
    def layout(self) -> tuple[int, ...]:
        """Strides in elements, also for a contiguous array."""
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    @property
    def reach(self) -> int:
        """Elements from the first one to the farthest: what a product of index and stride has to hold."""
        return sum((count - 1) * stride for count, stride in zip(self.shape, self.layout, strict=True) if count)

    def with_values(self, values: npt.ArrayLike) -> Array:
        """The same dtype and layout with other values of the same shape."""
        data = np.asarray(values, dtype=self.data.dtype, order="C").reshape(self.shape)
        return Array(self.dtype, data, self.strides, self.offset)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Array)
            and (self.dtype, self.shape, self.strides, self.offset)
            == (other.dtype, other.shape, other.strides, other.offset)
            and self.data.tobytes() == other.data.tobytes()
        )

    __hash__ = None  # type: ignore[assignment]


Value = Array | int | float | str | bool | None | tuple["Value", ...]
Inputs = Mapping[str, Value]
Outputs = Mapping[str, "npt.NDArray[Any] | Array | int | tuple[npt.NDArray[Any] | Array, ...]"]
"""Results by name. An :class:`Array` instead of a NumPy array where NumPy has no such dtype."""


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a C-contiguous array."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def array(values: npt.ArrayLike, dtype: str, strides: tuple[int, ...] | None = None, offset: int = 0) -> Array:
    """An :class:`Array` from anything NumPy takes."""
    return Array(dtype, np.asarray(values, dtype=DTYPES[dtype], order="C"), strides, offset)


def arrays_of(inputs: Inputs) -> Iterator[tuple[str, Array]]:
    """All arrays of an input, those inside tuples too, with a name such as ``block_tables[1]``."""
    for name, value in inputs.items():
        yield from _named(name, value)


def _named(name: str, value: Value) -> Iterator[tuple[str, Array]]:
    if isinstance(value, Array):
        yield name, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _named(f"{name}[{index}]", item)


def flat(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs with tuples taken apart, as ``name[index]``."""
    found: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, tuple):
            found |= flat({f"{name}[{index}]": item for index, item in enumerate(value)})
        else:
            found[name] = value
    return found


def dtype_of(value: Any) -> str:
    """The name that torch has for an expected value's dtype; of a Python value, its type's."""
    return str(value.dtype) if isinstance(value, Array | np.ndarray) else type(value).__name__


def plain_value(value: Any) -> Any:
    """An expected value as NumPy bits: an :class:`Array` says its dtype where NumPy has none."""
    return value.data if isinstance(value, Array) else value
