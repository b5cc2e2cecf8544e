"""What a callable printed while one case was judged. Standard output and error of a worker are one file."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from typing import cast

from oracles.verdict import readable

LIMIT = 2000
"""Characters that are kept of the first call, and of all later ones."""

MOST_BYTES = 1 << 20
"""Bytes that are looked at of each."""


class Transcript:
    """From now on. A case takes several calls: what each of them prints alike is told once."""

    def __init__(self) -> None:
        # What was printed before a crash or an endless loop is then in the file, where the parent finds it.
        with contextlib.suppress(Exception):
            cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)
        self._begin = _end_of_output()
        self._first: int | None = None

    def note_call(self) -> None:
        """A call has ended."""
        if self._first is None:
            self._first = _end_of_output()

    def text(self) -> str:
        """What was printed, shortened; empty if nothing was."""
        end = _end_of_output()
        middle = end if self._first is None else self._first
        first, later = _output(self._begin, middle), _output(middle, end)
        if first.strip() and not later.replace(first, "").strip():
            return _shortened(first)
        parts = [_shortened(first)] if first.strip() else []
        parts += [f"(in further calls for this case:)\n{_shortened(later)}"] if later.strip() else []
        return "\n".join(parts)


def _end_of_output() -> int:
    """How much has been written, buffers included."""
    for stream in (sys.stdout, sys.stderr):
        # A callable may have closed its streams, or put anything in their place.
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    try:
        return os.fstat(1).st_size
    except OSError:
        return 0


def _output(begin: int, end: int) -> str:
    try:
        return os.pread(1, min(max(end - begin, 0), MOST_BYTES), begin).decode(errors="replace")
    except OSError:
        return ""  # it is closed, or it is another file by now, which cannot be read


def _shortened(text: str) -> str:
    text = text.strip("\n")
    if len(text) > LIMIT:
        text = f"{text[: LIMIT - 100]}\n... ({len(text)} characters)"
    return readable(text)
