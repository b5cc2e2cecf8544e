"""The shapes of the rows, and the words that their expressions may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

TYPES = {
    "u": "32 bits, unsigned",
    "i": "32 bits, signed",
    "f": "32 bits, float",
    "h": "a register with a 16-bit float, 32 bits unsigned; a literal like 1.0 is the 16-bit pattern of that number",
    "w": "a register with a 16-bit integer, 32 bits unsigned",
    "U": "64 bits, unsigned (a pair of registers)",
    "I": "64 bits, signed",
    "F": "64 bits, float",
    "p": "a pair of registers with a 32-bit float each, 64 bits unsigned; a literal is in both",
    "m": "one bit a lane (a pair of scalar registers)",
}
"""Types of vector sources and results. A result ``m`` is written to the lanes that are on; the others get 0.

A source ``h`` or ``w`` is the whole register, of which an expression takes what it wants; as results they are the whole
register too.
"""

IMPLICIT = {
    "D": "the old value of the first destination, as a float of its width",
    "V": "vcc, as a mask",
    "O": "the bit FP16_OVFL of the MODE register, as a mask that is the same for every lane",
}
"""Sources that no operand stands for."""


@dataclass(frozen=True, slots=True)
class VectorRow:
    """A vector instruction, the same for each lane.

    ``results`` and ``sources`` are strings of types, in the order of the operands; those of ``IMPLICIT`` are among the
    sources without being operands. In ``expression`` the sources are ``{0}``, ``{1}``...; for two results it gives a
    pair. Integers of different widths or signs never meet in it, except that a plain number takes the other's type.
    """

    results: str
    sources: str
    expression: str


@dataclass(frozen=True, slots=True)
class ScalarRow:
    """A scalar instruction, on unbounded Python integers.

    ``width``: bits of the result (32 or 64), which is cut off behind ``value``. ``sources``, a letter each: ``B`` 32
    bits unsigned, ``i`` 32 signed, ``b`` 64 unsigned, ``j`` 64 signed, ``K`` a 16-bit literal, signed, ``D`` and ``d``
    the old destination, unsigned and signed. ``scc`` gives the new SCC from the sources and ``t``, the value before it
    is cut off; empty: SCC stays. ``SCC`` in an expression is the old one.
    """

    width: Literal[32, 64]
    sources: str
    value: str
    scc: str = ""


VOCABULARY: Mapping[str, str] = MappingProxyType(
    {
        # bits
        "as_u32": "the same 32 bits, unsigned",
        "as_i32": "the same 32 bits, signed",
        "as_f32": "the same 32 bits, a float",
        "as_u64": "the same 64 bits, unsigned",
        "as_i64": "the same 64 bits, signed",
        "as_f64": "the same 64 bits, a float",
        "low": "the low 32 of 64 bits, unsigned",
        "high": "the high 32 of 64 bits, unsigned",
        "pair": "64 bits, unsigned, from the low and the high 32",
        "wide": "the same integer in 64 bits: zeros above an unsigned one, copies of the sign above a signed one",
        "bit": "1 where the mask is set, else 0, unsigned",
        "signed16": "the low 16 bits as a signed number, 32 bits signed",
        "ones": "as many of the lowest of 32 bits set as the number (below 32) says",
        "reverse_bits": "the 32 bits in opposite order",
        "count_bits": "how many of the 32 bits are set",
        "leading_zeros": "zeros above the highest of the 32 bits that is set; 32 for 0",
        "trailing_zeros": "zeros below the lowest of the 32 bits that is set; 32 for 0",
        "lower_lanes": "the lanes below this one as a mask of 64 bits: its half 0 or 1, 32 bits unsigned",
        "truth": "for each bit of three sources, the bit of a table (last) that they number, the first one highest",
        "permute_bytes": "each byte of the third picks a byte of the second (0 to 3) or first (4 to 7), or a constant",
        # choice and integer arithmetic
        "select": "the second where the mask is set, else the third",
        "minimum": "the smaller of two integers",
        "maximum": "the larger of two integers",
        "add_carry": "the sum of two unsigned integers and a mask, if given; and whether it does not fit",
        "subtract_borrow": "the first minus the second and a mask, if given; and whether that is negative",
        "add_sign": "the sum of two signed integers of 64 bits; and whether the unbounded sum is negative",
        "add_clamped": "the sum of two integers, or the nearest number of their type",
        "subtract_clamped": "the difference of two integers, or the nearest number of their type",
        # numbers
        "to_f32": "the nearest 32-bit float of an integer or float, ties to even",
        "to_f64": "the nearest 64-bit float of an integer or float, ties to even",
        "to_u32": "a float without its fraction, clamped to 32 bits unsigned; 0 for NaN",
        "to_i32": "a float without its fraction, clamped to 32 bits signed; 0 for NaN",
        "magnitude": "a float without its sign",
        "is_nan": "whether a float is not a number",
        "in_class": "whether a float is of one of the ten classes whose bits are set in the second",
        "min_number": "the smaller of two floats; the other one of a NaN; -0 below +0",
        "max_number": "the larger of two floats; the other one of a NaN; -0 below +0",
        "middle": "the middle one of three floats; the smallest number if one is NaN",
        "truncate": "a float without its fraction",
        "floor": "the largest whole number that is not above a float",
        "ceil": "the smallest whole number that is not below a float",
        "round_even": "the nearest whole number, ties to even",
        "fma": "first times second plus third, rounded once",
        "fma_odd": "first times second plus third of 32-bit floats, in 64 bits, inexact ones odd: to be rounded once",
        "scale": "a float times two to the power of a signed integer, rounded once",
        "mantissa": "a float scaled into [0.5, 1); zero, infinity and NaN as they are",
        "exponent": "the power of two that goes with the mantissa, 32 bits signed; 0 for zero, infinity and NaN",
        # approximations: within one unit in the last place on hardware, here the nearest float
        "reciprocal": "one by a float; 32-bit denormals are zero",
        "reciprocal_root": "one by the square root; 32-bit denormals are zero",
        "root": "the square root; 32-bit denormals are zero",
        "exp2": "two to the power of a float; 32-bit denormals are zero",
        "log2": "the logarithm to base two; 32-bit denormals are zero",
        "sine": "the sine of so many turns",
        "cosine": "the cosine of so many turns",
        # division in steps
        "div_scale": "the first source scaled for a division of the third by the second; and whether to scale back",
        "div_fmas": "first times second plus third, scaled back where the mask is set, rounded once",
        "div_fixup": "the first with the sign and the special values of the third divided by the second",
        # other formats: bits in, bits out, 32 bits unsigned
        "from_f16": "the 32-bit float of the low 16 bits",
        "to_f16": "the bits of the nearest 16-bit float; with the mask, if given, an overflow gives the largest",
        "to_f16_toward_zero": "the bits of the next 16-bit float toward zero",
        "from_bf16": "the 32-bit float whose upper half the low 16 bits are",
        "to_bf16": "the bits of the nearest bfloat16",
        "from_fp8": "the 32-bit float of the low 8 bits; the format (last) is one of FORMATS",
        "to_fp8": "the bits of the nearest number of the format (last); with the mask, an overflow gives the largest",
    }
)
"""What expressions may use besides Python's operators. ``oracles.backends.cdna.lanes`` has all of it.

The executor also gives names for the formats of 8-bit floats: see ``FORMATS``.
"""

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "E4M3FNUZ": "gfx942's fp8: no infinity, one NaN, no negative zero",
        "E5M2FNUZ": "gfx942's bf8, likewise",
        "E4M3FN": "gfx950's fp8: no infinity",
        "E5M2": "gfx950's bf8",
    }
)
"""8-bit formats, by the constants that name them in expressions."""


def table(text: str) -> dict[str, VectorRow]:
    """Vector rows from lines of a name, ``results<-sources`` and an expression, between spaces."""
    lines = (line.split(None, 2) for line in text.splitlines() if line.strip())
    rows = {}
    for name, types, expression in lines:
        results, sources = types.split("<-")
        if name in rows:
            raise ValueError(f"{name} has two rows")
        rows[name] = VectorRow(results, sources, expression)
    return rows


def clamped(results: str, expression: str) -> str:
    """A float's expression with the modifier ``clamp``: within [0, 1], and 0 for NaN."""
    if results == "h":
        return f"to_f16(min_number(max_number(from_f16({expression}), 0.0), 1.0))"
    return f"min_number(max_number({expression}, 0.0), 1.0)"
