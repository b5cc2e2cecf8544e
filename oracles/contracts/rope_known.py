"""Predicates of known findings for contract 6.1: which inputs show a fault that upstream still has."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import OnlyMemorySafety, Refused, Values
from oracles.contracts import _rope_domain as rope
from oracles.contracts._rope_adapters import pages_apart
from reference.floats import FORMATS, FloatArray
from reference.rope_kv_cache import scale_of

Predicate = Callable[[Inputs], bool]


def _tensor(inputs: Inputs, name: str) -> Array:
    return cast(Array, inputs[name])


def _has_values(inputs: Inputs) -> bool:
    """Whether the contract gives the values, which takes shapes that agree and slots that differ."""
    return isinstance(rope.expected(inputs), Values)


def _outside(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Positions before the table, and behind it."""
    positions, rows = _tensor(inputs, "positions").data, _tensor(inputs, "cos").shape[0]
    return positions < 0, positions >= rows


# vLLM's rotations in torch


def no_tokens(inputs: Inputs) -> bool:
    """A step without tokens."""
    return _has_values(inputs) and not _tensor(inputs, "positions").data.size


def position_is_no_row(inputs: Inputs) -> bool:
    """A position before the table or behind it."""
    return _has_values(inputs) and bool(np.any(_outside(inputs)))


def position_is_no_index(inputs: Inputs) -> bool:
    """A position behind the table, or so far before it that it does not count from the end either."""
    rows = _tensor(inputs, "cos").shape[0]
    return _has_values(inputs) and bool((_outside(inputs)[1] | (_tensor(inputs, "positions").data < -rows)).any())


def position_counts_from_the_end(inputs: Inputs) -> bool:
    """A negative position that is taken for a row counted from the table's end, of which another result follows."""
    if not position_is_no_row(inputs) or position_is_no_index(inputs):
        return False
    positions = _tensor(inputs, "positions")
    wrapped = positions.with_values(np.where(positions.data < 0, positions.data + _rows(inputs), positions.data))
    return _differs(inputs, {**inputs, "positions": wrapped}, "promote")


def _rows(inputs: Inputs) -> int:
    return _tensor(inputs, "cos").shape[0]


def _differs(inputs: Inputs, other: Inputs, rounding: str) -> bool:
    """Whether the contract's values for another input are other ones."""
    one, two = rope.expected(inputs, rounding), rope.expected(other, rounding)
    assert isinstance(one, Values)
    assert isinstance(two, Values)
    pairs = [(cast(Array, one.outputs[name]), cast(Array, two.outputs[name])) for name in one.outputs]
    return any(first.data.tobytes() != second.data.tobytes() for first, second in pairs)


# AITER's fused op. It gets a table in the input's dtype: the adapter makes one of another.


def _runs(inputs: Inputs) -> bool:
    """Whether a kernel is launched: L and P are powers of two, the cache is rows of slots, and there are tokens."""
    if isinstance(rope.expected(inputs), Refused) or pages_apart(inputs):
        return False
    return _powers_of_two(inputs) and bool(_tensor(inputs, "positions").data.size)


def _powers_of_two(inputs: Inputs) -> bool:
    widths = _tensor(inputs, "kv_c").shape[1], _tensor(inputs, "k_pe").shape[1]
    return all(width and not width & (width - 1) for width in widths)


def no_power_of_two(inputs: Inputs) -> bool:
    """L or P that is no power of two, of which ``tl.arange`` makes no range."""
    return _has_values(inputs) and not pages_apart(inputs) and not _powers_of_two(inputs)


def slots_apart(inputs: Inputs) -> bool:
    """Slots that do not lie side by side, more than one of which is read."""
    return _runs(inputs) and _apart(_tensor(inputs, "slot_mapping"))


def _apart(vector: Array) -> bool:
    return vector.data.size > 1 and vector.layout[0] != 1


def _finds_slots(inputs: Inputs) -> bool:
    return _runs(inputs) and not _apart(_tensor(inputs, "slot_mapping"))


def fewer_slots_than_tokens(inputs: Inputs) -> bool:
    """Tokens behind the slot mapping: so many programs less are launched, some of which had queries to rotate."""
    slots, tokens = _tensor(inputs, "slot_mapping").data.size, _tensor(inputs, "positions").data.size
    return _finds_slots(inputs) and _has_values(inputs) and slots < tokens


def token_without_a_slot(inputs: Inputs) -> bool:
    """A negative slot, whose token's key is not returned; one that is NaN throughout nobody misses."""
    if not _finds_slots(inputs) or not _has_values(inputs):
        return False
    slots = _tensor(inputs, "slot_mapping").data
    return not bool(np.isnan(_rotated_keys(inputs)[: slots.size][slots < 0]).all())


def _rotated_keys(inputs: Inputs) -> np.ndarray:
    expected = rope.expected(inputs, "triton")
    assert isinstance(expected, Values)
    keys = cast(Array, expected.outputs["k_pe_out"])
    return FORMATS[keys.dtype].decode(FloatArray.of(keys.dtype, keys.data).bits)


def slot_past_the_cache(inputs: Inputs) -> bool:
    """A slot behind the cache, which is written all the same: outside, or where its place wraps to in 32 bits."""
    if not _finds_slots(inputs):
        return False
    cache, slots = _tensor(inputs, "kv_cache"), _tensor(inputs, "slot_mapping").data
    blocks, block_size, _ = cache.shape
    outside = slots >= blocks * block_size
    if not _has_values(inputs):  # Nobody minds then which place of the cache is written.
        row = max(cache.layout) * cache.data.itemsize
        wrapped = np.array([slot * row % (1 << 32) for slot in slots.tolist()], np.float64)
        outside &= (slots.astype(np.float64) * row < 1 << 31) | (wrapped >= blocks * block_size * row)
    return bool(outside.any())


def infinity_in_float8_e4m3fnuz(inputs: Inputs) -> bool:
    """A number that is infinite, or becomes so by its scale, on its way to that kind of float8."""
    return inputs["cache_dtype"] == "float8_e4m3fnuz" and _infinite(inputs)


def infinity_in_float8_e4m3fn(inputs: Inputs) -> bool:
    """The same of the other kind."""
    return inputs["cache_dtype"] == "float8_e4m3fn" and _infinite(inputs)


def _infinite(inputs: Inputs) -> bool:
    if not _finds_slots(inputs) or not _has_values(inputs):
        return False
    latents, slots = _tensor(inputs, "kv_c"), _tensor(inputs, "slot_mapping").data
    blocks, block_size, _ = _tensor(inputs, "kv_cache").shape
    numbers = FORMATS[latents.dtype].decode(FloatArray.of(latents.dtype, latents.data).bits)
    rows = np.concatenate([numbers, _rotated_keys(inputs)], axis=1)[: slots.size]
    with np.errstate(all="ignore"):
        scaled = rows.astype(np.float32) * (np.float32(1) / scale_of(cast("float | None", inputs["k_scale"])))
    return bool(np.isinf(scaled[(slots >= 0) & (slots < blocks * block_size)]).any())


def position_past_the_table(inputs: Inputs) -> bool:
    """A position before the table or behind it, where it is read all the same."""
    return _runs(inputs) and bool((_is_outside(inputs) & ~_wraps(inputs)).any())


def position_that_wraps(inputs: Inputs) -> bool:
    """A position whose place, in its tensor or as a row of the table, wraps in 32 bits.

    Which of the table's loads compute in 32 bits is the compiler's choice, so that not all of these inputs show it.
    """
    in_table = _is_outside(inputs) & _wraps(inputs)
    return _runs(inputs) and (bool(in_table.any()) or _far_apart(_tensor(inputs, "positions")))


def _far_apart(vector: Array) -> bool:
    """Elements whose places need more than 32 bits, though their stride does not."""
    return vector.data.ndim == 1 and _wraps_along(vector, 0)


def _wraps_along(tensor: Array, axis: int) -> bool:
    stride = tensor.layout[axis]
    return stride < 1 << 31 <= stride * (tensor.shape[axis] - 1)


def tokens_that_wrap(inputs: Inputs) -> bool:
    """Tokens or heads whose places need more than 32 bits, though the stride does not: products of two int32 wrap."""
    axes = ("q_nope", 0), ("q_nope", 1), ("q_pe", 0), ("q_pe", 1), ("kv_c", 0), ("k_pe", 0)
    return _runs(inputs) and any(_wraps_along(_tensor(inputs, name), axis) for name, axis in axes)


def _is_outside(inputs: Inputs) -> np.ndarray:
    before, behind = _outside(inputs)
    return np.asarray(before | behind)


def _wraps(inputs: Inputs) -> np.ndarray:
    """Positions whose place in bytes is not a number of 31 bits."""
    row = max(_table_layout(inputs)) * _tensor(inputs, "q_pe").data.itemsize
    positions = _tensor(inputs, "positions").data.astype(np.float64)
    return np.asarray(np.abs(positions) * row >= 1 << 31)


def _table_layout(inputs: Inputs) -> tuple[int, ...]:
    cos = _tensor(inputs, "cos")
    return cos.layout if cos.dtype == _tensor(inputs, "q_pe").dtype else (cos.shape[1], 1)


def sine_of_another_layout(inputs: Inputs) -> bool:
    """A table of sines with other strides than that of cosines, with which it is read."""
    same = _tensor(inputs, "sin").dtype == _tensor(inputs, "q_pe").dtype
    return _runs(inputs) and same and _misread_sine(inputs)


def _misread_sine(inputs: Inputs) -> bool:
    cos, sin = _tensor(inputs, "cos"), _tensor(inputs, "sin")
    row, lane = np.indices(sin.shape)
    bits = [bytes(element) for element in np.ascontiguousarray(sin.data).reshape(-1, 1).view(np.uint8)]
    places = dict(zip(_places(sin, row, lane), bits, strict=True))
    read = zip(_places(cos, row, lane), row.ravel().tolist(), bits, strict=True)
    used = set(_tensor(inputs, "positions").data.tolist())
    return any(places.get(place) != wanted for place, where, wanted in read if where in used)


def _places(array: Array, row: np.ndarray, lane: np.ndarray) -> list[int]:
    places: list[int] = (row * array.layout[0] + lane * array.layout[1]).ravel().tolist()
    return places


def every_case(inputs: Inputs) -> bool:
    """Every input that the contract allows."""
    return not isinstance(rope.expected(inputs), Refused | OnlyMemorySafety)


ROPE_AND_CACHE_MLA: dict[str, Predicate] = {
    predicate.__name__: predicate
    for predicate in (
        no_tokens,
        position_is_no_row,
        position_is_no_index,
        position_counts_from_the_end,
        no_power_of_two,
        token_without_a_slot,
        slot_past_the_cache,
        position_past_the_table,
        position_that_wraps,
        tokens_that_wrap,
        slots_apart,
        fewer_slots_than_tokens,
        sine_of_another_layout,
        infinity_in_float8_e4m3fnuz,
        infinity_in_float8_e4m3fn,
        every_case,
    )
}
