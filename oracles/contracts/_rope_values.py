"""Contract 6.1, the numbers: values that tell lanes, rounding orders and formats apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oracles.arrays import DTYPES, Array
from oracles.domain import Replay, Source
from reference.floats import FORMATS, FloatFormat

STYLES = ("distinct", "magnitudes", "ties", "special", "any bits")
"""Another number in every lane; parts of very different size; ties of a rounding, of float8 those that a scale leads
to; infinities, NaN, denormals and zeros among others; any bit pattern."""

TIES = ("bfloat16", "float16")
"""Formats whose ties are drawn, besides that of a float8 cache."""


class Numbers:
    """All floats of a case, in one style. Everything follows from one number, so that a case is described by few."""

    def __init__(
        self,
        source: Source,
        dtype: str,
        cache_dtype: str = "auto",
        k_scale: float = 1.0,
        styles: Sequence[str] = STYLES,
    ) -> None:
        self.form, self.form_name = FORMATS[dtype], dtype
        self.style = source.choose(styles, weights=(4, 3, 3, 2, 1)[: len(styles)], small=1)
        formats = TIES if cache_dtype == "auto" else (cache_dtype, cache_dtype, *TIES)
        self.ties = FORMATS[source.choose(formats, small=1)] if self.style == "ties" else None
        self._unit = float(np.float32(k_scale)) if self.ties is not None and self.ties.width == 8 else 1.0
        self._rng = np.random.Generator(np.random.Philox(key=source.pick(1 << 16, small=1)))
        source.event(f"numbers: {self.style}")

    @classmethod
    def plain(cls, dtype: str) -> Numbers:
        """Another number in every lane."""
        return cls(Replay((0, 0)), dtype)

    def draw(self, *shape: int) -> npt.NDArray[np.unsignedinteger]:
        """Bits of that shape."""
        rng, form = self._rng, self.form
        if self.style == "any bits":
            return rng.integers(0, 1 << form.width, size=shape, dtype=np.uint64).astype(form.storage)
        if self.ties is not None:
            return form.encode(_ties(rng, self.ties, shape) * self._unit)
        numbers = rng.permutation(np.arange(1, 1 + int(np.prod(shape)))).reshape(shape) / 16
        numbers = numbers * rng.choice((-1.0, 1.0), size=shape)
        if self.style == "magnitudes":
            numbers = numbers * np.exp2(rng.integers(-14, 10, size=shape).astype(np.float64)) + rng.random(shape) / 3
        bits = form.encode(numbers)
        if self.style == "special":
            at = rng.random(shape) < 0.3
            bits[at] = rng.choice(_special(form), size=int(at.sum()))
        return bits

    def table(self, rows: int, half: int, dtype: str) -> tuple[npt.NDArray[np.unsignedinteger], ...]:
        """Cosines and sines of angles, another in every row and lane; now and then the identity, or no angles."""
        rng, form = self._rng, FORMATS[dtype]
        angles = rng.random((rows, half)) * 6.28
        kind = rng.choice(("angles", "identity", "any"), p=(0.8, 0.1, 0.1))
        if kind == "identity":
            return form.encode(np.ones((rows, half))), form.encode(np.zeros((rows, half)))
        if kind == "any":
            return form.encode(rng.normal(size=(rows, half)) * 3), form.encode(rng.normal(size=(rows, half)) / 7)
        return form.encode(np.cos(angles)), form.encode(np.sin(angles))


def _special(form: FloatFormat) -> npt.NDArray[np.unsignedinteger]:
    """Zeros, infinities, NaN with payloads, the smallest and largest numbers."""
    sign = 1 << (form.width - 1)
    infinity = int(form.encode(np.array([np.inf]))[0])
    patterns = [0, 1, 3, infinity, infinity + 1, infinity | (1 << (form.mantissa - 1)), infinity - 1]
    patterns += [1 << form.mantissa, (1 << form.mantissa) - 1]
    return np.array([*patterns, *(pattern | sign for pattern in patterns)], form.storage)


def _ties(rng: np.random.Generator, form: FloatFormat, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    """Numbers halfway between neighbours of a format, or right beside."""
    codes = rng.integers(0, (1 << (form.width - 1)) - 1, size=shape).astype(form.storage)
    low, high = form.decode(codes), form.decode((codes + 1).astype(form.storage))
    middle = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, 1.5)
    beside = rng.choice((1.0, 1.0, 1 + 2.0**-12, 1 - 2.0**-12), size=shape)
    return np.asarray(middle * beside * rng.choice((-1.0, 1.0), size=shape))


def floats(bits: npt.NDArray[np.unsignedinteger], dtype: str, strides: tuple[int, ...] | None = None) -> Array:
    """An array of a case from bits."""
    return Array(dtype, np.ascontiguousarray(bits).view(DTYPES[dtype]), strides)
