"""One guarded call: what is passed, what is taken as output, what is restored afterwards."""

import os

import numpy as np
import pytest
import torch

from oracles.arrays import DTYPES, array
from oracles.backends import UnknownBackend, all_backends, by_name
from oracles.backends.base import Variation
from oracles.call import bits, call
from oracles.contract import Contract, Input, Output, Values
from oracles.memory import POISON_BYTES
from oracles.verdict import Unsupported, WrongShape

HOST = by_name("host")


def contract(inputs=("x",), outputs=("y",), inout=(), host=(), **changes) -> Contract:
    """A contract whose inputs are device tensors unless said otherwise."""
    return Contract(
        family="toy",
        name="toy",
        section="9.9",
        summary="",
        inputs=tuple(
            Input(name=name, role="host" if name in host else "device", doc="", inout=name in inout) for name in inputs
        ),
        outputs=tuple(Output(name=name, doc="") for name in outputs),
        domain=lambda source: {},
        resample=lambda inputs: (),
        expected=lambda inputs: Values({}),
        traits=lambda inputs: frozenset(),
        optimized="toy:toy",
        runs="host",
        **changes,
    )


X = {"x": array([3, 1, 2], "int32")}
TWO = contract(outputs=("y", "z"))


def run(function, inputs=X, record=None, variation=None):
    return call(record or contract(), function, HOST, inputs, variation or Variation())


def keys(result) -> list[str]:
    return [failure.key for failure in result.failures]


@pytest.mark.parametrize(
    "shape",
    [
        lambda y, z: (y, z),
        lambda y, z: [y, z],
        lambda y, z: {"z": z, "y": y},
        lambda y, z: {"z": z, "y": y, "more": 1},
    ],
)
def test_outputs_come_in_order_or_by_name(shape):
    result = run(lambda x: shape(x + 1, x * 2), record=TWO)
    assert {name: value.tolist() for name, value in result.outputs.items()} == {"y": [4, 2, 3], "z": [6, 2, 4]}
    assert result.dtypes == {"y": "int32", "z": "int32"}
    assert (keys(result), result.misshapen, result.error) == ([], [], None)


@pytest.mark.parametrize("make", [lambda y: y, lambda y: (y,), lambda y: [y], lambda y: {"y": y}])
def test_a_single_output_comes_alone_or_in_a_container(make):
    assert run(lambda x: make(x + 1)).outputs["y"].tolist() == [4, 2, 3]


@pytest.mark.parametrize(
    ("returned", "described"),
    [
        (lambda x: x + 1, "Tensor"),
        (lambda x: None, "NoneType"),
        (lambda x: (x + 1,), "tuple"),
        (lambda x: [x + 1] * 3, "list with 3 items"),
        (lambda x: {"y": x + 1}, "dict with y"),
        (lambda x: {}, "dict with nothing"),
        (lambda x: (), "tuple with 0 items"),
    ],
)
def test_a_wrong_number_of_outputs_is_a_wrong_shape(returned, described):
    [failure] = run(returned, record=TWO).misshapen
    assert isinstance(failure, WrongShape)
    assert failure.key == "wrong_shape:outputs"
    assert failure.detail == f"returned {described}; the contract has y, z"


def test_a_tensor_that_is_not_dense_is_a_wrong_shape():
    [failure] = run(lambda x: torch.zeros(2, 2).to_sparse()).misshapen
    assert failure.key == "wrong_shape:y"


def test_a_tensor_that_no_memory_holds_is_a_wrong_shape():
    [failure] = run(lambda x: torch.zeros(1, dtype=torch.int32).expand(10**6, 10**6)).misshapen
    assert failure.key == "wrong_shape:y"
    assert "int32 [1000000, 1000000]" in failure.detail


def test_python_values_and_lists_of_tensors_are_taken_as_they_are():
    result = run(lambda x: (7, [x + 1, (x * 2, None)]), record=TWO)
    assert result.outputs["y"] == 7
    first, (second, nothing) = result.outputs["z"]
    assert (first.tolist(), second.tolist(), nothing) == ([4, 2, 3], [6, 2, 4], None)
    assert set(result.tensors) == {"z[0]", "z[1][0]"}


def test_arguments_are_passed_by_keyword_with_tuples_as_lists():
    seen = {}
    inputs = {"x": (array([1], "int32"), array([2], "int64")), "k": 5, "mode": "all", "none": None}
    record = contract(inputs=("x", "k", "mode", "none"))
    run(lambda **arguments: seen.update(arguments) or 0, inputs, record)
    assert [tensor.tolist() for tensor in seen["x"]] == [[1], [2]]
    assert (seen["k"], seen["mode"], seen["none"]) == (5, "all", None)


def test_outputs_are_copies_and_tensors_the_originals():
    result = run(lambda x: x + 1)
    result.tensors["y"].fill_(0)
    assert result.outputs["y"].tolist() == [4, 2, 3]


@pytest.mark.parametrize("name", DTYPES)
def test_bits_of_every_dtype_come_back(name):
    value = array([0, 1], name)
    result = run(lambda x: x.clone(), {"x": value})
    assert result.outputs["y"].tobytes() == value.data.tobytes()
    assert result.dtypes["y"] == name


def test_bits_of_a_strided_view_come_in_order():
    base = torch.arange(6, dtype=torch.float32).to(torch.bfloat16).view(2, 3)
    assert bits(base.t()).tobytes() == base.t().contiguous().view(torch.uint16).numpy().tobytes()
    assert bits(torch.arange(6).view(2, 3).t()).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    "returned", [lambda x: x, lambda x: x[1:], lambda x: x.view(-1), lambda x: x.view(torch.int16), lambda x: [x]]
)
def test_an_output_that_shares_memory_with_an_input_is_stale(returned):
    result = run(returned)
    assert keys(result) == ["stale:y"]
    assert result.failures[0].detail == "shares memory with the input x"


def test_a_list_output_that_holds_an_input_is_stale():
    result = run(lambda x: (1, [x + 1, x]), record=TWO)
    assert [failure.kind for failure in result.failures] == ["stale"]


@pytest.mark.parametrize("returned", [lambda x: x.clone(), lambda x: x[:0], lambda x: 5, lambda x: torch.zeros(2)])
def test_other_outputs_share_nothing(returned):
    assert keys(run(returned)) == []


def test_an_in_out_buffer_is_judged_where_it_was_passed():
    record = contract(inputs=("x", "buffer"), inout=("buffer",))
    inputs = X | {"buffer": array([9, 9, 9, 9], "int32")}

    def function(x, buffer):
        buffer[:3].copy_(x)
        return buffer[:3]

    result = run(function, inputs, record)
    assert result.outputs["buffer"].tolist() == [3, 1, 2, 9]
    assert result.outputs["y"].tolist() == [3, 1, 2]
    assert (keys(result), result.touched) == ([], ["buffer"])


def test_untouched_buffers_and_own_allocations_do_not_count_as_touched():
    record = contract(inputs=("x", "buffer"), inout=("buffer",))
    result = run(lambda x, buffer: x.new_zeros(2).add_(1), X | {"buffer": array([9], "int32")}, record)
    assert result.touched == []


def test_buffers_in_a_tuple_are_touched_by_name():
    record = contract(inputs=("out",), outputs=(), inout=("out",))
    inputs = {"out": (array([1], "int32"), array([2], "int32"))}
    result = run(lambda out: (out[1].fill_(5), ())[1], inputs, record)
    assert result.touched == ["out[1]"]
    assert [item.tolist() for item in result.outputs["out"]] == [[1], [5]]


def test_an_input_that_is_written_is_named_with_its_element():
    result = run(lambda x: x[1:2].fill_(7).clone())
    assert keys(result) == ["input_mutated:x"]
    assert result.failures[0].detail == "changed x[1]"


def past_the_end(x):
    y = torch.empty(3, dtype=torch.int32)
    y.copy_(torch.zeros(3))
    y.as_strided((4,), (1,), y.storage_offset()).fill_(1)
    return y


def test_a_fault_of_a_returned_buffer_is_a_fault_of_that_output():
    result = run(past_the_end)
    assert keys(result) == ["out_of_bounds_write:y"]
    assert result.failures[0].detail == "wrote y, 1 elements past its last"


def test_a_fault_of_a_buffer_that_is_not_returned_keeps_its_own_name():
    result = run(lambda x: (past_the_end(x), x + 1)[1])
    assert keys(result) == ["out_of_bounds_write:torch.empty"]
    assert keys(run(lambda x: past_the_end(x)[:0].clone())) == ["out_of_bounds_write:torch.empty"]


def test_a_returned_buffer_without_a_fault_takes_no_blame():
    result = run(lambda x: (past_the_end(x), torch.zeros(2))[1])
    assert keys(result) == ["out_of_bounds_write:torch.empty"]


def test_host_reads_are_failures_of_device_inputs_only():
    record = contract(inputs=("x", "twin"), host=("twin",))
    inputs = X | {"twin": array([3, 1, 2], "int64")}
    assert keys(run(lambda x, twin: x[: int(twin[1])].clone(), inputs, record)) == []
    assert keys(run(lambda x, twin: x[: int(x[1])].clone(), inputs, record)) == ["host_sync:int"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), GeneratorExit(), KeyError("k"), RecursionError()])
def test_an_exception_is_kept(error):
    def function(x):
        raise error

    result = run(function)
    assert result.error is error
    assert result.outputs == {}


def test_damage_before_an_exception_is_kept():
    def function(x):
        x.fill_(0)
        raise ValueError("too late")

    assert keys(run(function)) == ["input_mutated:x"]


def test_unsupported_passes_through():
    def function(x):
        raise Unsupported("not here")

    with pytest.raises(Unsupported, match="not here"):
        run(function)


@pytest.mark.parametrize("text", ["0 active drivers ([]). There should only be one.", "no active drivers"])
def test_a_kernel_without_a_device_is_unsupported(text):
    def function(x):
        raise RuntimeError(text)

    with pytest.raises(Unsupported, match="this backend has no device for it"):
        run(function)


@pytest.mark.parametrize("text", ["the driver is missing", "boom"])
def test_other_errors_are_the_implementation_s_own(text):
    def function(x):
        raise RuntimeError(text)

    assert isinstance(run(function).error, RuntimeError)


def test_an_error_without_a_traceback_is_the_implementation_s_own():
    assert HOST.limit_of(RuntimeError("driver")) is None


def disturb_dtype():
    torch.set_default_dtype(torch.float64)


def disturb_grad():
    torch.set_grad_enabled(False)


def disturb_determinism():
    torch.use_deterministic_algorithms(True)


def disturb_device():
    torch.set_default_device("meta")


DISTURB = [disturb_dtype, disturb_grad, disturb_determinism, disturb_device]


def state() -> tuple:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_device(),
    )


@pytest.mark.parametrize("disturb", DISTURB)
@pytest.mark.parametrize("fails", [False, True])
def test_global_settings_are_restored(disturb, fails):
    def function(x):
        disturb()
        if fails:
            raise ValueError("and then")
        return 1

    before = state()
    try:
        result = run(function)
        assert state() == before
        assert (result.error is not None) == fails
        assert result.failures == []
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        torch.use_deterministic_algorithms(before[2])


def test_settings_that_were_there_before_stay():
    torch.use_deterministic_algorithms(True)
    try:
        run(lambda x: torch.use_deterministic_algorithms(False) or 1)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("sentinel", [0, 1])
def test_the_variation_picks_the_poison(sentinel):
    result = run(lambda x: torch.empty(2, dtype=torch.uint8), variation=Variation(sentinel))
    assert result.outputs["y"].tolist() == [POISON_BYTES[sentinel]] * 2


def test_a_contract_may_drive_a_class_itself():
    class Counter:
        def __init__(self, x):
            self.total = x.clone()

        def add(self, amount):
            self.total += amount
            return self.total.clone()

    def drive(made, arguments):
        counter = made(arguments["x"])
        return tuple(counter.add(amount) for amount in arguments["amounts"])

    record = contract(inputs=("x", "amounts"), outputs=("first", "second"), kind="stateful", call=drive)
    result = run(Counter, X | {"amounts": (1, 10)}, record)
    assert {name: value.tolist() for name, value in result.outputs.items()} == {
        "first": [4, 2, 3],
        "second": [14, 12, 13],
    }


def test_a_driver_gets_its_own_mapping():
    record = contract(call=lambda function, arguments: arguments.pop("x") + 1)
    result = run(None, X, record)
    assert set(result.arguments) == {"x"}
    assert result.outputs["y"].tolist() == [4, 2, 3]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the implementation's fault, and the case under test
def test_an_implementation_that_forks_does_not_run_the_harness_twice():
    read, write = os.pipe()

    def function(x):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return x + 1

    result = run(function)
    os.write(write, b"once")
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        assert stream.read() == b"once"
    assert result.outputs["y"].tolist() == [4, 2, 3]


def test_strided_outputs_are_copied_in_order():
    result = run(lambda x: torch.stack([x, x + 1], dim=1)[:, 1])
    assert result.outputs["y"].tolist() == [4, 2, 3]
    assert isinstance(result.outputs["y"], np.ndarray)


def test_backends_are_found_by_name():
    assert by_name("host") is all_backends()["host"]
    assert {name: backend.name for name, backend in all_backends().items()} == {name: name for name in all_backends()}
    with pytest.raises(UnknownBackend, match=r"no backend 'gpu'; known: .*host"):
        by_name("gpu")


def test_the_host_backend_is_always_there_and_says_what_it_sees():
    assert (HOST.unavailable(), dict(HOST.environment()), HOST.prepare()) == (None, {}, None)
    assert HOST.sees
    assert "host" in HOST.runs
