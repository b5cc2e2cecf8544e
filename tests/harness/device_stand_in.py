"""A stand-in for torch on a device: its ``version``, ``cuda`` and ``device``, with the CPU behind them."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Graph:
    """Records operators and runs them again on the same tensors, as a device graph does with kernels."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        for function, args, kwargs, result in self.steps:
            again = function(*args, **kwargs)
            if isinstance(result, torch.Tensor) and again.data_ptr() != result.data_ptr():
                result.copy_(again)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.graph.steps.append((func, args, kwargs or {}, result))
        return result


class Stream:
    def wait_stream(self, other: Stream) -> None:
        """Nothing runs at the same time here."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Event:
    def synchronize(self) -> None:
        """Nothing to wait for."""


class Cuda:
    """The part of ``torch.cuda`` that is used. ``pending`` is what the next wait for the device raises."""

    Stream, Event, CUDAGraph = Stream, Event, Graph

    def __init__(self, *, count: int = 1, architecture: str = "gfx942:sramecc+:xnack-") -> None:
        self.count = count
        self.architecture = architecture
        self.initialised = False
        self.index: int | None = None
        self.mode = 0
        self.pending: Exception | None = None

    def is_available(self) -> bool:
        return self.count > 0

    def is_initialized(self) -> bool:
        return self.initialised

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.initialised, self.index = True, index

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="stand-in", gcnArchName=self.architecture, major=9, minor=0)

    def synchronize(self) -> None:
        if self.pending is not None:
            raise self.pending

    def mem_get_info(self) -> tuple[int, int]:
        return 1 << 30, 2 << 30

    def get_sync_debug_mode(self) -> int:
        return self.mode

    def set_sync_debug_mode(self, mode: int | str) -> None:
        self.mode = mode

    def current_stream(self) -> Stream:
        return Stream()

    def stream(self, stream: Stream) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def graph(self, graph: Graph) -> contextlib.AbstractContextManager[Any]:
        return _Recording(graph)


def stand_in(*, build: str = "hip", cuda: Cuda | None = None) -> Any:
    """What a build of torch for a device offers."""
    version = SimpleNamespace(cuda=None, hip=None)
    setattr(version, build, "7.0")
    return SimpleNamespace(
        __version__="2.11.0",
        version=version,
        cuda=cuda or Cuda(),
        device=lambda kind, index: torch.device("cpu"),
    )
