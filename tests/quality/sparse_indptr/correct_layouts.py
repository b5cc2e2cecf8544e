"""A correct ``mla_decode_layout`` in small steps. Each planted fault replaces a step or wraps the whole."""

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
    for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens"):
        if getattr(call, name).dim() != 1 or getattr(call, name).dtype not in INTEGERS:
            raise ValueError(f"{name}: must have one dimension, and be int32 or int64")
    if call.query_start_loc.shape[0] != call.seq_lens.shape[0] + 1:
        raise ValueError("query_start_loc: must have one element more than seq_lens")
    if call.query_start_loc_cpu.shape != call.query_start_loc.shape:
        raise ValueError("query_start_loc_cpu: must be as long as query_start_loc")
    if min(call.num_decode_tokens, call.varlen_width) < 0:
        raise ValueError("num_decode_tokens, varlen_width: must not be negative")
    refuse_rows(call)


def refuse_rows(call):
    starts = call.query_start_loc_cpu.tolist()
    queries = [end - begin for begin, end in pairwise(starts)]
    if starts[0] != 0 or min(queries, default=0) < 0:
        raise ValueError("query_start_loc_cpu: must begin with 0 and not decrease")
    if call.num_decode_tokens < starts[-1]:
        raise ValueError("num_decode_tokens: must be at least the number of queries")
    if 0 < call.varlen_width < max(queries, default=0):
        raise ValueError("varlen_width: must be 0 or at least the queries of each row")


def queries_of(call):
    """Queries of each row, on the host."""
    return call.query_start_loc_cpu.diff().tolist()


def uniform(call, queries):
    """The width of a graph's rows; 0 where the layout is plain."""
    used = [count for count in queries if count]
    if not queries or call.num_decode_tokens % len(queries) or queries[: len(used)] != used:
        return 0
    width = call.num_decode_tokens // len(queries)
    fits = width > 1 and call.num_decode_tokens > sum(queries) and all(count == width for count in used)
    return width if fits else 0


def lengths_of(call):
    """Tokens of each row."""
    return call.seq_lens.to(torch.int64)


def counts_of(call):
    """Queries of each row, on the device."""
    return call.query_start_loc.diff().to(torch.int64)


def widened(call, lengths, counts):
    """Kernel lengths of rows that are given as many queries as the widest."""
    return lengths + call.varlen_width - counts


def filled(call, lengths, counts, width):
    """Kernel lengths of a graph's rows."""
    return torch.where(counts == 0, width, lengths)


def summed(call, lengths):
    """The running sum."""
    starts = torch.zeros(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
    starts[1:] = lengths.cumsum(0)
    return starts


def rows_of(call, width):
    """First query of each row of a width."""
    return torch.arange(call.seq_lens.shape[0] + 1, dtype=torch.int32, device=call.seq_lens.device) * width


def rows_as_they_are(call):
    """First query of each row of a plain layout."""
    return call.query_start_loc.to(torch.int32, copy=True)


def longest(call, queries, width):
    return width or max(queries, default=0)


def shortest(call, lengths):
    """What the host knows without asking the device."""
    return 1


@dataclass(frozen=True)
class Steps:
    """How rows are laid out."""

    refuse: Callable[..., Any] = refuse
    uniform: Callable[..., Any] = uniform
    lengths: Callable[..., Any] = lengths_of
    counts: Callable[..., Any] = counts_of
    widened: Callable[..., Any] = widened
    filled: Callable[..., Any] = filled
    summed: Callable[..., Any] = summed
    rows: Callable[..., Any] = rows_of
    plain: Callable[..., Any] = rows_as_they_are
    longest: Callable[..., Any] = longest
    shortest: Callable[..., Any] = shortest


def lay_out(steps=Steps(), /, **call):  # frozen
    """All steps together."""
    call = SimpleNamespace(**call)
    steps.refuse(call)
    queries, lengths, counts = queries_of(call), steps.lengths(call), steps.counts(call)
    width = call.varlen_width or steps.uniform(call, queries)
    if call.varlen_width:
        lengths = steps.widened(call, lengths, counts)
    elif width:
        lengths = steps.filled(call, lengths, counts, width)
    return (
        lengths.to(torch.int32, copy=True),
        steps.summed(call, lengths),
        steps.rows(call, width) if width else steps.plain(call),
        steps.longest(call, queries, width),
        steps.shortest(call, lengths),
    )


def replaces(step):
    """Makes a function that takes a step's place the layout that has it."""
    return lambda function: partial(lay_out, Steps(**{step: function}))


def mla_decode_layout(*, query_start_loc, query_start_loc_cpu, seq_lens, num_decode_tokens, varlen_width, full_graph):
    return lay_out(**locals())
