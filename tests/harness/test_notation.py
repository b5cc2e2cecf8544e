"""Elements are written as the numbers that they are, and no two patterns look alike."""

import numpy as np
import pytest

from oracles.arrays import DTYPES
from oracles.notation import bits, listed, plain, with_bits
from reference.floats import FORMATS

NARROW = [name for name, form in FORMATS.items() if form.width <= 16]


@pytest.mark.parametrize("dtype", NARROW)
def test_every_pattern_is_the_number_that_the_format_defines(dtype):
    form = FORMATS[dtype]
    patterns = np.arange(1 << form.width).astype(form.storage)
    texts = [plain(dtype, held) for held in patterns.view(DTYPES[dtype])]
    assert len(set(texts)) == len(texts)
    for text, number, pattern in zip(texts, form.decode(patterns).tolist(), patterns.tolist(), strict=True):
        wanted = f"nan (0x{pattern:0{form.width // 4}x})" if number != number else repr(number)
        assert text == wanted


@pytest.mark.parametrize(
    ("dtype", "element", "alone", "compared"),
    [
        ("bfloat16", np.uint16(0xBDF6), "-0.1201171875", "-0.1201171875 (0xbdf6)"),
        ("bfloat16", np.uint16(0x8000), "-0.0", "-0.0 (0x8000)"),
        ("bfloat16", np.uint16(0x7FC1), "nan (0x7fc1)", "nan (0x7fc1)"),
        ("float16", np.float16(0.5), "0.5", "0.5 (0x3800)"),
        ("float16", np.uint16(0x7E01).view(np.float16), "nan (0x7e01)", "nan (0x7e01)"),
        ("float32", np.float32(-0.0), "-0.0", "-0.0 (0x80000000)"),
        ("float64", np.float64("inf"), "inf", "inf (0x7ff0000000000000)"),
        ("float8_e4m3fn", np.uint8(0x7E), "448.0", "448.0 (0x7e)"),
        ("float8_e4m3fnuz", np.uint8(0x80), "nan (0x80)", "nan (0x80)"),
        ("uint8", np.uint8(0x80), "128", "128"),
        ("int64", np.int64(-1), "-1", "-1"),
        ("bool", np.bool_(True), "True", "True"),
        ("int", 5, "5", "5"),
        ("None", 5, "5", "5"),
    ],
)
def test_an_element(dtype, element, alone, compared):
    assert plain(dtype, element) == alone
    assert with_bits(dtype, element) == compared


def test_an_element_that_was_sent_by_its_bits_reads_the_same():
    for dtype, element in (("float32", np.float32(0.1)), ("float16", np.float16(-3)), ("float64", np.float64(1e-300))):
        assert with_bits(dtype, bits(element)) == with_bits(dtype, element)


def test_arrays_have_brackets_and_end_where_the_reader_does():
    data = np.array([[0x3F80, 0x8000], [0x7FC0, 0x0000]], np.uint16)
    assert listed("bfloat16", data) == "[[1.0, -0.0], [nan (0x7fc0), 0.0]]"
    assert listed("bfloat16", data, 12) == "[[1.0, -0..."
    assert listed("int32", np.zeros((2, 0), np.int32)) == "[[], []]"
    assert listed("int32", np.array(7)) == "7"
    large = listed("int8", np.zeros(1 << 16, np.int8), 300)
    assert len(large) == 300
    assert large.endswith("...")
