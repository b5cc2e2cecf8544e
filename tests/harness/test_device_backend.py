"""The device backends, against a stand-in for torch on a device."""

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.backends import by_name, cuda, rocm
from oracles.backends.base import DEVICE_LOST, Observation, Variation
from oracles.backends.device import faults, launches, syncs, vendor
from oracles.backends.device.backend import DeviceBackend
from oracles.backends.device.runtime import architecture_of
from oracles.backends.device.vendor import DeviceUnavailable, facts_in
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, Output, Values
from oracles.interception import own_waits
from oracles.providers.base import Implementation

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = runpy.run_path(str(Path(__file__).with_name("device_stand_in.py")))
Cuda, stand_in = STAND_IN["Cuda"], STAND_IN["stand_in"]
HIP = {"__version__": "2.11.0", "hip": "7.0", "cuda": None}
_kept: dict = {}


def record(**changes):
    """``y = x * 2``, and a buffer whose first element becomes the number of elements."""
    fields = {
        "family": "test",
        "name": "double",
        "section": "0",
        "summary": "",
        "inputs": (
            Input(name="x", role="device", doc=""),
            Input(name="x_cpu", role="host", doc=""),
            Input(name="state", role="device", doc="", inout=True),
        ),
        "outputs": (Output(name="y", doc=""),),
        "domain": lambda source: {},
        "resample": lambda inputs: (inputs | {"x": inputs["x"].with_values(inputs["x"].data + 1)},),
        "expected": lambda inputs: Values(
            {
                "y": inputs["x"].data * 2,
                "state": np.concatenate([[inputs["x"].data.size], inputs["state"].data[1:]]).astype(np.int32),
            }
        ),
        "traits": lambda inputs: frozenset(),
        "optimized": "none",
        "runs": "triton",
    }
    return Contract(**(fields | changes))


def inputs(strides=None, offset=0):
    x = array([3, 1, 2], "int32", strides, offset)
    return {"x": x, "x_cpu": array([3, 1, 2], "int64"), "state": array([0, 5], "int32")}


def backend(handle=None):
    handle = handle or stand_in()
    return DeviceBackend(rocm.VENDOR, lambda: handle)


def judged(function, values=None):
    implementation = Implementation(
        spec="test", provider="test", name="test", contract="test.double", runs="host", load=lambda: function
    )
    subject = Subject(record(), implementation, function, backend())
    return [failure.key for failure in judge(subject, values or inputs())]


def right(x, x_cpu, state):
    state[0].fill_(x.shape[0])
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y.copy_(x * 2)
    return y


def stray(offset_of):
    """The right results, and one byte changed somewhere on the device."""

    def function(x, x_cpu, state):
        y = right(x, x_cpu, state)
        y.as_strided((1,), (1,), offset_of(x, y, state)).fill_(9)
        return y

    return function


def unwritten(x, x_cpu, state):
    right(x, x_cpu, state)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def remembers(x, x_cpu, state):
    y = right(x, x_cpu, state)
    # The tensor is kept too, so that an address is only met again when its buffer is refilled.
    return _kept.setdefault(x.data_ptr(), (x, y))[1]


def reads_back(x, x_cpu, state):
    x.tolist()
    return right(x, x_cpu, state)


def fails_late(x, x_cpu, state):
    raise IndexError("no")


def result_on_no_buffer(x, x_cpu, state):
    right(x, x_cpu, state)
    return x * 2


@pytest.mark.parametrize("layout", [(None, 0), ((3,), 0), (None, 1), ((5,), 2)])
@pytest.mark.parametrize("function", [right, result_on_no_buffer])
def test_a_right_implementation_passes_in_every_layout(function, layout):
    assert judged(function, inputs(*layout)) == []


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (stray(lambda x, y, state: y.storage_offset() + y.numel()), ["out_of_bounds_write:y"]),
        (stray(lambda x, y, state: x.storage_offset() - 1), ["out_of_bounds_write:x"]),
        (stray(lambda x, y, state: y.storage_offset() + (1 << 18)), ["out_of_bounds_write:y"]),
        (stray(lambda x, y, state: 1), ["out_of_bounds_write:x"]),
        (stray(lambda x, y, state: x.storage_offset()), ["input_mutated:x"]),
        (unwritten, ["unwritten:y"]),
        (reads_back, ["host_sync:tolist"]),
        (fails_late, ["crash:IndexError"]),
    ],
)
def test_each_fault_is_named(function, expected):
    assert judged(function) == expected


def test_a_write_between_the_elements_of_a_strided_input_is_seen():
    function = stray(lambda x, y, state: x.storage_offset() + 1)
    assert judged(function, inputs((2,))) == ["out_of_bounds_write:x"]


def test_a_result_that_is_kept_for_an_address_is_stale():
    _kept.clear()
    found = judged(remembers)
    _kept.clear()
    assert found == ["stale:y"]


def test_waits_that_torch_reports_are_host_syncs():
    def function(x, x_cpu, state):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return right(x, x_cpu, state)

    assert judged(function) == ["host_sync:stream"]


def test_waits_on_purpose_are_host_syncs_and_are_restored():
    namespace = Cuda()
    failures = []
    before = namespace.Event.synchronize
    with syncs.observed(namespace, failures):
        assert namespace.mode == "warn"
        namespace.synchronize()
        namespace.synchronize()
        namespace.Event().synchronize()
    assert [failure.key for failure in failures] == ["host_sync:synchronize", "host_sync:Event.synchronize"]
    assert namespace.Event.synchronize is before
    with syncs.observed(namespace, failures), own_waits():
        # A wait of a kind that was not seen before would be reported.
        failures.clear()
        namespace.Event().synchronize()
        namespace.synchronize()
    assert failures == []
    assert namespace.mode == 0
    namespace.synchronize()
    assert failures == []


def test_what_torch_says_during_a_wait_on_purpose_is_the_same_wait():
    class Speaking(Cuda):
        def synchronize(self):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    namespace, failures = Speaking(), []
    with syncs.observed(namespace, failures):
        namespace.synchronize()
    assert [failure.key for failure in failures] == ["host_sync:synchronize"]


def test_other_warnings_pass_through():
    with pytest.warns(UserWarning, match="something else"), syncs.observed(Cuda(), []):
        warnings.warn("something else", stacklevel=1)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("CUDA error: an illegal memory access was encountered", "illegal memory access"),
        ("HIP error: an illegal memory access was encountered", "illegal memory access"),
        ("Triton Error [CUDA]: an illegal memory access was encountered", "illegal memory access"),
        ("CUDA error: device-side assert triggered", "device-side assert"),
        ("CUDA error: misaligned address", "misaligned address"),
        ("HIP error: unspecified launch failure", "device error"),
    ],
)
def test_a_lost_device_has_an_exit_code_that_names_the_fault(text, where):
    code = faults.exit_code_of(RuntimeError(text))
    assert code is not None
    assert DEVICE_LOST[code] == where


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: invalid argument"), ValueError("illegal memory access")])
def test_other_errors_do_not_end_the_process(error):
    assert faults.exit_code_of(error) is None
    with pytest.raises(type(error)), faults.ending_the_process():
        raise error


def test_a_lost_device_ends_the_process_during_the_case():
    namespace = Cuda()
    one = backend(stand_in(cuda=namespace))
    child = os.fork()
    if child == 0:
        try:
            memory = one.memory(Variation())
            with one.watch(memory, Variation()):
                namespace.pending = RuntimeError("HIP error: an illegal memory access was encountered")
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 71


def test_compiled_variants_are_named_and_counted(monkeypatch):
    knobs = pytest.importorskip("triton").knobs
    from triton.runtime.jit import JITFunction

    kernels = {16: object(), 1: object()}
    seen: set[int] = set()

    class Name:
        name = "module.kernel"
        __name__ = "kernel"

    def run(function, *args, grid, warmup, **kwargs):
        divisible = args[0]
        if divisible not in seen:
            seen.add(divisible)
            attributes = {(0,): [["tt.divisibility", 16]]} if divisible == 16 else {}
            compilation = {
                "signature": {"x": "*i32", "n": "i32", "BLOCK": "constexpr"},
                "constants": {(2,): 64},
                "configs": [attributes],
                "num_warps": 4,
                "key": str(divisible),
            }
            knobs.runtime.jit_post_compile_hook(fn=Name, compile=compilation, key="", repr="")
        return kernels[divisible]

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(launches, "_compiled", {})
    first, second = Observation(), Observation()
    with launches.counted(first):
        for divisible in (16, 1, 16):
            JITFunction.run(Name, divisible, grid=(1,), warmup=False)
    with launches.counted(second):
        JITFunction.run(Name, 16, grid=(1,), warmup=False)
    assert (first.launches, second.launches) == (3, 1)
    assert [text.split(" #")[0] for text in first.compilations] == [
        "kernel (x: *i32 divisible, n: i32, BLOCK=64) warps 4",
        "kernel (x: *i32, n: i32, BLOCK=64) warps 4",
    ]
    assert second.compilations == first.compilations[:1]
    assert JITFunction.run is run
    assert knobs.runtime.jit_post_compile_hook is None


def test_an_exhausted_device_is_a_limit():
    assert "exhausted" in backend().limit_of(torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"))
    assert backend().limit_of(RuntimeError("no")) is None


def test_prepare_refuses_a_device_that_was_touched_before_the_fork():
    namespace = Cuda()
    one = backend(stand_in(cuda=namespace))
    one.prepare()
    assert not namespace.initialised
    namespace.set_device(0)
    with pytest.raises(RuntimeError, match="before the fork"):
        one.prepare()


@pytest.mark.parametrize(
    ("handle", "index", "message"),
    [
        (stand_in(build="cuda"), "0", "is not built for ROCm"),
        (stand_in(cuda=Cuda(count=0)), "0", "sees no device"),
        (stand_in(cuda=Cuda(count=2)), "2", "ORACLES_DEVICE is 2, and 2 devices are visible"),
        (stand_in(), "first", "no index of a device"),
    ],
)
def test_what_is_missing_is_said_when_the_device_is_opened(monkeypatch, handle, index, message):
    monkeypatch.setenv(vendor.INDEX, index)
    with pytest.raises(DeviceUnavailable, match=message):
        backend(handle).begin()


def test_the_chosen_device_is_used(monkeypatch):
    namespace = Cuda(count=4)
    monkeypatch.setenv(vendor.INDEX, "3")
    one = backend(stand_in(cuda=namespace))
    one.begin()
    assert namespace.index == 3
    assert one.runtime().architecture == "gfx942"


@pytest.mark.parametrize(
    ("facts", "nodes", "variables", "reason"),
    [
        (HIP, ["kfd"], {}, None),
        (None, ["kfd"], {}, "torch is not installed"),
        ({"__version__": "2.13.0+cpu", "hip": None}, ["kfd"], {}, "torch 2.13.0+cpu is not built for ROCm"),
        (HIP, [], {}, "no driver is loaded"),
        (HIP, ["kfd"], {"HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES hides every device"),
        (HIP, ["kfd"], {"ROCR_VISIBLE_DEVICES": "-1"}, "ROCR_VISIBLE_DEVICES hides every device"),
        (HIP, ["kfd"], {"HIP_VISIBLE_DEVICES": "1,2"}, None),
        (HIP, ["kfd"], {"ORACLES_DEVICE": "x"}, "no index"),
    ],
)
def test_availability_is_decided_by_cheap_facts(monkeypatch, tmp_path, facts, nodes, variables, reason):
    for name in (*rocm.VENDOR.visible, vendor.INDEX):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(vendor, "torch_facts", lambda: facts)
    for node in nodes:
        (tmp_path / node).touch()
    found = rocm.VENDOR.unavailable(tmp_path)
    assert found is None if reason is None else reason in found


def test_a_version_file_is_read_without_running_it():
    source = "from typing import Optional\n__version__ = '2.11.0+cu130'\n"
    source += "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    assert facts_in(source + "debug = False\nraise SystemExit\n") == {
        "__version__": "2.11.0+cu130",
        "cuda": "13.0",
        "hip": None,
    }


def test_listing_backends_imports_neither_torch_nor_triton():
    program = (
        "import sys; from oracles.backends import all_backends\n"
        "print({name: one.unavailable() for name, one in all_backends().items()})\n"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "'cuda'" in run.stdout
    assert "'rocm'" in run.stdout


def test_both_are_backends():
    assert by_name("cuda") is cuda.BACKEND
    assert by_name("rocm") is rocm.BACKEND
    assert cuda.BACKEND.environment() == {"TRITON_INTERPRET": "0"}


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("gfx942:sramecc+:xnack-", "float8_e4m3fnuz"),
        ("gfx942", "float8_e4m3fnuz"),
        ("gfx950:sramecc+:xnack-", "float8_e4m3fn"),
        ("gfx90a", None),
    ],
)
def test_float8_of_amd_architectures(architecture, expected):
    assert rocm.fp8_dtype(architecture) == expected


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [("sm_80", None), ("sm_89", "float8_e4m3fn"), ("sm_90a", "float8_e4m3fn"), ("sm_120", "float8_e4m3fn")],
)
def test_float8_of_nvidia_architectures(architecture, expected):
    assert cuda.fp8_dtype(architecture) == expected


def test_architecture_names():
    properties = Cuda(architecture="gfx950:sramecc+:xnack-").get_device_properties(0)
    assert architecture_of(properties, rocm.VENDOR) == "gfx950"
    assert architecture_of(properties, cuda.VENDOR) == "sm_90"
