"""Guarded device memory and captured graphs, against a stand-in for torch on a device."""

import itertools
import runpy
from pathlib import Path

import pytest
import torch

from oracles.arrays import DTYPES, array
from oracles.backends import rocm
from oracles.backends.device.graphs import capture
from oracles.backends.device.memory import DeviceMemory
from oracles.backends.device.runtime import open_device
from oracles.memory import ALIGNMENT, GUARD, SPARSE_FROM, poison, torch_dtype
from oracles.verdict import Unsupported

STAND_IN = runpy.run_path(str(Path(__file__).with_name("device_stand_in.py")))
Cuda, stand_in = STAND_IN["Cuda"], STAND_IN["stand_in"]


def memory(sentinel=0, **options):
    return DeviceMemory(open_device(stand_in(), rocm.VENDOR), sentinel, **options)


def kinds(one):
    one.read_back()
    return [failure.key for failure in one.faults()]


@pytest.mark.parametrize("layout", [(None, 0), ((7, 2), 0), ((1, 3), 1)])
@pytest.mark.parametrize("sentinel", [0, 1])
def test_values_and_layout_arrive_and_nothing_is_reported(layout, sentinel):
    one = memory(sentinel)
    x = one.place(array([[1, 2], [3, 4], [5, 6]], "int32", *layout), "x", device=True)
    y = one.allocate((3,), torch.int64, "torch.empty #1 [3]")
    one.commit()
    assert x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert layout[0] is None or x.stride() == layout[0]
    y.fill_(8)
    assert kinds(one) == []
    assert one.read(y).tolist() == [8, 8, 8]
    assert one.read(x.t()).tolist() == [[1, 3, 5], [2, 4, 6]]
    assert one.region_of(y).name == "torch.empty #1 [3]"
    assert one.region_of(x[1:]).name == "x"


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("sentinel", [0, 1])
def test_every_allocation_is_poisoned_on_the_device(name, sentinel):
    one = memory(sentinel)
    one.place(array([1], "int32"), "x", device=True)
    one.commit()
    dtype = torch_dtype(name)
    y = one.allocate((3,), dtype, "torch.empty #1 [3]")
    assert kinds(one) == []
    assert y.cpu().view(torch.uint8).numpy().tobytes() == poison(dtype, sentinel).tobytes() * 3


def test_host_tensors_stay_on_the_host():
    one = memory()
    twin = one.place(array([1, 2], "int64"), "x_cpu", device=False)
    x = one.place(array([1, 2], "int64"), "x", device=True)
    assert one.region_of(twin).name == "x_cpu"
    twin[0] = 9
    one.commit()
    assert kinds(one) == ["input_mutated:x_cpu"]
    assert x.tolist() == [1, 2]


def test_buffers_are_aligned_and_far_enough_apart():
    one = memory()
    tensors = [one.allocate((n,), torch.int8, f"torch.empty #{n} [{n}]") for n in (1, 5, 300)]
    base = tensors[0].untyped_storage().data_ptr()
    starts = [tensor.data_ptr() - base for tensor in tensors]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert starts[0] == ALIGNMENT + GUARD
    assert all(b - a >= 2 * GUARD for a, b in itertools.pairwise(starts))


def test_other_values_in_place_keep_the_address():
    one = memory()
    x = one.place(array([1, 2], "int32"), "x", device=True)
    y = one.allocate((1,), torch.int32, "torch.empty #1 [1]")
    one.commit()
    y.fill_(5)
    assert kinds(one) == []
    address = x.data_ptr()
    one.overwrite("x", array([3, 4], "int32"))
    assert one.read(x).tolist() == [1, 2]
    one.commit()
    assert (x.data_ptr(), x.tolist(), y.tolist()) == (address, [3, 4], [5])
    assert kinds(one) == []


def test_a_full_arena_is_followed_by_another():
    one = memory(arena=32768)
    x = one.place(array([1], "int32"), "x", device=True)
    tensors = [one.allocate((1000,), torch.int32, f"torch.empty #{n} [1000]") for n in range(1, 9)]
    one.commit()
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert kinds(one) == []
    assert [int(one.read(tensor)[999]) for tensor in tensors] == list(range(8))
    tensors[-1].as_strided((1,), (1,), tensors[-1].storage_offset() + 1000).fill_(3)
    x.fill_(2)
    assert kinds(one) == ["input_mutated:x", "out_of_bounds_write:torch.empty"]


def test_a_buffer_with_gaps_larger_than_an_arena_has_memory_of_its_own():
    one = memory()
    stride = SPARSE_FROM // 4
    x = one.place(array([5, 6, 7], "int32", (stride,), 3), "x", device=True)
    one.commit()
    assert x.tolist() == [5, 6, 7]
    assert one.read(x).tolist() == [5, 6, 7]
    assert kinds(one) == []
    x.as_strided((1,), (1,), x.storage_offset() + stride + 1).fill_(1)
    assert kinds(one) == ["out_of_bounds_write:x"]


def test_what_does_not_fit_is_unsupported_with_its_size(monkeypatch):
    one = memory()

    def refuse(*args, **kwargs):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "full", refuse)
    with pytest.raises(Unsupported, match=r"x spans 4,194,304 bytes, and the device has 1,073,741,824 free"):
        one.place(array([1], "int32"), "x", device=True)


def doubled(x, out):
    out.copy_(x * 2)
    return {"view": out[:2]}


class Counting:
    """Depends on how often it was called: a graph repeats what the host computed once."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, out):
        self.calls += 1
        out.copy_(x + self.calls)
        return {"view": out[:2]}


class Moving:
    """Returns a view of its buffer that begins somewhere else in every call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, out):
        self.calls += 1
        out.zero_()
        return {"view": out[self.calls % 4 :][:2]}


def buffers():
    return {"x": torch.arange(8), "out": torch.zeros(8, dtype=torch.int64)}


def test_a_replay_follows_values_that_are_copied_in():
    replay = capture(doubled, buffers(), cuda=Cuda())
    assert replay({"x": torch.arange(8) + 1})["view"].tolist() == [2, 4]
    assert replay({"x": torch.arange(8) + 5})["out"].tolist() == list(range(10, 26, 2))
    assert replay.failures({"x": torch.arange(8) + 9}) == []


@pytest.mark.parametrize(
    ("function", "expected"),
    [(Counting(), ["graph_diverges:out", "graph_diverges:view"]), (Moving(), ["address_moved:view"])],
)
def test_what_a_graph_cannot_repeat_is_named(function, expected):
    replay = capture(function, buffers(), cuda=Cuda())
    assert [failure.key for failure in replay.failures({"x": torch.arange(8) + 3})] == expected


def test_a_capture_leaves_the_values_of_its_buffers():
    tensors = buffers()
    capture(doubled, tensors, cuda=Cuda())
    assert tensors["out"].tolist() == [0] * 8


def test_other_shapes_do_not_fit_a_captured_graph():
    replay = capture(doubled, buffers(), cuda=Cuda())
    with pytest.raises(ValueError, match="x: a captured graph has one shape"):
        replay({"x": torch.arange(4)})
