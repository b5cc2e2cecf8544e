"""Floating-point arithmetic of the lanes against exact fractions, and formats against NumPy and torch."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from oracles.backends.cdna.lanes import VALUES

ALL_16 = np.arange(1 << 16, dtype=np.uint32)
FORMATS = {
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
EDGES_32 = np.array([0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x0B800000, 0x34000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001,
                     0x4F800000, 0x7E800000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)  # fmt: skip
EDGES_32 = np.concatenate([EDGES_32, EDGES_32 | 0x80000000]).view(np.float32)
EDGES_64 = np.array([0, 1, (1 << 52) - 1, 1 << 52, 1 << 57, 0x3CA0 << 48, 0x3FF0 << 48, (0x3FF0 << 48) + 1,
                     0x7FE0 << 48, (0x7FF0 << 48) - 1, 0x7FF0 << 48, 0x7FF8 << 48], np.uint64)  # fmt: skip
EDGES_64 = np.concatenate([EDGES_64, EDGES_64 | np.uint64(1 << 63)]).view(np.float64)


@pytest.fixture(autouse=True)
def _no_warnings():
    with np.errstate(all="ignore"):
        yield


def evaluate(name, *arguments):
    return VALUES[name](*arguments)


def random_floats(rng, dtype, count):
    """Any pattern, and as many close to one, where sums lose digits."""
    size = np.dtype(dtype).itemsize
    anything = rng.integers(0, 1 << 63, count, dtype=np.uint64) << np.uint64(1)
    anything = (anything >> np.uint64(64 - 8 * size)).astype(f"u{size}").view(dtype)
    return np.concatenate([anything, (rng.standard_normal(count) * 2.0 ** rng.integers(-30, 30, count)).astype(dtype)])


def nearest(exact: Fraction, digits: int, smallest: int, largest: int) -> float:
    """The nearest float of so many digits, ties to even, from integer arithmetic alone.

    ``smallest`` and ``largest`` are the powers of two of the smallest and of the largest normal number.
    """
    size = abs(exact)
    if size == 0:
        return 0.0
    power = size.numerator.bit_length() - size.denominator.bit_length()
    power -= size < Fraction(2) ** power
    unit = Fraction(2) ** (max(power, smallest) - digits + 1)
    steps, rest = divmod(size, unit)
    steps += rest * 2 > unit or (rest * 2 == unit and steps % 2)
    magnitude = math.inf if steps * unit >= Fraction(2) ** (largest + 1) else float(steps * unit)
    return -magnitude if exact < 0 else magnitude


FORMAT_OF = {np.float16: (11, -14, 15), np.float32: (24, -126, 127), np.float64: (53, -1022, 1023)}


def exact_fma(x, y, z, dtype):
    """What ``x * y + z`` is when it is rounded once. What is not finite follows the rules of 64 bits."""
    x, y, z = float(x), float(y), float(z)
    if not all(map(math.isfinite, (x, y, z))):
        product = x * y if not math.isfinite(x) or not math.isfinite(y) else 0.0
        return product + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0 and (x == 0 or y == 0):
        return math.copysign(0.0, x) * math.copysign(1.0, y) + z
    return nearest(exact, *FORMAT_OF[dtype])


def assert_same(got, expected, dtype):
    got, expected = np.asarray(got, dtype), np.asarray(expected, dtype)
    bits = f"u{got.dtype.itemsize}"
    same = (got.view(bits) == expected.view(bits)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (np.flatnonzero(~same)[:5], got[~same][:5], expected[~same][:5])


@pytest.mark.parametrize(
    ("dtype", "edges", "count"), [(np.float32, EDGES_32[::2], 1500), (np.float64, EDGES_64[::2], 1500)]
)
def test_fma_is_the_exact_sum_rounded_once(dtype, edges, count):
    rng = np.random.default_rng(5)
    x, y, z = (
        np.concatenate([part, random_floats(rng, dtype, count)])
        for part in zip(*itertools.product(edges, repeat=3), strict=True)
    )
    expected = [exact_fma(*numbers, dtype) for numbers in zip(x, y, z, strict=True)]
    assert_same(evaluate("fma", x.astype(dtype), y.astype(dtype), z.astype(dtype)), expected, dtype)


def test_fma_does_not_round_twice():
    """The product lies halfway between two floats, and the addend is lost in a sum of 64 bits but breaks the tie."""
    x = np.full(2, 1 + 2.0**-12, np.float32)
    z = np.array([2.0**-80, -(2.0**-80)], np.float32)
    got = evaluate("fma", x, x, z)
    assert got.tolist() == [1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-11]
    twice = (x.astype(np.float64) * x + z).astype(np.float32)
    assert twice[0] != got[0]


def test_fma_of_16_bits_is_the_exact_sum_rounded_once():
    rng = np.random.default_rng(6)
    patterns = [rng.integers(0, 1 << 16, 4000, dtype=np.uint32) for _ in range(3)]
    x, y, z = (evaluate("from_f16", pattern) for pattern in patterns)
    got = evaluate("to_f16", evaluate("fma_odd", x, y, z)).astype(np.uint16).view(np.float16)
    assert_same(got, [exact_fma(*numbers, np.float16) for numbers in zip(x, y, z, strict=True)], np.float16)


def test_sums_and_products_of_16_bits_may_go_through_32():
    rng = np.random.default_rng(7)
    x, y = (evaluate("from_f16", rng.integers(0, 1 << 16, 20000, dtype=np.uint32)) for _ in range(2))
    for through_32, direct in ((x + y, x.astype(np.float64) + y), (x * y, x.astype(np.float64) * y)):
        assert_same(
            evaluate("to_f16", through_32).astype(np.uint16).view(np.float16), direct.astype(np.float16), np.float16
        )


def divided(numerator, denominator, refinements):
    """The sequence of instructions that LLVM makes of a division."""
    one = np.ones_like(numerator)
    scaled_denominator, _ = evaluate("div_scale", denominator, denominator, numerator)
    scaled_numerator, back = evaluate("div_scale", numerator, denominator, numerator)
    inverse = evaluate("reciprocal", scaled_denominator)
    for _ in range(refinements):
        inverse = evaluate("fma", evaluate("fma", -scaled_denominator, inverse, one), inverse, inverse)
    quotient = scaled_numerator * inverse
    if numerator.dtype == np.float32:
        quotient = evaluate("fma", evaluate("fma", -scaled_denominator, quotient, scaled_numerator), inverse, quotient)
    error = evaluate("fma", -scaled_denominator, quotient, scaled_numerator)
    return evaluate("div_fixup", evaluate("div_fmas", error, inverse, quotient, back), denominator, numerator)


@pytest.mark.parametrize(
    ("dtype", "edges", "count", "refinements"), [(np.float32, EDGES_32, 50_000, 1), (np.float64, EDGES_64, 500, 2)]
)
def test_division_in_steps_is_a_division(dtype, edges, count, refinements):
    """Also where the quotient overflows or has fewer digits, and where a step would without scaling."""
    rng = np.random.default_rng(8)
    x, y = (
        np.concatenate([part, random_floats(rng, dtype, count)])
        for part in zip(*itertools.product(edges, repeat=2), strict=True)
    )
    x, y = x.astype(dtype), y.astype(dtype)
    tiny = (y * rng.integers(1, 1 << 10, y.size) * np.finfo(dtype).smallest_subnormal).astype(dtype)
    assert_same(divided(x, y, refinements), x / y, dtype)
    assert_same(divided(tiny, y, refinements), tiny / y, dtype)


def test_scaling_rounds_once():
    got = evaluate("scale", np.array([3.0, 1 + 2.0**-23], np.float32), np.array([-150, -127], np.int32))
    exact = (Fraction(3, 2**150), Fraction(2**23 + 1, 2**150))
    assert_same(got, [nearest(value, *FORMAT_OF[np.float32]) for value in exact], np.float32)


def test_integers_become_the_nearest_float():
    values = [0, 1, (1 << 24) + 1, (1 << 24) + 3, (1 << 32) - 1, (1 << 32) - 129, 0x80000080]
    expected = [nearest(Fraction(value), 24, -126, 127) for value in values]
    assert_same(evaluate("to_f32", np.array(values, np.uint32)), expected, np.float32)


def test_16_bit_floats_as_numpy_has_them():
    expected = ALL_16.astype(np.uint16).view(np.float16)
    numbers = evaluate("from_f16", ALL_16 | np.uint32(0xABCD0000))
    assert_same(numbers.astype(np.float16), expected, np.float16)
    assert_same(evaluate("to_f16", numbers).astype(np.uint16).view(np.float16), expected, np.float16)


def test_rounding_to_16_bits_between_all_neighbours():
    positive = ALL_16[:0x7C00].astype(np.uint16).view(np.float16).astype(np.float64)
    above = np.append(positive[1:], 65536.0)
    for part in (0.25, 0.5, 0.75):
        between = (positive + part * (above - positive)).astype(np.float32)
        with_sign = np.concatenate([between, -between])
        got = evaluate("to_f16", with_sign).astype(np.uint16).view(np.float16)
        assert_same(got, with_sign.astype(np.float16), np.float16)
        toward_zero = evaluate("to_f16_toward_zero", with_sign)
        assert (toward_zero == np.concatenate([ALL_16[:0x7C00], ALL_16[:0x7C00] | 0x8000])).all()


def test_bfloat16_as_torch_has_it():
    torch = pytest.importorskip("torch", reason="torch gives the values to compare with")
    rounding = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = ((ALL_16 << 16)[:, None] | rounding).ravel()
    numbers = torch.from_numpy(bits.view(np.float32))
    expected = numbers.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    got = evaluate("to_bf16", bits.view(np.float32))
    real = ~np.isnan(bits.view(np.float32))
    assert (got[real] == expected[real]).all()
    assert np.isnan(evaluate("from_bf16", got[~real])).all()
    assert (evaluate("from_bf16", ALL_16).view(np.uint32) == ALL_16 << 16).all()


@pytest.mark.parametrize("name", FORMATS)
def test_8_bit_floats_as_torch_has_them(name):
    torch = pytest.importorskip("torch", reason="torch gives the values to compare with")
    dtype = getattr(torch, f"float8_{name}")
    patterns = torch.arange(256, dtype=torch.uint8)
    assert_same(
        evaluate("from_fp8", np.arange(256, dtype=np.uint32), name), patterns.view(dtype).float().numpy(), np.float32
    )
    upper = (ALL_16 << 16)[:, None] | np.array([0, 1, 0x8000, 0xFFFF], np.uint32)
    numbers = upper.ravel().view(np.float32)
    expected = torch.from_numpy(numbers.copy()).to(dtype).view(torch.uint8).numpy()
    # For an overflow of float8_e4m3fn torch gives the largest number or, before 2.13, a NaN; for one of the others
    # always a NaN or infinity. What becomes of an infinity is judged below.
    clamps = name == "e4m3fn"
    got = evaluate("to_fp8", numbers, clamps, name)
    nan = np.isnan(numbers)
    infinite = clamps & np.isinf(numbers)
    beyond = clamps & (np.abs(numbers) > 448) & ~infinite
    compared = ~(nan | infinite | beyond)
    assert (got[compared] == expected[compared]).all()
    assert (got[beyond] == np.where(np.signbit(numbers[beyond]), 0xFE, 0x7E)).all()
    assert np.isnan(evaluate("from_fp8", got[nan], name)).all()


@pytest.mark.parametrize(
    ("name", "largest"), [("e4m3fnuz", 240.0), ("e5m2fnuz", 57344.0), ("e4m3fn", 448.0), ("e5m2", 57344.0)]
)
def test_an_overflow_of_8_bits_clamps_where_the_mode_says(name, largest):
    numbers = np.array([1e9, -1e9, largest, np.inf, -np.inf, np.nan], np.float32)
    clamped = evaluate("from_fp8", evaluate("to_fp8", numbers, True, name), name)
    assert clamped[:3].tolist() == [largest, -largest, largest]
    plain = evaluate("from_fp8", evaluate("to_fp8", numbers, False, name), name)
    assert plain[2] == largest
    if name == "e5m2":
        assert clamped[3:5].tolist() == plain[:2].tolist() == [np.inf, -np.inf]
    else:
        assert np.isnan(np.concatenate([clamped[3:], plain[:2]])).all()


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("reciprocal", [np.inf, -0.0, 2.0**127], [0.0, -np.inf, 0.0]),
        ("reciprocal_root", [-1.0, np.inf, 2.0**-149], [np.nan, 0.0, np.inf]),
        ("root", [-1.0, -0.0, 2.0**-149], [np.nan, -0.0, 0.0]),
        ("exp2", [-np.inf, 128.0, -127.0], [0.0, np.inf, 0.0]),
        ("log2", [0.0, -1.0, 2.0**-149], [-np.inf, np.nan, -np.inf]),
    ],
)
def test_approximations_at_their_edges_take_no_denormals(name, inputs, expected):
    assert_same(evaluate(name, np.array(inputs, np.float32)), expected, np.float32)
