"""Correct ``sparse_indptr`` in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(call):
    """Everything that is wrong by the text."""
    for name in ("seq_lens", "query_start_loc", "query_start_loc_cpu"):
        if getattr(call, name).dim() != 1 or getattr(call, name).dtype not in INTEGERS:
            raise ValueError(f"{name}: must have one dimension, and be int32 or int64")
    if call.query_start_loc.shape[0] != call.seq_lens.shape[0] + 1:
        raise ValueError("query_start_loc: must have one element more than seq_lens")
    if call.query_start_loc_cpu.shape != call.query_start_loc.shape:
        raise ValueError("query_start_loc_cpu: must be as long as query_start_loc")
    refuse_starts(call.query_start_loc_cpu.tolist())
    refuse_counts(call)


def refuse_starts(starts):
    if starts[0] != 0 or any(end < begin for begin, end in pairwise(starts)):
        raise ValueError("query_start_loc_cpu: must begin with 0 and not decrease")


def refuse_counts(call):
    if call.topk < 1:
        raise ValueError("topk: must be at least 1")
    if call.num_tokens < int(call.query_start_loc_cpu[-1]):
        raise ValueError("num_tokens: must be at least the number of queries")
    if call.num_tokens * call.topk >= 1 << 31:
        raise ValueError("num_tokens: must be below 2**31 / topk")


def tokens_of(call):
    return torch.arange(call.num_tokens, device=call.seq_lens.device)


def lengths_of(call):
    """Tokens of each sequence."""
    return call.seq_lens.to(torch.int64)


def starts_of(call):
    """First query of each sequence."""
    return call.query_start_loc.to(torch.int64)


def rows_of(call, starts):
    """The sequence of each query; N for padding."""
    return torch.searchsorted(starts[1:].contiguous(), tokens_of(call), right=True)


def seen_by(call, length, queries, place):
    """What the query at a place sees of its sequence."""
    return length - queries + place + 1


def clipped(call, seen):
    """Not less than nothing, not more than top-k."""
    return seen.clamp(0, call.topk)


def padded(call, rows, seen):
    """Nothing for padding."""
    return torch.where(rows < call.seq_lens.shape[0], seen, 0)


def summed(call, lengths):
    """The running sum."""
    starts = torch.zeros(call.num_tokens + 1, dtype=torch.int32, device=lengths.device)
    starts[1:] = lengths.cumsum(0)
    return starts


@dataclass(frozen=True)
class Steps:
    """How lengths are made."""

    refuse: Callable[..., Any] = refuse
    lengths: Callable[..., Any] = lengths_of
    starts: Callable[..., Any] = starts_of
    rows: Callable[..., Any] = rows_of
    seen: Callable[..., Any] = seen_by
    clipped: Callable[..., Any] = clipped
    padded: Callable[..., Any] = padded
    summed: Callable[..., Any] = summed


def count(steps=Steps(), /, **call):  # frozen
    """All steps together."""
    call = SimpleNamespace(**call)
    steps.refuse(call)
    starts = steps.starts(call)
    rows = steps.rows(call, starts)
    # One more sequence, without tokens and queries, for the padding.
    lengths = torch.cat([steps.lengths(call), starts.new_zeros(1)])[rows]
    begins = torch.cat([starts[:-1], starts.new_zeros(1)])[rows]
    queries = torch.cat([starts.diff(), starts.new_zeros(1)])[rows]
    seen = steps.clipped(call, steps.seen(call, lengths, queries, tokens_of(call) - begins))
    found = steps.padded(call, rows, seen).to(torch.int32)
    return found, steps.summed(call, found)


def replaces(step):
    """Makes a function that takes a step's place the count that has it."""
    return lambda function: partial(count, Steps(**{step: function}))


def sparse_indptr(*, seq_lens, query_start_loc, query_start_loc_cpu, topk, num_tokens):
    return count(**locals())
