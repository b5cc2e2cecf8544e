"""Query starts, the packed layout of a batch: what several families refuse of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import ContractError


def refuse_other_size(name: str, tensor: torch.Tensor, size: int, rule: str) -> None:
    """Refuse a one-dimensional tensor of another size; ``rule`` says whose size it follows."""
    if tensor.numel() != size:
        raise ContractError(name, tensor.numel(), f"the size must be {rule}, {size}")


def refuse_not_on_cpu(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor of the host's that is not there."""
    if not tensor.is_cpu:
        raise ContractError(name, str(tensor.device), "it must be on the CPU")


def starts_from_zero(name: str, starts: torch.Tensor) -> npt.NDArray[np.int64]:
    """The host's starts. Refused: another device, no element, a first start other than 0, a start that decreases."""
    refuse_not_on_cpu(name, starts)
    if starts.numel() == 0:
        raise ContractError(name, tuple(starts.shape), "there must be at least one element")
    values = starts.numpy().astype(np.int64)
    if values[0] != 0:
        raise ContractError(name, int(values[0]), "the first start must be 0")
    # Compared, not subtracted: the difference of two int64 can wrap to the wrong sign.
    falls = values[1:] < values[:-1]
    if falls.any():
        request = int(falls.argmax())
        length = int(values[request + 1]) - int(values[request])
        raise ContractError(name, length, f"the length of request {request} must not be negative")
    return values
