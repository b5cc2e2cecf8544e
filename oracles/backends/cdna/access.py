"""Loads, stores and atomics of vector instructions in global memory, every lane checked.

A lane whose bytes are not elements of a buffer reads 0 or is dropped, and is reported. Only views of known buffers are
ever indexed: no address of emulated code becomes an address of this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.backends.cdna.atomics import operation
from oracles.backends.cdna.ir import LANES, Instruction, Integer, Named, Register
from oracles.backends.cdna.shadow import Touch
from oracles.backends.cdna.space import Allocation, Flags, Offsets
from oracles.backends.cdna.tables.memory import ATOMIC, Access
from oracles.backends.cdna.wave import LANE_NUMBERS, Wave, Words
from oracles.verdict import Failure, OutOfBoundsRead, OutOfBoundsWrite, Unsupported

Addresses = npt.NDArray[np.uint64]

# Arrays against arrays: NumPy takes twice as long where one operand is a number.
SHIFT = {size: np.full(LANES, size.bit_length() - 1, np.uint64) for size in (1, 2, 4)}
ROTATE = {size: np.full(LANES, 64 - (size.bit_length() - 1), np.uint64) for size in (2, 4)}

_SEXT = {1: np.int8, 2: np.int16}


def pair(low: Words, high: Words) -> Addresses:
    """64-bit values from their halves."""
    both = np.empty(2 * low.size, np.uint32)
    both[0::2] = low
    both[1::2] = high
    return both.view(np.uint64)


def merged(mask: Flags | None, new: Words, old: Words) -> Words:
    """``new`` in the lanes that are on, ``old`` in the others."""
    return new if mask is None else np.where(mask, new, old)


def units_of(offsets: Addresses, size: int) -> Addresses:
    """Offsets in units of ``size`` bytes; one that is no multiple becomes larger than any buffer."""
    if size == 1:
        return offsets
    return (offsets >> SHIFT[size]) | (offsets << ROTATE[size])


class VectorAccess:
    """One ``global_`` or ``flat_`` instruction, ready to run on waves.

    Its methods take the wave and exec as flags. ``atomic``: neither a load nor a store that the memory system orders
    (scope of the device or wider) can race with its like.
    """

    def __init__(self, instruction: Instruction, row: Access) -> None:
        modifiers = instruction.modifiers
        self.instruction = instruction
        self.row = row
        self.count = row.registers
        self.unit = row.last_bytes
        self.size = 4 * (row.registers - 1) + row.last_bytes
        self.steps = np.arange(self.size)
        self.atomic = bool(modifiers.get("sc1")) and not modifiers.get("nt")
        self.returns = row.returns or bool(modifiers.get("sc0"))
        if modifiers.get("lds"):
            raise Unsupported(f"{instruction.text!r}: loads from global memory into LDS are not emulated")
        self.operation = operation(ATOMIC[row.atomic]) if row.what == "atomic" else None
        self.decode(list(instruction.operands))

    def decode(self, operands: list[Any]) -> None:
        """Take the operands apart: an address in vector registers, perhaps with a base in scalar ones."""
        if self.row.what == "load" or (self.row.what == "atomic" and self.returns):
            self.result = vector_register(operands.pop(0))
        address = operands.pop(0)
        if self.row.what != "load":
            self.data = vector_register(operands.pop(0))
        base = operands.pop(0) if operands else Named("off")
        self.address = vector_register(address)
        self.base = base.number if isinstance(base, Register) else None
        offset = self.instruction.modifiers.get("offset", 0)
        self.offset = np.full(LANES, offset & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
        self.plain = offset == 0
        self.immediate = offset

    def addresses(self, wave: Wave, mask: Flags | None) -> tuple[Addresses, Flags | None]:
        """The virtual address of every lane, and which lanes reach memory (``None``: all)."""
        if self.base is None:
            reached = pair(wave.v[self.address], wave.v[self.address + 1])
            return (reached if self.plain else reached + self.offset), mask
        s = wave.s
        base = (s[self.base] | s[self.base + 1] << 32) + self.immediate
        return np.full(LANES, base & 0xFFFF_FFFF_FFFF_FFFF, np.uint64) + wave.v[self.address], mask

    def load(self, wave: Wave, mask: Flags | None) -> None:
        """Load into the result registers."""
        if mask is not None and not np.count_nonzero(mask):
            return
        addresses, on = self.addresses(wave, mask)
        if self.atomic:
            wave.polled = True
        loaded = self._fetch(wave, addresses, on)
        if on is not mask:
            assert on is not None
            loaded = [part * on for part in loaded]
        self._put(wave, mask, loaded)

    def _put(self, wave: Wave, mask: Flags | None, loaded: list[Words]) -> None:
        v, first = wave.v, self.result
        for number, part in enumerate(loaded, first):
            if self.row.half:
                part = _half(part, v[number], self.row.half)
            v[number] = merged(mask, part, v[number])

    def _fetch(self, wave: Wave, addresses: Addresses, on: Flags | None) -> list[Words]:
        found = self._fast(wave, addresses, on)
        if found is None:
            return self._fetch_carefully(wave, addresses, on)
        allocation, units, index = found
        if allocation.recorded and wave.group.recording and not self.atomic:
            chosen = index if on is None else index[on]
            for step in range(self.count):
                self._record(wave, allocation, chosen + step)
        if self.unit < 4:
            return [self._extended(units[index])]
        loaded = [units[index + step] if step else units[index] for step in range(self.count)]
        if allocation.poison is not None and wave.group.record.unwritten is None:
            self._note_unwritten(wave, allocation, index, loaded[0], on)
        return loaded

    def _note_unwritten(
        self, wave: Wave, allocation: Allocation, index: Offsets, loaded: Words, on: Flags | None
    ) -> None:
        untouched = loaded == allocation.poison
        if on is not None:
            untouched &= on
        count = np.count_nonzero(untouched)
        if count:
            lane = int(untouched.argmax())
            target = allocation.locate(int(index[lane]) * 4, self.size)
            wave.group.record.note_unwritten(f"read {target}", wave, self.instruction, lane, int(count))

    def _fast(
        self, wave: Wave, addresses: Addresses, on: Flags | None
    ) -> tuple[Allocation, npt.NDArray[Any], Offsets] | None:
        """The one buffer that all lanes lie in, if they do, in aligned units of it, and which ones."""
        if on is not None and not np.count_nonzero(on):
            return None
        window = wave.group.space.find(addresses.item(0 if on is None else int(on.argmax())))
        if window is None:
            return None
        allocation = window.allocation
        units = allocation.units.get(self.unit)
        if units is None:
            return None
        index = units_of(addresses - window.origin, self.unit)
        if on is not None:
            index = index * on
        if int(np.maximum.reduce(index)) + self.count > units.size:
            return None
        if not allocation.dense:
            owned = allocation.owns((index << SHIFT[self.unit]).view(np.int64), self.size)
            if np.count_nonzero(owned) < LANES:
                return None
        return allocation, units, index.view(np.int64)

    def _record(
        self,
        wave: Wave,
        allocation: Allocation,
        index: Offsets,
        values: Words | None = None,
        changed: Flags | None = None,
        unit: int = 0,
    ) -> None:
        touch = Touch(
            wave.number,
            self.instruction.number,
            unit or self.unit,
            index,
            values,
            changed,
            self.atomic or self.operation is not None,
            wave.ordered,
        )
        wave.group.touch(allocation, touch)

    def _extended(self, small: npt.NDArray[Any]) -> Words:
        if self.row.signed:
            return small.view(_SEXT[self.unit]).astype(np.int32).view(np.uint32)
        return small.astype(np.uint32)

    def _fetch_carefully(self, wave: Wave, addresses: Addresses, on: Flags | None) -> list[Words]:
        """Any lanes, in any buffers or none."""
        octets = np.zeros((LANES, 4 * self.count), np.uint8)
        for allocation, lanes, offsets in self._parts(wave, addresses, on, OutOfBoundsRead):
            octets[lanes[:, None], self.steps] = allocation.data[offsets[:, None] + self.steps]
            if allocation.recorded and wave.group.recording and not self.atomic:
                self._record(wave, allocation, (offsets[:, None] + self.steps).ravel(), unit=1)
        words = octets.view(np.uint32)
        if self.unit < 4:
            return [self._extended(np.ascontiguousarray(octets[:, : self.unit]).view(f"u{self.unit}")[:, 0])]
        return [np.ascontiguousarray(words[:, step]) for step in range(self.count)]

    def store(self, wave: Wave, mask: Flags | None) -> None:
        """Store from the data registers."""
        if mask is not None and not np.count_nonzero(mask):
            return
        addresses, on = self.addresses(wave, mask)
        data = wave.v[self.data : self.data + self.count]
        if self.row.half == "high":
            data = [data[0] >> np.uint32(16)]
        found = self._fast(wave, addresses, on)
        if found is None:
            self._store_carefully(wave, addresses, on, data)
            return
        allocation, units, index = found
        if on is not None:
            index = index[on]
            data = [part[on] for part in data]
        record = allocation.recorded and wave.group.recording
        for step, part in enumerate(data):
            at = index + step if step else index
            values = part if self.unit == 4 else part.astype(units.dtype)
            if record:
                self._record(wave, allocation, at, values.astype(np.uint32), units[at] != values)
            units[at] = values

    def _store_carefully(self, wave: Wave, addresses: Addresses, on: Flags | None, data: list[Words]) -> None:
        octets = np.stack(data, axis=1).view(np.uint8)[:, : self.size]
        for allocation, lanes, offsets in self._parts(wave, addresses, on, OutOfBoundsWrite):
            at, values = offsets[:, None] + self.steps, octets[lanes]
            if allocation.recorded and wave.group.recording:
                changed = (allocation.data[at] != values).ravel()
                self._record(wave, allocation, at.ravel(), values.ravel().astype(np.uint32), changed, unit=1)
            allocation.data[at] = values

    def update(self, wave: Wave, mask: Flags | None) -> None:
        """A read-modify-write. Lanes that meet at an address take turns in their order."""
        if mask is not None and not np.count_nonzero(mask):
            return
        assert self.operation is not None
        wave.polled = True
        addresses, on = self.addresses(wave, mask)
        operands = self.operation.operands(wave.v, self.data)
        before = [np.zeros(LANES, np.uint32) for _ in range(self.count)]
        for allocation, lanes, offsets in self._parts(wave, addresses, on, OutOfBoundsWrite):
            words = allocation.units.get(4)
            if words is None or (offsets & 3).any():
                raise Unsupported(f"{self.instruction.text!r}: an atomic at an address that is no multiple of 4")
            index = offsets >> 2
            old = self.operation.apply(words, index, [operand[lanes] for operand in operands])
            for step, part in enumerate(old):
                before[step][lanes] = part
                if allocation.recorded and wave.group.recording:
                    now = words[index + step]
                    self._record(wave, allocation, index + step, now, now != part, unit=4)
        if self.returns:
            self._put(wave, mask, before)

    def _parts(
        self, wave: Wave, addresses: Addresses, on: Flags | None, kind: type[Failure]
    ) -> Iterator[tuple[Allocation, Offsets, Offsets]]:
        """Each buffer that lanes lie in, the lanes, and their offsets. Lanes that lie in none are reported."""
        left = LANE_NUMBERS if on is None else np.flatnonzero(on)
        stray: list[int] = []
        while left.size:
            window = wave.group.space.find(int(addresses[left[0]]))
            if window is None:
                low, high = wave.group.space.gap(int(addresses[left[0]]))
                lost = (addresses[left] >= low) & (addresses[left] <= high)
                stray += left[lost].tolist()
                left = left[~lost]
                continue
            offsets = (addresses[left] - window.origin[: left.size]).view(np.int64)
            inside = (offsets >= 0) & (offsets < window.high - window.low)
            mine, offsets = left[inside], offsets[inside]
            owned = window.allocation.owns(offsets, self.size)
            stray += mine[~owned].tolist()
            if owned.any():
                yield window.allocation, mine[owned], offsets[owned]
            left = left[~inside]
        if stray:
            self._report(wave, addresses, sorted(stray), kind)

    def _report(self, wave: Wave, addresses: Addresses, lanes: list[int], kind: type[Failure]) -> None:
        verb = "read" if kind is OutOfBoundsRead else "wrote"
        address = int(addresses[lanes[0]])
        near = wave.group.space.nearest(address)
        place, target = "no buffer", f"address {address:#x}, which is near no buffer"
        if near is not None:
            allocation, offset = near
            place, target = allocation.place, allocation.locate(offset, self.size)
        wave.group.record.note(kind, place, f"{verb} {target}", wave, self.instruction, lanes[0], len(lanes))


class BufferAccess(VectorAccess):
    """One ``buffer_`` instruction: addresses are offsets that the hardware compares with a descriptor's size.

    Triton switches a lane off by the offset :data:`MASKED`, past every size. The sizes it gives bound no tensor, so
    lanes inside are checked like any others; any other offset past the size is reported.
    """

    MASKED = 0x8000_0000
    LAST_MASKED = MASKED + 0xFFF
    """With the largest offset that an instruction adds."""

    def decode(self, operands: list[Any]) -> None:
        """Take the operands apart: data, offset, descriptor, scalar offset."""
        modifiers = self.instruction.modifiers
        if modifiers.get("idxen") or len(operands) != 4:
            raise Unsupported(f"{self.instruction.text!r}: only raw buffers are emulated")
        data, address, descriptor, scalar = operands
        self.result = self.data = vector_register(data)
        self.varies = bool(modifiers.get("offen"))
        self.address = vector_register(address)
        self.descriptor = descriptor.number
        self.scalar = scalar
        self.offset = np.full(LANES, modifiers.get("offset", 0), np.uint64)
        self.plain = modifiers.get("offset", 0) == 0
        self._limit = -1
        self._limits = self.offset

    def addresses(self, wave: Wave, mask: Flags | None) -> tuple[Addresses, Flags | None]:
        """See :meth:`VectorAccess.addresses`; lanes past the descriptor's size do not reach memory."""
        s, at = wave.s, self.descriptor
        if s[at + 1] >> 16 & 0x3FFF or s[at + 3] >> 23 & 1:
            raise Unsupported(f"{self.instruction.text!r}: a structured or swizzled buffer")
        offsets = self.offset
        if self.varies:
            offsets = wave.v[self.address].astype(np.uint64)
            if not self.plain:
                offsets = offsets + self.offset
        on = self._inside(wave, mask, offsets, s[at + 2])
        base = (s[at] | (s[at + 1] & 0xFFFF) << 32) + self._scalar_offset(s)
        return offsets + np.full(LANES, base, np.uint64), on

    def _scalar_offset(self, s: list[int]) -> int:
        scalar = self.scalar
        return s[scalar.number] if isinstance(scalar, Register) else int(scalar.value)

    def _inside(self, wave: Wave, mask: Flags | None, offsets: Addresses, size: int) -> Flags | None:
        if size != self._limit:
            self._limit = size
            self._limits = np.full(LANES, max(size - self.size + 1, 0), np.uint64)
        inside = offsets < self._limits
        if np.count_nonzero(inside) == LANES:
            return mask
        odd = ~inside & ((offsets < self.MASKED) | (offsets > self.LAST_MASKED))
        if mask is not None:
            inside &= mask
            odd &= mask
        if np.count_nonzero(odd):
            kind = OutOfBoundsRead if self.row.what == "load" else OutOfBoundsWrite
            s, at = wave.s, self.descriptor
            base = (s[at] | (s[at + 1] & 0xFFFF) << 32) + self._scalar_offset(s)
            self._report(wave, offsets + np.uint64(base), np.flatnonzero(odd).tolist(), kind)
        return inside


def _half(new: Words, old: Words, half: str) -> Words:
    if half == "low":
        return (old & np.uint32(0xFFFF0000)) | (new & np.uint32(0xFFFF))
    return (old & np.uint32(0xFFFF)) | (new << np.uint32(16))


def vector_register(operand: Any) -> int:
    """The number of a vector register in the unified file."""
    if isinstance(operand, Register) and operand.file != "s":
        return operand.number + (256 if operand.file == "a" else 0)
    if isinstance(operand, Named | Integer):
        return 0
    raise Unsupported(f"{operand} where a vector register was expected")
