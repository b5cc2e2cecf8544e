"""Contract 2.6, mla_decode_layout: the inputs it is tried on, and what is special about them."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch_domain import Wanted, draw_batch
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_ruled, placed
from oracles.domain import Source
from reference.mla_decode_layout import mla_decode_layout

OUTPUTS = ("kernel_seq_lens", "paged_kv_indptr", "qo_indptr", "max_qo_len", "min_kv_seq_len")
LAYOUTS = ("plain", "uniform", "varlen")


def domain(source: Source) -> Inputs:
    """Decode rows in each layout; lengths and starts that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _refused(source)
    if flavour in RULED:
        batch = draw_ruled(source, flavour, Wanted())
    else:
        batch = draw_batch(source, Wanted(kinds=2 if flavour == "engine" else 1, walked=frozenset({"padding"})))
    layout = source.choose(LAYOUTS, weights=(3, 3, 2), small=3 if flavour == "engine" else 1)
    source.event(f"layout: {layout}")
    padding = batch.num_reqs_padded - len(batch.requests)
    queries = [min(request.query, 9) for request in batch.requests]
    width = 0 if layout == "plain" else source.integer(1, 8, near=(2, 3), small=2)
    if layout == "uniform":
        # A graph's rows have one number of queries; often enough one row differs, and the layout is the plain one.
        queries = [width] * len(queries)
        if queries and source.pick(2, weights=(4, 1), small=1):
            queries[source.integer(0, len(queries) - 1)] = source.integer(0, 9, near=(0,))
    queries += [0] * padding
    lengths = [request.computed + query for request, query in zip(batch.requests, queries, strict=False)]
    lengths += [0] * (len(queries) - len(lengths))
    starts = [0, *np.cumsum(queries, dtype=np.int64).tolist()]
    device, types = list(starts), [draw_dtype(source) for _ in range(3)]
    if flavour == "garbage":
        chosen = source.choose((lengths, device) if lengths else (device,))
        spoil(source, chosen, "int32", near=(0, -1))
    tokens = len(queries) * width if layout == "uniform" else starts[-1] + source.integer(0, 9, near=(0,), small=1)
    inputs: Inputs = {
        "query_start_loc": source.view(device, types[0], small=1),
        "query_start_loc_cpu": array(starts, types[1]),
        "seq_lens": source.view(lengths, types[2], small=1),
        "num_decode_tokens": max(tokens, starts[-1]),
        "varlen_width": max(queries, default=0) + width if layout == "varlen" else 0,
        "full_graph": source.choose((False, True), small=1),
    }
    return placed(source, flavour, inputs, "query_start_loc", "seq_lens")


def _refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "query_start_loc": array([0, 2, 4], "int32"),
        "query_start_loc_cpu": array([0, 2, 4], "int32"),
        "seq_lens": array([9, 5], "int32"),
        "num_decode_tokens": 4,
        "varlen_width": 0,
        "full_graph": True,
    }
    wrong: dict[str, dict[str, Value]] = {
        "fewer tokens than queries": {"num_decode_tokens": 3},
        "negative tokens": {"num_decode_tokens": -1},
        "width below a row": {"varlen_width": 1},
        "negative width": {"varlen_width": -1},
        "host starts longer": {"query_start_loc_cpu": array([0, 2, 4, 4], "int32")},
        "device starts longer": {"query_start_loc": array([0, 2, 4, 4], "int32")},
        "first start": {"query_start_loc_cpu": array([1, 2, 4], "int32")},
        "decreasing": {"query_start_loc_cpu": array([0, 4, 2], "int32")},
        "lengths": {"seq_lens": array([9], "int32")},
        "float lengths": {"seq_lens": array([9, 5], "float32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(mla_decode_layout, OUTPUTS, inputs)


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """Every length one longer, and the lengths the other way round; each where that is another answer."""
    first, lengths = expected(inputs), cast(Array, inputs["seq_lens"])
    if not isinstance(first, Values):
        return ()
    others = [{**inputs, "seq_lens": lengths.with_values(v)} for v in (lengths.data + 1, lengths.data[::-1])]
    answers = [(other, expected(other)) for other in others]
    return tuple(o for o, e in answers if isinstance(e, Values) and _lengths(e) != _lengths(first))


def _lengths(values: Values) -> list[int]:
    return cast(list[int], np.asarray(values.outputs["kernel_seq_lens"]).tolist())


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    names = ("query_start_loc", "query_start_loc_cpu", "seq_lens")
    starts, host, lengths = (cast(Array, inputs[name]) for name in names)
    if any(item.data.ndim != 1 for item in (starts, host, lengths)) or not host.data.size:
        return frozenset()
    queries = [end - begin for begin, end in pairwise(host.data.tolist())]
    found = {
        "no_requests": not queries,
        "several_requests": len(queries) > 1,
        "empty_query": 0 in queries,
        "several_queries": max(queries, default=0) > 1,
        "padding_tokens": cast(int, inputs["num_decode_tokens"]) > sum(queries),
        "varlen": cast(int, inputs["varlen_width"]) > 0,
        "full_graph": inputs["full_graph"] is True,
        "negative_length": bool((lengths.data < 0).any()),
        "starts_disagree": starts.data.tolist() != host.data.tolist(),
        "strided": any(item.strides is not None for item in (starts, lengths)),
        "sliced": any(item.offset for item in (starts, lengths)),
    }
    return frozenset(name for name, there in found.items() if there)
