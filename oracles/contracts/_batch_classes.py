"""Contracts 3.3 to 3.5, classes of requests and of tokens: the inputs they are tried on, and what is special."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
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
from reference.batch_classes import classify_linear_attention_batch, split_decodes_and_prefills
from reference.state_columns import spec_token_partition

SPLIT = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens")
PARTITION = ("spec_token_indices", "non_spec_token_indices", "spec_query_start_loc", "non_spec_query_start_loc")
CLASSES = (
    "num_decodes",
    "num_prefills",
    "num_spec_decodes",
    "num_decode_tokens",
    "num_prefill_tokens",
    "num_spec_decode_tokens",
    "spec_mask",
    "has_initial_state",
    "prefill_query_start_loc",
)
FLAGS = (False, True)


def _starts(batch: Batch) -> list[int]:
    """The step's starts, with a CUDA graph's padding rows behind them, which have no query."""
    starts = batch.query_start_loc
    return starts + [starts[-1]] * (batch.num_reqs_padded - len(batch.requests))


def _padded(batch: Batch, values: list[int]) -> list[int]:
    return values + [0] * (batch.num_reqs_padded - len(batch.requests))


def _prefilling(source: Source, batch: Batch) -> list[int]:
    """Who has prompt tokens left: prompts, and in some steps those that get no token in it."""
    waits = source.choose(FLAGS, weights=(3, 1), small=1)
    if waits:
        source.event("idle requests have a prompt left")
    flags = [int(request.is_prefilling or (waits and not request.query)) for request in batch.requests]
    return _padded(batch, flags)


def _drafts(source: Source, batch: Batch) -> list[int]:
    """Draft counts: those of requests that speculate, and in some steps of those that get no token in it."""
    idle = source.choose((-1, 0), weights=(5, 1), small=1)
    counts = [request.drafts if request.query else idle for request in batch.requests]
    return counts + [-1] * (batch.num_reqs_padded - len(batch.requests))


def split_domain(source: Source) -> Inputs:
    """A step's starts and what its requests are doing; or an input that must be refused."""
    if source.choose(FLAGS, weights=(9, 2)):
        return _split_refused(source)
    batch = draw_batch(source, Wanted(kinds=3))
    threshold = source.integer(1, 9, near=(1, 1, 2, 3), small=2)
    requests = list(zip(np.diff(_starts(batch)).tolist(), _prefilling(source, batch), strict=True))
    if source.choose(FLAGS, weights=(3, 1), small=1):
        source.event("queries: none above the threshold")
        requests = [(min(queries, threshold), flag) for queries, flag in requests]
    # Padding comes last, and idle rows behind decodes: the first row, which others are compared with, rarely is one.
    if requests and requests[0][0] and not requests[-1][0] and source.choose(FLAGS):
        source.event("order: turned")
        requests.reverse()
    short = source.choose((True, False))
    known = not short or source.choose(FLAGS, small=1)
    starts = list(accumulate((queries for queries, _ in requests), initial=0))
    return {
        "query_start_loc": source.view(starts, draw_dtype(source), small=1),
        "is_prefilling": array([flag for _, flag in requests], "bool") if known else None,
        "decode_threshold": threshold,
        "require_uniform": source.choose(FLAGS),
        "treat_short_extends_as_decodes": short,
    }


def _split_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "query_start_loc": array([0, 1, 5], "int32"),
        "is_prefilling": array([False, True], "bool"),
        "decode_threshold": 1,
        "require_uniform": False,
        "treat_short_extends_as_decodes": False,
    }
    wrong: dict[str, dict[str, Value]] = {
        "not known who prefills": {"is_prefilling": None},
        "threshold 0": {"decode_threshold": 0},
        "first start": {"query_start_loc": array([1, 2, 5], "int32")},
        "decreasing": {"query_start_loc": array([0, 5, 1], "int32")},
        "no element": {"query_start_loc": array([], "int32")},
        "other rows": {"is_prefilling": array([False], "bool")},
        "int32 flags": {"is_prefilling": array([0, 1], "int32")},
        "float starts": {"query_start_loc": array([0, 1, 5], "float32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def split_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(split_decodes_and_prefills, SPLIT, inputs)


def split_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The queries the other way round, where that is another answer."""
    return _other_order(inputs, "query_start_loc", split_expected(inputs), lambda other: split_expected(other))


def _other_order(inputs: Inputs, name: str, first: Expected, ask: object) -> tuple[Inputs, ...]:
    if not isinstance(first, Values):
        return ()
    starts = cast(Array, inputs[name])
    turned = list(accumulate(np.diff(starts.data)[::-1].tolist(), initial=0))
    other = {**inputs, name: starts.with_values(turned)}
    answered = ask(other)  # type: ignore[operator]
    return () if not isinstance(answered, Values) or _plain(answered) == _plain(first) else (other,)


def _plain(values: Values) -> list[object]:
    return [np.asarray(value).tolist() for value in values.outputs.values()]


def split_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    starts, threshold = cast(Array, inputs["query_start_loc"]), cast(int, inputs["decode_threshold"])
    if starts.data.ndim != 1 or not starts.data.size:
        return frozenset()
    queries = [end - begin for begin, end in pairwise(starts.data.tolist())]
    found = {
        "no_requests": not queries,
        "empty_query": 0 in queries,
        "several_requests": len(queries) > 1,
        "long_query": max(queries, default=0) > threshold,
        "unequal_queries": len(set(queries)) > 1,
        "threshold": threshold > 1,
        "uniform": inputs["require_uniform"] is True,
        "short_extends_are_prefills": inputs["treat_short_extends_as_decodes"] is False,
        "strided": starts.strides is not None,
        "sliced": bool(starts.offset),
    }
    return frozenset(name for name, there in found.items() if there)


def partition_domain(source: Source) -> Inputs:
    """A step in which some requests speculate; starts that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _partition_refused(source)
    if flavour in RULED:
        batch = draw_ruled(source, flavour, Wanted())
    else:
        batch = draw_batch(source, Wanted(kinds=3 if flavour == "engine" else 1, walked=frozenset({"padding"})))
    kind = source.choose(
        ("drafts", "none", "all", "every second"), weights=(5, 1, 1, 2), small=1 if flavour in RULED else 2
    )
    mask = {
        "drafts": [int(request.drafts >= 0) for request in batch.requests],
        "none": [0] * len(batch.requests),
        "all": [1] * len(batch.requests),
        "every second": [row % 2 for row in range(len(batch.requests))],
    }[kind]
    starts, types = _starts(batch), [draw_dtype(source), draw_dtype(source)]
    device = list(starts)
    if flavour == "garbage":
        spoil(source, device, types[0], near=(0, starts[-1] + 1, 1 << 20))
    inputs: Inputs = {
        "query_start_loc": source.view(device, types[0], small=1),
        "query_start_loc_cpu": array(starts, types[1]),
        "spec_mask_cpu": array(_padded(batch, mask), "bool"),
    }
    return placed(source, flavour, inputs, "query_start_loc")


def _partition_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "query_start_loc": array([0, 1, 4], "int32"),
        "query_start_loc_cpu": array([0, 1, 4], "int32"),
        "spec_mask_cpu": array([False, True], "bool"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "host starts longer": {"query_start_loc_cpu": array([0, 1, 4, 4], "int32")},
        "device starts longer": {"query_start_loc": array([0, 1, 4, 4], "int32")},
        "mask longer": {"spec_mask_cpu": array([False, True, True], "bool")},
        "decreasing": {"query_start_loc_cpu": array([0, 4, 1], "int32")},
        "first start": {"query_start_loc_cpu": array([1, 1, 4], "int32")},
        "int32 mask": {"spec_mask_cpu": array([0, 1], "int32")},
        "float starts": {"query_start_loc": array([0, 1, 4], "float32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def partition_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(spec_token_partition, PARTITION, inputs)


def partition_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The mask the other way round, and the other requests speculating; each where that is another answer."""
    first, mask = partition_expected(inputs), cast(Array, inputs["spec_mask_cpu"])
    if not isinstance(first, Values):
        return ()
    # The host knows how many tokens speculate, so a change of the mask may change the shapes: that is allowed.
    others = [{**inputs, "spec_mask_cpu": mask.with_values(other)} for other in (mask.data[::-1], ~mask.data)]
    answers = [(other, partition_expected(other)) for other in others]
    return tuple(o for o, e in answers if isinstance(e, Values) and _plain(e) != _plain(first))


def partition_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    starts, host, mask = (cast(Array, inputs[n]) for n in ("query_start_loc", "query_start_loc_cpu", "spec_mask_cpu"))
    if any(item.data.ndim != 1 for item in (starts, host, mask)):
        return frozenset()
    queries = [end - begin for begin, end in pairwise(host.data.tolist())]
    found = {
        "no_requests": not queries,
        "empty_query": 0 in queries,
        "several_requests": len(queries) > 1,
        "several_queries": max(queries, default=0) > 1,
        "speculative": bool((mask.data != 0).any()),
        "mixed": len(set(mask.data.tolist())) > 1,
        "starts_disagree": starts.data.tolist() != host.data.tolist(),
        "huge_stride": starts.reach > 1 << 31,
        "strided": starts.strides is not None and starts.reach <= 1 << 31,
        "sliced": bool(starts.offset),
    }
    return frozenset(name for name, there in found.items() if there)


def classes_domain(source: Source) -> Inputs:
    """A step of any mix; or an input that must be refused."""
    if source.choose(FLAGS, weights=(9, 2)):
        return _classes_refused(source)
    batch = draw_batch(source, Wanted(kinds=5))
    if source.choose(FLAGS, weights=(3, 1), small=1):
        source.event("idle requests have no token yet")
        fresh = [request if request.query else replace(request, computed=0) for request in batch.requests]
        batch = replace(batch, requests=tuple(fresh))
    drafts = source.choose((0, 1, 2, 7), small=2)
    known = source.choose((True, False), weights=(5, 1), small=1)
    given = source.choose((True, False), weights=(4, 1), small=1)
    return {
        "query_start_loc_cpu": source.view(_starts(batch), draw_dtype(source), small=1),
        "seq_lens_cpu": source.view(_padded(batch, batch.seq_lens), draw_dtype(source), small=1),
        "is_prefilling": array(_prefilling(source, batch), "bool") if known else None,
        "num_decode_draft_tokens_cpu": array(_drafts(source, batch), draw_dtype(source)) if given else None,
        "num_speculative_tokens": drafts,
    }


def _classes_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "query_start_loc_cpu": array([0, 1, 5], "int32"),
        "seq_lens_cpu": array([9, 4], "int32"),
        "is_prefilling": array([False, True], "bool"),
        "num_decode_draft_tokens_cpu": array([-1, -1], "int32"),
        "num_speculative_tokens": 1,
    }
    wrong: dict[str, dict[str, Value]] = {
        "negative drafts": {"num_speculative_tokens": -1},
        "first start": {"query_start_loc_cpu": array([1, 2, 5], "int32")},
        "decreasing": {"query_start_loc_cpu": array([0, 5, 1], "int32")},
        "no element": {"query_start_loc_cpu": array([], "int32"), "seq_lens_cpu": array([], "int32")},
        "lengths": {"seq_lens_cpu": array([9], "int32")},
        "negative length": {"seq_lens_cpu": array([9, -1], "int32")},
        "prefilling": {"is_prefilling": array([True], "bool")},
        "draft counts": {"num_decode_draft_tokens_cpu": array([-1], "int32")},
        "int32 flags": {"is_prefilling": array([0, 1], "int32")},
        "float lengths": {"seq_lens_cpu": array([9, 4], "float32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def classes_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(classify_linear_attention_batch, CLASSES, inputs)


def classes_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The queries the other way round, where that is another answer."""
    return _other_order(inputs, "query_start_loc_cpu", classes_expected(inputs), lambda other: classes_expected(other))


def classes_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    starts, lengths = cast(Array, inputs["query_start_loc_cpu"]), cast(Array, inputs["seq_lens_cpu"])
    drafts, flags = inputs["num_decode_draft_tokens_cpu"], inputs["is_prefilling"]
    if starts.data.ndim != 1 or lengths.data.ndim != 1 or not starts.data.size:
        return frozenset()
    queries = [end - begin for begin, end in pairwise(starts.data.tolist())]
    drafted = isinstance(drafts, Array) and bool((drafts.data >= 0).any())
    found = {
        "no_requests": not queries,
        "empty_query": 0 in queries,
        "several_requests": len(queries) > 1,
        "one_token_query": 1 in queries,
        "long_query": max(queries, default=0) > 1,
        "first_chunk": any(0 < s <= q for q, s in zip(queries, lengths.data.tolist(), strict=False)),
        "speculative": drafted and inputs["num_speculative_tokens"] != 0,
        "prefilling": isinstance(flags, Array) and bool((flags.data != 0).any()),
        "prefilling_unknown": flags is None,
        "strided": any(item.strides is not None for item in (starts, lengths)),
        "sliced": any(item.offset for item in (starts, lengths)),
    }
    return frozenset(name for name, there in found.items() if there)
