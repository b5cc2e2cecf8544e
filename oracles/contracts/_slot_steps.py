"""A step of contracts 4.3 and 4.5 as laws see it: its rows and tokens, and the same step with other ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oracles.arrays import Inputs
from oracles.contracts._law_arrays import Numbers, number, one, part, refilled, shaped
from oracles.contracts._laws import Function


class Row(NamedTuple):
    """One row of the batch: its request, and the positions of its tokens."""

    request: int
    positions: list[int]


def slots_of(function: Function, inputs: Inputs) -> Numbers:
    """What a function leaves in the buffer. Refused with ``WrongShape``: another shape than the buffer's."""
    return shaped("slot_mapping", function(inputs)["slot_mapping"], one(inputs, "slot_mapping").shape)


def both(function: Function, inputs: Inputs, others: Inputs) -> tuple[Numbers, Numbers]:
    """The slots of two inputs that must have the same."""
    return slots_of(function, inputs), slots_of(function, others)


def values(inputs: Inputs, name: str) -> list[int]:
    """A tensor of one dimension as Python ints."""
    found: list[int] = one(inputs, name).data.tolist()
    return found


def block_size(inputs: Inputs) -> int:
    """Tokens a block of the table."""
    return number(inputs, "kernel_block_size" if "kernel_block_size" in inputs else "block_size")


def enabled(inputs: Inputs) -> bool:
    """Whether the group is not switched off; contract 4.3 has no switch."""
    return inputs.get("enabled") is not False


def whole(inputs: Inputs) -> bool:
    """Whether all tokens of all rows exist."""
    return enabled(inputs) and values(inputs, "query_start_loc")[-1] <= one(inputs, "positions").data.size


def rows_of(inputs: Inputs) -> list[Row]:
    """The rows of a step of which all tokens exist."""
    starts, positions = values(inputs, "query_start_loc"), values(inputs, "positions")
    requests = values(inputs, "idx_mapping")
    return [Row(request, positions[starts[n] : starts[n + 1]]) for n, request in enumerate(requests)]


def with_rows(inputs: Inputs, rows: Sequence[Row]) -> Inputs:
    """The same step with other rows: the tokens before and behind them stay, and the buffer grows with them."""
    starts, positions = values(inputs, "query_start_loc"), values(inputs, "positions")
    tokens = positions[: starts[0]] + [p for row in rows for p in row.positions] + positions[starts[-1] :]
    buffer = one(inputs, "slot_mapping")
    ends = np.cumsum([starts[0], *(len(row.positions) for row in rows)])
    return {
        **inputs,
        "idx_mapping": refilled(one(inputs, "idx_mapping"), [row.request for row in rows]),
        "query_start_loc": refilled(one(inputs, "query_start_loc"), ends),
        "positions": refilled(one(inputs, "positions"), tokens),
        "slot_mapping": refilled(buffer, np.resize(buffer.data, buffer.data.size + len(tokens) - len(positions))),
    }


def with_table(inputs: Inputs, ids: Numbers) -> Inputs:
    """The same step through another table of as many requests."""
    return {**inputs, "block_table": refilled(one(inputs, "block_table"), ids)}


def with_blocks_of_their_own(inputs: Inputs) -> Inputs:
    """The same step where every place of the table has a block of its own: the place's number, from one on."""
    rows, columns = one(inputs, "block_table").shape
    return with_table(inputs, np.arange(1, rows * columns + 1).reshape(rows, columns))


def with_buffer(inputs: Inputs, held: Numbers) -> Inputs:
    """The same step into a buffer that holds something else."""
    return {**inputs, "slot_mapping": one(inputs, "slot_mapping").with_values(held)}


def of_rows(inputs: Inputs, begin: int, end: int) -> Inputs:
    """Views of the tensors of rows ``begin`` to ``end``; tokens and buffer are whole."""
    rows, starts = one(inputs, "idx_mapping"), one(inputs, "query_start_loc")
    return {**inputs, "idx_mapping": part(rows, begin, end), "query_start_loc": part(starts, begin, end + 1)}


def row_count(inputs: Inputs) -> int:
    """Rows of the batch."""
    return len(one(inputs, "idx_mapping").data)


def tokens_of(inputs: Inputs) -> list[tuple[int, int, int]]:
    """Token, request and position of all tokens of rows, as far as the tokens exist."""
    starts, positions = values(inputs, "query_start_loc"), values(inputs, "positions")
    return [
        (token, request, positions[token])
        for row, request in enumerate(values(inputs, "idx_mapping"))
        for token in range(starts[row], min(starts[row + 1], len(positions)))
    ]
