"""Correct ``dense_page_indices`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_dense import PAD, elements_of, expand, replaces, requests_of, write

_cache: dict = {}


def returns_a_mapping(**call):
    starts, last = expand(**call)
    return {"paged_kv_last_page_len": last, "paged_kv_indptr": starts, "paged_kv_indices": call["paged_kv_indices"]}


def returns_views_of_one_buffer(**call):
    starts, last = expand(**call)
    buffer = torch.cat([last, starts])
    return [buffer[last.shape[0] :], buffer[: last.shape[0]]]


@replaces("requests")
def compares_with_all_starts(call, starts):
    return (starts[1:, None] <= elements_of(call)).sum(0).clamp(max=call.block_table.shape[0] - 1)


@replaces("starts")
def sums_by_a_triangle(call, lengths):
    places = torch.arange(lengths.shape[0] + 1, device=lengths.device)
    return ((places[:, None] > places[:-1]) * lengths).sum(1)


@replaces("slots")
def counts_from_the_first_token_of_the_block(call, blocks, tokens):
    first = tokens - tokens.remainder(call.kernel_block_size)
    return tokens + (blocks.to(torch.int64) * call.kernel_block_size - first)


@replaces("write")
def writes_padding_first(call, slots):
    call.paged_kv_indices.fill_(PAD)
    write(call, slots)


@replaces("requests")
def keeps_a_workspace(call, starts):
    found = requests_of(call, starts)
    own = _cache.setdefault(found.shape, found.new_empty(found.shape))
    return own.copy_(found).clone()
