"""Python source for a block of instructions, and what its names mean.

In the source, ``w`` is the wave, ``v`` and ``s`` its registers, ``M`` exec as flags (``None``: every lane is on) and
``SCC`` the scalar condition.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.backends.cdna.access import merged, pair
from oracles.backends.cdna.expressions import DTYPES, filled, name_of, template
from oracles.backends.cdna.ir import EXEC, LANES, VCC, Instruction, Integer, Named, Operand, Real, Register
from oracles.backends.cdna.lanes import VALUES
from oracles.backends.cdna.wave import ACCUMULATION, ALL_LANES, Flags, Wave, Words
from oracles.verdict import Unsupported

LOW, HIGH = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

_REMEMBERED = 1 << 14
_spread: dict[int, Words] = {}
_spread_wide: dict[int, npt.NDArray[np.uint64]] = {}
_flags: dict[int, Flags] = {}

_VIEWS = {"i": "i32", "f": "f32", "I": "i64", "F": "f64"}
_NAMES = re.compile(r"\b(source|part|number)_\w+")


def spread(value: int) -> Words:
    """A 32-bit number in every lane."""
    found = _spread.get(value)
    if found is None:
        found = _remember(_spread, value, np.full(LANES, value, np.uint32))
    return found


def spread_wide(value: int) -> npt.NDArray[np.uint64]:
    """A 64-bit number in every lane."""
    found = _spread_wide.get(value)
    if found is None:
        found = _remember(_spread_wide, value, np.full(LANES, value, np.uint64))
    return found


def flags(value: int) -> Flags:
    """A 64-bit mask as a flag for each lane."""
    found = _flags.get(value)
    if found is None:
        bits = np.unpackbits(np.array([value], np.uint64).view(np.uint8), bitorder="little")
        found = _remember(_flags, value, bits.view(bool))
    return found


def bits(lanes: Flags) -> int:
    """A flag for each lane as a 64-bit mask."""
    value: int = np.packbits(lanes, bitorder="little").view("<u8").item()
    if value not in _flags:
        _remember(_flags, value, lanes)
    return value


def _remember(known: dict[int, Any], value: int, array: Any) -> Any:
    if len(known) >= _REMEMBERED:
        known.clear()
    array.flags.writeable = False
    known[value] = array
    return array


def set_exec(wave: Wave, value: int) -> Flags | None:
    """Switch lanes on and off; the new mask."""
    wave.s[EXEC], wave.s[EXEC + 1] = value & LOW, value >> 32
    wave.mask = None if value == ALL_LANES else flags(value)
    return wave.mask


def first_lane(mask: Flags | None) -> int:
    """The first lane that is on; lane 0 where none is."""
    return 0 if mask is None else int(mask.argmax())


RUNTIME: dict[str, Any] = {
    **VALUES,
    "u32": np.uint32, "i32": np.int32, "f32": np.float32, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
    "pair": pair, "merged": merged, "spread": spread, "spread_wide": spread_wide, "flags": flags, "bits": bits,
    "set_exec": set_exec, "first_lane": first_lane,
}  # fmt: skip
"""Names that generated code may use besides those bound for it."""


class Emitter:
    """The lines of one block. ``architecture`` picks rows that differ; ``namespace`` is that of the program's code."""

    def __init__(self, architecture: str, namespace: dict[str, Any]) -> None:
        self.architecture = architecture
        self.lines: list[str] = []
        self._namespace = namespace

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append(text)

    def bind(self, value: Any) -> str:
        """A name for a value that is fixed when the code is made."""
        name = f"k{len(self._namespace)}"
        self._namespace[name] = value
        return name

    @staticmethod
    def constant(operand: Integer | Real, kind: str) -> npt.NDArray[Any]:
        """A literal in every lane, seen as ``kind``."""
        dtype = np.dtype(DTYPES[kind])
        bit_type = np.uint64 if dtype.itemsize == 8 else np.uint32
        array: npt.NDArray[Any] = np.full(LANES, _pattern(operand, kind), bit_type).view(dtype)
        array.flags.writeable = False
        return array

    def vector_source(self, operand: Operand, kind: str) -> str:
        """An expression for a source of a vector instruction, an array of the type that ``kind`` names."""
        if kind == "m":
            return f"flags({self.scalar_source(operand, 'b')})"
        if isinstance(operand, Integer | Real):
            return self.bind(self.constant(operand, kind))
        wide = kind in "UIFp"
        if isinstance(operand, Register) and operand.file != "s":
            number = register_number(operand)
            text = f"pair(v[{number}], v[{number + 1}])" if wide else f"v[{number}]"
        else:
            text = (
                f"spread_wide({self.scalar_source(operand, 'b')})"
                if wide
                else f"spread({self.scalar_source(operand, 'B')})"
            )
        return f"{text}.view({_VIEWS[kind]})" if kind in _VIEWS else text

    def scalar_source(self, operand: Operand, kind: str) -> str:
        """An expression for a source of a scalar instruction, a Python integer (see :class:`ScalarRow` for kinds)."""
        wide = kind in "bj"
        if isinstance(operand, Register):
            if operand.file != "s":
                raise Unsupported(f"{operand} as a scalar source")
            number = operand.number
            text = f"(s[{number}] | s[{number + 1}] << 32)" if wide else f"s[{number}]"
            sign = {"i": 1 << 31, "j": 1 << 63}.get(kind)
            return text if sign is None else f"(({text} ^ {sign}) - {sign})"
        if isinstance(operand, Named):
            return self._named(operand)
        value = _pattern(operand, "U" if wide else "u")
        if kind in "ij":
            sign = 1 << (63 if wide else 31)
            value = (value ^ sign) - sign
        elif kind == "K":
            assert isinstance(operand, Integer)
            value = (operand.value & 0xFFFF ^ 0x8000) - 0x8000
        return f"({value})" if value < 0 else str(value)

    @staticmethod
    def _named(operand: Named) -> str:
        if operand.name == "scc":
            return "SCC"
        if operand.name in ("vccz", "execz"):
            first = VCC if operand.name == "vccz" else EXEC
            return f"int(not (s[{first}] | s[{first + 1}]))"
        raise Unsupported(f"{operand.name} as a source")

    def write_mask(self, register: Operand, lanes: str) -> None:
        """Write flags of lanes to a pair of scalar registers."""
        number = scalar_register(register)
        self.line(f"q = bits({lanes})")
        if number == EXEC:
            self.line("M = set_exec(w, q)")
        else:
            self.line(f"s[{number}] = q & {LOW}; s[{number + 1}] = q >> 32")

    def after_scalar_write(self, number: int) -> None:
        """Follow a change of exec through its registers."""
        if number in (EXEC, EXEC + 1):
            self.line(f"M = set_exec(w, s[{EXEC}] | s[{EXEC + 1}] << 32)")

    def expression(self, expression: str, kinds: str, sources: Sequence[Operand | str]) -> str:
        """Code for a row's expression. A source is an operand, or code that is there already."""
        fixed = {
            number: self.constant(source, kinds[number])
            for number, source in enumerate(sources)
            if isinstance(source, Integer | Real) and kinds[number] != "m"
        }
        made = template(expression, kinds, frozenset(fixed))
        texts = [
            source if isinstance(source, str) else "" if number in fixed else self.vector_source(source, kinds[number])
            for number, source in enumerate(sources)
        ]
        for number, array in fixed.items():
            if name_of(number) in made.text:
                texts[number] = self.bind(array)
        names = filled(made, texts, fixed, self.bind)
        return _NAMES.sub(lambda match: names[match[0]], made.text)


def _pattern(operand: Operand, kind: str) -> int:
    """The bits of a literal as a source of a type sees them."""
    if kind == "p":
        return _pattern(operand, "u") * ((1 << 32) + 1)
    if isinstance(operand, Integer):
        # A literal of 32 bits is the upper half of a 64-bit float; small numbers are encoded as such and are whole.
        if kind == "F" and not -16 <= operand.value <= 64:
            return (operand.value & LOW) << 32
        return operand.value & (HIGH if kind in "UIF" else LOW)
    if isinstance(operand, Real):
        form = "<e" if kind == "h" else "<d" if kind in "UIF" else "<f"
        return int.from_bytes(struct.pack(form, operand.value), "little")
    raise Unsupported(f"{operand} as a literal")


def register_number(operand: Operand) -> int:
    """The number of a vector register in the unified file."""
    if isinstance(operand, Register) and operand.file != "s":
        return operand.number + (ACCUMULATION if operand.file == "a" else 0)
    raise Unsupported(f"{operand} where a vector register was expected")


def scalar_register(operand: Operand) -> int:
    """The number of a scalar register."""
    if isinstance(operand, Register) and operand.file == "s":
        return operand.number
    raise Unsupported(f"{operand} where a scalar register was expected")


def allowed(instruction: Instruction, *names: str) -> None:
    """Refuse modifiers that nobody looks at."""
    others = sorted(set(instruction.modifiers) - set(names))
    if others:
        raise Unsupported(f"{instruction.text or instruction.name!r}: {', '.join(others)} is not emulated here")


def expect(instruction: Instruction, count: int) -> Sequence[Operand]:
    """The operands, of which there must be that many."""
    if len(instruction.operands) != count:
        raise Unsupported(f"{instruction.text or instruction.name!r}: not {count} operands")
    return instruction.operands
