"""Got against expected: dtypes by their names, floats as numbers, and the lines around the first difference."""

import numpy as np
import pytest

from oracles.arrays import array
from oracles.differences import Returned, difference

BFLOAT16 = array([[0x3F80, 0x0000]], "bfloat16")


def returned(dtype, values, poison=None):
    data = np.asarray(values)
    return Returned(dtype, list(data.shape), data.ravel().tolist(), poison)


def test_equal_outputs():
    assert difference("y", BFLOAT16, returned("bfloat16", [[0x3F80, 0]])) == ["  y: as expected"]
    assert difference("total", 5, returned("int", 5)) == ["  total: as expected"]


@pytest.mark.parametrize(
    ("expected", "got", "line"),
    [
        (BFLOAT16, returned("float64", [[1.0, 0.0]]), "  y: float64[1, 2], expected bfloat16[1, 2]"),
        (BFLOAT16, returned("bfloat16", [0x3F80, 0]), "  y: bfloat16[2], expected bfloat16[1, 2]"),
        (np.zeros(1, np.int32), returned("int", 0), "  y: int, expected int32[1]"),
        (5, returned("int64", 5), "  y: int64[], expected int"),
    ],
)
def test_another_dtype_or_shape_is_named(expected, got, line):
    assert difference("y", expected, got) == [line]


def test_too_many_elements_are_said_to_be():
    large = Returned("int32", [30_000], None)
    assert difference("y", np.zeros(30_000, np.int32), large) == ["  y: int32[30000], too large to be shown here"]


def test_zeros_of_another_sign_differ_and_a_nan_is_not_another():
    """Bits are compared, as the judge does."""
    got = returned("bfloat16", [[0x3F80, 0x8000]])
    assert difference("y", BFLOAT16, got) == [
        "  y: 1 of 2 elements differ, first at y[0, 1]",
        "         row  got                         expected",
        "           0  [1.0, -0.0]                 [1.0, 0.0] <-- first difference",
    ]
    nan = np.array([np.nan], np.float32)
    assert difference("y", nan, returned("float32", [0x7FC00000])) == ["  y: as expected"]
    line = difference("y", nan, returned("float32", [0x7FC00001]))[-1]
    assert line.split() == ["0", "nan", "(0x7fc00001)", "nan", "(0x7fc00000)", "<--", "first", "difference"]


def test_elements_of_a_list_have_their_bits():
    got = returned("float8_e4m3fn", [0x38, 0x39, 0x3A])
    assert difference("y", array([0x38, 0x38, 0x3A], "float8_e4m3fn"), got)[2:] == [
        "           0  1.0 (0x38)                  1.0 (0x38)",
        "           1  1.125 (0x39)                1.0 (0x38) <-- first difference",
        "           2  1.25 (0x3a)                 1.25 (0x3a)",
    ]


def test_of_wide_rows_the_elements_around_the_difference_are_shown():
    wanted = np.arange(2 * 40, dtype=np.int32).reshape(2, 40)
    got = wanted.copy()
    got[1, 30:] = 0
    assert difference("y", wanted, returned("int32", got)) == [
        "  y: 10 of 80 elements differ, first at y[1, 30]",
        "     element  got                         expected",
        *[f"     [1, {n}]  {n + 40}                          {n + 40}" for n in range(26, 30)],
        "     [1, 30]  0                           70 <-- first difference",
        *[f"     [1, {n}]  0                           {n + 40}" for n in range(31, 35)],
    ]


def test_what_was_never_written_is_said_of_floats_too():
    poison = 0x7FA7
    lines = difference("y", BFLOAT16, returned("bfloat16", [[0x3F80, poison]], poison))
    assert "  [1.0, (unwritten)]  " in lines[-1]
    assert lines[-1].endswith("[1.0, 0.0] <-- first difference")


def test_a_single_value():
    assert difference("total", 5, returned("int", 6)) == [
        "  total: 1 of 1 elements differ, first at total",
        "    got 6, expected 5",
    ]
