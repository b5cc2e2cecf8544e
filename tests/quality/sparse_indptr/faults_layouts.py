"""Faults of ``mla_decode_layout``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import cheats
import torch
from correct_layouts import (
    lay_out,
    lengths_of,
    longest,
    refuse,
    replaces,
    rows_as_they_are,
    rows_of,
    summed,
    uniform,
    widened,
)

# Which layout.


@replaces("uniform")
def knows_no_padding_of_a_graph(call, queries):
    return 0


@replaces("uniform")
def pads_without_padding_rows(call, queries):
    """Any row may have fewer queries."""
    exact = bool(queries) and call.num_decode_tokens % len(queries) == 0 and call.num_decode_tokens > sum(queries)
    width = call.num_decode_tokens // len(queries) if exact else 0
    return width if width > 1 else 0


@replaces("uniform")
def padding_rows_may_be_anywhere(call, queries):
    return uniform(call, sorted(queries, reverse=True))


@replaces("uniform")
def rows_of_one_query_are_padded_too(call, queries):
    ones = bool(queries) and call.num_decode_tokens == len(queries) > sum(queries) and max(queries) <= 1
    return 1 if ones and queries == sorted(queries, reverse=True) else uniform(call, queries)


@replaces("uniform")
def rounds_the_width_down(call, queries):
    used = [count for count in queries if count]
    width = call.num_decode_tokens // len(queries) if queries else 0
    padded = len(used) < len(queries) and queries[: len(used)] == used and set(used) <= {width}
    return width if padded and width > 1 else 0


@replaces("uniform")
def pads_in_a_graph_only(call, queries):
    return uniform(call, queries) if call.full_graph else 0


@replaces("uniform")
def the_first_row_says_the_width(call, queries):
    first = queries[0] if queries else 0
    return first if first > 1 and 0 in queries and call.num_decode_tokens == first * len(queries) else 0


# Lengths.


@replaces("widened")
def rows_of_a_width_keep_their_length(call, lengths, counts):
    return lengths


@replaces("widened")
def adds_the_whole_width(call, lengths, counts):
    return lengths + call.varlen_width


@replaces("widened")
def forgets_the_width(call, lengths, counts):
    return lengths - counts


@replaces("widened")
def padding_rows_stay_empty(call, lengths, counts):
    return torch.where(counts == 0, lengths, widened(call, lengths, counts))


@replaces("widened")
def rows_are_one_entry_too_long(call, lengths, counts):
    return widened(call, lengths, counts) + 1


@replaces("filled")
def padding_of_a_graph_is_empty(call, lengths, counts, width):
    return lengths


@replaces("filled")
def padding_of_a_graph_has_one_entry(call, lengths, counts, width):
    return torch.where(counts == 0, 1, lengths)


@replaces("filled")
def every_row_has_the_width(call, lengths, counts, width):
    return lengths * 0 + width


@replaces("filled")
def short_rows_have_the_width(call, lengths, counts, width):
    return lengths.clamp(min=width) + 0 * counts


@replaces("filled")
def padding_of_a_graph_adds_the_width(call, lengths, counts, width):
    return torch.where(counts == 0, width, lengths + width)


@replaces("lengths")
def empty_rows_have_an_entry(call):
    return lengths_of(call).clamp(min=1)


# Starts and counts.


@replaces("summed")
def starts_are_ends(call, lengths):
    starts = summed(call, lengths)
    return torch.cat([starts[1:], starts[-1:]])


@replaces("summed")
def sums_lengths_of_sequences(call, lengths):
    return summed(call, lengths_of(call))


@replaces("summed")
def sums_in_16_bits(call, lengths):
    return summed(call, lengths).to(torch.int16).to(torch.int32)


@replaces("summed")
def returns_int64(call, lengths):
    return summed(call, lengths).to(torch.int64)


@replaces("summed")
def the_first_start_is_never_written(call, lengths):
    starts = torch.empty(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
    starts[1:] = lengths.cumsum(0)
    return starts


@replaces("rows")
def rows_of_a_width_keep_their_starts(call, width):
    return rows_as_they_are(call)


@replaces("rows")
def the_last_row_has_no_end(call, width):
    return rows_of(call, width)[:-1]


@replaces("plain")
def a_query_for_each_row_without_a_graph(call):
    """Where no row has more than one; padding rows get one too."""
    single = not call.full_graph and int(call.query_start_loc_cpu.diff().max() if call.seq_lens.shape[0] else 0) == 1
    return rows_of(call, 1) if single else rows_as_they_are(call)


@replaces("plain")
def a_query_for_each_row(call):
    return rows_of(call, 1)


@replaces("plain")
def starts_end_with_the_padding(call):
    starts = rows_as_they_are(call)
    starts[-1] = call.num_decode_tokens
    return starts


@replaces("plain")
def starts_of_lengths(call):
    counts = call.query_start_loc.diff().to(torch.int32)
    return torch.cat([counts, counts.new_zeros(1)])


@replaces("plain")
def returns_its_starts_themselves(call):
    plain = call.query_start_loc.dtype == torch.int32
    return call.query_start_loc if plain else rows_as_they_are(call)


@replaces("longest")
def the_longest_row_is_the_first(call, queries, width):
    return width or (queries[0] if queries else 0)


@replaces("longest")
def the_longest_row_has_a_query(call, queries, width):
    return max(longest(call, queries, width), 1)


@replaces("longest")
def rows_of_a_width_are_as_long_as_they_were(call, queries, width):
    return max(queries, default=0)


@replaces("longest")
def the_mean_of_rows(call, queries, width):
    return width or (call.num_decode_tokens // len(queries) if queries else 0)


@replaces("longest")
def the_longest_as_a_tensor(call, queries, width):
    return torch.tensor(longest(call, queries, width))


@replaces("shortest")
def knows_no_lower_bound(call, lengths):
    return 0


@replaces("shortest")
def asks_for_the_shortest(call, lengths):
    return int(lengths.min()) if lengths.shape[0] else 1


# Addresses and widths.


@replaces("lengths")
def takes_int64_lengths_for_int32(call):
    return cheats.as_int32(call.seq_lens).to(torch.int64)


@replaces("plain")
def takes_int64_starts_for_int32(call):
    return cheats.as_int32(call.query_start_loc).clone()


@replaces("lengths")
def assumes_lengths_side_by_side(call):
    return cheats.tight(call.seq_lens).to(torch.int64)


@replaces("plain")
def assumes_starts_side_by_side(call):
    return cheats.tight(call.query_start_loc).to(torch.int32, copy=True)


@replaces("counts")
def counts_queries_from_tight_starts(call):
    return cheats.tight(call.query_start_loc).diff().to(torch.int64)


# Cheats.

returns_zeros = cheats.zeros(lay_out)
caches_by_identity = cheats.by_identity(lay_out, "seq_lens")
caches_by_shape = cheats.by_shape(lay_out, "seq_lens")
reuses_its_buffers = cheats.into_one_buffer(lay_out)
writes_one_length_too_far = cheats.one_element_too_far(lay_out, 0)
writes_one_start_too_far = cheats.one_element_too_far(lay_out, 1)
clamps_lengths_in_place = cheats.in_place(lay_out, "seq_lens", lambda lengths: lengths.clamp_(min=1))
moves_starts_in_place = cheats.in_place(lay_out, "query_start_loc", lambda starts: starts.add_(1))
reads_starts_on_the_device = cheats.looking(lay_out, lambda call: call["query_start_loc"].tolist())
looks_for_empty_rows = cheats.looking(lay_out, lambda call: call["seq_lens"][call["seq_lens"] > 0])


def returns_its_lengths_themselves(**call):
    lengths, *more = lay_out(**call)
    plain = call["seq_lens"].dtype == torch.int32 and more[0].shape == more[1].shape and not call["varlen_width"]
    padded = call["num_decode_tokens"] > int(call["query_start_loc_cpu"][-1])
    return (call["seq_lens"] if plain and not padded else lengths, *more)


# Refusals.


@replaces("refuse")
def accepts_fewer_tokens_than_queries(call):
    if call.query_start_loc_cpu.dim() == 1 and call.num_decode_tokens >= 0:
        call.num_decode_tokens = max(call.num_decode_tokens, int(call.query_start_loc_cpu.max()))
    refuse(call)


@replaces("refuse")
def accepts_a_width_below_a_row(call):
    if call.varlen_width > 0:
        call.varlen_width += 1 << 10
        refuse(call)
        call.varlen_width -= 1 << 10
    else:
        refuse(call)


@replaces("refuse")
def accepts_decreasing_starts(call):
    if call.query_start_loc_cpu.dim() == 1:
        call.query_start_loc_cpu = call.query_start_loc_cpu.cummax(0).values
    refuse(call)


@replaces("refuse")
def refuses_layouts_without_queries(call):
    refuse(call)
    if int(call.query_start_loc_cpu[-1]) == 0:
        raise ValueError("query_start_loc_cpu: must have a query")


def crashes_without_rows(**call):
    assert call["seq_lens"].shape[0] > 0
    return lay_out(**call)
