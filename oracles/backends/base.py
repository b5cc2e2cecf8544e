"""What every backend offers. A backend is one module or folder here and touches no contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from oracles.verdict import Failure

if TYPE_CHECKING:
    from oracles.memory import Memory

Order = Literal["forward", "reverse", "random"]

CHILD_MEMORY = 6 << 30
"""Bytes of private memory a worker may have: garbage lengths must not take the machine down with them."""

DEVICE_LOST: Mapping[int, str] = {
    71: "illegal memory access",
    72: "device-side assert",
    73: "misaligned address",
    74: "device error",
}
"""Exit codes of a worker whose device can no longer be used, and what a finding calls the place of the crash.

After such a fault every later call fails as well, so the process ends while the case is still the running one.
"""


@dataclass(frozen=True)
class Variation:
    """One way to run the same call: which poison, and in which order programs of a launch run."""

    sentinel: int = 0
    order: Order = "forward"
    seed: int = 0


@dataclass
class Observation:
    """What a backend saw during one call. ``compilations`` holds one key for each distinct compilation."""

    failures: list[Failure] = field(default_factory=list)
    launches: int = 0
    compilations: list[str] = field(default_factory=list)


class Executed(NamedTuple):
    """How much code ran: launches, and instructions of all waves of their programs."""

    launches: int = 0
    instructions: int = 0

    def plus(self, launches: int, instructions: int) -> Executed:
        """With this on top."""
        return Executed(self.launches + launches, self.instructions + instructions)

    def since(self, earlier: Executed) -> Executed:
        """What came on top of an earlier count."""
        return self.plus(-earlier.launches, -earlier.instructions)


@runtime_checkable
class CountsInstructions(Protocol):
    """What a backend offers that executes instructions one by one: their count over all calls of the process."""

    executed: Executed


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


class Backend(Protocol):
    """Where code runs.

    ``environment`` is set in the worker process before it imports torch or Triton; ``prepare`` is called there once,
    before children are forked, and so may import but not touch a device; ``begin`` is called in each child before the
    implementation is loaded, and what it raises is the reason why nothing can be judged. ``memory_limit`` is the
    private memory of a child in bytes, or ``None`` where a driver needs more than can be foreseen. The freshness
    protocol, some five calls, is asked of inputs with up to ``freshness_elements`` elements: what an implementation
    remembers does not depend on size. ``memory`` makes the guarded buffers of one call; ``watch`` surrounds the call
    and fills the observation, raising :class:`oracles.verdict.Unsupported` for what this arm cannot judge.
    """

    name: str
    runs: tuple[Literal["host", "triton"], ...]
    sees: Mapping[str, str]
    judges_compilations: bool
    varies_order: bool
    freshness_elements: int
    time_limit: float
    memory_limit: int | None

    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, or ``None``."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables of its workers."""

    def prepare(self) -> None:
        """Called once in the worker, before it forks."""

    def begin(self) -> None:
        """Called once in each child."""

    def memory(self, variation: Variation) -> Memory:
        """Guarded memory for one call."""

    def limit_of(self, error: BaseException) -> str | None:
        """Why an exception of a call is a limit of this backend and not the implementation's fault; else ``None``."""

    def watch(self, memory: Memory, variation: Variation) -> AbstractContextManager[Observation]:
        """Observe one call."""
