"""The emulated chips, but kernels are only compiled: a launch runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from oracles.backends.base import Variation
from oracles.backends.cdna.backend import CdnaBackend
from oracles.backends.cdna.observation import CdnaObservation

if TYPE_CHECKING:
    from oracles.backends.cdna.driver import Launch
    from oracles.memory import Memory


class Kernel(msgspec.Struct, frozen=True):
    """A kernel as it was launched first. ``parameters`` are (name, type), and of constants (name, value as text).

    ``shared`` is what the launch asks for of local memory, in bytes; ``grid`` is its programs on each axis.
    """

    name: str
    parameters: list[tuple[str, str]]
    warps: int
    shared: int
    grid: list[int]
    text: str
    binary: bytes


class CompilingBackend(CdnaBackend):
    """Collects the kernels that calls launch, by their binaries, in ``kernels``."""

    def __init__(self, architecture: str) -> None:
        super().__init__(architecture)
        self.kernels: dict[bytes, Kernel] = {}

    @contextmanager
    def watch(self, memory: Memory, variation: Variation) -> Iterator[CdnaObservation]:
        """Collect every launch inside."""
        from oracles.backends.cdna import driver
        from oracles.backends.cdna.missing_other import Filling

        with (
            super().watch(memory, variation) as observation,
            driver.receiving(driver.active(), self._note, Filling()),
        ):
            yield observation

    def _note(self, launch: Launch) -> None:
        from oracles.backends.cdna import driver

        name, binary = launch.function
        if binary in self.kernels:
            return
        self.kernels[binary] = Kernel(
            name=name,
            parameters=[(name, _shown(kind, value)) for name, kind, value in launch.arguments],
            warps=launch.metadata.num_warps,
            shared=launch.metadata.shared,
            grid=[int(size) for size in launch.grid],
            text=driver.compiled(launch).text,
            binary=binary,
        )


def _shown(kind: Any, value: Any) -> str:
    return repr(value) if kind == "constexpr" else str(kind)
