"""Memory instructions: where they reach, how much they move, and what atomics do there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Space = Literal["global", "flat", "buffer", "lds"]
What = Literal["load", "store", "atomic"]


@dataclass(frozen=True, slots=True)
class Access:
    """What one lane does.

    ``registers``: 32-bit registers that one element moves; ``last_bytes``: bytes of the last of them that count, the
    others count whole. ``signed``: a load of 1 or 2 bytes extends the sign. ``half``: only this half of the register
    is read or written, the other keeps its bits (``d16``). ``elements`` of ``read2`` and ``write2`` is 2: they lie at
    ``offset0`` and ``offset1`` times ``stride`` bytes, else one at ``offset``. ``atomic`` is a key of ``ATOMIC``;
    ``returns``: the old value is written to the first operand, also without ``sc0`` (``ds_*_rtn``).
    """

    space: Space
    what: What
    registers: int
    last_bytes: int = 4
    signed: bool = False
    half: Literal["", "low", "high"] = ""
    elements: int = 1
    stride: int = 0
    atomic: str = ""
    returns: bool = False


@dataclass(frozen=True, slots=True)
class Atomic:
    """What becomes of a memory cell: ``expression`` of the old value {0} and the operand {1}, both of ``type``.

    ``cmpswap`` has two operands: {1} is the new value and {2} the one to compare with. ``type`` is one of those of
    vector rows; the result is of it too.
    """

    type: str
    operands: int
    expression: str


_HALVES = "({first}) & 0xffff | ({second}) << 16"
_ADDED_F16 = "to_f16(from_f16({old}) + from_f16({new}))"
_ADDED_BF16 = "to_bf16(from_bf16({old}) + from_bf16({new}))"


def _both_halves(expression: str) -> str:
    low = expression.format(old="{0}", new="{1}")
    high = expression.format(old="({0} >> 16)", new="({1} >> 16)")
    return _HALVES.format(first=low, second=high)


ATOMIC = {
    f"{name}{suffix}": Atomic(letters[sign], operands, expression)
    for suffix, letters in (("", "ui"), ("_x2", "UI"))
    for name, sign, operands, expression in (
        ("swap", 0, 1, "{1}"),
        ("cmpswap", 0, 2, "select({0} == {2}, {1}, {0})"),
        ("add", 0, 1, "{0} + {1}"),
        ("sub", 0, 1, "{0} - {1}"),
        ("rsub", 0, 1, "{1} - {0}"),
        ("smin", 1, 1, "minimum({0}, {1})"),
        ("umin", 0, 1, "minimum({0}, {1})"),
        ("smax", 1, 1, "maximum({0}, {1})"),
        ("umax", 0, 1, "maximum({0}, {1})"),
        ("and", 0, 1, "{0} & {1}"),
        ("or", 0, 1, "{0} | {1}"),
        ("xor", 0, 1, "{0} ^ {1}"),
        ("inc", 0, 1, "select({0} >= {1}, 0, {0} + 1)"),
        ("dec", 0, 1, "select(({0} == 0) | ({0} > {1}), {1}, {0} - 1)"),
    )
} | {
    "add_f32": Atomic("f", 1, "{0} + {1}"),
    "min_f32": Atomic("f", 1, "min_number({0}, {1})"),
    "max_f32": Atomic("f", 1, "max_number({0}, {1})"),
    "add_f64": Atomic("F", 1, "{0} + {1}"),
    "min_f64": Atomic("F", 1, "min_number({0}, {1})"),
    "max_f64": Atomic("F", 1, "max_number({0}, {1})"),
    "pk_add_f16": Atomic("u", 1, _both_halves(_ADDED_F16)),
    "pk_add_bf16": Atomic("u", 1, _both_halves(_ADDED_BF16)),
}
"""What atomics do, by the name that ``global_atomic_*`` has for it."""

_GLOBAL_LOADS = {
    "ubyte": (1, 1, False),
    "sbyte": (1, 1, True),
    "ushort": (1, 2, False),
    "sshort": (1, 2, True),
    "dword": (1, 4, False),
    "dwordx2": (2, 4, False),
    "dwordx3": (3, 4, False),
    "dwordx4": (4, 4, False),
}
_GLOBAL_STORES = {
    "byte": (1, 1),
    "short": (1, 2),
    "dword": (1, 4),
    "dwordx2": (2, 4),
    "dwordx3": (3, 4),
    "dwordx4": (4, 4),
}
_D16_LOADS = {"ubyte_d16": (1, False), "sbyte_d16": (1, True), "short_d16": (2, False)}
_GLOBAL_SPACES: tuple[Space, ...] = ("global", "flat", "buffer")


def _in_global_memory(space: Space) -> dict[str, Access]:
    rows = {
        f"{space}_load_{name}": Access(space, "load", registers, size, signed)
        for name, (registers, size, signed) in _GLOBAL_LOADS.items()
    }
    for name, (size, signed) in _D16_LOADS.items():
        rows[f"{space}_load_{name}"] = Access(space, "load", 1, size, signed, half="low")
        rows[f"{space}_load_{name}_hi"] = Access(space, "load", 1, size, signed, half="high")
    for name, (registers, size) in _GLOBAL_STORES.items():
        rows[f"{space}_store_{name}"] = Access(space, "store", registers, size)
        if size < 4:
            rows[f"{space}_store_{name}_d16_hi"] = Access(space, "store", 1, size, half="high")
    for name, atomic in ATOMIC.items():
        if name not in ("rsub", "rsub_x2", "min_f32", "max_f32"):
            rows[f"{space}_atomic_{name}"] = Access(space, "atomic", _registers(atomic), atomic=name)
    return rows


def _registers(atomic: Atomic) -> int:
    return 2 if atomic.type in "UIF" else 1


_LDS_SIZES = {"b8": (1, 1), "b16": (1, 2), "b32": (1, 4), "b64": (2, 4), "b96": (3, 4), "b128": (4, 4)}
_LDS_SMALL_LOADS = {"u8": (1, False), "i8": (1, True), "u16": (2, False), "i16": (2, True)}
_LDS_ATOMICS = {
    "add_u": ("add", (32, 64)),
    "sub_u": ("sub", (32, 64)),
    "rsub_u": ("rsub", (32, 64)),
    "inc_u": ("inc", (32, 64)),
    "dec_u": ("dec", (32, 64)),
    "min_i": ("smin", (32, 64)),
    "max_i": ("smax", (32, 64)),
    "min_u": ("umin", (32, 64)),
    "max_u": ("umax", (32, 64)),
    "and_b": ("and", (32, 64)),
    "or_b": ("or", (32, 64)),
    "xor_b": ("xor", (32, 64)),
}


def _in_lds() -> dict[str, Access]:
    rows = {}
    for name, (registers, size) in _LDS_SIZES.items():
        rows[f"ds_write_{name}"] = Access("lds", "store", registers, size)
        if size == 4:
            rows[f"ds_read_{name}"] = Access("lds", "load", registers)
        else:
            rows[f"ds_write_{name}_d16_hi"] = Access("lds", "store", 1, size, half="high")
    for name, (size, signed) in _LDS_SMALL_LOADS.items():
        rows[f"ds_read_{name}"] = Access("lds", "load", 1, size, signed)
        if name != "i16":
            rows[f"ds_read_{name}_d16"] = Access("lds", "load", 1, size, signed, half="low")
            rows[f"ds_read_{name}_d16_hi"] = Access("lds", "load", 1, size, signed, half="high")
    for name, registers in (("b32", 1), ("b64", 2)):
        for suffix, apart in (("2", 1), ("2st64", 64)):
            stride = 4 * registers * apart
            rows[f"ds_read{suffix}_{name}"] = Access("lds", "load", registers, elements=2, stride=stride)
            rows[f"ds_write{suffix}_{name}"] = Access("lds", "store", registers, elements=2, stride=stride)
    return rows | _lds_atomics()


def _lds_atomics() -> dict[str, Access]:
    """In LDS the kind of number is part of the mnemonic, and so is whether the old value comes back."""
    named = {}
    for name, (atomic, widths) in _LDS_ATOMICS.items():
        operation, kind = name.split("_")
        for width in widths:
            key = atomic if width == 32 else f"{atomic}_x2"
            named[f"{operation}{{}}_{kind}{width}"] = key
    for width, key in ((32, "cmpswap"), (64, "cmpswap_x2")):
        named[f"cmpst{{}}_b{width}"] = key
    for number in ("f32", "f64"):
        for operation in ("add", "min", "max"):
            named[f"{operation}{{}}_{number}"] = f"{operation}_{number}"
    for number in ("f16", "bf16"):
        named[f"pk_add{{}}_{number}"] = f"pk_add_{number}"
    rows = {}
    for pattern, key in named.items():
        registers = _registers(ATOMIC[key])
        rows["ds_" + pattern.format("")] = Access("lds", "atomic", registers, atomic=key)
        rows["ds_" + pattern.format("_rtn")] = Access("lds", "atomic", registers, atomic=key, returns=True)
    for width, key in ((32, "swap"), (64, "swap_x2")):
        rows[f"ds_wrxchg_rtn_b{width}"] = Access("lds", "atomic", width // 32, atomic=key, returns=True)
    return rows


ACCESS = {name: row for space in _GLOBAL_SPACES for name, row in _in_global_memory(space).items()} | _in_lds()
"""Memory instructions by mnemonic."""

OPERANDS_COMPARE_FIRST = frozenset({"ds_cmpst_b32", "ds_cmpst_b64", "ds_cmpst_rtn_b32", "ds_cmpst_rtn_b64"})
"""Atomics whose registers hold the value to compare with before the new one, in two operands.

``global_atomic_cmpswap`` and its like have both in one range of registers, the new value first.
"""
