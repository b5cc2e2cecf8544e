"""A workgroup's local memory (LDS), and the ``ds_`` instructions that reach it.

It starts as garbage, and which bytes have been written is remembered: a load of others is reported, as is every lane
outside, which reads 0 or is dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.backends.cdna.access import VectorAccess, units_of, vector_register
from oracles.backends.cdna.ir import LANES
from oracles.backends.cdna.reports import SHARED
from oracles.backends.cdna.shadow import Touch
from oracles.backends.cdna.space import Flags, Octets, Offsets
from oracles.backends.cdna.tables.memory import OPERANDS_COMPARE_FIRST
from oracles.backends.cdna.wave import LANE_NUMBERS, Wave, Words
from oracles.verdict import Failure, OutOfBoundsRead, OutOfBoundsWrite, UninitialisedRead, Unsupported

WRITTEN = 0xFF
"""The mark of a byte that has been written; four of them make the mark of a word."""


class LocalMemory:
    """``data`` and ``written`` have a byte for every byte; ``units`` and ``marks`` show them in units of 2 and 4."""

    def __init__(self, garbage: Octets) -> None:
        size = -(-garbage.size // 4) * 4
        self.data = np.zeros(size, np.uint8)
        self.data[: garbage.size] = garbage
        self.written = np.zeros(size, np.uint8)
        self.size = garbage.size
        self.units: dict[int, npt.NDArray[Any]] = {1: self.data, 2: self.data.view("u2"), 4: self.data.view("u4")}
        self.marks: dict[int, npt.NDArray[Any]] = {
            1: self.written,
            2: self.written.view("u2"),
            4: self.written.view("u4"),
        }

    @property
    def place(self) -> str:
        """The name that failures carry."""
        return SHARED

    def locate(self, offset: int, size: int) -> str:
        """An offset in words."""
        where = f"byte {offset} of {self.size} of the workgroup's shared memory"
        return where if offset + size <= self.size else f"{where}, past its end"


class LocalAccess(VectorAccess):
    """One ``ds_`` instruction on one or two elements a lane."""

    def decode(self, operands: list[Any]) -> None:
        """Take the operands apart: result, address, data of each element."""
        row, modifiers = self.row, self.instruction.modifiers
        if modifiers.get("gds"):
            raise Unsupported(f"{self.instruction.text!r}: global data share is not emulated")
        if row.what == "load" or row.returns:
            self.result = vector_register(operands.pop(0))
        self.address = vector_register(operands.pop(0))
        self.datas = [vector_register(operand) for operand in operands]
        if row.what == "load":
            self.datas = []
        elif len(self.datas) != (2 if row.elements == 2 or "cmpst" in self.instruction.name else 1):
            raise Unsupported(f"{self.instruction.text!r}: an operand is missing")
        if row.elements == 1:
            offsets = [modifiers.get("offset", 0)]
        else:
            offsets = [modifiers.get(f"offset{element}", 0) * row.stride for element in (0, 1)]
        self.offsets = [np.full(LANES, offset, np.uint32) for offset in offsets]
        self.returns = row.returns

    def load(self, wave: Wave, mask: Flags | None) -> None:
        """Load into the result registers."""
        if mask is not None and not np.count_nonzero(mask):
            return
        base = wave.v[self.address]
        loaded: list[Words] = []
        for offset in self.offsets:
            loaded += self._load_element(wave, mask, (base + offset).astype(np.uint64))
        self._put(wave, mask, loaded)

    def _load_element(self, wave: Wave, mask: Flags | None, addresses: npt.NDArray[np.uint64]) -> list[Words]:
        local = wave.group.local
        index = self._index(local, addresses, mask)
        if index is None:
            return self._load_carefully(wave, addresses, mask)
        chosen = index if mask is None else index[mask]
        units, marks = local.units[self.unit], local.marks[self.unit]
        full = (1 << 8 * self.unit) - 1
        record = wave.group.recording
        for step in range(self.count):
            at = chosen + step if step else chosen
            known = marks[at] == full
            if np.count_nonzero(known) < known.size:
                self._report_unwritten(wave, mask, at * self.unit, known)
            if record:
                self._touch(wave, at)
        if self.unit < 4:
            return [self._extended(units[index])]
        return [units[index + step] if step else units[index] for step in range(self.count)]

    def _index(self, local: LocalMemory, addresses: npt.NDArray[np.uint64], mask: Flags | None) -> Offsets | None:
        index = units_of(addresses, self.unit)
        if mask is not None:
            index = index * mask
        if (int(np.maximum.reduce(index)) + self.count) * self.unit > local.size:
            return None
        return index.view(np.int64)

    def _touch(self, wave: Wave, index: Offsets, values: Any = None, changed: Any = None, unit: int = 0) -> None:
        number, atomic = self.instruction.number, self.operation is not None
        touch = Touch(wave.number, number, unit or self.unit, index, values, changed, atomic, wave.ordered)
        wave.group.touch(wave.group.local, touch)

    def _report_unwritten(self, wave: Wave, mask: Flags | None, offsets: Offsets, known: Flags) -> None:
        lanes = LANE_NUMBERS if mask is None else np.flatnonzero(mask)
        first = int(known.argmin())
        what = f"read {wave.group.local.locate(int(offsets[first]), self.unit)}, which nobody had written"
        count = int(known.size - np.count_nonzero(known))
        wave.group.record.note(UninitialisedRead, SHARED, what, wave, self.instruction, int(lanes[first]), count)

    def _legal(
        self, wave: Wave, addresses: npt.NDArray[np.uint64], mask: Flags | None, kind: type[Failure]
    ) -> tuple[Offsets, Offsets]:
        """The lanes that lie inside and their offsets; others are reported."""
        lanes = LANE_NUMBERS if mask is None else np.flatnonzero(mask)
        offsets = addresses[lanes].astype(np.int64)
        local = wave.group.local
        inside = offsets + self.size <= local.size
        if not inside.all():
            stray = lanes[~inside]
            verb = "read" if kind is OutOfBoundsRead else "wrote"
            what = f"{verb} {local.locate(int(offsets[~inside][0]), self.size)}"
            wave.group.record.note(kind, SHARED, what, wave, self.instruction, int(stray[0]), stray.size)
        return lanes[inside], offsets[inside]

    def _load_carefully(self, wave: Wave, addresses: npt.NDArray[np.uint64], mask: Flags | None) -> list[Words]:
        local = wave.group.local
        octets = np.zeros((LANES, 4 * self.count), np.uint8)
        lanes, offsets = self._legal(wave, addresses, mask, OutOfBoundsRead)
        if lanes.size:
            at = offsets[:, None] + self.steps
            octets[lanes[:, None], self.steps] = local.data[at]
            known = (local.written[at] == WRITTEN).all(axis=1)
            if not known.all():
                on = np.zeros(LANES, bool)
                on[lanes] = True
                self._report_unwritten(wave, on, offsets, known)
            if wave.group.recording:
                self._touch(wave, at.ravel(), unit=1)
        if self.unit < 4:
            return [self._extended(np.ascontiguousarray(octets[:, : self.unit]).view(f"u{self.unit}")[:, 0])]
        return list(np.ascontiguousarray(octets.view(np.uint32).T))

    def store(self, wave: Wave, mask: Flags | None) -> None:
        """Store from the data registers."""
        if mask is not None and not np.count_nonzero(mask):
            return
        base = wave.v[self.address]
        for first, offset in zip(self.datas, self.offsets, strict=True):
            data = wave.v[first : first + self.count]
            if self.row.half == "high":
                data = [data[0] >> np.uint32(16)]
            self._store_element(wave, mask, (base + offset).astype(np.uint64), data)

    def _store_element(
        self, wave: Wave, mask: Flags | None, addresses: npt.NDArray[np.uint64], data: list[Words]
    ) -> None:
        local = wave.group.local
        index = self._index(local, addresses, mask)
        if index is None:
            self._store_carefully(wave, addresses, mask, data)
            return
        units, marks = local.units[self.unit], local.marks[self.unit]
        if mask is not None:
            index, data = index[mask], [part[mask] for part in data]
        full = (1 << 8 * self.unit) - 1
        for step, part in enumerate(data):
            at = index + step if step else index
            values = part if self.unit == 4 else part.astype(units.dtype)
            if wave.group.recording:
                self._touch(wave, at, values.astype(np.uint32), units[at] != values)
            units[at] = values
            marks[at] = full

    def _store_carefully(
        self, wave: Wave, addresses: npt.NDArray[np.uint64], mask: Flags | None, data: list[Words]
    ) -> None:
        local = wave.group.local
        lanes, offsets = self._legal(wave, addresses, mask, OutOfBoundsWrite)
        if lanes.size == 0:
            return
        at = offsets[:, None] + self.steps
        values = np.stack(data, axis=1).view(np.uint8)[lanes][:, : self.size]
        if wave.group.recording:
            changed = (local.data[at] != values).ravel()
            self._touch(wave, at.ravel(), values.ravel().astype(np.uint32), changed, unit=1)
        local.data[at] = values
        local.written[at] = WRITTEN

    def update(self, wave: Wave, mask: Flags | None) -> None:
        """A read-modify-write. Lanes that meet at an address take turns in their order."""
        if mask is not None and not np.count_nonzero(mask):
            return
        assert self.operation is not None
        local = wave.group.local
        addresses = (wave.v[self.address] + self.offsets[0]).astype(np.uint64)
        lanes, offsets = self._legal(wave, addresses, mask, OutOfBoundsWrite)
        if (offsets & 3).any():
            raise Unsupported(f"{self.instruction.text!r}: an atomic at an address that is no multiple of 4")
        index = offsets >> 2
        known = local.marks[4][index] == 0xFFFFFFFF
        if not known.all():
            on = np.zeros(LANES, bool)
            on[lanes] = True
            self._report_unwritten(wave, on, offsets, known)
        words = local.units[4]
        old = self.operation.apply(words, index, [operand[lanes] for operand in self._operands(wave.v)])
        before = [np.zeros(LANES, np.uint32) for _ in range(self.count)]
        for step, part in enumerate(old):
            before[step][lanes] = part
            local.marks[4][index + step] = 0xFFFFFFFF
            if wave.group.recording:
                now = words[index + step]
                self._touch(wave, index + step, now, now != part, unit=4)
        if self.returns:
            self._put(wave, mask, before)

    def _operands(self, v: list[Words]) -> list[npt.NDArray[Any]]:
        assert self.operation is not None
        values = [self.operation.joined(v[first : first + self.count]) for first in self.datas]
        return values[::-1] if self.instruction.name in OPERANDS_COMPARE_FIRST else values
