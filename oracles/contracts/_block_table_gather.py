"""Contracts 4.2 and 4.6, gathered block tables: the inputs they are tried on, and what is special about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch import Batch
from oracles.contracts._batch_domain import Wanted, draw_batch
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, garbage, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_ruled, placed
from oracles.contracts._table_layouts import columns_apart, draw_views
from oracles.contracts._timeline import table_rows
from oracles.domain import Source
from reference.block_table import gather_block_tables, gather_block_tables_windowed

TENSORS = ("block_tables", "num_blocks", "idx_mapping", "out")
PLAIN = Wanted(groups=(0, 20), walked=frozenset({"slots", "tails", "padding"}))
WINDOWED = Wanted(groups=(0, 20), windows=True, walked=frozenset({"slots", "windows"}))


def domain(source: Source) -> Inputs:
    """A step's tables; tables with numbers in them that mean nothing; or an input that must be refused."""
    return _drawn(source, PLAIN)


def windowed_domain(source: Source) -> Inputs:
    """The same, with groups of sliding windows among them."""
    return _drawn(source, WINDOWED)


def _drawn(source: Source, wanted: Wanted) -> Inputs:
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _refused(source, wanted)
    if flavour in RULED:
        inputs = from_batch(source, draw_ruled(source, flavour, wanted), windowed=wanted.windows, spoiled=False)
        tensors = (*TENSORS, "num_computed_tokens") if wanted.windows else TENSORS
        return placed(source, flavour, inputs, *tensors)
    batch = draw_batch(
        source, wanted if flavour == "engine" else Wanted(groups=(1, 3), windows=wanted.windows, kinds=1)
    )
    return from_batch(source, batch, windowed=wanted.windows, spoiled=flavour == "garbage")


def from_batch(source: Source, batch: Batch, *, windowed: bool, spoiled: bool) -> Inputs:
    """The tensors of a step. ``out`` holds what a larger step before it left there."""
    groups = range(len(batch.groups))
    counts = np.array([batch.num_blocks(group) for group in groups], np.int64).reshape(len(groups), batch.max_num_reqs)
    rows, computed = list(batch.idx_mapping), list(batch.computed_by_slot)
    dtype, wide = draw_dtype(source), draw_dtype(source)
    if spoiled:
        widths = [group.columns for group in batch.groups]
        _spoil(source, rows, dtype, counts, wide, computed if windowed else [], widths)
    tables = [batch.block_table(group) for group in groups]
    out = [left_behind(batch.num_reqs_padded, group.columns) for group in batch.groups]
    view = draw_views(source)
    inputs: dict[str, Value] = {
        "block_tables": tuple(view(table, "int32") for table in tables),
        "num_blocks": view(counts, wide),
        "idx_mapping": source.view(rows, dtype, small=1),
    }
    if windowed:
        inputs["num_computed_tokens"] = source.view(computed, wide, small=1)
        inputs["window_reach"] = tuple(group.window_reach for group in batch.groups)
        inputs["block_sizes"] = tuple(group.block_size for group in batch.groups)
    inputs["out"] = tuple(view(table, "int32") for table in out)
    return inputs


def left_behind(rows: int, columns: int) -> np.ndarray:
    """A buffer full of blocks that the requests of an earlier step had."""
    return (np.arange(rows * columns, dtype=np.int32) % 89 + 7).reshape(rows, columns)


def _spoil(
    source: Source,
    rows: list[int],
    dtype: str,
    counts: np.ndarray,
    wide: str,
    computed: list[int],
    widths: list[int],
) -> None:
    """One number that means nothing, or one request twice in the batch."""
    options = [name for name, there in (("row", rows), ("count", counts.size), ("computed", computed)) if there]
    if not options:
        return
    what = source.choose(options)
    source.event(f"garbage: {what}")
    if what == "row":
        spoil(source, rows, dtype, near=(-1, counts.shape[1], rows[0]))
    elif what == "count":
        at = source.integer(0, counts.size - 1)
        past = widths[at // counts.shape[1]] + 1
        counts.flat[at] = garbage(source, wide, near=(-1, 1 << 20, past, past + 1))
    else:
        spoil(source, computed, wide)


def _refused(source: Source, wanted: Wanted) -> Inputs:
    """An input that host-visible facts show to be wrong: two requests, two groups."""
    table = array([[5, 6, 0], [7, 0, 0]], "int32")
    inputs: dict[str, Value] = {
        "block_tables": (table, table),
        "num_blocks": array([[2, 1], [2, 1]], "int32"),
        "idx_mapping": array([1, 0], "int32"),
        "out": (array(left_behind(2, 3), "int32"), array(left_behind(2, 3), "int32")),
    }
    wrong: dict[str, dict[str, Value]] = {
        "fewer rows than requests": {"out": (array(left_behind(1, 3), "int32"),) * 2},
        "columns": {"out": (array(left_behind(2, 3), "int32"), array(left_behind(2, 4), "int32"))},
        "rows of out": {"out": (array(left_behind(2, 3), "int32"), array(left_behind(3, 3), "int32"))},
        "groups of out": {"out": (array(left_behind(2, 3), "int32"),)},
        "groups of tables": {"block_tables": (table,)},
        "groups of counts": {"num_blocks": array([[2, 1]], "int32")},
        "requests of counts": {"num_blocks": array([[2], [2]], "int32")},
        "int64 tables": {"block_tables": (table, array(table.data, "int64"))},
        "int64 out": {"out": (array(left_behind(2, 3), "int64"),) * 2},
        "counts in one dimension": {"num_blocks": array([2, 1], "int32")},
        "float counts": {"num_blocks": array([[2, 1], [2, 1]], "float32")},
        "int16 rows": {"idx_mapping": array([1, 0], "int16")},
        "rows in two dimensions": {"idx_mapping": array([[1, 0]], "int32")},
    }
    if wanted.windows:
        inputs |= {"num_computed_tokens": array([9, 3], "int32"), "window_reach": (4, 0), "block_sizes": (2, 2)}
        wrong |= {
            "requests of tokens": {"num_computed_tokens": array([9, 3, 1], "int32")},
            "float tokens": {"num_computed_tokens": array([9, 3], "float32")},
            "reaches": {"window_reach": (4,)},
            "negative reach": {"window_reach": (4, -1)},
            "sizes": {"block_sizes": (2, 2, 2)},
            "size 0": {"block_sizes": (2, 0)},
        }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    out = inputs.pop("out")
    return {**inputs, "out": out} | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return _named(answer(gather_block_tables, ("out",), inputs))


def windowed_expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return _named(answer(gather_block_tables_windowed, ("out",), inputs))


def _named(expected: Expected) -> Expected:
    """The tables of all groups as one result."""
    if not isinstance(expected, Values):
        return expected
    return Values({"out": tuple(cast(list[np.ndarray], expected.outputs["out"]))})


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The batch's rows rotated, and every request with a block less; each where that is another answer."""
    ids, counts = cast(Array, inputs["idx_mapping"]), cast(Array, inputs["num_blocks"])
    ask = windowed_expected if "window_reach" in inputs else expected
    first = ask(inputs)
    if not isinstance(first, Values) or not ids.data.size:
        return ()
    others = (
        {**inputs, "idx_mapping": ids.with_values(np.roll(ids.data, 1))},
        {**inputs, "num_blocks": counts.with_values(np.maximum(counts.data, 1) - 1)},
        {**inputs, "idx_mapping": ids.with_values(np.full_like(ids.data, -1))},
    )
    return tuple(other for other in others if _tables(ask(other)) != _tables(first))[:2]


def _tables(expected: Expected) -> list[list[list[int]]]:
    assert isinstance(expected, Values)
    return [table.tolist() for table in cast(tuple[np.ndarray, ...], expected.outputs["out"])]


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    tables, out = cast(tuple[Array, ...], inputs["block_tables"]), cast(tuple[Array, ...], inputs["out"])
    ids, counts = cast(Array, inputs["idx_mapping"]), cast(Array, inputs["num_blocks"])
    if ids.data.ndim != 1 or ids.data.dtype.kind not in "iu" or counts.data.ndim != 2:
        return frozenset()
    if any(table.data.ndim != 2 for table in (*tables, *out)):
        return frozenset()
    arrays = (*tables, *out, ids, counts)
    rows = ids.data.tolist()
    outside = [row for row in rows if not 0 <= row < counts.shape[1]]
    columns = [table.shape[1] for table in tables]
    found = {
        "no_groups": not tables,
        "several_groups": len(tables) > 1,
        "no_requests": not rows,
        "padding_rows": any(table.shape[0] > len(rows) for table in out),
        "unused_columns": _unused(rows, counts.data, columns),
        "reordered": rows != sorted(rows),
        "minus_one": -1 in rows,
        "id_outside": bool(set(outside) - {-1}),
        "count_outside": any(
            not 0 <= count <= width for width, row in zip(columns, counts.data.tolist(), strict=False) for count in row
        ),
        "huge_stride": any(item.reach > 1 << 31 for item in arrays),
        "strided": any(item.strides is not None and item.reach <= 1 << 31 for item in arrays),
        "sliced": any(item.offset for item in arrays),
        "columns_apart": any(map(columns_apart, arrays)),
        **_window_traits(inputs),
    }
    return frozenset(name for name, there in found.items() if there)


def _unused(rows: list[int], counts: np.ndarray, columns: list[int]) -> bool:
    """Whether a request of the batch has fewer blocks than its table has columns."""
    return any(
        0 <= row < counts.shape[1] and counts[group, row] < width
        for group, width in enumerate(columns[: counts.shape[0]])
        for row in rows
    )


def _window_traits(inputs: Inputs) -> Mapping[str, bool]:
    if "window_reach" not in inputs:
        return {}
    computed = cast(Array, inputs["num_computed_tokens"]).data
    reaches = cast(tuple[int, ...], inputs["window_reach"])
    return {
        "window": any(reaches),
        "left_behind": any(0 < reach < tokens for reach in reaches for tokens in computed.ravel().tolist()),
        "computed_outside": bool((computed < 0).any() or (computed > 1 << 30).any()),
    }


def sketch(inputs: Inputs) -> str:
    """One line a row of the batch: its request, and in each group its blocks and what stands in unused columns."""
    if not traits(inputs) or not isinstance(windowed_or_plain(inputs), Values):
        return ""
    return table_rows(inputs)


def windowed_or_plain(inputs: Inputs) -> Expected:
    """The specification's answer to inputs of either contract."""
    return windowed_expected(inputs) if "window_reach" in inputs else expected(inputs)
