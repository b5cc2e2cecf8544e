"""Contracts 4.3 and 4.5, slot mappings: the inputs they are tried on, and what is special about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch import Batch, Table
from oracles.contracts._batch_domain import MOST_IDS, Wanted, draw_batch
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, garbage, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_ruled, placed
from oracles.contracts._table_layouts import columns_apart, draw_views
from oracles.contracts._timeline import Row, timeline
from oracles.domain import Source
from reference.slot_mapping import slot_mapping, slot_mapping_hybrid

OUTPUTS = ("slot_mapping",)
ENGINE = Wanted(cp=True, walked=frozenset({"slots", "cp"}))
SPOILED = Wanted(cp=True, kinds=1)
TENSORS = ("block_table", "idx_mapping", "query_start_loc", "positions", "slot_mapping")
WEIGHTS = {"positions": 4, "idx_mapping": 3, "query_start_loc": 2, "block_table": 2}
"""How often an input is what holds numbers that mean nothing."""


def domain(source: Source) -> Inputs:
    """A step's tokens; the same with numbers that mean nothing; or an input that must be refused."""
    return _drawn(source, hybrid=False)


def hybrid_domain(source: Source) -> Inputs:
    """The same, where the table's blocks are smaller than the KV-cache manager's, or the group is switched off."""
    return _drawn(source, hybrid=True)


def _drawn(source: Source, *, hybrid: bool) -> Inputs:
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _refused(source, hybrid=hybrid)
    if flavour in RULED:
        inputs = from_batch(source, draw_ruled(source, flavour, ENGINE), hybrid=hybrid, spoiled=False)
        return placed(source, flavour, inputs, *TENSORS)
    batch = draw_batch(source, ENGINE if flavour == "engine" else SPOILED)
    return from_batch(source, batch, hybrid=hybrid, spoiled=flavour == "garbage")


def from_batch(source: Source, batch: Batch, *, hybrid: bool, spoiled: bool) -> Inputs:
    """The tensors of a step. Positions behind its tokens, and the whole buffer, hold what an earlier step left."""
    padding = batch.num_tokens_padded - batch.num_tokens
    starts, rows = batch.query_start_loc, list(batch.idx_mapping)
    positions = [*batch.positions, *(3 + 5 * place for place in range(padding))]
    skipped = source.choose((0, 1), weights=(7, 1), small=1) if len(rows) > 1 else 0
    if skipped:
        # Decodes and prefills of one step are often handled one after the other, with views of the same tensors.
        source.event("rows: without the first ones")
        starts, rows = starts[len(rows) // 2 :], rows[len(rows) // 2 :]
    types = {name: draw_dtype(source) for name in ("idx_mapping", "query_start_loc", "positions")}
    group, table = batch.groups[0], _table(batch, hybrid=hybrid)
    if spoiled:
        limit = group.columns * (group.kernel_block_size if hybrid else group.block_size) * batch.cp_size
        _spoil(source, {"idx_mapping": rows, "query_start_loc": starts, "positions": positions}, types, limit, table)
    capacity = len(positions) + source.integer(0, 70, near=(0, 1, 64), small=1)
    inputs: dict[str, Value] = {
        "block_table": draw_views(source)(table, "int32"),
        "idx_mapping": source.view(rows, types["idx_mapping"], small=1),
        "query_start_loc": source.view(starts, types["query_start_loc"], small=1),
        "positions": source.view(positions, types["positions"], small=1),
        "block_size": group.block_size,
        "cp_size": batch.cp_size,
        "cp_rank": batch.cp_rank,
        "cp_interleave": batch.cp_interleave,
    }
    if hybrid:
        inputs["kernel_block_size"] = group.kernel_block_size
        inputs["enabled"] = source.choose((True, False), weights=(7, 1), small=1)
    inputs["slot_mapping"] = source.view(np.arange(capacity) * 3 + 1_001, "int64", small=1)
    return inputs


def _table(batch: Batch, *, hybrid: bool) -> Table:
    """The table that the look-up uses. A kernel's blocks are parts of the manager's, numbered on."""
    group = batch.groups[0]
    parts = group.block_size // group.kernel_block_size
    if not hybrid or parts == 1:
        return batch.block_table(0)
    most = (1 << 31) // parts - 2 * max(MOST_IDS)
    batch = replace(batch, ids=replace(batch.ids, first=min(batch.ids.first, most)))
    if batch.ids.tails == "absurd":
        batch = replace(batch, ids=replace(batch.ids, tails="stale"))
    table = batch.block_table(0)
    expanded: Table = np.zeros((*table.shape, parts), np.int32)
    expanded[...] = table[:, :, None] * parts + np.arange(parts)
    return expanded.reshape(table.shape[0], table.shape[1] * parts)


def _spoil(source: Source, values: dict[str, list[int]], types: dict[str, str], limit: int, table: Table) -> None:
    """One number that means nothing: a request, a position, a start, or all blocks of a request."""
    names = [name for name in ("positions", "idx_mapping", "query_start_loc") if values[name]]
    names += ["block_table"] if table.size and values["idx_mapping"] else []
    name = source.choose(names, weights=[WEIGHTS[name] for name in names], small=3)
    source.event(f"garbage: {name}")
    if name == "block_table":
        table[source.choose(values["idx_mapping"], small=1)] = garbage(source, "int32")
        return
    near = {
        "idx_mapping": (-1, table.shape[0]),
        "positions": (limit, -1, limit - 1, limit + 1, 1 << 20),
        "query_start_loc": (0, values["query_start_loc"][-1] + 1, 1 << 20),
    }[name]
    # Positions behind the last row's tokens are never looked at by most implementations.
    stop = (
        source.choose((values["query_start_loc"][-1], None), weights=(3, 1), small=1) if name == "positions" else None
    )
    some = values[name][:stop] or values[name]
    spoil(source, some, types[name], near)
    values[name][: len(some)] = some


def _refused(source: Source, *, hybrid: bool) -> Inputs:
    """An input that host-visible facts show to be wrong: two requests, three tokens."""
    inputs: dict[str, Value] = {
        "block_table": array([[5, 6], [9, 0]], "int32"),
        "idx_mapping": array([1, 0], "int32"),
        "query_start_loc": array([0, 1, 3], "int32"),
        "positions": array([2, 3, 4], "int64"),
        "block_size": 4,
        "cp_size": 1,
        "cp_rank": 0,
        "cp_interleave": 1,
        "slot_mapping": array([71, 72, 73, 74], "int64"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "capacity": {"slot_mapping": array([71, 72], "int64")},
        "rank past the ranks": {"cp_size": 2, "cp_rank": 2},
        "rank 1 of 1": {"cp_rank": 1},
        "negative rank": {"cp_rank": -1},
        "interleave": {"cp_size": 2, "cp_interleave": 3},
        "interleave 0": {"cp_interleave": 0},
        "no ranks": {"cp_size": 0},
        "block size 0": {"block_size": 0},
        "negative block size": {"block_size": -4},
        "starts": {"query_start_loc": array([0, 3], "int32")},
        "int64 table": {"block_table": array([[5, 6], [9, 0]], "int64")},
        "table in one dimension": {"block_table": array([5, 6], "int32")},
        "int32 slots": {"slot_mapping": array([71, 72, 73, 74], "int32")},
        "float positions": {"positions": array([2, 3, 4], "float32")},
        "int16 rows": {"idx_mapping": array([1, 0], "int16")},
        "starts in two dimensions": {"query_start_loc": array([[0, 1, 3]], "int32")},
    }
    if hybrid:
        inputs |= {"kernel_block_size": 2, "enabled": True}
        wrong |= {
            "kernel block size 0": {"kernel_block_size": 0},
            "disabled, and a short buffer": {"enabled": False, "slot_mapping": array([71], "int64")},
        }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    buffer = inputs.pop("slot_mapping")
    return {**inputs, "slot_mapping": buffer} | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(slot_mapping, OUTPUTS, inputs)


def hybrid_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(slot_mapping_hybrid, OUTPUTS, inputs)


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The rows' requests rotated, and every token one position further; each where that is another answer."""
    return _resample(inputs, expected)


def hybrid_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The same."""
    return _resample(inputs, hybrid_expected)


def _resample(inputs: Inputs, ask: Callable[[Inputs], Expected]) -> tuple[Inputs, ...]:
    rows, positions = cast(Array, inputs["idx_mapping"]), cast(Array, inputs["positions"])
    if not isinstance(ask(inputs), Values) or not rows.data.size:
        return ()
    first = _slots(ask(inputs))
    others = (
        {**inputs, "idx_mapping": rows.with_values(np.roll(rows.data, 1))},
        {**inputs, "positions": positions.with_values(np.maximum(positions.data, 1) - 1)},
        {**inputs, "idx_mapping": rows.with_values(np.full_like(rows.data, -1))},
    )
    return tuple(other for other in others if _slots(ask(other)) != first)[:2]


def _slots(expected: Expected) -> list[int]:
    assert isinstance(expected, Values)
    return cast(list[int], np.asarray(expected.outputs["slot_mapping"]).tolist())


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    names = ("block_table", "idx_mapping", "query_start_loc", "positions", "slot_mapping")
    table, ids, starts, positions, buffer = (cast(Array, inputs[name]) for name in names)
    if table.data.ndim != 2 or any(item.data.ndim != 1 for item in (ids, starts, positions, buffer)):
        return frozenset()
    rows, begins = ids.data.tolist(), starts.data.tolist()
    size = cast(int, inputs.get("kernel_block_size", inputs["block_size"]))
    arrays = (table, ids, starts, positions, buffer)
    found = {
        "no_requests": not rows,
        "no_columns": not table.shape[1],
        "empty_row": any(begin == end for begin, end in pairwise(begins)),
        "several_rows": len(rows) > 1,
        "reordered": rows != sorted(rows),
        "minus_one": -1 in rows,
        "id_outside": any(not 0 <= row < table.shape[0] and row != -1 for row in rows),
        "first_start": bool(begins and begins[0]),
        "starts_outside": any(b < a for a, b in pairwise(begins))
        or any(not 0 <= b <= positions.data.size for b in begins),
        "padding_tokens": bool(begins) and begins[-1] < buffer.data.size,
        **_position_traits(table, positions.data.tolist(), size),
        "context_parallel": cast(int, inputs["cp_size"]) > 1,
        "kernel_blocks": size != inputs["block_size"],
        "disabled": inputs.get("enabled") is False,
        "huge_stride": any(item.reach > 1 << 31 for item in arrays),
        "strided": any(item.strides is not None and item.reach <= 1 << 31 for item in arrays),
        "sliced": any(item.offset for item in arrays),
        "columns_apart": columns_apart(table),
    }
    return frozenset(name for name, there in found.items() if there)


def _position_traits(table: Array, positions: Sequence[int], size: int) -> dict[str, bool]:
    most = int(np.abs(table.data.astype(np.int64)).max(initial=0))
    return {
        "negative_position": min(positions, default=0) < 0,
        "position_past_row": any(position // max(size, 1) >= table.shape[1] for position in positions),
        "past_int32": most * max(size, 1) >= 1 << 31,
    }


def sketch(inputs: Inputs) -> str:
    """The batch as a timeline; one line a row."""
    ask = hybrid_expected if "enabled" in inputs else expected
    if not isinstance(ask(inputs), Values) or not traits(inputs) or cast(int, inputs["cp_size"]) > 1:
        return ""
    table = cast(Array, inputs["block_table"]).data
    positions = cast(Array, inputs["positions"]).data.tolist()
    starts = cast(Array, inputs["query_start_loc"]).data.tolist()
    rows = []
    for number, request in enumerate(cast(Array, inputs["idx_mapping"]).data.tolist()):
        own = positions[starts[number] : starts[number + 1]]
        if own and own != list(range(own[0], own[0] + len(own))):
            return ""
        blocks = table[request].tolist() if 0 <= request < len(table) else ()
        rows.append(Row(request=request, computed=own[0] if own else 0, query=len(own), blocks=blocks))
    return timeline(rows, cast(int, inputs.get("kernel_block_size", inputs["block_size"])))
