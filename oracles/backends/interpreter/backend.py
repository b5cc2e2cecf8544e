"""The interpreter as the harness sees it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from oracles.backends import triton_version
from oracles.backends.base import CHILD_MEMORY, Variation
from oracles.backends.interpreter.limits import limit_of
from oracles.backends.interpreter.observation import InterpreterObservation
from oracles.verdict import Unsupported

if TYPE_CHECKING:
    from oracles.memory import Memory

SEES: Mapping[str, str] = {
    "addresses": "every lane of every load, store and atomic, also through tables of pointers and between strided rows",
    "masked lanes": "a load without other gives poison where it is masked off, another one in the second run",
    "races": "two programs that store different values to a byte, or one that loads what another changes; nothing that "
    "follows an acquiring atomic, nothing between the lanes of one program",
    "integer widths": "the types of scalar arguments are those of the JIT, so products in 32 bits overflow as on a GPU",
    "compilations": "the cache key of Triton's JIT for gfx942 is computed for every launch; nothing is compiled",
    "bfloat16 and float8": "not judged: the interpreter computes them wrongly",
    "inline assembly and external functions": "not judged: the interpreter has none",
    "tuning": "of several configurations the first that is not pruned is run, untimed",
    "order": "programs run one after the other, so one that waits for a later one never ends",
    "timing, barriers, registers": "not seen",
}
"""What this arm can see and what it cannot."""


class InterpreterBackend:
    """Runs Triton kernels as NumPy code and checks every lane. ``TRITON_INTERPRET`` must be set before Triton loads."""

    name: str = "interpreter"
    runs: tuple[Literal["host", "triton"], ...] = ("host", "triton")
    sees: Mapping[str, str] = SEES
    judges_compilations: bool = False
    varies_order: bool = True
    freshness_elements: int = 64
    time_limit: float = 30.0
    memory_limit: int | None = CHILD_MEMORY

    def __init__(self) -> None:
        self._observed: WeakKeyDictionary[Memory, InterpreterObservation] = WeakKeyDictionary()
        self._other_poison: str | None = None

    def unavailable(self) -> str | None:
        """Why it cannot be used. Triton is not imported here: that would fix its mode for the whole process."""
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        return triton_version.complaint()

    def environment(self) -> Mapping[str, str]:
        """Makes ``triton.jit`` give interpreted functions."""
        return {"TRITON_INTERPRET": "1"}

    def prepare(self) -> None:
        """Load Triton in interpreted mode. Refuses a process that is not set up for it."""
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError("TRITON_INTERPRET is not 1: the worker lacks this backend's environment")
        import triton.language.standard as standard

        if type(standard.zeros).__name__ != "InterpretedFunction":
            raise RuntimeError("triton was imported before TRITON_INTERPRET was set")

    def begin(self) -> None:
        """Nothing."""

    def memory(self, variation: Variation) -> Memory:
        """Guarded memory whose poison is that of the variation."""
        from oracles.memory import Memory

        return Memory(variation.sentinel)

    def limit_of(self, error: BaseException) -> str | None:
        """The interpreter's own limits, raised as exceptions of many types."""
        return limit_of(error)

    def poisoned_loads(self, memory: Memory) -> Mapping[str, str]:
        """The kernel lines of a call that loaded poison because they were masked off, and the first of each."""
        return self._observed[memory].reads

    def unwritten_load(self, memory: Memory) -> str | None:
        """The first load of a call from memory that nobody had written."""
        return next(iter(self._observed[memory].unwritten), None)

    @contextmanager
    def other_poison(self, line: str) -> Iterator[None]:
        """Calls inside get another poison on this kernel line, and are otherwise as without."""
        self._other_poison = line
        try:
            yield
        finally:
            self._other_poison = None

    @contextmanager
    def watch(self, memory: Memory, variation: Variation) -> Iterator[InterpreterObservation]:
        """Check every launch inside.

        Raises :class:`Unsupported` for what the interpreter cannot do, also if the call swallowed the exception. An
        exception of a kernel arrives as Triton's ``InterpreterError``, with the kernel's line in the message and the
        original exception as its cause.
        """
        from oracles.backends.interpreter.session import Session

        observation = InterpreterObservation()
        session = Session(memory, variation, observation, self._other_poison)
        self._observed[memory] = observation
        with session.installed():
            try:
                yield observation
            except Unsupported:
                raise
            except Exception as error:
                reason = str(session.unsupported) if session.unsupported else limit_of(error)
                if reason is None:
                    raise
                raise Unsupported(reason) from error
        if session.unsupported is not None:
            raise session.unsupported


BACKEND = InterpreterBackend()
