"""Contracts 2.2 and 2.3, page indices: the inputs they are tried on, and what is special about them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch import Batch
from oracles.contracts._batch_domain import MOST_IDS, Wanted
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, garbage, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_step, placed
from oracles.contracts._table_layouts import MOST_FAR, View, columns_apart, draw_views
from oracles.domain import Source, huge_strides
from reference.sparse_indptr import dense_page_indices, sparse_page_indices

SPARSE_OUTPUTS = ("paged_kv_indices",)
SPARSE_TENSORS = ("block_table", "req_id_per_token", "topk_indices", "paged_kv_indptr", "paged_kv_indices")
DENSE_OUTPUTS = ("paged_kv_indptr", "paged_kv_last_page_len", "paged_kv_indices")
DENSE_TENSORS = ("block_table", "seq_lens", "paged_kv_indices")
WIDTHS = (2, 1, 4, 3, 16, 128)
"""Columns of top-k rows; the width is a compile-time constant of kernels, so there are few."""

LARGEST_STRIDE = 1 << 13
"""A bound on the slots from one block to the next: ids are so small that all slots fit int32."""

RULED_WIDTHS = (3, 5)

MOST_QUERIES = 40
MOST_CROWDED = 200
MOST_PAGES = 6_000


def sparse_domain(source: Source) -> Inputs:
    """A step's top-k tokens; the same with numbers that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _sparse_refused(source)
    wanted = Wanted(kinds=2 if flavour == "engine" else 1)
    batch = draw_step(source, flavour, wanted)
    batch, widths = _legal_ids(batch, LARGEST_STRIDE), RULED_WIDTHS if flavour in RULED else WIDTHS
    width, size = source.choose(widths, small=2 if flavour == "engine" else 1), batch.groups[0].block_size
    gap = source.integer(0, 4_096, near=(0, 0, 1, size), small=1)
    rows, tokens = _top_tokens(source, batch, width, MOST_QUERIES if flavour != "crowd" else MOST_CROWDED)
    lengths = _row_lengths(source, tokens, width)
    starts = list(accumulate(lengths, initial=source.integer(0, 9, near=(0, 0, 0, 1), small=1)))
    types = [draw_dtype(source) for _ in range(3)]
    if flavour == "garbage" and tokens.size:
        _spoil_sparse(source, rows, tokens, starts, types, batch)
    capacity = max(starts[-1], 0) + source.integer(0, 30, near=(0, 1), small=1) if abs(starts[-1]) < 1 << 20 else 64
    view = draw_views(source)
    inputs: Inputs = {
        "req_id_per_token": source.view(rows, types[0], small=1),
        "block_table": _table(source, view, batch.gathered(0)),
        "topk_indices": view(tokens, types[1]),
        "paged_kv_indptr": source.view(starts, types[2], small=1),
        "block_size": size,
        "block_stride": size + gap,
        "paged_kv_indices": source.view(_left_behind(capacity), "int32", small=1),
    }
    return placed(source, flavour, inputs, *SPARSE_TENSORS)


def _legal_ids(batch: Batch, largest_block: int) -> Batch:
    """The batch with ids that are no negative numbers, whose slots fit int32."""
    most = (1 << 31) // largest_block - 2
    tails = "stale" if batch.ids.tails == "absurd" else batch.ids.tails
    room = max(most - MOST_IDS[1], 1)
    return replace(batch, ids=replace(batch.ids, first=batch.ids.first % room, tails=tails))


def _top_tokens(source: Source, batch: Batch, width: int, most: int) -> tuple[list[int], np.ndarray]:
    """For each query its request, and the tokens that it picked: its best ones first, then -1."""
    rows = [row for row, request in enumerate(batch.requests) for _ in range(request.query)][:most]
    tokens = np.full((len(rows), width), -1, np.int64)
    step = source.choose((1, 3, 7), small=1)
    for query, row in enumerate(rows):
        length = batch.requests[row].seq_len
        for column in range(min(width, length)):
            tokens[query, column] = (length - 1 - column * step) % length
    if tokens.size and source.choose((False, True), weights=(2, 1), small=1):
        source.event("top-k: holes")
        tokens.flat[:: source.integer(2, 5, small=1)] = -1
    return rows, tokens


def _row_lengths(source: Source, tokens: np.ndarray, width: int) -> list[int]:
    """Entries of each row: its tokens, all columns, or more than there are columns."""
    kind = source.choose(("tokens", "columns", "more"), weights=(6, 3, 1), small=2)
    source.event(f"row lengths: {kind}")
    if kind == "tokens":
        return [int(n) for n in (tokens >= 0).sum(axis=1)]
    return [width + (2 if kind == "more" else 0)] * len(tokens)


def _spoil_sparse(
    source: Source, rows: list[int], tokens: np.ndarray, starts: list[int], types: list[str], batch: Batch
) -> None:
    """One number that means nothing: a request, a token, or a start."""
    what = source.choose(("token", "request", "start"), weights=(3, 3, 2))
    source.event(f"garbage: {what}")
    if what == "request":
        spoil(source, rows, types[0], near=(-1, len(batch.requests)))
    elif what == "start":
        spoil(source, starts, types[2], near=(0, starts[-1] + 1, 1 << 20))
    else:
        past = batch.groups[0].columns * batch.groups[0].block_size
        tokens.flat[source.integer(0, tokens.size - 1)] = garbage(source, types[1], near=(past, -1, past + 1))


def _table(source: Source, view: View, ids: np.ndarray) -> Array:
    """A table of blocks. Few queries read far rows, so these are drawn more often than for other tensors."""
    few = 2 <= ids.shape[0] <= MOST_FAR[0] and 0 < ids.size <= MOST_FAR[1]
    if few and source.choose((False, True), weights=(5, 1), small=1):
        source.event("tables: rows far apart")
        return Array("int32", np.ascontiguousarray(ids), (source.choose(huge_strides(ids.shape[0])), 1))
    return view(ids, "int32")


def _left_behind(count: int) -> np.ndarray:
    return np.arange(count) % 97 + 11


def _sparse_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "req_id_per_token": array([0, 1], "int32"),
        "block_table": array([[5, 6], [9, 0]], "int32"),
        "topk_indices": array([[0, 3], [1, -1]], "int32"),
        "paged_kv_indptr": array([0, 2, 3], "int32"),
        "block_size": 4,
        "block_stride": 4,
        "paged_kv_indices": array([71, 72, 73], "int32"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "block size 0": {"block_size": 0},
        "stride below the block size": {"block_stride": 3},
        "starts": {"paged_kv_indptr": array([0, 2], "int32")},
        "rows": {"req_id_per_token": array([0, 1, 1], "int32")},
        "int64 table": {"block_table": array([[5, 6], [9, 0]], "int64")},
        "table in one dimension": {"block_table": array([5, 6], "int32")},
        "int64 indices": {"paged_kv_indices": array([71, 72, 73], "int64")},
        "float tokens": {"topk_indices": array([[0, 3], [1, -1]], "float32")},
        "tokens in one dimension": {"topk_indices": array([0, 3], "int32")},
        "int16 rows": {"req_id_per_token": array([0, 1], "int16")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def sparse_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(sparse_page_indices, SPARSE_OUTPUTS, inputs)


def sparse_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The tokens of every row the other way round, and the requests rotated; each where that is another answer."""
    if not isinstance(sparse_expected(inputs), Values):
        return ()
    tokens, rows = cast(Array, inputs["topk_indices"]), cast(Array, inputs["req_id_per_token"])
    others = (
        {**inputs, "topk_indices": tokens.with_values(tokens.data[:, ::-1])},
        {**inputs, "req_id_per_token": rows.with_values(np.roll(rows.data, 1))},
        {**inputs, "topk_indices": tokens.with_values(np.full_like(tokens.data, -1))},
    )
    first = _indices(sparse_expected(inputs))
    return tuple(other for other in others if _indices(sparse_expected(other)) != first)[:2]


def _indices(expected: Expected) -> list[int]:
    assert isinstance(expected, Values)
    return cast(list[int], np.asarray(expected.outputs["paged_kv_indices"]).tolist())


def sparse_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    names = ("req_id_per_token", "block_table", "topk_indices", "paged_kv_indptr", "paged_kv_indices")
    rows, table, tokens, starts, buffer = (cast(Array, inputs[name]) for name in names)
    if (table.data.ndim, tokens.data.ndim, rows.data.ndim, starts.data.ndim) != (2, 2, 1, 1):
        return frozenset()
    begins, size = starts.data.tolist(), max(cast(int, inputs["block_size"]), 1)
    lengths = np.diff(starts.data.astype(np.int64)) if len(begins) > 1 else np.zeros(0, np.int64)
    found = {
        "no_queries": not rows.data.size,
        "no_token": bool((tokens.data == -1).any()),
        "negative_token": bool((tokens.data < -1).any()),
        "past_row": bool((tokens.data.astype(np.int64) // size >= table.shape[1]).any()),
        "request_outside": any(not 0 <= row < table.shape[0] for row in rows.data.tolist()),
        "several_requests": len(set(rows.data.tolist())) > 1,
        "longer_rows": bool((lengths > tokens.shape[1]).any()),
        "shorter_rows": bool((lengths < tokens.shape[1]).any()),
        "first_start": bool(begins) and begins[0] != 0,
        "starts_outside": any(b < a for a, b in pairwise(begins)) or min(begins, default=0) < 0,
        "past_capacity": max(begins, default=0) > buffer.data.size,
        "stride": inputs["block_stride"] != inputs["block_size"],
        **_layout_traits((rows, table, tokens, starts, buffer)),
    }
    return frozenset(name for name, there in found.items() if there)


def _layout_traits(arrays: tuple[Array, ...]) -> dict[str, bool]:
    return {
        "huge_stride": any(item.reach > 1 << 31 for item in arrays),
        "strided": any(item.strides is not None and item.reach <= 1 << 31 for item in arrays),
        "sliced": any(item.offset for item in arrays),
        "columns_apart": any(columns_apart(item) for item in arrays),
    }


def dense_domain(source: Source) -> Inputs:
    """A step's whole contexts; the same with lengths that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _dense_refused(source)
    walked = frozenset({"padding"})
    wanted = Wanted(walked=walked, kinds=2 if flavour == "engine" else 1)
    batch = draw_step(source, flavour, wanted)
    batch = _legal_ids(batch, 1 << 10)
    size = batch.groups[0].kernel_block_size
    parts = batch.groups[0].block_size // size
    table = batch.gathered(0)
    kept = MOST_PAGES // max(table.shape[1] * parts * size, 1) if table.shape[0] else 0
    table = (table[:kept, :, None] * parts + np.arange(parts)).reshape(len(table[:kept]), table.shape[1] * parts)
    lengths = [*batch.seq_lens, *[0] * (batch.num_reqs_padded - len(batch.requests))][: len(table)]
    dtype = draw_dtype(source)
    if flavour == "garbage" and lengths:
        source.event("garbage: seq_lens")
        spoil(source, lengths, dtype, near=(table.shape[1] * size + 1, -1, table.shape[1] * size))
    capacity = table.size * size + source.integer(0, 70, near=(0, 1, 64), small=1 if flavour in RULED else 2)
    inputs: Inputs = {
        "block_table": _table(source, draw_views(source), table.astype(np.int32)),
        "seq_lens": source.view(lengths, dtype, small=1),
        "kernel_block_size": size,
        "paged_kv_indices": source.view(_left_behind(capacity), "int32", small=1),
    }
    return placed(source, flavour, inputs, *DENSE_TENSORS)


def _dense_refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "block_table": array([[5, 6], [9, 0]], "int32"),
        "seq_lens": array([5, 3], "int32"),
        "kernel_block_size": 4,
        "paged_kv_indices": array(_left_behind(16), "int32"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "capacity in pages": {"paged_kv_indices": array(_left_behind(4), "int32")},
        "capacity": {"paged_kv_indices": array(_left_behind(15), "int32")},
        "block size 0": {"kernel_block_size": 0},
        "lengths": {"seq_lens": array([5], "int32")},
        "float lengths": {"seq_lens": array([5, 3], "float32")},
        "int64 table": {"block_table": array([[5, 6], [9, 0]], "int64")},
        "int64 indices": {"paged_kv_indices": array(_left_behind(16), "int64")},
        "table in one dimension": {"block_table": array([5, 6], "int32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def dense_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(dense_page_indices, DENSE_OUTPUTS, inputs)


def dense_resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The lengths rotated, and all of them zero; each where that is another answer."""
    if not isinstance(dense_expected(inputs), Values):
        return ()
    lengths = cast(Array, inputs["seq_lens"])
    others = (
        {**inputs, "seq_lens": lengths.with_values(np.roll(lengths.data, 1))},
        {**inputs, "seq_lens": lengths.with_values(np.zeros_like(lengths.data))},
    )
    first = _indices(dense_expected(inputs))
    return tuple(other for other in others if _indices(dense_expected(other)) != first)


def dense_traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    table, lengths, buffer = (cast(Array, inputs[n]) for n in ("block_table", "seq_lens", "paged_kv_indices"))
    if table.data.ndim != 2 or lengths.data.ndim != 1:
        return frozenset()
    size, seen = cast(int, inputs["kernel_block_size"]), lengths.data.tolist()
    found = {
        "no_requests": not seen,
        "no_columns": not table.shape[1],
        "several_requests": len(seen) > 1,
        "zero_length": 0 in seen,
        "negative_length": min(seen, default=0) < 0,
        "past_row": any(length > table.shape[1] * size for length in seen),
        "unused_capacity": buffer.data.size > sum(max(length, 0) for length in seen),
        "null_blocks": bool((table.data == 0).any()),
        "block_size": size > 1,
        **_layout_traits((table, lengths, buffer)),
    }
    return frozenset(name for name, there in found.items() if there)
