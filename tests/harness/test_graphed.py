"""Captured graphs in the judge: a call that cannot be repeated by replaying its launches is found (G10)."""

import ctypes
import runpy
from pathlib import Path

from oracles.arrays import array
from oracles.backends import rocm
from oracles.backends.device.backend import DeviceBackend
from oracles.backends.host import HostBackend
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, Values
from oracles.graphed import applies, graphs
from oracles.providers.base import Implementation

STAND_IN = runpy.run_path(str(Path(__file__).with_name("device_stand_in.py")))
X = {"x": array([3, 1, 2], "int32"), "tables": (array([5], "int32"),), "out": array([-1, -1, -1], "int32")}


def contract(*more: Input) -> Contract:
    """``out = x + tables[0]``, written into the caller's buffer."""
    return Contract(
        family="toy",
        name="toy",
        section="9.9",
        summary="",
        inputs=(
            Input(name="x", role="device", doc=""),
            Input(name="tables", role="device", many=True, doc=""),
            *more,
            Input(name="out", role="device", inout=True, doc=""),
        ),
        outputs=(),
        domain=lambda source: X,
        resample=lambda inputs: (
            inputs | {"x": inputs["x"].with_values(inputs["x"].data[::-1])},
            inputs | {"tables": (inputs["tables"][0].with_values([8]),)},
        ),
        expected=lambda inputs: Values({"out": inputs["x"].data + inputs["tables"][0].data}),
        traits=lambda inputs: frozenset(),
        optimized="toy:toy",
        runs="host",
    )


def judged(function, *, graphed=True):
    implementation = Implementation(
        spec="toy", provider="toy", name="toy", contract="toy.toy", runs="host", load=lambda: function, graphs=graphed
    )
    backend = DeviceBackend(rocm.VENDOR, STAND_IN["stand_in"])
    return [failure.key for failure in judge(Subject(contract(), implementation, function, backend), X)]


def right(x, tables, out):
    out.copy_(x + tables[0])


def behind_the_graph(x, tables, out):
    """Right whenever it is called, by work that no graph records."""
    right(x, tables, out)
    held = (ctypes.c_int32 * out.numel()).from_address(out.data_ptr())
    sums = list(held)
    out.zero_()
    held[:] = sums


def test_a_call_that_follows_its_buffers_passes():
    assert judged(right) == []


def test_work_that_a_replay_does_not_repeat_is_found():
    assert "graph_diverges:out" in judged(behind_the_graph)


def test_nothing_is_captured_of_an_implementation_that_does_not_claim_it():
    assert "graph_diverges:out" not in judged(behind_the_graph, graphed=False)


def test_an_exception_during_the_capture_is_named(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    backend = DeviceBackend(rocm.VENDOR, STAND_IN["stand_in"])
    monkeypatch.setattr(backend, "captured", refuse)
    (failure,) = graphs(contract(), right, backend, X)
    assert failure.key == "graph_diverges:capture"
    assert "not permitted when stream is capturing" in failure.detail


def test_contracts_that_read_on_the_host_are_left_out():
    assert applies(contract())
    assert not applies(contract(Input(name="x_cpu", role="host", doc="")))


def test_backends_without_graphs_are_left_out():
    assert graphs(contract(), right, HostBackend(), X) == []
