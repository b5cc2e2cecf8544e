"""Races between the programs of one launch, found from a record of what each program touched.

The interpreter runs programs one after the other, so a race never shows as a wrong value by itself. Two rules, asked
after the launch, byte for byte:

* two programs must not leave different values in the same byte (equal values are tolerated);
* a program must not load a byte that another program changes.

Not accused, because they may be ordered:

* atomics against atomics: the memory system orders them;
* anything a program does after an atomic with acquire semantics. The access may wait for what another program released
  (a lock, a ticket, a look-back), and the order in which programs happened to run here cannot tell whether it does;
* a load after the program's own store to the same byte: another program that stores the same value does not change what
  is read, and one that stores another value is accused by the first rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oracles.backends.interpreter.sites import Site

Bits = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Touch:
    """One access of one program to one buffer: flat ``addresses`` of ``size`` bytes each.

    ``values`` holds the stored bits, ``None`` for a load; ``changed`` says which lanes changed memory. ``ordered``
    means that the program did an acquiring atomic before.
    """

    program: int
    site: Site | None
    size: int
    addresses: Bits
    values: Bits | None = None
    changed: Flags | None = None
    atomic: bool = False
    ordered: bool = False


class Conflict(NamedTuple):
    """Two programs, by their linear number, that meet at an address; ``second`` stores there."""

    address: int
    first: Touch
    second: Touch

    @property
    def both_store(self) -> bool:
        """Whether the first of the two stores as well."""
        return self.first.values is not None


class _Table(NamedTuple):
    """Touches laid out as columns, one row a lane; ``which`` is the position of the touch, and so program order."""

    address: Bits
    program: Numbers
    which: Numbers
    value: Bits
    changed: Flags


def conflicts(touches: Sequence[Touch]) -> Iterator[Conflict]:
    """At most one conflict of each rule in one buffer, that at the lowest address."""
    touches = [touch for touch in touches if touch.addresses.size]
    stores = [touch for touch in touches if touch.values is not None]
    if not stores or len({touch.program for touch in touches}) < 2:
        return
    width = _width(touches)
    written = _table(touches, width, stores=True)
    found = _different_stores(touches, written)
    if found is not None:
        yield found
    found = _unordered_load(touches, _table(touches, width, stores=False), written)
    if found is not None:
        yield found


def _width(touches: Sequence[Touch]) -> int:
    """Bytes a row: the common size of all accesses where they cannot overlap in part, otherwise 1."""
    size = touches[0].size
    first = touches[0].addresses[0]
    aligned = all(touch.size == size and not np.any((touch.addresses - first) % np.uint64(size)) for touch in touches)
    return size if aligned else 1


def _table(touches: Sequence[Touch], width: int, *, stores: bool) -> _Table:
    chosen = [index for index, touch in enumerate(touches) if (touch.values is not None) == stores]
    if not chosen:
        empty = np.empty(0, np.uint64)
        return _Table(empty, empty.astype(np.int64), empty.astype(np.int64), empty, empty.astype(bool))
    rows = [_rows(touches[index], width) for index in chosen]
    counts = [row[0].size for row in rows]
    which = np.repeat(np.array(chosen, np.int64), counts)
    programs = np.array([touch.program for touch in touches], np.int64)
    address, value, changed = (np.concatenate(column) for column in zip(*rows, strict=True))
    return _Table(address, programs[which], which, value, changed)


def _rows(touch: Touch, width: int) -> tuple[Bits, Bits, Flags]:
    count = touch.addresses.size
    values = np.zeros(count, np.uint64) if touch.values is None else touch.values
    changed = np.zeros(count, bool) if touch.changed is None else touch.changed
    if width == touch.size:
        return touch.addresses, values, changed
    steps = np.arange(touch.size, dtype=np.uint64)
    addresses = (touch.addresses[:, None] + steps).ravel()
    octets = ((values[:, None] >> (steps * np.uint64(8))) & np.uint64(0xFF)).ravel()
    return addresses, octets, np.repeat(changed, touch.size)


def _different_stores(touches: Sequence[Touch], written: _Table) -> Conflict | None:
    free = ~np.array([touch.ordered for touch in touches], bool)[written.which]
    rows = np.flatnonzero(free)
    rows = rows[np.lexsort((written.which[rows], written.program[rows], written.address[rows]))]
    address, program = written.address[rows], written.program[rows]
    # What a program leaves behind is its last store: a running sum that meets an equal result is no race.
    last = np.ones(rows.size, bool)
    last[:-1] = (address[1:] != address[:-1]) | (program[1:] != program[:-1])
    rows = rows[last]
    atomic = np.array([touch.atomic for touch in touches], bool)[written.which[rows]]
    meet = written.address[rows][1:] == written.address[rows][:-1]
    meet &= (written.value[rows][1:] != written.value[rows][:-1]) & ~(atomic[1:] & atomic[:-1])
    if not meet.any():
        return None
    at = int(np.argmax(meet))
    first, second = touches[written.which[rows[at]]], touches[written.which[rows[at + 1]]]
    return Conflict(int(written.address[rows[at]]), first, second)


def _unordered_load(touches: Sequence[Touch], read: _Table, written: _Table) -> Conflict | None:
    ordered = np.array([touch.ordered for touch in touches], bool)
    changing = np.flatnonzero(written.changed & ~ordered[written.which])
    if changing.size == 0 or read.address.size == 0:
        return None
    changing = changing[np.lexsort((written.program[changing], written.address[changing]))]
    address, program = written.address[changing], written.program[changing]
    # Sorted by address and program: the ends of a run are the lowest and the highest program that changes a byte,
    # and some other program than the reader changes it unless both ends are the reader.
    low = np.searchsorted(address, read.address, side="left")
    high = np.searchsorted(address, read.address, side="right") - 1
    hit = (low <= high) & ~ordered[read.which]
    low, high = np.minimum(low, address.size - 1), np.maximum(high, 0)
    other = np.where(program[low] != read.program, low, high)
    hit &= program[other] != read.program
    rows = np.flatnonzero(hit)
    rows = rows[~_after_own_store(read, written, rows)]
    if rows.size == 0:
        return None
    row = rows[np.argmin(read.address[rows])]
    return Conflict(int(read.address[row]), touches[read.which[row]], touches[written.which[changing[other[row]]]])


def _after_own_store(read: _Table, written: _Table, rows: npt.NDArray[np.int64]) -> Flags:
    """Which of these loads follow a store of the same program to the same byte."""
    if rows.size == 0:
        return np.zeros(0, bool)
    order = np.lexsort((written.which, written.program, written.address))
    keys = np.empty(order.size, [("address", np.uint64), ("program", np.int64)])
    keys["address"], keys["program"] = written.address[order], written.program[order]
    wanted = np.empty(rows.size, keys.dtype)
    wanted["address"], wanted["program"] = read.address[rows], read.program[rows]
    at = np.minimum(np.searchsorted(keys, wanted, side="left"), order.size - 1)
    same = keys[at] == wanted
    return np.asarray(same & (written.which[order[at]] < read.which[rows]), dtype=bool)
