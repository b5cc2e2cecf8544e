"""A device as the harness sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from oracles.backends.base import Observation, Variation
from oracles.backends.device.vendor import DeviceUnavailable, Vendor

if TYPE_CHECKING:
    from oracles.backends.device.runtime import Runtime
    from oracles.memory import Memory

SEES: Mapping[str, str] = {
    "values": "yes, from the machine code that runs in production",
    "writes outside buffers": "in guard zones, between rows and in unused memory of the call; in another output only "
    "as a wrong value; further away as a crash, or not at all where other memory of the process lies",
    "reads outside buffers": "where the value read changes a result, or as a crash; masked lanes read 0 on most chips",
    "host waits": "blocking copies, reads and waits that torch performs; not those inside other libraries",
    "races": "only as results that differ between repeated calls: the order of programs is the device's",
    "compilations": "the variants that Triton compiles or loads; launches without Triton are not counted",
    "memory that torch's factories do not make": "not guarded: other libraries' allocations, results of arithmetic",
}
"""What a device arm can see and what it cannot."""


def _torch() -> Any:
    import torch

    return torch


class DeviceBackend:
    """Runs callables on a real device. Nothing is touched before a child is forked: a context does not survive it."""

    runs: tuple[Literal["host", "triton"], ...] = ("host", "triton")
    sees: Mapping[str, str] = SEES
    judges_compilations: bool = True
    varies_order: bool = False
    freshness_elements: int = 1 << 20
    time_limit: float = 60.0
    # Drivers map as much private memory as they like; the case's own is on the device.
    memory_limit: int | None = None

    def __init__(self, vendor: Vendor, handle: Callable[[], Any] = _torch) -> None:
        self.name = vendor.name
        self.vendor = vendor
        self._handle = handle
        self._runtime: Runtime | None = None

    def unavailable(self) -> str | None:
        """Why it cannot be used, without importing torch: what only the driver knows is found out in the worker."""
        return self.vendor.unavailable()

    def environment(self) -> Mapping[str, str]:
        """Kernels are compiled, whatever the caller's shell says. The visible devices stay the caller's."""
        return {"TRITON_INTERPRET": "0"}

    def prepare(self) -> None:
        """Import what children need. Raises if that touched the device: they could not use it after the fork."""
        if os.environ.get("TRITON_INTERPRET", "0") == "1":
            raise RuntimeError("TRITON_INTERPRET is 1: the worker lacks this backend's environment")
        import triton  # noqa: F401

        import oracles.backends.device.memory  # noqa: F401

        handle = self._handle()
        if handle.cuda.is_initialized():
            raise RuntimeError("the device was initialised before the fork")

    def begin(self) -> None:
        """Open the device. Raises :class:`DeviceUnavailable` with what is missing."""
        self.runtime()

    def runtime(self) -> Runtime:
        """The device of this process, opened at the first use."""
        if self._runtime is None:
            from oracles.backends.device.runtime import open_device

            try:
                self._runtime = open_device(self._handle(), self.vendor)
            except DeviceUnavailable:
                raise
            except (RuntimeError, AssertionError) as error:
                raise DeviceUnavailable(f"{self.vendor.title} cannot be initialised: {error}") from error
        return self._runtime

    def memory(self, variation: Variation) -> Memory:
        """Guarded device memory."""
        from oracles.backends.device.memory import DeviceMemory

        return DeviceMemory(self.runtime(), variation.sentinel)

    def captured(self, function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
        """A capture of ``function(**inputs)`` in a device graph: :class:`oracles.backends.device.graphs.Replay`."""
        from oracles.backends.device.graphs import capture

        return capture(function, inputs, cuda=self.runtime().cuda)

    def limit_of(self, error: BaseException) -> str | None:
        """A device that is full says nothing about an implementation."""
        import torch

        if isinstance(error, torch.OutOfMemoryError):
            return f"the device's memory is exhausted ({str(error).splitlines()[0]})"
        return None

    @contextmanager
    def watch(self, memory: Memory, variation: Variation) -> Iterator[Observation]:
        """Copy the inputs in, watch, wait for the device, and copy everything back.

        A fault that leaves the device unusable ends the process here, while its case is the one that runs.
        """
        from oracles.backends.device import faults, launches, syncs
        from oracles.backends.device.memory import DeviceMemory

        assert isinstance(memory, DeviceMemory)
        runtime = self.runtime()
        observation = Observation()
        with faults.ending_the_process():
            memory.commit()
        try:
            with launches.counted(observation), syncs.observed(runtime.cuda, observation.failures):
                yield observation
        finally:
            with faults.ending_the_process():
                runtime.synchronize()
                memory.read_back()
