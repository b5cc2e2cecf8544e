"""Faults of ``rope_and_cache_mla`` in what it writes to the cache, and cheats: a step of the correct code replaced."""

from __future__ import annotations

import torch
from correct_rope import (
    FLOAT8,
    HIP,
    bits_of,
    divided,
    float8_by_torch,
    float8_in_integers,
    keys_of,
    latents_of,
    refuse,
    replaces,
    rope,
    rotate,
    rounded_before,
    rows_of,
    scale_of,
    slots_of,
    times_reciprocal,
)

_kept: dict = {}


# What a row holds.


@replaces("row")
def puts_the_key_before_the_latent(latents, keys):
    return torch.cat([keys, latents], -1)


@replaces("keys")
def caches_the_key_unrotated(call, key):
    return keys_of(call, call.k_pe.float())


@replaces("latents")
def rotates_the_latent(call):
    rope_lanes, latent = call.k_pe.shape[1], call.kv_c
    turned = rotate(call, latent[:, :rope_lanes], *call.turned).to(latent.dtype)
    call.kv_c = torch.cat([turned, latent[:, rope_lanes:]], -1)
    return latents_of(call)


@replaces("latents")
def takes_the_next_tokens_latent(call):
    return latents_of(call).roll(-1, 0)


@replaces("latents")
def multiplies_latents_by_one(call):
    call.kv_c = (call.kv_c.float() * 1.0).to(call.kv_c.dtype)
    return latents_of(call)


@replaces("latents")
def flushes_denormal_latents(call):
    call.kv_c = torch.where(call.kv_c.abs() < torch.finfo(call.kv_c.dtype).tiny, 0.0, call.kv_c)
    return latents_of(call)


# Scales.


@replaces("scaled")
def ignores_the_scale(numbers, scale):
    return numbers


@replaces("scaled")
def multiplies_by_the_scale(numbers, scale):
    return numbers * scale


@replaces("latents")
def scales_keys_only(call):
    call.k_scale, kept = None, call.k_scale
    found, call.k_scale = latents_of(call), kept
    return found


@replaces("keys")
def scales_latents_only(call, key):
    call.k_scale = None
    return keys_of(call, key)


@replaces("keys")
def scales_keys_of_any_cache(call, key):
    return keys_of(call, call.steps.scaled(key, scale_of(call)))


@replaces("scale")
def rounds_the_scale_to_bfloat16(call):
    return scale_of(call).bfloat16().float()


divides_instead_of_multiplying = replaces("scaled")(divided)
"""Declares "hip"."""


@replaces("scale")
def keeps_the_scale_in_float64(call):
    return torch.tensor(1.0 if call.k_scale is None else call.k_scale, dtype=torch.float64)


rounds_before_the_cache = replaces("before_the_cache")(rounded_before)
"""Declares "hip"."""


# Float8.


@replaces("float8")
def writes_fn_for_both_kinds(numbers, kind):
    return float8_in_integers(numbers, "float8_e4m3fn")


@replaces("float8")
def writes_fnuz_for_both_kinds(numbers, kind):
    return float8_in_integers(numbers, "float8_e4m3fnuz")


@replaces("float8")
def gives_nan_for_what_is_too_large(numbers, kind):
    codes, (_, largest, nan) = float8_by_torch(numbers, kind), FLOAT8[kind]
    return torch.where(numbers.abs() > largest * 1.04, nan, codes).to(torch.uint8)


@replaces("float8")
def gives_nan_for_infinity(numbers, kind):
    return torch.where(numbers.isinf(), FLOAT8[kind][2], float8_by_torch(numbers, kind)).to(torch.uint8)


@replaces("float8")
def saturates_nan(numbers, kind):
    return float8_by_torch(torch.where(numbers.isnan(), FLOAT8[kind][1], numbers), kind)


@replaces("float8")
def gives_fnuz_a_negative_zero(numbers, kind):
    codes = float8_by_torch(numbers, kind)
    return torch.where((codes == 0) & (numbers.view(torch.int32) < 0), 0x80, codes).to(torch.uint8)


@replaces("float8")
def saturates_fn_where_fnuz_does(numbers, kind):
    return float8_by_torch(numbers.clamp(-240.0, 240.0), kind)


def _in_steps(numbers, kind, rounded):
    """Codes of numbers rounded to a multiple of the last place of float8 in another way."""
    bias, largest, _ = FLOAT8[kind]
    exponent = torch.frexp(numbers)[1].clamp(min=2 - bias) - 4
    return float8_by_torch(
        torch.ldexp(rounded(torch.ldexp(numbers, -exponent)), exponent).clamp(-largest, largest), kind
    )


@replaces("float8")
def rounds_half_away(numbers, kind):
    return _in_steps(numbers, kind, lambda units: torch.trunc(units + torch.copysign(torch.full((), 0.5), units)))


@replaces("float8")
def truncates(numbers, kind):
    return _in_steps(numbers, kind, torch.trunc)


@replaces("float8")
def flushes_subnormals(numbers, kind):
    codes = float8_in_integers(numbers, kind)
    return torch.where((codes & 0x78 == 0) & (codes != 0x80), codes & (0x80 if kind.endswith("fn") else 0), codes)


@replaces("float8")
def rounds_through_float16(numbers, kind):
    return float8_by_torch(numbers.half().float(), kind)


@replaces("float8")
def rounds_through_bfloat16(numbers, kind):
    return float8_by_torch(numbers.bfloat16().float(), kind)


# Cheats.


def rotates_keys_in_place(**inputs):
    q_out, key = rope(HIP, **inputs)
    return q_out, inputs["k_pe"].copy_(key)


def rotates_queries_in_place(**inputs):
    q_out, key = rope(HIP, **inputs)
    inputs["q_pe"].copy_(q_out[..., inputs["q_nope"].shape[2] :])
    return q_out, key


def returns_the_key_in_float64(**inputs):
    q_out, key = rope(HIP, **inputs)
    return q_out, key.double()


def returns_queries_only(**inputs):
    return rope(HIP, **inputs)[0]


def returns_one_buffer_again_and_again(**inputs):
    q_out, key = rope(HIP, **inputs)
    buffer = _kept.setdefault(("buffer", q_out.shape, q_out.dtype), torch.empty_like(q_out))
    bits_of(buffer).copy_(bits_of(q_out))
    return buffer, key


def keeps_queries_by_identity(**inputs):
    q_out, key = rope(HIP, **inputs)
    if _kept.get("queries") is not inputs["q_pe"]:
        _kept.update(queries=inputs["q_pe"], q_out=q_out)
    return _kept["q_out"].clone(), key


@replaces("angles")
def keeps_rows_by_the_identity_of_the_table(call, rows):
    if _kept.get("table") is not call.cos:
        _kept.update(table=call.cos, rows=rows)
    return call.cos[_kept["rows"]], call.sin[_kept["rows"]]


@replaces("angles")
def keeps_the_table_in_float32_by_identity(call, rows):
    if _kept.get("narrow") is not call.cos:
        _kept.update(
            narrow=call.cos, wide=(call.cos.to(torch.float32, copy=True), call.sin.to(torch.float32, copy=True))
        )
    return tuple(each[rows] for each in _kept["wide"])


@replaces("write")
def reads_slots_on_the_host(call, rows):
    cache, size = bits_of(call.kv_cache), call.kv_cache.shape[1]
    for token, slot in enumerate(call.slot_mapping.tolist()):
        if 0 <= slot < cache.shape[0] * size:
            cache[slot // size, slot % size] = rows[token]


@replaces("rows")
def asks_for_the_farthest_position(call):
    if call.positions.shape[0] and int(call.positions.max()) < 0:
        return torch.zeros_like(call.positions)
    return rows_of(call)


@replaces("write")
def selects_tokens_by_a_mask(call, rows):
    slots, there = slots_of(call)
    cache, size, slots = bits_of(call.kv_cache), call.kv_cache.shape[1], slots[there]
    cache[slots // size, slots % size] = rows[: there.shape[0]][there]


# Refusals.


@replaces("refuse")
def accepts_any_scale(call):
    call.k_scale = abs(call.k_scale or 1.0)
    refuse(call)


@replaces("refuse")
def takes_unknown_kinds_for_auto(call):
    call.cache_dtype = call.cache_dtype if call.cache_dtype in FLOAT8 else "auto"
    refuse(call)


@replaces("refuse")
def ignores_a_scale_of_queries(call):
    call.q_scale = None
    refuse(call)


@replaces("refuse")
def refuses_bytes_for_float8(call):
    refuse(call)
    if call.cache_dtype != "auto" and call.kv_cache.dtype == torch.uint8:
        raise ValueError("kv_cache: must be float8")


def refuses_after_it_has_written(**inputs):
    inputs["kv_cache"].view(torch.uint8)[:1].zero_()
    return rope(HIP, **inputs)


@replaces("scaled")
def assumes_a_scale_of_at_most_one(numbers, scale):
    return times_reciprocal(numbers, scale.clamp(max=1.0))
