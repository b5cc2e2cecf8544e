"""Laws of state columns (contract 3.1) that need no second implementation.

Inputs and outputs are those of the contract; every law speaks of inputs for which they give values, whatever numbers
without a meaning stand in device tensors. The laws ``one_prefix_in_mode_none`` and ``columns_lead_back``
together leave one right answer; the others relate answers to different batches.
"""

from __future__ import annotations

import numpy as np

from oracles.arrays import Array, Inputs, Value
from oracles.contract import Relation
from oracles.contracts._law_arrays import (
    Numbers,
    difference,
    highest,
    number,
    one,
    part,
    refilled,
    shaped,
    swapped_names,
)
from oracles.contracts._laws import Function, relation

LOWEST = (1, 0, -1, -5)
"""Lengths that end in the first block, whatever its size."""


def _columns(function: Function, inputs: Inputs) -> Numbers:
    shape = (_row_count(inputs), 1 + number(inputs, "num_speculative_blocks"))
    return shaped("state_indices", function(inputs)["state_indices"], shape)


def _row_count(inputs: Inputs) -> int:
    return one(inputs, "block_table").shape[0]


def _aligned(inputs: Inputs) -> bool:
    return inputs["mamba_cache_mode"] != "none" and _row_count(inputs) > 0


def _with(inputs: Inputs, table: Array | None = None, lengths: Array | None = None, **others: Value) -> Inputs:
    moved: dict[str, Value] = {} if table is None else {"block_table": table}
    if lengths is not None:
        moved["seq_lens"] = lengths
    return {**inputs, **moved, **others}


def _lengths(inputs: Inputs) -> Numbers:
    """What counts of the lengths: the shortest ones are one token; int64, so that sums of them fit."""
    return np.maximum(one(inputs, "seq_lens").data.astype(np.int64), 1)


def _rows_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    table, lengths, before = one(inputs, "block_table"), one(inputs, "seq_lens"), _columns(function, inputs)
    places = np.arange(_row_count(inputs))
    for what, order in (("reversed", places[::-1]), ("rotated", np.roll(places, 1))):
        moved = _with(inputs, table.with_values(table.data[order]), lengths.with_values(lengths.data[order]))
        problem = difference(f"with rows {what}, state_indices", _columns(function, moved), before[order])
        if problem:
            return problem
    return None


def _blocks_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    table, before = one(inputs, "block_table"), _columns(function, inputs)
    names = np.setdiff1d(table.data, [0])
    moved = _columns(function, _with(inputs, table.with_values(swapped_names(table.data, names))))
    return difference("with other ids, state_indices", moved, swapped_names(before, names))


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    table, lengths, count = one(inputs, "block_table"), one(inputs, "seq_lens"), _row_count(inputs)
    cut = count // 2
    pieces = [
        _columns(function, _with(inputs, part(table, begin, end), part(lengths, begin, end)))
        for begin, end in ((0, cut), (cut, count))
    ]
    what = f"with rows from {cut} on in a call of their own, state_indices"
    return difference(what, np.concatenate(pieces), _columns(function, inputs))


def _fewer_blocks_are_a_prefix(function: Function, inputs: Inputs) -> str | None:
    blocks, before = number(inputs, "num_speculative_blocks"), _columns(function, inputs)
    for fewer in sorted({0, blocks - 1}):
        found = _columns(function, {**inputs, "num_speculative_blocks": fewer})
        problem = difference(f"with {fewer} speculative blocks, state_indices", found, before[:, : 1 + fewer])
        if problem:
            return problem
    return None


def _null_columns_behind_are_idle(function: Function, inputs: Inputs) -> str | None:
    table = one(inputs, "block_table")
    wider = np.concatenate([table.data, np.zeros((_row_count(inputs), 3), np.int32)], axis=1)
    moved = _with(inputs, refilled(table, wider))
    return difference("with NULL columns behind, state_indices", _columns(function, moved), _columns(function, inputs))


def _one_prefix_in_mode_none(function: Function, inputs: Inputs) -> str | None:
    table, lengths = one(inputs, "block_table"), one(inputs, "seq_lens")
    more = max(1 + number(inputs, "num_speculative_blocks") - table.shape[1], 0)
    wide = refilled(table, np.concatenate([table.data, np.zeros((_row_count(inputs), more), np.int32)], axis=1))
    prefix = _columns(function, _with(inputs, wide, mamba_cache_mode="none"))
    problem = difference("in mode none, state_indices", prefix, wide.data[:, : prefix.shape[1]])
    if problem:
        return problem
    longest = min(number(inputs, "block_size"), highest(lengths))
    short = lengths.with_values(np.minimum(lengths.data, longest))
    for mode in ("align", "all"):
        found = _columns(function, _with(inputs, lengths=short, mamba_cache_mode=mode))
        problem = difference(f"in mode {mode}, of lengths in the first block, state_indices", found, prefix)
        if problem:
            return problem
    return None


def _two_modes_are_one(function: Function, inputs: Inputs) -> str | None:
    found = [_columns(function, {**inputs, "mamba_cache_mode": mode}) for mode in ("all", "align")]
    return difference("in mode all, state_indices", *found)


def _lengths_below_one_are_one(function: Function, inputs: Inputs) -> str | None:
    lengths, first = one(inputs, "seq_lens"), None
    for length in LOWEST:
        short = lengths.with_values(np.where(lengths.data <= 1, length, lengths.data))
        found = _columns(function, _with(inputs, lengths=short))
        first = found if first is None else first
        problem = difference(f"with {length} for the shortest lengths, state_indices", found, first)
        if problem:
            return problem
    return None


def _a_token_more_moves_on_at_a_boundary(function: Function, inputs: Inputs) -> str | None:
    lengths, before = one(inputs, "seq_lens"), _columns(function, inputs)
    longer = np.where(lengths.data == highest(lengths), lengths.data, lengths.data + 1)
    after = _columns(function, _with(inputs, lengths=lengths.with_values(longer)))
    full = (longer != lengths.data) & (lengths.data > 0) & (_lengths(inputs) % number(inputs, "block_size") == 0)
    if inputs["mamba_cache_mode"] == "none":
        full = np.zeros_like(full)
    problem = difference("with a token more in a block, state_indices", after[~full], before[~full])
    return problem or difference(
        "with a token more in a new block, state_indices, the last column apart",
        after[full][:, :-1],
        before[full][:, 1:],
    )


def _a_block_in_front_moves_on(function: Function, inputs: Inputs) -> str | None:
    table, lengths = one(inputs, "block_table"), one(inputs, "seq_lens")
    front = np.full((_row_count(inputs), 1), 3, np.int32)
    moved = _with(
        inputs,
        refilled(table, np.concatenate([front, table.data], axis=1)),
        lengths.with_values(_lengths(inputs) + number(inputs, "block_size")),
    )
    return difference("with a block in front, state_indices", _columns(function, moved), _columns(function, inputs))


def _blocks_of_one_token_count_blocks(function: Function, inputs: Inputs) -> str | None:
    lengths, size = one(inputs, "seq_lens"), number(inputs, "block_size")
    counts = lengths.with_values((_lengths(inputs) - 1) // size + 1)
    found = _columns(function, _with(inputs, lengths=counts, block_size=1))
    return difference("with blocks for tokens, state_indices", found, _columns(function, inputs))


def _columns_lead_back(function: Function, inputs: Inputs) -> str | None:
    table, size = one(inputs, "block_table"), number(inputs, "block_size")
    rows, width = table.shape
    own = table.with_values(np.arange(1, rows * width + 1).reshape(rows, width))
    found = _columns(function, _with(inputs, own))
    for row, length in enumerate(_lengths(inputs).tolist()):
        for place, block in enumerate(found[row].tolist()):
            # Moved back by the speculative blocks in front of it, the column's block has to hold the last token.
            owner, column = divmod(block - 1, width) if width else (-1, 0)
            begin = (column - place) * size
            past = (width - place) * size < length
            if (block == 0 and not past) or (block != 0 and (owner != row or not begin < length <= begin + size)):
                return f"state_indices[{row}, {place}] is column {column} of row {owner}, for {length} tokens"
    return None


def _room_for_a_block(inputs: Inputs) -> bool:
    lengths = _lengths(inputs)
    return _aligned(inputs) and int(lengths.max()) <= highest(one(inputs, "seq_lens")) - number(inputs, "block_size")


def _known_blocks(inputs: Inputs) -> bool:
    return len(np.setdiff1d(one(inputs, "block_table").data, [0])) > 1


def _has_rows(inputs: Inputs) -> bool:
    return _row_count(inputs) > 0


def _several(inputs: Inputs) -> bool:
    return _row_count(inputs) > 1


COLUMNS_RELATIONS: tuple[Relation, ...] = (
    relation(
        "rows_are_free_to_move",
        "Requests in another order, with their rows of the table, have the columns they had.",
        _rows_are_free_to_move,
        _several,
    ),
    relation(
        "blocks_are_free_to_move",
        "Blocks with other ids are found in the same places; NULL stays NULL.",
        _blocks_are_free_to_move,
        _known_blocks,
    ),
    relation(
        "parts_join",
        "Two calls on views of the first and the other rows give what one call gives.",
        _parts_join,
        _several,
    ),
    relation(
        "fewer_blocks_are_a_prefix",
        "With fewer speculative blocks there are fewer columns, the first ones.",
        _fewer_blocks_are_a_prefix,
        lambda inputs: _has_rows(inputs) and number(inputs, "num_speculative_blocks") > 0,
    ),
    relation(
        "null_columns_behind_are_idle",
        "NULL columns behind all others of the table change nothing.",
        _null_columns_behind_are_idle,
        _has_rows,
    ),
    relation(
        "one_prefix_in_mode_none",
        "Mode none has the first columns, and so have the others for lengths that the first block holds.",
        _one_prefix_in_mode_none,
        _has_rows,
    ),
    relation("two_modes_are_one", "Modes align and all have the same columns.", _two_modes_are_one, _aligned),
    relation(
        "lengths_below_one_are_one",
        "Lengths of no token, or of fewer, have the columns of one token.",
        _lengths_below_one_are_one,
        _has_rows,
    ),
    relation(
        "a_token_more_moves_on_at_a_boundary",
        "With a token more, columns move on by one where the last block was full; in mode none they never do.",
        _a_token_more_moves_on_at_a_boundary,
        _has_rows,
    ),
    relation(
        "a_block_in_front_moves_on",
        "One more block in front of each request, and lengths that count it, change nothing.",
        _a_block_in_front_moves_on,
        _room_for_a_block,
    ),
    relation(
        "blocks_of_one_token_count_blocks",
        "Blocks of one token, and lengths in blocks, change nothing.",
        _blocks_of_one_token_count_blocks,
        _aligned,
    ),
    relation(
        "columns_lead_back",
        "Where every block of the table is another one, the first column leads back to the block of the last token, "
        "the next ones to those behind it; NULL stands for blocks that the row has not.",
        _columns_lead_back,
        _aligned,
    ),
)
