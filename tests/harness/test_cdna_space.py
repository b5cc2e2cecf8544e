"""What emulated code may touch: addresses, bounds, and how a stray access is told."""

from __future__ import annotations

import runpy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles.arrays import Array
from oracles.backends.cdna.reports import failures
from oracles.backends.cdna.space import HOLE, LINE, DeviceSpace
from oracles.memory import Memory
from oracles.verdict import OutOfBoundsRead, OutOfBoundsWrite, Unsupported

PROGRAMS = runpy.run_path(str(Path(__file__).with_name("cdna_programs.py")))

HEAD = """
    s_load_dwordx2 s[6:7], s[0:1], 0x0
    s_load_dwordx2 s[8:9], s[0:1], 0x8
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v5, 0
"""
DESCRIPTOR = """
    s_mov_b32 s12, s6
    s_and_b32 s13, s7, 0xffff
    s_mov_b32 s14, 0x7ffffffe
    s_mov_b32 s15, 0x27000
"""
"""As Triton makes it: a size that bounds no tensor."""


@pytest.fixture
def bench():
    return PROGRAMS["Bench"]()


@pytest.mark.parametrize("count", [1, 3, 63, 64, 1000, 100_000])
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_addresses_agree_with_the_tensors_modulo_256_and_lie_around_a_line(count, offset):
    memory = Memory()
    tensors = [
        memory.place(Array("int32", np.zeros(count, np.int32), None, offset), f"t{place}", device=True)
        for place in range(3)
    ]
    space = DeviceSpace(memory)
    addresses = [space.virtual(tensor, "unused") for tensor in tensors]
    for tensor, address in zip(tensors, addresses, strict=True):
        assert (address - tensor.data_ptr()) % 256 == 0
        if count > 64:
            assert address < address + tensor.nbytes // 2 // LINE * LINE + LINE
            assert address // LINE < (address + tensor.nbytes - 1) // LINE
    assert all(later - earlier > HOLE for earlier, later in pairwise(addresses))


def test_a_view_has_its_place_in_its_storage(bench):
    tensor = bench.tensor(np.arange(40), "t")
    assert bench.space.virtual(tensor[7:], "p") - bench.space.virtual(tensor, "p") == 28


def run_and_tell(bench, body, *arguments, **options):
    return [
        (type(failure), failure.where, failure.detail) for failure in failures(bench.run(body, *arguments, **options))
    ]


def test_a_read_past_the_end_gives_zero_and_is_told(bench):
    table, out = bench.tensor(np.arange(50) + 1, "table"), bench.tensor(np.full(64, -1), "out")
    body = HEAD + "global_load_dword v2, v1, s[6:7]\nglobal_store_dword v1, v2, s[8:9]\n"
    (told,) = run_and_tell(bench, body, table, out, warps=1)
    assert told == (
        OutOfBoundsRead,
        "table",
        "read table, 1 elements past its last; kernel probe, workgroup (0, 0, 0), an unknown line, "
        "instruction `global_load_dword v2, v1, s[6:7]`, wave 0, lane 50 of 64, 14 lanes in all",
    )
    assert np.array_equal(out.numpy(), np.where(np.arange(64) < 50, np.arange(64) + 1, 0))


def test_a_store_before_the_first_is_dropped_and_told(bench):
    out = bench.tensor(np.full(64, -1), "out")
    body = HEAD + "v_add_u32_e32 v1, -8, v1\nv_ashrrev_i32_e32 v3, 31, v1\nv_mov_b32_e32 v4, s7\n"
    body += (
        "v_add_co_u32_e32 v2, vcc, s6, v1\nv_addc_co_u32_e32 v3, vcc, v4, v3, vcc\nglobal_store_dword v[2:3], v0, off\n"
    )
    (told,) = run_and_tell(bench, body, out)
    assert told[:2] == (OutOfBoundsWrite, "out")
    assert told[2].startswith("wrote out, 2 elements before its first; kernel probe")
    assert "lane 0 of 64, 2 lanes in all" in told[2]
    assert out.tolist() == [*range(2, 64), -1, -1]
    assert list(bench.memory.faults()) == []


def test_a_wrapped_index_reaches_no_other_buffer(bench):
    tensors = [bench.tensor(np.zeros(64), f"t{place}") for place in range(4)]
    addresses = [bench.space.virtual(tensor, "p") for tensor in tensors]
    for address in addresses:
        for elements in (2**31, -(2**31), 2**32, 2**30):
            for size in (1, 4, 8):
                assert bench.space.find(address + elements * size) is None


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        ("0x80000000", []),
        ("0x7fffff00", ["read table, 536870785 elements past its last"]),
        ("0x90000000", ["read table, 603979713 elements past its last"]),
        ("0x100", ["read table, 1 elements past its last"]),
    ],
)
def test_a_buffer_offset_past_the_size_is_silent_only_where_triton_switches_lanes_off(bench, offset, told):
    table, out = bench.tensor(np.arange(64) + 1, "table"), bench.tensor(np.full(64, -1), "out")
    body = f"""{HEAD}{DESCRIPTOR}
    v_mov_b32_e32 v2, {offset}
    v_cmp_gt_u32_e32 vcc, 60, v0
    v_cndmask_b32_e32 v2, v2, v1, vcc
    buffer_load_dword v3, v2, s[12:15], 0 offen
    global_store_dword v1, v3, s[8:9]
    """
    got = run_and_tell(bench, body, table, out)
    assert [detail.split(";")[0] for _, _, detail in got] == told
    assert np.array_equal(out.numpy(), np.where(np.arange(64) < 60, np.arange(64) + 1, 0))


def test_lanes_that_triton_switches_off_do_not_store(bench):
    out = bench.tensor(np.full(64, -1), "out")
    body = f"""{HEAD}{DESCRIPTOR}
    v_bfrev_b32_e32 v2, 1
    v_cmp_gt_u32_e32 vcc, 60, v0
    v_cndmask_b32_e32 v2, v2, v1, vcc
    buffer_store_dword v0, v2, s[12:15], 0 offen
    """
    assert run_and_tell(bench, body, out) == []
    assert out.tolist() == [*range(60), -1, -1, -1, -1]


@pytest.mark.parametrize("width", ["dwordx2", "dwordx3", "dwordx4"])
def test_wide_accesses_move_neighbouring_words(bench, width):
    count = int(width[-1])
    table, out = bench.tensor(np.arange(64 * count), "table"), bench.tensor(np.full(64 * count, -1), "out")
    body = f"""{HEAD}
    v_mul_u32_u24_e32 v1, {4 * count}, v0
    global_load_{width} v[8:{7 + count}], v1, s[6:7]
    global_store_{width} v1, v[8:{7 + count}], s[8:9]
    """
    assert run_and_tell(bench, body, table, out) == []
    assert out.tolist() == list(range(64 * count))


@pytest.mark.parametrize(
    ("dtype", "load", "store", "shift"),
    [(np.int8, "sbyte", "byte", 0), (np.uint8, "ubyte", "byte", 0), (np.int16, "sshort", "short", 1)],
)
def test_small_elements(bench, dtype, load, store, shift):
    values = np.arange(64).astype(dtype) - 32 if dtype != np.uint8 else np.arange(64) + 150
    table, out = bench.tensor(values, "table", dtype), bench.tensor(np.zeros(64), "out", dtype)
    wide = bench.tensor(np.zeros(64), "wide")
    body = f"""{HEAD}
    s_load_dwordx2 s[10:11], s[0:1], 0x10
    v_lshlrev_b32_e32 v2, {shift}, v0
    global_load_{load} v3, v2, s[6:7]
    global_store_{store} v2, v3, s[8:9]
    global_store_dword v1, v3, s[10:11]
    """
    assert run_and_tell(bench, body, table, out, wide) == []
    assert np.array_equal(out.numpy(), values.astype(dtype))
    assert np.array_equal(wide.numpy(), values)


def test_words_at_odd_addresses(bench):
    table, out = bench.tensor(np.arange(65 * 4), "table", np.uint8), bench.tensor(np.zeros(64), "out")
    body = HEAD + "v_add_u32_e32 v2, 1, v1\nglobal_load_dword v3, v2, s[6:7]\nglobal_store_dword v1, v3, s[8:9]\n"
    assert run_and_tell(bench, body, table, out) == []
    assert np.array_equal(out.numpy().view(np.uint32), table.numpy()[1 : 1 + 256].copy().view(np.uint32))


def test_a_word_that_is_misaligned_and_below_the_buffer_is_not_taken_for_its_last(bench):
    table, out = bench.tensor(np.arange(64), "table"), bench.tensor(np.full(64, -1), "out")
    body = (
        HEAD
        + """
    v_mov_b32_e32 v3, s7
    v_add_co_u32_e32 v2, vcc, s6, v1
    v_addc_co_u32_e32 v3, vcc, 0, v3, vcc
    v_cmp_eq_u32_e32 vcc, 1, v0
    v_subrev_co_u32_e64 v6, s[16:17], 5, v2
    v_cndmask_b32_e32 v2, v2, v6, vcc
    global_load_dword v4, v[2:3], off
    global_store_dword v1, v4, s[8:9]
    """
    )
    (told,) = run_and_tell(bench, body, table, out)
    assert "lane 1 of 64, 1 lanes in all" in told[2]
    assert out.tolist()[:3] == [0, 0, 2]


def test_only_elements_of_a_strided_view_may_be_touched(bench):
    view = bench.memory.place(
        Array("int32", np.arange(64, dtype=np.int32).reshape(16, 4), (6, 1)), "view", device=True, writable=True
    )
    out = bench.tensor(np.full(64, -1), "out")
    rows = "v_lshrrev_b32_e32 v2, 2, v0\nv_mul_u32_u24_e32 v2, 24, v2\n"
    rows += "v_and_b32_e32 v3, 3, v0\nv_lshl_add_u32 v2, v3, 2, v2\n"
    body = "global_load_dword v4, v{at}, s[6:7]\nglobal_store_dword v1, v4, s[8:9]\n"
    assert run_and_tell(bench, HEAD + rows + body.format(at=2), view, out) == []
    assert out.tolist() == list(range(64))
    (told,) = run_and_tell(bench, HEAD + body.format(at=1), view, out)
    assert told[1] == "view"
    assert told[2].startswith("read view[0, 3] + 1 elements (between the elements of a strided view); kernel probe")
    assert "lane 4 of 64, 20 lanes in all" in told[2]


def test_a_buffer_of_more_than_two_to_the_31_elements(bench):
    # The pages between the rows do not exist.
    view = bench.memory.place(
        Array("int64", np.arange(3, dtype=np.int64)[:, None], (2**30 + 5, 1)), "view", device=True, writable=True
    )
    body = f"""{HEAD}
    s_mov_b64 exec, 1
    s_mul_hi_u32 s21, {8 * (2**30 + 5) & 0xFFFFFFFF}, 2
    s_add_u32 s20, s6, {2 * 8 * (2**30 + 5) & 0xFFFFFFFF}
    s_addc_u32 s21, s7, {2 * 8 * (2**30 + 5) >> 32}
    global_load_dwordx2 v[2:3], v5, s[20:21]
    v_add_u32_e32 v2, 5, v2
    global_store_dwordx2 v5, v[2:3], s[20:21]
    """
    assert run_and_tell(bench, body, view) == []
    assert view.flatten().tolist() == [0, 1, 7]


def test_pointers_in_a_table_are_host_addresses(bench):
    row = bench.tensor(np.arange(64) + 5, "row")
    pointers = bench.tensor([row.data_ptr()], "pointers", np.int64)
    out = bench.tensor(np.zeros(64), "out")
    body = (
        HEAD + "s_load_dwordx2 s[10:11], s[6:7], 0x0\nglobal_load_dword v2, v1, s[10:11]{more}\n"
        "global_store_dword v1, v2, s[8:9]\n"
    )
    assert run_and_tell(bench, body.format(more=""), pointers, out) == []
    assert np.array_equal(out.numpy(), np.arange(64) + 5)
    (told,) = run_and_tell(bench, body.format(more=" offset:4"), pointers, out)
    assert told[2].startswith("read row, 1 elements past its last")


def test_a_buffer_that_is_registered_later_is_found(bench):
    pointers, out = bench.tensor([0], "pointers", np.int64), bench.tensor(np.zeros(64), "out")
    bench.space.virtual(out, "out")
    row = bench.tensor(np.arange(64), "row")
    pointers[0] = row.data_ptr()
    body = (
        HEAD + "s_load_dwordx2 s[10:11], s[6:7], 0x0\nglobal_load_dword v2, v1, s[10:11]\n"
        "global_store_dword v1, v2, s[8:9]\n"
    )
    assert run_and_tell(bench, body, pointers, out) == []
    assert out.tolist() == list(range(64))


def test_a_storage_that_nobody_registered_is_named_by_its_parameter_for_one_launch(bench):
    foreign, out = torch.arange(60, dtype=torch.int32), bench.tensor(np.zeros(64), "out")
    body = HEAD + "global_load_dword v2, v1, s[6:7]\nglobal_store_dword v1, v2, s[8:9]\n"
    (told,) = run_and_tell(bench, body, foreign, out)
    assert told[1] == "p0"
    assert told[2].startswith("read p0, 1 elements past the last of its storage; kernel probe")
    assert bench.space.find(foreign.data_ptr()) is None


def test_launches_do_not_use_up_addresses(bench):
    out, foreign = bench.tensor(np.zeros(64), "out"), torch.zeros(8)
    seen = set()
    for _ in range(3000):
        seen.add((bench.space.virtual(foreign, "p"), bench.space.virtual(out, "out"), bench.space.arguments(b"").low))
        bench.space.end_launch()
    assert len(seen) == 1


def test_a_call_with_too_many_buffers_is_refused(bench):
    with pytest.raises(Unsupported, match="fill the emulated address space"):
        [bench.space.arguments(b"") for _ in range(3000)]


def test_an_address_near_no_buffer(bench):
    body = HEAD + "s_mov_b64 exec, 1\nglobal_load_dword v2, v5, s[6:7]\n"
    (told,) = run_and_tell(bench, body, 0x1234)
    assert told[1] == "no buffer"
    assert told[2].startswith("read address 0x1234, which is near no buffer; kernel probe")


def test_an_empty_tensor_is_named(bench):
    empty = bench.tensor(np.zeros(0), "empty")
    (told,) = run_and_tell(bench, HEAD + "s_mov_b64 exec, 1\nglobal_store_dword v5, v5, s[6:7]\n", empty)
    assert told[1] == "empty"
    assert told[2].startswith("wrote empty, 1 elements past its last")


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("s_load_dword s20, s[6:7], 0xc", []),
        ("s_load_dword s20, s[6:7], 0x10", ["read table, 1 elements past its last"]),
        ("s_load_dwordx2 s[20:21], s[6:7], 0xc", ["read table, 1 elements past its last"]),
        ("s_load_dwordx4 s[20:23], s[6:7], 0x4", ["read table, 1 elements past its last"]),
        ("s_load_dwordx16 s[20:35], s[0:1], 0x8", []),
    ],
)
def test_scalar_loads(bench, load, told):
    got = run_and_tell(bench, HEAD + load + "\n", bench.tensor(np.arange(4), "table"))
    assert [detail.split(";")[0] for _, _, detail in got] == told


def test_scalar_loads_may_take_along_what_the_compiler_pads_with(bench):
    three, five = bench.tensor(np.arange(3), "three"), bench.tensor(np.arange(5), "five", np.uint8)
    body = HEAD + "s_load_dwordx4 s[20:23], s[6:7], 0x0\ns_load_dword s20, s[8:9], 0x4\n"
    assert run_and_tell(bench, body, three, five) == []


def test_the_first_load_of_what_nobody_wrote_is_described(bench):
    out = bench.memory.allocate((64,), torch.int32, "torch.empty #1 [64]")
    body = HEAD + "s_mov_b64 exec, 0xff\nglobal_store_dword v1, v0, s[6:7]\ns_mov_b64 exec, 0xffff\n{more}"
    assert bench.run(body.format(more=""), out).unwritten is None
    record = bench.run(body.format(more="global_load_dword v2, v1, s[6:7]\n"), out)
    assert record.reports == []
    assert record.unwritten == (
        "read torch.empty #1 [64][8], which nobody had written; kernel probe, workgroup (0, 0, 0), an unknown line, "
        "instruction `global_load_dword v2, v1, s[6:7]`, wave 0, lane 8 of 64, 8 lanes in all"
    )


def test_the_same_again_is_counted(bench):
    table = bench.tensor(np.arange(4), "table")
    ((_, _, detail),) = run_and_tell(bench, HEAD + "global_load_dword v2, v1, s[6:7]\n", table, groups=5)
    assert detail.endswith("60 lanes in all; 4 more such accesses in this launch")
