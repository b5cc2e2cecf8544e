"""Inputs that somebody edited in a case file: whatever an argument is, it is refused in one sentence, or judged."""

import re

import numpy as np
import pytest

from oracles.arrays import Array, array
from oracles.contract import OnlyMemorySafety, Refused, Values
from oracles.contracts import all_contracts, by_name
from oracles.domain import Sampler

TENSOR = array([1], "int64")
ODD = (None, True, -1, 0.5, "odd", (), (None,), (1,), ("odd",), (TENSOR, None), ((TENSOR,),))
ARGUMENTS = [(contract, item) for contract in all_contracts() for item in contract.inputs]


def odd_values(value):
    """What may stand where a value stood: of a list, at its ends too."""
    yield from ODD
    if not isinstance(value, Array):
        yield TENSOR
    else:
        yield from odd_tensors(value)
    if isinstance(value, tuple) and value:
        for odd in (*ODD, TENSOR):
            yield (odd, *value[1:])
            yield (*value[:-1], odd)


def odd_tensors(value):
    """A tensor without a dimension, with two more, without elements, and of two other dtypes."""
    data = value.data
    for other in (np.zeros((), data.dtype), data[None, None], data[..., None], data[:0], data[..., :0]):
        yield Array(value.dtype, np.array(other))
    yield Array("float32", np.zeros(data.shape, np.float32))
    yield Array("uint8", np.zeros(data.shape, np.uint8))


@pytest.mark.parametrize(("contract", "item"), [pytest.param(*it, id=f"{it[0].name}-{it[1].name}") for it in ARGUMENTS])
def test_whatever_an_argument_is_it_is_refused_or_judged(contract, item):
    refused = 0
    for number in range(2):
        drawn = contract.domain(Sampler(5, number))
        assert contract.complaint(drawn) is None
        for odd in odd_values(drawn[item.name]):
            inputs = {**drawn, item.name: odd}
            said = contract.complaint(inputs)
            if said is None:
                assert isinstance(contract.expected(inputs), Values | Refused | OnlyMemorySafety)
                assert contract.traits(inputs) is not None
                assert contract.sketch is None or contract.sketch(inputs) is not None
            else:
                refused += 1
                assert re.search(r"(breaks the rule|nothing is promised for it): .", said), said
                assert "\n" not in said
    assert refused


@pytest.mark.parametrize(("contract", "item"), [pytest.param(*it, id=f"{it[0].name}-{it[1].name}") for it in ARGUMENTS])
def test_a_tensor_may_be_none_where_its_text_says_so(contract, item):
    drawn = contract.domain(Sampler(5, 0))
    odd = (None,) * len(drawn[item.name]) if item.many else None
    said = contract.complaint({**drawn, item.name: odd})
    if item.role != "scalar":
        assert item.optional is bool(re.search(r"\bNone\b", item.doc))
        if odd is None or odd:
            place = f"{item.name}[0]" if item.many else item.name
            rule = f"{place}: None breaks the rule: it must be a tensor"
            assert (said == rule) is not item.optional, said
    elif item.doc.endswith("None") or "or None" in item.doc:
        assert (item.optional, said) == (True, None)


@pytest.mark.parametrize(
    ("contract", "name", "value", "said"),
    [
        ("rope_kv_cache.rope_and_cache_mla", "q_nope", None, "q_nope: None breaks the rule: it must be a tensor"),
        (
            "rope_kv_cache.rope_and_cache_mla",
            "k_scale",
            "1",
            "k_scale: '1' breaks the rule: it must be a number or None",
        ),
        ("rope_kv_cache.rope_and_cache_mla", "cache_dtype", 8, "cache_dtype: 8 breaks the rule: it must be a str"),
        (
            "chunk_metadata.chunk_metadata",
            "chunk_size",
            TENSOR,
            "chunk_size: a tensor int64[1] breaks the rule: it must be a number",
        ),
        (
            "block_table.gather_block_tables",
            "block_tables",
            (TENSOR, None),
            "block_tables[1]: None breaks the rule: it must be a tensor",
        ),
        (
            "block_table.gather_block_tables",
            "out",
            ((TENSOR,),),
            "out[0]: a list with tensors breaks the rule: it must be a tensor",
        ),
        ("block_table.gather_block_tables", "out", TENSOR, "out: a tensor int64[1] breaks the rule: it must be a list"),
        (
            "metadata_reuse.mla_metadata_reuse",
            "steps",
            ((TENSOR,),),
            "steps[0]: a list with tensors breaks the rule: it must be no tensor",
        ),
    ],
)
def test_what_is_said(contract, name, value, said):
    contract = by_name(contract)
    assert contract.complaint({**contract.domain(Sampler(5, 0)), name: value}) == said


def test_other_names_are_refused():
    contract = by_name("chunk_metadata.causal_conv1d_metadata")
    drawn = contract.domain(Sampler(5, 0))
    assert contract.complaint({**drawn, "block": 8}).startswith("block is no input of")
    assert contract.complaint({"block_m": 8}).startswith("query_start_loc is missing")
