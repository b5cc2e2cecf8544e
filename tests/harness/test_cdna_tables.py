"""The tables of AMD's instructions: whole, typed, and right where values are worked out by hand."""

import re
import string

import numpy as np
import pytest

from oracles.backends.cdna.ir import ARCHITECTURES, Instruction
from oracles.backends.cdna.lanes import VALUES
from oracles.backends.cdna.tables.convert import of_architecture
from oracles.backends.cdna.tables.forms import row_of
from oracles.backends.cdna.tables.memory import ACCESS, ATOMIC
from oracles.backends.cdna.tables.packed import MIXED, PACKED
from oracles.backends.cdna.tables.rows import FORMATS, IMPLICIT, TYPES, VOCABULARY, VectorRow, table
from oracles.backends.cdna.tables.scalar import SAVEEXEC, SCALAR, SCALAR_COMPARE, SCALAR_TEST, WREXEC
from oracles.backends.cdna.tables.vector import CLAMPED, VECTOR
from oracles.verdict import Unsupported

DTYPES = {"u": np.uint32, "i": np.int32, "f": np.float32, "h": np.uint32, "w": np.uint32, "p": np.uint64,
          "U": np.uint64, "I": np.int64, "F": np.float64, "m": bool, "V": bool, "O": bool}  # fmt: skip
ELSEWHERE = {
    "s_barrier", "s_branch", "s_endpgm", "s_waitcnt", "s_setreg_imm32_b32", "s_cbranch_execnz", "s_cbranch_execz",
    "s_cbranch_scc0", "s_cbranch_scc1", "s_cbranch_vccnz", "s_cbranch_vccz", "s_load_dword", "s_load_dwordx2",
    "s_load_dwordx4", "s_load_dwordx8", "ds_bpermute_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32",
    "v_readfirstlane_b32", "v_readlane_b32",
}  # fmt: skip
"""What moves control, lanes or scalar memory is no row."""

EMITTED = """
buffer_load_dword buffer_load_dwordx2 buffer_load_ushort buffer_store_byte buffer_store_dword buffer_store_dwordx2
buffer_store_short ds_read2_b64 ds_read_b32 ds_read_b96 ds_write_b32 ds_write_b64 global_load_dword
global_load_dwordx2 global_load_ubyte global_store_dword global_store_dwordx2 s_abs_i32 s_add_i32 s_add_u32 s_addc_u32
s_addk_i32 s_and_b32 s_and_b64 s_and_saveexec_b64 s_andn2_b64 s_andn2_saveexec_b64 s_ashr_i32 s_bitcmp0_b32
s_cmp_eq_u32 s_cmp_ge_i32 s_cmp_ge_u32 s_cmp_gt_i32 s_cmp_le_i32 s_cmp_lg_u32 s_cmp_lt_i32 s_cselect_b32 s_cselect_b64
s_lshl_b32 s_lshl_b64 s_lshr_b32 s_max_i32 s_mov_b32 s_mov_b64 s_movk_i32 s_mul_hi_u32 s_mul_i32 s_or_b64
s_or_saveexec_b64 s_sub_i32 s_sub_u32 s_subb_u32 s_xor_b32 s_xor_b64 v_add3_u32 v_add_co_u32 v_add_f32 v_add_lshl_u32
v_add_u32 v_addc_co_u32 v_and_b32 v_and_or_b32 v_ashrrev_i32 v_ashrrev_i64 v_bfe_u32 v_bfrev_b32 v_cmp_eq_u32
v_cmp_eq_u64 v_cmp_ge_i32 v_cmp_ge_u32 v_cmp_gt_i32 v_cmp_gt_i64 v_cmp_gt_u32 v_cmp_le_i32 v_cmp_le_u32 v_cmp_lt_i32
v_cmp_lt_i64 v_cmp_lt_u32 v_cmp_ne_u32 v_cmp_o_f32 v_cndmask_b32 v_cvt_f32_u32 v_cvt_pk_fp8_f32 v_cvt_u32_f32
v_div_fixup_f32 v_div_fmas_f32 v_div_scale_f32 v_fma_f32 v_fmac_f32 v_fmamk_f32 v_lshl_add_u32 v_lshl_add_u64
v_lshl_or_b32 v_lshlrev_b32 v_lshrrev_b32 v_mad_i64_i32 v_mad_u64_u32 v_max_i32 v_med3_f32 v_min_i32 v_mov_b32
v_mov_b64 v_mul_f32 v_mul_hi_u32 v_mul_lo_u32 v_not_b32 v_or_b32 v_pk_mov_b32 v_pk_mul_f32 v_rcp_f32 v_rcp_iflag_f32
v_sub_co_u32 v_sub_f32 v_sub_u32 v_subb_co_u32 v_subbrev_co_u32 v_subrev_co_u32 v_subrev_u32 v_trunc_f32 v_xor_b32
"""
"""What Triton 3.9 emitted for gfx942, and for gfx950 but for two, over seven kernels of vLLM and seven others."""

EMITTED_ON_GFX950 = ["v_bitop3_b32", "v_cvt_pk_bf16_f32", "v_cvt_scalef32_pk_fp8_f32"]

EMITTED_BY_OTHERS = """
buffer_store_dwordx4 buffer_load_dwordx4 buffer_load_ubyte buffer_atomic_add_f32 buffer_atomic_pk_add_bf16
ds_read2_b32 ds_read_u8 ds_read_u16 ds_write_b8 ds_write_b16 ds_write2_b32 global_atomic_add global_atomic_add_f32
global_atomic_add_f64 global_atomic_add_x2 global_atomic_and global_atomic_cmpswap global_atomic_or
global_atomic_pk_add_f16 global_atomic_pk_add_bf16 global_atomic_smax global_atomic_smax_x2 global_atomic_smin
global_atomic_swap global_atomic_umax global_atomic_umin global_atomic_xor v_add_f16 v_add_f64 v_add_u16 v_ashrrev_i16
v_cmp_class_f64 v_cmp_gt_i16 v_cvt_f16_f32 v_cvt_f32_f16 v_cvt_f32_i32 v_cvt_f32_ubyte0 v_cvt_f64_i32 v_cvt_f64_u32
v_cvt_i32_f32 v_cvt_i32_f64 v_cvt_pk_bf8_f32 v_cvt_pk_f32_fp8 v_div_fixup_f16 v_div_fixup_f64 v_div_fmas_f64
v_div_scale_f64 v_exp_f32 v_floor_f32 v_fma_f16 v_fma_f64 v_fma_mix_f32 v_fma_mixlo_f16 v_log_f32 v_lshlrev_b16
v_lshrrev_b16 v_max_f16 v_max_i16 v_max_u16 v_min_i16 v_mul_lo_u16 v_pack_b32_f16 v_pk_add_f32 v_rsq_f32 v_sin_f32
v_sqrt_f32
"""
"""What Triton 3.9 emitted for kernels on 16-bit and 8-bit numbers, 64-bit floats and atomics, as far as it is new."""


def vector_rows(architecture: str) -> dict[str, VectorRow]:
    return dict(VECTOR) | dict(of_architecture(architecture))


def named_in(expression: str) -> set[str]:
    return set(re.findall(r"\b[a-zA-Z_]\w*", re.sub(r"\{\w+\}|0x[0-9a-f]+", "", expression)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_emitted_instruction_has_a_row(architecture):
    with_rows = {
        *vector_rows(architecture),
        *PACKED,
        *MIXED,
        *ACCESS,
        *SCALAR,
        *SCALAR_COMPARE,
        *SCALAR_TEST,
        *SAVEEXEC,
    }
    emitted = {*EMITTED.split(), *EMITTED_BY_OTHERS.split(), *(EMITTED_ON_GFX950 if architecture == "gfx950" else ())}
    assert emitted - with_rows == set()
    assert ELSEWHERE & with_rows == set()


def test_expressions_use_the_vocabulary_and_lanes_has_all_of_it():
    assert set(VALUES) == {*VOCABULARY, *FORMATS}
    rows = [row for architecture in ARCHITECTURES for row in vector_rows(architecture).values()]
    expressions = [row.expression for row in (*rows, *CLAMPED.values(), *ATOMIC.values())]
    assert set().union(*map(named_in, expressions)) <= {*VOCABULARY, *FORMATS}
    used_by_scalars = [text for row in SCALAR.values() for text in (row.value, row.scc)]
    used_by_scalars += [expression for _, expression in SCALAR_TEST.values()] + [*SAVEEXEC.values(), *WREXEC.values()]
    words = {
        "t",
        "SCC",
        "E",
        "int",
        "not",
        "if",
        "else",
        "abs",
        "min",
        "max",
        "bit_count",
        "bit_length",
        "f",
        "b",
        "032b",
        "064b",
    }
    assert set().union(*map(named_in, used_by_scalars)) <= words


def test_implicit_sources_follow_the_operands():
    for architecture in ARCHITECTURES:
        for name, row in vector_rows(architecture).items():
            assert set(row.results + row.sources) <= {*TYPES, *IMPLICIT}, name
            kinds = "".join("x" if letter in IMPLICIT else "o" for letter in row.sources)
            assert re.fullmatch("o+x*", kinds), name


def test_a_table_has_a_name_once():
    with pytest.raises(ValueError, match="v_twice has two rows"):
        table("v_twice u<-u {0}\nv_twice u<-u ~{0}")


def random_source(rng: np.random.Generator, letter: str, results: str) -> np.ndarray:
    if letter == "D":
        letter = "F" if results[0] in "UIF" else "f"
    if DTYPES[letter] is bool:
        return rng.integers(0, 2, 64).astype(bool)
    size = np.dtype(DTYPES[letter]).itemsize
    return rng.integers(0, 1 << 63, 64, dtype=np.uint64).astype(f"u{size}").view(DTYPES[letter])


def evaluated(row: VectorRow, sources: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    fields = {name for _, name, _, _ in string.Formatter().parse(row.expression) if name}
    assert fields <= {str(k) for k in range(len(sources))}, row
    with np.errstate(all="ignore"):
        result = eval(row.expression.format(*(f"s[{k}]" for k in range(len(sources)))), dict(VALUES), {"s": sources})
    return result if len(row.results) == 2 else (result,)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_row_gives_its_types_on_random_lanes(architecture):
    rng = np.random.default_rng(3)
    names = [*vector_rows(architecture), *sorted(PACKED | MIXED)]
    names = [name for name in names if architecture == "gfx950" or not name.startswith(("v_bitop3", "v_cvt_pk_bf16"))]
    names = [name for name in names if architecture == "gfx950" or name not in ("v_cvt_pk_f16_f32", "v_cvt_f32_bf16")]
    for name in names:
        row = row_of(Instruction(0, name, (), {}), architecture)
        results = evaluated(row, [random_source(rng, letter, row.results) for letter in row.sources])
        for letter, result in zip(row.results, results, strict=True):
            assert (np.asarray(result).dtype, np.shape(result)) == (np.dtype(DTYPES[letter]), (64,)), name


def test_every_atomic_gives_its_type():
    rng = np.random.default_rng(3)
    for name, row in ATOMIC.items():
        sources = [random_source(rng, row.type, row.type) for _ in range(1 + row.operands)]
        (result,) = evaluated(VectorRow(row.type, row.type * len(sources), row.expression), sources)
        assert result.dtype == DTYPES[row.type], name


@pytest.mark.parametrize(
    ("name", "modifiers", "architecture", "complaint"),
    [
        ("v_mfma_f32_32x32x8_f16", {}, "gfx942", "v_mfma_f32_32x32x8_f16 is not known on gfx942"),
        ("v_bitop3_b32", {"bitop3": 1}, "gfx942", "v_bitop3_b32 is not known on gfx942"),
        ("v_cvt_scalef32_pk_fp8_f32", {}, "gfx942", "is not known on gfx942"),
        ("v_add_f32", {"mul": 2}, "gfx942", "modifier mul of v_add_f32"),
        ("v_add_u32", {"neg": 1}, "gfx942", "modifier neg of v_add_u32"),
        ("v_mul_lo_u32", {"clamp": 1}, "gfx942", "modifier clamp of v_mul_lo_u32"),
        ("v_add_u32", {"op_sel": 1}, "gfx942", "modifier op_sel of v_add_u32"),
        ("v_add_u32", {"op_sel": 8}, "gfx942", "modifier op_sel of v_add_u32"),
        ("v_or_b32", {"dst_sel": 4, "dst_unused": 1}, "gfx942", "modifier dst_sel of v_or_b32"),
        ("v_pk_add_f16", {"neg": 1}, "gfx942", "modifier neg of v_pk_add_f16"),
    ],
)
def test_what_has_no_row_is_refused(name, modifiers, architecture, complaint):
    with pytest.raises(Unsupported, match=complaint):
        row_of(Instruction(0, name, (), modifiers), architecture)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("global_load_dwordx3", ("global", "load", 3, 4, False, "", 1, 0)),
        ("buffer_load_sshort", ("buffer", "load", 1, 2, True, "", 1, 0)),
        ("global_load_short_d16_hi", ("global", "load", 1, 2, False, "high", 1, 0)),
        ("buffer_store_byte", ("buffer", "store", 1, 1, False, "", 1, 0)),
        ("ds_read_b96", ("lds", "load", 3, 4, False, "", 1, 0)),
        ("ds_read_i8", ("lds", "load", 1, 1, True, "", 1, 0)),
        ("ds_write2_b32", ("lds", "store", 1, 4, False, "", 2, 4)),
        ("ds_read2st64_b64", ("lds", "load", 2, 4, False, "", 2, 512)),
    ],
)
def test_memory_rows_worked_out_by_hand(name, expected):
    row = ACCESS[name]
    got = (row.space, row.what, row.registers, row.last_bytes, row.signed, row.half, row.elements, row.stride)
    assert got == expected


@pytest.mark.parametrize(
    ("name", "atomic", "returns"),
    [("ds_add_u32", "add", False), ("ds_max_rtn_i64", "smax_x2", True), ("ds_cmpst_rtn_b32", "cmpswap", True),
     ("ds_add_rtn_f32", "add_f32", True), ("ds_wrxchg_rtn_b32", "swap", True), ("buffer_atomic_umax", "umax", False)],
)  # fmt: skip
def test_atomics_of_every_space_share_their_arithmetic(name, atomic, returns):
    row = ACCESS[name]
    assert (row.what, row.atomic, row.returns) == ("atomic", atomic, returns)
    assert row.registers == (2 if ATOMIC[atomic].type in "UIF" else 1)
