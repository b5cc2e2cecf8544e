"""Faults of ``slot_mapping``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from correct_slots import (
    PAD,
    Steps,
    local_of,
    map_slots,
    owner_of,
    refuse,
    replaces,
    requests_of,
    rows_of,
    slots_of,
    write,
)

_cache: dict = {}


def _tokens(call):
    return torch.arange(call.positions.shape[0], device=call.positions.device)


# Rows and requests.


@replaces("rows")
def one_token_a_row(call):
    return _tokens(call).clamp(max=call.idx_mapping.shape[0])


@replaces("rows")
def a_row_begins_one_token_late(call):
    return (call.query_start_loc[1:, None] < _tokens(call)).sum(0)


@replaces("rows")
def ignores_the_stride_of_starts(call):
    starts = call.query_start_loc.as_strided(call.query_start_loc.shape, (1,))
    return (starts[1:, None] <= _tokens(call)).sum(0)


@replaces("rows")
def knows_64_rows(call):
    return torch.where((rows := rows_of(call)) < 64, rows, call.idx_mapping.shape[0])


@replaces("requests")
def ignores_idx_mapping(call, rows):
    return torch.where(rows < call.idx_mapping.shape[0], rows, -1)


@replaces("requests")
def takes_minus_one_for_the_last_request(call, rows):
    requests = torch.where(call.idx_mapping == -1, call.block_table.shape[0] - 1, call.idx_mapping)
    return torch.cat([requests, requests.new_full((1,), -1)])[rows].to(torch.int64)


@replaces("requests")
def clamps_ids(call, rows):
    requests = call.idx_mapping.to(torch.int64).clamp(0, call.block_table.shape[0] - 1)
    return torch.cat([requests, requests.new_full((1,), -1)])[rows]


@replaces("requests")
def knows_no_id_but_minus_one(call, rows):
    requests = requests_of(call, rows)
    return torch.where(requests == -1, -1, requests % call.block_table.shape[0])


@replaces("requests")
def ids_in_32_bits(call, rows):
    return requests_of(call, rows).to(torch.int32).to(torch.int64)


# Padding.


@replaces("write")
def pads_up_to_the_tokens(call, slots):
    end = call.slot_mapping[slots.shape[0] :].clone()
    write(call, slots)
    call.slot_mapping[slots.shape[0] :] = end


@replaces("write")
def pads_behind_the_tokens_only(call, slots):
    own = (_tokens(call) >= call.query_start_loc[0]) & (_tokens(call) < call.query_start_loc[-1])
    call.slot_mapping.copy_(torch.where(torch.arange(len(call.slot_mapping)) < len(slots), call.slot_mapping, PAD))
    call.slot_mapping[: slots.shape[0]] = torch.where(own, slots, call.slot_mapping[: slots.shape[0]])


@replaces("write")
def pads_before_the_first_start(call, slots):
    call.slot_mapping.fill_(PAD)
    call.slot_mapping[: slots.shape[0]] = torch.where(_tokens(call) < call.query_start_loc[0], PAD, slots)


@replaces("write")
def begins_at_the_first_token(call, slots):
    call.slot_mapping.fill_(PAD)
    call.slot_mapping[: slots.shape[0]] = slots


@replaces("write")
def pads_with_0(call, slots):
    write(call, torch.where(slots < 0, 0, slots))


@replaces("requests")
def gives_padding_tokens_to_the_last_row(call, rows):
    return requests_of(call, rows.clamp(max=max(call.idx_mapping.shape[0] - 1, 0)))


# Positions and columns.


@replaces("local")
def counts_from_the_rows_first_token(call, positions):
    starts = torch.cat([call.query_start_loc, call.query_start_loc[-1:]])
    return local_of(call, _tokens(call) - starts[rows_of(call)])


@replaces("placed")
def takes_negative_positions_for_the_first(call, positions):
    return positions.abs() >= 0


def positions_in_32_bits(**call):
    refuse(SimpleNamespace(**call, kernel_block_size=call["block_size"]))
    map_slots(**call | {"positions": call["positions"].to(torch.int32)})


@replaces("columns")
def clamps_columns_to_the_row(call, local):
    return (local // call.kernel_block_size).clamp(max=call.block_table.shape[1] - 1)


def reads_the_next_row(**call):
    def flat(call, requests, columns):
        places = requests * call.block_table.shape[1] + columns
        return call.block_table.reshape(-1)[places.clamp(max=call.block_table.numel() - 1)]

    map_slots(Steps(fits=lambda call, columns: columns >= 0, blocks=flat), **call)


@replaces("columns")
def blocks_end_one_token_late(call, local):
    return (local - 1).clamp(min=0) // call.kernel_block_size


@replaces("columns")
def shifts_by_powers_of_two(call, local):
    return local >> (call.kernel_block_size.bit_length() - 1)


# Slots.


@replaces("slots")
def multiplies_in_32_bits(call, blocks, local):
    return (blocks * call.kernel_block_size + local % call.kernel_block_size).to(torch.int32)


@replaces("slots")
def takes_null_blocks_for_padding(call, blocks, local):
    return torch.where(blocks == 0, PAD, slots_of(call, blocks, local))


@replaces("slots")
def takes_negative_ids_for_padding(call, blocks, local):
    return torch.where(blocks < 0, PAD, slots_of(call, blocks, local))


@replaces("slots")
def forgets_the_offset(call, blocks, local):
    return blocks.to(torch.int64) * call.kernel_block_size


@replaces("blocks")
def assumes_tight_rows(call, requests, columns):
    return call.block_table.as_strided(call.block_table.shape, (call.block_table.shape[1], 1))[requests, columns]


@replaces("blocks")
def assumes_neighbouring_columns(call, requests, columns):
    return call.block_table.as_strided(call.block_table.shape, (call.block_table.stride(0), 1))[requests, columns]


@replaces("blocks")
def multiplies_rows_in_32_bits(call, requests, columns):
    table = call.block_table
    span = sum((count - 1) * stride for count, stride in zip(table.shape, table.stride(), strict=True)) + 1
    row = (requests * table.stride(0)).to(torch.int32).to(torch.int64)
    return table.as_strided((span,), (1,))[row + columns * table.stride(1)]


@replaces("write")
def ignores_the_stride_of_its_buffer(call, slots):
    call.slot_mapping = call.slot_mapping.as_strided(call.slot_mapping.shape, (1,))
    write(call, slots)


# Context parallelism.


@replaces("owner")
def every_rank_owns_all(call, positions):
    return torch.full_like(positions, call.cp_rank)


@replaces("owner")
def ownership_ignores_the_interleave(call, positions):
    return positions % call.cp_size


@replaces("owner")
def ownership_by_block(call, positions):
    return positions // call.block_size % call.cp_size


@replaces("owner")
def ranks_in_falling_order(call, positions):
    return call.cp_size - 1 - owner_of(call, positions)


@replaces("owner")
def ownership_by_parts_of_a_block(call, positions):
    return positions % (call.block_size * call.cp_size) // call.block_size


@replaces("local")
def position_stays_global(call, positions):
    return positions


@replaces("local")
def local_ignores_the_interleave(call, positions):
    return positions // call.cp_size


@replaces("local")
def local_forgets_the_rounds(call, positions):
    virtual = call.block_size * call.cp_size
    return positions // virtual * call.block_size + positions % call.cp_interleave


@replaces("local")
def local_counts_rounds_as_tokens(call, positions):
    virtual, stripe = call.block_size * call.cp_size, call.cp_interleave * call.cp_size
    return positions // virtual * call.block_size + positions % virtual // stripe + positions % call.cp_interleave


@replaces("local")
def local_forgets_the_place_in_its_stripe(call, positions):
    virtual, stripe = call.block_size * call.cp_size, call.cp_interleave * call.cp_size
    return positions // virtual * call.block_size + positions % virtual // stripe * call.cp_interleave


@replaces("columns")
def looks_up_by_virtual_blocks(call, local):
    return local // (call.kernel_block_size * call.cp_size)


# Cheats.


def pads_everything(**call):
    map_slots(**call)
    call["slot_mapping"].fill_(PAD)


@replaces("slots")
def copies_its_positions(call, blocks, local):
    return local


def caches_by_identity(**call):
    if _cache.get("positions") is not call["positions"]:
        map_slots(**call)
        _cache.update(positions=call["positions"], slots=call["slot_mapping"].clone())
    call["slot_mapping"].copy_(_cache["slots"])


def caches_by_shape(**call):
    key = (call["positions"].shape, call["idx_mapping"].shape, call["slot_mapping"].shape)
    map_slots(**call)
    call["slot_mapping"].copy_(_cache.setdefault(key, call["slot_mapping"].clone()))


def returns_slots_of_its_own(**call):
    own = call["slot_mapping"].clone()
    map_slots(**call | {"slot_mapping": own})
    return own


def moves_its_buffer_to_memory_of_its_own(**call):
    call["slot_mapping"].set_(returns_slots_of_its_own(**call))


def writes_one_slot_too_far(**call):
    map_slots(**call)
    buffer = call["slot_mapping"]
    buffer.as_strided((buffer.shape[0] + 1,), buffer.stride())[-1] = PAD


def clamps_positions_in_place(**call):
    map_slots(**call)
    call["positions"].clamp_(min=0, max=call["block_table"].shape[1] * call["block_size"])


def subtracts_the_first_start_in_place(**call):
    map_slots(**call)
    call["query_start_loc"].sub_(call["query_start_loc"][0].clone())


@replaces("rows")
def reads_starts_on_the_host(call):
    starts = call.query_start_loc.tolist()
    return sum(((_tokens(call) >= start).long() for start in starts[1:]), torch.zeros_like(_tokens(call)))


@replaces("write")
def asks_where_tokens_end(call, slots):
    write(call, slots)
    call.slot_mapping[max(int(call.query_start_loc[-1]), 0) :] = PAD


@replaces("write")
def selects_by_a_mask(call, slots):
    write(call, slots)
    call.slot_mapping[call.slot_mapping < PAD] = PAD


# Refusals.


@replaces("refuse")
def accepts_a_short_buffer(call):
    if call.slot_mapping.shape[0] < call.positions.shape[0]:
        call.positions = call.positions[: call.slot_mapping.shape[0]]
    refuse(call)


@replaces("refuse")
def accepts_any_rank(call):
    call.cp_rank %= max(call.cp_size, 1)
    refuse(call)


@replaces("refuse")
def accepts_any_interleave(call):
    if call.cp_interleave > 0 and call.block_size % call.cp_interleave:
        call.cp_interleave = 1
    refuse(call)


@replaces("refuse")
def accepts_float_positions(call):
    if call.positions.dtype == torch.float32:
        call.positions = call.positions.to(torch.int64)
    refuse(call)


def refuses_an_empty_batch(**call):
    if not call["idx_mapping"].shape[0]:
        raise ValueError("idx_mapping: there must be a row")
    map_slots(**call)


def crashes_for_an_empty_batch(**call):
    map_slots(**call)
    if not call["idx_mapping"].shape[0]:
        raise IndexError("there is no first row")
