"""The formats of ``reference.floats``: patterns, ties and exact sums, against other ways to work them out."""

import doctest
import math
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import reference.floats
from benchmarks import rounding_table
from reference.floats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT16,
    FLOAT32,
    FORMATS,
    FloatArray,
    sum_to_odd,
)

NARROW = [pytest.param(form, id=form.name) for form in FORMATS.values() if form.width < 32]
ALL = [pytest.param(form, id=form.name) for form in FORMATS.values()]
HALVES = np.arange(1 << 16, dtype=np.uint16)


def patterns(form):
    """Every pattern; of float32 those around each change of the exponent, and many between."""
    if form.width < 32:
        return np.arange(1 << form.width).astype(form.storage)
    edges = (np.arange(256)[:, None] << 23) + np.arange(-3, 4)
    drawn = np.random.default_rng(1).integers(0, 1 << 31, 50_000)
    magnitudes = np.concatenate([edges[edges >= 0].ravel(), drawn])
    return np.concatenate([magnitudes, magnitudes + (1 << 31)]).astype(np.uint32)


def positive(form):
    """Patterns of the finite numbers from 0 upwards, and of each the next one."""
    bits = patterns(form).astype(np.int64)
    bits = bits[bits < form.largest]
    return bits.astype(form.storage), (bits + 1).astype(form.storage)


def exact(form, bits):
    """What one finite pattern is worth, written out in fractions."""
    sign, rest = divmod(int(bits), 1 << (form.width - 1))
    exponent, fraction = divmod(rest, 1 << form.mantissa)
    lead = Fraction(fraction, 1 << form.mantissa) + (exponent > 0)
    return (-1) ** sign * lead * Fraction(2) ** (max(exponent, 1) - form.bias)


def nearest(form, number):
    """A fraction rounded to a format; Python rounds fractions to the nearest integer, ties to the even one."""
    if number == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(number)))
    exponent += (abs(number) >= Fraction(2) ** (exponent + 1)) - (abs(number) < Fraction(2) ** exponent)
    unit = Fraction(2) ** (max(exponent, 1 - form.bias) - form.mantissa)
    rounded = round(number / unit) * unit
    if abs(rounded) > exact(form, form.largest):
        return math.copysign(math.inf if form.has_infinity else float(exact(form, form.largest)), number)
    return float(rounded)


def as_torch(form, bits):
    return torch.from_numpy(bits.copy()).view(getattr(torch, form.name))


def from_torch(form, numbers):
    return torch.from_numpy(numbers).to(getattr(torch, form.name)).view(getattr(torch, f"uint{form.width}")).numpy()


def from_ml_dtypes(form, numbers):
    dtype = np.float16 if form is FLOAT16 else getattr(ml_dtypes, form.name)
    with np.errstate(all="ignore"):
        return numbers.astype(dtype).view(form.storage)


def test_examples_of_the_docstrings():
    assert doctest.testmod(reference.floats).failed == 0


@pytest.mark.parametrize(
    ("form", "bits", "number"),
    [
        (FLOAT8_E4M3FN, 0x38, 1.0),
        (FLOAT8_E4M3FN, 0x7E, 448.0),
        (FLOAT8_E4M3FN, 0x01, 2.0**-9),
        (FLOAT8_E4M3FN, 0x88, -(2.0**-6)),
        (FLOAT8_E4M3FNUZ, 0x38, 0.5),
        (FLOAT8_E4M3FNUZ, 0x7F, 240.0),
        (FLOAT8_E4M3FNUZ, 0x77, 120.0),
        (FLOAT8_E4M3FNUZ, 0x01, 2.0**-10),
        (FLOAT16, 0x7BFF, 65504.0),
        (FLOAT16, 0x0001, 2.0**-24),
        (FLOAT16, 0xFC00, -math.inf),
        (BFLOAT16, 0x3F80, 1.0),
        (BFLOAT16, 0x0001, 2.0**-133),
        (BFLOAT16, 0x7F80, math.inf),
        (FLOAT32, 0x0000_0001, 2.0**-149),
        (FLOAT32, 0xC040_0000, -3.0),
    ],
)
def test_patterns_by_hand(form, bits, number):
    assert form.decode(bits) == number
    assert form.encode(number) == bits


@pytest.mark.parametrize("form", ALL)
def test_patterns_by_fractions(form):
    bits = patterns(form)
    finite = bits[np.isfinite(form.decode(bits))][:: 20 if form.width == 32 else 1]
    assert [Fraction(number) for number in form.decode(finite).tolist()] == [exact(form, each) for each in finite]


@pytest.mark.parametrize("form", ALL)
def test_every_pattern_survives_a_round_trip(form):
    bits = patterns(form)
    assert np.array_equal(form.encode(form.decode(bits)), form.canonical(bits))
    assert np.array_equal(form.is_nan(bits), np.isnan(form.decode(bits)))


@pytest.mark.parametrize(
    ("form", "count"), [(FLOAT8_E4M3FN, 2), (FLOAT8_E4M3FNUZ, 1), (FLOAT16, 2 * 1023), (BFLOAT16, 2 * 127)]
)
def test_how_many_patterns_are_nan(form, count):
    nans = form.is_nan(patterns(form))
    assert nans.sum() == count
    assert np.unique(form.canonical(patterns(form))[nans]).tolist() == [form.nan]


@pytest.mark.parametrize("form", NARROW)
def test_torch_and_ml_dtypes_read_the_same_numbers(form):
    bits = patterns(form)
    numbers = form.decode(bits)
    assert np.array_equal(numbers, as_torch(form, bits).to(torch.float64).numpy(), equal_nan=True)
    dtype = np.float16 if form is FLOAT16 else getattr(ml_dtypes, form.name)
    with np.errstate(invalid="ignore"):  # ml_dtypes' own code says so of signalling NaN
        theirs = bits.view(dtype).astype(np.float64)
    assert np.array_equal(numbers, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(numbers[numbers == 0]), [False, True][: 1 + form.has_negative_zero])


@pytest.mark.parametrize("form", ALL)
def test_ties_go_to_the_even_pattern(form):
    low, high = positive(form)
    middle = (form.decode(low) + form.decode(high)) / 2
    even = np.where(low & 1, high, low)
    sign = 1 << (form.width - 1)
    for numbers, wanted in (
        (middle, even),
        (np.nextafter(middle, -np.inf), low),
        (np.nextafter(middle, np.inf), high),
    ):
        assert np.array_equal(form.encode(numbers), wanted)
        zero = (wanted == 0) & (not form.has_negative_zero)
        assert np.array_equal(form.encode(-numbers), np.where(zero, 0, wanted | sign))


@pytest.mark.parametrize("form", NARROW)
def test_torch_and_ml_dtypes_round_the_same_way(form):
    low, high = positive(form)
    middle = ((form.decode(low) + form.decode(high)) / 2).astype(np.float32)
    near = [middle, np.nextafter(middle, np.float32(-np.inf)), np.nextafter(middle, np.float32(np.inf))]
    numbers = np.concatenate([*near, form.decode(low).astype(np.float32)])
    # NumPy's and torch's float16 have been through float64 here and through hardware there; both agree with ours.
    numbers = np.concatenate([numbers, -numbers])
    assert np.array_equal(form.encode(numbers), from_torch(form, numbers))
    assert np.array_equal(form.encode(numbers), from_ml_dtypes(form, numbers))


@pytest.mark.parametrize("form", [FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ])
@pytest.mark.parametrize("source", [FLOAT16, BFLOAT16])
def test_every_16_bit_number_to_float8(form, source):
    numbers = source.decode(HALVES)
    numbers = numbers[np.abs(numbers) <= form.decode(form.largest)].astype(np.float32)
    assert np.array_equal(form.encode(numbers), from_torch(form, numbers))
    assert np.array_equal(form.encode(numbers), from_ml_dtypes(form, numbers))


@pytest.mark.parametrize(
    ("form", "number", "bits"),
    [
        (FLOAT8_E4M3FN, 464.0, 0x7E),
        (FLOAT8_E4M3FN, 464.1, 0x7E),
        (FLOAT8_E4M3FN, 1e300, 0x7E),
        (FLOAT8_E4M3FN, math.inf, 0x7E),
        (FLOAT8_E4M3FN, -math.inf, 0xFE),
        (FLOAT8_E4M3FN, -0.0, 0x80),
        (FLOAT8_E4M3FN, -1e-300, 0x80),
        (FLOAT8_E4M3FN, math.nan, 0x7F),
        (FLOAT8_E4M3FNUZ, 248.0, 0x7F),
        (FLOAT8_E4M3FNUZ, -241.0, 0xFF),
        (FLOAT8_E4M3FNUZ, math.inf, 0x7F),
        (FLOAT8_E4M3FNUZ, -math.inf, 0xFF),
        (FLOAT8_E4M3FNUZ, -0.0, 0x00),
        (FLOAT8_E4M3FNUZ, -(2.0**-11), 0x00),
        (FLOAT8_E4M3FNUZ, -1e-300, 0x00),
        (FLOAT8_E4M3FNUZ, -math.nan, 0x80),
        (FLOAT16, 65519.99, 0x7BFF),
        (FLOAT16, 65520.0, 0x7C00),
        (FLOAT16, -1e300, 0xFC00),
        (FLOAT16, -math.nan, 0x7E00),
        (BFLOAT16, 3.4e38, 0x7F80),
        (BFLOAT16, -0.0, 0x8000),
        (FLOAT32, 2.0**128 - 2.0**103, 0x7F80_0000),
        (FLOAT32, math.nextafter(2.0**128 - 2.0**103, 0), 0x7F7F_FFFF),
    ],
)
def test_beyond_the_finite_range(form, number, bits):
    assert form.encode(number) == bits


def test_float32_as_numpy_rounds_it():
    generator = np.random.default_rng(2)
    numbers = np.ldexp(generator.uniform(-2, 2, 100_000), generator.integers(-160, 130, 100_000))
    with np.errstate(all="ignore"):
        assert np.array_equal(FLOAT32.encode(numbers), numbers.astype(np.float32).view(np.uint32))


def operands(form, generator, count):
    """Numbers of a format whose sums and products lose bits, lie at ties, cancel, overflow or are subnormal."""
    lowest = max(1 - form.bias, -40)
    units = generator.integers(-(2 ** (form.mantissa + 1)), 2 ** (form.mantissa + 1), count)
    sparse = np.where(generator.random(count) < 0.3, units & ~(2 ** (form.mantissa - 2) - 1), units)
    return form.round(np.ldexp(sparse.astype(np.float64), generator.integers(lowest, 12, count) - form.mantissa))


@pytest.mark.parametrize("form", ALL)
def test_a_product_and_a_sum_rounded_once(form):
    generator = np.random.default_rng(form.width + form.mantissa)
    a, b, c = (operands(form, generator, 4_000) for _ in range(3))
    nearly = form.round(-a * b * (1 + 2.0**-form.mantissa))  # such sums cancel but for the last places
    c = np.where(np.isfinite(nearly) & (generator.random(4_000) < 0.5), nearly, c)
    wanted = [nearest(form, Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert np.array_equal(form.round(sum_to_odd(a * b, c)), wanted)


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_float64_rounds_to_a_tie_of_float32(sign):
    c = 1 + np.arange(1, 65) * 2.0**-23
    a, b = np.full(64, 1 + 2.0**-23), np.full(64, sign * (1 - 2.0**-23) * 2.0**-24)  # half a last place, less 2^-70
    wanted = [nearest(FLOAT32, Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert np.array_equal(FLOAT32.round(sum_to_odd(a * b, c)), wanted)
    assert np.array_equal(wanted, c)
    assert (FLOAT32.round(a * b + c) != wanted).sum() == 32


@pytest.mark.parametrize("form", [BFLOAT16, FLOAT16])
def test_an_fma_through_float32_is_another_one(form):
    # The exact sum lies just above a tie; float32 ends on the tie, and the even neighbour below is taken.
    little = np.float64(2.0**-14)
    one, tie = np.float64(1), np.float64(2.0 ** -(form.mantissa + 1))
    exact_sum = sum_to_odd(little * little + 0 * one, one + tie)
    assert form.round(exact_sum) == 1 + 2.0**-form.mantissa
    assert form.round(FLOAT32.round(exact_sum)) == 1


def test_a_sum_that_float64_rounds_to_a_tie():
    tie, little = np.float64(1 + 2.0**-8), np.float64(2.0**-80)
    assert [BFLOAT16.round(sum_to_odd(tie, each)).item() for each in (little, -little, 0 * little)] == [
        1 + 2.0**-7,
        1.0,
        1.0,
    ]
    assert BFLOAT16.round(tie + little) == 1


def test_sums_of_infinities_nan_and_zeros():
    a = np.array([np.inf, np.inf, np.nan, 0.0, -0.0, 1.0, -0.0])
    b = np.array([1.0, -np.inf, 1.0, -0.0, -0.0, -1.0, 0.0])
    found = sum_to_odd(a, b)
    assert np.array_equal(found, [np.inf, np.nan, np.nan, 0.0, 0.0, 0.0, 0.0], equal_nan=True)
    assert np.signbit(found[3:]).tolist() == [False, True, False, False]


@pytest.mark.parametrize("form", [FLOAT32, FLOAT16, BFLOAT16])
def test_sums_and_products_are_those_of_torch(form):
    generator = np.random.default_rng(3)
    a, b = (operands(form, generator, 100_000) for _ in range(2))
    one, two = (as_torch(form, form.encode(each).astype(form.storage)) for each in (a, b))
    for found, wanted in ((sum_to_odd(a, b), one + two), (a * b, one * two)):
        assert np.array_equal(form.round(found), wanted.to(torch.float64).numpy())


def test_arrays_keep_bits():
    bits = np.array([[0x7C01, 0x8000]], np.uint16)
    for array in (FloatArray("float16", bits), FloatArray.of("float16", bits.view(np.float16))):
        assert array.bits.tolist() == bits.tolist()
        assert (array.dtype, array.shape, array.bits.dtype) == ("float16", (1, 2), np.uint16)
    assert FloatArray.of("float32", np.float32([1.5, -0.0])).bits.tolist() == [0x3FC0_0000, 0x8000_0000]
    assert FloatArray.of("bfloat16", bits[:, ::-1].T).shape == (2, 1)
    assert FloatArray.from_numbers("float8_e4m3fnuz", [1.0, -0.0]).numbers.tolist() == [1.0, 0.0]


def test_bits_of_another_width_are_refused():
    with pytest.raises(ValueError, match="bits: uint8 cannot hold the bits of bfloat16"):
        FloatArray("bfloat16", np.zeros(2, np.uint8))


def test_the_page_shows_what_is_measured():
    text = (Path(__file__).resolve().parents[2] / "docs" / "rounding.md").read_text(encoding="utf-8")
    measured = text.split(rounding_table.MARKS[0])[1].split(rounding_table.MARKS[1])[0].splitlines()
    # The columns of torch and ml_dtypes depend on their releases.
    ours = [line.split(" | ")[:3] for line in measured if line.startswith(("| float8", "| float16 |", "| bfloat16 |"))]
    for line in rounding_table.conversions():
        if "| this project |" not in line and not line.startswith("|---"):
            assert line.split(" | ")[:3] in ours
    for line in (*rounding_table.orders(), *rounding_table.contractions()):
        assert line in measured
