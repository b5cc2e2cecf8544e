"""Scalar instructions: arithmetic on the registers that a wave has once."""

from __future__ import annotations

from typing import Literal

from oracles.backends.cdna.tables.rows import ScalarRow

_WIDTHS: tuple[tuple[Literal[32, 64], str], ...] = ((32, "B"), (64, "b"))
_OVERFLOW = "int(not -0x80000000 <= t <= 0x7fffffff)"
_NOT_ZERO = {32: "int(t & 0xffffffff != 0)", 64: "int(t & 0xffffffffffffffff != 0)"}


_FIELD = "({0} >> ({1} & {last})) & (1 << ({1} >> 16 & 127)) - 1"
_FIELD_SIGN = "(1 << ({1} >> 16 & 127) >> 1)"


def _logic(name: str, expression: str, operands: int = 2) -> dict[str, ScalarRow]:
    """The same operation on 32 and on 64 bits; SCC tells whether the result is not zero."""
    return {
        f"s_{name}_b{width}": ScalarRow(width, letter * operands, expression, _NOT_ZERO[width])
        for width, letter in _WIDTHS
    }


def _field(width: Literal[32, 64], sources: str, value: str) -> ScalarRow:
    return ScalarRow(width, sources, value, _NOT_ZERO[width])


_LOGIC = (
    _logic("and", "{0} & {1}")
    | _logic("or", "{0} | {1}")
    | _logic("xor", "{0} ^ {1}")
    | _logic("andn2", "{0} & ~{1}")
    | _logic("orn2", "{0} | ~{1}")
    | _logic("nand", "~({0} & {1})")
    | _logic("nor", "~({0} | {1})")
    | _logic("xnor", "~({0} ^ {1})")
    | _logic("not", "~{0}", operands=1)
)

_MOVES = {
    "s_mov_b32": ScalarRow(32, "B", "{0}"),
    "s_mov_b64": ScalarRow(64, "b", "{0}"),
    "s_movk_i32": ScalarRow(32, "K", "{0}"),
    "s_cmov_b32": ScalarRow(32, "BD", "{0} if SCC else {1}"),
    "s_cmov_b64": ScalarRow(64, "bD", "{0} if SCC else {1}"),
    "s_cmovk_i32": ScalarRow(32, "KD", "{0} if SCC else {1}"),
    "s_cselect_b32": ScalarRow(32, "BB", "{0} if SCC else {1}"),
    "s_cselect_b64": ScalarRow(64, "bb", "{0} if SCC else {1}"),
    "s_sext_i32_i8": ScalarRow(32, "B", "({0} & 0xff ^ 0x80) - 0x80"),
    "s_sext_i32_i16": ScalarRow(32, "B", "({0} & 0xffff ^ 0x8000) - 0x8000"),
    "s_pack_ll_b32_b16": ScalarRow(32, "BB", "{0} & 0xffff | {1} << 16"),
    "s_pack_lh_b32_b16": ScalarRow(32, "BB", "{0} & 0xffff | {1} & 0xffff0000"),
    "s_pack_hh_b32_b16": ScalarRow(32, "BB", "{0} >> 16 | {1} & 0xffff0000"),
}

_ARITHMETIC = {
    "s_add_u32": ScalarRow(32, "BB", "{0} + {1}", "t >> 32"),
    "s_addc_u32": ScalarRow(32, "BB", "{0} + {1} + SCC", "t >> 32"),
    "s_sub_u32": ScalarRow(32, "BB", "{0} - {1}", "int(t < 0)"),
    "s_subb_u32": ScalarRow(32, "BB", "{0} - {1} - SCC", "int(t < 0)"),
    "s_add_i32": ScalarRow(32, "ii", "{0} + {1}", _OVERFLOW),
    "s_sub_i32": ScalarRow(32, "ii", "{0} - {1}", _OVERFLOW),
    "s_addk_i32": ScalarRow(32, "dK", "{0} + {1}", _OVERFLOW),
    "s_mul_i32": ScalarRow(32, "ii", "{0} * {1}"),
    "s_mulk_i32": ScalarRow(32, "dK", "{0} * {1}"),
    "s_mul_hi_u32": ScalarRow(32, "BB", "{0} * {1} >> 32"),
    "s_mul_hi_i32": ScalarRow(32, "ii", "{0} * {1} >> 32"),
    "s_abs_i32": ScalarRow(32, "i", "abs({0})", _NOT_ZERO[32]),
    "s_absdiff_i32": ScalarRow(32, "ii", "abs(({0} - {1} & 0xffffffff ^ 0x80000000) - 0x80000000)", _NOT_ZERO[32]),
    # Of two equal numbers min leaves SCC at 0 and max sets it.
    "s_min_i32": ScalarRow(32, "ii", "min({0}, {1})", "int({0} < {1})"),
    "s_max_i32": ScalarRow(32, "ii", "max({0}, {1})", "int({0} >= {1})"),
    "s_min_u32": ScalarRow(32, "BB", "min({0}, {1})", "int({0} < {1})"),
    "s_max_u32": ScalarRow(32, "BB", "max({0}, {1})", "int({0} >= {1})"),
} | {
    f"s_lshl{shift}_add_u32": ScalarRow(32, "BB", f"({{0}} << {shift}) + {{1}}", "int(t >> 32 != 0)")
    for shift in (1, 2, 3, 4)
}

_SHIFTS = {
    "s_lshl_b32": _field(32, "BB", "{0} << ({1} & 31)"),
    "s_lshl_b64": _field(64, "bB", "{0} << ({1} & 63)"),
    "s_lshr_b32": _field(32, "BB", "{0} >> ({1} & 31)"),
    "s_lshr_b64": _field(64, "bB", "{0} >> ({1} & 63)"),
    "s_ashr_i32": _field(32, "iB", "{0} >> ({1} & 31)"),
    "s_ashr_i64": _field(64, "jB", "{0} >> ({1} & 63)"),
    "s_bfm_b32": ScalarRow(32, "BB", "(1 << ({0} & 31)) - 1 << ({1} & 31)"),
    "s_bfm_b64": ScalarRow(64, "BB", "(1 << ({0} & 63)) - 1 << ({1} & 63)"),
    # A field's width is seven bits from bit 16 of the second source on; one wider than the register takes all of it.
    "s_bfe_u32": _field(32, "BB", _FIELD.replace("{last}", "31")),
    "s_bfe_u64": _field(64, "bB", _FIELD.replace("{last}", "63")),
    "s_bfe_i32": _field(32, "iB", f"({_FIELD} ^ {_FIELD_SIGN}) - {_FIELD_SIGN}".replace("{last}", "31")),
    "s_bfe_i64": _field(64, "jB", f"({_FIELD} ^ {_FIELD_SIGN}) - {_FIELD_SIGN}".replace("{last}", "63")),
}

_BITS = {
    "s_brev_b32": ScalarRow(32, "B", "int(f'{{{0}:032b}}'[::-1], 2)"),
    "s_brev_b64": ScalarRow(64, "b", "int(f'{{{0}:064b}}'[::-1], 2)"),
    "s_bcnt1_i32_b32": ScalarRow(32, "B", "({0}).bit_count()", "int(t != 0)"),
    "s_bcnt1_i32_b64": ScalarRow(32, "b", "({0}).bit_count()", "int(t != 0)"),
    "s_bcnt0_i32_b32": ScalarRow(32, "B", "32 - ({0}).bit_count()", "int(t != 0)"),
    "s_bcnt0_i32_b64": ScalarRow(32, "b", "64 - ({0}).bit_count()", "int(t != 0)"),
    # -1, all ones, where there is no bit to find: the length of 0 is 0, and 0 has no lowest bit.
    "s_ff1_i32_b32": ScalarRow(32, "B", "({0} & -{0}).bit_length() - 1"),
    "s_ff1_i32_b64": ScalarRow(32, "b", "({0} & -{0}).bit_length() - 1"),
    "s_ff0_i32_b32": ScalarRow(32, "B", "(~{0} & 0xffffffff & {0} + 1).bit_length() - 1"),
    "s_ff0_i32_b64": ScalarRow(32, "b", "(~{0} & 0xffffffffffffffff & {0} + 1).bit_length() - 1"),
    "s_flbit_i32_b32": ScalarRow(32, "B", "32 - ({0}).bit_length() if {0} else -1"),
    "s_flbit_i32_b64": ScalarRow(32, "b", "64 - ({0}).bit_length() if {0} else -1"),
    "s_flbit_i32": ScalarRow(32, "i", "32 - ({0} ^ {0} >> 31).bit_length() if {0} ^ {0} >> 31 else -1"),
    "s_flbit_i32_i64": ScalarRow(32, "j", "64 - ({0} ^ {0} >> 63).bit_length() if {0} ^ {0} >> 63 else -1"),
    "s_bitset0_b32": ScalarRow(32, "BD", "{1} & ~(1 << ({0} & 31))"),
    "s_bitset0_b64": ScalarRow(64, "BD", "{1} & ~(1 << ({0} & 63))"),
    "s_bitset1_b32": ScalarRow(32, "BD", "{1} | 1 << ({0} & 31)"),
    "s_bitset1_b64": ScalarRow(64, "BD", "{1} | 1 << ({0} & 63)"),
}

SCALAR = _LOGIC | _MOVES | _ARITHMETIC | _SHIFTS | _BITS
"""Instructions with a scalar destination. Old destinations (``D``, ``d``) are as wide as the result."""

_RELATIONS = {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}

SCALAR_COMPARE = (
    {
        f"s_cmp_{relation}_{name}": (letter, operator)
        for relation, operator in _RELATIONS.items()
        for name, letter in (("i32", "i"), ("u32", "B"))
    }
    | {
        f"s_cmpk_{relation}_{name}": (letter, operator)
        for relation, operator in _RELATIONS.items()
        for name, letter in (("i32", "i"), ("u32", "B"))
    }
    | {"s_cmp_eq_u64": ("b", "=="), "s_cmp_lg_u64": ("b", "!=")}
)
"""SCC gets the comparison of two sources of a type, by mnemonic: (type, operator).

The second one of ``s_cmpk`` is a 16-bit literal: signed with a signed comparison, unsigned with an unsigned one.
"""

SCALAR_TEST = {
    "s_bitcmp0_b32": ("BB", "int(({0} >> ({1} & 31) & 1) == 0)"),
    "s_bitcmp1_b32": ("BB", "{0} >> ({1} & 31) & 1"),
    "s_bitcmp0_b64": ("bB", "int(({0} >> ({1} & 63) & 1) == 0)"),
    "s_bitcmp1_b64": ("bB", "{0} >> ({1} & 63) & 1"),
}
"""SCC gets an expression of two sources, by mnemonic: (types, expression)."""

SAVEEXEC = {
    "s_and_saveexec_b64": "{0} & E",
    "s_or_saveexec_b64": "{0} | E",
    "s_xor_saveexec_b64": "{0} ^ E",
    "s_andn1_saveexec_b64": "~{0} & E",
    "s_andn2_saveexec_b64": "{0} & ~E",
    "s_orn1_saveexec_b64": "~{0} | E",
    "s_orn2_saveexec_b64": "{0} | ~E",
    "s_nand_saveexec_b64": "~({0} & E)",
    "s_nor_saveexec_b64": "~({0} | E)",
    "s_xnor_saveexec_b64": "~({0} ^ E)",
}
"""The new exec from a 64-bit source and ``E``, the old one, which the destination gets. Cut off to 64 bits.

SCC tells whether the new exec is not zero.
"""

WREXEC = {
    "s_andn1_wrexec_b64": "~{0} & E",
    "s_andn2_wrexec_b64": "{0} & ~E",
}
"""Likewise, but the destination gets the new exec."""
