"""Drawings of a batch: its tokens along a timeline cut into blocks, and the tables that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs

MOST_ROWS = 24
"""Rows of a batch that are drawn."""

MOST_BLOCKS = 6
"""Blocks of one request that are drawn, the last ones."""

CELL = 8
"""Characters of a block with more tokens than that."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch: its request, tokens before and in this step, and the blocks that hold them."""

    request: int
    computed: int
    query: int
    blocks: Sequence[int]


def timeline(rows: Sequence[Row], block_size: int) -> str:
    """One line a row: tokens in the cache (``=``), tokens of this step (``#``), blocks (``|``) and their ids."""
    lines = [f"{'row':>4}{'request':>9}  {'tokens':<16}timeline, {block_size} tokens a block: = computed, # this step"]
    lines += [_line(number, row, block_size) for number, row in enumerate(rows[:MOST_ROWS])]
    if len(rows) > MOST_ROWS:
        lines.append(f"{'...':>4}{len(rows) - MOST_ROWS:>9} more rows")
    return "\n".join(lines)


def _line(number: int, row: Row, block_size: int) -> str:
    tokens = f"{row.computed}..{row.computed + row.query - 1}" if row.query else f"none, {row.computed} old"
    return f"{number:>4}{row.request:>9}  {tokens:<16}{_blocks(row, block_size)}".rstrip()


def _blocks(row: Row, block_size: int) -> str:
    end = row.computed + row.query
    count = -(-end // block_size)
    first = max(count - MOST_BLOCKS, 0)
    width = min(block_size, CELL)
    text = f"{first} blocks ... " if first else ""
    for block in range(first, count):
        cell = ""
        for place in range(width):
            token = block * block_size + place * block_size // width
            last = block * block_size + (place + 1) * block_size // width - 1
            cell += "#" if row.query and last >= row.computed and token < end else "=" if token < end else "."
        held = str(row.blocks[block]) if block < len(row.blocks) else "past the row"
        text += f"|{cell}"[: width + 1] + f"({held})"
    return text + "|" if count else text


def table_rows(inputs: Inputs) -> str:
    """One line a row of a gathered batch: its request, and in each group the blocks that are its own."""
    tables, counts = cast(tuple[Array, ...], inputs["block_tables"]), cast(Array, inputs["num_blocks"]).data
    rows = cast(Array, inputs["idx_mapping"]).data.tolist()
    lines = []
    for number, request in enumerate(rows[:MOST_ROWS]):
        if not 0 <= request < counts.shape[1]:
            lines.append(f"{number:>4}{request:>9}  no such request")
            continue
        cells = []
        for group, table in enumerate(tables):
            width = table.shape[1]
            count = min(max(int(counts[group, request]), 0), width)
            cells.append(
                f"{_ids(table.data[request, :count])} + {width - count} unused {_ids(table.data[request, count:])}"
            )
        lines.append(f"{number:>4}{request:>9}  " + "; ".join(cells))
    return "\n".join([f"{'row':>4}{'request':>9}  blocks, group by group", *lines])


def _ids(ids: np.ndarray) -> str:
    shown = ids.tolist()
    return str(shown) if len(shown) <= MOST_BLOCKS else f"[{', '.join(map(str, shown[:MOST_BLOCKS]))}, ...]"
