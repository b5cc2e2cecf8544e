"""Plain torch and NumPy code, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from oracles.backends.base import CHILD_MEMORY, Observation, Variation
from oracles.verdict import described

if TYPE_CHECKING:
    from oracles.memory import Memory


def _origin(error: BaseException) -> str:
    """The file of the innermost frame of an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""


class HostBackend:
    """Runs a callable as it is. Reads outside a buffer show only through what they change, or as a crash."""

    name = "host"
    runs: tuple[Literal["host", "triton"], ...] = ("host",)
    sees: Mapping[str, str] = {
        "values": "yes",
        "writes outside buffers": "within the guard zones; further away only as a crash",
        "reads outside buffers": "only where the value read changes a result or the process dies",
        "host reads of device tensors": "yes, where they go through torch, also in threads that the call starts",
        "races, compilations": "no: nothing is launched",
    }
    judges_compilations = False
    varies_order = False
    freshness_elements = 1 << 20
    time_limit = 10.0
    memory_limit: int | None = CHILD_MEMORY

    def unavailable(self) -> str | None:
        """Always there."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def prepare(self) -> None:
        """Nothing."""

    def begin(self) -> None:
        """Nothing."""

    def memory(self, variation: Variation) -> Memory:
        """Guarded CPU memory."""
        from oracles.memory import Memory

        return Memory(variation.sentinel)

    def limit_of(self, error: BaseException) -> str | None:
        """A Triton kernel has no device to run on here."""
        text = described(error)
        if "active drivers" in text or ("driver" in text.lower() and "triton" in _origin(error)):
            return f"it launches a Triton kernel, and this backend has no device for it ({text})"
        return None

    @contextmanager
    def watch(self, memory: Memory, variation: Variation) -> Iterator[Observation]:
        """There is nothing to observe but the call itself."""
        yield Observation()


BACKEND = HostBackend()
