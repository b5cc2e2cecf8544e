"""What vLLM's functions for contracts 3.1 and 3.2 do with an input, in their own arithmetic: known findings follow.

Each function gives the effect of one call. It is no second specification: a fault of upstream is in here as well, and
whoever asks compares with the specification.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contracts._block_table_upstream import Cells, Numbers, divided
from oracles.contracts._sparse_upstream import Traced, number, product, tensor

Kernel = Literal["align", "kimi", "groups"]
"""``_mamba_align_block_table_kernel``, ``_get_aligned_state_indices_kernel``, and the one of all groups."""

BUFFER = 1 << 29
"""Elements of 32 bits within the reach of AMD's buffer instructions."""

MOST = (1 << 31) - 1
"""The largest stride that may be a constant in a product with 32-bit lanes: a larger one does not compile."""


def first_columns(inputs: Inputs, lengths: Numbers) -> Numbers:
    """The first column of each row, in the lengths' bits: division is towards zero, or clamped where it is not."""
    with np.errstate(over="ignore"):
        before = lengths - lengths.dtype.type(1)
    return np.maximum(divided(before, number(inputs, "block_size")), 0)


def gathered_columns(inputs: Inputs) -> Numbers:
    """The columns that the torch operations gather."""
    first = first_columns(inputs, tensor(inputs, "seq_lens").data)
    with np.errstate(over="ignore"):
        return first[:, None] + np.arange(1 + number(inputs, "num_speculative_blocks"), dtype=np.int32)


def columns(inputs: Inputs, kernel: Kernel) -> Traced:
    """One of the kernels; mode "none" launches none."""
    table, lengths = tensor(inputs, "block_table"), tensor(inputs, "seq_lens")
    rows, slots = np.arange(table.shape[0], dtype=np.int32), 1 + number(inputs, "num_speculative_blocks")
    effect = Traced([np.zeros((rows.size, slots), np.int32)])
    effect.untouched[0][:] = False
    if not rows.size:
        return effect
    if inputs["mamba_cache_mode"] == "none":
        effect.results[0][:] = table.data[:, :slots]
        return effect
    across, along = table.layout if kernel != "groups" else (table.layout[0], 1)
    read, inside = Cells(lengths).read(product(rows, lengths.layout[0]))
    effect.note("seq_lens", inside)
    with np.errstate(over="ignore"):
        at = first_columns(inputs, read)[:, None] + np.arange(slots, dtype=np.int32)
    # Only the oldest of them multiplies a row's number in 32 bits.
    begins = product(rows, across) if kernel == "kimi" else rows.astype(np.int64) * across
    places = begins[:, None] + product(at, along)
    lost = far(table, places) if kernel != "groups" else np.zeros(places.shape, bool)
    found, there = Cells(table).read(places[~lost])
    effect.note("block_table", there)
    effect.results[0][~lost] = found
    # Nothing is said of what lies far away: those entries count as right.
    logical = first_columns(inputs, lengths.data)[:, None] + np.arange(slots)
    right = Cells(Array("int32", np.pad(table.data, ((0, 0), (0, 1)))))
    known = np.clip(logical, 0, table.shape[1]) + rows[:, None].astype(np.int64) * (table.shape[1] + 1)
    effect.results[0][lost] = right.read(known[lost])[0]
    return effect


def far(table: Array, places: Numbers) -> Numbers:
    """Elements that AMD's buffer instructions find elsewhere: in a small tensor they take an offset's lower bits."""
    return (np.abs(places) >= BUFFER) & (table.reach < BUFFER)


def far_columns(inputs: Inputs, kernel: Kernel) -> bool:
    """Whether a kernel asks for such elements."""
    table, lengths = tensor(inputs, "block_table"), tensor(inputs, "seq_lens")
    if kernel == "groups" or inputs["mamba_cache_mode"] == "none" or not table.shape[0]:
        return False
    places = product(gathered_columns(inputs), table.layout[1])
    return bool(far(table, places + np.arange(table.shape[0])[:, None] * table.layout[0]).any() and lengths.data.size)


def constants(inputs: Inputs, kernel: Kernel) -> list[int]:
    """The strides that are compile-time constants in products."""
    table, lengths = tensor(inputs, "block_table").layout, tensor(inputs, "seq_lens").layout
    return {"align": [], "kimi": [*table, *lengths], "groups": [*lengths]}[kernel]


STAGED = ("state_buffer", "query_start_loc_buffer", "num_accepted_buffer")


def staged(inputs: Inputs) -> Traced:
    """``stage_spec_decode_metadata``."""
    states, starts, accepted = (tensor(inputs, n) for n in ("state_indices", "query_start_loc", "num_accepted_tokens"))
    buffers = [tensor(inputs, name) for name in STAGED]
    effect = Traced([buffer.data.copy() for buffer in buffers])
    count, batch, slots = states.shape[0], number(inputs, "batch_size"), np.arange(states.shape[1], dtype=np.int32)
    rows = np.arange(batch, dtype=np.int32)
    real = rows[:count]
    blocks = np.zeros((batch, slots.size), np.int32)
    if count and slots.size:
        blocks[:count] = _loaded(effect, "state_indices", states, _places(states, real, slots))
    queries = _loaded(effect, "query_start_loc", starts, np.minimum(np.arange(batch + 1), count))
    tokens = np.ones(batch, accepted.data.dtype)
    if count:
        tokens[:count] = _loaded(effect, "num_accepted_tokens", accepted, real.astype(np.int64))
    where = _places(buffers[0], rows, slots)
    effect.store("state_buffer", 0, Cells(buffers[0]), where.reshape(-1), blocks.reshape(-1), 1)
    values = queries.astype(np.int32)
    effect.store("query_start_loc_buffer", 1, Cells(buffers[1]), np.arange(batch + 1), values, 1)
    effect.store("num_accepted_buffer", 2, Cells(buffers[2]), np.arange(batch), tokens.astype(np.int32), 1)
    return effect


def _places(value: Array, rows: Numbers, slots: Numbers) -> Numbers:
    across, along = value.layout
    return product(rows, across)[:, None] + product(slots, along)


def _loaded(effect: Traced, name: str, value: Array, places: Numbers) -> Numbers:
    found, inside = Cells(value).read(places)
    effect.note(name, inside)
    return found.reshape(places.shape)


def staging_constants(inputs: Inputs) -> list[int]:
    """The strides that are compile-time constants in products."""
    return [*tensor(inputs, "state_indices").layout, *tensor(inputs, "state_buffer").layout]
