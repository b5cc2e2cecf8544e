"""Host reads of device tensors are reported, once and by name; legal device code is not."""

import operator

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.interception import DEVICE, FILLED, HARMLESS, READS, intercepted
from oracles.memory import Memory, poison

VALUES = [3, 1, 0, 2]


class Bench:
    """Runs a function on placed tensors and keeps what was seen."""

    def __init__(self, device: bool, sentinel: int = 0) -> None:
        self.memory = Memory(sentinel)
        self.device = device

    def place(self, values, dtype="int64", strides=None) -> torch.Tensor:
        return self.memory.place(array(values, dtype, strides), f"x{len(self.memory.regions)}", device=self.device)

    def run(self, function, *tensors):
        on_device = [region.tensor for region in self.memory.regions if region.device]
        with intercepted(self.memory, on_device) as seen:
            self.result = function(*tensors)
        return [failure.where for failure in seen.failures]


def reads(function, *, device: bool = True, values=VALUES, dtype: str = "int64") -> list[str]:
    bench = Bench(device)
    return bench.run(function, bench.place(values, dtype))


DERIVED = {
    "itself": lambda x: x,
    "a view": lambda x: x.view(2, 2).t().reshape(-1)[1:],
    "arithmetic": lambda x: (x * 2 + 1).cumsum(0)[:3] - 5,
    "new_empty": lambda x: x.new_empty(3).copy_(x[:3]),
    "torch.empty": lambda x: torch.empty(3, dtype=x.dtype, device=x.device).fill_(1),
    "empty_like": lambda x: torch.empty_like(x).zero_(),
    "zeros": lambda x: torch.zeros(4, dtype=torch.int64, device=x.device),
    "zeros_like": lambda x: torch.zeros_like(x),
    "arange": lambda x: torch.arange(4, device=x.device),
    "concatenation": lambda x: torch.cat([x, x + 1])[2:5],
    "a part of a list": lambda x: torch.split(x, 2)[0],
    "a conversion": lambda x: x.to(torch.float32).to(torch.int64),
    "a clone": lambda x: x.detach().clone().contiguous(),
    "to the device": lambda x: torch.ones(3, dtype=torch.int64).to(x.device),
    "a host copy into it": lambda x: x.new_empty(3).copy_(torch.ones(3, dtype=torch.int64)),
}

KEPT = {
    "zeros": lambda x: torch.zeros(8, dtype=x.dtype, device=x.device),
    "empty": lambda x: torch.empty(8, dtype=x.dtype, device=x.device),
    "full": lambda x: torch.full((8,), 1, dtype=x.dtype, device=x.device),
    "arange": lambda x: torch.arange(8, dtype=x.dtype, device=x.device),
    "zeros_like": lambda x: torch.zeros_like(x),
    "new_zeros": lambda x: x.new_zeros(8),
    "a clone": lambda x: x.clone(),
    "arithmetic": lambda x: x + 1,
}


@pytest.mark.parametrize("made", KEPT)
def test_a_workspace_of_an_earlier_call_is_still_on_the_device(made):
    kept = []
    first = Bench(device=True)
    assert first.run(lambda x: kept.append(KEPT[made](x)), first.place(VALUES)) == []
    del first
    second = Bench(device=True)
    assert second.run(lambda x: kept[0][:2].copy_(x[:2]), second.place(VALUES)) == []
    third = Bench(device=True)
    assert third.run(lambda x: kept[0].tolist(), third.place(VALUES)) == ["tolist"]


ONE_ELEMENT = {
    "item": lambda x: x[1].item(),
    "int": lambda x: int(x[1]),
    "float": lambda x: float(x[1]),
    "bool": lambda x: bool(x[1] > 0),
    "complex": lambda x: complex(x[1]),
    "index": lambda x: operator.index(x[1]),
    "range": lambda x: range(x[1]),
    "if": lambda x: 1 if x[0] else 2,
    "not": lambda x: not x[0],
    "is_nonzero": lambda x: x[0].is_nonzero(),
    "torch.is_nonzero": lambda x: torch.is_nonzero(x[0]),
    "slice": lambda x: torch.zeros(9)[: x[1]],
    "list index": lambda x: [*range(2000)][x[1]],
    "format": lambda x: f"{x[1]}",
    "repr": lambda x: repr(x),
    "str": lambda x: str(x),
    "iteration": lambda x: [int(item) for item in x],
    "min": lambda x: min(x),
    "all": lambda x: bool((x == x).all()),
}

WHOLE = {
    "tolist": ("tolist", lambda x: x.tolist()),
    "numpy": ("numpy", lambda x: x.numpy()),
    "np.asarray": ("array", lambda x: np.asarray(x)),
    "dlpack": ("dlpack", lambda x: np.from_dlpack(x)),
    "cpu": ("cpu", lambda x: x.cpu()),
    "to cpu": ("cpu", lambda x: x.to("cpu")),
    "to cpu by keyword": ("cpu", lambda x: x.to(device="cpu")),
    "to torch.device": ("cpu", lambda x: x.to(torch.device("cpu"), torch.int32)),
    "to cpu without waiting": ("cpu", lambda x: x.to("cpu", non_blocking=True)),
    "nonzero": ("nonzero", lambda x: x.nonzero()),
    "torch.nonzero": ("nonzero", lambda x: torch.nonzero(x, as_tuple=True)),
    "argwhere": ("argwhere", lambda x: torch.argwhere(x)),
    "where with one argument": ("where", lambda x: torch.where(x > 0)),
    "masked_select": ("masked_select", lambda x: x.masked_select(x > 0)),
    "mask get": ("boolean mask", lambda x: x[x > 0]),
    "mask get in a tuple": ("boolean mask", lambda x: x[None][:, x > 0]),
    "mask set": ("boolean mask", lambda x: operator.setitem(x.clone(), x > 0, 5)),
    "equal": ("equal", lambda x: torch.equal(x, x)),
    "equal method": ("equal", lambda x: x.equal(x)),
    "allclose": ("allclose", lambda x: torch.allclose(x, x)),
    "unique": ("unique", lambda x: torch.unique(x)),
    "unique method": ("unique", lambda x: x.unique()),
    "unique by row": ("unique", lambda x: torch.unique(x, dim=0)),
    "unique_consecutive": ("unique_consecutive", lambda x: torch.unique_consecutive(x)),
    "bincount": ("bincount", lambda x: torch.bincount(x.abs())),
    "contains": ("contains", lambda x: 3 in x),
    "repeat_interleave": ("repeat_interleave", lambda x: torch.repeat_interleave(x, x.abs())),
    "repeat_interleave method": ("repeat_interleave", lambda x: x.repeat_interleave(x.abs())),
    "repeat_interleave of counts": ("repeat_interleave", lambda x: torch.repeat_interleave(x.abs())),
    "repeats by keyword": ("repeat_interleave", lambda x: torch.repeat_interleave(x, repeats=x.abs())),
    "copy into a host tensor": ("copy_", lambda x: torch.zeros(x.shape, dtype=x.dtype).copy_(x)),
}

NAMES = {"float": "float", "bool": "bool", "int": "int", "format": "format", "repr": "repr", "str": "repr"}


SOME = ("itself", "arithmetic", "torch.empty")


@pytest.mark.parametrize("derived", SOME)
@pytest.mark.parametrize("read", ONE_ELEMENT)
def test_reading_one_element_is_reported_once(derived, read):
    seen = reads(lambda x: ONE_ELEMENT[read](DERIVED[derived](x)))
    assert len(seen) == 1
    assert seen[0] == NAMES.get(read, seen[0])
    assert not seen[0].startswith("_")


@pytest.mark.parametrize("derived", SOME)
@pytest.mark.parametrize("read", WHOLE)
def test_reading_a_tensor_is_reported_once_by_name(derived, read):
    name, function = WHOLE[read]
    assert reads(lambda x: function(DERIVED[derived](x))) == [name]


@pytest.mark.parametrize("derived", DERIVED)
@pytest.mark.parametrize("read", ["tolist", "to cpu", "mask get", "copy into a host tensor"])
def test_what_derives_from_the_device_lives_there(derived, read):
    name, function = WHOLE[read]
    assert reads(lambda x: function(DERIVED[derived](x))) == [name]


OTHER_DOORS = {
    "torch.tensor": lambda x: torch.tensor(x[0]),
    "a list for torch.tensor": lambda x: torch.tensor([x[0], x[1]]),
    "to a host tensor": lambda x: x.to(torch.zeros(1)),
    "where by keyword": lambda x: torch.where(condition=x > 0),
    "an index of a host tensor": lambda x: torch.zeros(9)[x[1]],
    "a size": lambda x: torch.zeros(x[0]),
    "a filling": lambda x: torch.full((2,), x[0]),
    "combinations": lambda x: torch.combinations(x),
    "deeper torch code": lambda x: torch.nn.functional.one_hot(x),
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # the implementation's, not ours
@pytest.mark.parametrize("door", OTHER_DOORS)
def test_values_that_leave_by_another_door_are_reported(door):
    assert len(reads(OTHER_DOORS[door])) == 1


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # torch's, under NumPy 2
@pytest.mark.parametrize("device", [True, False])
def test_np_array_reads(device):
    assert reads(lambda x: np.array(x), device=device) == ["array"] * device


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")  # the case under test
@pytest.mark.parametrize("dtype", ["bool", "uint8"])
def test_a_mask_of_either_kind_reads(dtype):
    bench = Bench(True)
    mask = bench.place([1, 0, 1, 0], dtype)
    assert bench.run(lambda x, m: x[m], bench.place(VALUES), mask) == ["boolean mask"]


def test_a_device_mask_on_a_host_tensor_reads():
    assert reads(lambda x: torch.ones(4)[x > 0]) == ["boolean mask"]


def test_histc_reads():
    assert reads(lambda x: torch.histc(x, bins=3), dtype="float32") == ["histc"]


@pytest.mark.parametrize("read", [*ONE_ELEMENT, *WHOLE])
def test_host_tensors_may_be_read(read):
    function = ONE_ELEMENT.get(read) or WHOLE[read][1]
    assert reads(function, device=False) == []


def test_each_kind_of_read_is_reported_once_and_all_kinds_are():
    assert reads(lambda x: (x.tolist(), x.sum().item(), x.tolist(), (x + 1).sum().item())) == ["tolist", "item"]


def test_what_is_read_gives_the_right_values_and_belongs_to_the_host():
    bench = Bench(True)
    seen = bench.run(lambda x: [int(item) for item in x.cpu() + 1], bench.place(VALUES))
    assert (seen, bench.result) == (["cpu"], [4, 2, 1, 3])
    assert reads(lambda x: torch.nonzero(x).tolist()) == ["nonzero"]
    assert reads(lambda x: (x.cpu().device == x.device, x.to("cpu").device)) == ["cpu"]


def test_a_host_copy_is_no_view_of_the_device():
    bench = Bench(True)
    x = bench.place(VALUES)
    bench.run(lambda x: x.cpu().fill_(9), x)
    assert x.tolist() == VALUES


LEGAL = {
    "arithmetic": lambda x: (x + 1) * 2 - x // 2 % 3,
    "scalars": lambda x: 2 * x.clamp(0, 3).float().exp(),
    "cumsum": lambda x: torch.cumsum(x, 0, dtype=torch.int32),
    "searchsorted": lambda x: torch.searchsorted(x.sort().values, x, right=True),
    "index_select": lambda x: torch.index_select(x, 0, x),
    "integer index": lambda x: x[x],
    "integer index set": lambda x: operator.setitem(x.clone(), x[:2], 7),
    "gather": lambda x: x.gather(0, x),
    "scatter": lambda x: torch.zeros_like(x).scatter_(0, x, x),
    "cat": lambda x: torch.cat([x.new_zeros(1), x]),
    "stack": lambda x: torch.stack([x, x], dim=1).flatten(),
    "comparison": lambda x: (x > 1) & (x <= 3) | (x == 0),
    "where with three": lambda x: torch.where(x > 1, x, -1),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0),
    "shape": lambda x: [x.shape[0], x.numel(), len(x), x.size(0), x.dim(), x.ndim, x.stride(0)],
    "layout": lambda x: (x.dtype, x.is_contiguous(), x.data_ptr(), x.storage_offset(), x.element_size(), x.layout),
    "device": lambda x: (x.device, x.device.type, x.is_cuda, x.device == x.device, x.get_device()),
    "allocations": lambda x: torch.empty((3, 2), dtype=torch.int32, device=x.device).fill_(0),
    "new allocations": lambda x: (x.new_zeros(2), x.new_full((2,), 3), x.new_ones(1), x.new_empty(4)),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "cumsum out": lambda x: torch.cumsum(x, 0, out=x.new_empty(4)),
    "in place": lambda x: x.clone().add_(1).mul_(2).zero_().fill_(3),
    "copy between": lambda x: x.new_empty(4).copy_(x),
    "host to device": lambda x: x.new_empty(2).copy_(torch.tensor([1, 2])),
    "host values sent": lambda x: torch.tensor([1, 2]).to(x.device) + x[:2],
    "host values on the device": lambda x: torch.tensor([1, 2], device=x.device) + x[:2],
    "as_tensor": lambda x: torch.as_tensor([1, 2], device=x.device),
    "slice set": lambda x: operator.setitem(x.clone(), slice(1, 3), 5),
    "views": lambda x: x.view(2, 2).t().unsqueeze(0).expand(3, 2, 2).reshape(-1)[::2],
    "dtype conversion": lambda x: x.to(torch.int32).int().to(dtype=torch.int64).to(x),
    "to the same device": lambda x: x.to(x.device, torch.int32),
    "repeat_interleave of a size": lambda x: torch.repeat_interleave(x, x, output_size=6),
    "repeat_interleave of an int": lambda x: x.repeat_interleave(2),
    "reductions": lambda x: (x.sum(), x.max(), x.argmax(), x.any(), x.all()),
    "sort": lambda x: torch.sort(x, descending=True),
    "topk": lambda x: x.topk(2),
    "unbind": lambda x: torch.stack(x.unbind()),
    "iterating views": lambda x: torch.stack(list(x)),
    "identity": lambda x: (x is x, id(x), hash(x), isinstance(x, torch.Tensor), x is not None),
    "no gradient": lambda x: x.detach().requires_grad_(False),
    "nested containers": lambda x: torch.cat([*(x, x)]),
    "arange": lambda x: torch.arange(x.shape[0], device=x.device) + x,
    "pad": lambda x: torch.nn.functional.pad(x, (0, 2), value=-1),
    "diff": lambda x: torch.diff(x),
    "bucketize": lambda x: torch.bucketize(x, x.sort().values),
    "tril": lambda x: x.view(2, 2).tril(),
    "host arithmetic beside": lambda x: (torch.tensor([1, 2]).sum().item(), x + 1),
}


@pytest.mark.parametrize("code", LEGAL)
def test_legal_device_code_is_not_reported(code):
    assert reads(LEGAL[code]) == []


@pytest.mark.parametrize("name", sorted(READS))
def test_every_listed_read_is_exercised_here(name):
    """A name added to the list needs a test, and ``HARMLESS`` names are read through what they yield."""
    inner = {"_local_scalar_dense", "_unique2", "unique_dim"}  # what torch calls below `item` and `unique`
    tested = {name for name, _ in WHOLE.values()} | {*ONE_ELEMENT, "histc"} | inner | HARMLESS
    assert name in tested or name.strip("_") in tested


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(2, 3, dtype=x.dtype, device=x.device),
        lambda x: torch.empty_strided((2, 3), (3, 1), dtype=x.dtype, device=x.device),
        lambda x: torch.empty_like(x.view(2, 2)),
        lambda x: torch.empty_like(x[::2]),
        lambda x: x.new_empty((2, 3)),
        lambda x: x.new_empty_strided((2,), (1,)),
        lambda x: torch.empty((), dtype=torch.int64, device=x.device),
        lambda x: torch.empty(2, 3, dtype=torch.int64),
        lambda x: torch.empty(0, dtype=torch.int64),
    ],
)
@pytest.mark.parametrize("sentinel", [0, 1])
def test_new_memory_is_poisoned_and_guarded(make, sentinel):
    bench = Bench(True, sentinel)
    bench.run(make, bench.place(VALUES))
    region = bench.memory.region_of(bench.result)
    assert region.name.startswith("torch.")
    assert region.name.endswith(str(list(bench.result.shape)))
    wanted = poison(torch.int64, sentinel).tobytes() * bench.result.numel()
    assert bench.result.reshape(-1).numpy().tobytes() == wanted
    bench.result.as_strided((1,), (1,), bench.result.storage_offset() + bench.result.numel()).fill_(1)
    [failure] = bench.memory.faults()
    assert failure.key == f"out_of_bounds_write:{region.public_name}"


FILLINGS = {
    "zeros": (lambda x: torch.zeros(2, 3, dtype=torch.int32, device=x.device), np.zeros((2, 3), np.int32)),
    "ones": (lambda x: torch.ones(3, device=x.device), np.ones(3, np.float32)),
    "full": (lambda x: torch.full((3,), 7, device=x.device), np.full(3, 7, np.int64)),
    "full of a dtype": (lambda x: torch.full((2,), -1, dtype=torch.int32), np.full(2, -1, np.int32)),
    "full of nothing": (lambda x: torch.full((0, 2), 1.5), np.full((0, 2), 1.5, np.float32)),
    "arange": (lambda x: torch.arange(4, device=x.device), np.arange(4)),
    "arange from": (lambda x: torch.arange(2, 9, 3, dtype=torch.int32), np.arange(2, 9, 3, np.int32)),
    "new_zeros": (lambda x: x.new_zeros(2), np.zeros(2, np.int64)),
    "new_ones": (lambda x: x.new_ones(2), np.ones(2, np.int64)),
    "new_full": (lambda x: x.new_full((2,), 9), np.full(2, 9, np.int64)),
    "zeros_like": (lambda x: torch.zeros_like(x), np.zeros(4, np.int64)),
    "zeros_like of strided": (lambda x: torch.zeros_like(x[::2]), np.zeros(2, np.int64)),
    "ones_like": (lambda x: torch.ones_like(x, dtype=torch.float64), np.ones(4)),
    "full_like": (lambda x: torch.full_like(x, 3), np.full(4, 3, np.int64)),
}


@pytest.mark.parametrize("name", FILLINGS)
def test_filled_memory_is_guarded_and_right(name):
    make, wanted = FILLINGS[name]
    bench = Bench(True)
    assert bench.run(make, bench.place(VALUES)) == []
    got = bench.result
    assert got.numpy().tolist() == wanted.tolist()
    assert got.numpy().dtype == wanted.dtype
    assert bench.memory.region_of(got) is not None
    got.as_strided((1,), (1,), got.storage_offset() - 1 if got.numel() else got.storage_offset()).fill_(1)
    [failure] = bench.memory.faults()
    assert failure.kind == "out_of_bounds_write"


def test_every_listed_filling_is_exercised_here():
    assert set(FILLED) <= set(FILLINGS)


def test_strided_and_complex_results_keep_their_layout():
    bench = Bench(True)
    x = bench.place([[1, 2], [3, 4]])
    bench.run(lambda x: torch.zeros_like(x.t()), x)
    assert bench.result.stride() == (1, 2)
    bench.run(lambda x: torch.zeros(2, dtype=torch.complex64, device=x.device), x)
    assert bench.result.tolist() == [0j, 0j]


def test_a_sparse_result_is_left_alone():
    bench = Bench(False)
    assert bench.run(lambda: torch.zeros(2, 2, layout=torch.sparse_coo)) == []
    assert bench.result.layout == torch.sparse_coo


def test_device_and_host_have_devices_that_differ():
    bench = Bench(True)
    seen = bench.run(lambda x: [x.device, (x + 1).device, torch.zeros(1).device, x[1:].device], bench.place(VALUES))
    assert seen == []
    assert bench.result == [DEVICE, DEVICE, torch.device("cpu"), DEVICE]
    assert bench.run(lambda x: x.device.type, bench.memory.regions[0].tensor) == []
    assert bench.result == "cpu"


SENT = {
    "to": lambda x: torch.tensor([1, 2]).to(x.device),
    "tensor": lambda x: torch.tensor([1, 2], device=x.device),
    "as_tensor": lambda x: torch.as_tensor([1, 2], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "linspace": lambda x: torch.linspace(0, 1, 3, device=x.device),
    "eye": lambda x: torch.eye(2, device=x.device),
    "rand": lambda x: torch.rand(2, device=x.device),
}


@pytest.mark.parametrize("way", SENT)
def test_host_values_sent_to_the_device_live_there(way):
    assert reads(lambda x: SENT[way](x).tolist()) == ["tolist"]


def test_results_of_torch_functions_with_several_outputs_live_on_the_device():
    assert reads(lambda x: torch.sort(x).indices.tolist()) == ["tolist"]
    assert reads(lambda x: x.max(0).values.item()) == ["item"]
    assert reads(lambda x: torch.topk(x, 2)[1].numpy()) == ["numpy"]


def test_a_device_tensor_given_by_keyword_is_seen():
    assert reads(lambda x: torch.sum(input=x).item()) == ["item"]
    assert reads(lambda x: torch.equal(input=x, other=x)) == ["equal"]
    assert reads(lambda x: torch.nonzero(input=x)) == ["nonzero"]


def test_nothing_is_intercepted_afterwards():
    bench = Bench(True)
    x = bench.place(VALUES)
    bench.run(lambda x: x + 1, x)
    assert x.device == torch.device("cpu")
    assert x.tolist() == VALUES
    assert bench.memory.region_of(torch.empty(3)) is None
