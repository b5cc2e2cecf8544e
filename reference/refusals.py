"""Refusals that several families share. Each raises :class:`ContractError` where one host-visible fact is wrong."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError

_INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
_DIMENSIONS = {1: "one dimension", 2: "two dimensions"}


def refuse_bad_index(name: str, array: npt.NDArray[np.generic], dimensions: int = 1) -> None:
    """Refuse an index tensor of another number of dimensions (1 or 2), then a dtype other than int32 and int64."""
    _refuse_bad_dimensions(name, array, dimensions)
    if array.dtype not in _INDEX_DTYPES:
        raise ContractError(name, str(array.dtype), "the dtype must be int32 or int64")


def refuse_bad_array(name: str, array: npt.NDArray[np.generic], dimensions: int, dtype: npt.DTypeLike) -> None:
    """Refuse a tensor of another number of dimensions (1 or 2), then another dtype than the one it must have."""
    _refuse_bad_dimensions(name, array, dimensions)
    if array.dtype != dtype:
        raise ContractError(name, str(array.dtype), f"the dtype must be {np.dtype(dtype)}")


def refuse_bad_int(name: str, value: object, least: int) -> None:
    """Refuse what is not an ``int`` of at least ``least``; a ``bool`` is none."""
    if not is_int(value) or value < least:
        raise ContractError(name, value, f"it must be an int of at least {least}")


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an ``int``; a ``bool`` is none, nor is NumPy's scalar."""
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_bad_dimensions(name: str, array: npt.NDArray[np.generic], dimensions: int) -> None:
    if array.ndim != dimensions:
        raise ContractError(name, array.shape, f"the shape must have {_DIMENSIONS[dimensions]}")
