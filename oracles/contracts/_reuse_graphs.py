"""Contract 5: what a captured graph reads. On a GPU, a CUDA graph; without one, a record of launches and addresses.

A captured kernel reads the addresses that its metadata had at the capture, in the layout of that time, whatever the
builder hands out later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from oracles.interception import own_waits


class Captured(Protocol):
    """A graph of one group: it copies every tensor of the group's metadata."""

    addresses: Mapping[str, int]
    shapes: Mapping[str, torch.Size]

    def replay(self) -> dict[str, torch.Tensor]:
        """What its kernels read now, by field."""


class Recorded:
    """Launches as they were recorded: a copy from each address, in the layout at the capture."""

    def __init__(self, fields: Mapping[str, torch.Tensor]) -> None:
        self.addresses: Mapping[str, int] = {name: address(tensor) for name, tensor in fields.items()}
        self.shapes: Mapping[str, torch.Size] = {name: tensor.shape for name, tensor in fields.items()}
        # Of the storage, so that what a builder does to its own tensor object changes nothing here.
        self._views = {name: _same_memory(tensor) for name, tensor in fields.items()}

    def replay(self) -> dict[str, torch.Tensor]:
        """Copies of what lies there now."""
        return {name: view.clone() for name, view in self._views.items()}


class CudaGraph:
    """The same copies in a real graph, replayed after memory that was freed since has been written over."""

    def __init__(self, fields: Mapping[str, torch.Tensor]) -> None:
        self.addresses: Mapping[str, int] = {name: address(tensor) for name, tensor in fields.items()}
        self.shapes: Mapping[str, torch.Size] = {name: tensor.shape for name, tensor in fields.items()}
        self._read = {name: torch.empty_like(tensor) for name, tensor in fields.items()}
        self._graph = torch.cuda.CUDAGraph()
        views = {name: _same_memory(tensor) for name, tensor in fields.items() if tensor.numel()}
        with own_waits(), torch.cuda.graph(self._graph):
            for name, view in views.items():
                self._read[name].copy_(view)

    def replay(self) -> dict[str, torch.Tensor]:
        """Copies of what the graph read."""
        _overwrite_freed_memory(next(iter(self._read.values())).device)
        self._graph.replay()
        return {name: tensor.clone() for name, tensor in self._read.items()}


def captured(fields: Mapping[str, torch.Tensor]) -> Captured:
    """A graph over these tensors, real where they lie on a GPU. No tensors, no launches."""
    on_gpu = bool(fields) and next(iter(fields.values())).is_cuda
    return CudaGraph(fields) if on_gpu else Recorded(fields)


def address(tensor: torch.Tensor) -> int:
    """Where it lies; 0 if it has no element."""
    return tensor.data_ptr() if tensor.numel() else 0


def _same_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _overwrite_freed_memory(device: torch.device) -> None:
    for size in (512, 4096, 1 << 20):
        junk = [torch.full((size,), -7, dtype=torch.int32, device=device) for _ in range(4)]
        del junk
