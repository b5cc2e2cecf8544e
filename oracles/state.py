"""The state folder: where findings are kept, and what must survive a kill."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

FOLDERS = ("running", "findings", "interrupted")
"""What a state folder holds, each made when it is needed."""


class StateError(RuntimeError):
    """The state folder cannot be used; the message names the place and what the operating system said."""


def free(path: Path, *suffixes: str) -> Path:
    """The path, or one beside it with a number, where a folder that somebody made has its name.

    ``suffixes`` are those of further files that belong to it.
    """
    place, numbers = path, itertools.count(1)
    while any(_is_folder(place.with_suffix(suffix)) for suffix in {path.suffix, *suffixes}):
        place = path.with_name(f"{path.stem}-{next(numbers)}{path.suffix}")
    return place


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


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
