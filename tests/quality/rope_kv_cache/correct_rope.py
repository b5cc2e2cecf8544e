"""Correct ``rope_and_cache_mla`` in small steps of plain torch. Planted faults replace a step or wrap the whole.

``rope_and_cache_mla`` follows the order "hip" and rounds to float8 in integers; ``in_torch_order`` rounds every product
and sum to the input's dtype, and to float8 by torch, which does so exactly within the finite range.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Bytes of an element -> integers that hold its bits."""

FLOAT8 = {"float8_e4m3fn": (7, 448.0, 0x7F), "float8_e4m3fnuz": (8, 240.0, 0x80)}
"""Kind -> the exponent's bias, the largest number and the NaN."""

FLOATS = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin")


def refuse(call):
    """Everything that is wrong by the text of 6.1."""
    given, dtype = [getattr(call, name) for name in FLOATS], call.q_nope.dtype
    if [item.dim() for item in given] != [3, 3, 2, 2, 2, 2] or call.kv_cache.dim() != 3:
        raise ValueError("q_nope: must have three dimensions, as q_pe and kv_cache; kv_c, k_pe, cos and sin two")
    if dtype not in (torch.float16, torch.bfloat16, torch.float32) or {item.dtype for item in given[:4]} != {dtype}:
        raise ValueError("q_nope: must be a float of at least 16 bits, as q_pe, kv_c and k_pe")
    if call.cos.dtype != call.sin.dtype or call.cos.dtype not in (dtype, torch.float32):
        raise ValueError("cos: must have the dtype of q_nope or float32, as sin")
    for name in ("positions", "slot_mapping"):
        if getattr(call, name).dim() != 1 or getattr(call, name).dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name}: must be int32 or int64 and have one dimension")
    if call.cache_dtype not in ("auto", *FLOAT8) or not isinstance(call.is_neox, bool) or call.q_scale is not None:
        raise ValueError("cache_dtype: must be auto or a float8; is_neox a bool, and q_scale None")
    if call.k_scale is not None and not (isinstance(call.k_scale, float) and 0 < single(call.k_scale) < float("inf")):
        raise ValueError("k_scale: must be positive and finite in float32")
    stored = (dtype,) if call.cache_dtype == "auto" else (torch.uint8, getattr(torch, call.cache_dtype))
    if call.kv_cache.dtype not in stored:
        raise ValueError("kv_cache: must be of the input's dtype, or float8 or bytes")
    refuse_sizes(call)


def refuse_sizes(call):
    (tokens, heads, latent), rope = call.q_nope.shape, call.q_pe.shape[2]
    wanted = {
        "q_pe": (tokens, heads, rope // 2 * 2),
        "kv_c": (tokens, latent),
        "k_pe": (tokens, rope),
        "cos": (max(call.cos.shape[0], 1), rope // 2),
        "sin": (call.cos.shape[0], rope // 2),
        "positions": (tokens,),
        "slot_mapping": (min(call.slot_mapping.shape[0], tokens),),
        "kv_cache": (*call.kv_cache.shape[:2], latent + rope),
    }
    for name, shape in wanted.items():
        if tuple(getattr(call, name).shape) != shape:
            raise ValueError(f"{name}: must have shape {shape}")


def single(number):
    """A Python number as float32 holds it; infinity where it is too large."""
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return float("inf")


def bits_of(tensor):
    """The same memory as integers."""
    return tensor.view(INTEGERS[tensor.element_size()])


def rows_of(call):
    """The row of the table of each token."""
    return call.positions.clamp(0, call.cos.shape[0] - 1).to(torch.int64)


def angles_of(call, rows):
    """cos and sin of each token."""
    return call.cos[rows], call.sin[rows]


def pair(call, x):
    """The first members of all pairs, and the second ones."""
    half = x.shape[-1] // 2
    return (x[..., :half], x[..., half:]) if call.is_neox else (x[..., 0::2], x[..., 1::2])


def join(call, first, second):
    return torch.cat([first, second], -1) if call.is_neox else torch.stack([first, second], -1).flatten(-2)


def in_float32(x, cos, sin):
    return x.float(), cos.float(), sin.float()


def in_the_inputs_dtype(x, cos, sin):
    return x, cos.to(x.dtype), sin.to(x.dtype)


def in_the_wider_dtype(x, cos, sin):
    return x.to(cos.dtype), cos, sin


def turn(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


def rotate(call, x, cos, sin):
    """Rotated lanes, in the dtype in which the order computes."""
    steps = call.steps
    x, cos, sin = steps.arithmetic(x, cos, sin)
    first, second = steps.pair(call, x)
    return join(call, *steps.turn(first, second, cos, sin))


def queries_of(call, rotated):
    """``q_out``, by its bits: a copy keeps what kind of NaN there is."""
    lanes = [bits_of(call.q_nope), bits_of(rotated.to(call.q_pe.dtype))]
    return torch.cat(lanes, -1).view(call.q_nope.dtype)


def exactly(call, key):
    """What of a key goes to a float8 cache."""
    return key.float()


def rounded_before(call, key):
    return key.to(call.k_pe.dtype).float()


def times_reciprocal(numbers, scale):
    return numbers * (torch.ones(()) / scale)


def divided(numbers, scale):
    return numbers / scale


def divided_in_float16(numbers, scale):
    return (numbers / scale).half().float()


def float8_in_integers(numbers, kind):
    """Nearest codes, of two the even one; too large numbers saturate."""
    bias, _, nan = FLOAT8[kind]
    magnitude = numbers.view(torch.int32) & 0x7FFFFFFF
    # Three bits of the fraction stay; a carry goes on into the exponent.
    normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - ((127 - bias) << 3)
    # Below 2**(1 - bias) codes count steps of 2**(-2 - bias).
    subnormal = (magnitude.view(torch.float32) * 2 ** (2 + bias)).round().to(torch.int32)
    code = torch.where(magnitude >> 23 > 127 - bias, normal, subnormal).clamp(max=0x7E if nan == 0x7F else 0x7F)
    negative = (numbers.view(torch.int32) < 0) & ((code > 0) | (nan == 0x7F))
    return torch.where(magnitude > 0x7F800000, nan, code + negative * 0x80).to(torch.uint8)


def float8_by_torch(numbers, kind):
    """Nearest codes by torch, of numbers that are clamped to the finite range."""
    largest = FLOAT8[kind][1]
    return numbers.clamp(-largest, largest).to(getattr(torch, kind)).view(torch.uint8)


def scale_of(call):
    return torch.tensor(1.0 if call.k_scale is None else call.k_scale, dtype=torch.float32)


def latents_of(call):
    """The cache's bits of all latents."""
    if call.cache_dtype == "auto":
        return bits_of(call.kv_c)
    return call.steps.float8(call.steps.scaled(call.kv_c.float(), call.steps.scale(call)), call.cache_dtype)


def keys_of(call, key):
    """The cache's bits of all keys."""
    if call.cache_dtype == "auto":
        return bits_of(key.to(call.k_pe.dtype))
    before = call.steps.before_the_cache(call, key)
    return call.steps.float8(call.steps.scaled(before, call.steps.scale(call)), call.cache_dtype)


def row_of(latents, keys):
    """A row of the cache: the latent, then the key."""
    return torch.cat([latents, keys], -1)


def is_slot(call, slots):
    return (slots >= 0) & (slots < call.kv_cache.shape[0] * call.kv_cache.shape[1])


def slots_of(call):
    """The slot of each token that may have one, 0 where it has none, and whether it has one."""
    slots = call.slot_mapping.to(torch.int64)
    there = call.steps.is_slot(call, slots)
    return torch.where(there, slots, 0), there


def place_of(call, slots):
    """The block of each slot, and the place in it."""
    return slots // call.kv_cache.shape[1], slots % call.kv_cache.shape[1]


def write(call, rows):
    """Every row to its slot; a token without one puts back what slot 0 holds."""
    if not call.kv_cache.numel() or not call.slot_mapping.shape[0]:
        return
    cache, (slots, there) = bits_of(call.kv_cache), call.steps.slots(call)
    parts = (rows[: slots.shape[0]], there[:, None], *call.steps.place(call, slots))
    for row, wanted, block, place in zip(*(part.split(1) for part in parts), strict=True):
        cache[block, place] = torch.where(wanted, row, cache[block, place])


@dataclass(frozen=True)
class Steps:
    """How tokens are rotated and written."""

    refuse: Callable[..., Any] = refuse
    rows: Callable[..., Any] = rows_of
    angles: Callable[..., Any] = angles_of
    arithmetic: Callable[..., Any] = in_float32
    pair: Callable[..., Any] = pair
    turn: Callable[..., Any] = turn
    rotate: Callable[..., Any] = rotate
    queries: Callable[..., Any] = queries_of
    before_the_cache: Callable[..., Any] = exactly
    scale: Callable[..., Any] = scale_of
    scaled: Callable[..., Any] = times_reciprocal
    float8: Callable[..., Any] = float8_in_integers
    latents: Callable[..., Any] = latents_of
    keys: Callable[..., Any] = keys_of
    row: Callable[..., Any] = row_of
    is_slot: Callable[..., Any] = is_slot
    slots: Callable[..., Any] = slots_of
    place: Callable[..., Any] = place_of
    write: Callable[..., Any] = write


HIP = Steps()
TORCH = Steps(arithmetic=in_the_inputs_dtype, before_the_cache=rounded_before, scaled=divided, float8=float8_by_torch)
TRITON = dataclasses.replace(TORCH, scaled=times_reciprocal)
PROMOTE = dataclasses.replace(TORCH, arithmetic=in_the_wider_dtype)
HALF_SCALE = dataclasses.replace(TORCH, scaled=divided_in_float16)


def rope(steps=HIP, /, **inputs):
    """All steps together."""
    call = SimpleNamespace(**inputs, steps=steps)
    steps.refuse(call)
    call.turned = cos, sin = steps.angles(call, steps.rows(call))
    query = steps.rotate(call, call.q_pe, cos[:, None], sin[:, None])
    key = steps.rotate(call, call.k_pe, cos, sin)
    q_out = steps.queries(call, query)
    steps.write(call, steps.row(steps.latents(call), steps.keys(call, key)))
    return q_out, key.to(call.k_pe.dtype)


def following(order, steps):
    """The whole, which declares that it follows a rounding order."""
    function = partial(rope, steps)
    function.rounding = order
    return function


def replaces(step, order="hip", steps=HIP):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: following(order, dataclasses.replace(steps, **{step: function}))


def rope_and_cache_mla(**inputs):
    return rope(**inputs)


in_torch_order = following("torch", TORCH)
in_triton_order = following("triton", TRITON)
in_promote_order = following("promote", PROMOTE)
