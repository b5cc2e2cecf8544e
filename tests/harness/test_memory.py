"""Guarded memory: every byte that a call may not change is watched, and what is said about it is right."""

import itertools
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles.arrays import DTYPES, Array, array
from oracles.domain import HUGE_STRIDE
from oracles.memory import ALIGNMENT, GUARD, Memory, poison, torch_dtype, values_of

every_dtype = pytest.mark.parametrize("name", DTYPES)


@st.composite
def layouts(draw, max_size: int = 4) -> Array:
    """An array whose elements do not overlap: dimensions nested in any order, gaps, any stride where it is unused."""
    shape = tuple(draw(st.lists(st.integers(0, max_size), max_size=3)))
    strides = [0] * len(shape)
    reach = 1
    for axis in draw(st.permutations(range(len(shape)))):
        if shape[axis] <= 1:
            strides[axis] = draw(st.integers(0, 9))
            continue
        strides[axis] = reach + draw(st.integers(0, 3))
        reach += strides[axis] * (shape[axis] - 1)
    dtype = draw(st.sampled_from(["int8", "int16", "int32", "int64"]))
    data = np.arange(1, prod(shape) + 1).astype(DTYPES[dtype]).reshape(shape)
    return Array(dtype, data, draw(st.sampled_from([None, tuple(strides)])), draw(st.integers(0, 5)))


def placed(value: Array, *, writable: bool = False, sentinel: int = 0):
    memory = Memory(sentinel)
    tensor = memory.place(value, "x", device=True, writable=writable)
    return memory, memory.regions[0], tensor


def elements(value: Array) -> dict[int, list[int]]:
    """Byte offset from the first element -> index, by brute force."""
    size = value.data.itemsize
    return {
        size * sum(i * s for i, s in zip(at, value.layout, strict=True)): list(at)
        for at in itertools.product(*map(range, value.shape))
    }


@given(layouts(), st.booleans(), st.sampled_from([0, 1]))
def test_a_placed_tensor_has_the_values_and_the_layout(value, writable, sentinel):
    memory, region, tensor = placed(value, writable=writable, sentinel=sentinel)
    assert tuple(tensor.shape) == value.shape
    assert tensor.numel() == 0 or tensor.stride() == value.layout
    assert tensor.numpy().tolist() == value.data.tolist()
    assert region.address == tensor.data_ptr() or tensor.numel() == 0
    assert (region.address - value.offset * region.itemsize) % ALIGNMENT == GUARD % ALIGNMENT == 0
    assert list(memory.faults()) == []


@every_dtype
@pytest.mark.parametrize("sentinel", [0, 1])
def test_everything_that_is_no_element_is_poison(name, sentinel):
    dtype = torch_dtype(name)
    value = array(np.zeros((2, 2)), name, (5, 2), 3)
    _, region, _ = placed(value, sentinel=sentinel)
    whole = region.raw.copy()
    pattern = poison(dtype, sentinel)
    assert pattern.size == dtype.itemsize
    for start in elements(value):
        assert not whole[region.first + start : region.first + start + dtype.itemsize].any()
        whole[region.first + start : region.first + start + dtype.itemsize] = pattern
    assert region.first >= GUARD
    assert region.raw.size - region.first - region.span >= GUARD
    phase = region.first % dtype.itemsize
    usable = (whole.size - phase) // dtype.itemsize * dtype.itemsize
    assert (whole[phase : phase + usable].reshape(-1, dtype.itemsize) == pattern).all()


@every_dtype
def test_the_two_poisons_differ(name):
    assert poison(torch_dtype(name), 0).tobytes() != poison(torch_dtype(name), 1).tobytes()


@every_dtype
@pytest.mark.parametrize("sentinel", [0, 1])
def test_poison_is_no_legal_value(name, sentinel):
    dtype = torch_dtype(name)
    value = torch.from_numpy(poison(dtype, sentinel)).view(dtype)
    if name == "float8_e4m3fnuz":  # has one NaN only, and two poisons are needed
        assert value.view(torch.uint8)[0] in (0x7F, 0x80, 0xFF)
    elif dtype.is_floating_point:
        assert torch.isnan(value.to(torch.float32)).all()
    elif name in ("int32", "int64"):
        assert abs(int(value[0])) > 2**30
    elif name.startswith("int"):
        assert abs(int(value[0])) > 64
    else:
        assert name == "bool" or poison(dtype, sentinel).view(DTYPES[name])[0] > 64


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
@every_dtype
def test_an_allocated_tensor_is_contiguous_poison(name, shape):
    memory = Memory(1)
    tensor = memory.allocate(shape, torch_dtype(name), "torch.empty #1")
    assert tuple(tensor.shape) == shape
    assert tensor.is_contiguous()
    assert tensor.dtype == torch_dtype(name)
    flat = tensor.reshape(-1).view(torch.uint8).numpy()
    assert flat.tobytes() == poison(tensor.dtype, 1).tobytes() * prod(shape)
    assert memory.regions[0].allocated
    assert memory.regions[0].device
    assert list(memory.faults()) == []


@given(layouts(3), st.sampled_from([1, 2, 4, 8]))
def test_owns_agrees_with_a_walk_over_the_elements(value, size):
    _, region, _ = placed(value)
    owned = {start + byte for start in elements(value) for byte in range(region.itemsize)}
    offsets = np.arange(-40, region.span + 40)
    got = region.owns((offsets + region.address).astype(np.uint64), size)
    if value.layout == placed(array(value.data, value.dtype))[1].strides:
        wanted = [all(int(at) + k in owned for k in range(size)) for at in offsets]
    else:  # an access lies within one element of a strided view
        starts = [start + k for start in elements(value) for k in range(region.itemsize - size + 1)]
        wanted = np.isin(offsets, starts).tolist()
    assert got.tolist() == wanted


@given(layouts(3))
def test_locate_names_the_element_or_how_far_outside_it_is(value):
    _, region, _ = placed(value)
    known, size = elements(value), region.itemsize
    for offset in range(-3 * size, region.span + 3 * size):
        text = region.locate(region.address + offset)
        start = offset // size * size
        if offset < 0:
            assert text == f"x, {-start // size} elements before its first"
        elif offset >= region.span:
            assert text == f"x, {(offset - region.span) // size + 1} elements past its last"
        elif start in known:
            assert text == f"x{known[start]}"
        else:
            assert text.endswith("elements (between the elements of a strided view)")


def test_locate_counts_from_the_element_before_a_gap():
    _, region, _ = placed(array([[1, 2], [3, 4]], "int32", (10, 1)))
    assert region.locate(region.address + 4 * 5) == "x[0, 1] + 4 elements (between the elements of a strided view)"
    assert region.locate(region.address + 4 * 11) == "x[1, 1]"


def keys(memory: Memory) -> list[str]:
    return [failure.key for failure in memory.faults()]


@given(layouts(), st.booleans(), st.data())
def test_every_changed_byte_is_found(value, writable, data):
    memory, region, _ = placed(value, writable=writable)
    at = data.draw(st.integers(0, region.raw.size - 1))
    near = data.draw(st.sampled_from([at, region.first, region.first - 1, min(region.first + region.span, at)]))
    at = data.draw(st.sampled_from([at, near]))
    region.raw[at] ^= data.draw(st.integers(1, 255))
    owned = {region.first + start + byte for start in elements(value) for byte in range(region.itemsize)}
    mutated = [] if writable else ["input_mutated:x"]
    assert keys(memory) == (mutated if at in owned else ["out_of_bounds_write:x"])


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("strides", [None, (4, 2)])
def test_all_bytes_around_the_elements_are_watched(writable, strides):
    value = array([[1, 2], [3, 4]], "int16", strides, 1)
    memory, region, _ = placed(value, writable=writable)
    owned = {region.first + start + byte for start in elements(value) for byte in range(2)}
    near = range(region.first - 20, region.first + region.span + 20)
    for at in sorted({*near, *range(0, region.raw.size, 101), region.raw.size - 1}):
        region.raw[at] ^= 0x40
        if not (at in owned and writable):
            [failure] = memory.faults()
            assert failure.kind == ("input_mutated" if at in owned else "out_of_bounds_write")
            assert region.locate(int(region.raw.ctypes.data) + at) in failure.detail
        else:
            assert list(memory.faults()) == []
        region.raw[at] ^= 0x40
    assert list(memory.faults()) == []


@given(layouts(), st.sampled_from([0, 1]))
def test_writing_every_output_element_is_no_fault(value, sentinel):
    memory, _, tensor = placed(value, writable=True, sentinel=sentinel)
    tensor.fill_(77)
    made = memory.allocate((3,), torch.int32, "torch.empty #1 [3]")
    made.fill_(5)
    assert list(memory.faults()) == []


def test_a_write_past_an_allocation_names_the_function_that_made_it():
    memory = Memory()
    tensor = memory.allocate((3,), torch.int32, "torch.empty #4 [3]")
    tensor.as_strided((1,), (1,), tensor.storage_offset() + 3).fill_(1)
    [failure] = memory.faults()
    assert failure.key == "out_of_bounds_write:torch.empty"
    assert failure.detail == "wrote torch.empty #4 [3], 1 elements past its last"


def test_a_buffer_can_have_both_faults():
    memory, region, tensor = placed(array([1, 2, 3], "int64", (2,)))
    tensor.as_strided((5,), (1,), tensor.storage_offset()).fill_(0)
    assert keys(memory) == ["out_of_bounds_write:x", "input_mutated:x"]
    assert region.changed().size > 0


@given(layouts())
def test_overwriting_keeps_tensor_and_address_and_is_no_fault(value):
    memory, region, tensor = placed(value)
    before, around = tensor.data_ptr(), region.raw.copy()
    other = value.with_values(value.data[::-1] + 1 if value.data.ndim else value.data + 1)
    memory.overwrite("x", other)
    assert tensor.data_ptr() == before
    assert tensor.numpy().tolist() == other.data.tolist()
    assert list(memory.faults()) == []
    memory.overwrite("x", value)
    assert region.raw.tobytes() == around.tobytes()


def test_overwriting_a_buffer_that_is_not_there_is_refused():
    with pytest.raises((LookupError, StopIteration)):
        Memory().overwrite("y", array([1], "int8"))


def test_the_region_of_a_tensor_is_that_of_its_storage():
    memory = Memory()
    tensors = [memory.place(array([1, 2, 3], "int32", None, 2), name, device=True) for name in "ab"]
    assert [memory.region_of(tensor).name for tensor in tensors] == ["a", "b"]
    assert memory.region_of(tensors[1][1:].view(torch.int16)).name == "b"
    assert memory.region_of(torch.zeros(3)) is None


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


HUGE = [array([1, 2, 3], "int64", (HUGE_STRIDE,)), array([[1, 2], [3, 4]], "int32", (HUGE_STRIDE, 1), 3)]


@pytest.mark.parametrize("value", HUGE, ids=["column", "rows"])
def test_a_huge_stride_touches_little_memory_and_is_watched(value):
    before = resident()
    memory, region, tensor = placed(value)
    assert tensor.tolist() == value.data.tolist()
    assert list(memory.faults()) == []
    assert resident() - before < 1 << 22
    owned = {region.first + start for start in elements(value)}
    last = max(owned)
    for at in (region.first - 1, *owned, region.first + 8, last - 1, last + region.itemsize, region.raw.size - 1, 0):
        region.raw[at] ^= 1
        inside = any(start <= at < start + region.itemsize for start in owned)
        assert keys(memory) == ["input_mutated:x" if inside else "out_of_bounds_write:x"]
        region.raw[at] ^= 1
    memory.overwrite("x", value.with_values(value.data + 1))
    assert tensor.tolist() == (value.data + 1).tolist()


def test_a_large_plain_buffer_is_watched_as_well():
    memory = Memory()
    tensor = memory.allocate((1 << 22,), torch.int32, "torch.empty #1")
    tensor.fill_(1)
    assert list(memory.faults()) == []
    region = memory.regions[0]
    region.raw[-1] ^= 1
    assert keys(memory) == ["out_of_bounds_write:torch.empty"]


def test_values_become_tensors_lists_and_themselves():
    memory = Memory()
    value = (array([1], "int8"), (array([2], "int8"), None))
    first, (second, nothing) = values_of(value, memory, "t", device=True, writable=True)
    assert (first.tolist(), second.tolist(), nothing) == ([1], [2], None)
    assert [region.name for region in memory.regions] == ["t[0]", "t[1][0]"]
    assert all(region.writable for region in memory.regions)
    assert values_of("text", memory, "s", device=False, writable=False) == "text"
