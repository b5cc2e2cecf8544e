"""Laws of block tables (contracts 4.2 and 4.6) that need no second implementation.

Inputs and outputs are those of the contracts; every law speaks of inputs for which they give values, whatever numbers
without a meaning stand in device tensors. The laws of gathered tables hold with windows too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value
from oracles.contract import Relation, Values
from oracles.contracts import _block_table_gather as gather
from oracles.contracts._law_arrays import (
    Numbers,
    difference,
    first_difference,
    highest,
    one,
    part,
    several,
    shaped,
    swapped_names,
    turned_round,
)
from oracles.contracts._laws import Function, WrongShape, relation

GROUPS = ("block_tables", "out", "window_reach", "block_sizes")
WINDOW = ("num_computed_tokens", "window_reach", "block_sizes")


def _out(function: Function, inputs: Inputs) -> list[Numbers]:
    buffers, found = several(inputs, "out"), function(inputs)["out"]
    if not isinstance(found, tuple | list) or len(found) != len(buffers):
        raise WrongShape(f"out is no list of {len(buffers)} tables")
    return [shaped(f"out[{group}]", table, buffers[group].shape) for group, table in enumerate(found)]


def _with_out(inputs: Inputs, tables: Sequence[Numbers]) -> Inputs:
    buffers = several(inputs, "out")
    return {**inputs, "out": tuple(old.with_values(new) for old, new in zip(buffers, tables, strict=True))}


def _first_rows(inputs: Inputs, count: int) -> Inputs:
    return {**inputs, "idx_mapping": part(one(inputs, "idx_mapping"), 0, count)}


def _row_count(inputs: Inputs) -> int:
    return len(one(inputs, "idx_mapping").data)


def _request_count(inputs: Inputs) -> int:
    return one(inputs, "num_blocks").shape[1]


def _named(inputs: Inputs) -> list[tuple[int, int]]:
    """Rows of the batch that have a request, and the request."""
    rows = one(inputs, "idx_mapping").data.tolist()
    return [(row, request) for row, request in enumerate(rows) if 0 <= request < _request_count(inputs)]


def _used(inputs: Inputs, group: int, request: int) -> int:
    columns = several(inputs, "block_tables")[group].shape[1]
    return min(max(int(one(inputs, "num_blocks").data[group, request]), 0), columns)


def _rows_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, before = one(inputs, "idx_mapping"), _out(function, inputs)
    places = np.arange(_row_count(inputs))
    for what, order in (("reversed", places[::-1]), ("rotated", np.roll(places, 1))):
        moved = _out(function, {**inputs, "idx_mapping": rows.with_values(rows.data[order])})
        wanted = [np.concatenate([table[: len(order)][order], table[len(order) :]]) for table in before]
        problem = first_difference(f"with rows {what}", moved, wanted)
        if problem:
            return problem
    return None


def _requests_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, counts = one(inputs, "idx_mapping"), one(inputs, "num_blocks")
    moved: dict[str, Value] = {
        **inputs,
        "block_tables": tuple(table.with_values(table.data[::-1]) for table in several(inputs, "block_tables")),
        "num_blocks": counts.with_values(counts.data[:, ::-1]),
        "idx_mapping": rows.with_values(turned_round(rows.data, _request_count(inputs))),
    }
    if "num_computed_tokens" in inputs:
        computed = one(inputs, "num_computed_tokens")
        moved["num_computed_tokens"] = computed.with_values(computed.data[::-1])
    return first_difference("with requests in other slots", _out(function, moved), _out(function, inputs))


def _of_groups(inputs: Inputs, groups: Sequence[int], num_blocks: Array) -> Inputs:
    picked = {
        name: tuple(cast(tuple[Value, ...], inputs[name])[g] for g in groups) for name in GROUPS if name in inputs
    }
    return {**inputs, **picked, "num_blocks": num_blocks}


def _groups_do_not_meet(function: Function, inputs: Inputs) -> str | None:
    counts, before = one(inputs, "num_blocks"), _out(function, inputs)
    backward = range(len(before))[::-1]
    turned = _out(function, _of_groups(inputs, backward, counts.with_values(counts.data[::-1])))
    last = len(before) - 1
    alone = _out(function, _of_groups(inputs, [last], part(counts, last, last + 1)))
    return first_difference("with groups reversed", turned[::-1], before) or difference(
        f"group {last} alone", alone[0], before[last]
    )


def _names(table: Array) -> Numbers:
    return np.setdiff1d(table.data, [0])


def _blocks_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    tables, before = several(inputs, "block_tables"), _out(function, inputs)
    renamed = tuple(table.with_values(swapped_names(table.data, _names(table))) for table in tables)
    wanted = [swapped_names(found, _names(table)) for found, table in zip(before, tables, strict=True)]
    return first_difference("with other ids", _out(function, {**inputs, "block_tables": renamed}), wanted)


def _only_blocks_of_the_batch_matter(function: Function, inputs: Inputs) -> str | None:
    tables = []
    for group, table in enumerate(several(inputs, "block_tables")):
        values = ~table.data
        for _, request in _named(inputs):
            used = _used(inputs, group, request)
            values[request, :used] = table.data[request, :used]
        tables.append(table.with_values(values))
    others = _out(function, {**inputs, "block_tables": tuple(tables)})
    return first_difference("with other ids in unused columns", others, _out(function, inputs))


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    rows, buffers, cut = one(inputs, "idx_mapping"), several(inputs, "out"), _row_count(inputs) // 2
    parts = [
        {
            **inputs,
            "idx_mapping": part(rows, begin, min(end, _row_count(inputs))),
            "out": tuple(part(buffer, begin, end) for buffer in buffers),
        }
        for begin, end in ((0, cut), (cut, buffers[0].shape[0]))
    ]
    left, right = (_out(function, inputs) for inputs in parts)
    joined = [np.concatenate(pair) for pair in zip(left, right, strict=True)]
    return first_difference(f"with rows from {cut} on in a call of their own", joined, _out(function, inputs))


def _a_smaller_batch_leaks_nothing(function: Function, inputs: Inputs) -> str | None:
    whole, kept = _out(function, inputs), _row_count(inputs) // 2
    later = _out(function, _first_rows(_with_out(inputs, whole), kept))
    wanted = [np.where(np.arange(len(table))[:, None] < kept, table, 0) for table in whole]
    return first_difference(f"with {kept} rows, after a call with more", later, wanted)


def _twice_is_once(function: Function, inputs: Inputs) -> str | None:
    once = _out(function, inputs)
    return first_difference("called again", _out(function, _with_out(inputs, once)), once)


def _the_buffer_leaks_nothing(function: Function, inputs: Inputs) -> str | None:
    before = _out(function, inputs)
    for fill in (-1, 0, 1 << 30):
        filled = _with_out(inputs, [np.full(table.shape, fill) for table in before])
        problem = first_difference(f"into a buffer full of {fill}", _out(function, filled), before)
        if problem:
            return problem
    return None


def _growing(inputs: Inputs) -> Numbers:
    """Which requests can own a block more, ``[G, requests]``."""
    counts = one(inputs, "num_blocks").data
    columns = np.array([table.shape[1] for table in several(inputs, "block_tables")]).reshape(-1, 1)
    return (counts >= 0) & (counts < columns)


def _a_block_more_keeps_the_earlier(function: Function, inputs: Inputs) -> str | None:
    counts, growing, tables = one(inputs, "num_blocks"), _growing(inputs), several(inputs, "block_tables")
    grown = _out(function, {**inputs, "num_blocks": counts.with_values(counts.data + growing)})
    wanted = [table.copy() for table in _out(function, inputs)]
    reaches = cast(tuple[int, ...], inputs.get("window_reach", (0,) * len(tables)))
    for group, reach in enumerate(reaches):
        for row, request in _named(inputs):
            column = _used(inputs, group, request)
            # The new block may itself lie before the window.
            if growing[group, request] and not (reach and grown[group][row, column] == 0):
                wanted[group][row, column] = tables[group].data[request, column]
    return first_difference("with a block more", grown, wanted)


def _without_windows(inputs: Inputs) -> Inputs:
    return {**inputs, "window_reach": (0,) * len(several(inputs, "out"))}


def _no_reach_is_no_window(function: Function, inputs: Inputs) -> str | None:
    plain = gather.expected({name: value for name, value in inputs.items() if name not in WINDOW})
    assert isinstance(plain, Values)
    wanted = [np.asarray(table) for table in cast(tuple[Numbers, ...], plain.outputs["out"])]
    computed = one(inputs, "num_computed_tokens")
    all_computed = max(int(computed.data.max(initial=1)), 1)
    for what, other in (
        ("with reach 0", _without_windows(inputs)),
        ("with a reach of all tokens", {**inputs, "window_reach": (all_computed,) * len(wanted)}),
        ("with no computed tokens", {**inputs, "num_computed_tokens": computed.with_values(computed.data * 0)}),
    ):
        problem = first_difference(what, _out(function, other), wanted)
        if problem:
            return problem
    return None


def _blocks_before_the_window_are_hidden(function: Function, inputs: Inputs) -> str | None:
    computed, found = one(inputs, "num_computed_tokens").data.tolist(), _out(function, inputs)
    wanted = [table.copy() for table in _out(function, _without_windows(inputs))]
    reaches, sizes = (cast(tuple[int, ...], inputs[name]) for name in ("window_reach", "block_sizes"))
    for table, reach, size in zip(wanted, reaches, sizes, strict=True):
        ends = (np.arange(table.shape[1]) + 1) * size
        for row, request in _named(inputs):
            # No division: a block is out of the window when its last token is.
            table[row, (ends <= computed[request] - reach) & (reach > 0)] = 0
    return first_difference("beside the same without windows", found, wanted)


def _windows_move_forward(function: Function, inputs: Inputs) -> str | None:
    computed, now = one(inputs, "num_computed_tokens"), _out(function, inputs)
    reaches, sizes = (cast(tuple[int, ...], inputs[name]) for name in ("window_reach", "block_sizes"))
    for step in (1, max(sizes)):
        tokens = np.minimum(computed.data, highest(computed) - step) + step
        later = _out(function, {**inputs, "num_computed_tokens": computed.with_values(tokens)})
        still = [np.where(table == 0, 0, before) for table, before in zip(later, now, strict=True)]
        problem = first_difference(f"with {step} more computed tokens", later, still)
        if problem:
            return problem
    longer = _out(function, {**inputs, "window_reach": tuple(reach + 1 if reach else 0 for reach in reaches)})
    shown = [np.where(table == 0, 0, wide) for table, wide in zip(now, longer, strict=True)]
    return first_difference("beside a reach of one token more", now, shown)


def _lists(inputs: Inputs) -> bool:
    return bool(several(inputs, "out"))


def _some_rows(least: int) -> Callable[[Inputs], bool]:
    """Asked of inputs with groups, and with so many rows in the batch."""
    return lambda inputs: _lists(inputs) and _row_count(inputs) >= least


def _some_names(inputs: Inputs) -> bool:
    return any(len(_names(table)) > 1 for table in several(inputs, "block_tables"))


def _several_requests(inputs: Inputs) -> bool:
    return _lists(inputs) and _request_count(inputs) > 1 and bool(_named(inputs))


def _some_grow(inputs: Inputs) -> bool:
    growing = _growing(inputs)
    return any(growing[:, request].any() for _, request in _named(inputs))


def _some_look_back(inputs: Inputs) -> bool:
    return any(cast(tuple[int, ...], inputs["window_reach"])) and bool(_named(inputs))


GATHER_RELATIONS: tuple[Relation, ...] = (
    relation(
        "rows_are_free_to_move",
        "The batch's rows in another order give the same rows in that order, and the same padding.",
        _rows_are_free_to_move,
        _some_rows(2),
    ),
    relation(
        "requests_are_free_to_move",
        "Requests in other slots of the persistent tables, and the rows that name them there, give the same tables.",
        _requests_are_free_to_move,
        _several_requests,
    ),
    relation(
        "groups_do_not_meet",
        "Groups in reverse order give their tables in reverse order, and a group alone gives its own.",
        _groups_do_not_meet,
        lambda inputs: len(several(inputs, "out")) > 1,
    ),
    relation(
        "blocks_are_free_to_move",
        "Blocks with other ids give the same tables with those ids; NULL stays NULL.",
        _blocks_are_free_to_move,
        _some_names,
    ),
    relation(
        "only_blocks_of_the_batch_matter",
        "Ids in columns that their request does not use, and those of requests outside the batch, change nothing.",
        _only_blocks_of_the_batch_matter,
        _lists,
    ),
    relation(
        "parts_join",
        "Two calls on views of the first and the other rows give what one call gives.",
        _parts_join,
        _some_rows(2),
    ),
    relation(
        "a_smaller_batch_leaks_nothing",
        "The first rows alone, gathered into the result of all, are those rows, and NULL behind them.",
        _a_smaller_batch_leaks_nothing,
        _some_rows(1),
    ),
    relation("twice_is_once", "A call into the buffers that it filled changes nothing.", _twice_is_once, _lists),
    relation(
        "the_buffer_leaks_nothing",
        "What the buffers held before the call does not matter.",
        _the_buffer_leaks_nothing,
        _lists,
    ),
    relation(
        "a_block_more_keeps_the_earlier",
        "A block more for each request adds that block to its rows and leaves all other columns.",
        _a_block_more_keeps_the_earlier,
        _some_grow,
    ),
)

WINDOWED_RELATIONS: tuple[Relation, ...] = (
    *GATHER_RELATIONS,
    relation(
        "no_reach_is_no_window",
        "A reach of 0, one of all computed tokens, and no computed tokens give what contract 4.2 gives.",
        _no_reach_is_no_window,
        _lists,
    ),
    relation(
        "blocks_before_the_window_are_hidden",
        "Blocks whose last token lies before the window are NULL; all others are those without windows.",
        _blocks_before_the_window_are_hidden,
        _some_look_back,
    ),
    relation(
        "windows_move_forward",
        "More computed tokens, and a shorter reach, hide blocks and never show one.",
        _windows_move_forward,
        _some_look_back,
    ),
)
