"""Correct sparse lengths of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_lengths import count, replaces, rows_of, tokens_of

_cache: dict = {}


def returns_a_mapping(**call):
    lengths, starts = count(**call)
    return {"paged_kv_indptr": starts, "sparse_seq_lens": lengths, "topk": call["topk"]}


@replaces("starts")
def takes_the_hosts_starts(call):
    """Promises are made only where both agree."""
    return call.query_start_loc_cpu.to(torch.int64).to(call.seq_lens.device)


@replaces("rows")
def goes_sequence_by_sequence(call, starts):
    """The last one first, by masks that are never an index."""
    rows = torch.full((call.num_tokens,), call.seq_lens.shape[0], device=call.seq_lens.device)
    for row in reversed(range(call.seq_lens.shape[0])):
        mine = (tokens_of(call) >= starts[row]) & (tokens_of(call) < starts[row + 1])
        rows = torch.where(mine, row, rows)
    return rows


@replaces("seen")
def counts_from_the_end(call, length, queries, place):
    return length - (queries - 1 - place)


@replaces("clipped")
def clips_top_k_first(call, seen):
    return torch.minimum(seen, torch.full_like(seen, call.topk)).relu()


@replaces("summed")
def sums_backwards(call, lengths):
    """What is left of the total behind each query."""
    wide = torch.cat([lengths.to(torch.int64), lengths.new_zeros(1, dtype=torch.int64)])
    behind = wide.flip(0).cumsum(0).flip(0)
    return (wide.sum() - behind).to(torch.int32)


@replaces("rows")
def keeps_a_workspace(call, starts):
    """Rows in a buffer that lives on between calls, and is written anew in each."""
    own = _cache.setdefault("rows", starts.new_zeros(1 << 14))
    return own[: call.num_tokens].copy_(rows_of(call, starts))


def returns_views_of_one_buffer(**call):
    """Both results are parts of one new buffer."""
    lengths, starts = count(**call)
    buffer = torch.cat([starts, lengths])
    return buffer[starts.shape[0] :], buffer[: starts.shape[0]]
