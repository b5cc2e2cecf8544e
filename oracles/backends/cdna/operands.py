"""Operands of AMD's assembly text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from oracles.backends.cdna.ir import EXEC, M0, VCC, Integer, Named, Operand, Real, Register
from oracles.verdict import Unsupported

SCALARS = {
    "vcc": Register("s", VCC, 2),
    "vcc_lo": Register("s", VCC),
    "vcc_hi": Register("s", VCC + 1),
    "m0": Register("s", M0),
    "exec": Register("s", EXEC, 2),
    "exec_lo": Register("s", EXEC),
    "exec_hi": Register("s", EXEC + 1),
}
NAMES = {
    "off": Named("off"),
    "scc": Named("scc"),
    "src_scc": Named("scc"),
    "vccz": Named("vccz"),
    "src_vccz": Named("vccz"),
    "execz": Named("execz"),
    "src_execz": Named("execz"),
}
HARDWARE_REGISTERS = {"HW_REG_MODE": 1, "HW_REG_STATUS": 2, "HW_REG_TRAPSTS": 3, "HW_REG_HW_ID": 4, "HW_REG_XCC_ID": 20}

_FILES: Mapping[str, Literal["v", "s", "a"]] = {"v": "v", "s": "s", "a": "a"}
_SINGLE = re.compile(r"([vsa])(\d+)")
_RANGE = re.compile(r"([vsa])\[(\d+):(\d+)\]")
_INTEGER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)")
_REAL = re.compile(r"-?\d+\.\d+(e[+-]?\d+)?")
_HARDWARE = re.compile(r"hwreg\(\s*(\w+)\s*(?:,\s*(\d+)\s*,\s*(\d+)\s*)?\)")
_WRAPPED = {"sext": re.compile(r"sext\((.+)\)"), "neg": re.compile(r"neg\((.+)\)|-(?=[a-z|])(.+)")}
_ABSOLUTE = re.compile(r"abs\((.+)\)|\|(.+)\|")


def unwrapped(text: str) -> tuple[str, frozenset[str]]:
    """An operand without what surrounds it, and what that was: ``neg``, ``abs``, ``sext``."""
    around = set()
    for name, pattern in (*_WRAPPED.items(), ("abs", _ABSOLUTE)):
        if match := pattern.fullmatch(text):
            around.add(name)
            text = next(inner for inner in match.groups() if inner is not None)
    return text, frozenset(around)


def operand(text: str) -> Operand:
    """The operand that a bare text stands for.

    Refused with :class:`oracles.verdict.Unsupported`: every text that is not known, among them trap registers, the
    apertures' bases and symbols.
    """
    if match := _SINGLE.fullmatch(text):
        return Register(_FILES[match[1]], int(match[2]))
    if (match := _RANGE.fullmatch(text)) and int(match[3]) >= int(match[2]):
        return Register(_FILES[match[1]], int(match[2]), int(match[3]) - int(match[2]) + 1)
    if text in SCALARS:
        return SCALARS[text]
    if text in NAMES:
        return NAMES[text]
    if _INTEGER.fullmatch(text):
        return Integer(int(text, 0))
    if _REAL.fullmatch(text):
        return Real(float(text))
    if match := _HARDWARE.fullmatch(text):
        return Integer(_hardware_register(match))
    raise Unsupported(f"operand {text!r} of the machine code is not known")


def _hardware_register(match: re.Match[str]) -> int:
    """The 16 bits by which ``s_setreg`` and ``s_getreg`` name a field: register, first bit, bits less one."""
    name, first, count = match[1], int(match[2] or 0), int(match[3] or 32)
    if name not in HARDWARE_REGISTERS and not name.isdecimal():
        raise Unsupported(f"hardware register {name} of the machine code is not known")
    number = HARDWARE_REGISTERS[name] if name in HARDWARE_REGISTERS else int(name)
    return number | first << 6 | (count - 1) << 11


def pieces(text: str, separator: str) -> Iterator[str]:
    """The parts of a text between separators that stand in no bracket and no quotes."""
    depth, quoted, begin = 0, False, 0
    for at, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == separator and not depth and not quoted:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()
