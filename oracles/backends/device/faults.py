"""Faults after which a device cannot be used any more.

A stray access or a failed assertion in a kernel poisons the context of the process: every later call fails too, and
nothing but the end of the process helps. So the process ends at once, while the case that did it is still the one that
runs: the harness then sees a crash of that case, starts a new process, and goes on. The exit code says what happened.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from oracles.verdict import described

_TEXTS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (71, ("illegal memory access", "illegaladdress", "memory access fault", "illegal address")),
    (72, ("device-side assert", "deviceassert", "errorassert")),
    (73, ("misaligned address", "misalignedaddress")),
    (74, ("unspecified launch failure", "launchfailure", "illegal instruction", "hardware stack error")),
    (74, ("invalid program counter", "invalid address space", "launch timed out", "an unknown error")),
    (74, ("uncorrectable ecc error", "hiperrorunknown", "cudaerrorunknown")),
)
"""What CUDA, HIP and Triton's launcher say, in lower case, and the exit code for it (see ``DEVICE_LOST``)."""


def exit_code_of(error: BaseException) -> int | None:
    """The exit code for an error that leaves the device unusable; ``None`` for every other exception."""
    if not isinstance(error, RuntimeError):
        return None
    text = described(error).lower()
    return next((code for code, parts in _TEXTS if any(part in text for part in parts)), None)


@contextlib.contextmanager
def ending_the_process() -> Iterator[None]:
    """End the process if the device was lost inside."""
    try:
        yield
    except RuntimeError as error:
        code = exit_code_of(error)
        if code is None:
            raise
        end(code, error)


def end(code: int, error: BaseException) -> None:
    """Say why on the log, which becomes part of the finding, and leave without running anybody's exit handlers."""
    with contextlib.suppress(OSError):
        os.write(2, f"the device is lost: {described(error)}\n".encode(errors="replace"))
    os._exit(code)
