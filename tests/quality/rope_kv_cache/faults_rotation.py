"""Faults of ``rope_and_cache_mla`` in what is rotated, and by which angles: the correct code with a step replaced."""

from __future__ import annotations

import torch
from correct_rope import (
    HIP,
    PROMOTE,
    TORCH,
    angles_of,
    exactly,
    in_float32,
    in_the_inputs_dtype,
    pair,
    queries_of,
    refuse,
    replaces,
    rope,
    rotate,
    rows_of,
    times_reciprocal,
    turn,
)


def _of_queries(x):
    return x.dim() == 3


def _with_slots(call):
    """Which tokens have a slot; those past the slot mapping have none."""
    there = call.steps.slots(call)[1]
    return torch.cat([there, there.new_zeros(call.positions.shape[0] - there.shape[0])])


# Pairs.


def pairs_the_other_way(**inputs):
    return rope(HIP, **inputs | {"is_neox": not inputs["is_neox"]})


def knows_neox_only(**inputs):
    return rope(HIP, **inputs | {"is_neox": True})


def knows_interleaved_pairs_only(**inputs):
    return rope(HIP, **inputs | {"is_neox": False})


@replaces("pair")
def splits_neox_halves_of_a_power_of_two(call, x):
    if not call.is_neox or x.shape[-1] & (x.shape[-1] - 1) == 0:
        return pair(call, x)
    half = x.shape[-1] // 2
    return x[..., :half], x.roll(1, -1)[..., half:]


# How often, and in which direction.


@replaces("rotate")
def rotates_queries_twice(call, x, cos, sin):
    once = rotate(call, x, cos, sin)
    return rotate(call, once.to(x.dtype), cos, sin) if _of_queries(x) else once


@replaces("rotate")
def rotates_keys_twice(call, x, cos, sin):
    once = rotate(call, x, cos, sin)
    return once if _of_queries(x) else rotate(call, once.to(x.dtype), cos, sin)


@replaces("rotate")
def leaves_queries_as_they_are(call, x, cos, sin):
    return x.float() if _of_queries(x) else rotate(call, x, cos, sin)


@replaces("rotate")
def leaves_keys_as_they_are(call, x, cos, sin):
    return rotate(call, x, cos, sin) if _of_queries(x) else x.float()


def returns_the_key_unrotated(**inputs):
    return rope(HIP, **inputs)[0], inputs["k_pe"].clone()


@replaces("turn")
def turns_the_other_way(first, second, cos, sin):
    return turn(first, second, cos, -sin)


@replaces("turn")
def adds_in_both_lanes(first, second, cos, sin):
    return first * cos + second * sin, second * cos + first * sin


@replaces("turn")
def uses_the_lane_that_it_has_overwritten(first, second, cos, sin):
    first = first * cos - second * sin
    return first, second * cos + first * sin


# Angles.


@replaces("turn")
def swaps_sine_and_cosine(first, second, cos, sin):
    return turn(first, second, sin, cos)


@replaces("turn")
def takes_sines_from_the_other_end(first, second, cos, sin):
    return turn(first, second, cos, sin.flip(-1))


@replaces("turn")
def reads_every_angle_twice(first, second, cos, sin):
    lanes = torch.arange(cos.shape[-1], device=cos.device) // 2
    return turn(first, second, cos[..., lanes], sin[..., lanes])


@replaces("rows")
def takes_the_first_tokens_position(call):
    return rows_of(call)[:1].expand(call.positions.shape)


@replaces("rows")
def takes_the_next_tokens_position(call):
    return rows_of(call).roll(-1)


@replaces("rows")
def numbers_tokens_from_zero(call):
    tokens = torch.arange(call.positions.shape[0], device=call.positions.device)
    return tokens.clamp(max=call.cos.shape[0] - 1)


@replaces("rows")
def takes_negative_positions_from_the_end(call):
    return call.positions.clamp(-1, call.cos.shape[0] - 1).to(torch.int64)


@replaces("rows")
def does_not_clamp_positions(call):
    return call.positions.to(torch.int64)


@replaces("rows")
def starts_again_past_the_table(call):
    return (call.positions.clamp(min=0) % call.cos.shape[0]).to(torch.int64)


@replaces("rows")
def clamps_to_the_row_before_the_last(call):
    return rows_of(call).clamp(max=max(call.cos.shape[0] - 2, 0))


@replaces("rows")
def positions_in_32_bits(call):
    return call.positions.to(torch.int32).clamp(0, call.cos.shape[0] - 1).to(torch.int64)


@replaces("rows")
def clamps_positions_of_written_tokens_only(call):
    return torch.where(_with_slots(call), rows_of(call), call.positions.to(torch.int64))


@replaces("angles")
def reads_sines_from_the_table_of_cosines(call, rows):
    return call.cos[rows], call.cos[rows]


# Tokens without a slot.


@replaces("queries")
def leaves_queries_without_a_slot_as_they_are(call, rotated):
    return queries_of(call, torch.where(_with_slots(call)[:, None, None], rotated, call.q_pe.to(rotated.dtype)))


@replaces("queries")
def returns_early_without_a_slot(call, rotated):
    whole = queries_of(call, rotated)
    return torch.where(_with_slots(call)[:, None, None], whole, torch.empty_like(whole))


@replaces("queries")
def knows_the_tokens_of_the_slot_mapping_only(call, rotated):
    whole, known = torch.empty_like(queries_of(call, rotated)), call.slot_mapping.shape[0]
    whole[:known] = queries_of(call, rotated)[:known]
    return whole


@replaces("rotate")
def leaves_keys_without_a_slot_as_they_are(call, x, cos, sin):
    once = rotate(call, x, cos, sin)
    return once if _of_queries(x) else torch.where(_with_slots(call)[:, None], once, x.float())


# Queries.


@replaces("queries")
def puts_the_rotated_part_first(call, rotated):
    return queries_of(call, rotated).roll(call.q_pe.shape[2], -1)


@replaces("queries")
def heads_share_the_first_ones(call, rotated):
    return queries_of(call, rotated[:, :1].expand(rotated.shape))


@replaces("queries")
def forgets_the_last_head(call, rotated):
    whole = torch.empty_like(queries_of(call, rotated))
    whole[:, :-1] = queries_of(call, rotated)[:, :-1]
    return whole


@replaces("queries")
def takes_the_rest_of_the_next_head(call, rotated):
    call.q_nope = call.q_nope.roll(-1, 1)
    return queries_of(call, rotated)


@replaces("queries")
def copies_through_float32(call, rotated):
    whole = torch.cat([call.q_nope.float() * 1.0, rotated], -1)
    return whole.to(call.q_nope.dtype)


@replaces("queries")
def loses_the_sign_of_zero(call, rotated):
    whole = queries_of(call, rotated)
    return torch.where(whole == 0, 0.0, whole)


@replaces("queries")
def flushes_denormals_of_the_copy(call, rotated):
    tiny = torch.finfo(call.q_nope.dtype).tiny
    call.q_nope = torch.where(call.q_nope.abs() < tiny, torch.zeros_like(call.q_nope), call.q_nope)
    return queries_of(call, rotated)


@replaces("turn")
def flushes_denormals_of_the_rotation(first, second, cos, sin):
    tiny = torch.finfo(torch.float32).tiny
    return tuple(torch.where(each.abs() < tiny, 0.0, each) for each in turn(first, second, cos, sin))


# Rounding.

rotates_in_16_bits = replaces("arithmetic")(in_the_inputs_dtype)
"""Declares "hip"."""

rotates_in_float32 = replaces("arithmetic", "torch", TORCH)(in_float32)
"""Declares "torch"."""

divides_by_multiplying = replaces("scaled", "torch", TORCH)(times_reciprocal)
"""Declares "torch"."""

skips_the_rounding_before_the_cache = replaces("before_the_cache", "promote", PROMOTE)(exactly)
"""Declares "promote"."""


@replaces("angles")
def rounds_the_table_first(call, rows):
    return tuple(each.to(call.q_pe.dtype) for each in angles_of(call, rows))


def _in_the_bits(x, half):
    """float32 numbers cut to the 16 bits of bfloat16 after ``half`` of the last place is added; others are kept."""
    return ((x.contiguous().view(torch.int32) + half) & ~0xFFFF).view(torch.float32)


@replaces("rotate")
def rounds_half_away_from_zero(call, x, cos, sin):
    once = rotate(call, x, cos, sin)
    return _in_the_bits(once, 0x8000) if x.dtype == torch.bfloat16 else once


@replaces("rotate")
def truncates_to_16_bits(call, x, cos, sin):
    once = rotate(call, x, cos, sin)
    return _in_the_bits(once, 0) if x.dtype == torch.bfloat16 else once


@replaces("turn")
def contracts_both_products(first, second, cos, sin):
    first, second, cos, sin = (each.double() for each in (first, second, cos, sin))
    return tuple(each.float() for each in turn(first, second, cos, sin))


# Refusals.


@replaces("refuse")
def refuses_empty_batches(call):
    refuse(call)
    if not call.q_pe.shape[0]:
        raise ValueError("q_pe: must have a token")


@replaces("refuse")
def refuses_fewer_slots_than_tokens(call):
    refuse(call)
    if call.slot_mapping.shape != call.positions.shape:
        raise ValueError("slot_mapping: must have a slot for each token")


@replaces("refuse")
def asserts_tight_queries(call):
    refuse(call)
    assert call.q_pe.is_contiguous()


@replaces("refuse")
def accepts_an_odd_width(call):
    if call.q_pe.shape[-1] % 2 == 0:
        return refuse(call)
    call.q_pe, call.k_pe, call.kv_cache = call.q_pe[..., :-1], call.k_pe[..., :-1], call.kv_cache[..., :1]
    call.slot_mapping = call.slot_mapping[:0]


@replaces("refuse")
def accepts_more_slots_than_tokens(call):
    call.slot_mapping = call.slot_mapping[: call.positions.shape[0]]
    refuse(call)
