"""Faults of ``dense_page_indices``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import cheats
import torch
from correct_dense import (
    PAD,
    clipped,
    elements_of,
    expand,
    padded,
    refuse,
    replaces,
    requests_of,
    result,
    slots_of,
    starts_of,
    write,
)

_cache: dict = {}


# Lengths and starts.


@replaces("clipped")
def knows_no_negative_lengths(call, lengths):
    return lengths.clamp(max=call.block_table.shape[1] * call.kernel_block_size)


@replaces("clipped")
def knows_no_lengths_past_the_row(call, lengths):
    return lengths.clamp(0, (1 << 31) - 1)


@replaces("clipped")
def clips_to_columns(call, lengths):
    return lengths.clamp(0, call.block_table.shape[1])


@replaces("clipped")
def clips_one_token_early(call, lengths):
    return lengths.clamp(0, max(call.block_table.shape[1] * call.kernel_block_size - 1, 0))


@replaces("clipped")
def an_empty_request_has_a_token(call, lengths):
    return clipped(call, lengths.clamp(min=1))


@replaces("clipped")
def takes_longer_ones_for_empty(call, lengths):
    most = call.block_table.shape[1] * call.kernel_block_size
    return torch.where(lengths > most, 0, lengths.clamp(min=0))


@replaces("starts")
def counts_pages_of_a_block(call, lengths):
    return starts_of(call, (lengths + call.kernel_block_size - 1) // call.kernel_block_size)


@replaces("starts")
def every_request_has_room_for_all(call, lengths):
    most = call.block_table.shape[1] * call.kernel_block_size
    return torch.arange(lengths.shape[0] + 1, device=lengths.device) * most


@replaces("starts")
def starts_are_ends(call, lengths):
    starts = starts_of(call, lengths)
    return torch.cat([starts[1:], starts[-1:]])


@replaces("result")
def last_pages_are_counted(call, starts):
    last = (starts.diff() - 1).clamp(min=0) % call.kernel_block_size + 1
    return starts.to(torch.int32), last.to(torch.int32)


@replaces("result")
def empty_requests_have_no_last_page(call, starts):
    return starts.to(torch.int32), (starts.diff() > 0).to(torch.int32)


@replaces("result")
def a_last_page_too_many(call, starts):
    return starts.to(torch.int32), torch.ones_like(starts, dtype=torch.int32)


@replaces("result")
def returns_int64(call, starts):
    return starts, result(call, starts)[1]


# Requests, tokens and slots.


@replaces("requests")
def a_request_begins_one_element_late(call, starts):
    return (starts[1:, None] < elements_of(call)).sum(0).clamp(max=call.block_table.shape[0] - 1)


@replaces("requests")
def the_first_row_for_all(call, starts):
    return requests_of(call, starts) * 0


@replaces("requests")
def knows_64_requests(call, starts):
    return requests_of(call, starts).clamp(max=63)


@replaces("tokens")
def counts_tokens_from_the_first_request(call, starts, requests):
    return elements_of(call)


@replaces("tokens")
def tokens_in_falling_order(call, starts, requests):
    return (starts[requests + 1] - 1 - elements_of(call)).clamp(min=0)


@replaces("tokens")
def knows_1024_tokens(call, starts, requests):
    """A grid of one tile."""
    return (elements_of(call) - starts[requests]).clamp(max=1023)


@replaces("columns")
def shifts_by_powers_of_two(call, tokens):
    return tokens >> (call.kernel_block_size.bit_length() - 1)


@replaces("columns")
def blocks_end_one_token_late(call, tokens):
    return (tokens - 1).clamp(min=0) // call.kernel_block_size


@replaces("columns")
def a_column_for_each_token(call, tokens):
    return tokens


@replaces("slots")
def forgets_the_place_in_the_block(call, blocks, tokens):
    return blocks.to(torch.int64) * call.kernel_block_size


@replaces("slots")
def takes_ids_for_slots(call, blocks, tokens):
    return blocks.to(torch.int64) + tokens % call.kernel_block_size


@replaces("slots")
def masks_by_powers_of_two(call, blocks, tokens):
    return blocks.to(torch.int64) * call.kernel_block_size + (tokens & (call.kernel_block_size - 1))


@replaces("slots")
def multiplies_in_float32(call, blocks, tokens):
    return (blocks.to(torch.float32) * call.kernel_block_size).to(torch.int64) + tokens % call.kernel_block_size


@replaces("slots")
def takes_null_blocks_for_padding(call, blocks, tokens):
    return torch.where(blocks == 0, PAD, slots_of(call, blocks, tokens))


@replaces("slots")
def empty_rows_clamp_to_their_first_block(call, blocks, tokens):
    """A tail of drafts that are not real yet."""
    return slots_of(call, blocks, torch.where(blocks == 0, 0, tokens))


# The buffer.


@replaces("padded")
def pads_with_0(call, starts, slots):
    return torch.where(elements_of(call) < starts[-1], slots, 0)


@replaces("padded")
def keeps_the_rest_of_the_buffer(call, starts, slots):
    return torch.where(elements_of(call) < starts[-1], slots, call.paged_kv_indices)


@replaces("padded")
def pads_one_element_late(call, starts, slots):
    return torch.where(elements_of(call) == starts[-1], call.paged_kv_indices, padded(call, starts, slots))


@replaces("padded")
def pads_one_element_early(call, starts, slots):
    return torch.where(elements_of(call) < starts[-1] - 1, slots, PAD)


@replaces("padded")
def pads_what_rows_may_hold(call, starts, slots):
    rest = elements_of(call) >= call.block_table.numel() * call.kernel_block_size
    return torch.where(rest, call.paged_kv_indices, padded(call, starts, slots))


@replaces("padded")
def repeats_the_last_slot(call, starts, slots):
    last = slots[(starts[-1] - 1).clamp(min=0)] if slots.shape[0] else PAD
    return torch.where(elements_of(call) < starts[-1], slots, last)


def leaves_the_buffer_without_requests(**call):
    if call["block_table"].shape[0] == 0 and call["block_table"].dtype == torch.int32:
        return expand(**call | {"paged_kv_indices": call["paged_kv_indices"].clone()})
    return expand(**call)


# Addresses.


@replaces("table")
def assumes_tight_rows(call):
    return cheats.tight(call.block_table)


@replaces("table")
def assumes_neighbouring_columns(call):
    return call.block_table.as_strided(call.block_table.shape, (call.block_table.stride(0), 1))


@replaces("table")
def multiplies_rows_in_32_bits(call):
    return cheats.in_32_bits(call.block_table)


@replaces("lengths")
def assumes_lengths_side_by_side(call):
    return cheats.tight(call.seq_lens).to(torch.int64)


@replaces("lengths")
def takes_int64_lengths_for_int32(call):
    return cheats.as_int32(call.seq_lens).to(torch.int64)


@replaces("lengths")
def lengths_in_32_bits(call):
    return call.seq_lens.to(torch.int32).to(torch.int64)


@replaces("write")
def assumes_a_plain_buffer(call, slots):
    cheats.tight(call.paged_kv_indices).copy_(slots.to(torch.int32))


@replaces("write")
def writes_one_element_too_far(call, slots):
    write(call, slots)
    buffer = call.paged_kv_indices
    buffer.as_strided((buffer.shape[0] + 1,), buffer.stride())[-1] = PAD


# Cheats.

caches_by_identity = cheats.by_identity(expand, "block_table")
caches_by_shape = cheats.by_shape(expand, "block_table")
reuses_its_starts = cheats.into_one_buffer(expand)
returns_zeros = cheats.zeros(expand)
clips_lengths_in_place = cheats.in_place(expand, "seq_lens", lambda lengths: lengths.clamp_(min=0, max=3))
reads_lengths_on_the_host = cheats.looking(expand, lambda call: call["seq_lens"].tolist())
asks_how_many_there_are = cheats.looking(expand, lambda call: int(call["seq_lens"].sum()))
counts_used_lengths = cheats.looking(expand, lambda call: call["seq_lens"].nonzero())


# Refusals.


@replaces("refuse")
def measures_capacity_in_pages(call):
    """Room for blocks, and it is filled with tokens."""
    if call.paged_kv_indices.shape[0] < call.block_table.numel():
        refuse(call)
    room = torch.empty(call.block_table.numel() * max(call.kernel_block_size, 1) + 1, dtype=torch.int32)
    refuse(type(call)(**{**vars(call), "paged_kv_indices": room}))


@replaces("refuse")
def accepts_any_block_size(call):
    call.kernel_block_size = max(call.kernel_block_size, 1)
    refuse(call)


@replaces("refuse")
def accepts_fewer_lengths(call):
    if call.seq_lens.shape[0] < call.block_table.shape[0]:
        call.block_table = call.block_table[: call.seq_lens.shape[0]]
    refuse(call)


@replaces("refuse")
def refuses_blocks_of_one_token(call):
    refuse(call)
    if call.kernel_block_size == 1:
        raise ValueError("kernel_block_size: must be above 1")


def crashes_without_columns(**call):
    if call["block_table"].dim() == 2:
        assert call["block_table"].shape[1] > 0
    return expand(**call)
