"""What is said of one implementation on one input: every verdict that a small faulty function can earn."""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.backends import by_name
from oracles.backends.base import Observation
from oracles.backends.host import HostBackend
from oracles.check import Subject, distinct, judge
from oracles.contract import Contract, Input, Narrowing, OnlyMemorySafety, Output, Refused, Values
from oracles.providers.base import Implementation
from oracles.verdict import Race, Unsupported, WrongValue

X = {"x": array([3, 1, 2], "int32"), "size": 2}


def expected(inputs):
    """y = x * size, total = its sum as an int; odd inputs have special meanings."""
    x, size = inputs["x"].data, inputs["size"]
    if size < 0:
        return Refused("size", "must not be negative")
    if size == 99:
        return OnlyMemorySafety("no values for 99")
    return Values({"y": x * np.int32(size), "total": size})


CONTRACT = Contract(
    family="toy",
    name="toy",
    section="9.9",
    summary="",
    inputs=(Input(name="x", role="device", doc=""), Input(name="size", role="scalar", compiled=True, doc="")),
    outputs=(Output(name="y", doc=""), Output(name="total", doc="")),
    domain=lambda source: X,
    resample=lambda inputs: (inputs | {"x": inputs["x"].with_values(inputs["x"].data[::-1])},),
    expected=expected,
    traits=lambda inputs: frozenset(),
    optimized="toy:toy",
    runs="host",
)


def subject(function, contract=CONTRACT, backend=None, **changes) -> Subject:
    implementation = Implementation(
        spec="toy", provider="toy", name="toy", contract="toy.toy", runs="host", load=lambda: function, **changes
    )
    return Subject(contract, implementation, function, backend or by_name("host"))


def keys(function, inputs=X, contract=CONTRACT, **changes) -> list[str]:
    return [item.key for item in judge(subject(function, contract, **changes), inputs)]


def right(x, size):
    if size < 0:
        raise ValueError("size must not be negative")
    return x * size, size


def garbage_bit():
    """0 or 1, as the poison has it: 0 in the first call."""
    return torch.empty(1, dtype=torch.int32) >> 4 & 1


def raising(error):
    def function(x, size):
        raise error

    return function


def unwritten(x, size):
    y = torch.empty_like(x)
    y[1:] = x[1:] * size
    return y, size


def out_of_bounds(x, size):
    y = torch.empty_like(x)
    y.copy_(x * size)
    y.as_strided((1,), (1,), y.storage_offset() + 3).fill_(0)
    return y, size


def before_the_input(x, size):
    x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(0)
    return right(x, size)


def input_mutated(x, size):
    y = x * size
    x[0] = 9
    return (y, size) if size >= 0 else right(x, size)


class CompilationError(Exception):
    pass


FAULTY = {
    "nothing": (right, []),
    "wrong value": (lambda x, size: (torch.where(x == 1, 5, x * size), size), ["wrong_value:y"]),
    "wrong dtype": (lambda x, size: ((x * size).to(torch.int64), size), ["wrong_shape:y"]),
    "wrong rank": (lambda x, size: ((x * size)[None], size), ["wrong_shape:y"]),
    "no tensor": (lambda x, size: (5, size), ["wrong_shape:y"]),
    "bool for int": (lambda x, size: (x * size, True), ["wrong_shape:total"]),
    "tensor for int": (lambda x, size: (x * size, torch.tensor(size)), ["wrong_shape:total"]),
    "one output": (lambda x, size: x * size, ["wrong_shape:outputs"]),
    "unwritten": (unwritten, ["unwritten:y"]),
    "uninitialised": (lambda x, size: (x * size + garbage_bit(), size), ["uninitialised_read:y"]),
    "out of bounds": (out_of_bounds, ["out_of_bounds_write:y"]),
    "before the input": (before_the_input, ["out_of_bounds_write:x"]),
    "input mutated": (input_mutated, ["input_mutated:x"]),
    "host sync": (lambda x, size: (x * x.max().item() * size // 3, size), ["host_sync:item"]),
    "crash": (raising(IndexError("boom")), ["crash:IndexError"]),
    "exit": (raising(SystemExit(3)), ["crash:SystemExit"]),
    "interrupt": (raising(KeyboardInterrupt()), ["crash:KeyboardInterrupt"]),
    "refusal": (raising(ValueError("no")), ["wrongly_refused:ValueError"]),
    "not compiled": (raising(CompilationError("line 3")), ["compile_error:CompilationError"]),
}
WRONG_VALUE, UNINITIALISED = FAULTY["wrong value"][0], FAULTY["uninitialised"][0]
ONE_OUTPUT, CRASH = FAULTY["one output"][0], FAULTY["crash"][0]


@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_is_named(fault):
    function, wanted = FAULTY[fault]
    assert keys(function) == wanted


def test_an_output_that_is_the_input_is_stale_even_with_right_values():
    assert keys(lambda x, size: (x, size), X | {"size": 1}) == ["stale:y"]


def test_the_element_is_named_with_what_was_expected():
    [found] = judge(subject(WRONG_VALUE), X)
    assert found.detail == "y[1] is 5, expected 2"
    assert "; 3 of 3 elements differ" in judge(subject(lambda x, size: (x * 0, size)), X)[0].detail
    [found] = judge(subject(unwritten), X)
    assert found.detail == "y[0] was never written, expected 6"
    [found] = judge(subject(FAULTY["wrong dtype"][0]), X)
    assert found.detail == "int64 [3] where the contract says int32 [3]"


def test_a_shape_that_follows_garbage_is_not_a_pass():
    record = replace(CONTRACT, inputs=(replace(CONTRACT.inputs[0], role="host"), CONTRACT.inputs[1]))
    kinds = {
        key.split(":")[0]
        for key in keys(lambda x, size: (torch.cat([x, x])[: 3 + garbage_bit().item()] * size, size), contract=record)
    }
    assert kinds == {"nondeterministic"}


def test_poison_that_reaches_one_element_only_is_told_from_a_wrong_value():
    def partly(x, size):
        y = x * size
        y[2:] += garbage_bit()
        return y, size

    [found] = judge(subject(partly), X)
    assert (found.key, found.detail) == ("uninitialised_read:y", "y[2] changes with what unwritten memory holds")


def counting():
    calls = itertools.count()
    return lambda x, size: (x * size + next(calls), size)


def test_results_that_change_are_nondeterministic():
    [found] = judge(subject(counting()), X)
    assert (found.key, found.detail) == ("nondeterministic:y", "y[0] changes between equal calls")


def test_an_int_that_changes_is_nondeterministic():
    calls = itertools.count()
    assert keys(lambda x, size: (x * size, next(calls))) == ["nondeterministic:total"]


@pytest.mark.parametrize("bad_call", [0, 1])
def test_a_single_deviation_is_nondeterministic(bad_call):
    calls = itertools.count()
    assert keys(lambda x, size: (x * size + (next(calls) == bad_call), size)) == ["nondeterministic:y"]


@pytest.mark.parametrize("bad_call", [1, 2])
def test_an_exception_in_a_later_call_is_reported(bad_call):
    calls = itertools.count()

    def function(x, size):
        call = next(calls)
        if call == bad_call:
            raise IndexError("later")
        return x * size + call, size

    assert keys(function) == ["crash:IndexError"]


class Ordered(HostBackend):
    """A backend whose programs run in an order that the function can see."""

    order = "forward"
    launches = 0
    compilations = ()
    judges_compilations = True
    varies_order = True

    def memory(self, variation):
        type(self).order = variation.order
        return super().memory(variation)

    def watch(self, memory, variation):
        return contextlib.nullcontext(Observation(launches=self.launches, compilations=list(self.compilations)))


def test_results_that_follow_the_order_of_programs_are_a_race():
    backend = Ordered()
    assert keys(lambda x, size: (x * size + (backend.order != "forward"), size), backend=backend) == ["race:y"]


def test_more_compilations_than_two_a_mode_are_one_too_many():
    backend = Ordered()
    one = subject(right, backend=backend)
    for number in range(3):
        backend.compilations = (f"kernel (n=constexpr:{number})",)
        found = judge(one, X)
        assert [item.key for item in found] == (["recompiled:kernel"] if number == 2 else [])
    assert found[0].detail.startswith(
        "3 compilations for x=int32, size=2; n is constexpr:0, constexpr:1 or constexpr:2;"
    )
    assert judge(one, X | {"size": 3}) == []
    backend.judges_compilations = False
    assert judge(one, X) == []


REFUSABLE = X | {"size": -1}


def test_a_refusal_is_a_pass_and_any_other_exception_a_crash():
    assert keys(right, REFUSABLE) == []
    assert keys(CRASH, REFUSABLE) == ["crash:IndexError"]


def test_a_refusal_that_is_missing_names_the_argument():
    [found] = judge(subject(lambda x, size: (x * size, size)), REFUSABLE)
    assert found.key == "wrongly_accepted:size"
    assert found.detail == "no exception; the contract refuses it: must not be negative"


def test_upstream_s_own_types_of_refusal_count():
    def asserts(x, size):
        assert size >= 0
        return right(x, size)

    assert keys(asserts, REFUSABLE) == ["crash:AssertionError"]
    assert keys(asserts, REFUSABLE, refusal_types=(AssertionError,)) == []
    assert keys(CRASH, X, refusal_types=(IndexError,)) == ["wrongly_refused:IndexError"]


def test_a_refusal_after_a_launch_is_late():
    backend = Ordered()
    backend.launches = 2
    [found] = judge(subject(right, backend=backend), REFUSABLE)
    assert (found.key, found.detail) == ("wrongly_accepted:size", "refused, but only after 2 launches")


def buffered(**changes) -> Contract:
    inputs = (*CONTRACT.inputs, Input(name="out", role="device", doc="", inout=True))

    def answer(inputs):
        found = expected(inputs)
        y = found.outputs["y"] if isinstance(found, Values) else None
        return found if y is None else Values({"out": y})

    return replace(CONTRACT, inputs=inputs, outputs=(), expected=answer, **changes)


BUFFERED = X | {"out": array([7, 7, 7], "int32")}


def fills(x, size, out):
    out.copy_(x * size)
    if size < 0:
        raise ValueError("too late")
    return ()


def test_a_refusal_after_writing_is_late():
    [found] = judge(subject(fills, buffered()), BUFFERED | {"size": -1})
    assert (found.key, found.detail) == ("wrongly_accepted:size", "refused, but only after writing out")


def test_an_in_out_buffer_is_judged_where_it_was_passed():
    assert keys(fills, BUFFERED, buffered()) == []
    assert keys(lambda x, size, out: (), BUFFERED, buffered()) == ["wrong_value:out"]


def test_damage_of_a_refused_call_is_reported():
    assert keys(input_mutated, REFUSABLE) == ["input_mutated:x"]


def opted_out(x, size):
    return right(x, size)


opted_out.refuses = False


def test_refusals_are_not_judged_without_a_citation():
    with pytest.raises(Unsupported, match="refusals are not judged: the binding cites no check"):
        judge(subject(right, refuses=False), REFUSABLE)
    with pytest.raises(Unsupported, match="refusals are not judged: the callable has refuses = False"):
        judge(subject(opted_out, refuses=False), REFUSABLE)
    assert keys(right, X, refuses=False) == []


def test_a_narrowed_input_is_unsupported():
    narrowing = Narrowing(clause="size is 2", source="an assert", excludes=lambda inputs: inputs["size"] != 2)
    assert keys(right, X, narrowings=(narrowing,)) == []
    with pytest.raises(Unsupported, match=r"size is 2 \(an assert\)"):
        judge(subject(right, narrowings=(narrowing,)), X | {"size": 3})


UNSAFE = X | {"size": 99}


DAMAGE = ("out_of_bounds_write", "input_mutated")


@pytest.mark.parametrize("fault", FAULTY)
def test_where_only_memory_safety_is_promised_only_damage_counts(fault):
    function, wanted = FAULTY[fault]
    assert keys(function, UNSAFE) == [key for key in wanted if key.startswith(DAMAGE)]


def sums_to_six(inputs, outputs):
    return None if outputs["y"].sum() == 6 * outputs["total"] else "the sum is wrong"


PREDICATE = replace(CONTRACT, kind="predicate", accepts=sums_to_six)


def test_a_predicate_judges_where_many_answers_are_right():
    assert keys(lambda x, size: (x.flip(0) * size, size), X, PREDICATE) == []
    [found] = judge(subject(lambda x, size: (x + 0, size), PREDICATE), X)
    assert (found.key, found.detail) == ("wrong_value:y", "the sum is wrong")
    assert keys(ONE_OUTPUT, X, PREDICATE) == ["wrong_shape:outputs"]
    assert keys(UNINITIALISED, X, PREDICATE) != []


def test_a_stateful_contract_is_driven_through_its_operations():
    class Scaler:
        def __init__(self, x):
            self.x = x

        def scale(self, size):
            return self.x * size

    class Forgetful(Scaler):
        def scale(self, size):
            return self.x * 2

    record = replace(
        CONTRACT,
        kind="stateful",
        call=lambda made, given: (made(given["x"]).scale(given["size"]), given["size"]),
    )
    assert keys(Scaler, X | {"size": 5}, record) == []
    assert keys(Forgetful, X | {"size": 5}, record) == ["wrong_value:y"]


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "float64"])
def test_what_was_never_written_is_found_in(dtype):
    record = replace(CONTRACT, expected=lambda inputs: Values({"y": inputs["x"].data, "total": 2}))
    inputs = {"x": array([3, 1, 2], dtype), "size": 2}
    assert keys(lambda x, size: (x.clone(), size), inputs, record) == []
    assert keys(lambda x, size: (torch.empty_like(x), size), inputs, record) == ["unwritten:y"]


def test_floats_compare_bit_for_bit():
    value = array([float("nan"), 1.0, 0.0], "float32")
    record = replace(CONTRACT, expected=lambda inputs: Values({"y": value.data, "total": 2}), resample=lambda i: ())
    assert keys(lambda x, size: (x.clone(), size), {"x": value, "size": 2}, record) == []
    for change, place in ((lambda x: x + 1, "y[1]"), (lambda x: x.where(x != 0, -x), "y[2]")):
        [found] = judge(subject(lambda x, size, change=change: (change(x), size), record), {"x": value, "size": 2})
        assert found.detail.startswith(place)


def test_tuples_of_outputs_are_compared():
    record = replace(
        CONTRACT,
        outputs=(Output(name="y", doc=""),),
        expected=lambda inputs: Values({"y": (inputs["x"].data, inputs["x"].data * np.int32(2))}),
    )
    assert keys(lambda x, size: ([x.clone(), x * 2],), X, record) == []
    [found] = judge(subject(lambda x, size: ([x.clone(), x * 3],), record), X)
    assert found.key in ("wrong_value:y", "wrong_value:y[1]")


def test_a_failure_that_the_backend_raises_is_the_verdict():
    assert keys(raising(Race("y", "seen by the backend"))) == ["race:y"]


def test_one_failure_of_each_key_is_kept():
    failures = [WrongValue("y", "first"), WrongValue("y", "second"), WrongValue("z")]
    assert [item.detail for item in distinct(failures)] == ["first", ""]
