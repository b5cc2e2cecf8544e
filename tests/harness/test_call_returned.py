"""What may be returned behind a contract's outputs: the in/out buffers that were passed, and nothing else."""

import pytest
import torch

from oracles.arrays import array
from oracles.backends import by_name
from oracles.backends.base import Variation
from oracles.call import call
from oracles.contract import Contract, Input, Output, Values

FILLED = {
    "x": array([3, 1, 2], "int32"),
    "cache": array([0, 0], "int32"),
    "tables": (array([1], "int32"), array([2], "int32")),
}


def run(function, outputs=("y", "z")):
    """One call of a callable of ``x`` that is given two buffers, one of them a list."""
    buffers = ("cache", "tables")
    record = Contract(
        family="toy",
        name="toy",
        section="9.9",
        summary="",
        inputs=tuple(
            Input(name=name, role="device", doc="", inout=name in buffers, many=name == "tables") for name in FILLED
        ),
        outputs=tuple(Output(name=name, doc="") for name in outputs),
        domain=lambda source: {},
        resample=lambda inputs: (),
        expected=lambda inputs: Values({}),
        traits=lambda inputs: frozenset(),
        optimized="toy:toy",
        runs="host",
    )
    return call(record, function, by_name("host"), FILLED, Variation())


@pytest.mark.parametrize(
    "make",
    [
        lambda x, cache, tables: (x + 1, x + 2),
        lambda x, cache, tables: (x + 1, x + 2, cache, tables),
        lambda x, cache, tables: [x + 1, x + 2, cache.view(-1), tuple(tables)],
        lambda x, cache, tables: {"y": x + 1, "z": x + 2, "cache": cache},
        lambda x, cache, tables: {"tables": tables, "y": x + 1, "z": x + 2, "cache": cache},
    ],
)
def test_the_buffers_that_were_passed_may_be_returned_behind_the_outputs(make):
    result = run(make)
    assert (result.failures, result.misshapen, result.error) == ([], [], None)
    assert (result.outputs["y"].tolist(), result.outputs["z"].tolist()) == ([4, 2, 3], [5, 3, 4])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            lambda cache, tables: (None,),
            "tuple with 3 items; the contract has y, z, and behind them may be cache, tables",
        ),
        (lambda cache, tables: (cache,), "tuple with 3 items; the contract has y, z, and behind"),
        (lambda cache, tables: (cache, tables, 1), "tuple with 5 items; the contract has y, z, and behind"),
        (lambda cache, tables: (None, None), "tuple with 4 items; its item 3 is not the buffer cache that was passed"),
        (
            lambda cache, tables: (cache, None),
            "tuple with 4 items; its item 4 is not the buffer tables that was passed",
        ),
        (lambda cache, tables: (cache, tables[:1]), "tuple with 4 items; its item 4 is not the buffer tables"),
        (lambda cache, tables: (cache, tables[::-1]), "tuple with 4 items; its item 4 is not the buffer tables"),
        (lambda cache, tables: (cache.clone(), tables), "tuple with 4 items; its item 3 is not the buffer cache"),
        (lambda cache, tables: (cache[:1], tables), "tuple with 4 items; its item 3 is not the buffer cache"),
        (lambda cache, tables: (cache.to_sparse(), tables), "tuple with 4 items; its item 3 is not the buffer cache"),
        (lambda cache, tables: (cache.view(torch.float32), tables), "tuple with 4 items; its item 3 is not the buffer"),
        (
            lambda cache, tables: {"cache": 1},
            "dict with y, z, cache; its 'cache' is not the buffer cache that was passed",
        ),
    ],
)
def test_anything_else_behind_the_outputs_is_a_wrong_shape(more, said):
    def function(x, cache, tables):
        behind = more(cache, tables)
        return {"y": x + 1, "z": x + 2, **behind} if isinstance(behind, dict) else (x + 1, x + 2, *behind)

    result = run(function)
    [failure] = result.misshapen
    assert failure.key == "wrong_shape:outputs"
    assert failure.detail.startswith(f"returned {said}")


def test_a_contract_without_outputs_looks_at_no_result():
    for given in (None, 1, (1, 2), {"a": 1}):
        result = run(lambda x, cache, tables, given=given: given, outputs=())
        assert (result.failures, result.misshapen, result.error) == ([], [], None)
