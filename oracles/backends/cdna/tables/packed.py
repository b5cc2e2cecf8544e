"""Instructions that do the same twice, or pick halves of registers: rows made from those for one number.

A packed instruction works on both halves of its sources. ``op_sel`` says from which half of a source the low result
comes, ``op_sel_hi`` from which the high one; ``neg_lo`` and ``neg_hi`` change signs likewise.
"""

from __future__ import annotations

from collections.abc import Mapping

from oracles.backends.cdna.tables.half import CLAMPED_HALF, HALF
from oracles.backends.cdna.tables.real import REAL
from oracles.backends.cdna.tables.rows import IMPLICIT, VectorRow, clamped
from oracles.verdict import Unsupported

_PAIRS_OF_16 = {
    "v_pk_add_u16", "v_pk_sub_u16", "v_pk_add_i16", "v_pk_sub_i16", "v_pk_mul_lo_u16", "v_pk_mad_u16", "v_pk_mad_i16",
    "v_pk_lshlrev_b16", "v_pk_lshrrev_b16", "v_pk_ashrrev_i16",
    "v_pk_min_u16", "v_pk_max_u16", "v_pk_min_i16", "v_pk_max_i16",
    "v_pk_add_f16", "v_pk_mul_f16", "v_pk_fma_f16", "v_pk_min_f16", "v_pk_max_f16",
}  # fmt: skip
_PAIRS_OF_32 = {"v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32"}
PACKED = frozenset(_PAIRS_OF_16 | _PAIRS_OF_32 | {"v_pk_mov_b32"})
"""Names that :func:`packed` has a row for."""

MIXED = frozenset(f"v_{fused}_mix{part}" for fused in ("fma", "mad") for part in ("_f32", "lo_f16", "hi_f16"))
"""Names that :func:`mixed` has a row for: ``v_fma_mix`` of LLVM is AMD's ``v_mad_mix``."""

_ALL = 7


def packed(name: str, modifiers: Mapping[str, int]) -> VectorRow:
    """The row of one of ``PACKED`` with its modifiers."""
    if name == "v_pk_mov_b32":
        selected = modifiers.get("op_sel", 0)
        halves = [f"{'high' if selected >> k & 1 else 'low'}({{{k}}})" for k in (0, 1)]
        return VectorRow("U", "pp", f"pair({halves[0]}, {halves[1]})")
    of_one = name.replace("v_pk_", "v_")
    row = REAL[of_one] if name in _PAIRS_OF_32 else HALF[of_one]
    if modifiers.get("clamp") and row.results == "w":
        if of_one not in CLAMPED_HALF:
            raise Unsupported(f"modifier clamp of {name} is not known")
        row, modifiers = CLAMPED_HALF[of_one], {**modifiers, "clamp": 0}
    low = _half(row, modifiers.get("op_sel", 0), modifiers.get("neg_lo", 0), modifiers)
    high = _half(row, modifiers.get("op_sel_hi", _ALL), modifiers.get("neg_hi", 0), modifiers)
    if name in _PAIRS_OF_32:
        return VectorRow("U", row.sources.replace("f", "p"), f"pair(as_u32({low}), as_u32({high}))")
    return VectorRow("u", row.sources, f"({low}) | (({high}) << 16)")


def _half(row: VectorRow, selected: int, negated: int, modifiers: Mapping[str, int]) -> str:
    sources = [
        f"{{{k}}}" if letter in IMPLICIT else _element(letter, k, selected >> k & 1, negated >> k & 1)
        for k, letter in enumerate(row.sources)
    ]
    expression = row.expression.format(*sources)
    return clamped(row.results, expression) if modifiers.get("clamp") else expression


def _element(letter: str, number: int, high: int, negated: int) -> str:
    if letter == "f":
        element = f"as_f32({'high' if high else 'low'}({{{number}}}))"
        return f"(-{element})" if negated else element
    element = f"({{{number}}} >> 16)" if high else f"{{{number}}}"
    return f"({element} ^ 0x8000)" if negated else element


def mixed(name: str, modifiers: Mapping[str, int]) -> VectorRow:
    """The row of one of ``MIXED``: each source is a 32-bit float, or by ``op_sel_hi`` a half of a register."""
    letters, sources = "", []
    for k in range(3):
        half = modifiers.get("op_sel_hi", 0) >> k & 1
        high = modifiers.get("op_sel", 0) >> k & 1
        source = f"from_f16({{{k}}}{' >> 16' if high else ''})" if half else f"{{{k}}}"
        source = f"magnitude({source})" if modifiers.get("abs", 0) >> k & 1 else source
        sources.append(f"(-{source})" if modifiers.get("neg", 0) >> k & 1 else source)
        letters += "h" if half else "f"
    expression = f"fma({', '.join(sources)})"
    if modifiers.get("clamp"):
        expression = clamped("f", expression)
    if name.endswith("_f32"):
        return VectorRow("f", letters, expression)
    number = f"to_f16({expression}, {{3}})"
    return VectorRow("u", letters + "OD", in_half(number, "{4}", high="hi_" in name, keeps=True))


def in_half(number: str, old: str, *, high: bool, keeps: bool) -> str:
    """16 bits where the register gets them; ``old`` is its former value as a float."""
    if high:
        return f"({number} << 16) | (as_u32({old}) & 0xffff)"
    return f"{number} | (as_u32({old}) & 0xffff0000)" if keeps else number
