"""Binary floating-point formats, bit by bit: what a pattern is worth, and which pattern a number rounds to.

Numbers are float64, which holds every number of every format here exactly, and every product of two of them. Sums it
does not hold; :func:`sum_to_odd` keeps what their later rounding depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.unsignedinteger]
Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FloatFormat:
    """A format: one sign bit, then the exponent, then ``mantissa`` bits of a fraction; with subnormal numbers.

    ``width``
        bits in all.
    ``mantissa``
        bits of the fraction that are stored.
    ``bias``
        what is subtracted from a stored exponent.
    ``largest``
        the bits of the largest finite number.
    ``nan``
        the bits of one NaN, which stands for all of them in :meth:`canonical`.
    ``has_infinity``
        whether the pattern above ``largest`` is infinity; numbers that are too large then become infinity. Without,
        they become the largest number, and so does infinity: they saturate.
    ``has_negative_zero``
        whether zero has a sign. Without, the pattern of -0 is the only NaN.
    """

    name: str
    width: int
    mantissa: int
    bias: int
    largest: int
    nan: int
    has_infinity: bool = True
    has_negative_zero: bool = True

    @property
    def storage(self) -> np.dtype[Any]:
        """The unsigned integers that hold the bits."""
        return np.dtype(f"uint{self.width}")

    def is_nan(self, bits: npt.ArrayLike) -> Mask:
        """Which patterns are no number."""
        sign, magnitude = self._parts(bits)
        if not self.has_negative_zero:
            return np.asarray(sign & (magnitude == 0))
        return np.asarray(magnitude > self.largest + self.has_infinity)

    def canonical(self, bits: npt.ArrayLike) -> Bits:
        """The same patterns, with one and the same NaN in place of any."""
        return np.where(self.is_nan(bits), self.nan, bits).astype(self.storage)

    def decode(self, bits: npt.ArrayLike) -> Numbers:
        """What patterns are worth, exactly; of a NaN, that it is one."""
        sign, magnitude = self._parts(bits)
        exponent, fraction = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        significand = np.where(exponent > 0, (1 << self.mantissa) + fraction, fraction)
        numbers = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - self.bias - self.mantissa)
        if self.has_infinity:
            numbers = np.where(magnitude > self.largest, np.inf, numbers)
        numbers = np.where(sign, -numbers, numbers)
        return np.where(self.is_nan(bits), np.nan, numbers)

    def encode(self, numbers: npt.ArrayLike) -> Bits:
        """The patterns nearest to numbers; of two that are, the even one. NaN gives :attr:`nan`."""
        numbers = np.asarray(numbers, dtype=np.float64)
        finite = np.isfinite(numbers)
        size = np.abs(np.where(finite, numbers, 0.0))
        least = 1 - self.bias
        exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, least), least)
        # In units of the last place a number of this format is an integer, and rint rounds ties to the even one.
        units = np.rint(np.ldexp(size, self.mantissa - exponent)).astype(np.int64)
        # Patterns count upwards through the exponents, so units that reach 2**(mantissa + 1) carry by themselves.
        top = self.largest + self.has_infinity
        bits = np.minimum(((exponent - least).astype(np.int64) << self.mantissa) + units, top)
        bits = np.where(finite, bits, top)
        signed = np.signbit(numbers) & (self.has_negative_zero | (bits > 0))
        bits = np.where(signed, bits | 1 << (self.width - 1), bits)
        return np.where(np.isnan(numbers), self.nan, bits).astype(self.storage)

    def round(self, numbers: npt.ArrayLike) -> Numbers:
        """The numbers of this format that are nearest."""
        return self.decode(self.encode(numbers))

    def _parts(self, bits: npt.ArrayLike) -> tuple[Mask, npt.NDArray[np.int64]]:
        pattern = np.asarray(bits).astype(np.int64)
        sign = 1 << (self.width - 1)
        return pattern & sign != 0, pattern & (sign - 1)


FLOAT16 = FloatFormat("float16", 16, 10, 15, 0x7BFF, 0x7E00)
BFLOAT16 = FloatFormat("bfloat16", 16, 7, 127, 0x7F7F, 0x7FC0)
FLOAT32 = FloatFormat("float32", 32, 23, 127, 0x7F7F_FFFF, 0x7FC0_0000)
FLOAT8_E4M3FN = FloatFormat("float8_e4m3fn", 8, 3, 7, 0x7E, 0x7F, has_infinity=False)
FLOAT8_E4M3FNUZ = FloatFormat("float8_e4m3fnuz", 8, 3, 8, 0x7F, 0x80, has_infinity=False, has_negative_zero=False)

FORMATS = {form.name: form for form in (FLOAT16, BFLOAT16, FLOAT32, FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ)}
"""Torch dtype name -> the format."""


@dataclass(frozen=True, eq=False)
class FloatArray:
    """An array by its bits, and the name of the dtype that they are bits of.

    ``dtype``
        torch's name of it: one of :data:`FORMATS`, ``"uint8"`` for a cache that holds float8 as bytes, or any other
        name, which the functions that take an array refuse.
    ``bits``
        unsigned integers of the dtype's width, whatever the dtype is.
    """

    dtype: str
    bits: npt.NDArray[Any]

    def __post_init__(self) -> None:
        wanted = FORMATS[self.dtype].storage if self.dtype in FORMATS else self.bits.dtype
        if self.bits.dtype != wanted:
            raise ValueError(f"bits: {self.bits.dtype} cannot hold the bits of {self.dtype}")

    @classmethod
    def of(cls, dtype: str, data: npt.NDArray[Any]) -> FloatArray:
        """From an array of that dtype, or of the integers that hold its bits where NumPy has no such dtype."""
        return cls(dtype, np.ascontiguousarray(data).reshape(data.shape).view(f"uint{8 * data.itemsize}"))

    @classmethod
    def from_numbers(cls, dtype: str, numbers: npt.ArrayLike) -> FloatArray:
        """Numbers rounded to a format.

        >>> FloatArray.from_numbers("bfloat16", [1.0, -2.5]).bits.tolist() == [0x3F80, 0xC020]
        True
        """
        return cls(dtype, FORMATS[dtype].encode(numbers))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.bits.shape)

    @property
    def numbers(self) -> Numbers:
        """What the elements are worth; the dtype must be one of :data:`FORMATS`."""
        return FORMATS[self.dtype].decode(self.bits)


def sum_to_odd(a: Numbers, b: Numbers) -> Numbers:
    """``a + b``, such that rounding the result to a format of at most 51 significant bits rounds the exact sum.

    A float64 sum that is not exact is replaced by the one of its two neighbours around the exact sum whose last bit is
    1 (*round to odd*). It is then no number of the narrower format and not halfway between two of them, since those
    end in 0 as float64, and it lies on the same side of each as the exact sum does: nothing that the second rounding
    looks at has changed. So a product that float64 holds exactly, plus a number, rounded afterwards, is ``fma``.

    >>> one, little = np.float64(1 + 2**-8), np.float64(2**-60)  # halfway between two bfloat16, and a bit more
    >>> BFLOAT16.round(one + little).item(), BFLOAT16.round(sum_to_odd(one, little)).item()
    (1.0, 1.0078125)
    """
    with np.errstate(invalid="ignore"):
        total = np.asarray(a + b)
        # Knuth's two-sum: what the rounding of the total lost, exactly. Infinities lose nothing that counts.
        part = total - a
        lost = (a - (total - part)) + (b - part)
    even = total.view(np.int64) & 1 == 0
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where(np.isfinite(total) & (lost != 0) & even, odd, total)
