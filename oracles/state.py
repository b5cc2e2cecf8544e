"""The state folder: where findings are kept, and what must survive a kill."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FOLDERS = ("running", "findings", "interrupted")
"""What a state folder holds, each made when it is needed."""


class StateError(RuntimeError):
    """The state folder cannot be used; the message names the place and what the operating system said."""


def complaint(state: Path) -> str | None:
    """Why a folder cannot be a state folder: it, or one in it, can neither be written to nor made.

    It is tried out, because permissions alone do not tell (a read-only or special file system), and nothing stays.
    """
    for place in (state, *(state / name for name in FOLDERS if os.path.lexists(state / name))):
        there = next(path for path in (place, *place.absolute().parents) if os.path.lexists(path))
        try:
            with tempfile.TemporaryDirectory(prefix=".oracles-", dir=there):
                pass
        except OSError as error:
            return f"{state}: {there} is no folder that can be written to ({error.strerror})"
    return None
