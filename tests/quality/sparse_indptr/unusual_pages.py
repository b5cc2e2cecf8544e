"""Correct ``sparse_page_indices`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_pages import PAD, convert, elements_of, owned, replaces, tokens_of, write

_cache: dict = {}


def returns_a_mapping(**call):
    convert(**call)
    return {"paged_kv_indices": call["paged_kv_indices"], "block_size": call["block_size"]}


@replaces("queries")
def compares_with_all_starts(call, starts):
    return (starts[1:, None] <= elements_of(call)).sum(0).clamp(max=call.req_id_per_token.shape[0] - 1)


@replaces("tokens")
def appends_a_column_without_a_token(call, asked, queries, columns):
    wide = torch.cat([asked, asked.new_full((asked.shape[0], 1), PAD)], dim=1)
    outside = (columns < 0) | (columns > asked.shape[1])
    return wide[queries, torch.where(outside, asked.shape[1], columns)]


@replaces("blocks")
def looks_up_in_a_flat_copy(call, table, requests, places):
    return torch.take(table.contiguous(), requests * table.shape[1] + places).to(torch.int64)


@replaces("slots")
def counts_from_the_first_token_of_the_block(call, blocks, tokens):
    first = tokens - tokens.remainder(call.block_size)
    return tokens + (blocks * call.block_stride - first)


@replaces("write")
def writes_twice(call, starts, slots):
    """Padding first; the elements that nobody owns get back what they held."""
    held = call.paged_kv_indices.clone()
    call.paged_kv_indices.fill_(PAD)
    call.paged_kv_indices.copy_(torch.where(owned(call, starts), slots.to(torch.int32), held))


@replaces("write")
def writes_query_by_query(call, starts, slots):
    """The last one first, where there are few."""
    if call.req_id_per_token.shape[0] > 8:
        write(call, starts, slots)
        return
    for query in reversed(range(call.req_id_per_token.shape[0])):
        mine = (elements_of(call) >= starts[query]) & (elements_of(call) < starts[query + 1])
        call.paged_kv_indices.copy_(torch.where(mine, slots.to(torch.int32), call.paged_kv_indices))


@replaces("tokens")
def keeps_a_workspace(call, asked, queries, columns):
    """Tokens in memory that lives on between calls, and is written anew in each."""
    found = tokens_of(call, asked, queries, columns)
    own = _cache.setdefault(found.shape, found.new_empty(found.shape))
    return own.copy_(found).clone()


class Converter:
    """A callable object."""

    def __call__(self, **call):
        return [convert(**call), call["paged_kv_indices"]][1:]


converter = Converter()
