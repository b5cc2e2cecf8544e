"""The emulated backends: launches as Triton's JIT makes them, real code from its AMD backend, and what is told."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.backends.base import Variation
from oracles.backends.cdna.backend import CdnaBackend
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, Output, Values
from oracles.judging import Job, Judging
from oracles.memory import Memory
from oracles.messages import Load
from oracles.providers.base import Implementation
from oracles.slot import Meta, Slot
from oracles.verdict import Unsupported

pytest.importorskip("triton", reason="the emulated backends compile with Triton")

KERNELS = Path(__file__).with_name("emulated_kernels.py")
LINES = KERNELS.read_text().splitlines()
ARCHITECTURES = ("gfx942", "gfx950")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def kernels(monkeypatch, cache, own_triton, kernel_module):
    """The kernels, new for each test, in a process whose Triton is put back afterwards."""
    own_triton(monkeypatch, cache)
    return kernel_module(monkeypatch, KERNELS)


@contextmanager
def watched(architecture="gfx942", variation=None, memory=None, backend=None):
    """A watched call outside of the judge."""
    backend = backend or CdnaBackend(architecture)
    backend.prepare()
    variation = variation or Variation()
    with backend.watch(memory or backend.memory(variation), variation) as observation:
        yield observation


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def line_of(part):
    numbers = [at for at, line in enumerate(LINES, 1) if part in line]
    assert len(numbers) == 1, (part, numbers)
    return numbers[0]


# --- launches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("warps", [1, 4])
def test_a_launch_on_cpu_tensors_runs_machine_code(kernels, architecture, warps):
    x, y = torch.arange(200, dtype=torch.int32), torch.full((100,), -1, dtype=torch.int32)
    with watched(architecture) as seen:
        kernels.scale[(2,)](x, y, 90, 2, 3, B=64, num_warps=warps)
    assert y.tolist() == [6 * n for n in range(90)] + [-1] * 10
    assert (seen.launches, seen.workgroups, seen.failures) == (1, 2, [])
    assert seen.instructions > 20 * warps


def test_grids_may_be_functions_and_the_hidden_arguments_tell_their_size(kernels):
    y = torch.zeros(24, dtype=torch.int32)
    with watched() as seen:
        kernels.programs[lambda arguments: (2, 3, 4)](y)
    assert y.tolist() == [234] * 24
    assert seen.workgroups == 24


def test_run_and_warmup(kernels):
    x, y = ints(1, 2, 3, 4), torch.zeros(4, dtype=torch.int32)
    with watched() as seen:
        kernels.scale.warmup(x, y, 4, 1, 2, B=32, grid=(1,))
        assert (seen.launches, len(seen.compilations)) == (0, 1)
        kernels.scale.run(x, y, 4, 1, 2, B=32, grid=(1,), warmup=False)
    assert y.tolist() == [2, 4, 6, 8]
    assert (seen.launches, len(seen.compilations)) == (1, 1)


def test_scalars_arrive_as_the_launcher_stores_them(kernels):
    y, inner = torch.zeros(8), ints(5)
    with watched():
        kernels.scalars[(1,)](y, -3, 1 << 45, 4_000_000_000, 0.1, 1.99, 2.5, True, (inner, (7,)))
    # bfloat16 is cut off, not rounded: 1.99 lies just below 2.
    assert y.tolist() == [-3, 32, 4_000_000_000, float(np.float16(0.1)), 1.984375, 2.5, 1, 12]


def test_a_tensor_descriptor_is_taken_apart(kernels):
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, y = torch.arange(40, dtype=torch.int32), torch.full((32,), -1, dtype=torch.int32)
    with watched() as seen:
        kernels.described[(1,)](TensorDescriptor.from_tensor(x, [32]), y, B=32)
    assert y.tolist() == list(range(2, 34))
    assert seen.failures == []


def test_a_grid_without_programs_launches_nothing(kernels):
    y = ints(7)
    with watched() as seen:
        kernels.programs[(0, 3)](y)
    assert (seen.launches, seen.workgroups, y.tolist()) == (1, 0, [7])


def test_launch_hooks_surround_the_launch(kernels, monkeypatch):
    from triton import knobs

    y, told = torch.zeros(1, dtype=torch.int32), []
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", lambda about: told.append((about.get()["name"], int(y[0]))))
    monkeypatch.setattr(knobs.runtime, "launch_exit_hook", lambda about: told.append((about.get()["name"], int(y[0]))))
    with watched():
        kernels.programs[(1,)](y)
    assert told == [("programs", 0), ("programs", 111)]


def test_of_several_configurations_the_first_is_run_untimed(kernels):
    x, y = ints(1, 2, 3), torch.zeros(3, dtype=torch.int32)
    with watched() as seen:
        kernels.tuned[lambda arguments: (1,)](x, y, 3)
    assert y.tolist() == [4 + 32, 8 + 32, 12 + 32]
    assert seen.launches == 1


def test_what_the_jit_tells_apart_is_a_compilation(kernels):
    x, y = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with watched() as seen:
        for n, stride in ((16, 1), (15, 1), (14, 1), (16, 2)):
            kernels.scale[(1,)](x, y, n, stride, 3, B=16)
        specialised = list(seen.compilations)
        for n, stride in ((16, 1), (15, 1), (14, 1), (16, 2)):
            kernels.unspecialised[(1,)](x, y, n, stride, 3, B=16)
    assert len(specialised) == 3
    assert specialised[0].startswith("scale (x=*i32:")
    assert specialised[0].endswith("n=i32:D, stride=constexpr:1, factor=i32, B=constexpr:16)")
    assert len(seen.compilations) == 4


def test_tensors_without_elements_have_no_address(kernels):
    x = torch.empty(0, dtype=torch.int32)
    y = torch.full((32,), -1, dtype=torch.int32)
    assert x.data_ptr() == 0
    with watched() as seen:
        kernels.scale[(1,)](x, y, 0, 1, 2, B=32)
    assert (y.tolist(), seen.failures) == ([-1] * 32, [])
    memory = Memory()
    empty = memory.allocate((0, 2), torch.int32, "rows")
    with watched(memory=memory) as seen:
        kernels.programs[(1,)](empty)
    assert [failure.key for failure in seen.failures] == ["out_of_bounds_write:rows"]


def test_each_architecture_compiles_for_itself(kernels):
    x, y = ints(1, 2, 3), torch.zeros(3, dtype=torch.int32)
    for architecture in ARCHITECTURES:
        with watched(architecture):
            kernels.scale[(1,)](x, y, 3, 1, 2, B=32)
    targets = {
        number: {kernel.metadata.target.arch for kernel in caches[0].values()}
        for number, caches in kernels.scale.device_caches.items()
    }
    assert targets == {0: {"gfx942"}, 1: {"gfx950"}}


# --- what is found ----------------------------------------------------------------------------------------------------


def test_a_stray_read_names_tensor_line_and_lane(kernels):
    memory = Memory()
    x = memory.place(array([1, 2, 3, 4], "int32"), "x", device=True)
    y = memory.allocate((4,), torch.int32, "y")
    with watched(memory=memory) as seen:
        kernels.beyond[(1,)](x, y, 4, B=64)
    assert [failure.key for failure in seen.failures] == ["out_of_bounds_read:x"]
    assert seen.failures[0].detail.startswith("read x, 1 elements past its last; kernel beyond, workgroup (0, 0, 0), ")
    assert f"emulated_kernels.py:{line_of('mask=at <= n')}: " in seen.failures[0].detail
    assert "lane 4 of 64, 1 lanes in all" in seen.failures[0].detail


def test_a_barrier_keeps_what_follows_it_apart(kernels):
    x = torch.zeros(512, dtype=torch.int32)
    with watched(variation=Variation(0, "random", 5)) as seen:
        kernels.waits[(1,)](x, B=256, num_warps=4)
    assert x.tolist() == [*range(1, 257), *range(256, 0, -1)]
    assert seen.failures == []


# --- masked loads without other ---------------------------------------------------------------------------------------


def test_the_second_compilation_fills_masked_loads_that_have_no_other(kernels):
    x = torch.arange(64, dtype=torch.int32)
    results = {}
    for sentinel in (0, 1):
        y = torch.zeros(2, dtype=torch.int32)
        with watched(variation=Variation(sentinel)) as seen:
            kernels.sums[(1,)](x, y, 60, B=64)
        results[sentinel] = y.tolist()
    total = sum(range(60))
    filled = (total + 4 * 0x5B5B5B5B + 2**31) % 2**32 - 2**31
    # The other load's value does not leave the tl.where around it.
    assert results == {0: [total, total], 1: [total, filled]}
    lines = [line_of(part) for part in ("near = tl.load(", "return tl.load(x + at, mask=keep)")]
    assert sorted(seen.poisoned) == sorted(f"{KERNELS}:{line}" for line in lines)


def test_one_line_alone_can_be_filled(kernels):
    x, y = torch.arange(64, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    backend = CdnaBackend("gfx942")
    line = f"{KERNELS}:{line_of('return tl.load(x + at, mask=keep)')}"
    for chosen, same in ((line, False), (f"{KERNELS}:1", True)):
        with backend.other_poison(chosen), watched(backend=backend):
            kernels.sums[(1,)](x, y, 60, B=64)
        assert (y[1].item() == sum(range(60))) is same


@pytest.mark.parametrize(
    ("dtype", "filled"),
    [
        ("int8", 0x5B),
        ("int64", 0x5B5B5B5B5B5B5B5B),
        ("uint8", 0x5B),
        ("bool", 1),
        ("float16", float("inf")),
        ("bfloat16", float("inf")),
        ("float32", float("inf")),
        ("float64", float("inf")),
        ("float8_e5m2", float("inf")),
        ("float8_e4m3fnuz", float("nan")),
    ],
)
def test_what_is_filled_in(kernels, dtype, filled):
    x = torch.zeros(32).to(getattr(torch, dtype))
    y = torch.zeros_like(x)
    with watched(variation=Variation(1)):
        kernels.copied[(1,)](x, y, 31, B=32)
    assert y[:31].to(torch.float64).count_nonzero() == 0
    np.testing.assert_equal(y[31].item(), filled)


def test_a_kernel_without_such_loads_is_compiled_once(kernels):
    x, y = ints(1, 2, 3), torch.zeros(3, dtype=torch.int32)
    for sentinel in (0, 1):
        with watched(variation=Variation(sentinel)):
            kernels.scale[(1,)](x, y, 3, 1, 2, B=32)
    first, second = (caches[0] for caches in kernels.scale.device_caches.values())
    assert [kernel.hash for kernel in first.values()] == [kernel.hash for kernel in second.values()]


def test_filled_code_has_cache_keys_of_its_own(kernels):
    x, y = torch.arange(64, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    for sentinel in (0, 1):
        with watched(variation=Variation(sentinel)):
            kernels.sums[(1,)](x, y, 60, B=64)
    first, second = (list(caches[0].values()) for caches in kernels.sums.device_caches.values())
    assert first[0].hash != second[0].hash


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_launch_outside_of_a_call_is_refused(kernels):
    CdnaBackend("gfx942").prepare()
    with pytest.raises(Unsupported, match="kernel programs is launched outside of a call"):
        kernels.programs[(1,)](ints(0))


def test_a_tensor_of_the_hosts_is_refused_as_on_a_device(kernels):
    memory = Memory()
    x = memory.place(array([1, 2], "int32"), "x_cpu", device=False)
    with watched(memory=memory), pytest.raises(ValueError, match="y: x_cpu is a tensor of the host's"):
        kernels.programs[(1,)](x)


def test_what_cannot_be_emulated_is_not_judged_even_if_the_call_swallows_it(kernels):
    with (
        pytest.raises(Unsupported, match="cooperative launches are not emulated"),
        watched(),
        pytest.raises(Unsupported),
    ):
        kernels.programs[(1,)](ints(0), launch_cooperative_grid=True)


def test_a_kernel_that_does_not_compile_raises_what_triton_raises(kernels):
    from triton.compiler.errors import CompilationError

    with watched(), pytest.raises(CompilationError, match="not here"):
        kernels.refused[(1,)](ints(0), UNKNOWN=1)


def test_nobody_is_timed(kernels):
    from triton.testing import do_bench

    with watched(), pytest.raises(Unsupported, match="there is no device to time it on"):
        do_bench(lambda: None)


# --- the backend ------------------------------------------------------------------------------------------------------


def record(function):
    """``y`` is the sum of all elements of ``x``."""
    contract = Contract(
        family="test", name="total", section="0", summary="",
        inputs=(Input(name="x", role="device", doc=""),), outputs=(Output(name="y", doc=""),),
        domain=lambda source: {},
        resample=lambda inputs: (inputs | {"x": inputs["x"].with_values(inputs["x"].data + 1)},),
        expected=lambda inputs: Values({"y": np.array([inputs["x"].data.sum()], np.int32)}),
        traits=lambda inputs: frozenset(), optimized="none", runs="triton",
    )  # fmt: skip
    implementation = Implementation(
        spec="t", provider="t", name="t", contract="test.total", runs="triton", load=lambda: function
    )
    return contract, implementation


def judged(function, values, architecture="gfx942"):
    contract, implementation = record(function)
    backend = CdnaBackend(architecture)
    backend.prepare()
    return judge(Subject(contract, implementation, function, backend), {"x": array(values, "int32")}), backend


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_right_kernel_passes_the_judge(kernels, architecture):
    def total(x):
        y = x.new_zeros(2)
        kernels.sums[(1,)](x, y, x.numel(), B=64)
        return y[:1].clone()

    failures, backend = judged(total, [5, 6, 7], architecture)
    assert failures == []
    assert backend.executed.launches >= 2
    assert backend.executed.instructions > backend.executed.launches


def test_a_read_of_memory_that_nobody_had_written_names_the_load(kernels):
    def total(x):
        y = x.new_empty(2)
        kernels.sums[(1,)](x.new_empty(4), y, 4, B=64)
        return y[:1].clone()

    failures, _ = judged(total, [5, 6, 7])
    assert [failure.key for failure in failures] == ["uninitialised_read:y"]
    told = "it read torch.new_empty #2 [4][0], which nobody had written; kernel sums, workgroup (0, 0, 0), "
    assert f"{told}{KERNELS.name}:{line_of('near = tl.load(')}: " in failures[0].detail


def test_what_ran_is_told_to_the_parent_once(kernels, tmp_path):
    def total(x):
        y = x.new_zeros(2)
        kernels.sums[(1,)](x, y, x.numel(), B=64)
        return y[:1].clone()

    contract, implementation = record(total)
    backend = CdnaBackend("gfx942")
    backend.prepare()
    subject = Subject(contract, implementation, total, backend)
    slot = Slot(tmp_path / "case.slot", create=Meta("test.total", "t", "t", "gfx942"))
    told = []
    load = Load("test.total", "t", "t", "gfx942", str(slot.path), str(tmp_path))
    judging = Judging(load, subject, [], slot, lambda event: told.append(event.executed))
    launches = []
    for values in ([1, 2], [3, 4, 5]):
        before = len(told)  # a slow run tells more than once
        judging.run([Job({"x": array(values, "int32")}, [])])
        launches.append(sum(count for count, _ in told[before:]))
    slot.close()
    assert launches[0] == launches[1] > 0
    assert tuple(map(sum, zip(*told, strict=True))) == backend.executed


def test_an_uninitialised_read_names_the_line(kernels):
    def total(x):
        y = x.new_zeros(2)
        kernels.sums[(1,)](x, y, x.numel(), B=64)
        return y[1:].clone()

    failures, _ = judged(total, [5, 6, 7])
    assert [failure.key for failure in failures] == ["uninitialised_read:y"]
    line = line_of("return tl.load(x + at, mask=keep)")
    assert (
        f"y[0] changes with what unwritten memory holds: it read lanes that kernel sums, {KERNELS.name}:{line}: "
        in (failures[0].detail)
    )
