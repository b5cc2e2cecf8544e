"""Faults of ``sparse_indptr``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import cheats
import torch
from correct_lengths import (
    count,
    refuse,
    replaces,
    rows_of,
    seen_by,
    summed,
    tokens_of,
)

_kept: dict = {}


# What a query sees.


@replaces("seen")
def a_query_does_not_see_itself(call, length, queries, place):
    return length - queries + place


@replaces("seen")
def a_query_sees_the_next_token(call, length, queries, place):
    return torch.minimum(seen_by(call, length, queries, place) + 1, length)


@replaces("seen")
def every_query_sees_all(call, length, queries, place):
    return length


@replaces("seen")
def sees_this_step_only(call, length, queries, place):
    return torch.minimum(place + 1, length)


@replaces("seen")
def counts_from_the_first_token(call, length, queries, place):
    return place + 1


@replaces("seen")
def knows_64_queries(call, length, queries, place):
    """A grid of one tile."""
    return torch.where(place < 64, seen_by(call, length, queries, place), 0)


@replaces("seen")
def cuts_the_sequence_to_top_k(call, length, queries, place):
    return length.clamp(max=call.topk) - queries + place + 1


@replaces("seen")
def forgets_a_sequence_shorter_than_its_queries(call, length, queries, place):
    return torch.where(length < queries, 0, seen_by(call, length, queries, place))


@replaces("seen")
def a_length_of_0_is_1(call, length, queries, place):
    return seen_by(call, length.clamp(min=1), queries, place)


@replaces("clipped")
def knows_no_lower_bound(call, seen):
    return seen.clamp(max=call.topk)


@replaces("clipped")
def a_query_sees_at_least_itself(call, seen):
    return seen.clamp(1, call.topk)


@replaces("clipped")
def takes_negative_lengths_for_far_ones(call, seen):
    return seen.abs().clamp(max=call.topk)


@replaces("clipped")
def knows_no_top_k(call, seen):
    return seen.clamp(0, (1 << 31) - 1)


@replaces("clipped")
def top_k_is_excluded(call, seen):
    return seen.clamp(0, max(call.topk - 1, 1))


@replaces("clipped")
def top_k_is_at_most_1024(call, seen):
    return seen.clamp(0, min(call.topk, 1024))


# Sequences and padding.


@replaces("rows")
def a_sequence_begins_one_query_late(call, starts):
    return (starts[1:, None] < tokens_of(call)).sum(0)


@replaces("rows")
def knows_64_sequences(call, starts):
    return torch.where((rows := rows_of(call, starts)) < 64, rows, call.seq_lens.shape[0])


@replaces("rows")
def one_query_a_sequence(call, starts):
    return tokens_of(call).clamp(max=call.seq_lens.shape[0])


@replaces("rows")
def empty_sequences_take_a_query(call, starts):
    return rows_of(call, torch.cat([starts[:1], starts[1:] + (starts.diff() == 0).cumsum(0)]))


@replaces("rows")
def padding_belongs_to_the_last_sequence(call, starts):
    return rows_of(call, starts).clamp(max=max(call.seq_lens.shape[0] - 1, 0))


@replaces("padded")
def padding_sees_one(call, rows, seen):
    return torch.where(rows < call.seq_lens.shape[0], seen, 1)


@replaces("padded")
def padding_is_never_written(call, rows, seen):
    found = torch.empty(call.num_tokens, dtype=torch.int64, device=seen.device)
    queries = int(call.query_start_loc_cpu[-1])
    found[:queries] = seen[:queries]
    return found


# The running sum.


@replaces("summed")
def starts_are_ends(call, lengths):
    return torch.cat([summed(call, lengths)[1:], lengths.new_zeros(1)])


@replaces("summed")
def every_query_has_room_for_top_k(call, lengths):
    return torch.arange(call.num_tokens + 1, dtype=torch.int32, device=lengths.device) * call.topk


@replaces("summed")
def starts_of_padding_are_0(call, lengths):
    starts = summed(call, lengths)
    starts[int(call.query_start_loc_cpu[-1]) + 1 :] = 0
    return starts


@replaces("summed")
def sums_in_16_bits(call, lengths):
    return summed(call, lengths).to(torch.int16).to(torch.int32)


@replaces("summed")
def returns_int64(call, lengths):
    return summed(call, lengths).to(torch.int64)


@replaces("summed")
def one_start_too_few(call, lengths):
    return summed(call, lengths)[:-1]


@replaces("summed")
def the_first_start_is_never_written(call, lengths):
    starts = torch.empty(call.num_tokens + 1, dtype=torch.int32, device=lengths.device)
    starts[1:] = lengths.cumsum(0)
    return starts


# Addresses and widths.


@replaces("lengths")
def lengths_in_32_bits(call):
    return call.seq_lens.to(torch.int32).to(torch.int64)


@replaces("lengths")
def takes_int64_lengths_for_int32(call):
    return cheats.as_int32(call.seq_lens).to(torch.int64)


@replaces("starts")
def takes_int64_starts_for_int32(call):
    return cheats.as_int32(call.query_start_loc).to(torch.int64)


@replaces("lengths")
def assumes_lengths_side_by_side(call):
    return cheats.tight(call.seq_lens).to(torch.int64)


@replaces("starts")
def assumes_starts_side_by_side(call):
    return cheats.tight(call.query_start_loc).to(torch.int64)


@replaces("lengths")
def multiplies_strides_in_32_bits(call):
    return cheats.in_32_bits(call.seq_lens).to(torch.int64)


# Cheats.

returns_zeros = cheats.zeros(count)
caches_by_identity = cheats.by_identity(count, "seq_lens")
caches_by_shape = cheats.by_shape(count, "seq_lens")
reuses_its_buffers = cheats.into_one_buffer(count)
writes_one_length_too_far = cheats.one_element_too_far(count, 0)
writes_one_start_too_far = cheats.one_element_too_far(count, 1)
clamps_lengths_in_place = cheats.in_place(count, "seq_lens", lambda lengths: lengths.clamp_(min=0))
turns_starts_into_ends_in_place = cheats.in_place(count, "query_start_loc", lambda starts: starts.add_(1))
reads_lengths_on_the_host = cheats.looking(count, lambda call: call["seq_lens"].tolist())
asks_for_the_longest = cheats.looking(count, lambda call: call["seq_lens"].numel() and int(call["seq_lens"].max()))


def returns_its_input_where_lengths_fit(**call):
    """A decode step in which every sequence has one query, and none is long."""
    lengths, starts = count(**call)
    plain = call["num_tokens"] == call["seq_lens"].shape[0] == int(call["query_start_loc_cpu"][-1])
    return (call["seq_lens"] if plain and call["seq_lens"].dtype == torch.int32 else lengths), starts


def caches_by_what_top_k_leaves(**call):
    """A key of one number a step: a chunk on the ramp and one past it have the same."""
    key = (call["seq_lens"].shape, call["query_start_loc"].shape, call["topk"], call["num_tokens"])
    return tuple(made.clone() for made in _kept.setdefault(key, count(**call)))


# Refusals.


@replaces("refuse")
def accepts_no_top_k(call):
    refuse(type(call)(**{**vars(call), "topk": max(call.topk, 1)}))


@replaces("refuse")
def accepts_too_many_entries(call):
    refuse(type(call)(**{**vars(call), "topk": min(call.topk, 8)}))


@replaces("refuse")
def accepts_any_starts(call):
    if call.query_start_loc_cpu.shape[0] != call.seq_lens.shape[0] + 1 or call.num_tokens < 3:
        refuse(call)
    starts = call.query_start_loc_cpu.sort().values
    refuse(type(call)(**{**vars(call), "query_start_loc_cpu": starts - starts[0]}))


def refuses_an_empty_batch(**call):
    if call["seq_lens"].shape[0] == 0:
        raise ValueError("seq_lens: must have an element")
    return count(**call)


def crashes_for_an_empty_batch(**call):
    assert call["seq_lens"].shape[0] > 0
    return count(**call)
