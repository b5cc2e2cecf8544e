"""Tensors that say they are an accelerator's: what upstream's launchers ask for, and emulated devices cannot give."""

from __future__ import annotations

from functools import cache
from typing import Any


def accelerated(tensor: Any) -> Any:
    """The tensor itself on a GPU; elsewhere the same memory, under a class whose ``is_cuda`` is true."""
    return tensor if tensor.is_cuda else tensor.as_subclass(_claiming())


def unclaimed(tensor: Any) -> Any:
    """The same memory as an ordinary tensor."""
    import torch

    return tensor.as_subclass(torch.Tensor)


@cache
def _claiming() -> Any:
    # The parent process reads bindings without torch.
    import torch

    class Accelerated(torch.Tensor):
        is_cuda = True

    return Accelerated
