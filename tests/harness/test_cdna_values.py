"""What AMD's instructions give, worked out by hand: one or more of every family of rows."""

import struct

import numpy as np
import pytest

from oracles.backends.cdna.assembly import instruction
from oracles.backends.cdna.ir import ARCHITECTURES, Instruction
from oracles.backends.cdna.lanes import VALUES
from oracles.backends.cdna.tables.forms import row_of
from oracles.backends.cdna.tables.memory import ATOMIC
from oracles.backends.cdna.tables.rows import VectorRow
from oracles.backends.cdna.tables.vector import VECTOR

DTYPES = {"u": np.uint32, "i": np.int32, "f": np.float32, "h": np.uint32, "w": np.uint32, "p": np.uint64,
          "U": np.uint64, "I": np.int64, "F": np.float64, "m": bool, "V": bool, "O": bool}  # fmt: skip


def evaluated(row: VectorRow, sources: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        result = eval(row.expression.format(*(f"s[{k}]" for k in range(len(sources)))), dict(VALUES), {"s": sources})
    return result if len(row.results) == 2 else (result,)


def f32(number: float) -> int:
    return struct.unpack("<I", struct.pack("<f", number))[0]


def pairs(low: float, high: float) -> int:
    return f32(low) | f32(high) << 32


SDWA = "dst_sel:DWORD dst_unused:UNUSED_PAD"
ONE, MINUS_TWO, THREE_HALVES = 0x3C00, 0xC000, 0x3E00
"""1, -2 and 1.5 as 16-bit floats."""

BY_HAND = [
    # name and modifiers as assembly text, patterns of the sources, pattern of the result
    ("v_ffbh_u32_e32 v0, v1", [1], 31),
    ("v_ffbh_u32_e32 v0, v1", [0], 0xFFFFFFFF),
    ("v_ffbl_b32_e32 v0, v1", [0x18], 3),
    ("v_bfrev_b32_e32 v0, v1", [0x00000001], 0x80000000),
    ("v_bfe_i32 v0, v1, v2, v3", [0xABCD, 4, 8], 0xFFFFFFBC),
    ("v_perm_b32 v0, v1, v2, v3", [0x87654321, 0xFEDCBA98, 0x0C0B0704], 0x00FF8721),
    ("v_perm_b32 v0, v1, v2, v3", [0, 0x80007F00, 0x0D080900], 0xFF00FF00),
    ("v_alignbit_b32 v0, v1, v2, 8", [0x11, 0x22334455, 8], 0x11223344),
    ("v_sad_u32 v0, v1, v2, v3", [5, 9, 100], 104),
    ("v_bitop3_b32 v0, v1, v2, v3 bitop3:0xec", [0b1100, 0b1010, 0b0110], 0b1110),
    ("v_bitop3_b16 v0, v1, v2, v3 bitop3:0x96", [0x1100, 0x1010, 0x0110, 0xABCD0000], 0xABCD0000),
    ("v_add_co_u32_e32 v0, vcc, v1, v2", [0xFFFFFFFF, 2], (1, True)),
    ("v_subb_co_u32_e32 v0, vcc, v1, v2, vcc", [5, 5, True], (0xFFFFFFFF, True)),
    ("v_mad_u64_u32 v[0:1], s[0:1], v2, v3, v[4:5]", [0xFFFFFFFF, 0xFFFFFFFF, (1 << 64) - 1],
     (0xFFFFFFFE00000000, True)),
    ("v_mad_i64_i32 v[0:1], s[0:1], v2, v3, v[4:5]", [0xFFFFFFFF, 2, 1], ((1 << 64) - 1, True)),
    ("v_mul_hi_u32 v0, v1, v2", [0x80000000, 6], 3),
    ("v_sub_u32_e64 v0, v1, 1 clamp", [0, 1], 0),
    ("v_add_u32_e64 v0, v1, v2 clamp", [0xFFFFFFFF, 2], 0xFFFFFFFF),
    ("v_add_u16_e64 v0, v1, v2 clamp", [0xABCDFFFF, 2], 0xFFFF),
    ("v_sub_u16_e64 v0, v1, v2 clamp", [5, 0xABCD0007], 0),
    ("v_subrev_u16_e64 v0, v1, v2 clamp", [5, 0xABCD0007], 2),
    ("v_mad_u16 v0, v1, v2, v3 clamp", [0xFFFF, 0xFFFF, 0xFFFF, 0xABCD0000], 0xABCDFFFF),
    ("v_pk_sub_u16 v0, v1, v2 clamp", [0x00080001, 0x00050002], 0x00030000),
    ("v_pk_add_u16 v0, v1, v2 clamp", [0xFFFF0001, 0x00020002], 0xFFFF0003),
    ("v_pk_add_i16 v0, v1, v2 clamp", [0x80007FFF, 0xFFFF0001], 0x80007FFF),
    ("v_pk_sub_i16 v0, v1, v2 clamp", [0x80000005, 0x00010007], 0x8000FFFE),
    ("v_pk_mad_i16 v0, v1, v2, v3 clamp", [0x7FFF0002, 0x7FFF0003, 0x00010004], 0x7FFF000A),
    ("v_cmp_lt_i32_e32 vcc, v0, v1", [0xFFFFFFFF, 0], True),
    ("v_cmp_nge_f32_e32 vcc, v0, v1", [0x7FC00000, 0], True),
    ("v_cmp_class_f32_e64 s[0:1], v0, v1", [0x7F800001, 0b01], True),
    ("v_cmp_class_f32_e64 s[0:1], v0, v1", [0x80000000, 0b100000], True),
    ("v_cmp_class_f32_e64 s[0:1], v0, v1", [f32(-1.0), 0b1000], True),
    # parts of registers
    (f"v_add_u32_sdwa v0, v1, sext(v2) {SDWA} src0_sel:DWORD src1_sel:BYTE_0", [5, 0x80], 0xFFFFFF85),
    (f"v_cvt_f32_i32_sdwa v0, sext(v1) {SDWA} src0_sel:BYTE_1", [0xFE00], f32(-2.0)),
    (f"v_cvt_f32_f16_sdwa v0, v1 {SDWA} src0_sel:WORD_1", [MINUS_TWO << 16 | ONE], f32(-2.0)),
    ("v_cmp_gt_i16_sdwa s[0:1], v0, sext(v1) src0_sel:DWORD src1_sel:BYTE_0", [0xABCD0000, 0xFF], True),
    ("v_lshrrev_b32_sdwa v0, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
     [4, 0xABCDE], 0xABCD0000),
    ("v_or_b32_sdwa v0, v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD",
     [1, 2, 0x99999999], 0x99990399),
    ("v_cndmask_b32_e64 v0, -v1, |v2|, vcc", [f32(3.0), f32(-4.0), True], f32(4.0)),
    ("v_cndmask_b32_e64 v0, -v1, |v2|, vcc", [f32(3.0), f32(-4.0), False], f32(-3.0)),
    # floats
    ("v_add_f32_e64 v0, -v1, |v2|", [f32(1.0), f32(-0.5)], f32(-0.5)),
    ("v_add_f32_e64 v0, v1, v2 clamp", [f32(1.0), f32(2.0)], f32(1.0)),
    ("v_mul_f32_e64 v0, v1, v2 clamp", [f32(-1.0), f32(2.0)], 0),
    ("v_fmac_f32_e32 v0, v1, v2", [f32(2.0), f32(3.0), f32(1.0)], f32(7.0)),
    ("v_med3_f32 v0, v1, v2, v3", [f32(5.0), f32(-1.0), f32(2.0)], f32(2.0)),
    ("v_med3_f32 v0, v1, v2, v3", [0x7FC00000, f32(-1.0), f32(2.0)], f32(-1.0)),
    ("v_min_f32_e32 v0, v1, v2", [0, 0x80000000], 0x80000000),
    ("v_max_f32_e32 v0, v1, v2", [0x7FC00000, f32(1.0)], f32(1.0)),
    ("v_fract_f32_e32 v0, v1", [f32(-0.25)], f32(0.75)),
    ("v_fract_f32_e32 v0, v1", [f32(-1e-10)], 0x3F7FFFFF),
    ("v_rcp_f32_e32 v0, v1", [f32(4.0)], f32(0.25)),
    ("v_rcp_f32_e32 v0, v1", [0x00400000], 0x7F800000),
    ("v_rsq_f32_e32 v0, v1", [f32(16.0)], f32(0.25)),
    ("v_sqrt_f32_e32 v0, v1", [f32(2.25)], f32(1.5)),
    ("v_exp_f32_e32 v0, v1", [f32(-3.0)], f32(0.125)),
    ("v_log_f32_e32 v0, v1", [f32(32.0)], f32(5.0)),
    ("v_sin_f32_e32 v0, v1", [f32(0.25)], f32(1.0)),
    ("v_cos_f32_e32 v0, v1", [f32(7.5)], f32(-1.0)),
    ("v_ldexp_f32 v0, v1, v2", [f32(3.0), 0xFFFFFFFF], f32(1.5)),
    ("v_frexp_exp_i32_f32_e32 v0, v1", [f32(8.0)], 4),
    ("v_frexp_mant_f32_e32 v0, v1", [f32(8.0)], f32(0.5)),
    ("v_rndne_f32_e32 v0, v1", [f32(2.5)], f32(2.0)),
    # conversions
    ("v_cvt_u32_f32_e32 v0, v1", [f32(-3.5)], 0),
    ("v_cvt_u32_f32_e32 v0, v1", [f32(1e20)], 0xFFFFFFFF),
    ("v_cvt_u32_f32_e32 v0, v1", [0x7FC00000], 0),
    ("v_cvt_i32_f32_e32 v0, v1", [f32(-3.5)], 0xFFFFFFFD),
    ("v_cvt_i32_f32_e32 v0, v1", [0xFF800000], 0x80000000),
    ("v_cvt_f32_ubyte2_e32 v0, v1", [0x00C80000], f32(200.0)),
    ("v_cvt_pk_i16_i32 v0, v1, v2", [0xFFFF0000, 0x12345], 0x7FFF8000),
    ("v_cvt_pkrtz_f16_f32 v0, v1, v2", [f32(1.9999), f32(-1e9)], 0xFBFF3FFF),
    ("v_cvt_f16_f32_e32 v0, v1", [f32(1e6), False], 0x7C00),
    ("v_cvt_f16_f32_e32 v0, v1", [f32(1e6), True], 0x7BFF),
    ("v_cvt_f16_f32_e32 v0, v1", [0x7F800000, True], 0x7C00),
    # halves
    ("v_add_f16_e32 v0, v1, v2", [ONE, MINUS_TWO, False], 0xBC00),
    ("v_add_f16_e64 v0, -v1, |v2|", [ONE, MINUS_TWO, False], ONE),
    ("v_add_f16_e64 v0, v1, v2 clamp", [ONE, ONE, False], ONE),
    ("v_fma_f16 v0, v1, v2, v3", [MINUS_TWO, ONE, ONE, False, 0xABCD1234], 0xABCDBC00),
    ("v_fma_f16 v0, v1, v2, v3 op_sel:[1,0,0,1]", [MINUS_TWO << 16, ONE, ONE, False, 0xABCD1234], 0xBC001234),
    ("v_mul_lo_u16_e32 v0, v1, v2", [0xFFFF0101, 0x100], 0x100),
    ("v_ashrrev_i16_e32 v0, v1, v2", [2, 0x8000], 0xE000),
    ("v_pack_b32_f16 v0, v1, v2 op_sel:[1,0,0]", [ONE << 16, MINUS_TWO], MINUS_TWO << 16 | ONE),
    # both halves, and mixtures
    ("v_pk_add_u16 v0, v1, v2", [0xFFFF0001, 0x00020003], 0x00010004),
    ("v_pk_add_f16 v0, v1, v2", [MINUS_TWO << 16 | ONE, ONE << 16 | ONE, False], 0xBC004000),
    ("v_pk_add_f16 v0, v1, v2 op_sel_hi:[1,0] neg_lo:[0,1]", [MINUS_TWO << 16 | ONE, ONE, False], 0xBC000000),
    ("v_pk_mul_f32 v[0:1], v[2:3], v[4:5]", [pairs(2.0, 3.0), pairs(5.0, 7.0)], pairs(10.0, 21.0)),
    ("v_pk_mul_f32 v[0:1], v[2:3], s[0:1] op_sel_hi:[1,0]", [pairs(2.0, 3.0), pairs(5.0, 7.0)], pairs(10.0, 15.0)),
    ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] neg_hi:[0,0,1]",
     [pairs(2.0, 3.0), pairs(5.0, 7.0), pairs(1.0, 1.0)], pairs(11.0, 20.0)),
    ("v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]", [0x2222222211111111, 0x4444444433333333], 0x3333333322222222),
    ("v_fma_mix_f32 v0, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]",
     [MINUS_TWO << 16, THREE_HALVES, f32(1.0)], f32(-2.0)),
    ("v_fma_mix_f32 v0, -v1, |v2|, v3 op_sel_hi:[0,1,0]", [f32(2.0), MINUS_TWO, f32(1.0)], f32(-3.0)),
    ("v_fma_mixlo_f16 v0, v1, v2, v3 op_sel_hi:[1,1,0]", [ONE, ONE, f32(1.0), False, 0xABCD1234], 0xABCD4000),
    ("v_fma_mixhi_f16 v0, v1, v2, v3 op_sel_hi:[1,1,0]", [ONE, ONE, f32(1.0), False, 0xABCD1234], 0x40001234),
    # 8 bits
    ("v_cvt_pk_fp8_f32 v0, v1, v2", [f32(1.0), f32(-2.0), False, 0xABCD1234], 0xABCDC038),
    ("v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]", [f32(1.0), f32(-2.0), False, 0xABCD1234], 0xC0381234),
    ("v_cvt_pk_f32_bf8_e32 v[0:1], v2", [0xC43C], pairs(1.0, -4.0)),
    ("v_cvt_scalef32_pk_fp8_f32 v0, v1, v2, 2.0 op_sel:[0,0,0,1]",
     [f32(2.0), f32(-4.0), f32(2.0), False, 0x1234], 0xC0381234),
    ("v_cvt_scalef32_pk_f32_fp8 v[0:1], v2, 4.0 op_sel:[1,0,0]", [0xC0380000, f32(4.0)], pairs(4.0, -8.0)),
    ("v_cvt_scalef32_pk_bf16_fp8 v0, v1, 1.0", [0xC038, f32(1.0)], 0xC0003F80),
    ("v_cvt_scalef32_pk_f16_bf8 v0, v1, 1.0", [0xC43C, f32(1.0), False], 0xC4003C00),
]  # fmt: skip


def as_typed(letter: str, pattern: int, results: str) -> np.ndarray:
    if letter == "D":
        letter = "F" if results[0] in "UIF" else "f"
    dtype = np.dtype(DTYPES[letter])
    return np.array([pattern], bool if letter in "mVO" else f"u{dtype.itemsize}").view(dtype)


@pytest.mark.parametrize(("text", "sources", "expected"), BY_HAND)
def test_values_worked_out_by_hand(text, sources, expected):
    row = row_of(instruction(text, 0)[0], "gfx950")
    values = [as_typed(letter, pattern, row.results) for letter, pattern in zip(row.sources, sources, strict=True)]
    results = evaluated(row, values)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for letter, result, pattern in zip(row.results, results, wanted, strict=True):
        assert np.asarray(result).view(as_typed(letter, 0, "u").dtype) == as_typed(letter, pattern, "u"), result


def test_8_bit_floats_are_those_of_the_architecture():
    one, row = np.array([1.0], np.float32), {}
    for architecture in ARCHITECTURES:
        row = row_of(Instruction(0, "v_cvt_pk_fp8_f32", ()), architecture)
        (result,) = evaluated(row, [one, one, np.array([False]), np.zeros(1, np.float32)])
        assert int(result[0]) == {"gfx942": 0x4040, "gfx950": 0x3838}[architecture]


def test_lanes_below_are_counted():
    low, high = (row_of(Instruction(0, f"v_mbcnt_{half}_u32_b32", ()), "gfx942") for half in ("lo", "hi"))
    ones = np.full(64, 0xFFFFFFFF, np.uint32)
    (below,) = evaluated(low, [ones, np.full(64, 100, np.uint32)])
    assert evaluated(high, [ones, below])[0].tolist() == [100 + lane for lane in range(64)]


@pytest.mark.parametrize(
    ("name", "old", "operands", "expected"),
    [
        ("add", 0xFFFFFFFF, [2], 1),
        ("smin", 1, [0xFFFFFFFF], 0xFFFFFFFF),
        ("umin", 1, [0xFFFFFFFF], 1),
        ("smax_x2", 1, [1 << 63], 1),
        ("cmpswap", 5, [7, 5], 7),
        ("cmpswap", 5, [7, 6], 5),
        ("inc", 3, [3], 0),
        ("dec", 0, [3], 3),
        ("add_f32", f32(1.5), [f32(-0.5)], f32(1.0)),
        ("max_f32", f32(1.5), [0x7FC00000], f32(1.5)),
        ("pk_add_f16", MINUS_TWO << 16 | ONE, [ONE << 16 | ONE], 0xBC004000),
        ("pk_add_bf16", 0x3F80C000, [0x3F803F80], 0x4000BF80),
    ],
)
def test_atomics_worked_out_by_hand(name, old, operands, expected):
    row = ATOMIC[name]
    values = [as_typed(row.type, pattern, "u") for pattern in (old, *operands)]
    (result,) = evaluated(VectorRow(row.type, row.type * len(values), row.expression), values)
    assert result.view(as_typed(row.type, 0, "u").dtype) == as_typed(row.type, expected, "u")


ENCODED = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}


def encoded(number: float, width: str) -> int:
    to_bytes, from_bytes = ENCODED[width]
    return struct.unpack(from_bytes, struct.pack(to_bytes, number))[0]


def on_numbers(name: str, width: str, numbers: list[float]) -> np.ndarray:
    """What a row of the width gives; whole numbers stand for operands that are no floats."""
    row = row_of(Instruction(0, name, ()), "gfx942")
    letters = zip(row.sources, [*numbers, *[0] * (len(row.sources) - len(numbers))], strict=True)
    sources = [
        as_typed(letter, encoded(number, width) if isinstance(number, float) else number & 0xFFFFFFFF, row.results)
        for letter, number in letters
    ]
    return evaluated(row, sources)[0]


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("add", [1.5, -0.25], 1.25),
        ("sub", [1.5, -0.25], 1.75),
        ("subrev", [1.5, -0.25], -1.75),
        ("mul", [1.5, -0.25], -0.375),
        ("fma", [1.5, -0.25, 2.0], 1.625),
        ("fmaak", [1.5, -0.25, 2.0], 1.625),
        ("fmamk", [1.5, -0.25, 2.0], 1.625),
        ("min", [1.5, -0.25], -0.25),
        ("max", [1.5, -0.25], 1.5),
        ("min3", [1.5, -0.25, -3.0], -3.0),
        ("max3", [1.5, -0.25, 3.0], 3.0),
        ("med3", [1.5, -0.25, 3.0], 1.5),
        ("floor", [-1.5], -2.0),
        ("ceil", [-1.5], -1.0),
        ("trunc", [-1.5], -1.0),
        ("rndne", [-1.5], -2.0),
        ("rcp", [-8.0], -0.125),
        ("rcp_iflag", [-8.0], -0.125),
        ("rsq", [0.25], 2.0),
        ("sqrt", [0.25], 0.5),
        ("exp", [3.0], 8.0),
        ("log", [8.0], 3.0),
        ("sin", [0.75], -1.0),
        ("cos", [0.5], -1.0),
        ("ldexp", [-3.0, -2], -0.75),
        ("frexp_mant", [-3.0], -0.75),
        ("div_fixup", [3.0, -2.0, 6.0], -3.0),
        ("div_fixup", [3.0, 0.0, -6.0], -np.inf),
    ],
)
def test_floats_of_every_width_that_has_the_operation(name, numbers, expected):
    found = [width for width in ENCODED if f"v_{name}_{width}" in VECTOR]
    assert found
    for width in found:
        result = on_numbers(f"v_{name}_{width}", width, numbers)
        assert int(result.view(f"u{result.dtype.itemsize}")[0]) == encoded(expected, width), width


@pytest.mark.parametrize(
    ("relation", "holds"),  # of less, equal, greater and unordered numbers
    [
        ("lt", "1000"), ("eq", "0100"), ("le", "1100"), ("gt", "0010"), ("lg", "1010"), ("ge", "0110"), ("o", "1110"),
        ("u", "0001"), ("nge", "1001"), ("nlg", "0101"), ("ngt", "1101"), ("nle", "0011"), ("neq", "1011"),
        ("nlt", "0111"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("width", ENCODED)
def test_comparisons_of_floats(relation, holds, width):
    pairs_of_numbers = [(1.0, 2.0), (0.0, -0.0), (2.0, 1.0), (float("nan"), 1.0)]
    got = [on_numbers(f"v_cmp_{relation}_{width}", width, list(pair)) for pair in pairs_of_numbers]
    assert "".join(str(int(result[0])) for result in got) == holds


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("v_cvt_f64_f32", f32(0.1), encoded(float(np.float32(0.1)), "f64")),
        ("v_cvt_f32_f64", encoded(0.1, "f64"), f32(0.1)),
        ("v_cvt_f64_i32", 0xFFFFFFFE, encoded(-2.0, "f64")),
        ("v_cvt_f64_u32", 0xFFFFFFFE, encoded(4294967294.0, "f64")),
        ("v_cvt_i32_f64", encoded(-2.9, "f64"), 0xFFFFFFFE),
        ("v_cvt_u32_f64", encoded(1e10, "f64"), 0xFFFFFFFF),
        ("v_cvt_f32_ubyte0", 0x44332211, f32(0x11)),
        ("v_cvt_f32_ubyte1", 0x44332211, f32(0x22)),
        ("v_cvt_f32_ubyte3", 0x44332211, f32(0x44)),
        ("v_cvt_flr_i32_f32", f32(-1.5), 0xFFFFFFFE),
        ("v_cvt_rpi_i32_f32", f32(-1.5), 0xFFFFFFFF),
        ("v_cvt_f16_i16", 0x0000FFFE, MINUS_TWO),
        ("v_cvt_f16_u16", 0xABCD0001, ONE),
        ("v_cvt_i16_f16", MINUS_TWO, 0xFFFE),
        ("v_cvt_u16_f16", 0x7C00, 0xFFFF),
        ("v_frexp_exp_i16_f16", 0x3400, 0xFFFF),
        ("v_frexp_exp_i32_f64", encoded(0.25, "f64"), 0xFFFFFFFF),
    ],
)
def test_conversions_of_one_number(name, pattern, expected):
    row = row_of(Instruction(0, name, ()), "gfx942")
    sources = [as_typed(letter, pattern if place == 0 else 0, "u") for place, letter in enumerate(row.sources)]
    (result,) = evaluated(row, sources)
    assert int(result.view(f"u{result.dtype.itemsize}")[0]) == expected
