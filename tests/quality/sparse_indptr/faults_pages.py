"""Faults of ``sparse_page_indices``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import cheats
import torch
from correct_pages import (
    PAD,
    asked_of,
    convert,
    elements_of,
    owned,
    queries_of,
    refuse,
    replaces,
    requests_of,
    slots_of,
    starts_of,
    tokens_of,
    write,
)

_cache: dict = {}


# Elements and queries.


@replaces("starts")
def takes_the_first_start_for_0(call):
    return starts_of(call) - call.paged_kv_indptr[0]


@replaces("queries")
def a_query_begins_one_element_late(call, starts):
    return (starts[1:, None] < elements_of(call)).sum(0).clamp(max=call.req_id_per_token.shape[0] - 1)


@replaces("queries")
def knows_32_queries(call, starts):
    return queries_of(call, starts).clamp(max=31)


@replaces("queries")
def queries_own_all_columns(call, starts):
    """An element for each column, as in a dense result."""
    queries = elements_of(call) // call.topk_indices.shape[1]
    return queries.clamp(max=call.req_id_per_token.shape[0] - 1)


@replaces("columns")
def columns_begin_at_1(call, starts, queries):
    return elements_of(call) - starts[queries] + 1


@replaces("columns")
def columns_wrap(call, starts, queries):
    return (elements_of(call) - starts[queries]) % call.topk_indices.shape[1]


@replaces("columns")
def the_last_column_for_all_behind_it(call, starts, queries):
    return (elements_of(call) - starts[queries]).clamp(0, call.topk_indices.shape[1] - 1)


@replaces("tokens")
def reads_on_in_the_next_query(call, asked, queries, columns):
    flat = queries * asked.shape[1] + columns
    inside = (columns >= 0) & (flat < asked.numel())
    return torch.where(inside, asked.flatten()[torch.where(inside, flat, 0)], PAD)


@replaces("tokens")
def skips_columns_without_a_token(call, asked, queries, columns):
    """Compacts rows that have holes."""
    order = (asked < 0).to(torch.int64).argsort(dim=1, stable=True)
    return tokens_of(call, asked.gather(1, order), queries, columns)


# Tokens and requests.


@replaces("picked")
def knows_minus_1_only(call, tokens):
    return tokens != PAD


@replaces("picked")
def takes_token_0_for_none(call, tokens):
    return tokens > 0


@replaces("asked")
def tokens_in_32_bits(call):
    return asked_of(call).to(torch.int32).to(torch.int64)


@replaces("asked")
def takes_int64_tokens_for_int32(call):
    tokens = call.topk_indices
    if tokens.dtype == torch.int64 and tokens.numel():
        tokens = tokens.contiguous().view(torch.int32).flatten()[: tokens.numel()].view(tokens.shape)
    return tokens.to(torch.int64)


@replaces("known")
def knows_no_negative_requests_only(call, requests):
    return requests >= 0


@replaces("known")
def takes_minus_1_for_the_first_request(call, requests):
    return requests < call.block_table.shape[0]


@replaces("known")
def one_request_too_many(call, requests):
    return (requests >= 0) & (requests <= call.block_table.shape[0])


@replaces("requests")
def requests_wrap(call):
    return requests_of(call) % max(call.block_table.shape[0], 1)


@replaces("requests")
def requests_in_32_bits(call):
    return requests_of(call).to(torch.int32).to(torch.int64)


@replaces("requests")
def takes_int64_requests_for_int32(call):
    return cheats.as_int32(call.req_id_per_token).to(torch.int64)


@replaces("requests")
def one_query_a_request(call):
    return torch.arange(call.req_id_per_token.shape[0], device=call.req_id_per_token.device)


# Blocks and slots.


@replaces("fits")
def clamps_blocks_to_the_row(call, places):
    return places == places


@replaces("fits")
def one_block_too_many(call, places):
    return places <= call.block_table.shape[1]


@replaces("fits")
def knows_one_block_less(call, places):
    return places < max(call.block_table.shape[1] - 1, 1)


@replaces("places")
def reads_the_next_row(call, tokens):
    """The place is inside the table, and in another row."""
    return tokens // call.block_size % max(call.block_table.shape[1], 1)


@replaces("places")
def divides_by_the_stride(call, tokens):
    return tokens // call.block_stride


@replaces("places")
def shifts_by_powers_of_two(call, tokens):
    return tokens >> (call.block_size.bit_length() - 1)


@replaces("places")
def blocks_end_one_token_late(call, tokens):
    return (tokens - 1).clamp(min=0) // call.block_size


@replaces("slots")
def ignores_the_stride(call, blocks, tokens):
    return blocks * call.block_size + tokens % call.block_size


@replaces("slots")
def forgets_the_place_in_the_block(call, blocks, tokens):
    return blocks * call.block_stride


@replaces("slots")
def masks_by_powers_of_two(call, blocks, tokens):
    return blocks * call.block_stride + (tokens & (call.block_size - 1))


@replaces("slots")
def takes_the_place_in_the_stride(call, blocks, tokens):
    return blocks * call.block_stride + tokens % call.block_stride


@replaces("slots")
def multiplies_in_float32(call, blocks, tokens):
    return (blocks.to(torch.float32) * call.block_stride).to(torch.int64) + tokens % call.block_size


@replaces("slots")
def multiplies_in_16_bits(call, blocks, tokens):
    return slots_of(call, blocks.to(torch.int16), tokens).to(torch.int64)


@replaces("slots")
def takes_null_blocks_for_padding(call, blocks, tokens):
    return torch.where(blocks == 0, PAD, slots_of(call, blocks, tokens))


# The buffer.


@replaces("write")
def pads_with_0(call, starts, slots):
    write(call, starts, slots.clamp(min=0))


@replaces("write")
def keeps_what_has_no_slot(call, starts, slots):
    write(call, starts, torch.where(slots < 0, call.paged_kv_indices, slots))


@replaces("write")
def pads_behind_the_last_query(call, starts, slots):
    write(call, starts, slots)
    rest = elements_of(call) >= starts[-1]
    call.paged_kv_indices.copy_(torch.where(rest, PAD, call.paged_kv_indices))


@replaces("write")
def pads_before_the_first_query(call, starts, slots):
    write(call, starts, slots)
    before = elements_of(call) < starts[0]
    call.paged_kv_indices.copy_(torch.where(before, PAD, call.paged_kv_indices))


@replaces("write")
def leaves_what_is_past_the_columns(call, starts, slots):
    """Its grid has as many tiles as there are columns."""
    queries = queries_of(call, starts)
    inside = elements_of(call) - starts[queries] < call.topk_indices.shape[1]
    write(call, starts, torch.where(inside, slots, call.paged_kv_indices))


@replaces("write")
def one_element_too_few(call, starts, slots):
    last = elements_of(call) == starts[-1] - 1
    write(call, starts, torch.where(last, call.paged_kv_indices, slots))


@replaces("write")
def one_element_too_many(call, starts, slots):
    inside = owned(call, starts) | (elements_of(call) == starts[-1])
    call.paged_kv_indices.copy_(torch.where(inside, slots.to(torch.int32), call.paged_kv_indices))


@replaces("write")
def writes_nothing_where_the_buffer_is_short(call, starts, slots):
    short = starts[-1] > call.paged_kv_indices.shape[0]
    write(call, starts, torch.where(short, call.paged_kv_indices, slots))


@replaces("write")
def fills_with_zeros(call, starts, slots):
    write(call, starts, torch.zeros_like(slots))


@replaces("write")
def copies_its_tokens(call, starts, slots):
    queries = queries_of(call, starts)
    write(call, starts, tokens_of(call, asked_of(call), queries, elements_of(call) - starts[queries]))


# Addresses.


@replaces("table")
def assumes_tight_rows_of_the_table(call):
    return cheats.tight(call.block_table)


@replaces("table")
def assumes_neighbouring_columns_of_the_table(call):
    return call.block_table.as_strided(call.block_table.shape, (call.block_table.stride(0), 1))


@replaces("table")
def multiplies_rows_in_32_bits(call):
    return cheats.in_32_bits(call.block_table)


@replaces("asked")
def assumes_tight_rows_of_tokens(call):
    return cheats.tight(call.topk_indices).to(torch.int64)


@replaces("asked")
def assumes_neighbouring_columns_of_tokens(call):
    return call.topk_indices.as_strided(call.topk_indices.shape, (call.topk_indices.stride(0), 1)).to(torch.int64)


@replaces("starts")
def assumes_starts_side_by_side(call):
    return cheats.tight(call.paged_kv_indptr).to(torch.int64)


@replaces("requests")
def assumes_requests_side_by_side(call):
    return cheats.tight(call.req_id_per_token).to(torch.int64)


@replaces("write")
def assumes_a_plain_buffer(call, starts, slots):
    plain = cheats.tight(call.paged_kv_indices)
    plain.copy_(torch.where(owned(call, starts), slots.to(torch.int32), plain))


# Cheats.

moves_tokens_in_place = cheats.in_place(convert, "topk_indices", lambda tokens: tokens.clamp_(min=0))
clamps_requests_in_place = cheats.in_place(convert, "req_id_per_token", lambda ids: ids.clamp_(min=0, max=0))
reads_starts_on_the_host = cheats.looking(convert, lambda call: call["paged_kv_indptr"].tolist())
asks_where_queries_end = cheats.looking(convert, lambda call: int(call["paged_kv_indptr"][-1]))
selects_by_a_mask = cheats.looking(convert, lambda call: call["topk_indices"][call["topk_indices"] >= 0])


def _copied(call, kept):
    """Copies earlier slots into the buffer; where nobody owns an element too."""
    call["paged_kv_indices"].copy_(kept)


def caches_by_identity(**call):
    if _cache.get("tokens") is not call["topk_indices"]:
        convert(**call)
        _cache.update(tokens=call["topk_indices"], slots=call["paged_kv_indices"].clone())
    _copied(call, _cache["slots"])


def caches_by_shape(**call):
    convert(**call)
    key = (call["topk_indices"].shape, call["paged_kv_indices"].shape, call["block_table"].shape)
    _copied(call, _cache.setdefault((*key, call["block_stride"], call["block_size"]), call["paged_kv_indices"].clone()))


def returns_slots_of_its_own(**call):
    own = call["paged_kv_indices"].clone()
    convert(**call | {"paged_kv_indices": own})
    return own


@replaces("write")
def writes_one_element_too_far(call, starts, slots):
    write(call, starts, slots)
    buffer = call.paged_kv_indices
    buffer.as_strided((buffer.shape[0] + 1,), buffer.stride())[-1] = PAD


# Refusals.


@replaces("refuse")
def accepts_a_stride_below_the_block(call):
    refuse(type(call)(**{**vars(call), "block_stride": max(call.block_stride, call.block_size)}))


@replaces("refuse")
def accepts_any_number_of_starts(call):
    starts = call.paged_kv_indptr
    if starts.dim() == 1 and starts.shape[0] == call.req_id_per_token.shape[0]:
        starts = torch.cat([starts, starts[-1:]])
        call.paged_kv_indptr = starts
    refuse(call)


@replaces("refuse")
def accepts_int64_tables(call):
    if call.block_table.dtype == torch.int64:
        call.block_table = call.block_table.to(torch.int32)
    refuse(call)


@replaces("refuse")
def refuses_longer_rows(call):
    """More elements than columns, which only the device knows of; asks for the capacity instead."""
    refuse(call)
    if call.paged_kv_indices.shape[0] > call.topk_indices.numel() + 9:
        raise ValueError("paged_kv_indices: must not have more elements than there are tokens")


def crashes_without_queries(**call):
    assert call["req_id_per_token"].shape[0] > 0
    return convert(**call)
