"""Rotary embeddings of queries and keys, and the write of latents and keys to the KV cache of MLA, in one launch.

Every token has programs of its own: some for a part of its heads each, and one for its key. What is copied is copied as
integers; rotations are computed in float32, and every result is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import c_float
from functools import cache

import torch
import triton
import triton.language as tl

from optimized.float_bits import as_bits, as_pairs, decoded, encoded, encoded_float8, members, paired
from optimized.launching import device_of
from optimized.rope_refusals import refuse_bad_scalars, refuse_bad_sizes, refuse_bad_tensors

# Of nine pairs the fastest on an H200, or within 1 % of it, for 16 and 128 heads, 8 and 4,096 tokens.
_TILE = 2048  # elements of the part that is copied, of all heads of a program
_EACH_WARP = 512  # of them
_MOST_ROWS = 32768  # programs of the second axis of a launch, which can have 65535
_ALIGNED = 16  # bytes

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again by itself.
_ARGUMENTS = ["q_nope", "q_nope_token", "q_nope_head", "q_nope_lane", "q_pe", "q_pe_token", "q_pe_head", "q_pe_lane"]
_ARGUMENTS += ["kv_c", "kv_c_token", "kv_c_lane", "k_pe", "k_pe_token", "k_pe_lane", "cos", "cos_row", "cos_lane"]
_ARGUMENTS += ["sin", "sin_row", "sin_lane", "positions", "position_stride", "slots", "slot_stride", "kv_cache"]
_ARGUMENTS += ["cache_block", "cache_place", "cache_lane", "q_out", "k_pe_out", "num_tokens", "num_slots"]
_ARGUMENTS += ["last_row", "capacity", "reciprocal"]


def rope_and_cache_mla(
    *,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float | None,
    q_scale: None,
    is_neox: bool,
    cache_dtype: str,
    kv_cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(q_out, k_pe_out)``, rotated queries and keys of ``T`` tokens, and write latents and keys to the cache.

    All tensors may have any strides. ``D`` is bfloat16, float16 or float32. ``H``, ``L``, ``P`` and the cache's block
    size are compile-time sizes, ``is_neox`` and ``cache_dtype`` compile-time modes.

    ``q_nope``, ``q_pe``
        ``D [T, H, L]`` and ``D [T, H, P]``: the part of each query that is not rotated, and the part that is.
    ``kv_c``, ``k_pe``
        ``D [T, L]`` and ``D [T, P]``: the latent, and the key that is rotated.
    ``cos``, ``sin``
        ``[max_pos, P/2]``, ``max_pos >= 1``, both in ``D`` or both in float32.
    ``positions``
        int32 or int64 ``[T]``: rows of the table, clamped into it.
    ``slot_mapping``
        int32 or int64 ``[T_slots]``, ``T_slots <= T``. A token without a slot in ``0..blocks * block_size - 1`` is
        rotated, and not written to the cache.
    ``k_scale``
        what float8 is divided by: a float, or ``None`` for 1. Rounded to float32, it must be positive and finite.
    ``q_scale``
        ``None``.
    ``is_neox``
        whether lanes ``i`` and ``i + P/2`` are a pair (NeoX), or ``2i`` and ``2i + 1`` (GPT-J).
    ``cache_dtype``
        "auto", "float8_e4m3fn" or "float8_e4m3fnuz".
    ``kv_cache`` (in and out)
        ``[blocks, block_size, L + P]`` of ``D`` for "auto", else of uint8 or ``cache_dtype``.
    ``q_out``, ``k_pe_out``
        ``D [T, H, L + P]`` and ``D [T, P]``, new and contiguous.

    The rounding order is "hip": float32 rotations, of which every output is rounded once; float8 is the float32 number
    times float32(1 / scale), to nearest even, saturating. Nothing is read on the host. Of two tokens with one slot
    either is written.

    Refused (:class:`ContractError`) before anything is launched: shapes, dtypes and devices that disagree, an odd
    ``P``, a scale or a mode that is not as above.

    Source of the definition: contracts.md, section 6.1, and AITER's `fused_qk_rope_cat_and_cache_mla`.
    """
    tensors = q_nope, q_pe, kv_c, k_pe, cos, sin, positions, slot_mapping, kv_cache
    refuse_bad_scalars(k_scale, q_scale, is_neox, cache_dtype)
    refuse_bad_tensors(tensors, cache_dtype)
    refuse_bad_sizes(tensors)
    tokens, heads, latent = q_nope.shape
    width = q_pe.shape[2]
    q_out = q_nope.new_empty((tokens, heads, latent + width))
    k_pe_out = q_nope.new_empty((tokens, width))
    if tokens:
        reciprocal = 1.0 if k_scale is None else 1.0 / c_float(k_scale).value
        _launch(tensors, q_out, k_pe_out, reciprocal, is_neox, cache_dtype)
    return q_out, k_pe_out


rope_and_cache_mla.rounding = "hip"  # type: ignore[attr-defined]  # a function's own attribute, which callers read


def _launch(
    tensors: tuple[torch.Tensor, ...],
    q_out: torch.Tensor,
    k_pe_out: torch.Tensor,
    reciprocal: float,
    is_neox: bool,
    cache_dtype: str,
) -> None:
    q_nope, q_pe, kv_c, k_pe, cos, sin, positions, slot_mapping, kv_cache = tensors
    tokens, heads, latent = q_nope.shape
    blocks, block_size, row = kv_cache.shape
    sizes, head_groups, num_warps = _sizes(heads, latent, row - latent, is_neox)
    stored = kv_cache
    if cache_dtype != "auto" and kv_cache.dtype is not torch.uint8:
        stored = kv_cache.view(torch.uint8)  # Not every target has a type for both kinds of float8.
    rows = q_nope, q_pe, kv_c, k_pe, cos, sin, stored
    q_nope_strides, q_pe_strides, kv_c_strides, k_pe_strides, *others = strides = [one.stride() for one in rows]
    cos_strides, sin_strides, cache_strides = others
    aligned = _is_aligned((*rows, q_out, k_pe_out), (*strides, q_out.stride(), k_pe_out.stride()))
    with device_of(q_nope):
        _rope_kernel[(head_groups + 1, min(tokens, _MOST_ROWS), -(-tokens // _MOST_ROWS))](
            q_nope,
            *q_nope_strides,
            q_pe,
            *q_pe_strides,
            kv_c,
            *kv_c_strides,
            k_pe,
            *k_pe_strides,
            cos,
            *cos_strides,
            sin,
            *sin_strides,
            positions,
            *positions.stride(),
            slot_mapping,
            *slot_mapping.stride(),
            stored,
            *cache_strides,
            q_out,
            k_pe_out,
            tokens,
            slot_mapping.shape[0],
            cos.shape[0] - 1,
            blocks * block_size,
            reciprocal,
            max(block_size, 1),
            cache_dtype,
            aligned,
            *sizes,
            num_warps=num_warps,
        )


@cache
def _sizes(heads: int, latent: int, width: int, is_neox: bool) -> tuple[tuple[int, ...], int, int]:
    """What the kernel is compiled for, how many programs share the heads of a token, and the warps of each."""
    lanes, pairs = (max(1, triton.next_power_of_2(size)) for size in (latent, width // 2))
    together = min(triton.next_power_of_2(max(heads, 1)), max(1, _TILE // max(lanes, 2 * pairs)))
    step, other = (1, width // 2) if is_neox else (2, 1)
    num_warps = min(16, max(1, together * max(lanes, 2 * pairs) // _EACH_WARP))
    return (heads, latent, width, together, lanes, pairs, step, other), -(-heads // together), num_warps


def _is_aligned(tensors: Iterable[torch.Tensor], strides: Iterable[tuple[int, ...]]) -> bool:
    """Whether rows of all tensors are contiguous, and begin at addresses that wide loads and stores need."""
    bits = 0
    for tensor, stride in zip(tensors, strides, strict=True):
        if stride[-1] != 1:
            return False
        size = tensor.itemsize
        # Two dimensions or three: of two, the last but one is the first.
        bits |= tensor.data_ptr() | size * stride[0] | size * stride[-2]
    return bits % _ALIGNED == 0


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def _rope_kernel(
    q_nope,
    q_nope_token: tl.int64,
    q_nope_head: tl.int64,
    q_nope_lane: tl.int64,
    q_pe,
    q_pe_token: tl.int64,
    q_pe_head: tl.int64,
    q_pe_lane: tl.int64,
    kv_c,
    kv_c_token: tl.int64,
    kv_c_lane: tl.int64,
    k_pe,
    k_pe_token: tl.int64,
    k_pe_lane: tl.int64,
    cos,
    cos_row: tl.int64,
    cos_lane: tl.int64,
    sin,
    sin_row: tl.int64,
    sin_lane: tl.int64,
    positions,
    position_stride: tl.int64,
    slots,
    slot_stride: tl.int64,
    kv_cache,
    cache_block: tl.int64,
    cache_place: tl.int64,
    cache_lane: tl.int64,
    q_out,
    k_pe_out,
    num_tokens: tl.int64,
    num_slots: tl.int64,
    last_row: tl.int64,
    capacity: tl.int64,
    reciprocal: tl.float32,
    BLOCK_SIZE: tl.constexpr,
    CACHE_DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,  # heads of a program
    LANES: tl.constexpr,  # of the latent part, and a power of two, as is the number of pairs
    PAIRS: tl.constexpr,
    STEP: tl.constexpr,  # from one pair to the next
    OTHER: tl.constexpr,  # from the first lane of a pair to its second
):
    """Some heads of one token a program; the last of a token's programs has its key."""
    token = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    if token < num_tokens:
        position = tl.load(positions + token * position_stride).to(tl.int64)
        row = tl.minimum(tl.maximum(position, 0), last_row) + tl.zeros((1,), tl.int64)
        tables = (cos, row * cos_row, cos_lane), (sin, row * sin_row, sin_lane)
        lanes, pairs = tl.arange(0, LANES)[None, :], tl.arange(0, PAIRS)[None, :]
        if tl.program_id(0) < tl.num_programs(0) - 1:
            heads = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
            copied = q_nope, token * q_nope_token + heads * q_nope_head, q_nope_lane
            turned = q_pe, token * q_pe_token + heads * q_pe_head, q_pe_lane
            out = q_out, (token * HEADS + heads) * (LATENT + WIDTH), 1
            exist = (heads < HEADS)[:, None]
            partial: tl.constexpr = HEADS % TOGETHER != 0
            _write_queries(
                copied, turned, tables, out, lanes, pairs, exist, partial, LATENT, WIDTH, STEP, OTHER, ALIGNED
            )
        else:
            slot = tl.load(slots + token * slot_stride, mask=token < num_slots, other=-1).to(tl.int64)
            exists = (slot >= 0) & (slot < capacity)
            block = slot // BLOCK_SIZE
            place = block * cache_block + (slot - block * BLOCK_SIZE) * cache_place
            start = tl.zeros((1,), tl.int64)
            latent, key = (kv_c, token * kv_c_token + start, kv_c_lane), (k_pe, token * k_pe_token + start, k_pe_lane)
            key_out, cached = (k_pe_out, token * WIDTH + start, 1), (kv_cache, place + start, cache_lane)
            target = exists, cached, reciprocal
            _write_key(
                latent, key, tables, key_out, target, lanes, pairs, CACHE_DTYPE, LATENT, WIDTH, STEP, OTHER, ALIGNED
            )


@triton.jit
def _write_queries(
    copied,
    turned,
    tables,
    out,
    lanes,
    pairs,
    exist,
    PARTIAL: tl.constexpr,  # whether some of the heads do not exist
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    OTHER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Copy and rotate heads of a token. Rows are a pointer, where each begins behind it, and the stride of lanes."""
    form: tl.constexpr = turned[0].dtype.element_ty
    here, there = lanes < LATENT, pairs < WIDTH // 2
    if PARTIAL:
        here, there = here & exist, there & exist
    # What is copied is on its way before the rotation waits for the position.
    latents = tl.load(_at(copied, lanes, ALIGNED), mask=here, other=0)
    x, y = _rotated(turned, tables, pairs, there, WIDTH, STEP, OTHER, ALIGNED)
    tl.store(_at(out, lanes, ALIGNED), latents, mask=here)
    _store_pairs(out, LATENT, pairs, encoded(x, form), encoded(y, form), there, STEP, OTHER, ALIGNED)


@triton.jit
def _write_key(
    copied,
    turned,
    tables,
    out,
    target,
    lanes,
    pairs,
    CACHE_DTYPE: tl.constexpr,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    OTHER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Rotate the key of a token, and write it with its latent to the cache if its slot exists."""
    exists, cached, reciprocal = target
    form: tl.constexpr = turned[0].dtype.element_ty
    here, there = lanes < LATENT, pairs < WIDTH // 2
    latents = tl.load(_at(copied, lanes, ALIGNED), mask=here, other=0)
    x, y = _rotated(turned, tables, pairs, there, WIDTH, STEP, OTHER, ALIGNED)
    _store_pairs(out, 0, pairs, encoded(x, form), encoded(y, form), there, STEP, OTHER, ALIGNED)
    if exists:
        if CACHE_DTYPE == "auto":
            tl.store(_at(cached, lanes, ALIGNED), latents, mask=here)
            _store_pairs(cached, LATENT, pairs, encoded(x, form), encoded(y, form), there, STEP, OTHER, ALIGNED)
        else:
            fnuz: tl.constexpr = CACHE_DTYPE == "float8_e4m3fnuz"
            scaled = encoded_float8(decoded(latents, form) * reciprocal, fnuz)
            tl.store(_at(cached, lanes, ALIGNED), scaled, mask=here)
            first, second = encoded_float8(x * reciprocal, fnuz), encoded_float8(y * reciprocal, fnuz)
            _store_pairs(cached, LATENT, pairs, first, second, there, STEP, OTHER, ALIGNED)


@triton.jit
def _at(rows, lanes, ALIGNED: tl.constexpr):
    """Pointers to the bits of lanes of ``rows``: a pointer, where each row begins behind it, the stride of lanes."""
    pointer, offsets, stride = rows
    begins = as_bits(pointer) + offsets
    if ALIGNED:
        # Without the hint no access would be wide, since a pointer's own alignment is nothing to compile for.
        return tl.multiple_of(begins, 16)[:, None] + lanes
    else:
        return begins[:, None] + lanes.to(tl.int64) * stride


@triton.jit
def _pairs_at(rows, FIRST: tl.constexpr, pairs):
    """Pointers to pairs of neighbours of aligned rows, from lane ``FIRST`` on, which is even."""
    pointer, offsets, _ = rows
    begins = as_pairs(tl.multiple_of(as_bits(pointer) + offsets, 16))
    return begins[:, None] + (FIRST // 2 + pairs)


@triton.jit
def _rotated(
    rows,
    tables,
    pairs,
    mask,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    OTHER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Both members of the pairs of rows, rotated, as float32."""
    form: tl.constexpr = rows[0].dtype.element_ty
    if ALIGNED and OTHER == 1:
        x, y = members(tl.load(_pairs_at(rows, 0, pairs), mask=mask, other=0))
    else:
        x = tl.load(_at(rows, pairs * STEP, ALIGNED), mask=mask, other=0)
        y = tl.load(_at(rows, pairs * STEP + OTHER, ALIGNED), mask=mask, other=0)
    x, y = decoded(x, form), decoded(y, form)
    cos, sin = tables
    table_form: tl.constexpr = cos[0].dtype.element_ty
    cosine = decoded(tl.load(_at(cos, pairs, ALIGNED), mask=pairs < WIDTH // 2, other=0), table_form)
    sine = decoded(tl.load(_at(sin, pairs, ALIGNED), mask=pairs < WIDTH // 2, other=0), table_form)
    return x * cosine - y * sine, y * cosine + x * sine


@triton.jit
def _store_pairs(
    rows,
    FIRST: tl.constexpr,  # lane of the first pair
    pairs,
    x,
    y,
    mask,
    STEP: tl.constexpr,
    OTHER: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Both members of pairs of rows, by their bits."""
    if ALIGNED and OTHER == 1:
        tl.store(_pairs_at(rows, FIRST, pairs), paired(x, y), mask=mask)
    else:
        tl.store(_at(rows, FIRST + pairs * STEP, ALIGNED), x, mask=mask)
        tl.store(_at(rows, FIRST + pairs * STEP + OTHER, ALIGNED), y, mask=mask)
