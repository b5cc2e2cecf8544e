"""The slot: which case a worker is running, in a memory-mapped file that survives ``kill -9``.

A few stores a case instead of a file a case. The parent holds a lock on the file for as long as it lives, so that the
next run can tell a leftover from a run that is still going on.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec

from oracles.state import StateError, free

META = 8192
HEADER = struct.Struct("<8sIIdqqqI4x")
CAPACITY = 8192
SIZE = META + HEADER.size + 8 * CAPACITY
MAGIC = b"ORACLE01"
IDLE, RUNNING = 0, 1
UNKEPT, FILE = CAPACITY + 1, CAPACITY + 2
"""Instead of a number of choices: they are too many to be kept, or the case comes from a file."""


class Meta(msgspec.Struct):
    """What the cases of a slot belong to."""

    contract: str
    spec: str
    name: str
    backend: str
    time_limit: float | None = None
    """Seconds for a case, where they are not the backend's own."""


@dataclass(frozen=True)
class Running:
    """The case in a slot.

    ``choices`` is ``None`` where the sequence was too long to be kept: then seed and index say which input it was.
    """

    number: int
    started: float
    seed: int
    index: int
    choices: list[int] | None
    path: str | None = None


class Slot:
    """One worker's slot. Created and locked by the parent, written by the worker.

    Refused with ``StateError``: a folder in which no file can be made. ``path`` is a new slot's name, or near to it
    where a folder has that name.
    """

    def __init__(self, path: Path, *, create: Meta | None = None) -> None:
        self.path = path if create is None else free(path)
        if create is not None:
            self._fd = _created(self.path, create)
        else:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._fd, SIZE)
        except BaseException:
            os.close(self._fd)
            raise
        self._number = 0
        self._judged = 0

    def meta(self) -> Meta:
        """What the slot was made for."""
        return msgspec.json.decode(self._map[:META].rstrip(b"\0"), type=Meta)

    def begin(self, choices: Sequence[int], seed: int = -1, index: int = -1) -> None:
        """The case that runs from now on."""
        self._number += 1
        count = len(choices) if len(choices) <= CAPACITY else UNKEPT
        if count <= CAPACITY:
            struct.pack_into(f"<{count}q", self._map, META + HEADER.size, *choices)
        header = (MAGIC, RUNNING, self._judged, monotonic(), self._number, seed, index, count)
        HEADER.pack_into(self._map, META, *header)

    def begin_file(self, path: str) -> None:
        """The case of a file runs from now on."""
        name = os.fsencode(path)[: 8 * CAPACITY - 1] + b"\0"
        self._map[META + HEADER.size : META + HEADER.size + len(name)] = name
        self._number += 1
        HEADER.pack_into(self._map, META, MAGIC, RUNNING, 0, monotonic(), self._number, -1, -1, FILE)

    def end(self, judged: int = 0) -> None:
        """No case runs; ``judged`` of them were judged and not yet reported in another way."""
        self._judged = judged
        struct.pack_into("<II", self._map, META + 8, IDLE, judged)

    def judged(self) -> int:
        """Cases that were judged and, had the worker not died, would have been reported."""
        _, _, judged, *_ = HEADER.unpack_from(self._map, META)
        return int(judged)

    def clear(self) -> None:
        """Forget the last case."""
        HEADER.pack_into(self._map, META, b"", IDLE, 0, 0.0, 0, -1, -1, 0)

    def running(self) -> Running | None:
        """The case that runs, or ran when the worker died."""
        last = self.last()
        return last if last is not None and struct.unpack_from("<I", self._map, META + 8)[0] == RUNNING else None

    def last(self) -> Running | None:
        """The case that was begun last, whether or not it has ended."""
        magic, _, _, started, number, seed, index, count = HEADER.unpack_from(self._map, META)
        if magic != MAGIC:
            return None
        if count == FILE:
            name = self._map[META + HEADER.size : SIZE].split(b"\0", 1)[0]
            return Running(number, started, seed, index, None, os.fsdecode(name))
        choices = None
        if count <= CAPACITY:
            choices = list(struct.unpack_from(f"<{count}q", self._map, META + HEADER.size))
        return Running(number, started, seed, index, choices)

    def close(self, *, remove: bool = False) -> None:
        """Let go of the file; with ``remove``, delete it: the run ended in order."""
        self._map.close()
        os.close(self._fd)
        if remove:
            self.path.unlink(missing_ok=True)


def _created(path: Path, create: Meta) -> int:
    """The descriptor of a new slot."""
    meta = msgspec.json.encode(create)
    if len(meta) > META:
        raise ValueError(f"meta: {len(meta)} bytes do not fit into {META}")
    partial = free(path.with_name(f".{path.name}"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(meta.ljust(SIZE, b"\0"))
        fd = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
        # Locked before it has its name: nobody may take it for the leftover of a run that was killed.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise StateError(f"{path.parent}: no file can be made in this folder ({error.strerror})") from error
    return fd


def leftovers(directory: Path) -> Iterator[tuple[Meta, Running]]:
    """Cases that were running when an earlier run was killed. Each is reported once.

    What is no slot stays where it is, unless it is a file with a slot's name.
    """
    for path in sorted(directory.glob("*.slot")):
        slot = _abandoned(path)
        if slot is None:
            continue
        running = slot.running()
        try:
            meta = slot.meta()
        except msgspec.MsgspecError:
            running = None
        with contextlib.suppress(OSError):  # it is another user's, in a folder that all may write to
            slot.close(remove=True)
        if running is not None:
            yield meta, running


def _abandoned(path: Path) -> Slot | None:
    """The slot of a file, locked, unless its run goes on, or it is none."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        slot = Slot(path)
    except OSError:
        return None
    except ValueError:
        with contextlib.suppress(OSError):
            path.unlink()  # shorter than a slot: its run died while it made the file
        return None
    try:
        fcntl.flock(slot._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        slot.close()
        return None
    return slot
