"""Code for memory instructions: each becomes an object, made once, with a method for waves."""

from __future__ import annotations

import numpy as np

from oracles.backends.cdna.access import BufferAccess, VectorAccess
from oracles.backends.cdna.emit import Emitter, scalar_register
from oracles.backends.cdna.ir import EXEC, Instruction, Operand, Register
from oracles.backends.cdna.local_memory import LocalAccess
from oracles.backends.cdna.shadow import Touch
from oracles.backends.cdna.space import Allocation
from oracles.backends.cdna.tables.memory import ACCESS
from oracles.backends.cdna.wave import Wave
from oracles.verdict import OutOfBoundsRead, Unsupported

SCALAR_LOADS = {f"s_load_dword{suffix}": count for suffix, count in
                (("", 1), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16))}  # fmt: skip

_METHODS = {"load": "load", "store": "store", "atomic": "update"}
_SPACES = {"global": VectorAccess, "flat": VectorAccess, "buffer": BufferAccess, "lds": LocalAccess}
_UNKNOWN = 0xA7
"""What bytes hold that a wide scalar load takes along from behind a buffer."""


def memory(emitter: Emitter, instruction: Instruction) -> bool:
    """Emit a memory instruction; whether it is one."""
    name = instruction.name
    if name in SCALAR_LOADS:
        load = emitter.bind(ScalarLoad(instruction, SCALAR_LOADS[name]).run)
        emitter.line(f"{load}(w, {_scalar_offset(emitter, instruction)})")
    elif name == "buffer_inv":
        emitter.line("w.ordered = w.ordered or w.polled")
    elif name in ACCESS:
        row = ACCESS[name]
        access = _SPACES[row.space](instruction, row)
        emitter.line(f"{emitter.bind(getattr(access, _METHODS[row.what]))}(w, M)")
    else:
        return False
    return True


def _scalar_offset(emitter: Emitter, instruction: Instruction) -> str:
    parts = [str(instruction.modifiers.get("offset", 0))]
    parts += [
        emitter.scalar_source(operand, "B" if isinstance(operand, Register) else "j")
        for operand in instruction.operands[2:]
    ]
    return " + ".join(parts)


class ScalarLoad:
    """One ``s_load`` of ``count`` words.

    It may take along bytes that are no elements: in a word of which one byte is one, and in the last of four aligned
    words, which is how the compiler loads three. They hold anything.
    """

    def __init__(self, instruction: Instruction, count: int) -> None:
        destination, base = instruction.operands[:2]
        self.instruction = instruction
        self.count = count
        self.destination = _loadable(destination, count)
        self.base = scalar_register(base)
        self._steps = np.arange(count)

    def run(self, wave: Wave, offset: int) -> None:
        """Load into the wave's scalar registers."""
        s, first = wave.s, self.destination
        address = ((s[self.base] | s[self.base + 1] << 32) + offset) & 0xFFFF_FFFF_FFFF_FFFC
        window = wave.group.space.find(address)
        if window is not None:
            allocation, at = window.allocation, address - window.low
            words = allocation.units.get(4)
            inside = words is not None and at % 4 == 0 and at // 4 + self.count <= words.size
            if inside and (allocation.dense or allocation.owns(at + 4 * self._steps, 4).all()):
                assert words is not None
                s[first : first + self.count] = words[at // 4 : at // 4 + self.count].tolist()
                if allocation.recorded and wave.group.recording:
                    self._record(wave, allocation, at // 4, self.count)
                return
        s[first : first + self.count] = self._carefully(wave, address)

    def _record(self, wave: Wave, allocation: Allocation, word: int, count: int) -> None:
        index = self._steps[:count] + word
        touch = Touch(wave.number, self.instruction.number, 4, index, ordered=wave.ordered)
        wave.group.touch(allocation, touch)

    def _carefully(self, wave: Wave, address: int) -> list[int]:
        words, missing = [], []
        for step in range(self.count):
            word = self._word(wave, address + 4 * step)
            words.append(0 if word is None else word)
            if word is None:
                missing.append(step)
        if missing and not (self.count == 4 and missing == [3] and address % 16 == 0):
            self._report(wave, address + 4 * missing[0])
        return words

    def _word(self, wave: Wave, address: int) -> int | None:
        """A word of which at least one byte is an element's."""
        octets, found = bytearray([_UNKNOWN] * 4), False
        for byte in range(4):
            window = wave.group.space.find(address + byte)
            if window is None:
                continue
            offset = address + byte - window.low
            if window.allocation.owns(np.array([offset]), 1)[0]:
                octets[byte] = window.allocation.data[offset]
                found = True
                if window.allocation.recorded and wave.group.recording:
                    touch = Touch(wave.number, self.instruction.number, 1, np.array([offset]), ordered=wave.ordered)
                    wave.group.touch(window.allocation, touch)
        return int.from_bytes(octets, "little") if found else None

    def _report(self, wave: Wave, address: int) -> None:
        near = wave.group.space.nearest(address)
        place, target = "no buffer", f"address {address:#x}, which is near no buffer"
        if near is not None:
            place, target = near[0].place, near[0].locate(near[1], 4)
        wave.group.record.note(OutOfBoundsRead, place, f"read {target}", wave, self.instruction)


def _loadable(operand: Operand, count: int) -> int:
    number = scalar_register(operand)
    if number + count > EXEC:
        raise Unsupported(f"a scalar load into {operand}")
    return number
