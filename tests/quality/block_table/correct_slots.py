"""Correct ``slot_mapping``, hybrid or not, in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)
PAD = -1


def refuse(call):
    """Everything that is wrong by the text of 4.3 and 4.5. A call of 4.3 has no kernel blocks of its own."""
    if call.block_table.dim() != 2 or call.block_table.dtype != torch.int32:
        raise ValueError("block_table: must be int32 [max_reqs, M]")
    for name in ("idx_mapping", "query_start_loc", "positions"):
        if getattr(call, name).dim() != 1 or getattr(call, name).dtype not in INTEGERS:
            raise ValueError(f"{name}: must have one dimension, and be int32 or int64")
    if call.slot_mapping.dim() != 1 or call.slot_mapping.dtype != torch.int64:
        raise ValueError("slot_mapping: must be int64 [capacity]")
    if min(call.block_size, call.kernel_block_size, call.cp_size, call.cp_interleave) < 1:
        raise ValueError("block_size, kernel_block_size, cp_size, cp_interleave: must be at least 1")
    refuse_ranks(call)
    if call.query_start_loc.shape[0] != call.idx_mapping.shape[0] + 1:
        raise ValueError("query_start_loc: must have one element more than there are rows")
    if call.slot_mapping.shape[0] < call.positions.shape[0]:
        raise ValueError("slot_mapping: must have an element for each token")


def refuse_ranks(call):
    if not 0 <= call.cp_rank < call.cp_size:
        raise ValueError("cp_rank: must be in 0..cp_size-1")
    if call.cp_size > 1 and call.block_size % call.cp_interleave:
        raise ValueError("block_size: must be a multiple of cp_interleave")


def rows_of(call):
    """The batch row of each token; R for those behind the last row."""
    tokens = torch.arange(call.positions.shape[0], device=call.positions.device)
    return torch.searchsorted(call.query_start_loc[1:].contiguous().to(torch.int64), tokens, right=True)


def requests_of(call, rows):
    """The request of each token, -1 behind the last row."""
    mapping = call.idx_mapping.to(torch.int64)
    return torch.cat([mapping, mapping.new_full((1,), -1)])[rows]


def known(call, requests):
    """Which requests there are."""
    return (requests >= 0) & (requests < call.block_table.shape[0])


def placed(call, positions):
    """Which positions there are."""
    return positions >= 0


def owner_of(call, positions):
    """The rank that owns each token."""
    return positions % (call.block_size * call.cp_size) // call.cp_interleave % call.cp_size


def local_of(call, positions):
    """The place of each token among those of its rank."""
    virtual, stripe = call.block_size * call.cp_size, call.cp_interleave * call.cp_size
    offset = positions % virtual
    return positions // virtual * call.block_size + offset // stripe * call.cp_interleave + offset % call.cp_interleave


def columns_of(call, local):
    """The column of the table in which each token's block stands."""
    return local // call.kernel_block_size


def blocks_of(call, requests, columns):
    """Ids of blocks; requests and columns are in the table."""
    return call.block_table[requests, columns]


def slots_of(call, blocks, local):
    """Where tokens lie in the cache."""
    return blocks.to(torch.int64) * call.kernel_block_size + local % call.kernel_block_size


def fits(call, columns):
    """Which columns there are."""
    return columns < call.block_table.shape[1]


def write(call, slots):
    """The slots of tokens from the first start on, and padding behind them."""
    count = slots.shape[0]
    before = torch.arange(count, device=slots.device) < call.query_start_loc[0]
    call.slot_mapping[:count] = torch.where(before, call.slot_mapping[:count], slots)
    call.slot_mapping[count:] = PAD


def disable(call):
    """A group that is switched off."""
    call.slot_mapping.fill_(PAD)


@dataclass(frozen=True)
class Steps:
    """How slots are made."""

    refuse: Callable[..., Any] = refuse
    rows: Callable[..., Any] = rows_of
    requests: Callable[..., Any] = requests_of
    known: Callable[..., Any] = known
    placed: Callable[..., Any] = placed
    owner: Callable[..., Any] = owner_of
    local: Callable[..., Any] = local_of
    columns: Callable[..., Any] = columns_of
    blocks: Callable[..., Any] = blocks_of
    fits: Callable[..., Any] = fits
    slots: Callable[..., Any] = slots_of
    write: Callable[..., Any] = write
    disable: Callable[..., Any] = disable


def map_slots(steps=Steps(), /, *, enabled=True, **call):  # frozen
    """All steps together, for both contracts."""
    call = SimpleNamespace(**{"kernel_block_size": call["block_size"], **call})
    steps.refuse(call)
    if enabled:
        steps.write(call, padded_slots(steps, call))
    else:
        steps.disable(call)


def padded_slots(steps, call):
    """The slot of each token, or -1."""
    positions = call.positions.to(torch.int64)
    if not call.block_table.numel():
        return torch.full_like(positions, PAD)
    requests = steps.requests(call, steps.rows(call))
    local = steps.local(call, positions)
    columns = steps.columns(call, local)
    valid = steps.known(call, requests) & steps.placed(call, positions) & steps.fits(call, columns)
    valid &= steps.owner(call, positions) == call.cp_rank
    blocks = steps.blocks(call, torch.where(valid, requests, 0), torch.where(valid, columns, 0))
    return torch.where(valid, steps.slots(call, blocks, local), PAD)


def replaces(step):
    """Makes a function that takes a step's place the slot mapping that has it."""
    return lambda function: partial(map_slots, Steps(**{step: function}))


def slot_mapping(
    *, block_table, idx_mapping, query_start_loc, positions, block_size, cp_size, cp_rank, cp_interleave, slot_mapping
):
    map_slots(**locals())


def slot_mapping_hybrid(**call):
    map_slots(**call)
