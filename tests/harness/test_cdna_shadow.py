"""Races and local memory: what is told between waves and between workgroups, and what is not."""

from __future__ import annotations

import runpy
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from oracles.backends.cdna.reports import failures
from oracles.backends.cdna.schedule import ORDERS
from oracles.backends.cdna.shadow import Touch, conflicts, digest, joined
from oracles.verdict import OutOfBoundsRead, OutOfBoundsWrite, Race, UninitialisedRead

PROGRAMS = runpy.run_path(str(Path(__file__).with_name("cdna_programs.py")))

HEAD = """
    s_load_dwordx2 s[6:7], s[0:1], 0x0
    s_load_dwordx2 s[8:9], s[0:1], 0x8
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v5, 0
"""
READ_LOCAL = "v_xor_b32_e32 v3, 0x100, v1\nds_read_b32 v4, v3\n"


@pytest.fixture
def bench():
    return PROGRAMS["Bench"]()


def told(bench, body, *arguments, **options):
    record = bench.run(HEAD + body, *arguments, **options)
    return [(type(failure), failure.where, failure.detail) for failure in failures(record)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_is_told_in_any_order(bench, order):
    body = "ds_write_b32 v1, v0\ns_barrier\nds_write_b32 v1, v1\n" + READ_LOCAL
    out = bench.tensor(np.zeros(1), "out")
    got = told(bench, body, out, warps=2, shared=512, order=order)
    assert {(kind, where) for kind, where, _ in got} == {(Race, "shared memory")}
    assert "it loads what is changed by wave 1, with no barrier between them" in got[0][2] or (
        "it loads what is changed by wave 0, with no barrier between them" in got[0][2]
    )
    assert "instruction `ds_write_b32 v1, v1`" in got[0][2]


def test_local_memory_that_nobody_wrote(bench):
    out = bench.tensor(np.zeros(1), "out")
    body = "v_cmp_gt_u32_e32 vcc, 60, v0\ns_mov_b64 exec, vcc\nds_write_b32 v1, v0\n"
    body += "s_mov_b64 exec, -1\nds_read_b32 v4, v1\n"
    ((kind, where, detail),) = told(bench, body, out, shared=256)
    assert (kind, where) == (UninitialisedRead, "shared memory")
    assert detail.startswith(
        "read byte 240 of 256 of the workgroup's shared memory, which nobody had written; kernel probe"
    )
    assert "lane 60 of 64, 4 lanes in all" in detail


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("ds_write_b32 v1, v0 offset:4", OutOfBoundsWrite, "wrote byte 256 of 256"),
        ("ds_write_b32 v1, v0\nds_read_b64 v[6:7], v1", OutOfBoundsRead, "read byte 252 of 256"),
    ],
)
def test_past_the_end_of_local_memory(bench, body, kind, text):
    out = bench.tensor(np.zeros(1), "out")
    ((got, where, detail),) = told(bench, f"{body}\n", out, shared=256)
    assert (got, where) == (kind, "shared memory")
    assert detail.startswith(text)
    assert "past its end" in detail
    assert "lane 63 of 64, 1 lanes in all" in detail


def test_two_elements_of_local_memory_at_a_time(bench):
    out = bench.tensor(np.zeros(64), "out")
    body = """
        v_lshlrev_b32_e32 v2, 3, v0
        ds_write2_b32 v2, v0, v1 offset1:1
        ds_read_b64 v[6:7], v2
        v_add_u32_e32 v8, 0x100, v6
        ds_write2st64_b32 v1, v6, v8 offset0:2 offset1:3
        ds_read2_b32 v[10:11], v1 offset0:128 offset1:192
        v_add_u32_e32 v10, v10, v11
        v_add_u32_e32 v10, v10, v7
        global_store_dword v1, v10, s[6:7]
    """
    assert told(bench, body, out, shared=1024) == []
    assert np.array_equal(out.numpy(), 6 * np.arange(64) + 256)


def test_small_elements_of_local_memory(bench):
    out = bench.tensor(np.zeros(64), "out")
    body = """
        v_add_u32_e32 v2, 0xe0, v0
        ds_write_b8 v0, v2
        ds_read_i8 v3, v0
        v_lshlrev_b32_e32 v6, 1, v0
        ds_write_b16 v6, v3 offset:64
        ds_read_u16_d16_hi v7, v6 offset:64
        v_lshrrev_b32_e32 v7, 16, v7
        global_store_dword v1, v7, s[6:7]
    """
    assert told(bench, body, out, shared=192) == []
    assert np.array_equal(out.numpy(), (np.arange(64) + 0xE0).astype(np.int8).astype(np.int32) & 0xFFFF)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("v_mov_b32_e32 v2, s2\nglobal_store_dword v5, v2, s[6:7]\n", "stores another value there than workgroup"),
        ("v_mov_b32_e32 v2, 7\nglobal_store_dword v5, v2, s[6:7]\n", ""),
        (
            "s_lshl_b32 s10, s2, 2\nv_mov_b32_e32 v2, s10\nglobal_load_dword v3, v2, s[6:7]\n"
            "global_store_dword v2, v2, s[6:7] offset:4\n",
            "loads what is changed by workgroup",
        ),
        (
            "s_lshl_b32 s10, s2, 2\nv_mov_b32_e32 v2, s10\nglobal_store_dword v2, v2, s[6:7]\n"
            "global_load_dword v3, v2, s[6:7]\n",
            "",
        ),
        ("v_mov_b32_e32 v2, 1\nglobal_atomic_add v5, v2, s[6:7]\n", ""),
        ("v_mov_b32_e32 v2, s2\nglobal_store_dword v5, v2, s[6:7] sc1\nglobal_load_dword v2, v5, s[6:7] sc1\n", ""),
    ],
)
def test_workgroups(bench, body, text, order):
    out = bench.tensor(np.zeros(64), "out")
    got = told(bench, "s_mov_b64 exec, 1\n" + body, out, groups=3, order=order)
    assert [(kind, where) for kind, where, _ in got] == [(Race, "out")] * bool(text)
    assert all(text in detail for _, _, detail in got)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(("acquire", "races"), [("buffer_inv sc1", 0), ("", 1)])
def test_what_follows_an_acquire_is_not_accused(bench, acquire, races, order):
    data, flag = bench.tensor([0], "data"), bench.tensor([0], "flag")
    body = f"""
        s_mov_b64 exec, 1
        v_mov_b32_e32 v2, 1
        s_cmp_lg_u32 s2, 0
        s_cbranch_scc1 .Lconsumer
        global_store_dword v5, v2, s[6:7]
        buffer_wbl2 sc1
        global_atomic_swap v5, v2, s[8:9]
        s_endpgm
        .Lconsumer:
        global_load_dword v3, v5, s[8:9] sc1
        {acquire}
        v_readfirstlane_b32 s10, v3
        s_cmp_eq_u32 s10, 0
        s_cbranch_scc1 .Lconsumer
        global_load_dword v4, v5, s[6:7]
    """
    got = told(bench, body, data, flag, groups=2, order=order)
    assert [(kind, where) for kind, where, _ in got] == [(Race, "data")] * races


def test_a_value_that_every_wave_holds_may_be_updated_by_one(bench):
    counter = bench.tensor([5], "counter")
    body = """
        global_load_dword v2, v5, s[6:7]
        v_add_u32_e32 v2, 1, v2
        v_cmp_eq_u32_e32 vcc, 0, v0
        s_mov_b64 exec, vcc
        global_store_dword v5, v2, s[6:7]
    """
    assert told(bench, body, counter, warps=4) == []
    assert counter.tolist() == [6]


def test_waves_that_exchange_elements_in_place_without_a_barrier(bench):
    table = bench.tensor(np.arange(128), "table")
    body = (
        "v_xor_b32_e32 v3, 0x100, v1\nglobal_load_dword v2, v3, s[6:7]\n{barrier}\nglobal_store_dword v1, v2, s[6:7]\n"
    )
    ((kind, where, detail),) = told(bench, body.format(barrier=""), table, warps=2)
    assert (kind, where) == (Race, "table")
    assert detail.startswith(
        "table[0]: it loads what is changed by wave 0, with no barrier between them (an unknown line,"
    )
    table = bench.tensor(np.arange(128), "another")
    assert told(bench, body.format(barrier="s_barrier"), table, warps=2) == []
    assert np.array_equal(table.numpy(), np.arange(128) ^ 64)


def test_races_in_long_loops_are_found_without_keeping_every_access(bench):
    table = bench.tensor(np.arange(128), "table")
    body = """
        s_movk_i32 s20, 0x900
        v_xor_b32_e32 v3, 0x100, v1
        .Lagain:
        global_load_dword v2, v3, s[6:7]
        s_sub_u32 s20, s20, 1
        s_cmp_lg_u32 s20, 0
        s_cbranch_scc1 .Lagain
        global_store_dword v1, v2, s[6:7]
    """
    ((kind, where, _),) = told(bench, body, table, warps=2)
    assert (kind, where) == (Race, "table")


def test_inputs_are_not_watched(bench):
    table = bench.tensor(np.arange(64), "table", writable=False)
    record = bench.run(HEAD + "global_load_dword v2, v1, s[6:7]\nglobal_store_dword v1, v5, s[6:7]\n", table, groups=3)
    assert record.reports == []


ATOMIC = "v_mov_b32_e32 v2, {value}\n{setup}\n{name} v6, v5, v2, s[6:7] sc0\nglobal_store_dword v1, v6, s[8:9]\n"


@pytest.mark.parametrize(
    ("name", "start", "value", "after", "returned"),
    [
        ("global_atomic_add", 10, 3, 10 + 3 * 64, 10 + 3 * np.arange(64)),
        ("global_atomic_umax", 10, 12, 12, np.where(np.arange(64), 12, 10)),
        ("global_atomic_swap", 10, 12, 12, np.where(np.arange(64), 12, 10)),
        ("global_atomic_smin", 10, -3, -3, np.where(np.arange(64), -3, 10)),
    ],
)
def test_lanes_that_meet_in_an_atomic_take_turns(bench, name, start, value, after, returned):
    cell, out = bench.tensor([start], "cell"), bench.tensor(np.zeros(64), "out")
    assert told(bench, ATOMIC.format(value=value, setup="", name=name), cell, out) == []
    assert cell.tolist() == [after]
    assert np.array_equal(out.numpy(), returned)


def test_an_atomic_of_64_bits_with_a_comparison(bench):
    cells = bench.tensor(np.arange(64) % 3, "cells", np.int64)
    body = """
        v_lshlrev_b32_e32 v2, 3, v0
        v_mov_b32_e32 v6, 9
        v_mov_b32_e32 v7, 9
        v_mov_b32_e32 v8, 2
        v_mov_b32_e32 v9, 0
        global_atomic_cmpswap_x2 v2, v[6:9], s[6:7]
    """
    assert told(bench, body, cells) == []
    assert np.array_equal(cells.numpy(), np.where(np.arange(64) % 3 == 2, 9 * 2**32 + 9, np.arange(64) % 3))


def test_an_atomic_outside_is_dropped(bench):
    cells = bench.tensor(np.zeros(63), "cells")
    ((kind, where, detail),) = told(bench, "v_mov_b32_e32 v2, 1\nglobal_atomic_add v1, v2, s[6:7]\n", cells)
    assert (kind, where) == (OutOfBoundsWrite, "cells")
    assert detail.startswith("wrote cells, 1 elements past its last")
    assert cells.tolist() == [1] * 63


def test_atomics_in_local_memory(bench):
    out = bench.tensor(np.zeros(64), "out")
    body = """
        v_mov_b32_e32 v2, 5
        ds_write_b32 v5, v2
        s_barrier
        v_mov_b32_e32 v3, 2
        ds_add_rtn_u32 v4, v5, v3
        s_barrier
        ds_read_b32 v6, v5
        global_store_dword v1, v6, s[6:7]
    """
    assert told(bench, body, out, shared=4, warps=1) == []
    assert set(out.tolist()) == {5 + 2 * 64}


def touch(agent, values=None, index=(0,), unit=4, **facts):
    values = None if values is None else np.array(values, np.uint32)
    changed = None if values is None else np.ones(len(index), bool)
    return Touch(agent, facts.pop("instruction", agent), unit, np.array(index), values, changed, **facts)


@pytest.mark.parametrize(
    ("touches", "found"),
    [
        ([touch(0, [1]), touch(1, [1])], 0),
        ([touch(0, [1]), touch(1, [2])], 1),
        ([touch(0, [1]), touch(0, [2]), touch(1, [2])], 0),
        ([touch(0, [1], atomic=True), touch(1, [2], atomic=True)], 0),
        ([touch(0, [1], atomic=True), touch(1, [2])], 1),
        ([touch(0, [1], ordered=True), touch(1, [2])], 0),
        ([touch(0), touch(1, [2])], 1),
        ([touch(0, ordered=True), touch(1, [2])], 0),
        ([touch(0, [2]), touch(0), touch(1, [2])], 0),
        ([touch(0), touch(0, [2]), touch(1, [2])], 1),
        ([touch(0, index=(1,)), touch(1, [2])], 0),
        ([touch(0, index=(3,), unit=1), touch(1, [2])], 1),
        ([touch(0, index=(4,), unit=1), touch(1, [2])], 0),
        ([touch(0, [0x41], index=(1,), unit=1), touch(1, [0x4100])], 0),
        ([touch(0, [0x42], index=(1,), unit=1), touch(1, [0x4100])], 1),
        ([touch(0, [0x1234], index=(1,), unit=2), touch(1, [0x12340000])], 0),
    ],
)
@pytest.mark.parametrize("how", ["together", "apart", "joined"])
def test_which_touches_conflict(touches, found, how):
    if how == "apart":
        digests = [
            digest(own, [agent] * len(own))
            for agent in (0, 1)
            if (own := [touch for touch in touches if touch.wave == agent])
        ]
    elif how == "joined":
        digests = [reduce(joined, [digest([touch], [touch.wave]) for touch in touches])]
    else:
        digests = [digest(touches, [touch.wave for touch in touches])]
    assert len(list(conflicts(digests))) == found


def test_copies_of_a_load_are_excused_between_waves_only():
    touches = [touch(0, instruction=4), touch(1, instruction=4), touch(0, [2], instruction=5)]
    whole = digest(touches, [0, 1, 0])
    assert list(conflicts([whole], copies=True)) == []
    (conflict,) = conflicts([whole])
    assert (conflict.first.agent, conflict.second.agent, conflict.both_store) == (1, 0, False)
    other = digest([touches[0], touch(1, instruction=6), touches[2]], [0, 1, 0])
    assert len(list(conflicts([other], copies=True))) == 1
