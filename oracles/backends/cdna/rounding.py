"""Floating-point operations on lanes that NumPy does not have, rounded once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]

_f32, _f64 = np.float32, np.float64
_AS_BITS: dict[Any, tuple[Any, int, int]] = {_f32: (np.uint32, 8, 23), _f64: (np.uint64, 11, 52)}
"""By type: the unsigned integer as wide, bits of the exponent, bits of the fraction."""


def fma(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """``x * y + z`` of 32- or 64-bit floats, rounded once."""
    if np.result_type(x, y, z) == _f32:
        return fma_odd(x, y, z).astype(_f32)
    exact: Lanes = np.vectorize(_fma64, otypes=[_f64])(x, y, z)
    return exact


def fma_odd(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """``x * y + z`` of 32-bit floats in 64 bits, inexact results made odd.

    The product of two 32-bit floats is exact in 64 bits, and so is the error of one addition there. Of the two 64-bit
    floats around an inexact sum the one with an odd last bit is taken: it lies on no tie of a format that is at least
    two bits shorter, so that rounding it again gives what rounding the exact sum gives.
    """
    product, addend = x.astype(_f64) * y.astype(_f64), z.astype(_f64)
    total = np.asarray(product + addend)
    of_product = total - addend
    error = (product - of_product) + (addend - (total - of_product))
    even = total.view(np.uint64) & np.uint64(1) == 0
    toward = np.where(error > 0, _f64(np.inf), _f64(-np.inf))
    return np.where(np.isfinite(total) & (error != 0) & even, np.nextafter(total, toward), total)


def _fma64(x: float, y: float, z: float) -> float:
    if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
        return x * y + z if np.isfinite(z) or not (np.isfinite(x) and np.isfinite(y)) else z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        # Python's product has the right sign even where it underflows, and a sum of zeros follows the rules.
        return x * y + z if x == 0 or y == 0 else 0.0
    return rounded(exact)


def rounded(exact: Fraction) -> float:
    """The nearest 64-bit float of a fraction, infinity where it overflows."""
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def scale(x: Lanes, power: Lanes) -> Lanes:
    """``x * 2**power``."""
    return np.ldexp(x, power)


def _flushed(x: Lanes) -> Lanes:
    """Zero instead of a 32-bit denormal; hardware's approximations neither take nor give them."""
    if x.dtype != _f32:
        return x
    return np.where(np.abs(x) < np.finfo(_f32).smallest_normal, np.copysign(_f32(0), x), x)


def _approximation(function: Any, x: Lanes) -> Lanes:
    """The nearest float of a function that is computed in 64 bits."""
    return _flushed(function(_flushed(x).astype(_f64)).astype(x.dtype))


def reciprocal(x: Lanes) -> Lanes:
    """One by a float."""
    return _approximation(lambda wide: _f64(1) / wide, x)


def reciprocal_root(x: Lanes) -> Lanes:
    """One by the square root."""
    return _approximation(lambda wide: _f64(1) / np.sqrt(wide), x)


def root(x: Lanes) -> Lanes:
    """The square root."""
    return _approximation(np.sqrt, x)


def exp2(x: Lanes) -> Lanes:
    """Two to the power of a float."""
    return _approximation(np.exp2, x)


def log2(x: Lanes) -> Lanes:
    """The logarithm to base two."""
    return _approximation(np.log2, x)


def sine(x: Lanes) -> Lanes:
    """The sine of so many turns."""
    return _approximation(lambda turns: np.sin(2 * np.pi * np.fmod(turns, 1)), x)


def cosine(x: Lanes) -> Lanes:
    """The cosine of so many turns."""
    return _approximation(lambda turns: np.cos(2 * np.pi * np.fmod(turns, 1)), x)


_DIVISION: dict[Any, tuple[int, int, int, int]] = {_f32: (64, 96, 23, 127), _f64: (128, 768, 53, 1023)}
"""By type: the power of two that steps scale by; the exponents' difference of a large quotient; the exponent of a small
numerator; the bias of exponents."""


def _biased(x: Lanes) -> Lanes:
    """The exponent field, 0 for zero and denormals."""
    bits, exponent, fraction = _AS_BITS[x.dtype.type]
    field: Lanes = np.asarray(x).view(bits) >> bits(fraction) & bits((1 << exponent) - 1)
    return field.astype(np.int64)


def div_scale(x: Lanes, denominator: Lanes, numerator: Lanes) -> tuple[Lanes, Lanes]:
    """``x``, which is the denominator or the numerator, scaled so that no step of the division leaves the normal range.

    The second result tells ``div_fmas`` to scale back.
    """
    x, denominator, numerator = np.broadcast_arrays(x, denominator, numerator)
    power, large, small, _ = _DIVISION[x.dtype.type]
    up, down = np.ldexp(x, power), np.ldexp(x, -power)
    smallest = np.finfo(x.dtype).smallest_normal
    above, below = _biased(numerator), _biased(denominator)
    quotient, inverse = np.abs(numerator / denominator), np.abs(1 / denominator)
    # AMD's text looks for a denormal reciprocal in 64 bits also for 32-bit floats, where there is none, and where
    # quotient and reciprocal are denormals it scales up a denominator that then overflows. LLVM counts on right
    # quotients there, which this gives.
    small_quotient, small_inverse = quotient < smallest, inverse < smallest
    is_denominator, is_numerator = x == denominator, x == numerator
    cases = [
        ((numerator == 0) | (denominator == 0), x * np.nan, False),
        (above - below >= large, np.where(is_denominator, up, x), True),
        ((below == 0), up, False),
        (small_inverse & small_quotient, np.where(is_denominator, down, x), True),
        (small_inverse, down, False),
        (small_quotient, np.where(is_numerator, up, x), True),
        (above <= small, up, False),
    ]
    conditions = [condition for condition, _, _ in cases]
    scaled = np.select(conditions, [value for _, value, _ in cases], x)
    back = np.select(conditions, [np.full(x.shape, flag) for _, _, flag in cases], False)
    return scaled.astype(x.dtype), back


def div_fmas(x: Lanes, y: Lanes, z: Lanes, back: Lanes) -> Lanes:
    """``x * y + z``; where ``back``, scaled up if ``z``, the quotient so far, is at least two, else down.

    AMD's text of these architectures scales up only, by the half of the power that ``div_scale`` uses.
    """
    kind = np.result_type(x, y, z).type
    power, _, _, bias = _DIVISION[kind]
    direction = np.where(back, np.where(_biased(z) > bias, power, -power), 0)
    if kind is _f32:
        return np.ldexp(fma_odd(x, y, z), direction).astype(_f32)
    exact: Lanes = np.vectorize(_scaled_fma64, otypes=[_f64])(x, y, z, direction)
    return exact


def _scaled_fma64(x: float, y: float, z: float, power: int) -> float:
    if not power or not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
        return _fma64(x, y, z)
    return rounded((Fraction(x) * Fraction(y) + Fraction(z)) * Fraction(2) ** int(power))


def div_fixup(quotient: Lanes, denominator: Lanes, numerator: Lanes) -> Lanes:
    """The quotient with the sign and the special cases of a division."""
    kind = np.result_type(quotient, denominator, numerator).type
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    negative = np.signbit(denominator) ^ np.signbit(numerator)
    difference = _biased(numerator) - _biased(denominator)
    # AMD's text has no test for an overflow that can be true; without one, steps that overflow would give NaN.
    underflow = difference < (-150 if kind is _f32 else -1075)
    overflow = difference > (128 if kind is _f32 else 1024)
    sign = np.where(negative, kind(-1), kind(1))
    infinity, zero = sign * kind(np.inf), sign * kind(0)
    undefined = np.full(quotient.shape, -kind(np.nan))
    result = np.select(
        [
            np.isnan(numerator),
            np.isnan(denominator),
            (denominator == 0) & (numerator == 0) | np.isinf(denominator) & np.isinf(numerator),
            (denominator == 0) | np.isinf(numerator),
            np.isinf(denominator) | (numerator == 0) | underflow,
            overflow,
        ],
        [quieted(numerator), quieted(denominator), undefined, infinity, zero, infinity],
        np.copysign(quotient, sign),
    )
    typed: Lanes = result.astype(kind)
    return typed


def quieted(x: Lanes) -> Lanes:
    """A NaN made quiet."""
    bits, _, fraction = _AS_BITS[x.dtype.type]
    quiet: Lanes = np.asarray(x).view(bits) | bits(1 << (fraction - 1))
    return quiet.view(x.dtype)
