"""Contract 4.4, kernel block tables: the inputs it is tried on, and what is special about them."""

from __future__ import annotations

from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch_domain import Wanted
from oracles.contracts._garbage import MORE_FLAVOURS, draw_flavour
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_step, placed
from oracles.contracts._table_layouts import columns_apart, draw_views
from oracles.domain import Source
from reference.block_table import kernel_block_table

ENGINE = Wanted(kinds=1, walked=frozenset({"tails", "padding"}))
PARTS = (1, 2, 3, 4, 8, 16, 49, 64)
"""Kernel blocks a block; 49 is 784 tokens in kernel blocks of 16."""

MOST_ELEMENTS = 20_000


def domain(source: Source) -> Inputs:
    """A gathered table of a step; one whose kernel blocks do not fit int32; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _refused(source)
    small = 1 if flavour in RULED else 2
    parts = source.choose(PARTS, small=small)
    gap = source.integer(0, 1 << 20, near=(0, 0, 1, 16, parts), small=small)
    if flavour == "garbage":
        low, high = -(1 << 31), (1 << 31) - 1
        ids = [
            source.integer(low, high, near=(low, high, -1, high // (parts + gap)), small=small)
            for small in (2, 1, 1, 1)
        ]
        table = np.array(ids, np.int32).reshape(2, 2)
    else:
        # Ids behind which the kernel blocks' numbers still fit, up to the last one that does.
        most = (1 << 31) // (parts + gap) - 1
        table = draw_step(source, flavour, ENGINE).gathered(0)
        table = table[: MOST_ELEMENTS // max(table.shape[1] * parts, 1)]
        table = np.where(table > most, most - table % 7, table).astype(np.int32)
    inputs: Inputs = {
        "block_table": draw_views(source)(table, "int32"),
        "blocks_per_kernel_block": parts,
        "stride": parts + gap,
    }
    return placed(source, flavour, inputs, "block_table")


def _refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "block_table": array([[5, 6, 0], [7, 0, 0]], "int32"),
        "blocks_per_kernel_block": 2,
        "stride": 2,
    }
    wrong: dict[str, dict[str, Value]] = {
        "no kernel blocks": {"blocks_per_kernel_block": 0},
        "negative": {"blocks_per_kernel_block": -2},
        "stride below the parts": {"stride": 1},
        "stride 0": {"stride": 0},
        "int64 table": {"block_table": array([[5, 6]], "int64")},
        "float table": {"block_table": array([[5, 6]], "float32")},
        "table in one dimension": {"block_table": array([5, 6], "int32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(kernel_block_table, ("kernel_table",), inputs)


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The columns the other way round, and all blocks NULL; each where that is another answer."""
    table = cast(Array, inputs["block_table"])
    if not isinstance(expected(inputs), Values):
        return ()
    others = (table.data[:, ::-1], np.zeros_like(table.data))
    return tuple(
        {**inputs, "block_table": table.with_values(other)} for other in others if not np.array_equal(other, table.data)
    )


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    table = cast(Array, inputs["block_table"])
    parts, stride = cast(int, inputs["blocks_per_kernel_block"]), cast(int, inputs["stride"])
    if table.data.ndim != 2:
        return frozenset()
    found = {
        "no_rows": not table.shape[0],
        "no_columns": not table.shape[1],
        "several_rows": table.shape[0] > 1,
        "parts": parts > 1,
        "gap": stride > parts,
        "null_blocks": bool((table.data == 0).any()),
        "negative_ids": bool((table.data < 0).any()),
        "past_int32": bool(table.data.size) and int(np.abs(table.data.astype(np.int64)).max()) * stride >= 1 << 31,
        "huge_stride": table.reach > 1 << 31,
        "strided": table.strides is not None and table.reach <= 1 << 31,
        "sliced": bool(table.offset),
        "columns_apart": columns_apart(table),
    }
    return frozenset(name for name, there in found.items() if there)
