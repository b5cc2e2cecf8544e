"""A Triton driver without a GPU: kernels are specialised and compiled for an AMD target, and launches do nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver


class _Utils:
    """What Triton asks of a driver after a compilation: the device's limits, and to load the binary."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 65536, "warpSize": 64, "multiprocessor_count": 304}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[None, str, int, int, int]:
        registers, spills, threads = 0, 0, 1024
        return None, name, registers, spills, threads


def _ignore_launches(source: Any, metadata: Any) -> Any:
    return lambda *arguments: None


class StandInDriver(GPUDriver):
    """Pretends that one device of the architecture is there; CPU tensors are taken for its tensors."""

    def __init__(self, architecture: str) -> None:
        self.target = GPUTarget("hip", architecture, 64)
        self.utils = _Utils()
        self.launcher_cls = _ignore_launches
        self.get_current_device = lambda: 0
        self.set_current_device = lambda device: None
        self.get_current_stream = lambda device: 0

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_active_torch_device(self) -> Any:
        return SimpleNamespace(type="cpu", index=None)

    def get_device_interface(self) -> Any:
        return None

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing runs here, so nothing can be timed")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty


def install(architecture: str) -> None:
    """Make every Triton launch of this process compile for ``architecture`` and then do nothing."""
    triton.runtime.driver.set_active(StandInDriver(architecture))
