"""The emulated chips as the harness sees them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from oracles.backends import triton_version
from oracles.backends.base import CHILD_MEMORY, Executed, Variation, causes
from oracles.backends.cdna.observation import CdnaObservation
from oracles.verdict import Unsupported

if TYPE_CHECKING:
    from oracles.memory import Memory

NEEDED = {"triton": "triton", "elftools": "pyelftools"}
"""Modules, and the packages that bring them."""

SEES: Mapping[str, str] = {
    "machine code": "what Triton's AMD backend makes of the kernel, executed instruction by instruction; never "
    "compared with a physical chip",
    "addresses": "every lane of every access, also through tables of pointers and between strided rows",
    "races": "between workgroups and between waves of one, in global and in local memory; waves run in several orders",
    "barriers": "waves of a workgroup that do not reach the same one; local memory that is read before it is written",
    "masked lanes": "a load without other has another value there in a second compilation, if Triton keeps it a load",
    "integer widths": "those of the machine code, so products in 32 bits overflow as on a GPU",
    "bfloat16 and float8": "bit for bit",
    "compilations": "every variant that the JIT tells apart, really compiled",
    "not judged": "matrix instructions, spilled registers, cooperative launches, calls of the host, and "
    "instructions that are not known",
    "tuning": "of several configurations the first that is not pruned is run, untimed",
    "not seen": "waits for memory (s_waitcnt) that are missing or too short, timing, occupancy",
}
"""What this arm can see and what it cannot."""


class CdnaBackend:
    """Compiles Triton kernels for one architecture and runs their machine code on CPU tensors."""

    runs: tuple[Literal["host", "triton"], ...] = ("host", "triton")
    sees: Mapping[str, str] = SEES
    judges_compilations: bool = True
    varies_order: bool = True
    freshness_elements: int = 64
    time_limit: float = 120.0
    memory_limit: int | None = CHILD_MEMORY

    def __init__(self, architecture: str) -> None:
        self.name = architecture
        self.executed = Executed()
        self._observed: WeakKeyDictionary[Memory, CdnaObservation] = WeakKeyDictionary()
        self._other_line: str | None = None

    def unavailable(self) -> str | None:
        """Why it cannot be used, without importing Triton: that would fix its mode for the whole process."""
        for module, package in NEEDED.items():
            if importlib.util.find_spec(module) is None:
                return f"{package} is not installed"
        reason = triton_version.complaint()
        if reason is not None:
            return reason
        found = importlib.util.find_spec("triton")
        folders = found.submodule_search_locations if found is not None else None
        if not any((Path(folder) / "backends" / "amd").is_dir() for folder in folders or ()):
            return f"triton {importlib.metadata.version('triton')} was built without its AMD backend"
        return None

    def environment(self) -> Mapping[str, str]:
        """Kernels are compiled, with the text and the lines that reports need, whatever the caller's shell says."""
        return {
            # What Triton does if it is not set, which 3.9 warns of.
            "TRITON_DEFAULT_FP_FUSION": os.environ.get("TRITON_DEFAULT_FP_FUSION", "1"),
            "TRITON_INTERPRET": "0",
            "TRITON_DISABLE_LINE_INFO": "0",
            "TRITON_STORE_BINARY_ONLY": "0",
        }

    def prepare(self) -> None:
        """Put the driver in place. Refuses a process that is not set up for it."""
        if os.environ.get("TRITON_INTERPRET", "0") == "1":
            raise RuntimeError("TRITON_INTERPRET is 1: the worker lacks this backend's environment")
        # Whatever is slow the first time is done here, once, and not in every child.
        import oracles.backends.cdna.assembly
        import oracles.backends.cdna.code_object
        import oracles.backends.cdna.session  # noqa: F401
        from oracles.backends.cdna import driver

        driver.install(self.name).warm_up()

    def begin(self) -> None:
        """Nothing."""

    def memory(self, variation: Variation) -> Memory:
        """Guarded memory whose poison is that of the variation."""
        from oracles.memory import Memory

        return Memory(variation.sentinel)

    def limit_of(self, error: BaseException) -> str | None:
        """What cannot be emulated, also where an implementation wrapped the exception in its own."""
        return next((str(cause) for cause in causes(error) if isinstance(cause, Unsupported)), None)

    def poisoned_loads(self, memory: Memory) -> Mapping[str, str]:
        """The kernel lines of a call with masked loads that have no ``other``, and what each is."""
        return self._observed[memory].poisoned

    def unwritten_load(self, memory: Memory) -> str | None:
        """The first load of a call from memory that nobody had written."""
        return self._observed[memory].unwritten

    @contextmanager
    def other_poison(self, line: str) -> Iterator[None]:
        """Calls inside run kernels in which the masked loads of this line are compiled the other way."""
        self._other_line = line
        try:
            yield
        finally:
            self._other_line = None

    @contextmanager
    def watch(self, memory: Memory, variation: Variation) -> Iterator[CdnaObservation]:
        """Run every launch inside on the machine.

        Raises :class:`Unsupported` for what cannot be emulated, also if the call swallowed the exception.
        """
        from oracles.backends.cdna.session import Session

        observation = CdnaObservation()
        session = Session(memory, variation, observation, self._other_line)
        self._observed[memory] = observation
        with session.installed():
            yield observation
        self.executed = self.executed.plus(observation.launches, observation.instructions)
        if session.unsupported is not None:
            raise session.unsupported
