"""The machine for gfx942 and gfx950: what lanes, waves and workgroups do, in any order."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from oracles.backends.cdna.reports import failures
from oracles.backends.cdna.schedule import ORDERS
from oracles.verdict import BarrierDivergence, Hang, Unsupported

PROGRAMS = runpy.run_path(str(Path(__file__).with_name("cdna_programs.py")))

HEAD = """
    s_load_dwordx2 s[6:7], s[0:1], 0x0
    s_load_dwordx2 s[8:9], s[0:1], 0x8
    v_lshlrev_b32_e32 v1, 2, v0
"""
"""Two pointers in s[6:7] and s[8:9], and the thread's offset in a table of 32-bit numbers in v1."""


@pytest.fixture
def bench():
    return PROGRAMS["Bench"]()


def result_of(bench, body, *, lanes=64, **options):
    """What the program left in a table that started with -1, and its record without reports."""
    out = bench.tensor(np.full(lanes, -1), "out")
    record = bench.run(HEAD + body, out, **options)
    assert record.reports == []
    return out.numpy()


def test_lanes_that_are_off_keep_their_registers_and_do_not_store(bench):
    got = result_of(
        bench,
        """
        v_mov_b32_e32 v2, 7
        v_cmp_gt_u32_e32 vcc, 10, v0
        s_and_saveexec_b64 s[10:11], vcc
        v_add_u32_e32 v2, v2, v0
        s_mov_b64 exec, s[10:11]
        v_cmp_gt_u32_e32 vcc, 20, v0
        s_and_b64 exec, exec, vcc
        global_store_dword v1, v2, s[6:7]
        """,
    )
    lanes = np.arange(64)
    assert np.array_equal(got, np.where(lanes < 10, 7 + lanes, np.where(lanes < 20, 7, -1)))


def test_compares_write_zero_for_lanes_that_are_off(bench):
    got = result_of(
        bench,
        """
        s_mov_b64 exec, 0xf0
        v_cmp_le_u32_e64 s[12:13], 0, v0
        s_mov_b64 exec, -1
        v_mov_b32_e32 v2, s12
        v_mov_b32_e32 v3, s13
        v_cndmask_b32_e64 v2, v3, v2, s[12:13]
        global_store_dword v1, v2, s[6:7]
        """,
    )
    assert np.array_equal(got, np.where((np.arange(64) >= 4) & (np.arange(64) < 8), 0xF0, 0))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("s_mov_b64 exec, 0\nv_readfirstlane_b32 s12, v0\ns_mov_b64 exec, -1", 0),
        ("s_mov_b64 exec, 0xf0\nv_readfirstlane_b32 s12, v0\ns_mov_b64 exec, -1", 4),
        ("s_mov_b64 exec, 0xf0\nv_readlane_b32 s12, v0, 33\ns_mov_b64 exec, -1", 33),
        ("s_mov_b32 s13, 0x80000001\ns_add_i32 s12, s13, s13\ns_cselect_b32 s12, 5, 6", 5),
        ("s_mov_b32 s13, -1\ns_add_u32 s12, s13, 2\ns_addc_u32 s12, 0, 0", 1),
        ("s_movk_i32 s12, 0xfffe\ns_addk_i32 s12, 5", 3),
    ],
)
def test_scalar_results(bench, program, expected):
    got = result_of(bench, f"{program}\nv_mov_b32_e32 v2, s12\nglobal_store_dword v1, v2, s[6:7]\n")
    assert set(got.tolist()) == {expected}


def test_a_lane_can_be_written_that_is_off(bench):
    got = result_of(
        bench,
        """
        v_mov_b32_e32 v2, 1
        s_mov_b64 exec, 1
        v_writelane_b32 v2, 9, 5
        s_mov_b64 exec, -1
        global_store_dword v1, v2, s[6:7]
        """,
    )
    assert np.array_equal(got, np.where(np.arange(64) == 5, 9, 1))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("v_add_u32_dpp v2, v0, v2 row_shr:1 row_mask:0xf bank_mask:0xf", lambda n: np.where(n % 16, 99 + n, 100)),
        (
            "v_mov_b32_dpp v2, v0 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1",
            lambda n: np.where(n % 16, n - 1, 0),
        ),
        (
            "v_mov_b32_dpp v2, v0 row_bcast:15 row_mask:0xa bank_mask:0xf",
            lambda n: np.where(n // 16 % 2, n // 16 * 16 - 1, 100),
        ),
        ("v_mov_b32_dpp v2, v0 row_bcast:31 row_mask:0xc bank_mask:0xf", lambda n: np.where(n >= 32, 31, 100)),
        ("v_mov_b32_dpp v2, v0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", lambda n: n ^ 1),
        ("ds_swizzle_b32 v2, v0 offset:swizzle(SWAP,16)", lambda n: n ^ 16),
        ("v_lshlrev_b32_e32 v4, 2, v0\nv_xor_b32_e32 v4, 4, v4\nds_bpermute_b32 v2, v4, v0", lambda n: n ^ 1),
        ("v_lshlrev_b32_e32 v4, 3, v0\nds_permute_b32 v2, v4, v0", lambda n: np.where(n % 2, 0, n // 2 + 32)),
    ],
)
def test_lanes_get_values_of_others(bench, program, expected):
    got = result_of(bench, f"v_mov_b32_e32 v2, 100\n{program}\nglobal_store_dword v1, v2, s[6:7]\n")
    assert np.array_equal(got, expected(np.arange(64)))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("v_mov_b32_dpp v2, v0 row_shl:1 row_mask:0xf bank_mask:0xf", [100, 2, 100, 100, 5]),
        ("v_mov_b32_dpp v2, v0 row_shl:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", [100, 2, 0, 100, 5]),
        ("v_lshlrev_b32_e32 v4, 2, v0\nv_add_u32_e32 v4, 4, v4\nds_bpermute_b32 v2, v4, v0", [100, 2, 0, 100, 5]),
    ],
)
def test_a_lane_that_is_off_gives_nothing(bench, program, expected):
    body = f"v_mov_b32_e32 v2, 100\ns_mov_b64 exec, 0x36\n{program}\ns_mov_b64 exec, -1\n"
    assert result_of(bench, body + "global_store_dword v1, v2, s[6:7]\n").tolist()[:5] == expected


@pytest.mark.parametrize("size", [16, 32])
def test_halves_of_registers_change_places(bench, size):
    got = result_of(
        bench,
        f"""
        v_add_u32_e32 v2, 0x40, v0
        v_mov_b32_e32 v3, v0
        v_permlane{size}_swap_b32_e32 v3, v2
        global_store_dword v1, v3, s[6:7]
        global_store_dword v1, v2, s[6:7] offset:256
        """,
        lanes=128,
        architecture="gfx950",
    )
    lanes = np.arange(64)
    assert np.array_equal(got[:64], np.where(lanes // size % 2, lanes - size + 64, lanes))
    assert np.array_equal(got[64:], np.where(lanes // size % 2, lanes + 64, lanes + size))


def test_only_the_bit_for_overflows_of_small_floats_can_be_changed(bench):
    bench.run("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3\n")
    with pytest.raises(Unsupported, match="MODE is changed"):
        bench.run("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 15\n")
    with pytest.raises(Unsupported, match="only the register MODE"):
        bench.run("s_setreg_imm32_b32 hwreg(HW_REG_STATUS, 0, 4), 15\n")


def test_what_is_not_emulated_is_refused_where_a_wave_comes_to_it(bench):
    unknown = "v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]"
    bench.run(f"s_branch .Lend\n{unknown}\n.Lend:\n")
    with pytest.raises(Unsupported, match="v_mfma"):
        bench.run(f"{unknown}\n")
    with pytest.raises(Unsupported, match="17 waves"):
        bench.run("", warps=17)


def test_garbage_in_registers_and_local_memory_differs_by_seed(bench):
    body = (
        "s_add_u32 s20, s21, s22\nv_mov_b32_e32 v2, s20\nv_add_u32_e32 v2, v2, v3\nglobal_store_dword v1, v2, s[6:7]\n"
    )
    seen = {result_of(bench, body, seed=seed).tobytes() for seed in (0, 0, 1)}
    assert len(seen) == 2


NEIGHBOURS = (
    HEAD
    + """
    v_add_u32_e32 v2, 3, v0
    ds_write_b32 v1, v2
    {barrier}
    v_xor_b32_e32 v3, 0x100, v1
    ds_read_b32 v4, v3
    global_store_dword v1, v4, s[6:7]
    """
)
"""Two waves that read what the other one wrote to local memory."""


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_lets_waves_read_what_others_wrote(bench, order):
    out = bench.tensor(np.zeros(128), "out")
    record = bench.run(NEIGHBOURS.format(barrier="s_barrier"), out, warps=2, shared=512, order=order, seed=3)
    assert record.reports == []
    assert np.array_equal(out.numpy(), 3 + (np.arange(128) ^ 64))
    assert (record.workgroups, record.instructions) == (1, 20)


def test_waves_that_ended_count_as_arrived_and_are_reported(bench):
    out = bench.tensor(np.zeros(128), "out")
    body = f"""{HEAD}
    v_cmp_gt_u32_e32 vcc, 64, v0
    s_cbranch_vccz .Lend
    s_barrier
    global_store_dword v1, v0, s[6:7]
    .Lend:
    """
    record = bench.run(body, out, warps=2)
    (failure,) = failures(record)
    assert isinstance(failure, BarrierDivergence)
    assert failure.where == "probe"
    assert "1 of 2 waves came to the barrier, the others had ended; kernel probe, workgroup (0, 0, 0)" in failure.detail
    assert np.array_equal(out.numpy()[:64], np.arange(64))


def test_waves_at_different_barriers_are_reported(bench):
    body = "v_cmp_gt_u32_e32 vcc, 64, v0\ns_cbranch_vccz .Lelse\ns_barrier\ns_endpgm\n.Lelse:\ns_barrier\n"
    (failure,) = failures(bench.run(body, warps=2))
    assert isinstance(failure, BarrierDivergence)
    assert "waves of one workgroup wait at 2 different barriers" in failure.detail


WAIT_FOR = """
    s_load_dwordx2 s[6:7], s[0:1], 0x0
    v_mov_b32_e32 v5, 0
    .Lagain:{barrier}
    global_load_dword v2, v5, s[6:7] sc1
    buffer_inv sc1
    v_readfirstlane_b32 s10, v2
    s_cmp_lg_u32 s10, {before}
    s_cbranch_scc1 .Lagain
    v_mov_b32_e32 v3, 1
    s_mov_b64 exec, 1
    global_atomic_add v5, v3, s[6:7] sc1
    """
"""A workgroup that waits until ``before`` others have passed here."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("barrier", ["", "\ns_barrier"])
def test_workgroups_may_wait_for_each_other(bench, order, barrier):
    turns = bench.tensor([0], "turns")
    record = bench.run(WAIT_FOR.format(barrier=barrier, before="s2"), turns, groups=12, order=order)
    assert record.reports == []
    assert turns.tolist() == [12]


def test_a_wave_may_wait_for_another_one_of_its_workgroup(bench):
    turns = bench.tensor([0], "turns")
    body = "v_lshrrev_b32_e32 v6, 6, v0\nv_sub_u32_e32 v6, 1, v6\nv_readfirstlane_b32 s11, v6\n"
    record = bench.run(body + WAIT_FOR.format(barrier="", before="s11"), turns, warps=2)
    assert record.reports == []
    assert turns.tolist() == [2]


@pytest.mark.parametrize("order", ORDERS)
def test_a_loop_without_end_is_a_hang(bench, order):
    turns = bench.tensor([0], "turns")
    record = bench.run(WAIT_FOR.format(barrier="", before=77), turns, groups=2, order=order, step_limit=3_000)
    (failure,) = failures(record)
    assert isinstance(failure, Hang)
    assert failure.where == "probe"
    assert failure.detail.startswith("still running after 3000 instructions of one wave; kernel probe, workgroup")


def test_every_workgroup_of_a_grid_runs_once():
    bench = PROGRAMS["Bench"]()
    out = bench.tensor(np.zeros(24), "out")
    body = """
        s_load_dwordx2 s[6:7], s[0:1], 0x0
        s_mul_i32 s10, s4, 3
        s_add_u32 s10, s10, s3
        s_lshl_b32 s10, s10, 2
        s_add_u32 s10, s10, s2
        s_lshl_b32 s10, s10, 2
        v_mov_b32_e32 v5, s10
        v_mov_b32_e32 v2, 1
        s_mov_b64 exec, 1
        global_atomic_add v5, v2, s[6:7]
    """
    machine = PROGRAMS["Machine"](bench.space, order="random", seed=1)
    record = machine.launch(PROGRAMS["kernel_of"](body), bench.packed([out]), (4, 3, 2), 1, 0)
    assert record.reports == []
    assert out.tolist() == [1] * 24
    assert record.workgroups == 24


def test_an_unknown_order_is_refused(bench):
    with pytest.raises(ValueError, match="order: 'sideways' is none of forward, reverse, random, interleaved"):
        bench.run("", order="sideways")
