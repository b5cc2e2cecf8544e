"""Faults of ``slot_mapping_hybrid``: what it adds to ``slot_mapping``, replaced."""

from __future__ import annotations

from copy import copy

import torch
from correct_slots import PAD, local_of, map_slots, owner_of, refuse, replaces, slots_of

_cache: dict = {}


def _as_if(call, **values):
    """The call with other arguments."""
    other = copy(call)
    vars(other).update(values)
    return other


# Two sizes of blocks.


@replaces("columns")
def looks_up_by_block_size(call, local):
    return local // call.block_size


@replaces("slots")
def multiplies_by_block_size(call, blocks, local):
    return blocks.to(torch.int64) * call.block_size + local % call.kernel_block_size


@replaces("slots")
def offset_in_the_managers_block(call, blocks, local):
    return blocks.to(torch.int64) * call.kernel_block_size + local % call.block_size


def knows_no_kernel_blocks(**call):
    map_slots(**call | {"kernel_block_size": call["block_size"]})


@replaces("blocks")
def takes_ids_for_the_managers(call, requests, columns):
    parts = call.block_size // call.kernel_block_size
    return call.block_table[requests, columns // parts] * parts + columns % parts


@replaces("columns")
def a_column_for_each_part(call, local):
    parts = call.block_size // call.kernel_block_size
    return local // call.block_size * parts + local % call.block_size // max(parts, 1) % parts


@replaces("columns")
def shifts_by_powers_of_two(call, local):
    return local >> (call.kernel_block_size.bit_length() - 1)


@replaces("slots")
def masks_by_powers_of_two(call, blocks, local):
    return blocks.to(torch.int64) * call.kernel_block_size + (local & (call.kernel_block_size - 1))


@replaces("slots")
def multiplies_in_32_bits(call, blocks, local):
    return (blocks * call.kernel_block_size + local % call.kernel_block_size).to(torch.int32)


@replaces("fits")
def counts_the_managers_columns(call, columns):
    return columns < call.block_table.shape[1] * call.kernel_block_size // call.block_size


# Context parallelism.


@replaces("owner")
def ownership_by_kernel_block_size(call, positions):
    return owner_of(_as_if(call, block_size=call.kernel_block_size), positions)


@replaces("owner")
def ownership_by_kernel_block(call, positions):
    return positions // call.kernel_block_size % call.cp_size


@replaces("local")
def local_by_kernel_block_size(call, positions):
    return local_of(_as_if(call, block_size=call.kernel_block_size), positions)


@replaces("local")
def local_by_kernel_block(call, positions):
    size = call.kernel_block_size
    return positions // (size * call.cp_size) * size + positions % size if call.cp_size > 1 else positions


@replaces("columns")
def looks_up_by_virtual_kernel_blocks(call, local):
    return local // (call.kernel_block_size * call.cp_size)


@replaces("slots")
def offset_of_the_virtual_block(call, blocks, local):
    return slots_of(call, blocks, local // call.cp_size)


# The switch.


@replaces("disable")
def disabled_leaves_its_buffer(call):
    pass


@replaces("disable")
def disabled_pads_up_to_the_tokens(call):
    call.slot_mapping[: call.positions.shape[0]] = PAD


@replaces("disable")
def disabled_keeps_what_is_before_the_first_start(call):
    before = torch.arange(call.slot_mapping.shape[0], device=call.positions.device) < call.query_start_loc[0]
    call.slot_mapping.copy_(torch.where(before, call.slot_mapping, PAD))


@replaces("disable")
def disabled_fills_with_0(call):
    call.slot_mapping.fill_(0)


def knows_no_switch(**call):
    map_slots(**call | {"enabled": True})


def disabled_and_enabled_are_exchanged(**call):
    map_slots(**call | {"enabled": not call["enabled"]})


def disabled_refuses_nothing(**call):
    if call["enabled"]:
        map_slots(**call)
    else:
        call["slot_mapping"].fill_(PAD)


def disabled_writes_one_slot_too_far(**call):
    map_slots(**call)
    if not call["enabled"]:
        buffer = call["slot_mapping"]
        buffer.as_strided((buffer.shape[0] + 1,), buffer.stride()).fill_(PAD)


@replaces("disable")
def disabled_asks_for_the_first_start(call):
    call.slot_mapping.fill_(PAD if call.query_start_loc[0] >= 0 else 0)


# Cheats and refusals.


def caches_by_identity(**call):
    key = [call["idx_mapping"], call["enabled"]]
    if not (_cache and all(one is other for one, other in zip(_cache["key"], key, strict=True))):
        map_slots(**call)
        _cache.update(key=key, slots=call["slot_mapping"].clone())
    call["slot_mapping"].copy_(_cache["slots"])


def turns_starts_into_lengths_in_place(**call):
    map_slots(**call)
    call["query_start_loc"][1:].sub_(call["query_start_loc"][:-1].clone())


@replaces("refuse")
def checks_what_4_3_checks(call):
    refuse(_as_if(call, kernel_block_size=call.block_size))
    call.kernel_block_size = max(call.kernel_block_size, 1)


def refuses_blocks_of_other_sizes(**call):
    if call["kernel_block_size"] != call["block_size"]:
        raise ValueError("kernel_block_size: must be block_size")
    map_slots(**call)


def crashes_where_it_should_refuse(**call):
    assert call["kernel_block_size"] >= 1
    map_slots(**call)
