"""Faults of ``rope_and_cache_mla`` that only some sizes show: many tokens, odd block sizes, tensors far apart."""

from __future__ import annotations

import torch
from correct_rope import replaces, rope, rows_of, slots_of

# Block sizes.


@replaces("place")
def masks_places_as_if_block_sizes_were_powers_of_two(call, slots):
    size = call.kv_cache.shape[1]
    return slots // size, slots & (size - 1)


@replaces("place")
def shifts_slots_as_if_block_sizes_were_powers_of_two(call, slots):
    """By the bits of the size; what is no place then becomes the last one."""
    blocks, size, _ = call.kv_cache.shape
    bits = (size - 1).bit_length()
    return (slots >> bits).clamp(max=blocks - 1), (slots & ((1 << bits) - 1)).clamp(max=size - 1)


# Programs that have several tokens each, one behind the other.


def _of_the_first_round(values, programs):
    return values[torch.arange(values.shape[0], device=values.device) % programs]


def keeps_slots_of(programs):
    """Every program looks its slot up once, before its loop over tokens."""

    @replaces("slots")
    def stale(call):
        slots, there = slots_of(call)
        return _of_the_first_round(slots, programs), _of_the_first_round(there, programs)

    return stale


def keeps_rows_of(programs):
    """Every program looks its row of the table up once."""

    @replaces("rows")
    def stale(call):
        return _of_the_first_round(rows_of(call), programs)

    return stale


sixteen_programs_keep_their_slots = keeps_slots_of(16)
thirty_two_programs_keep_their_slots = keeps_slots_of(32)
sixty_four_programs_keep_their_slots = keeps_slots_of(64)
a_hundred_and_twenty_eight_programs_keep_their_slots = keeps_slots_of(128)
sixteen_programs_keep_their_rows = keeps_rows_of(16)
sixty_four_programs_keep_their_rows = keeps_rows_of(64)


# Products in 32 bits.


def _wraps(index, stride):
    """Which products of two int32 wrap. A stride past 32 bits is an int64 to compilers, and so is its product."""
    return (index * stride >= 1 << 31) & (stride < 1 << 31)


def _as_read(tensor, axis):
    """The tensor as it is read with offsets along an axis that wrap: here the first element stands for a stray one."""
    index = torch.arange(tensor.shape[axis], device=tensor.device)
    return tensor.index_select(axis, torch.where(_wraps(index, tensor.stride(axis)), 0, index))


def reads_in_32_bits(name, axis=0):
    """The offsets of one tensor along one axis are worked out in 32 bits."""

    def wrapping(**inputs):
        return rope(**{**inputs, name: _as_read(inputs[name], axis)})

    return wrapping


tokens_of_q_nope_in_32_bits = reads_in_32_bits("q_nope")
tokens_of_q_pe_in_32_bits = reads_in_32_bits("q_pe")
heads_of_q_nope_in_32_bits = reads_in_32_bits("q_nope", 1)
heads_of_q_pe_in_32_bits = reads_in_32_bits("q_pe", 1)
tokens_of_kv_c_in_32_bits = reads_in_32_bits("kv_c")
tokens_of_k_pe_in_32_bits = reads_in_32_bits("k_pe")
rows_of_cos_in_32_bits = reads_in_32_bits("cos")
rows_of_sin_in_32_bits = reads_in_32_bits("sin")
positions_in_32_bits = reads_in_32_bits("positions")
slots_in_32_bits = reads_in_32_bits("slot_mapping")


@replaces("place")
def blocks_in_32_bits(call, slots):
    size, (step, _, _) = call.kv_cache.shape[1], call.kv_cache.stride()
    return torch.where(_wraps(slots // size, step), 0, slots // size), slots % size


@replaces("place")
def places_in_32_bits(call, slots):
    size, (_, step, _) = call.kv_cache.shape[1], call.kv_cache.stride()
    return slots // size, torch.where(_wraps(slots % size, step), 0, slots % size)
