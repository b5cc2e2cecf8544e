"""The vocabulary of the tables for NumPy arrays that hold a value for each lane.

Sources are arrays of the lanes or single NumPy values, results likewise. Whoever evaluates expressions does so with
``numpy.errstate(all="ignore")``: integers wrap around and floats overflow on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.backends.cdna import formats, rounding
from oracles.backends.cdna.ir import LANES

Lanes = NDArray[Any]
"""A value for each lane, or one for all of them."""

_u32, _i32, _u64, _i64, _f32, _f64 = np.uint32, np.int32, np.uint64, np.int64, np.float32, np.float64
_LARGEST_UNSIGNED, _LARGEST_SIGNED, _SMALLEST_SIGNED = 0xFFFFFFFF, 0x7FFFFFFF, -0x80000000


def low(x: Lanes) -> Lanes:
    """The low 32 of 64 bits."""
    return x.astype(_u32)


def high(x: Lanes) -> Lanes:
    """The high 32 of 64 bits."""
    return (x >> _u64(32)).astype(_u32)


def pair(low_half: Lanes, high_half: Lanes) -> Lanes:
    """64 bits of two registers."""
    return low_half.astype(_u64) | high_half.astype(_u64) << _u64(32)


def wide(x: Lanes) -> Lanes:
    """The same integer in 64 bits."""
    return x.astype(_i64 if x.dtype == _i32 else _u64)


def ones(count: Lanes) -> Lanes:
    """So many of the lowest bits."""
    return (_u32(1) << count) - _u32(1)


def signed16(x: Lanes) -> Lanes:
    """The low 16 bits as a signed number."""
    return x.astype(np.uint16).view(np.int16).astype(_i32)


_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def reverse_bits(x: Lanes) -> Lanes:
    """The 32 bits in opposite order: the bytes change places, and each is reversed."""
    reversed_bytes: Lanes = _REVERSED[np.ascontiguousarray(x).view(np.uint8)].view(_u32)
    return reversed_bytes.byteswap().reshape(np.shape(x))


def count_bits(x: Lanes) -> Lanes:
    """How many bits are set."""
    return np.bitwise_count(x).astype(_u32)


def leading_zeros(x: Lanes) -> Lanes:
    """Zeros above the highest bit: the exponent of the number as a 64-bit float, which holds all 32 bits."""
    return _u32(32) - np.frexp(x.astype(_f64))[1].astype(_u32)


def trailing_zeros(x: Lanes) -> Lanes:
    """Zeros below the lowest bit: as many ones as the number less one has that the number has not."""
    return count_bits(~x & (x - _u32(1)))


_LOWER = (np.uint64(1) << np.arange(LANES, dtype=_u64)) - _u64(1)
_LOWER_HALVES = (low(_LOWER), high(_LOWER))


def lower_lanes(half: int) -> Lanes:
    """Each lane's mask of the lanes below it, the low or the high half of it."""
    return _LOWER_HALVES[half]


def truth(x: Lanes, y: Lanes, z: Lanes, rows: int) -> Lanes:
    """A bit table of three bits, for each bit."""
    result = x & _u32(0)
    for number in range(8):
        if rows >> number & 1:
            picked = (x if number & 4 else ~x) & (y if number & 2 else ~y) & (z if number & 1 else ~z)
            result = result | picked
    return result


def permute_bytes(x: Lanes, y: Lanes, selectors: Lanes) -> Lanes:
    """Four bytes, each picked by a byte of the third: 0 to 7 are bytes, 8 to 11 signs of words, 12 zeros, then ones."""
    both, result = pair(y, x), selectors & _u32(0)
    for place in range(0, 32, 8):
        selector = selectors >> _u32(place) & _u32(0xFF)
        byte = low(both >> wide((selector & _u32(7)) << _u32(3))) & _u32(0xFF)
        sign = low(both >> wide((selector & _u32(3)) * _u32(16) + _u32(15))) & _u32(1)
        picked = np.where(selector < 8, byte, np.where(selector < 12, sign * _u32(0xFF), _u32(0xFF)))
        result = result | np.where(selector == 12, _u32(0), picked) << _u32(place)
    return result


def select(mask: Lanes, chosen: Lanes | float, other: Lanes | float) -> Lanes:
    """One of two values, of which one may be a plain number."""
    if type(chosen) is np.ndarray and type(other) is np.ndarray:
        return np.where(mask, chosen, other)
    typed: Any = chosen if isinstance(chosen, (np.ndarray, np.generic)) else other
    result: Lanes = np.where(mask, _like(chosen, typed), _like(other, typed))
    return result


def _like(x: Any, typed: Any) -> Any:
    return typed.dtype.type(x) if isinstance(x, (int, float)) and not isinstance(x, np.generic) else x


def add_carry(x: Lanes, y: Lanes, carry: Lanes | None = None) -> tuple[Lanes, Lanes]:
    """The sum, and where it does not fit: a sum that wrapped around is below what was added to."""
    total = x + y
    if carry is None:
        return total, total < x
    with_carry = total + carry.astype(total.dtype)
    return with_carry, (total < x) | (with_carry < total)


def subtract_borrow(x: Lanes, y: Lanes, borrow: Lanes | None = None) -> tuple[Lanes, Lanes]:
    """The difference, and where it is negative."""
    difference = x - y
    if borrow is None:
        return difference, x < y
    with_borrow = difference - borrow.astype(difference.dtype)
    return with_borrow, (x < y) | (with_borrow > difference)


def add_sign(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """The sum, and the sign of the unbounded one: the opposite of its own where it does not fit."""
    total = x + y
    overflow = ((x ^ total) & (y ^ total)) < 0
    return total, (total < 0) ^ overflow


def _clamped(x: Lanes, exact: Lanes) -> Lanes:
    bounds = np.iinfo(x.dtype)
    return np.clip(exact, bounds.min, bounds.max).astype(x.dtype)


def add_clamped(x: Lanes, y: Lanes) -> Lanes:
    """The sum, or the nearest number that fits."""
    return _clamped(x, x.astype(_i64) + y.astype(_i64))


def subtract_clamped(x: Lanes, y: Lanes) -> Lanes:
    """The difference, or the nearest number that fits."""
    return _clamped(x, x.astype(_i64) - y.astype(_i64))


def to_f32(x: Lanes) -> Lanes:
    """The nearest 32-bit float."""
    return x.astype(_f32)


def to_f64(x: Lanes) -> Lanes:
    """The nearest 64-bit float."""
    return x.astype(_f64)


def to_u32(x: Lanes) -> Lanes:
    """Whole and clamped."""
    return np.clip(np.nan_to_num(x.astype(_f64), posinf=np.inf, neginf=-np.inf), 0, _LARGEST_UNSIGNED).astype(_u32)


def to_i32(x: Lanes) -> Lanes:
    """Whole and clamped."""
    whole = np.nan_to_num(x.astype(_f64), posinf=np.inf, neginf=-np.inf)
    return np.clip(whole, _SMALLEST_SIGNED, _LARGEST_SIGNED).astype(_i32)


def min_number(x: Lanes, y: Lanes) -> Lanes:
    """The smaller one; NumPy leaves open which of two zeros is."""
    return np.where((x == 0) & (y == 0), np.copysign(x, np.where(np.signbit(y), y, x)), np.fmin(x, y))


def max_number(x: Lanes, y: Lanes) -> Lanes:
    """The larger one; NumPy leaves open which of two zeros is."""
    return np.where((x == 0) & (y == 0), np.copysign(x, np.where(np.signbit(y), x, y)), np.fmax(x, y))


def middle(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """The middle one of three."""
    any_nan = np.isnan(x) | np.isnan(y) | np.isnan(z)
    smallest = min_number(min_number(x, y), z)
    return np.where(any_nan, smallest, max_number(min_number(x, y), min_number(max_number(x, y), z)))


def mantissa(x: Lanes) -> Lanes:
    """Within [0.5, 1)."""
    return np.frexp(x)[0]


def exponent(x: Lanes) -> Lanes:
    """Zero for what is not finite, where NumPy leaves it open."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(_i32)


VALUES: Mapping[str, Callable[..., Any] | str] = MappingProxyType(
    {
        "as_u32": lambda x: x.view(_u32),
        "as_i32": lambda x: x.view(_i32),
        "as_f32": lambda x: x.view(_f32),
        "as_u64": lambda x: x.view(_u64),
        "as_i64": lambda x: x.view(_i64),
        "as_f64": lambda x: x.view(_f64),
        "low": low,
        "high": high,
        "pair": pair,
        "wide": wide,
        "bit": lambda mask: mask.astype(_u32),
        "signed16": signed16,
        "ones": ones,
        "reverse_bits": reverse_bits,
        "count_bits": count_bits,
        "leading_zeros": leading_zeros,
        "trailing_zeros": trailing_zeros,
        "lower_lanes": lower_lanes,
        "truth": truth,
        "permute_bytes": permute_bytes,
        "select": select,
        "minimum": np.minimum,
        "maximum": np.maximum,
        "add_carry": add_carry,
        "subtract_borrow": subtract_borrow,
        "add_sign": add_sign,
        "add_clamped": add_clamped,
        "subtract_clamped": subtract_clamped,
        "to_f32": to_f32,
        "to_f64": to_f64,
        "to_u32": to_u32,
        "to_i32": to_i32,
        "magnitude": np.abs,
        "is_nan": np.isnan,
        "in_class": formats.in_class,
        "min_number": min_number,
        "max_number": max_number,
        "middle": middle,
        "truncate": np.trunc,
        "floor": np.floor,
        "ceil": np.ceil,
        "round_even": np.rint,
        "fma": rounding.fma,
        "fma_odd": rounding.fma_odd,
        "scale": rounding.scale,
        "mantissa": mantissa,
        "exponent": exponent,
        "reciprocal": rounding.reciprocal,
        "reciprocal_root": rounding.reciprocal_root,
        "root": rounding.root,
        "exp2": rounding.exp2,
        "log2": rounding.log2,
        "sine": rounding.sine,
        "cosine": rounding.cosine,
        "div_scale": rounding.div_scale,
        "div_fmas": rounding.div_fmas,
        "div_fixup": rounding.div_fixup,
        "from_f16": formats.from_f16,
        "to_f16": formats.to_f16,
        "to_f16_toward_zero": formats.to_f16_toward_zero,
        "from_bf16": formats.from_bf16,
        "to_bf16": formats.to_bf16,
        "from_fp8": formats.from_fp8,
        "to_fp8": formats.to_fp8,
        "E4M3FNUZ": "e4m3fnuz",
        "E5M2FNUZ": "e5m2fnuz",
        "E4M3FN": "e4m3fn",
        "E5M2": "e5m2",
    }
)
"""Every name of the tables' vocabulary."""
