"""AMD's assembly text to instructions: what each part of a line means, where a line comes from, and what is refused."""

import pytest

from oracles.backends.cdna.assembly import parse
from oracles.backends.cdna.ir import Integer, Line, Named, Real, Register
from oracles.backends.cdna.statistics import class_of, statistics
from oracles.verdict import Unsupported

VCC, EXEC = Register("s", 106, 2), Register("s", 126, 2)


def program(*lines: str, architecture: str = "gfx942", name: str = "k"):
    return parse("\n".join([f"{name}:", *lines, ".Lfunc_end0:"]), name, architecture)


def only(line: str):
    (instruction,) = program(line).instructions
    assert instruction.text == line
    return instruction


def v(number: int, count: int = 1) -> Register:
    return Register("v", number, count)


def s(number: int, count: int = 1) -> Register:
    return Register("s", number, count)


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        ("s_endpgm", ()),
        ("v_add_u32_e32 v1, s2, v3", (v(1), s(2), v(3))),
        ("global_load_dwordx4 v[4:7], v[2:3], off", (v(4, 4), v(2, 2), Named("off"))),
        ("v_accvgpr_read_b32 v0, a[3:3]", (v(0), Register("a", 3))),
        ("v_cmp_gt_i32_e32 vcc, 5, v6", (VCC, Integer(5), v(6))),
        ("s_mov_b64 exec, vcc", (EXEC, VCC)),
        ("s_mov_b32 vcc_hi, m0", (s(107), s(124))),
        ("s_mov_b32 exec_lo, vcc_lo", (s(126), s(106))),
        ("s_cselect_b32 s0, exec_hi, -16", (s(0), s(127), Integer(-16))),
        ("v_mov_b32_e32 v0, 0xffffff80", (v(0), Integer(0xFFFFFF80))),
        ("v_mul_f32_e32 v0, 0.15915494, v1", (v(0), Real(0.15915494), v(1))),
        ("v_mul_f32_e32 v0, -4.0, v1", (v(0), Real(-4.0), v(1))),
        ("v_mov_b32_e32 v0, src_scc", (v(0), Named("scc"))),
        ("v_mov_b32_e32 v0, src_vccz", (v(0), Named("vccz"))),
        ("v_mov_b32_e32 v0, src_execz", (v(0), Named("execz"))),
        ("s_movk_i32 s0, 0xff00", (s(0), Integer(-256))),
        ("s_cmpk_lt_i32 s0, 0x8000", (s(0), Integer(-0x8000))),
        ("s_cmpk_lt_u32 s0, 0x8000", (s(0), Integer(0x8000))),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1", (Integer(1 | 23 << 6 | 0 << 11), Integer(1))),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE), 0x2f0", (Integer(1 | 31 << 11), Integer(0x2F0))),
        ("s_getreg_b32 s2, hwreg(6, 4, 8)", (s(2), Integer(6 | 4 << 6 | 7 << 11))),
        ("v_mad_u64_u32 v[0:1], s[2:3], v4, s5, v[6:7]", (v(0, 2), s(2, 2), v(4), s(5), v(6, 2))),
        ("s_nop 7", (Integer(7),)),
    ],
)
def test_operands(line, operands) -> None:
    assert only(line).operands == operands


@pytest.mark.parametrize(
    ("line", "name", "modifiers"),
    [
        ("v_sub_u32_e64 v2, v1, 1 clamp", "v_sub_u32", {"clamp": 1}),
        ("v_add_f32_e64 v0, -v1, |v2|", "v_add_f32", {"neg": 1, "abs": 2}),
        ("v_fma_f32 v0, s1, v2, -|v3|", "v_fma_f32", {"neg": 4, "abs": 4}),
        ("v_fma_mix_f32 v0, v1, v2, neg(0)", "v_fma_mix_f32", {"neg": 4}),
        ("v_div_scale_f32 v0, s[0:1], v1, -v2, v3", "v_div_scale_f32", {"neg": 2}),
        ("v_add_co_u32_sdwa v0, vcc, v1, sext(v2) dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:WORD_1",
         "v_add_co_u32", {"sext": 2, "dst_sel": 1, "dst_unused": 1, "src0_sel": 6, "src1_sel": 5}),
        ("v_cmp_lt_i16_sdwa s[6:7], sext(v1), v2 src0_sel:BYTE_3 src1_sel:DWORD",
         "v_cmp_lt_i16", {"sext": 1, "src0_sel": 3, "src1_sel": 6}),
        ("v_cvt_f32_fp8_sdwa v0, v1 src0_sel:BYTE_2", "v_cvt_f32_fp8", {"src0_sel": 2, "dst_sel": 6, "dst_unused": 0}),
        ("v_mul_f32_e64 v0, v1, v2 mul:2", "v_mul_f32", {"mul": 2}),
        ("v_mul_f32_e64 v0, v1, v2 div:2", "v_mul_f32", {"div": 2}),
        ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel_hi:[1,0,1]", "v_pk_fma_f32", {"op_sel_hi": 5}),
        ("v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[0,1]", "v_pk_mul_f32", {"op_sel": 2, "op_sel_hi": 3}),
        ("v_pk_add_f16 v0, v1, v2 neg_lo:[1,0] neg_hi:[0,1]", "v_pk_add_f16",
         {"neg_lo": 1, "neg_hi": 2, "op_sel_hi": 3}),
        ("v_fma_mix_f32 v0, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,0,1]", "v_fma_mix_f32",
         {"op_sel": 1, "op_sel_hi": 5}),
        ("v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]", "v_cvt_pk_fp8_f32", {"op_sel": 8}),
        ("v_cvt_scalef32_pk_fp8_f32 v0, v1, v2, 1.0 op_sel:[0,0,0,1]", "v_cvt_scalef32_pk_fp8_f32", {"op_sel": 8}),
        ("v_cvt_scalef32_f32_fp8 v0, v1, v2 op_sel:[0,1]", "v_cvt_scalef32_f32_fp8", {"op_sel": 2}),
        ("v_bitop3_b32 v0, v1, v2, v3 bitop3:0xca", "v_bitop3_b32", {"bitop3": 0xCA}),
        ("global_load_dword v0, v1, s[2:3] offset:-4096 sc0 sc1 nt", "global_load_dword",
         {"offset": -4096, "sc0": 1, "sc1": 1, "nt": 1}),
        ("buffer_load_dword v0, v1, s[4:7], 0 offen offset:4095", "buffer_load_dword", {"offen": 1, "offset": 4095}),
        ("buffer_load_dword v1, s[4:7], 0 idxen lds", "buffer_load_dword", {"idxen": 1, "lds": 1}),
        ("buffer_inv sc1", "buffer_inv", {"sc1": 1}),
        ("s_load_dword s0, s[2:3], s4 offset:0x20 glc", "s_load_dword", {"offset": 32, "glc": 1}),
        ("ds_read2st64_b64 v[0:3], v4 offset0:1 offset1:255", "ds_read2st64_b64", {"offset0": 1, "offset1": 255}),
        ("s_waitcnt vmcnt(17) lgkmcnt(0)", "s_waitcnt", {"vmcnt": 17, "lgkmcnt": 0}),
    ],
)  # fmt: skip
def test_modifiers(line, name, modifiers) -> None:
    instruction = only(line)
    assert instruction.name == name
    assert instruction.modifiers == modifiers


@pytest.mark.parametrize(
    ("control", "code"),
    [
        ("quad_perm:[3,2,1,0]", 0b00_01_10_11),
        ("row_shl:1", 0x101),
        ("row_shr:15", 0x11F),
        ("row_ror:8", 0x128),
        ("row_newbcast:3", 0x153),
        ("wave_shl:1", 0x130),
        ("wave_rol:1", 0x134),
        ("wave_shr:1", 0x138),
        ("wave_ror:1", 0x13C),
        ("row_mirror", 0x140),
        ("row_half_mirror", 0x141),
        ("row_bcast:15", 0x142),
        ("row_bcast:31", 0x143),
    ],
)
def test_controls_of_dpp(control, code) -> None:
    usual = {"row_mask": 15, "bank_mask": 15, "bound_ctrl": 0}
    assert only(f"v_mov_b32_dpp v0, v1 {control}").modifiers == {"dpp": code, **usual}
    masked = only(f"v_mov_b32_dpp v0, v1 {control} row_mask:0xa bank_mask:0x5 bound_ctrl:1")
    assert masked.modifiers == {"dpp": code, "row_mask": 10, "bank_mask": 5, "bound_ctrl": 1}


@pytest.mark.parametrize(
    ("mode", "offset"),
    [
        ("swizzle(SWAP,16)", 0x1F | 16 << 10),
        ("swizzle(REVERSE,8)", 0x1F | 7 << 10),
        ("swizzle(BROADCAST,8,3)", 0x18 | 3 << 5),
        ("swizzle(QUAD_PERM,3,2,1,0)", 0x8000 | 0b00_01_10_11),
        ('swizzle(BITMASK_PERM,"01pip")', 0b00111 | 0b01000 << 5 | 0b00010 << 10),
        ("65535", 65535),
    ],
)
def test_modes_of_swizzle(mode, offset) -> None:
    assert only(f"ds_swizzle_b32 v0, v1 offset:{mode}").modifiers == {"offset": offset}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("image_load v0, v1, s[0:7]", "of no known kind"),
        ("V_ADD_U32 v0, v1, v2", "of no known kind"),
        ("v_mov_b32_e32 v0, ttmp0", "operand 'ttmp0'"),
        ("v_mov_b32_e32 v0, src_shared_base", "operand 'src_shared_base'"),
        ("v_mov_b32_e32 v0, v[3:2]", "operand 'v"),
        ("v_mov_b32_e32 v0, 1e5", "operand '1e5'"),
        ("s_add_u32 s0, s0, symbol@rel32@lo+4", "operand 'symbol"),
        ("s_getreg_b32 s0, hwreg(HW_REG_NONE)", "hardware register HW_REG_NONE"),
        ("s_sendmsg sendmsg(MSG_INTERRUPT)", "operand 'sendmsg"),
        ("v_mov_b32_e32 v0, v1 frobnicate", "modifier 'frobnicate'"),
        ("v_mov_b32_e32 v0, v1 frobnicate:1", "modifier 'frobnicate:1'"),
        ("ds_read_b32 v0, v1 offset:x", "modifier 'offset:x'"),
        ("ds_swizzle_b32 v0, v1 offset:swizzle(FFT,3)", r"modifier 'offset:swizzle\(FFT,3\)'"),
        ("ds_swizzle_b32 v0, v1 offset:swizzle(SWAP)", "modifier 'offset:swizzle"),
        ('ds_swizzle_b32 v0, v1 offset:swizzle(BITMASK_PERM,"01pi")', "modifier 'offset:swizzle"),
        ("v_mov_b32_sdwa v0, v1 src0_sel:BYTE_4", "modifier 'src0_sel:BYTE_4'"),
        ("v_mov_b32_dpp v0, v1 row_shr:16", "modifier 'row_shr:16'"),
        ("v_mov_b32_dpp v0, v1 quad_perm:[0,1,2,4]", "modifier 'quad_perm"),
        ("v_pk_add_f16 v0, v1, v2 op_sel:[1,2]", "modifier 'op_sel"),
        ("v_mov_b32_dpp v0, v1 row_mask:0xf", "control of DPP is missing"),
        ("v_mov_b32_e32 v0, v1 row_shr:1", "another encoding"),
        ("v_permlane16_swap_b32_e64 v0, v1 bound_ctrl:1", "another encoding"),
        ("v_add_f32_e64 -v0, v1, v2", "in the place of a result"),
        ("v_mov_b32_e32 v0, offen", "an operand is missing"),
        ("s_waitcnt depctr(0)", "counters"),
        ("s_waitcnt", "counters"),
        ("s_branch .LBB0_7", "leaves the kernel"),
        ("s_branch k", "leaves the kernel"),
    ],
)
def test_what_is_not_known_is_refused_with_the_line(line, reason) -> None:
    with pytest.raises(Unsupported, match=reason) as refusal:
        program(line)
    assert line in str(refusal.value)


def test_branches_name_instructions() -> None:
    found = program(
        "; %bb.0:",
        "\ts_branch .LBB0_2                      ; a comment",
        ".LBB0_1:                                ; =>This Inner Loop Header: Depth=1",
        "\ts_nop 0",
        "\t.p2align\t8",
        ".Ltmp3:",
        ".LBB0_2:",
        "\ts_cbranch_scc1 .LBB0_1",
        "\ts_endpgm",
    ).instructions
    assert [(item.number, item.name, item.target) for item in found] == [
        (0, "s_branch", 2), (1, "s_nop", None), (2, "s_cbranch_scc1", 1), (3, "s_endpgm", None)
    ]  # fmt: skip


def test_a_branch_behind_the_last_instruction_leaves_the_kernel() -> None:
    with pytest.raises(Unsupported, match="leaves the kernel"):
        program("s_branch .LBB0_1", ".LBB0_1:")


def test_only_the_kernel_that_is_asked_for() -> None:
    text = "other:\n\ts_frobnicate_b99 x\n.Lfunc_end0:\nk:  ; @k\n\ts_endpgm\n.Lfunc_end1:\n\t.section x\n\tgarbage\n"
    assert [item.name for item in parse(text, "k", "gfx950").instructions] == ["s_endpgm"]
    with pytest.raises(Unsupported, match="no complete function 'missing'"):
        parse(text, "missing", "gfx950")
    with pytest.raises(Unsupported, match="no complete function 'k'"):
        parse("k:\n\ts_endpgm\n", "k", "gfx950")


def test_other_architectures_are_refused() -> None:
    with pytest.raises(Unsupported, match="architecture 'gfx1100' is not among gfx942, gfx950"):
        program("s_endpgm", architecture="gfx1100")


def test_source_lines() -> None:
    found = program(
        '\t.file\t1 "/a b" "k;\\303\\251.py"',
        "\t.loc\t1 5 0 prologue_end              ; k;é.py:5:0",
        "\ts_nop 0",
        "\t.loc\t2 30 12 is_stmt 1              ; lib.py:30:12 @[ lib.py:20:9 @[ k;é.py:8:1 ] ]",
        "\ts_nop 1",
        "\t.loc\t1 0 9                           ; k;é.py:0:9",
        "\ts_nop 2",
        '\t.file\t2 "/lib/lib.py"',
        "\t.loc\t2 31 1",
        "\ts_nop 3",
        "\ts_nop 4",
    ).instructions
    kernel, library = "/a b/k;é.py", "/lib/lib.py"
    assert [item.line for item in found[:3]] == [
        Line(kernel, 5),
        Line(library, 30, Line(library, 20, Line(kernel, 8))),
        None,
    ]
    assert found[3].line == found[4].line == Line(library, 31)


def test_a_file_name_that_two_files_have_stays_as_the_comment_has_it() -> None:
    (found,) = program(
        '\t.file\t1 "/a" "k.py"',
        '\t.file\t2 "/b" "k.py"',
        "\t.loc\t1 5 0 ; k.py:5:0 @[ k.py:6:1 ]",
        "\ts_nop 0",
    ).instructions
    assert found.line == Line("/a/k.py", 5, Line("k.py", 6))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("v_add_u32_e32 v0, v1, v2", "VALU"),
        ("v_cmp_eq_u32_e32 vcc, v1, v2", "VALU"),
        ("v_mbcnt_lo_u32_b32 v0, -1, 0", "VALU"),
        ("v_add_u32_dpp v0, v1, v2 row_shr:1", "cross-lane"),
        ("v_permlane32_swap_b32_e32 v0, v1", "cross-lane"),
        ("v_readfirstlane_b32 s0, v1", "cross-lane"),
        ("v_writelane_b32 v0, s1, 5", "cross-lane"),
        ("ds_bpermute_b32 v0, v1, v2", "cross-lane"),
        ("ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)", "cross-lane"),
        ("ds_read_b32 v0, v1", "LDS"),
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], 0", "matrix"),
        ("v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10", "matrix"),
        ("s_load_dwordx2 s[0:1], s[2:3], 0x0", "scalar memory"),
        ("s_memtime s[0:1]", "scalar memory"),
        ("buffer_load_dword v0, v1, s[4:7], 0 offen", "buffer"),
        ("buffer_wbl2 sc1", "cache"),
        ("global_load_dword v0, v1, s[2:3]", "global"),
        ("flat_load_dword v0, v[2:3]", "flat"),
        ("scratch_store_dword off, v0, off offset:16", "scratch"),
        ("s_cbranch_execz .LBB0_1", "branch"),
        ("s_setpc_b64 s[30:31]", "branch"),
        ("s_endpgm", "branch"),
        ("s_barrier", "barrier"),
        ("s_waitcnt vmcnt(0)", "wait"),
        ("s_and_saveexec_b64 s[0:1], vcc", "SALU"),
        ("s_cmp_eq_u32 s0, 1", "SALU"),
    ],
)
def test_classes(line, kind) -> None:
    first, _ = program(line, ".LBB0_1:", "s_endpgm").instructions
    assert class_of(first) == kind


def test_addresses_and_wide_arithmetic() -> None:
    found = statistics(
        program(
            "v_lshl_add_u64 v[2:3], v[0:1], 2, s[2:3]",
            "v_add_co_u32_e32 v4, vcc, v2, v3",
            "v_addc_co_u32_e32 v5, vcc, v2, v3, vcc",
            "v_mad_u64_u32 v[6:7], s[2:3], v2, v3, v[4:5]",
            "v_ashrrev_i64 v[6:7], 3, v[4:5]",
            "v_mov_b64_e32 v[6:7], 0",
            "v_cmp_gt_u64_e32 vcc, v[0:1], v[2:3]",
            "v_add_u32_e32 v0, v1, v2",
            "global_load_dword v0, v[2:3], off",
            "global_load_dwordx2 v[0:1], v2, s[2:3]",
            "global_store_dwordx2 v[0:1], v[2:3], off",
            "global_store_dwordx2 v0, v[2:3], s[2:3]",
            "global_atomic_add v[0:1], v2, off",
            "global_atomic_add v0, v[2:3], v4, off sc0",
            "global_atomic_add v0, v1, v4, s[2:3] sc0",
            "global_atomic_cmpswap v0, v[2:3], s[2:3]",
            "flat_load_dword v0, v[2:3]",
            "buffer_load_dwordx2 v[0:1], v2, s[4:7], 0 offen",
        ).instructions
    )
    assert found.mix == {"VALU": 8, "buffer": 1, "global": 8, "flat": 1}
    assert found.instructions == 18
    assert found.lane_addresses == 5
    assert found.wide_arithmetic == 5
