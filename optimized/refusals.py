"""Refusals that several families share. Each raises :class:`ContractError` where one host-visible fact is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

import torch

from optimized.errors import ContractError

_DIMENSIONS = {1: "one dimension", 2: "two dimensions"}


def refuse_bad_index(name: str, tensor: torch.Tensor, dimensions: int = 1) -> None:
    """Refuse an index tensor of another number of dimensions (1 or 2), then a dtype other than int32 and int64."""
    _refuse_bad_dimensions(name, tensor, dimensions)
    if tensor.dtype is not torch.int32 and tensor.dtype is not torch.int64:
        raise ContractError(name, _dtype_name(tensor.dtype), "the dtype must be int32 or int64")


def refuse_bad_tensor(name: str, tensor: torch.Tensor, dimensions: int, dtype: torch.dtype) -> None:
    """Refuse a tensor of another number of dimensions (1 or 2), then another dtype than the one it must have."""
    _refuse_bad_dimensions(name, tensor, dimensions)
    if tensor.dtype is not dtype:
        raise ContractError(name, _dtype_name(tensor.dtype), f"the dtype must be {_dtype_name(dtype)}")


def refuse_other_devices(device: torch.device, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse a tensor that is not on ``device``."""
    for name, tensor in named:
        if tensor.device != device:
            raise ContractError(name, str(tensor.device), f"it must be on the device of the other tensors, {device}")


def refuse_bad_int(name: str, value: object, least: int) -> None:
    """Refuse what is not an ``int`` of at least ``least``; a ``bool`` is none."""
    if not is_int(value) or value < least:
        raise ContractError(name, value, f"it must be an int of at least {least}")


def refuse_bad_ints(name: str, values: object, least: int) -> None:
    """Refuse what is no list or tuple, then one with an element that is not an ``int`` of at least ``least``."""
    refuse_bad_sequence(name, values)
    for value in values:  # type: ignore[attr-defined]  # a list or a tuple, as was just found
        if not is_int(value) or value < least:
            raise ContractError(name, value, f"each must be an int of at least {least}")


def refuse_bad_sequence(name: str, values: object) -> None:
    """Refuse what is no list or tuple."""
    if not isinstance(values, list | tuple):
        raise ContractError(name, type(values).__name__, "it must be a list or a tuple")


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an ``int``; a ``bool`` is none, nor is NumPy's scalar."""
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_bad_dimensions(name: str, tensor: torch.Tensor, dimensions: int) -> None:
    if tensor.dim() != dimensions:
        raise ContractError(name, tuple(tensor.shape), f"the shape must have {_DIMENSIONS[dimensions]}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
