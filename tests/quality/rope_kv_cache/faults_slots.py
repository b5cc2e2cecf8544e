"""Faults of ``rope_and_cache_mla`` in where it writes: the correct code with a step replaced."""

from __future__ import annotations

import torch
from correct_rope import bits_of, is_slot, replaces, slots_of, write

# Slots.


@replaces("slots")
def minus_one_is_the_last_slot(call):
    slots, there = slots_of(call)
    return torch.where(call.slot_mapping == -1, -1, slots), there | (call.slot_mapping == -1)


@replaces("is_slot")
def tests_the_upper_bound_only(call, slots):
    return slots < call.kv_cache.shape[0] * call.kv_cache.shape[1]


@replaces("is_slot")
def tests_the_lower_bound_only(call, slots):
    return slots >= 0


@replaces("slots")
def takes_slots_outside_for_the_first(call):
    slots, _ = slots_of(call)
    return slots, call.slot_mapping >= 0


@replaces("slots")
def clamps_slots_into_the_cache(call):
    last = call.kv_cache.shape[0] * call.kv_cache.shape[1] - 1
    return call.slot_mapping.clamp(0, last).to(torch.int64), call.slot_mapping >= 0


@replaces("slots")
def starts_again_past_the_last_slot(call):
    slots = call.slot_mapping.to(torch.int64)
    return slots % (call.kv_cache.shape[0] * call.kv_cache.shape[1]), slots >= 0


@replaces("is_slot")
def takes_slot_0_for_none(call, slots):
    return is_slot(call, slots) & (slots > 0)


@replaces("is_slot")
def never_writes_the_last_slot(call, slots):
    return is_slot(call, slots + 1) & (slots >= 0)


@replaces("slots")
def slots_in_32_bits(call):
    call.slot_mapping = call.slot_mapping.to(torch.int32)
    return slots_of(call)


@replaces("place")
def takes_slots_for_blocks(call, slots):
    return slots.clamp(max=call.kv_cache.shape[0] - 1), slots % call.kv_cache.shape[1]


@replaces("place")
def counts_places_before_blocks(call, slots):
    return slots % call.kv_cache.shape[0], slots // call.kv_cache.shape[0]


@replaces("place")
def masks_places_as_if_blocks_were_of_16(call, slots):
    size = call.kv_cache.shape[1]
    return slots // size, (slots & 15) % size if size > 2 else torch.zeros_like(slots)


# Addresses.


def _as_believed(call, shape, strides):
    """The cache as somebody sees it who believes in these strides."""
    cache, call.kv_cache = call.kv_cache, call.kv_cache.as_strided(shape, strides)
    return cache


@replaces("write")
def assumes_tight_blocks(call, rows):
    blocks, size, width = call.kv_cache.shape
    step = call.kv_cache.stride(1)
    _as_believed(call, (blocks, size, width), (size * step, step, 1))
    write(call, rows)


@replaces("write")
def assumes_tight_rows(call, rows):
    blocks, size, width = call.kv_cache.shape
    _as_believed(call, (blocks, size, width), (call.kv_cache.stride(0), width, 1))
    write(call, rows)


@replaces("write")
def writes_past_the_last_slot(call, rows):
    (blocks, size, width), capacity = call.kv_cache.shape, call.kv_cache.shape[0] * call.kv_cache.shape[1]
    _as_believed(call, (blocks + 1, size, width), call.kv_cache.stride())
    call.slot_mapping = torch.where(call.slot_mapping > capacity, -1, call.slot_mapping)
    write(call, rows)


@replaces("write")
def writes_one_element_too_far(call, rows):
    write(call, rows)
    cache = bits_of(call.kv_cache)
    cache.as_strided(
        (1,),
        (1,),
        cache.storage_offset()
        + sum((count - 1) * step for count, step in zip(cache.shape, cache.stride(), strict=True))
        + 1,
    ).zero_()


@replaces("write")
def writes_one_lane_too_few(call, rows):
    last = bits_of(call.kv_cache)[..., -1].clone()
    write(call, rows)
    bits_of(call.kv_cache)[..., -1] = last


@replaces("write")
def clears_the_cache_first(call, rows):
    call.kv_cache.zero_()
    write(call, rows)


@replaces("write")
def puts_the_last_row_in_place_of_missing_ones(call, rows):
    write(call, rows)
    if rows.shape[0]:
        bits_of(call.kv_cache)[0, 0] = rows[-1]


@replaces("write")
def writes_bytes_that_it_has_read_as_floats(call, rows):
    call.kv_cache.copy_(call.kv_cache.float() + 0.0)
    write(call, rows)


@replaces("write")
def forgets_the_last_token(call, rows):
    call.slot_mapping = call.slot_mapping[:-1]
    write(call, rows)


@replaces("write")
def stops_at_the_first_token_without_a_slot(call, rows):
    there = is_slot(call, call.slot_mapping).to(torch.int32).cumprod(0)
    call.slot_mapping = torch.where(there > 0, call.slot_mapping, -1)
    write(call, rows)


@replaces("write")
def writes_to_a_copy(call, rows):
    call.kv_cache = call.kv_cache.clone()
    write(call, rows)
