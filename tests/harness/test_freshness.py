"""Freshness: what an implementation remembers between calls is found, in each of its forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.backends import by_name
from oracles.backends.host import HostBackend
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, OnlyMemorySafety, Output, Values
from oracles.freshness import freshness
from oracles.providers.base import Implementation

X = {"x": array([3, 1, 2], "int32"), "table": (array([5], "int32"), array([6], "int32")), "size": 2}


def change(inputs, *, size=None):
    x = inputs["x"].with_values(inputs["x"].data[::-1] + 1)
    table = tuple(item.with_values(item.data * 3) for item in inputs["table"])
    return inputs | {"x": x, "table": table, "size": inputs["size"] if size is None else size}


def expected(inputs):
    y = inputs["x"].data * np.int32(inputs["size"]) + inputs["table"][1].data
    return Values({"y": y, "parts": (inputs["table"][0].data, inputs["table"][1].data), "size": inputs["size"]})


def toy(resample, answer=expected, inout=False) -> Contract:
    return Contract(
        family="toy",
        name="toy",
        section="9.9",
        summary="",
        inputs=(
            Input(name="x", role="device", doc=""),
            Input(name="table", role="device", doc=""),
            Input(name="size", role="scalar", doc=""),
            *([Input(name="out", role="device", doc="", inout=True)] if inout else []),
        ),
        outputs=(Output(name="y", doc=""), Output(name="parts", doc=""), Output(name="size", doc="")),
        domain=lambda source: X,
        resample=resample,
        expected=answer,
        traits=lambda inputs: frozenset(),
        optimized="toy:toy",
        runs="host",
    )


CONTRACT = toy(lambda inputs: (change(inputs), change(inputs, size=3)))


def right(x, table, size):
    return x * size + table[1], [item.clone() for item in table], size


def keys(function, contract=CONTRACT, inputs=X) -> list[str]:
    return [failure.key for failure in freshness(contract, function, by_name("host"), inputs)]


def details(function, contract=CONTRACT, inputs=X) -> str:
    [failure] = freshness(contract, function, by_name("host"), inputs)
    return failure.detail


def test_a_function_of_its_values_passes():
    assert keys(right) == []


def cached_by(key):
    """Remembers results under something that is not the values."""
    kept = {}

    def function(x, table, size):
        name = key(x, table, size)
        if name not in kept:
            kept[name] = right(x, table, size)
        y, parts, number = kept[name]
        return y.clone(), [part.clone() for part in parts], number

    return function


@pytest.mark.parametrize(
    "key",
    [
        lambda x, table, size: id(x),
        lambda x, table, size: x.data_ptr(),
        lambda x, table, size: (tuple(x.shape), x.dtype),
        lambda x, table, size: 0,
        lambda x, table, size: (id(table[1]), size),
    ],
    ids=["identity", "address", "shape", "first call", "part of a list"],
)
def test_a_cache_by_anything_but_values_is_stale(key):
    found = details(cached_by(key))
    assert "does not follow the values after the input objects were refilled in place" in found


def test_a_cache_by_address_that_trusts_old_objects_is_stale_when_the_address_is_used_again():
    """Forgets what it knows of an object it has seen, but trusts an address under a new object."""
    seen, kept = [], {}

    def function(x, table, size):
        new = all(x is not item for item in seen)
        seen.append(x)
        if new and x.data_ptr() in kept:
            return kept[x.data_ptr()]
        kept.setdefault(x.data_ptr(), right(x, table, size))
        return right(x, table, size)

    contract = toy(lambda inputs: (change(inputs),))
    assert "for new objects at an address that was used before" in details(function, contract)


def test_a_result_that_a_later_call_overwrites_is_stale():
    buffer = torch.zeros(3, dtype=torch.int32)

    def function(x, table, size):
        buffer.copy_(x * size + table[1])
        return buffer, [item.clone() for item in table], size

    assert keys(function) == ["stale:y"]
    assert "the y returned by call 0 was changed by a later call" in details(function)


def test_a_part_of_a_result_that_a_later_call_overwrites_is_stale():
    buffer = torch.zeros(1, dtype=torch.int32)

    def function(x, table, size):
        buffer.copy_(table[0])
        return x * size + table[1], [buffer, table[1].clone()], size

    assert keys(function) == ["stale:parts"]


@pytest.mark.parametrize("error", [ValueError("seen before"), IndexError()])
def test_an_exception_on_a_later_call_is_stale(error):
    calls = []

    def function(x, table, size):
        calls.append(id(x))
        if calls.count(id(x)) > 1:
            raise error
        return right(x, table, size)

    assert keys(function) == [f"stale:{type(error).__name__}"]
    calls.clear()
    assert "raises" in details(function)


def remembering(combine):
    """Keeps the first result of each object and returns a part of it."""
    kept = {}

    def function(x, table, size):
        kept.setdefault(id(x), right(x, table, size))
        return combine(right(x, table, size), kept[id(x)])

    return function


def test_a_stale_part_of_a_tuple_and_a_stale_int_are_found():
    part = remembering(lambda new, old: (new[0], [new[1][0], old[1][1].clone()], new[2]))
    number = remembering(lambda new, old: (new[0], new[1], old[2]))
    assert keys(part) == ["stale:parts"]
    assert keys(number) == ["stale:size"]
    assert "got 2, expected 3" in details(remembering(lambda new, old: (new[0], new[1], old[2])))


def test_values_that_are_wrong_on_new_objects_too_are_not_called_stale():
    assert keys(lambda x, table, size: (x * 0, table, 7)) == []

    def wrong_for_three(x, table, size):
        return (x * 0, *right(x, table, size)[1:]) if size == 3 else right(x, table, size)

    assert keys(wrong_for_three) == []


def test_another_shape_or_number_of_parts_is_a_difference():
    calls = []

    def shrinks(x, table, size):
        calls.append(1)
        y, parts, size = right(x, table, size)
        return (y[:2], parts, size) if len(calls) == 2 else (y, parts, size)

    assert keys(shrinks) == ["stale:y"]


def test_a_part_that_is_missing_is_a_difference():
    calls = []

    def drops(x, table, size):
        calls.append(1)
        y, parts, size = right(x, table, size)
        return y, parts[: 1 if len(calls) == 2 else 2], size

    assert keys(drops) == ["stale:parts"]


def test_nothing_is_asked_where_no_other_input_is_known():
    def never(**_):
        raise AssertionError("called")

    assert keys(never, toy(lambda inputs: ())) == []


def test_steps_without_promised_values_are_left_out():
    answer = lambda inputs: OnlyMemorySafety("odd") if inputs["size"] == 3 else expected(inputs)  # noqa: E731
    sizes = []

    def function(x, table, size):
        sizes.append(size)
        return right(x, table, size)

    assert keys(function, toy(CONTRACT.resample, answer)) == []
    assert sizes == [2, 2, 2]


def test_an_in_out_buffer_may_be_changed_by_later_calls():
    def answer(inputs):
        return Values({"out": expected(inputs).outputs["y"]})

    contract = toy(CONTRACT.resample, answer, inout=True)

    def function(x, table, size, out):
        out.copy_(x * size + table[1])
        return out, [1], size

    inputs = X | {"out": array([0, 0, 0], "int32")}
    assert keys(function, contract, inputs) == []


def test_scalars_and_none_are_passed_on_with_the_values():
    seen = []

    def function(x, table, size):
        seen.append((size, x.tolist()))
        return right(x, table, size)

    assert keys(function) == []
    assert [size for size, _ in seen] == [2, 2, 3, 2, 3]
    assert len({tuple(values) for _, values in seen}) == 2


def test_a_none_in_a_tuple_stays_where_it_is():
    inputs = X | {"table": (*X["table"], None)}

    def nested(inputs):
        return (inputs | {"x": inputs["x"].with_values(inputs["x"].data + 1)},)

    assert keys(lambda x, table, size: right(x, table[:2], size), toy(nested), inputs) == []


def test_long_values_are_cut_in_the_text():
    inputs = X | {"x": array(range(100), "int32")}
    found = details(cached_by(lambda x, table, size: id(x)), inputs=inputs)
    assert "..., expected" in found
    assert len(found) < 300


def test_freshness_is_asked_only_where_it_is_wanted_and_small_enough():
    plain = replace(
        CONTRACT,
        outputs=(CONTRACT.outputs[0], CONTRACT.outputs[2]),
        expected=lambda inputs: Values({name: expected(inputs).outputs[name] for name in ("y", "size")}),
    )

    def caching():
        kept = []  # (object, result): the object is kept, so that its identity stays its own

        def caches(x, table, size):
            if all(x is not item for item, _ in kept):
                kept.append((x, x * size + table[1]))
            y = next(result.clone() for item, result in kept if item is x)
            return y, size

        return caches

    def found(backend, **options):
        function = caching()
        made = Implementation(
            spec="toy", provider="toy", name="toy", contract="toy.toy", runs="host", load=lambda: function
        )
        return [failure.key for failure in judge(Subject(plain, made, function, backend), X, **options)]

    small = HostBackend()
    small.freshness_elements = 2
    assert found(HostBackend()) == ["stale:y"]
    assert found(HostBackend(), fresh=False) == found(small) == []
