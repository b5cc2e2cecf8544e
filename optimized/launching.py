"""What launches of several families share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_MOST_PROGRAMS = 8192


def device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's device the current one, on which Triton launches. Costs nothing where it is already."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


def programs_each(num_owners: int, num_elements: int, tile: int) -> int:
    """Programs that share what one owner has, at most ``num_elements``: no more than tiles, and few if owners are many.

    ``num_owners`` is at least 1, and so is the result.
    """
    tiles = -(-num_elements // tile)
    return max(1, min(tiles, _MOST_PROGRAMS // num_owners))


def step_of(tensor: torch.Tensor, dimension: int) -> int:
    """A stride in elements; 0 in a dimension of one element or none, whose stride can be any number."""
    return tensor.stride(dimension) if tensor.shape[dimension] > 1 else 0
