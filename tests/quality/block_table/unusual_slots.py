"""Correct slot mappings of unusual build, hybrid or not: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_slots import PAD, map_slots, replaces, slots_of, write

_cache: dict = {}
SHORT = 40


def _tokens(call):
    return torch.arange(call.positions.shape[0], device=call.positions.device)


def returns_a_mapping(**call):
    map_slots(**call)
    return {"slot_mapping": call["slot_mapping"], "num_tokens": call["positions"].shape[0]}


@replaces("rows")
def compares_with_all_starts(call):
    return (call.query_start_loc[1:, None] <= _tokens(call)).sum(0)


@replaces("requests")
def goes_row_by_row(call, rows):
    """The last row first; its tokens by a mask that is never an index."""
    requests = torch.full(rows.shape, -1, dtype=torch.int64, device=rows.device)
    for row in reversed(range(call.idx_mapping.shape[0])):
        requests = torch.where(rows == row, call.idx_mapping[row], requests)
    return requests


@replaces("write")
def writes_token_by_token(call, slots):
    """Where there are few tokens; each write overwrites what it has not to change with what is there."""
    if slots.shape[0] > SHORT:
        write(call, slots)
        return
    call.slot_mapping[slots.shape[0] :] = PAD
    for token in range(slots.shape[0]):
        one = call.slot_mapping[token : token + 1]
        one.copy_(torch.where(call.query_start_loc[:1] <= token, slots[token], one))


@replaces("blocks")
def looks_up_in_a_flat_copy(call, requests, columns):
    return torch.take(call.block_table.contiguous(), requests * call.block_table.shape[1] + columns)


@replaces("slots")
def counts_blocks_in_int64(call, blocks, local):
    """A slot as so many tokens behind the first of its column."""
    first = local - local.remainder(call.kernel_block_size)
    return local + (blocks.to(torch.int64) * call.kernel_block_size - first)


@replaces("slots")
def never_sees_a_negative_id(call, blocks, local):
    """Sign and size of ids apart."""
    ids = blocks.to(torch.int64)
    size = slots_of(call, ids.abs(), local * 0) * ids.sign()
    return size + local % call.kernel_block_size


def writes_twice(**call):
    """First with every token a position further."""
    if call["positions"].dtype in (torch.int32, torch.int64):
        map_slots(**call | {"positions": call["positions"] + 1})
    map_slots(**call)


def keeps_a_workspace(**call):
    """Slots that live on between calls; only elements from the first start on are taken from it."""
    buffer = call["slot_mapping"]
    own = _cache.setdefault((buffer.shape, buffer.dtype), torch.empty_like(buffer)).copy_(buffer)
    map_slots(**call | {"slot_mapping": own})
    call["slot_mapping"].copy_(own)


class Mapper:
    """A callable object."""

    def __call__(self, **call):
        return [map_slots(**call)]


mapper = Mapper()
