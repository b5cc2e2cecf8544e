"""Modifiers of AMD's assembly text, as the integers that :class:`oracles.backends.cdna.ir.Instruction` holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from oracles.backends.cdna.operands import pieces
from oracles.verdict import Unsupported

FLAGS = frozenset({"offen", "idxen", "lds", "gds", "clamp", "sc0", "sc1", "nt", "glc"})
NUMBERS = frozenset({
    "offset", "offset0", "offset1", "row_mask", "bank_mask", "bound_ctrl", "bitop3", "mul", "div",
    "cbsz", "abid", "blgp",
})  # fmt: skip
LISTS = frozenset({"op_sel", "op_sel_hi", "neg_lo", "neg_hi"})

_PARTS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")
_SELECTIONS = {name: code for code, name in enumerate(_PARTS)}
DWORD = _SELECTIONS["DWORD"]
SDWA: Mapping[str, Mapping[str, int]] = {
    "src0_sel": _SELECTIONS,
    "src1_sel": _SELECTIONS,
    "dst_sel": _SELECTIONS,
    "dst_unused": {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2},
}

_DPP_COUNTED = {"row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_newbcast": 0x150}
_DPP_FIXED = {
    "wave_shl:1": 0x130,
    "wave_rol:1": 0x134,
    "wave_shr:1": 0x138,
    "wave_ror:1": 0x13C,
    "row_mirror": 0x140,
    "row_half_mirror": 0x141,
    "row_bcast:15": 0x142,
    "row_bcast:31": 0x143,
}
_LANES_OF_ROW = 16

_SWIZZLE = re.compile(r"swizzle\((.+)\)")
_NUMBER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)")


def is_modifier(word: str) -> bool:
    """Whether a word is a modifier and no operand."""
    return word in FLAGS or ":" in re.sub(r"\[.*\]", "", word) or word in _DPP_FIXED


def modifiers(words: Sequence[str], *, sources: int) -> dict[str, int]:
    """The integers of the words behind the operands, of which ``sources`` are sources.

    Refused with :class:`oracles.verdict.Unsupported`: a word that is not known, and a number that is none.
    """
    found: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition(":")
        if word in FLAGS:
            found[word] = 1
        elif name == "offset" and value.startswith("swizzle"):
            found[name] = swizzle(value)
        elif name in NUMBERS and _NUMBER.fullmatch(value):
            found[name] = int(value, 0)
        elif name in SDWA and value in SDWA[name]:
            found[name] = SDWA[name][value]
        elif name in LISTS:
            found[name] = _bits(word, value, sources)
        else:
            found["dpp"] = _dpp(word, name, value)
    return found


def _unknown(word: str) -> Unsupported:
    return Unsupported(f"modifier {word!r} of the machine code is not known")


def _bits(word: str, value: str, sources: int) -> int:
    """A bit an entry. One entry more than there are sources is the destination's, which is bit 3."""
    if not re.fullmatch(r"\[[01](,[01]){0,3}\]", value):
        raise _unknown(word)
    entries = [int(entry) for entry in value.strip("[]").split(",")]
    if len(entries) == sources + 1:
        entries = [*entries[:-1], *[0] * (4 - len(entries)), entries[-1]]
    return sum(bit << place for place, bit in enumerate(entries))


def _dpp(word: str, name: str, value: str) -> int:
    if word in _DPP_FIXED:
        return _DPP_FIXED[word]
    if name in _DPP_COUNTED and value.isdecimal() and int(value) < _LANES_OF_ROW:
        return _DPP_COUNTED[name] + int(value)
    if name == "quad_perm" and re.fullmatch(r"\[[0-3](,[0-3]){3}\]", value):
        return _quad(value.strip("[]").split(","))
    raise _unknown(word)


def _quad(lanes: Sequence[str]) -> int:
    return sum(int(lane) << 2 * place for place, lane in enumerate(lanes))


def swizzle(text: str) -> int:
    """The offset of a ``ds_swizzle_b32`` that the text writes as ``swizzle(MODE,...)``."""
    match = _SWIZZLE.fullmatch(text)
    mode, *values = pieces(match[1], ",") if match else [""]
    try:
        return _SWIZZLES[mode](*values)
    except (KeyError, TypeError, ValueError):
        raise _unknown(f"offset:{text}") from None


def _masks(keep: int, set_to: int, flip: int) -> int:
    """Lane ``l`` of a half wave reads lane ``(l & keep | set_to) ^ flip``."""
    return keep | set_to << 5 | flip << 10


def _bitmask(text: str) -> int:
    letters = text.strip('"')
    if not re.fullmatch("[01pi]{5}", letters):
        raise ValueError(text)
    keep, set_to, flip = ("".join("01"[letter in ones] for letter in letters) for ones in ("pi", "1", "i"))
    return _masks(int(keep, 2), int(set_to, 2), int(flip, 2))


_HALF = 31
_SWIZZLES: Mapping[str, Callable[..., int]] = {
    "QUAD_PERM": lambda *lanes: 0x8000 | _quad(lanes),
    "BITMASK_PERM": _bitmask,
    "BROADCAST": lambda group, lane: _masks(_HALF + 1 - int(group), int(lane), 0),
    "SWAP": lambda group: _masks(_HALF, 0, int(group)),
    "REVERSE": lambda group: _masks(_HALF, 0, int(group) - 1),
}
