"""Contracts 3.1 and 3.2, state columns and their staging: the inputs they are tried on, and what is special."""

from __future__ import annotations

from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch_domain import Wanted, draw_batch
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_ruled, draw_step, placed
from oracles.contracts._table_layouts import columns_apart, draw_views
from oracles.domain import Source
from reference.state_columns import stage_decode_state, state_columns

MODES = ("none", "align", "all")
VIEWS = ("state_indices", "query_start_loc", "num_accepted_tokens")
BUFFERS = ("state_buffer", "query_start_loc_buffer", "num_accepted_buffer")
SPECULATIVE = (0, 1, 2, 4, 7)


def columns_domain(source: Source) -> Inputs:
    """A step's table in each mode; lengths that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _columns_refused(source)
    view = draw_views(source)
    if flavour in RULED:
        batch = draw_ruled(source, flavour, Wanted())
        mode = source.choose(MODES[1:], small=1)
    else:
        batch = draw_batch(source, Wanted(kinds=2 if flavour == "engine" else 1))
        mode = source.choose(MODES, small=3 if flavour == "engine" else 2)
    blocks = source.choose(SPECULATIVE, small=1 if flavour in RULED else 2)
    lengths = [*batch.seq_lens, *[0] * (batch.num_reqs_padded - len(batch.requests))]
    if source.choose((True, False), weights=(2, 1), small=1):
        table = batch.gathered(0)
    else:
        # Some engines hand on what padding rows and unused columns hold; those ids are blocks of other requests.
        source.event("table: not cleared")
        slots = [*batch.idx_mapping, *[0] * (batch.num_reqs_padded - len(batch.requests))]
        table = batch.block_table(0)[slots] if batch.max_num_reqs else batch.gathered(0)
    if mode == "none" and table.shape[1] < 1 + blocks:
        table = np.concatenate([table, np.full((len(table), 1 + blocks - table.shape[1]), 3, np.int32)], axis=1)
    dtype = draw_dtype(source)
    if flavour == "garbage" and lengths:
        past = table.shape[1] * batch.groups[0].block_size
        spoil(source, lengths, dtype, near=(past + 1, -1, past))
    inputs: Inputs = {
        "block_table": view(table, "int32"),
        "seq_lens": source.view(lengths, dtype, small=1),
        "mamba_cache_mode": mode,
        "block_size": batch.groups[0].block_size,
        "num_speculative_blocks": blocks,
    }
    return placed(source, flavour, inputs, "block_table", "seq_lens")


def _columns_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "block_table": array([[7, 8, 9], [4, 5, 0]], "int32"),
        "seq_lens": array([33, 9], "int32"),
        "mamba_cache_mode": source.choose(MODES),
        "block_size": 16,
        "num_speculative_blocks": 1,
    }
    wrong: dict[str, dict[str, Value]] = {
        "narrow table": {"mamba_cache_mode": "none", "num_speculative_blocks": 3},
        "unknown mode": {"mamba_cache_mode": "aligned"},
        "block size 0": {"block_size": 0},
        "negative blocks": {"num_speculative_blocks": -1},
        "lengths": {"seq_lens": array([33], "int32")},
        "float lengths": {"seq_lens": array([33, 9], "float32")},
        "int64 table": {"block_table": array([[7, 8, 9], [4, 5, 0]], "int64")},
        "table in one dimension": {"block_table": array([7, 8], "int32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def columns_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(state_columns, ("state_indices",), inputs)


def columns_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The rows' lengths rotated, and other blocks in the table; each where that is another answer."""
    if not isinstance(columns_expected(inputs), Values):
        return ()
    lengths, table = cast(Array, inputs["seq_lens"]), cast(Array, inputs["block_table"])
    others = (
        {**inputs, "seq_lens": lengths.with_values(np.roll(lengths.data, 1))},
        {**inputs, "block_table": table.with_values(table.data ^ 1)},
    )
    first = _indices(columns_expected(inputs))
    return tuple(other for other in others if _indices(columns_expected(other)) != first)


def _indices(expected: Expected) -> list[list[int]]:
    assert isinstance(expected, Values)
    return cast(list[list[int]], np.asarray(expected.outputs["state_indices"]).tolist())


def columns_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    table, lengths = cast(Array, inputs["block_table"]), cast(Array, inputs["seq_lens"])
    if table.data.ndim != 2 or lengths.data.ndim != 1:
        return frozenset()
    size, blocks = max(cast(int, inputs["block_size"]), 1), cast(int, inputs["num_speculative_blocks"])
    seen = lengths.data.tolist()
    found = {
        f"mode_{inputs['mamba_cache_mode']}": True,
        "no_requests": not seen,
        "no_columns": not table.shape[1],
        "several_requests": len(seen) > 1,
        "zero_length": 0 in seen,
        "negative_length": min(seen, default=0) < 0,
        "second_block": any(length > size for length in seen),
        "speculative": blocks > 0,
        "past_row": any(max((length - 1) // size, 0) + blocks >= table.shape[1] for length in seen),
        **_layout_traits((table, lengths)),
    }
    return frozenset(name for name, there in found.items() if there)


def _layout_traits(arrays: tuple[Array, ...]) -> dict[str, bool]:
    return {
        "huge_stride": any(item.reach > 1 << 31 for item in arrays),
        "strided": any(item.strides is not None and item.reach <= 1 << 31 for item in arrays),
        "sliced": any(item.offset for item in arrays),
        "columns_apart": any(columns_apart(item) for item in arrays),
    }


def staging_domain(source: Source) -> Inputs:
    """A decode step and the buffers of a graph; numbers that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _staging_refused(source)
    view = draw_views(source)
    wanted = Wanted(walked=frozenset({"padding"}), kinds=2 if flavour == "engine" else 1)
    batch = draw_step(source, flavour, wanted)
    blocks = source.choose((2, 4) if flavour in RULED else SPECULATIVE, small=1 if flavour in RULED else 2)
    rows = len(batch.requests)
    capacity = batch.num_reqs_padded + source.integer(0, 30, near=(0, 1), small=1)
    starts, accepted = list(batch.query_start_loc), [1 + row % (blocks + 1) for row in range(rows)]
    types = [draw_dtype(source), draw_dtype(source)]
    if flavour == "garbage":
        spoil(source, source.choose([item for item in (starts, accepted) if item]), "int32")
    states = (np.arange(rows * (1 + blocks)) * 5 + batch.ids.first % (1 << 30)).reshape(rows, 1 + blocks)
    inputs: Inputs = {
        "state_indices": view(states.astype(np.int32), "int32"),
        "query_start_loc": source.view(starts, types[0], small=1),
        "num_accepted_tokens": source.view(accepted, types[1], small=1),
        "batch_size": batch.num_reqs_padded,
        "state_buffer": view(np.arange(capacity * (1 + blocks)).reshape(capacity, 1 + blocks) + 900, "int32"),
        "query_start_loc_buffer": source.view(np.arange(capacity + 1) * 3 + 500, "int32", small=1),
        "num_accepted_buffer": source.view(np.arange(capacity) + 70, "int32", small=1),
    }
    tensors = ("state_indices", "query_start_loc", "num_accepted_tokens", *BUFFERS)
    return placed(source, flavour, inputs, *tensors)


def _staging_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "state_indices": array([[7, 8], [4, 5]], "int32"),
        "query_start_loc": array([0, 2, 3], "int32"),
        "num_accepted_tokens": array([2, 1], "int32"),
        "batch_size": 3,
        "state_buffer": array([[91, 92]] * 4, "int32"),
        "query_start_loc_buffer": array([51, 52, 53, 54, 55], "int32"),
        "num_accepted_buffer": array([71, 72, 73, 74], "int32"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "fewer rows than requests": {"batch_size": 1},
        "past the capacity": {"batch_size": 5},
        "negative rows": {"batch_size": -1},
        "columns": {"state_buffer": array([[91]] * 4, "int32")},
        "starts": {"query_start_loc": array([0, 2], "int32")},
        "accepted": {"num_accepted_tokens": array([2], "int32")},
        "capacity of the starts": {"query_start_loc_buffer": array([51, 52, 53, 54], "int32")},
        "capacity of the accepted": {"num_accepted_buffer": array([71, 72, 73], "int32")},
        "int64 states": {"state_indices": array([[7, 8], [4, 5]], "int64")},
        "int64 buffer": {"query_start_loc_buffer": array([51, 52, 53, 54, 55], "int64")},
        "float starts": {"query_start_loc": array([0, 2, 3], "float32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def staging_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(stage_decode_state, (*(f"{name}_staged" for name in VIEWS), *BUFFERS), inputs)


def staging_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """Other states, and other accepted counts."""
    states, accepted = cast(Array, inputs["state_indices"]), cast(Array, inputs["num_accepted_tokens"])
    if not isinstance(staging_expected(inputs), Values) or not states.data.size:
        return ()
    return (
        {**inputs, "state_indices": states.with_values(states.data ^ 1)},
        {**inputs, "num_accepted_tokens": accepted.with_values(accepted.data ^ 1)},
    )


def staging_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    states, buffer = cast(Array, inputs["state_indices"]), cast(Array, inputs["state_buffer"])
    if states.data.ndim != 2 or buffer.data.ndim != 2:
        return frozenset()
    rows, batch_size = states.shape[0], cast(int, inputs["batch_size"])
    arrays = tuple(value for value in inputs.values() if isinstance(value, Array))
    found = {
        "no_requests": not rows,
        "several_requests": rows > 1,
        "speculative": states.shape[1] > 1,
        "padding_rows": batch_size > rows,
        "rows_behind": buffer.shape[0] > batch_size,
        **_layout_traits(arrays),
    }
    return frozenset(name for name, there in found.items() if there)
