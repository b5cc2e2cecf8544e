"""Correct ``rope_and_cache_mla`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import dataclasses

import torch
from correct_rope import (
    HALF_SCALE,
    PROMOTE,
    TRITON,
    bits_of,
    following,
    join,
    refuse,
    replaces,
    rope,
    slots_of,
    turn,
)

_kept: dict = {}

in_triton_order = following("triton", TRITON)
in_promote_order = following("promote", PROMOTE)


def refuse_but_float16(call):
    refuse(call)
    if call.q_nope.dtype != torch.float16:
        raise ValueError("q_nope: must be float16")


in_half_scale_order = following("half_scale", dataclasses.replace(HALF_SCALE, refuse=refuse_but_float16))


def _fused(a, b, c):
    """``a * b + c`` of float32 numbers, rounded once."""
    exact, more = a.double() * b.double(), c.double()
    total = exact + more
    # Round to odd, by what the sum has lost: rounding it to float32 afterwards is the rounding of the exact sum.
    part = total - exact
    lost = (exact - (total - part)) + (more - part)
    away = torch.nextafter(total, torch.where(lost > 0, torch.inf, -torch.inf).double())
    even = total.contiguous().view(torch.int64) & 1 == 0
    return torch.where((lost != 0) & even & total.isfinite(), away, total).float()


@replaces("turn")
def contracts_cosine_products(first, second, cos, sin):
    return _fused(first, cos, -(second * sin)), _fused(second, cos, first * sin)


@replaces("turn")
def contracts_another_product_in_each_lane(first, second, cos, sin):
    return _fused(-second, sin, first * cos), _fused(second, cos, first * sin)


@replaces("turn")
def turns_by_complex_numbers_of_products(first, second, cos, sin):
    """Sums of the products in another order, with signs moved to other factors."""
    return -(second * sin) + first * cos, first * sin - second * -cos


@replaces("write")
def writes_tokens_in_reverse(call, rows):
    cache, size = bits_of(call.kv_cache), call.kv_cache.shape[1]
    slots, there = slots_of(call)
    for token in reversed(range(slots.shape[0] if cache.numel() else 0)):
        slot = slots[token : token + 1]
        place = slot // size, slot % size
        cache[place] = torch.where(there[token], rows[token : token + 1], cache[place])


@replaces("write")
def asks_every_slot_for_its_token(call, rows):
    """Writes the whole cache: each slot what its token brings, or what it holds."""
    blocks, size, _ = call.kv_cache.shape
    if not call.slot_mapping.shape[0]:
        return
    slots = torch.arange(blocks * size, device=call.slot_mapping.device)
    mine = slots[:, None] == call.slot_mapping
    new = rows[mine.to(torch.uint8).argmax(1)].unflatten(0, (blocks, size))
    cache = bits_of(call.kv_cache)
    cache.copy_(torch.where(mine.any(1).unflatten(0, (blocks, size))[..., None], new, cache))


@replaces("rotate")
def rotates_every_lane_by_itself(call, x, cos, sin):
    """Each lane times a table of full width, plus its partner with a sign, times another."""
    width, half = x.shape[-1], x.shape[-1] // 2
    lanes = torch.arange(width, device=x.device)
    partner, second = ((lanes + half) % width, lanes >= half) if call.is_neox else (lanes ^ 1, lanes % 2 == 1)
    wide = join(call, cos.float(), cos.float()), join(call, sin.float(), sin.float())
    return x.float() * wide[0] + torch.where(second, x[..., partner].float(), -x[..., partner].float()) * wide[1]


def returns_a_mapping(**inputs):
    return dict(zip(("q_out", "k_pe_out"), rope(**inputs), strict=True))


def returns_the_cache_too(**inputs):
    return [*rope(**inputs), inputs["kv_cache"]]


def keeps_a_workspace(**inputs):
    """Results are made in memory that is kept between calls, and copied out."""
    results = rope(**inputs)
    for at, result in enumerate(results):
        place = (at, result.shape, result.dtype)
        bits_of(_kept.setdefault(place, torch.empty_like(result))).copy_(bits_of(result))
    return tuple(_kept[at, result.shape, result.dtype].clone() for at, result in enumerate(results))


def returns_parts_of_one_tensor(**inputs):
    """The key lies behind the queries of its token, so that both have rows apart."""
    q_out, key = rope(**inputs)
    whole = torch.cat([bits_of(q_out).flatten(1), bits_of(key)], 1)
    heads, width = q_out.shape[1:]
    queries = whole[:, : heads * width].unflatten(1, (heads, width))
    return queries.view(q_out.dtype), whole[:, heads * width :].view(key.dtype)


@replaces("turn")
def rotates_rows_of_a_copy(first, second, cos, sin):
    return tuple(each.clone() for each in turn(first.clone(), second.clone(), cos.contiguous(), sin.contiguous()))


class Writer:
    """A callable object that calls twice: the second write is the same again."""

    def __call__(self, **inputs):
        rope(**inputs)
        return rope(**inputs)


writer = Writer()
