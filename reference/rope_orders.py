"""The rounding orders of rotary embeddings that are written to a KV cache: which steps round, and to what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference.floats import FLOAT16, FLOAT32, FloatFormat, Numbers, sum_to_odd


@dataclass(frozen=True)
class RoundingOrder:
    """Where one order rounds. Every rounding is to nearest, ties to even.

    ``rotates_in``
        the format of every product and sum: ``"float32"``; ``"input"``, the input's dtype, to which a wider table is
        rounded before; or ``"wider"``, the wider of the input's dtype and the table's.
    ``caches_exactly``
        whether the cache gets the rotation's own result; otherwise it gets what is left after rounding that to the
        input's dtype, which is ``k_pe_out``.
    ``scales_by``
        what a float8 cache gets of a number ``x``. ``"reciprocal"``: ``x`` times ``1 / scale``; ``"quotient"``:
        ``x / scale``; both in float32. ``"float16 quotient"``: that quotient rounded to float16.
    """

    name: str
    rotates_in: str
    caches_exactly: bool
    scales_by: str

    def arithmetic(self, of_input: FloatFormat, of_table: FloatFormat) -> FloatFormat:
        """The format in which the rotation computes."""
        if self.rotates_in == "float32":
            return FLOAT32
        if self.rotates_in == "wider" and of_table.width > of_input.width:
            return of_table
        return of_input

    def scaled(self, numbers: Numbers, scale: np.float32) -> Numbers:
        """What is rounded to float8: float32 numbers, scaled."""
        single = numbers.astype(np.float32)
        with np.errstate(all="ignore"):
            if self.scales_by == "reciprocal":
                return (single * (np.float32(1) / scale)).astype(np.float64)
            quotient = (single / scale).astype(np.float64)
        return FLOAT16.round(quotient) if self.scales_by == "float16 quotient" else quotient


ORDERS = {
    order.name: order
    for order in (
        RoundingOrder("hip", "float32", True, "reciprocal"),
        RoundingOrder("torch", "input", False, "quotient"),
        RoundingOrder("promote", "wider", False, "quotient"),
        RoundingOrder("triton", "input", False, "reciprocal"),
        RoundingOrder("half_scale", "input", False, "float16 quotient"),
    )
}
"""Name -> rounding order."""

CONTRACTIONS = ("none", "cosine", "sine")
"""Which of its two products a sum takes without rounding it (``fma``): neither, or the one with that factor."""


def rotated(
    numbers: Numbers, cos: Numbers, sin: Numbers, is_neox: bool, arithmetic: FloatFormat, contraction: str
) -> Numbers:
    """Rotate the pairs of ``numbers`` ``[..., P]`` by the angles of ``cos`` and ``sin`` ``[P/2]``.

    Pair ``i`` of NeoX is lanes ``i`` and ``i + P/2``, of GPT-J lanes ``2i`` and ``2i + 1``. A pair ``(x, y)`` becomes
    ``(x*cos - y*sin, y*cos + x*sin)``. All arguments are numbers of the format ``arithmetic``.
    """
    first, second = lanes_of_pairs(numbers.shape[-1], is_neox)
    x, y = numbers[..., first], numbers[..., second]
    result = np.empty_like(numbers)
    result[..., first] = sum_of_products(x, cos, -y, sin, arithmetic, contraction)
    result[..., second] = sum_of_products(y, cos, x, sin, arithmetic, contraction)
    return result


def lanes_of_pairs(width: int, is_neox: bool) -> tuple[slice, slice]:
    """The lanes of all first and of all second members, in the order of the pairs."""
    if is_neox:
        return slice(0, width // 2), slice(width // 2, width)
    return slice(0, width, 2), slice(1, width, 2)


def sum_of_products(
    a: Numbers, cos: Numbers, b: Numbers, sin: Numbers, arithmetic: FloatFormat, contraction: str
) -> Numbers:
    """``a*cos + b*sin``: products rounded, then their sum; a contraction leaves out the rounding of one product.

    An ``fma`` of a 16-bit format rounds once, to 16 bits. That an ``fma`` in float32 rounds to 16 bits afterwards is
    another result where the two roundings meet at a tie, and is not right.
    """
    with np.errstate(invalid="ignore"):
        cosine, sine = np.asarray(a * cos), np.asarray(b * sin)  # exact: two factors of at most 24 significant bits
    if contraction != "cosine":
        cosine = arithmetic.round(cosine)
    if contraction != "sine":
        sine = arithmetic.round(sine)
    return arithmetic.round(sum_to_odd(cosine, sine))
