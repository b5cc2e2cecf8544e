"""One watched call: every launch inside runs on a machine of its own, and Triton is as it was afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from oracles.backends.base import Variation
from oracles.backends.cdna import driver, launch
from oracles.backends.cdna.machine import Machine
from oracles.backends.cdna.missing_other import Filling
from oracles.backends.cdna.observation import CdnaObservation
from oracles.backends.cdna.reports import failures
from oracles.backends.cdna.schedule import Order
from oracles.backends.cdna.space import DeviceSpace
from oracles.backends.compilations import compilation
from oracles.memory import Memory
from oracles.verdict import Unsupported


class Session:
    """All launches of one call. ``other_line`` names a line whose masked loads are filled the other way round."""

    def __init__(
        self, memory: Memory, variation: Variation, observation: CdnaObservation, other_line: str | None = None
    ) -> None:
        self.observation = observation
        self.unsupported: Unsupported | None = None
        self._driver = driver.active()
        self._memory = memory
        self._space = DeviceSpace(memory)
        order: Order = "interleaved" if variation.order == "random" else variation.order
        self._machine = Machine(self._space, order=order, seed=variation.seed)
        self._filling = Filling(every=variation.sentinel == 1, except_on=other_line)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Launches inside run here."""
        with ExitStack() as undo:
            undo.enter_context(driver.receiving(self._driver, self._receive, self._filling))
            for owner, name, value in (
                (JITFunction, "run", self._noted(JITFunction.run)),
                (Autotuner, "_bench", _untimed),
                (Autotuner, "check_disk_cache", _uncached),
            ):
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
            yield

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """How a jitted function is run, with a note of the compilation that it takes."""

        def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            kernel = original(function, *args, grid=grid, warmup=warmup, **kwargs)
            binder = function.device_caches[self._driver.get_current_device()][-1]
            with torch._C.DisableTorchFunction():
                values, specialization, options = binder(*args, **kwargs)
            key = compilation(function.fn.__name__, values, specialization, options)
            if key not in self.observation.compilations:
                self.observation.compilations.append(key)
            return kernel

        return run

    def _receive(self, asked: driver.Launch) -> None:
        self.observation.launches += 1
        try:
            with torch._C.DisableTorchFunction():
                self._launch(asked)
        except Unsupported as reason:
            self.unsupported = reason
            raise

    def _launch(self, asked: driver.Launch) -> None:
        name, grid = asked.function.name, launch.grid_of(asked.grid)
        launch.refuse_unknown(name, asked.metadata)
        code = driver.compiled(asked)
        kernel = launch.loaded(asked.function.binary, code.text, name, self._driver.architecture)
        items = [item for argument in asked.arguments for item in launch.flattened(*argument)]
        shape = launch.Shape(grid, asked.metadata.num_warps, asked.metadata.shared)
        block = launch.packed(kernel.code, items, shape, self._virtual)
        if 0 in grid:
            return
        for place in code.missing:
            what = f"lanes that kernel {name}, {place}, masks off in a load without other"
            self.observation.poisoned.setdefault(place.name, what)
        record = self._machine.launch(kernel, block, *shape)
        self.observation.instructions += record.instructions
        self.observation.workgroups += record.workgroups
        if self.observation.unwritten is None and record.unwritten is not None:
            self.observation.unwritten = record.unwritten.removeprefix("read ")
        self.observation.failures.extend(failures(record))

    def _virtual(self, tensor: torch.Tensor, name: str) -> int:
        region = self._memory.region_of(tensor)
        if region is not None and not region.device:
            raise ValueError(f"{name}: {region.name} is a tensor of the host's, which a kernel cannot access")
        return self._space.virtual(tensor, name)


def _untimed(tuner: Any, *args: Any, **options: Any) -> list[float]:
    # Every configuration must be right, and timing needs a GPU: all are equally fast, so the first one is run.
    return [0.0, 0.0, 0.0]


def _uncached(tuner: Any, key: Any, configurations: Any, benchmark: Callable[[], None]) -> bool:
    benchmark()
    return False
