"""The line of a callable's file where it went wrong, and the traceback that a replay shows."""

import numpy as np
import torch

from oracles.arrays import array
from oracles.backends import by_name
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, Output, Refused, Values
from oracles.providers.base import Implementation

X = {"x": array([3, 1, 2], "int32"), "size": 2}


def expected(inputs):
    """y = x * size."""
    if inputs["size"] < 0:
        return Refused("size", "must not be negative")
    return Values({"y": inputs["x"].data * np.int32(inputs["size"])})


CONTRACT = Contract(
    family="toy",
    name="toy",
    section="9.9",
    summary="",
    inputs=(Input(name="x", role="device", doc=""), Input(name="size", role="scalar", doc="")),
    outputs=(Output(name="y", doc=""),),
    domain=lambda source: X,
    resample=lambda inputs: (),
    expected=expected,
    traits=lambda inputs: frozenset(),
    optimized="toy:toy",
    runs="host",
)

MINE = """
def helper(x):
    return x.tolist()[7]


def function(x, size):
    return helper(x), size
"""


def seen(function, inputs=X):
    """What is judged of a function on the plain CPU."""
    load = Implementation(
        spec="toy", provider="toy", name="toy", contract="toy.toy", runs="host", load=lambda: function
    )
    return judge(Subject(CONTRACT, load, function, by_name("host")), inputs)


def test_an_exception_and_a_host_read_name_the_innermost_line_of_the_callable(tmp_path):
    """Not torch's and not the harness's, without the folder; the traceback for a replay ends at the same line."""
    file, names = tmp_path / "mine.py", {}
    file.write_text(MINE)
    exec(compile(MINE, str(file), "exec"), names)
    read, crash = seen(names["function"])
    line = "at mine.py:3: return x.tolist()[7]"
    assert (read.key, read.detail) == ("host_sync:tolist", f"tolist on a device tensor of shape [3]\n{line}")
    assert (crash.key, crash.detail) == ("crash:IndexError", f"IndexError: list index out of range\n{line}")
    shown = crash.trace.splitlines()
    assert [text.split('"')[1] for text in shown if text.startswith("  File ")] == [str(file), str(file)]
    assert (shown[0], shown[-1]) == ("Traceback (most recent call last):", "IndexError: list index out of range")
    [refused] = seen(names["function"], X | {"size": -1})
    assert refused.detail == f"IndexError where must not be negative\n{line}"


def test_a_line_inside_a_library_is_that_of_its_caller():
    def function(x, size):
        return torch.broadcast_to(x, (2,)), size

    [crash] = seen(function)
    assert crash.detail.splitlines()[-1] == (
        f"at test_lines.py:{function.__code__.co_firstlineno + 1}: return torch.broadcast_to(x, (2,)), size"
    )
