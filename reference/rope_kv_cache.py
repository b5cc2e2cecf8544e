"""Rotary embeddings of queries and keys, and the write of latents and keys to the KV cache of MLA."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError, OnlyMemorySafety
from reference.floats import FLOAT16, FORMATS, Bits, FloatArray, FloatFormat, Numbers
from reference.refusals import refuse_bad_index
from reference.rope_orders import CONTRACTIONS, ORDERS, RoundingOrder, rotated

INPUT_DTYPES = ("float16", "bfloat16", "float32")
CACHE_DTYPES = ("auto", "float8_e4m3fn", "float8_e4m3fnuz")

Indices = npt.NDArray[np.signedinteger]


def rope_and_cache_mla(
    q_nope: FloatArray,
    q_pe: FloatArray,
    kv_c: FloatArray,
    k_pe: FloatArray,
    cos: FloatArray,
    sin: FloatArray,
    positions: Indices,
    slot_mapping: Indices,
    k_scale: float | None,
    q_scale: None,
    is_neox: bool,
    cache_dtype: str,
    kv_cache: FloatArray,
    rounding: str = "hip",
    contraction: str = "none",
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(q_out, k_pe_out, kv_cache)``: rotated queries and keys of ``T`` tokens, and the new cache.

    Floats travel as their bits (:class:`~reference.floats.FloatArray`). ``D`` is the input's dtype: float16, bfloat16
    or float32. The result is one of the right ones; :func:`reference.rope_results.right_results` gives all of them.

    ``q_nope``, ``q_pe``
        ``D [T, H, L]`` and ``D [T, H, P]``: the part of each query that is not rotated, and the part that is.
    ``kv_c``, ``k_pe``
        ``D [T, L]`` and ``D [T, P]``: the latent, and the key that is rotated.
    ``cos``, ``sin``
        ``[max_pos, P/2]``, ``max_pos >= 1``, both in ``D`` or both in float32.
    ``positions``
        int32 or int64 ``[T]``: rows of the table, clamped into it.
    ``slot_mapping``
        int32 or int64 ``[T_slots]``, ``T_slots <= T``. Token ``t`` is written to slot ``slot_mapping[t]`` if that is in
        ``[0, blocks * block_size)``; slot ``s`` is ``kv_cache[s // block_size, s % block_size]``. A token without such
        a slot is rotated all the same.
    ``k_scale``
        a ``float``, or ``None`` for 1. It is rounded to float32 first, which must leave it positive and finite.
    ``q_scale``
        ``None``.
    ``is_neox``
        whether lanes ``i`` and ``i + P/2`` are a pair (NeoX), or ``2i`` and ``2i + 1`` (GPT-J).
    ``cache_dtype``
        "auto": the cache has the input's dtype; otherwise the float8 dtype that the numbers, scaled, are rounded to.
    ``kv_cache`` (in)
        ``[blocks, block_size, L + P]``, of dtype ``D``, or uint8 or ``cache_dtype``. Not changed by this function.
    ``rounding``
        the rounding order of the implementation, a name of :data:`~reference.rope_orders.ORDERS`.
    ``contraction``
        which product is not rounded before the sum, a name of :data:`~reference.rope_orders.CONTRACTIONS`.
    ``q_out``
        ``D [T, H, L + P]``: ``q_nope``, bit for bit, and the rotated ``q_pe``.
    ``k_pe_out``
        ``D [T, P]``: the rotated ``k_pe``.
    ``kv_cache`` (out)
        in the slot of a token its latent and its rotated key; all else as it was. With "auto" the latent is a copy, bit
        for bit, NaN payloads included, and the key is that of ``k_pe_out``. Float8: numbers beyond the largest and
        infinities become the largest, NaN becomes a NaN, and float8_e4m3fnuz has no -0.

    Which NaN arithmetic or a conversion gives is not promised, since hardware differs: all NaN patterns of such an
    element are one value, and stand here as ``FloatFormat.nan``. Where ``cos`` is 1 and ``sin`` is 0 the rotation
    gives finite inputs back, up to the sign of zero.

    Refused (:class:`ContractError`), in this order: a tensor with another number of dimensions or another dtype than
    above (``q_nope`` first, then in the order of the arguments); a ``k_scale``, ``q_scale``, ``is_neox`` or
    ``cache_dtype`` that is not as above; the same of ``kv_cache``; sizes that disagree, in the order of the arguments,
    and behind that of ``q_pe`` an odd ``P``; an unknown rounding order, "half_scale" where ``D`` is not float16, an
    unknown contraction.

    No values are promised (:class:`OnlyMemorySafety`) where two tokens have one slot of the cache.

    Source of the definition: contracts.md, section 6.1, and AITER's `fused_qk_rope_cat_and_cache_mla`.

    >>> one, cos, sin = (FloatArray.from_numbers("float16", [row]) for row in ([1.0, 2.0], [0.0], [1.0]))
    >>> query, cache = FloatArray("float16", one.bits[:, None]), FloatArray("float16", np.zeros((1, 2, 4), np.uint16))
    >>> row, more = np.array([1]), (None, None, True, "auto", cache)
    >>> _, key, cache = rope_and_cache_mla(query, query, one, one, cos, sin, row, row, *more)
    >>> key.numbers.tolist(), cache.numbers.tolist()
    ([[-2.0, 1.0]], [[[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, -2.0, 1.0]]])
    """
    inputs = (q_nope, q_pe, kv_c, k_pe, cos, sin)
    _refuse_bad_tensors(inputs, positions, slot_mapping)
    _refuse_bad_scalars(k_scale, q_scale, is_neox, cache_dtype)
    _refuse_bad_cache(q_nope.dtype, kv_cache, cache_dtype)
    _refuse_bad_sizes(inputs, positions, slot_mapping, kv_cache)
    refuse_bad_rounding(q_nope.dtype, rounding, contraction)
    slots = slots_of_tokens(slot_mapping, kv_cache)

    order, form, table_form = ORDERS[rounding], FORMATS[q_nope.dtype], FORMATS[cos.dtype]
    arithmetic = order.arithmetic(form, table_form)
    write = _Write(order, form, cache_dtype, scale_of(k_scale))
    q_rope, k_pe_out = np.empty_like(q_pe.bits), np.empty_like(k_pe.bits)
    cache = kv_cache.bits.copy()
    for token, row in enumerate(rows_of_tokens(positions, cos)):
        cosine, sine = (arithmetic.round(table_form.decode(table.bits[row])) for table in (cos, sin))
        for head in range(q_pe.shape[1]):
            query = form.decode(q_pe.bits[token, head])
            q_rope[token, head] = form.encode(rotated(query, cosine, sine, is_neox, arithmetic, contraction))
        key = rotated(form.decode(k_pe.bits[token]), cosine, sine, is_neox, arithmetic, contraction)
        k_pe_out[token] = form.encode(key)
        if token in slots:
            cache[slots[token]] = np.concatenate([write.latent(kv_c.bits[token]), write.key(key)])
    q_out = np.concatenate([q_nope.bits, q_rope], axis=2)
    return FloatArray(q_nope.dtype, q_out), FloatArray(k_pe.dtype, k_pe_out), FloatArray(kv_cache.dtype, cache)


@dataclass(frozen=True)
class _Write:
    """What a row of the cache holds of a token."""

    order: RoundingOrder
    form: FloatFormat
    cache_dtype: str
    scale: np.float32

    def latent(self, bits: Bits) -> Bits:
        if self.cache_dtype == "auto":
            return bits
        return self._float8(self.form.decode(bits))

    def key(self, rotated_key: Numbers) -> Bits:
        if self.cache_dtype == "auto":
            return self.form.encode(rotated_key)
        return self._float8(rotated_key if self.order.caches_exactly else self.form.round(rotated_key))

    def _float8(self, numbers: Numbers) -> Bits:
        return FORMATS[self.cache_dtype].encode(self.order.scaled(numbers, self.scale))


def rows_of_tokens(positions: Indices, cos: FloatArray) -> list[int]:
    """The row of the table that each token uses."""
    return [min(max(position, 0), cos.shape[0] - 1) for position in positions.tolist()]


def slots_of_tokens(slot_mapping: Indices, kv_cache: FloatArray) -> dict[int, tuple[int, int]]:
    """The block, and the place in it, of each token that is written."""
    blocks, block_size, _ = kv_cache.shape
    slots: dict[int, tuple[int, int]] = {}
    for token, slot in enumerate(slot_mapping.tolist()):
        if not 0 <= slot < blocks * block_size:
            continue
        place = (slot // block_size, slot % block_size)
        if place in slots.values():
            raise OnlyMemorySafety(f"slot {slot} is that of two tokens, {token} the second of them")
        slots[token] = place
    return slots


def scale_of(k_scale: float | None) -> np.float32:
    """The scale as the arithmetic sees it."""
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(1.0 if k_scale is None else k_scale)


def refuse_bad_rounding(dtype: str, rounding: str, contraction: str) -> None:
    """Refuse an order or a contraction that does not exist, or not for this dtype."""
    if rounding not in ORDERS:
        raise ContractError("rounding", rounding, f"it must be one of {', '.join(ORDERS)}")
    if ORDERS[rounding].scales_by == "float16 quotient" and dtype != FLOAT16.name:
        raise ContractError("rounding", rounding, f"the inputs must be float16 for it, not {dtype}")
    if contraction not in CONTRACTIONS:
        raise ContractError("contraction", contraction, f"it must be one of {', '.join(CONTRACTIONS)}")


def _refuse_bad_tensors(inputs: tuple[FloatArray, ...], positions: Indices, slot_mapping: Indices) -> None:
    names, dimensions = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin"), (3, 3, 2, 2, 2, 2)
    q_nope, cos = inputs[0], inputs[4]
    allowed = (INPUT_DTYPES, *[(q_nope.dtype,)] * 3, (q_nope.dtype, "float32"), (cos.dtype,))
    for name, array, count, dtypes in zip(names, inputs, dimensions, allowed, strict=True):
        _refuse_bad_floats(name, array, count, dtypes)
    refuse_bad_index("positions", positions)
    refuse_bad_index("slot_mapping", slot_mapping)


def _refuse_bad_floats(name: str, array: FloatArray, dimensions: int, dtypes: tuple[str, ...]) -> None:
    if array.bits.ndim != dimensions:
        raise ContractError(name, array.shape, f"the shape must have {dimensions} dimensions")
    if array.dtype not in dtypes:
        raise ContractError(name, array.dtype, f"the dtype must be {' or '.join(dict.fromkeys(dtypes))}")


def _refuse_bad_scalars(k_scale: float | None, q_scale: None, is_neox: bool, cache_dtype: str) -> None:
    if k_scale is not None and not (isinstance(k_scale, float) and _is_positive(scale_of(k_scale))):
        raise ContractError("k_scale", k_scale, "it must be None or a float that float32 holds as positive and finite")
    if q_scale is not None:
        raise ContractError("q_scale", q_scale, "it must be None")
    if not isinstance(is_neox, bool):
        raise ContractError("is_neox", is_neox, "it must be a bool")
    if cache_dtype not in CACHE_DTYPES:
        raise ContractError("cache_dtype", cache_dtype, f"it must be one of {', '.join(CACHE_DTYPES)}")


def _is_positive(scale: np.float32) -> bool:
    return math.isfinite(scale) and bool(scale > 0)


def _refuse_bad_cache(dtype: str, kv_cache: FloatArray, cache_dtype: str) -> None:
    _refuse_bad_floats("kv_cache", kv_cache, 3, (dtype,) if cache_dtype == "auto" else ("uint8", cache_dtype))


def _refuse_bad_sizes(
    inputs: tuple[FloatArray, ...], positions: Indices, slot_mapping: Indices, kv_cache: FloatArray
) -> None:
    q_nope, q_pe, kv_c, k_pe, cos, sin = inputs
    tokens, heads, latent = q_nope.shape
    width = q_pe.shape[2]
    _refuse_bad_shape("q_pe", q_pe.shape, (tokens, heads, width), "q_nope")
    if width % 2 != 0:
        raise ContractError("q_pe", q_pe.shape, f"the last size must be even, not {width}")
    _refuse_bad_shape("kv_c", kv_c.shape, (tokens, latent), "q_nope")
    _refuse_bad_shape("k_pe", k_pe.shape, (tokens, width), "q_pe")
    if cos.shape[0] < 1:
        raise ContractError("cos", cos.shape, "the table must have at least one row")
    _refuse_bad_shape("cos", cos.shape, (cos.shape[0], width // 2), "q_pe")
    _refuse_bad_shape("sin", sin.shape, cos.shape, "cos")
    _refuse_bad_shape("positions", positions.shape, (tokens,), "q_nope")
    if slot_mapping.size > tokens:
        raise ContractError("slot_mapping", slot_mapping.size, f"the size must be at most {tokens}, as of q_nope")
    _refuse_bad_shape("kv_cache", kv_cache.shape, (*kv_cache.shape[:2], latent + width), "q_nope and q_pe")


def _refuse_bad_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...], source: str) -> None:
    if shape != wanted:
        raise ContractError(name, shape, f"the shape must be {wanted}, as of {source}")
