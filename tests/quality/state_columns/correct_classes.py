"""Correct ``classify_linear_attention_batch`` in small steps on the host. Faults replace a step or wrap the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(call):
    """Everything that is wrong by the text of 3.5."""
    starts, lengths = call.query_start_loc_cpu, call.seq_lens_cpu
    drafts, flags = call.num_decode_draft_tokens_cpu, call.is_prefilling
    numbers = [starts, lengths, *([] if drafts is None else [drafts])]
    if any(item.dim() != 1 or item.dtype not in INTEGERS for item in numbers) or not starts.numel():
        raise ValueError("query_start_loc_cpu: must be [R+1], all others [R], int32 or int64")
    if flags is not None and (flags.dim() != 1 or flags.dtype != torch.bool):
        raise ValueError("is_prefilling: must be bool [R]")
    most = call.num_speculative_tokens
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise ValueError(f"num_speculative_tokens: {most} must be an int of at least 0")
    if int(starts[0]) or bool((starts.diff() < 0).any()) or bool((lengths < 0).any()):
        raise ValueError("query_start_loc_cpu: must start at 0 and not fall, and lengths not be negative")
    others = [lengths, *(item for item in (flags, drafts) if item is not None)]
    if any(item.shape[0] != starts.shape[0] - 1 for item in others):
        raise ValueError("query_start_loc_cpu: must have one element more than all others")


def queries_of(call):
    return call.query_start_loc_cpu.diff().tolist()


def mask_of(call, queries):
    """Who speculates."""
    drafts = call.num_decode_draft_tokens_cpu
    if drafts is None or not call.num_speculative_tokens:
        return [False] * len(queries)
    return [count >= 0 for count in drafts.tolist()]


def states_of(call, queries):
    """Who has a state from before."""
    return [length > number for length, number in zip(call.seq_lens_cpu.tolist(), queries, strict=True)]


def flags_of(call, queries):
    return [False] * len(queries) if call.is_prefilling is None else call.is_prefilling.tolist()


def begins(number, flagged, has_state):
    """Whether a request is a prompt's first chunk."""
    return flagged and number > 0 and not has_state


def first_prefill(call, queries, first_chunks):
    """The first request with more than one query, or with a first chunk, or the number of requests."""
    found = [row for row, number in enumerate(queries) if number > 1 or first_chunks[row]]
    return found[0] if found else len(queries)


def plain_counts(call, queries, first):
    """Decodes and prefills and their tokens, where nobody speculates."""
    prefills = sum(number > 0 for number in queries[first:])
    if not prefills:
        return first, 0, sum(queries[:first]), 0
    # Idle requests among prefills move the end forward, as the definition has it.
    return first, prefills, sum(queries[:first]), sum(queries[first : first + prefills])


def mixed_counts(call, queries, mask):
    """All six, where somebody speculates."""
    others = [number for number, own in zip(queries, mask, strict=True) if not own]
    return 0, sum(number > 0 for number in others), sum(mask), 0, sum(others), sum(queries) - sum(others)


def states_kept(call, states, mask):
    """States of the requests that do not speculate."""
    return [state for state, own in zip(states, mask, strict=True) if not own]


def rebased(call, others, counts):
    """Starts of the prefills alone; ``others`` are the queries of those that do not speculate."""
    return [start - counts[3] for start in list(accumulate(others, initial=0))[counts[0] :]]


@dataclass(frozen=True)
class Steps:
    """How a batch is classified."""

    refuse: Callable[..., Any] = refuse
    queries: Callable[..., Any] = queries_of
    mask: Callable[..., Any] = mask_of
    states: Callable[..., Any] = states_of
    flags: Callable[..., Any] = flags_of
    begins: Callable[..., Any] = begins
    first: Callable[..., Any] = first_prefill
    plain: Callable[..., Any] = plain_counts
    mixed: Callable[..., Any] = mixed_counts
    kept: Callable[..., Any] = states_kept
    rebased: Callable[..., Any] = rebased


def classify(steps=Steps(), /, **inputs):  # frozen
    """All steps together."""
    call = SimpleNamespace(**inputs)
    steps.refuse(call)
    queries = steps.queries(call)
    mask, states = steps.mask(call, queries), steps.states(call, queries)
    if any(mask):
        counts = steps.mixed(call, queries, mask)
    else:
        rows = zip(queries, steps.flags(call, queries), states, strict=True)
        first = steps.first(call, queries, [steps.begins(*row) for row in rows])
        decodes, prefills, decode_tokens, prefill_tokens = steps.plain(call, queries, first)
        counts = decodes, prefills, 0, decode_tokens, prefill_tokens, 0
    others = [number for number, own in zip(queries, mask, strict=True) if not own]
    kept = steps.kept(call, states, mask) if counts[1] else []
    starts = steps.rebased(call, others, counts) if counts[1] else [0]
    return (
        *counts,
        torch.tensor(mask, dtype=torch.bool),
        torch.tensor(kept, dtype=torch.bool),
        torch.tensor(starts, dtype=call.query_start_loc_cpu.dtype),
    )


def replaces(step):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: partial(classify, Steps(**{step: function}))


def classify_linear_attention_batch(**inputs):
    return classify(**inputs)
