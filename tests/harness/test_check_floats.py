"""What is said of a float that NumPy does not have: its number, its bits where they are compared, its dtype by name."""

import pytest
import torch

from oracles.arrays import array
from oracles.backends import by_name
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, Output, Values
from oracles.providers.base import Implementation

INPUTS = {"x": array([0x3F80, 0x7FC0], "bfloat16")}

CONTRACT = Contract(
    family="toy",
    name="copy",
    section="9.9",
    summary="",
    inputs=(Input(name="x", role="device", doc=""),),
    outputs=(Output(name="y", doc=""),),
    domain=lambda source: INPUTS,
    resample=lambda inputs: ({"x": inputs["x"].with_values(inputs["x"].data[::-1])},),
    expected=lambda inputs: Values({"y": inputs["x"]}),
    traits=lambda inputs: frozenset(),
    optimized="toy:copy",
    runs="host",
)


@pytest.fixture
def details():
    """What is said of a function that should give 1 and a NaN back."""

    def judged(function):
        implementation = Implementation(
            spec="toy", provider="toy", name="copy", contract="toy.copy", runs="host", load=lambda: function
        )
        failures = judge(Subject(CONTRACT, implementation, function, by_name("host")), INPUTS)
        return [failure.detail for failure in failures]

    return judged


def with_the_last_bit(x):
    return (x.view(torch.int16) | 1).view(x.dtype)


def test_a_number_stands_with_its_bits(details):
    assert details(lambda x: torch.where(x == 1, -x, x)) == ["y[0] is -1.0 (0xbf80), expected 1.0 (0x3f80)"]


def test_two_nan_are_told_apart(details):
    assert details(lambda x: torch.where(x == 1, x, with_the_last_bit(x))) == [
        "y[1] is nan (0x7fc1), expected nan (0x7fc0)"
    ]


def test_what_was_never_written_was_expected_to_be_a_number(details):
    def writes_the_second(x):
        y = torch.empty_like(x)
        y[1:] = x[1:]
        return y

    assert details(writes_the_second) == ["y[0] was never written, expected 1.0 (0x3f80)"]


def test_another_dtype_is_named_as_torch_names_it(details):
    assert details(lambda x: x.double()) == ["float64 [2] where the contract says bfloat16 [2]"]


def test_stale_results_are_numbers(details):
    seen = {}
    [stale] = details(lambda x: seen.setdefault(x.data_ptr(), x.clone()).clone())
    assert stale.endswith(": got [1.0, nan (0x7fc0)], expected [nan (0x7fc0), 1.0]")
