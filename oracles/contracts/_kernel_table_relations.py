"""Laws of kernel block tables (contract 4.4) that need no second implementation.

Inputs and outputs are those of the contract; every law speaks of inputs for which it gives values, negative ids
included. ``parts_lead_back`` alone leaves one right answer; the others relate answers to different tables.
"""

from __future__ import annotations

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import Relation
from oracles.contracts._law_arrays import Numbers, difference, number, one, part, refilled, shaped, swapped_names
from oracles.contracts._laws import Function, relation
from reference.slot_mapping import slot_mapping, slot_mapping_hybrid

INT32 = np.iinfo(np.int32)


def _kernel_table(function: Function, inputs: Inputs) -> Numbers:
    """``[R, M, k]``."""
    (rows, columns), parts = one(inputs, "block_table").shape, number(inputs, "blocks_per_kernel_block")
    found = shaped("kernel_table", function(inputs)["kernel_table"], (rows, columns * parts))
    return found.reshape(rows, columns, parts)


def _cut(inputs: Inputs, table: Array, parts: int, stride: int) -> Inputs:
    return {**inputs, "block_table": table, "blocks_per_kernel_block": parts, "stride": stride}


def _fits(table: Array, parts: int, stride: int) -> bool:
    low, high = int(table.data.min(initial=0)) * stride, int(table.data.max(initial=0)) * stride + parts - 1
    return bool(INT32.min <= low and high <= INT32.max)


def _halved(inputs: Inputs) -> tuple[Array, int, int]:
    """The table with half of every id, so that a larger stride still fits; parts and stride."""
    table = one(inputs, "block_table")
    half = table.with_values(table.data // 2)
    return half, number(inputs, "blocks_per_kernel_block"), number(inputs, "stride")


def _blocks_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    table, before = one(inputs, "block_table"), _kernel_table(function, inputs)
    moved = table.with_values(np.roll(table.data[::-1], 1, axis=1))
    wanted = np.roll(before[::-1], 1, axis=1)
    return difference(
        "with rows reversed and columns rotated", _kernel_table(function, {**inputs, "block_table": moved}), wanted
    )


def _parts_belong_to_the_id(function: Function, inputs: Inputs) -> str | None:
    table, before = one(inputs, "block_table"), _kernel_table(function, inputs)
    names, first, places = np.unique(table.data, return_index=True, return_inverse=True)
    parts, places = before.reshape(table.data.size, -1)[first], places.reshape(table.shape)
    renamed = table.with_values(swapped_names(table.data, names))
    return difference("with equal ids elsewhere", before, parts[places]) or difference(
        "with other ids", _kernel_table(function, {**inputs, "block_table": renamed}), parts[::-1][places]
    )


def _parts_lead_back(function: Function, inputs: Inputs) -> str | None:
    table, found = one(inputs, "block_table").data[:, :, None], _kernel_table(function, inputs).astype(np.int64)
    stride, parts = number(inputs, "stride"), np.arange(found.shape[2])
    return difference("divided by the stride, kernel_table", found // stride, np.broadcast_to(table, found.shape)) or (
        difference("the rest of that, kernel_table", found % stride, np.broadcast_to(parts, found.shape))
    )


def _rows_join(function: Function, inputs: Inputs) -> str | None:
    table, cut = one(inputs, "block_table"), one(inputs, "block_table").shape[0] // 2
    halves = [part(table, begin, end) for begin, end in ((0, cut), (cut, table.shape[0]))]
    joined = np.concatenate([_kernel_table(function, {**inputs, "block_table": half}) for half in halves])
    return difference(f"with rows from {cut} on in a call of their own", joined, _kernel_table(function, inputs))


def _a_wider_stride_adds_the_id(function: Function, inputs: Inputs) -> str | None:
    half, parts, stride = _halved(inputs)
    narrow, wide = (_kernel_table(function, _cut(inputs, half, parts, stride + more)) for more in (0, 1))
    return difference(f"with stride {stride + 1}", wide, narrow + half.data[:, :, None])


def _cut_twice_is_cut_once(function: Function, inputs: Inputs) -> str | None:
    half, parts, stride = _halved(inputs)
    once = _kernel_table(function, _cut(inputs, half, 2 * parts, 2 * stride))
    first = _kernel_table(function, _cut(inputs, half, parts, stride))
    smaller = refilled(half, first.reshape(half.shape[0], half.shape[1] * parts))
    twice = _kernel_table(function, _cut(inputs, smaller, 2, 2)).reshape(once.shape)
    return difference("cut once more into two parts", twice, once)


def _slots_stay_where_they_are(function: Function, inputs: Inputs) -> str | None:
    table, parts = one(inputs, "block_table"), number(inputs, "blocks_per_kernel_block")
    found = _kernel_table(function, _cut(inputs, table, parts, parts))
    smaller = np.ascontiguousarray(found.reshape(len(found), -1), dtype=np.int32)
    size, end = 2 * parts, table.shape[1] * 2 * parts
    own = np.unique(np.linspace(0, end, 40).astype(np.int64))
    rows = np.arange(min(len(found), 3))
    tokens = (rows, np.arange(len(rows) + 1) * len(own), np.tile(own, len(rows)), size)
    buffer = np.zeros(len(rows) * len(own), np.int64)
    for cp_size in (1, 2):
        (through,) = slot_mapping_hybrid(smaller, *tokens, cp_size, cp_size - 1, 1, 2, True, buffer)
        (wanted,) = slot_mapping(table.data, *tokens, cp_size, cp_size - 1, 1, buffer)
        problem = difference(f"with {cp_size} ranks, slots", through, wanted)
        if problem:
            return problem
    return None


def _some_blocks(inputs: Inputs) -> bool:
    return one(inputs, "block_table").data.size > 0


def _several_blocks(inputs: Inputs) -> bool:
    return one(inputs, "block_table").data.size > 1


def _room_for_a_wider_stride(inputs: Inputs) -> bool:
    half, parts, stride = _halved(inputs)
    return bool(half.data.any()) and _fits(half, parts, stride + 1)


def _room_for_more_parts(inputs: Inputs) -> bool:
    half, parts, stride = _halved(inputs)
    return half.data.size > 0 and _fits(half, 2 * parts, 2 * stride)


RELATIONS: tuple[Relation, ...] = (
    relation(
        "blocks_are_free_to_move",
        "Blocks elsewhere in the table have their parts elsewhere, in whole blocks.",
        _blocks_are_free_to_move,
        _several_blocks,
    ),
    relation(
        "parts_belong_to_the_id",
        "Equal ids have equal parts wherever they stand, also when all ids change places.",
        _parts_belong_to_the_id,
        _several_blocks,
    ),
    relation(
        "parts_lead_back",
        "A part divided by the stride is its block; the rest is its place there.",
        _parts_lead_back,
        _some_blocks,
    ),
    relation(
        "rows_join",
        "Two calls on views of the first and the other rows give what one call gives.",
        _rows_join,
        lambda inputs: one(inputs, "block_table").shape[0] > 1,
    ),
    relation(
        "a_wider_stride_adds_the_id",
        "A stride that is one larger adds its block's id to every part.",
        _a_wider_stride_adds_the_id,
        _room_for_a_wider_stride,
    ),
    relation(
        "cut_twice_is_cut_once",
        "Kernel blocks cut in two are blocks cut into twice as many parts, with twice the stride.",
        _cut_twice_is_cut_once,
        _room_for_more_parts,
    ),
    relation(
        "slots_stay_where_they_are",
        "Without gaps, slots through the kernel table (4.5) are those through the table (4.3).",
        _slots_stay_where_they_are,
        _some_blocks,
    ),
)
