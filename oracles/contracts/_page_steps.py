"""A step of contracts 2.2 and 2.3 as laws see it: its table, its buffer, and the same step with other ones."""

from __future__ import annotations

import numpy as np

from oracles.arrays import Inputs
from oracles.contracts._law_arrays import Numbers, number, one, shaped, swapped_names
from oracles.contracts._laws import Function

PAD = -1
MOST_ENTRIES = 1 << 16
"""Entries of an expanded table or of all tokens of all requests, so that a law stays cheap."""


def slots_of(function: Function, inputs: Inputs) -> Numbers:
    """What a function leaves in the buffer. Refused with ``WrongShape``: another shape than the buffer's."""
    buffer = one(inputs, "paged_kv_indices")
    return shaped("paged_kv_indices", function(inputs)["paged_kv_indices"], buffer.shape)


def into(inputs: Inputs, held: Numbers) -> Inputs:
    """The same step into a buffer that holds something else."""
    return {**inputs, "paged_kv_indices": one(inputs, "paged_kv_indices").with_values(held)}


def block_size(inputs: Inputs) -> int:
    """Tokens a block of the table."""
    return number(inputs, "block_size" if "block_size" in inputs else "kernel_block_size")


def stride_of(inputs: Inputs) -> int:
    """Slots from one block to the next."""
    return number(inputs, "block_stride") if "block_stride" in inputs else block_size(inputs)


def renamed(inputs: Inputs) -> Inputs:
    """The same step where the blocks have each other's ids."""
    table = one(inputs, "block_table")
    return {**inputs, "block_table": table.with_values(swapped_names(table.data, np.unique(table.data)))}


def moved_along(inputs: Inputs, slots: Numbers) -> Numbers:
    """Slots of blocks with other ids, at the same place in the block."""
    names, stride = np.unique(one(inputs, "block_table").data).astype(np.int64), stride_of(inputs)
    blocks, places = np.divmod(slots.astype(np.int64), stride)
    return np.where(slots == PAD, PAD, swapped_names(blocks, names) * stride + places)


def expanded(inputs: Inputs) -> Numbers:
    """The table with a page for each token."""
    table = one(inputs, "block_table").data.astype(np.int64)
    wide = table[:, :, None] * stride_of(inputs) + np.arange(block_size(inputs))
    return wide.reshape(table.shape[0], table.shape[1] * block_size(inputs))


def fits(inputs: Inputs, stride: int) -> bool:
    """Whether every slot of every block in the table fits int32."""
    ids = one(inputs, "block_table").data
    return not ids.size or (int(ids.min()) >= 0 and (int(ids.max()) + 1) * stride <= 1 << 31)


def small_table(inputs: Inputs) -> bool:
    """Whether a page for each token makes a table that a law can ask about cheaply."""
    table = one(inputs, "block_table")
    return 0 < table.data.size * block_size(inputs) <= MOST_ENTRIES and fits(inputs, stride_of(inputs))
