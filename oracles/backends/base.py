"""What every backend offers. A backend is one module or folder here and touches no contract."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from oracles.verdict import Failure

if TYPE_CHECKING:
    from oracles.memory import Memory

Order = Literal["forward", "reverse", "random"]


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


class Backend(Protocol):
    """Where code runs.

    ``environment`` is set in the worker process before it imports torch or Triton; ``prepare`` is called there once,
    before the implementation is loaded. The freshness protocol, some five calls, is asked of inputs with up to
    ``freshness_elements`` elements: what an implementation remembers does not depend on size. ``memory`` makes the
    guarded buffers of one call; ``watch`` surrounds the call and fills the observation, raising
    :class:`oracles.verdict.Unsupported` for what this arm cannot judge.
    """

    name: str
    runs: tuple[Literal["host", "triton"], ...]
    sees: Mapping[str, str]
    judges_compilations: bool
    freshness_elements: int
    time_limit: float

    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, or ``None``."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables of its workers."""

    def prepare(self) -> None:
        """Called once in the worker."""

    def memory(self, variation: Variation) -> Memory:
        """Guarded memory for one call."""

    def limit_of(self, error: BaseException) -> str | None:
        """Why an exception of a call is a limit of this backend and not the implementation's fault; else ``None``."""

    def watch(self, memory: Memory, variation: Variation) -> AbstractContextManager[Observation]:
        """Observe one call."""
