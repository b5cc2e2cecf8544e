"""From Triton's launch to the bytes that the machine starts from, without a machine."""

from types import SimpleNamespace

import numpy as np
import pytest

from oracles.verdict import Unsupported

pytest.importorskip("triton", reason="the emulated backends compile with Triton")

from oracles.backends.cdna.launch import Item, Shape, flattened, grid_of, packed
from oracles.backends.cdna.missing_other import Filling, Place, left_over, places


def nowhere(tensor, name):
    raise AssertionError(f"{name} is no tensor")


def test_places_are_read_from_triton_ir():
    ir = """
    #loc = loc("/k.py":3:0)
    %a = tt.load %p, %m : tensor<32x!tt.ptr<i32>> loc(#loc5)
    %b = tt.load %p, %m, %o : tensor<32x!tt.ptr<i32>> loc(#loc1)
    %c = tt.load %p : !tt.ptr<i32> loc(#loc1)
    %d = tt.load %arg0#1, %m_3 evictionPolicy = evict_last : tensor<32x!tt.ptr<i32>> loc(#loc6)
    %e = tt.load %p, %m : tensor<32x!tt.ptr<i32>> loc("/k.py":7:2)
    %f = tt.load %p, %m : tensor<32x!tt.ptr<i32>> loc(unknown)
    #loc1 = loc("/k.py":9:12)
    #loc2 = loc("/k.py":5:4)
    #loc5 = loc("near"(#loc1))
    #loc6 = loc(callsite(#loc2 at #loc1))
    """
    assert places(ir) == (Place("/k.py", 9), Place("/k.py", 5), Place("/k.py", 7))


@pytest.mark.parametrize(
    ("grid", "error", "words"),
    [
        ((1.5, 1, 1), TypeError, "float"),
        ((2**31, 1, 1), OverflowError, "2147483648 programs"),
        ((-1, 2, 1), RuntimeError, "negative"),
    ],
)
def test_grids_that_a_launcher_refuses(grid, error, words):
    with pytest.raises(error, match=words):
        grid_of(grid)


def code(*arguments, size=64):
    return SimpleNamespace(name="k", kernarg_size=size, arguments=arguments)


def test_arguments_are_packed_by_the_code_objects_table():
    table = code(
        ("global_buffer", 0, 8), ("by_value", 8, 1), ("by_value", 10, 2), ("by_value", 12, 4), ("global_buffer", 16, 8),
        ("hidden_block_count_y", 24, 4), ("hidden_group_size_x", 28, 2), ("hidden_remainder_x", 30, 2),
        ("hidden_grid_dims", 32, 2), ("hidden_dynamic_lds_size", 36, 4), size=40,
    )  # fmt: skip
    items = [Item("x", "*i32", None), Item("a", "i1", True), Item("b", "fp16", 1.5), Item("c", "i32", -2)]
    block = packed(table, items, Shape((5, 6, 1), 4, 1024), nowhere)
    assert block[:16] == bytes([0] * 8 + [1, 0, 0x00, 0x3E, 0xFE, 0xFF, 0xFF, 0xFF])
    assert np.frombuffer(block[24:28], "<i4") == 6
    assert np.frombuffer(block[28:34], "<u2").tolist() == [256, 0, 2]
    assert np.frombuffer(block[36:40], "<u4") == 1024


@pytest.mark.parametrize(
    ("table", "items", "words"),
    [
        ([("by_value", 0, 4)], [], "more arguments than the launch"),
        ([], [("x", "i32", 1)], "fewer arguments than the launch"),
        ([("hidden_hostcall_buffer", 0, 8)], [], "hidden_hostcall_buffer"),
    ],
)
def test_code_objects_whose_arguments_are_not_tritons(table, items, words):
    with pytest.raises(Unsupported, match=words):
        packed(code(*table), [Item(*item) for item in items], Shape((1, 1, 1), 1, 0), nowhere)


def test_values_that_do_not_fit_are_refused_as_by_the_launcher():
    with pytest.raises(OverflowError, match="x: 9223372036854775808 is not in the range of i64"):
        packed(code(("by_value", 0, 8)), [Item("x", "i64", 1 << 63)], Shape((1, 1, 1), 1, 0), nowhere)


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        ("u64", (1 << 64) - 1, b"\xff" * 8),
        ("i32", 1 << 32 | 5, b"\x05\x00\x00\x00"),
        ("u1", True, b"\x01"),
        ("fp32", 1e300, b"\x00\x00\x80\x7f"),
        ("bf16", 1.999, b"\xff\x3f"),
        ("fp64", -2.0, b"\x00" * 7 + b"\xc0"),
        ("*i32", 0x1234, b"\x34\x12" + b"\x00" * 6),
    ],
)
def test_values_are_stored_as_the_launchers_c_code_does(kind, value, data):
    table = code(("by_value", 0, len(data)), size=len(data))
    assert packed(table, [Item("x", kind, value)], Shape((1, 1, 1), 1, 0), nowhere) == data


@pytest.mark.parametrize(("value", "error"), [(object(), TypeError), (SimpleNamespace(data_ptr=int), Unsupported)])
def test_pointers_to_what_is_no_tensor(value, error):
    with pytest.raises(error, match="x: "):
        packed(code(("global_buffer", 0, 8)), [Item("x", "*i32", value)], Shape((1, 1, 1), 1, 0), nowhere)


def test_tuples_are_taken_apart_and_constants_left_out():
    kinds = ("i32", ("constexpr", "*fp32"), "constexpr")
    found = list(flattened("pair", kinds, (3, (4, None), 5)))
    assert found == [("pair[0]", "i32", 3), ("pair[1][1]", "*fp32", None)]


def test_loads_that_tritons_passes_gave_an_other_are_not_compiled_again():
    missing = '%a = tt.load %p, %m : !t loc("/k.py":7:2)'
    given = '%a = tt.load %p, %m, %o : !t loc("/k.py":7:2)'
    assert left_over({"source": missing, "ttir": given}) == ()
    assert left_over({"source": missing, "ttir": missing}) == (Place("/k.py", 7),)


def test_a_filling_turns_one_line_around():
    one, other = Place("/k.py", 7), Place("/k.py", 8)
    assert [Filling(True).fills(place) for place in (one, other)] == [True, True]
    assert [Filling(True, one.name).fills(place) for place in (one, other)] == [False, True]
    assert [Filling(False, one.name).fills(place) for place in (one, other)] == [True, False]
    assert len({Filling(every, line).name for every in (True, False) for line in (None, one.name)}) == 4
