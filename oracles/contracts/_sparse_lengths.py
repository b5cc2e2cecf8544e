"""Contract 2.1, sparse_indptr: the inputs it is tried on, and what is special about them."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch import Batch
from oracles.contracts._batch_domain import Wanted, draw_batch
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_ruled, placed
from oracles.domain import Source
from reference.sparse_indptr import sparse_indptr

OUTPUTS = ("sparse_seq_lens", "paged_kv_indptr")
TOPK = (1, 2, 4, 64, 128, 2048)
INT32_MAX = (1 << 31) - 1
LONG = 46_341
"""A context whose last query is the first of which twice the sum of entries, n * (n + 1), passes 2^31."""

RULED_TOPK = (4, 3, 2048)


def domain(source: Source) -> Inputs:
    """A step's lengths; the same with lengths that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _refused(source)
    if flavour in RULED:
        batch = draw_ruled(source, flavour, Wanted())
        inputs = from_batch(source, batch, source.choose(RULED_TOPK, small=1), spoiled=False)
        return placed(source, flavour, inputs, "seq_lens", "query_start_loc")
    batch = draw_batch(source, Wanted(walked=frozenset({"padding"}), kinds=3 if flavour == "engine" else 1))
    topk = source.integer(1, 5_000, near=TOPK, small=2)
    inputs = from_batch(source, batch, topk, spoiled=flavour == "garbage")
    contexts = source.choose(("drawn", "longest", "long"), weights=(18, 1, 1), small=1)
    return inputs if contexts == "drawn" else _lengthened(source, inputs, contexts)


def _lengthened(source: Source, inputs: Inputs, contexts: str) -> Inputs:
    """The same step with longer contexts, and as many entries a query as their sum allows."""
    source.event(f"contexts: {contexts}")
    lengths = cast(Array, inputs["seq_lens"])
    most = INT32_MAX - np.minimum(lengths.data, INT32_MAX - 1)
    longer = np.where(lengths.data > 0, most if contexts == "longest" else LONG, lengths.data)
    topk = INT32_MAX // max(cast(int, inputs["num_tokens"]), 1)
    return {**inputs, "seq_lens": lengths.with_values(longer), "topk": topk}


def from_batch(source: Source, batch: Batch, topk: int, *, spoiled: bool) -> Inputs:
    """The tensors of a step; its host starts are always right."""
    lengths, starts = list(batch.seq_lens), list(batch.query_start_loc)
    types = [draw_dtype(source) for _ in range(3)]
    if spoiled:
        if lengths and not source.pick(2, weights=(3, 1)):
            source.event("garbage: seq_lens")
            spoil(source, lengths, types[0], near=(0, -1, 1, topk))
        else:
            source.event("garbage: query_start_loc")
            spoil(source, starts, types[1], near=(0, starts[-1] + 1, 1 << 20))
    return {
        "seq_lens": source.view(lengths, types[0], small=1),
        "query_start_loc": source.view(starts, types[1], small=1),
        "query_start_loc_cpu": array(batch.query_start_loc, types[2]),
        "topk": topk,
        "num_tokens": batch.num_tokens_padded,
    }


def _refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "seq_lens": array([5, 3], "int32"),
        "query_start_loc": array([0, 1, 3], "int32"),
        "query_start_loc_cpu": array([0, 1, 3], "int32"),
        "topk": 4,
        "num_tokens": 4,
    }
    wrong: dict[str, dict[str, Value]] = {
        "topk 0": {"topk": 0},
        "topk negative": {"topk": -4},
        "fewer tokens than queries": {"num_tokens": 2},
        "too many entries": {"num_tokens": 1 << 20, "topk": 2048},
        "host starts longer": {"query_start_loc_cpu": array([0, 1, 3, 3], "int32")},
        "device starts longer": {"query_start_loc": array([0, 1, 3, 3], "int32")},
        "lengths longer": {"seq_lens": array([5, 3, 1], "int32")},
        "host starts decrease": {"query_start_loc_cpu": array([0, 3, 1], "int32")},
        "first host start": {"query_start_loc_cpu": array([1, 1, 3], "int32")},
        "float lengths": {"seq_lens": array([5, 3], "float32")},
        "int16 starts": {"query_start_loc": array([0, 1, 3], "int16")},
        "lengths in two dimensions": {"seq_lens": array([[5, 3]], "int32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(sparse_indptr, OUTPUTS, inputs)


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """Every length one longer, and all zero; each where that is another answer."""
    lengths, first = cast(Array, inputs["seq_lens"]), expected(inputs)
    if not isinstance(first, Values):
        return ()
    grown = lengths.with_values(np.minimum(lengths.data, np.iinfo(lengths.data.dtype).max - 1) + 1)
    others = ({**inputs, "seq_lens": grown}, {**inputs, "seq_lens": lengths.with_values(np.zeros_like(lengths.data))})
    return tuple(other for other in others if not _same(expected(other), first))


def _same(one: Expected, other: Expected) -> bool:
    assert isinstance(one, Values)
    assert isinstance(other, Values)
    return all(np.array_equal(np.asarray(one.outputs[name]), np.asarray(other.outputs[name])) for name in OUTPUTS)


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    names = ("seq_lens", "query_start_loc", "query_start_loc_cpu")
    lengths, starts, host = (cast(Array, inputs[name]) for name in names)
    if any(item.data.ndim != 1 for item in (lengths, starts, host)):
        return frozenset()
    known, seen = host.data.tolist(), lengths.data.tolist()
    queries = [end - begin for begin, end in pairwise(known)]
    topk = cast(int, inputs["topk"])
    found = {
        "no_requests": not seen,
        "empty_query": 0 in queries,
        "several_queries": max(queries, default=0) > 1,
        "zero_length": 0 in seen,
        "negative_length": min(seen, default=0) < 0,
        "length_below_queries": any(0 < s < q for s, q in zip(seen, queries, strict=False)),
        "past_topk": any(s > topk for s in seen),
        "padding_tokens": bool(known) and cast(int, inputs["num_tokens"]) > known[-1],
        "starts_disagree": starts.data.tolist() != known,
        "huge_stride": any(item.reach > 1 << 31 for item in (lengths, starts)),
        "strided": any(item.strides is not None and item.reach <= 1 << 31 for item in (lengths, starts)),
        "sliced": any(item.offset for item in (lengths, starts)),
    }
    return frozenset(name for name, there in found.items() if there)
