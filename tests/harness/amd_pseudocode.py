"""Runs AMD's pseudocode of instructions on integers: an independent statement of what the tables say."""

from __future__ import annotations

import re
from typing import Any


class Number:
    """An integer of so many bits, with the arithmetic of C."""

    def __init__(self, value: int, width: int = 32, signed: bool = False) -> None:
        value &= (1 << width) - 1
        self.value = value - (1 << width) if signed and value >> (width - 1) else value
        self.width, self.signed = width, signed

    def __index__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return self.value != 0

    def _with(self, other: Any, value: int) -> Number:
        width = max(self.width, other.width) if isinstance(other, Number) else self.width
        return Number(value, width, self.signed and getattr(other, "signed", True))

    def __getattr__(self, name: str) -> Number:
        letter, width = name[0], int(name[1:])
        return Number(self.value, width, letter == "i")

    def __getitem__(self, place: Any) -> Number:
        return bits(self.value, place)


def _operator(name: str) -> None:
    def operate(self: Number, other: Any) -> Number:
        return self._with(other, getattr(int, name)(int(self), int(other)))

    def reflected(self: Number, other: Any) -> Number:
        return self._with(other, getattr(int, name)(int(other), int(self)))

    setattr(Number, name, operate)
    setattr(Number, name.replace("__", "__r", 1), reflected)


for _name in ("__add__", "__sub__", "__mul__", "__and__", "__or__", "__xor__"):
    _operator(_name)
for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Number, _name, lambda self, other, _name=_name: bool(getattr(int, _name)(int(self), int(other))))
# A shift has the width and sign of what is shifted.
Number.__lshift__ = lambda self, by: Number(self.value << int(by), self.width, self.signed)
Number.__rshift__ = lambda self, by: Number(self.value >> int(by), self.width, self.signed)
Number.__rlshift__ = lambda self, number: Number(int(number) << self.value)
Number.__invert__ = lambda self: Number(~self.value, self.width, self.signed)
Number.__neg__ = lambda self: Number(-self.value, self.width, self.signed)
Number.__hash__ = None


def bits(value: int, place: Any) -> Number:
    """A bit, or the bits from a high to a low one; low to high are in opposite order."""
    if not isinstance(place, slice):
        return Number(value >> int(place), 1)
    high, low = int(place.start), int(place.stop)
    if high >= low:
        return Number(value >> low, high - low + 1)
    picked = value >> high & (1 << low - high + 1) - 1
    return Number(int(f"{picked:0{low - high + 1}b}"[::-1], 2), low - high + 1)


class Cell:
    """A register or a place in memory, or some bits of one."""

    def __init__(self, value: int = 0, base: tuple[Cell, int, int] | None = None) -> None:
        self.__dict__.update(held=value, base=base)

    def get(self) -> int:
        if self.base is None:
            return self.held
        of, low, width = self.base
        return of.get() >> low & (1 << width) - 1

    def put(self, value: int, width: int) -> None:
        if self.base is not None:
            of, low, own = self.base
            of.put(of.get() & ~((1 << own) - 1 << low) | (value & (1 << own) - 1) << low, 64)
        else:
            mask = (1 << width) - 1
            self.__dict__["held"] = self.held & ~mask | value & mask

    def __index__(self) -> int:
        return self.get()

    def __getattr__(self, name: str) -> Any:
        if not re.fullmatch(r"[uib]\d+", name):
            raise AttributeError(name)
        return Typed(self, name[0], int(name[1:]))

    def __setattr__(self, name: str, value: Any) -> None:
        self.put(int(value), int(name[1:]))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and int(place.start) >= int(place.stop):
            low = int(place.stop)
            return Cell(base=(self, low, int(place.start) - low + 1))
        return bits(self.get(), place)

    def __setitem__(self, place: Any, value: Any) -> None:
        low, width = (
            (int(place.stop), int(place.start) - int(place.stop) + 1) if isinstance(place, slice) else (int(place), 1)
        )
        Cell(base=(self, low, width)).put(int(value), width)


class Typed(Number):
    """A register read as a type; its bits can be written."""

    def __init__(self, cell: Cell, letter: str, width: int) -> None:
        super().__init__(cell.get(), width, letter == "i")
        self.cell = cell

    def __setitem__(self, place: Any, value: Any) -> None:
        self.cell[place] = value


def translated(text: str) -> str:
    """Python for pseudocode. ``ValueError`` for a word that is not known."""
    lines, depth = [], 0
    for raw in text.splitlines():
        line = raw.split("//")[0].strip().rstrip(";")
        if not line:
            continue
        word = line.split()[0]
        if word in ("endif", "endfor", "elsif", "else"):
            depth -= 1
        if statement := _statement(line, word):
            lines.append("    " * depth + statement)
        if word in ("if", "elsif", "else", "for"):
            depth += 1
    return "\n".join(lines)


def _statement(line: str, word: str) -> str:
    if word in ("endif", "endfor"):
        return ""
    if word == "declare":
        match = re.fullmatch(r"declare (\w+) : (\d+)'\w", line)
        return f"{match[1]} = Cell()" if match else _fail(line)
    if word == "else":
        return "else:"
    if match := re.fullmatch(r"(if|elsif) (.*) then", line):
        return f"{'if' if match[1] == 'if' else 'elif'} {_expression(match[2])}:"
    if match := re.fullmatch(r"for (\w+) in (\d+) : (\d+) do", line):
        return f"for {match[1]} in range({match[2]}, {int(match[3]) + 1}):"
    if match := re.fullmatch(r"\{ (.*), (.*) \} = (.*)", line):
        width = match[2].split(".")[1][1:]
        return f"whole = {_expression(match[3])}; {match[2]} = whole; {match[1]} = bits(whole.value, {width})"
    if match := re.fullmatch(r"(.*?) ([-+]?=) (.*)", line):
        target = "D0.u64" if match[1] == "D0" else _expression(match[1])
        return f"{target} {match[2]} {_expression(match[3])}"
    return line if line == "break" else _fail(line)


def _fail(line: str) -> str:
    raise ValueError(f"pseudocode {line!r} is not known")


def _expression(text: str) -> str:
    text = re.sub(r"\{ ([^{}]*), ([^{}]*) \}", r"joined(\1, \2)", text)
    if re.search(r"lambda|\{|\+:|f16|f32|f64|INST|OPSEL|SDWA|MODE", text):
        _fail(text)
    text = re.sub(r"(\d+)'([UIB])\(", r"cast('\2', \1)(", text)
    text = re.sub(r"\b\d+'(-?\d+|0x[0-9a-f]+)U?\b", r"\1", text)
    text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)ULL\b", r"Number(\1, 64)", text)
    text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)LL\b", r"Number(\1, 64, True)", text)
    text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)U\b", r"Number(\1)", text)
    return _choices(text.replace("<>", "!=").replace("&&", "and").replace("||", "or").replace("!(", "not ("))


def _choices(text: str) -> str:
    """``a ? b : c`` as Python has it, also between brackets."""
    parts, depth, begin, level = [], 0, 0, ""
    for at, letter in enumerate(text):
        if letter in "([":
            if not depth:
                level += text[begin : at + 1]
                begin = at + 1
            depth += 1
        elif letter in ")]":
            depth -= 1
            if not depth:
                parts.append(_choices(text[begin:at]))
                level += f"\0{len(parts) - 1}\0{letter}"
                begin = at + 1
    level += text[begin:]
    if match := re.fullmatch(r"(.*?) \? (.*?) : (.*)", level):
        level = f"({match[2]} if {match[1]} else {match[3]})"
    return re.sub("\0(\\d+)\0", lambda match: parts[int(match[1])], level)


def _signed_from(number: Number, width: Any) -> Number:
    width = int(width)
    return Number(Number(int(number), width, True).value if width else 0, number.width, True)


def run(text: str, **registers: Any) -> dict[str, Any]:
    """The names after pseudocode that :func:`translated` gave was run on registers."""
    names = NAMES | {"tmp": Cell()} | registers
    exec(text, names)
    return names


NAMES: dict[str, Any] = {
    "Number": Number,
    "Cell": Cell,
    "bits": bits,
    "cast": lambda letter, width: lambda x: Number(int(x), width, letter == "I"),
    "joined": lambda high, low: Number(int(low) | int(high) << low.width, high.width + low.width),
    "signext": lambda x: Number(int(x), max(x.width, 32), True),
    "signext_from_bit": _signed_from,
    "CalcDsAddr": lambda *_: 0,
    "CalcGlobalAddr": lambda *_: 0,
    "ADDR": Cell(), "SADDR": Cell(), "OFFSET": Cell(), "OFFSET0": Cell(), "OFFSET1": Cell(),
    "u32_to_u16": lambda x: min(int(x), 0xFFFF),
    "i32_to_i16": lambda x: max(-0x8000, min(int(x), 0x7FFF)),
}  # fmt: skip
for _kind in ("i32", "u32", "i16", "u16"):
    NAMES[f"v_min_{_kind}"] = NAMES[f"v_min3_{_kind}"] = lambda *x: min(x, key=int)
    NAMES[f"v_max_{_kind}"] = NAMES[f"v_max3_{_kind}"] = lambda *x: max(x, key=int)
