"""Correct ``split_decodes_and_prefills`` in small steps on the host. Faults replace a step or wrap the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(call):
    """Everything that is wrong by the text of 3.3."""
    starts, flags = call.query_start_loc, call.is_prefilling
    if starts.dim() != 1 or starts.dtype not in INTEGERS or not starts.numel():
        raise ValueError("query_start_loc: must be [R+1], int32 or int64")
    threshold = call.decode_threshold
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
        raise ValueError(f"decode_threshold: {threshold} must be an int of at least 1")
    if int(starts[0]) or bool((starts.diff() < 0).any()):
        raise ValueError("query_start_loc: must start at 0 and not fall")
    if flags is None and not call.treat_short_extends_as_decodes:
        raise ValueError("is_prefilling: is needed where short extends are no decodes")
    if flags is not None and (flags.dtype != torch.bool or flags.shape != (starts.shape[0] - 1,)):
        raise ValueError("is_prefilling: must be bool [R]")


def queries_of(call):
    return call.query_start_loc.diff().tolist()


def flags_of(call, queries):
    """Who is prefilling, as far as it matters."""
    if call.treat_short_extends_as_decodes:
        return [False] * len(queries)
    return call.is_prefilling.tolist()


def all_decode(call, queries):
    """Whether nobody has to be looked at."""
    short = max(queries, default=0) <= call.decode_threshold
    return short and call.treat_short_extends_as_decodes and not (call.require_uniform and call.decode_threshold > 1)


def none_decodes(call, queries):
    """Whether the first request is a prefill because of its queries."""
    return bool(queries) and queries[0] > call.decode_threshold


def too_long(call, queries, number):
    """Whether a request of so many queries is a prefill."""
    return number not in (queries[0], 0) if call.require_uniform else number > call.decode_threshold


def first_prefill(call, queries, flags, too_long):
    """The first request that is a prefill, or the number of requests."""
    for request, (number, flagged) in enumerate(zip(queries, flags, strict=True)):
        if too_long(call, queries, number) or flagged:
            return request
    return len(queries)


def counts_of(call, queries, first):
    """The four results."""
    return first, len(queries) - first, sum(queries[:first]), sum(queries[first:])


@dataclass(frozen=True)
class Steps:
    """How a batch is split."""

    refuse: Callable[..., Any] = refuse
    queries: Callable[..., Any] = queries_of
    flags: Callable[..., Any] = flags_of
    all_decode: Callable[..., Any] = all_decode
    none_decodes: Callable[..., Any] = none_decodes
    too_long: Callable[..., Any] = too_long
    first_prefill: Callable[..., Any] = first_prefill
    counts: Callable[..., Any] = counts_of


def split(steps=Steps(), /, **inputs):  # frozen
    """All steps together."""
    call = SimpleNamespace(**inputs)
    steps.refuse(call)
    queries = steps.queries(call)
    if steps.all_decode(call, queries):
        first = len(queries)
    elif steps.none_decodes(call, queries):
        first = 0
    else:
        first = steps.first_prefill(call, queries, steps.flags(call, queries), steps.too_long)
    return steps.counts(call, queries, first)


def replaces(step):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: partial(split, Steps(**{step: function}))


def split_decodes_and_prefills(**inputs):
    return split(**inputs)
