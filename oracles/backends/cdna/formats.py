"""Floats of 16 and 8 bits, as bit patterns in lanes of 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]

_u32, _f32 = np.uint32, np.float32
_LARGEST_HALF = _f32(65504)


def from_f16(bits: Lanes) -> Lanes:
    """The 32-bit float of the low 16 bits."""
    return np.asarray(bits).astype(np.uint16).view(np.float16).astype(_f32)


def to_f16(x: Lanes, clamps: Lanes | bool = False) -> Lanes:
    """The bits of the nearest 16-bit float; where ``clamps``, no finite number becomes infinite."""
    rounded = np.asarray(x).astype(np.float16)
    largest = np.copysign(np.float16(_LARGEST_HALF), rounded)
    kept = np.where(clamps & np.isinf(rounded) & np.isfinite(x), largest, rounded)
    return kept.view(np.uint16).astype(_u32)


def to_f16_toward_zero(x: Lanes) -> Lanes:
    """The bits of the next 16-bit float toward zero: those of the nearest, one less where it is farther out."""
    rounded = np.asarray(x).astype(np.float16)
    farther = np.abs(rounded.astype(_f32)) > np.abs(x)
    return rounded.view(np.uint16).astype(_u32) - farther.astype(_u32)


def from_bf16(bits: Lanes) -> Lanes:
    """The 32-bit float whose upper half the low 16 bits are."""
    return (np.asarray(bits) << _u32(16)).view(_f32)


def to_bf16(x: Lanes) -> Lanes:
    """The bits of the nearest bfloat16; a NaN stays one and becomes quiet."""
    bits = np.asarray(x).view(_u32)
    nearest = (bits + _u32(0x7FFF) + (bits >> _u32(16) & _u32(1))) >> _u32(16)
    return np.where(np.isnan(x), bits >> _u32(16) | _u32(0x40), nearest)


@dataclass(frozen=True)
class Float8:
    """A format of 8 bits.

    ``mantissa``: bits of it; ``largest``: the pattern of the largest finite number; ``overflow`` and ``nan``: the
    patterns that an overflow and a NaN become, both with the sign if the format is ``signed`` there; ``infinite``: an
    overflow is infinity and not NaN.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    signed: bool
    infinite: bool

    def value(self, pattern: int) -> float:
        """The number of a pattern without its sign."""
        exponent, fraction = pattern >> self.mantissa, pattern & (1 << self.mantissa) - 1
        if pattern > self.largest:
            return np.inf if self.infinite and pattern == self.overflow else np.nan
        if exponent == 0:
            return float(fraction) * 2.0 ** (1 - self.bias - self.mantissa)
        return (1 + fraction / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias)


_FORMATS = {
    "e4m3fnuz": Float8(3, 8, 0x7F, 0x80, 0x80, signed=False, infinite=False),
    "e5m2fnuz": Float8(2, 16, 0x7F, 0x80, 0x80, signed=False, infinite=False),
    "e4m3fn": Float8(3, 7, 0x7E, 0x7F, 0x7F, signed=True, infinite=False),
    "e5m2": Float8(2, 15, 0x7B, 0x7C, 0x7F, signed=True, infinite=True),
}


def _numbers(kind: Float8) -> Lanes:
    magnitudes = np.array([kind.value(pattern) for pattern in range(128)], _f32)
    numbers = np.concatenate([magnitudes, -magnitudes])
    if not kind.signed:
        numbers[kind.nan] = np.nan
    return numbers


_NUMBERS = {name: _numbers(kind) for name, kind in _FORMATS.items()}


def from_fp8(bits: Lanes, name: str) -> Lanes:
    """The 32-bit float of the low 8 bits in a format."""
    numbers: Lanes = _NUMBERS[name][bits & _u32(0xFF)]
    return numbers


def to_fp8(x: Lanes, clamps: Lanes | bool, name: str) -> Lanes:
    """The bits of the nearest number of a format, ties to even.

    Where ``clamps``, a finite number that is too large becomes the largest one, else infinity or, in a format without
    it, NaN. An infinite number is infinity or NaN either way: AMD's manual says that FP16_OVFL preserves infinities,
    and nothing of formats that have none.
    """
    kind = _FORMATS[name]
    x = np.asarray(x)
    nearest = _nearest(np.abs(x).astype(np.float64), kind)
    too_large = nearest > kind.largest
    nearest = np.where(too_large, np.where(clamps & np.isfinite(x), kind.largest, kind.overflow), nearest)
    nearest = np.where(np.isnan(x), kind.nan, nearest).astype(_u32)
    sign: Lanes = np.signbit(x).astype(_u32) << _u32(7)
    if kind.signed:
        nearest = nearest | sign
        return nearest
    # Without a negative zero, the pattern of one is the NaN, which has no sign.
    return np.where((nearest == 0) | (nearest == kind.nan), nearest, nearest | sign)


def _nearest(magnitude: Lanes, kind: Float8) -> Lanes:
    """The pattern of the nearest number if the format went on upward: consecutive patterns are consecutive numbers."""
    smallest = 1 - kind.bias
    exponent = np.where(magnitude == 0, smallest, np.maximum(np.frexp(magnitude)[1].astype(np.int64) - 1, smallest))
    steps = np.rint(np.ldexp(np.where(np.isfinite(magnitude), magnitude, np.inf), kind.mantissa - exponent))
    beyond = steps > 1 << 20
    pattern = np.where(beyond, 0, steps).astype(np.int64) + ((exponent - smallest) << kind.mantissa)
    return np.where(beyond, kind.overflow + 1, pattern)


_CLASSES = ("signaling", "quiet", "-inf", "-normal", "-denormal", "-zero", "+zero", "+denormal", "+normal", "+inf")


def in_class(x: Lanes, classes: Lanes) -> Lanes:
    """Whether the bit of a float's class is set: NaNs first, then from minus to plus infinity.

    Patterns of 16-bit floats arrive as unsigned numbers.
    """
    bits, width, fraction = _layout(np.asarray(x))
    sign, exponent = bits >> (width - 1), bits >> fraction & ((1 << width - 1 - fraction) - 1)
    rest, top = bits & ((1 << fraction) - 1), (1 << width - 1 - fraction) - 1
    size = np.select([exponent == top, exponent > 0, rest > 0], [3, 2, 1], 0)
    place = np.where(sign == 1, 5 - size, 6 + size)
    place = np.where((exponent == top) & (rest > 0), rest >> (fraction - 1), place)
    return (classes >> place.astype(_u32) & _u32(1)).astype(bool)


def _layout(x: Lanes) -> tuple[Lanes, Any, Any]:
    if x.dtype == np.float32:
        return x.view(_u32), _u32(32), _u32(23)
    if x.dtype == np.float64:
        return x.view(np.uint64), np.uint64(64), np.uint64(52)
    return x & _u32(0xFFFF), _u32(16), _u32(10)
