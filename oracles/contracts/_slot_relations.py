"""Laws of slot mappings (contracts 4.3 and 4.5) that need no second implementation.

Inputs and outputs are those of the contracts; every law speaks of inputs for which they give values, whatever numbers
without a meaning stand in device tensors. Groups that are switched off have a law of their own. The laws
``ranks_cover_each_token_once`` and ``slots_lead_back`` together leave one right answer for tokens of the batch; the
others relate answers to different batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from oracles.arrays import Inputs, array
from oracles.contract import Relation, Values
from oracles.contracts import _block_table_slots as slots
from oracles.contracts._law_arrays import (
    Numbers,
    cut_smaller,
    difference,
    highest,
    number,
    one,
    refilled,
    swapped_names,
    turned_round,
)
from oracles.contracts._laws import Function, relation
from oracles.contracts._slot_steps import (
    Row,
    block_size,
    both,
    enabled,
    of_rows,
    row_count,
    rows_of,
    slots_of,
    tokens_of,
    values,
    whole,
    with_blocks_of_their_own,
    with_buffer,
    with_rows,
    with_table,
)

PAD = -1
IN_FRONT = (5, 0, 11)
"""Positions of tokens that another call handles."""


def _rows_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    found, rows, starts = slots_of(function, inputs), rows_of(inputs), values(inputs, "query_start_loc")
    pieces = [found[begin:end] for begin, end in pairwise(starts)]
    wanted = np.concatenate([found[: starts[0]], *pieces[::-1], found[starts[-1] :]])
    return difference("with rows reversed, slots", slots_of(function, with_rows(inputs, rows[::-1])), wanted)


def _requests_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, table = one(inputs, "idx_mapping"), one(inputs, "block_table")
    moved = rows.with_values(turned_round(rows.data, table.shape[0]))
    others = {**inputs, "block_table": table.with_values(table.data[::-1]), "idx_mapping": moved}
    return difference("with requests in other rows of the table, slots", *both(function, others, inputs))


def _slots_move_with_their_block(function: Function, inputs: Inputs) -> str | None:
    table, size, before = one(inputs, "block_table"), block_size(inputs), slots_of(function, inputs)
    names = np.unique(table.data)
    others = dict(zip(names.tolist(), names[::-1].tolist(), strict=True))
    moved = slots_of(function, {**inputs, "block_table": table.with_values(swapped_names(table.data, names))})
    for token, _, _ in tokens_of(inputs):
        slot = int(before[token])
        block, offset = divmod(slot, size)
        # The last token of block -1 has the number of padding.
        if slot == PAD and PAD in others:
            continue
        if slot != PAD and block not in others:
            return f"slot_mapping[{token}] is {slot}, in block {block}, which is not in the table"
        wanted = PAD if slot == PAD else others[block] * size + offset
        if moved[token] != wanted:
            return f"with other ids, slot_mapping[{token}] is {moved[token]}, {wanted} follows from the law"
    return None


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    cut, count = row_count(inputs) // 2, row_count(inputs)
    first = slots_of(function, of_rows(inputs, 0, cut))
    joined = slots_of(function, with_buffer(of_rows(inputs, cut, count), first))
    return difference(f"with rows from {cut} on in a call of their own, slots", joined, slots_of(function, inputs))


def _a_smaller_batch_leaks_nothing(function: Function, inputs: Inputs) -> str | None:
    before, kept = slots_of(function, inputs), row_count(inputs) // 2
    later = slots_of(function, with_buffer(of_rows(inputs, 0, kept), before))
    end = min(values(inputs, "query_start_loc")[kept], one(inputs, "positions").data.size)
    wanted = np.where(np.arange(len(before)) < end, before, PAD)
    return difference(f"with {kept} rows, after a call with more, slots", later, wanted)


def _twice_is_once(function: Function, inputs: Inputs) -> str | None:
    once = slots_of(function, inputs)
    return difference("called again, slots", slots_of(function, with_buffer(inputs, once)), once)


def _only_the_tokens_in_front_are_kept(function: Function, inputs: Inputs) -> str | None:
    before, buffer = slots_of(function, inputs), one(inputs, "slot_mapping").data
    front = np.arange(len(buffer)) < min(values(inputs, "query_start_loc")[0], one(inputs, "positions").data.size)
    for fill in (PAD, 0, 1 << 40):
        filled = slots_of(function, with_buffer(inputs, np.full(buffer.shape, fill)))
        problem = difference(f"into a buffer full of {fill}, slots", filled, np.where(front, fill, before))
        if problem:
            return problem
    return difference("slots", before, np.where(front, buffer, before))


def _tokens_in_front_only_shift(function: Function, inputs: Inputs) -> str | None:
    more, buffer = len(IN_FRONT), one(inputs, "slot_mapping")
    starts, positions = one(inputs, "query_start_loc"), one(inputs, "positions")
    shifted = {
        **inputs,
        "query_start_loc": starts.with_values(starts.data + more),
        "positions": refilled(positions, [*IN_FRONT, *positions.data.tolist()]),
        "slot_mapping": refilled(buffer, [*IN_FRONT, *buffer.data.tolist()]),
    }
    wanted = np.concatenate([np.array(IN_FRONT), slots_of(function, inputs)])
    return difference(f"with {more} tokens of another call in front, slots", slots_of(function, shifted), wanted)


def _a_cut_row_keeps_its_slots(function: Function, inputs: Inputs) -> str | None:
    rows = rows_of(inputs)
    at = max(range(len(rows)), key=lambda n: len(rows[n].positions))
    (request, positions), middle = rows[at], len(rows[at].positions) // 2
    pieces = [Row(request, positions[:middle]), Row(request, positions[middle:])]
    steps = with_rows(inputs, [*rows[:at], *pieces, *rows[at + 1 :]])
    return difference(f"with row {at} cut in two steps, slots", *both(function, steps, inputs))


def _one_more_token_keeps_the_earlier(function: Function, inputs: Inputs) -> str | None:
    rows, end = rows_of(inputs), values(inputs, "query_start_loc")[-1]
    request, positions = rows[-1]
    following = positions[-1] + 1 if positions and positions[-1] < highest(one(inputs, "positions")) else 0
    longer = slots_of(function, with_rows(inputs, [*rows[:-1], Row(request, [*positions, following])]))
    alone = {
        **inputs,
        "idx_mapping": refilled(one(inputs, "idx_mapping"), [request]),
        "query_start_loc": refilled(one(inputs, "query_start_loc"), [0, 1]),
        "positions": refilled(one(inputs, "positions"), [following]),
        "slot_mapping": array([7], "int64"),
    }
    wanted = np.full(longer.shape, PAD)
    wanted[:end], wanted[end] = slots_of(function, inputs)[:end], slots_of(function, alone)[0]
    return difference("with one more token in the last row, slots", longer, wanted)


def _ranks_cover_each_token_once(function: Function, inputs: Inputs) -> str | None:
    own = (number(inputs, "cp_size"), number(inputs, "cp_interleave"))
    # One interleaved token fits every block size.
    for cp_size, interleave in sorted({own, (1, 1), (2, 1)}):
        split = {**with_blocks_of_their_own(inputs), "cp_size": cp_size, "cp_interleave": interleave}
        ranks = [slots_of(function, {**split, "cp_rank": rank}) for rank in range(cp_size)]
        problem = _not_covered(split, ranks) or _shared_slot(split, ranks)
        if problem:
            return f"with {cp_size} ranks, {interleave} tokens in turn: {problem}"
    return None


def _not_covered(inputs: Inputs, ranks: Sequence[Numbers]) -> str | None:
    requests, columns = one(inputs, "block_table").shape
    block, held = number(inputs, "block_size"), columns * block_size(inputs)
    for token, request, position in tokens_of(inputs):
        owners = sum(int(given[token]) != PAD for given in ranks)
        blocks = position // (block * len(ranks))
        nowhere = not 0 <= request < requests or position < 0 or blocks >= -(-held // block)
        if owners > 1 or (nowhere and owners) or (not nowhere and blocks < held // block and not owners):
            return f"token {token}, position {position} of request {request}, has a slot on {owners} ranks"
    return None


def _shared_slot(inputs: Inputs, ranks: Sequence[Numbers]) -> str | None:
    for rank, given in enumerate(ranks):
        taken: dict[int, tuple[int, int]] = {}
        for token, request, position in tokens_of(inputs):
            slot = int(given[token])
            if slot != PAD and taken.setdefault(slot, (request, position)) != (request, position):
                one_token, other = taken[slot], (request, position)
                return f"slot {slot} of rank {rank} belongs to {one_token} and {other}, request and position"
    return None


def _slots_lead_back(function: Function, inputs: Inputs) -> str | None:
    size, block = block_size(inputs), number(inputs, "block_size")
    ranks, rank, interleave = (number(inputs, name) for name in ("cp_size", "cp_rank", "cp_interleave"))
    requests, columns = one(inputs, "block_table").shape
    found = slots_of(function, with_blocks_of_their_own(inputs))
    for token, request, position in tokens_of(inputs):
        slot = int(found[token])
        if slot == PAD:
            continue
        place, offset = slot // size - 1, slot % size
        if not 0 <= place < requests * columns:
            return f"slot_mapping[{token}] is {slot}, in no block of the table"
        held, here = divmod(place % columns * size + offset, block)
        turn, rest = divmod(here, interleave)
        back = held * block * ranks + (turn * ranks + rank) * interleave + rest
        if (place // columns, back) != (request, position):
            return (
                f"slot_mapping[{token}] is {slot}, which is position {back} of request {place // columns}, "
                f"not position {position} of request {request}"
            )
    return None


def _a_block_in_front_moves_positions(function: Function, inputs: Inputs) -> str | None:
    table, positions = one(inputs, "block_table"), one(inputs, "positions")
    columns = number(inputs, "block_size") // block_size(inputs)
    front = np.full((table.shape[0], columns), 3, np.int32)
    shift = number(inputs, "block_size") * number(inputs, "cp_size")
    moved = {
        **with_table(inputs, np.concatenate([front, table.data], axis=1)),
        "positions": positions.with_values(np.where(positions.data < 0, positions.data, positions.data + shift)),
    }
    return difference(f"with {shift} tokens in front of each request, slots", *both(function, moved, inputs))


def _smaller_blocks_keep_slots(function: Function, inputs: Inputs) -> str | None:
    size, parts = block_size(inputs), _smallest_factor(block_size(inputs))
    name = "kernel_block_size" if "kernel_block_size" in inputs else "block_size"
    smaller = with_table(inputs, cut_smaller(one(inputs, "block_table").data, parts))
    cut = {**smaller, name: size // parts}
    return difference(f"with each block cut into {parts}, slots", *both(function, cut, inputs))


def _smallest_factor(size: int) -> int:
    return next((factor for factor in range(2, size + 1) if size % factor == 0), 1)


def _alone_the_interleave_is_idle(function: Function, inputs: Inputs) -> str | None:
    other = {**inputs, "cp_interleave": number(inputs, "cp_interleave") + 6}
    return difference("with another interleave and one rank, slots", *both(function, other, inputs))


def _own_blocks_are_plain(function: Function, inputs: Inputs) -> str | None:
    size = number(inputs, "block_size")
    plain = slots.expected({name: inputs[name] for name in inputs if name not in ("kernel_block_size", "enabled")})
    assert isinstance(plain, Values)
    wanted = np.asarray(plain.outputs["slot_mapping"])
    return difference("beside contract 4.3, slots", slots_of(function, {**inputs, "kernel_block_size": size}), wanted)


def _switched_off_is_padding(function: Function, inputs: Inputs) -> str | None:
    off = slots_of(function, {**inputs, "enabled": False})
    return difference("switched off, slots", off, np.full(off.shape, PAD))


def _several_rows(inputs: Inputs) -> bool:
    return enabled(inputs) and row_count(inputs) > 1


def _several_requests(inputs: Inputs) -> bool:
    requests = one(inputs, "block_table").shape[0]
    return enabled(inputs) and requests > 1 and any(0 <= row < requests for row in values(inputs, "idx_mapping"))


def _has_tokens(inputs: Inputs) -> bool:
    return enabled(inputs) and bool(tokens_of(inputs))


def _several_blocks(inputs: Inputs) -> bool:
    return _has_tokens(inputs) and len(np.unique(one(inputs, "block_table").data)) > 1


def _can_be_cut(inputs: Inputs) -> bool:
    return whole(inputs) and any(len(row.positions) > 1 for row in rows_of(inputs))


def _blocks_line_up(inputs: Inputs) -> bool:
    """Whether a whole block can be put in front, and all positions still fit their dtype."""
    positions, block = one(inputs, "positions"), number(inputs, "block_size")
    room = highest(positions) - block * number(inputs, "cp_size")
    return _has_tokens(inputs) and block % block_size(inputs) == 0 and int(positions.data.max()) <= room


def _blocks_can_be_smaller(inputs: Inputs) -> bool:
    table, parts = one(inputs, "block_table").data.astype(np.int64), _smallest_factor(block_size(inputs))
    # Without a kernel block size of its own, smaller blocks belong to other ranks.
    same_owner = "kernel_block_size" in inputs or number(inputs, "cp_size") == 1
    fits = not table.size or ((int(table.max()) + 1) * parts <= 1 << 31 and int(table.min()) * parts >= -(1 << 31))
    return _has_tokens(inputs) and parts > 1 and same_owner and fits


RELATIONS: tuple[Relation, ...] = (
    relation(
        "rows_are_free_to_move",
        "Rows in reverse order, with their tokens, have the slots they had.",
        _rows_are_free_to_move,
        lambda inputs: whole(inputs) and row_count(inputs) > 1,
    ),
    relation(
        "requests_are_free_to_move",
        "Requests in other rows of the table, and batch rows that name them there, have the same slots.",
        _requests_are_free_to_move,
        _several_requests,
    ),
    relation(
        "slots_move_with_their_block",
        "Blocks with other ids take their slots along, at the same place in the block.",
        _slots_move_with_their_block,
        _several_blocks,
    ),
    relation(
        "parts_join",
        "Two calls on views of the first and the other rows, into one buffer, give what one call gives.",
        _parts_join,
        _several_rows,
    ),
    relation(
        "a_smaller_batch_leaks_nothing",
        "The first rows alone, after a call with all, have the slots they had, and padding behind them.",
        _a_smaller_batch_leaks_nothing,
        lambda inputs: enabled(inputs) and row_count(inputs) > 0,
    ),
    relation("twice_is_once", "A call into the buffer that it filled changes nothing.", _twice_is_once),
    relation(
        "only_the_tokens_in_front_are_kept",
        "Elements before the first start are the buffer's; nothing else depends on the buffer.",
        _only_the_tokens_in_front_are_kept,
        enabled,
    ),
    relation(
        "tokens_in_front_only_shift",
        "Tokens of another call in front keep their elements, and the slots lie behind them.",
        _tokens_in_front_only_shift,
        whole,
    ),
    relation(
        "a_cut_row_keeps_its_slots",
        "A row cut into two steps of one request keeps its slots.",
        _a_cut_row_keeps_its_slots,
        _can_be_cut,
    ),
    relation(
        "one_more_token_keeps_the_earlier",
        "One more token in the last row gets the slot that it has in a step of its own, and no other slot changes.",
        _one_more_token_keeps_the_earlier,
        lambda inputs: whole(inputs) and row_count(inputs) > 0,
    ),
    relation(
        "ranks_cover_each_token_once",
        "Where every column has a block of its own, each token that the table holds has a slot on one rank, and no "
        "two tokens share one.",
        _ranks_cover_each_token_once,
        _has_tokens,
    ),
    relation(
        "slots_lead_back",
        "Where every column has a block of its own, a slot leads back to its request and position.",
        _slots_lead_back,
        _has_tokens,
    ),
    relation(
        "a_block_in_front_moves_positions",
        "One more block in front of each request, and positions that count it, change nothing.",
        _a_block_in_front_moves_positions,
        _blocks_line_up,
    ),
    relation(
        "smaller_blocks_keep_slots",
        "Blocks of the table cut into smaller ones, numbered on, give the same slots.",
        _smaller_blocks_keep_slots,
        _blocks_can_be_smaller,
    ),
    relation(
        "alone_the_interleave_is_idle",
        "With one rank the interleave changes nothing.",
        _alone_the_interleave_is_idle,
        lambda inputs: enabled(inputs) and number(inputs, "cp_size") == 1,
    ),
)

HYBRID_RELATIONS: tuple[Relation, ...] = (
    *RELATIONS,
    relation(
        "own_blocks_are_plain",
        "With the KV-cache manager's block size as the kernel's, slots are those of contract 4.3.",
        _own_blocks_are_plain,
        enabled,
    ),
    relation(
        "switched_off_is_padding",
        "A group that is switched off has padding only.",
        _switched_off_is_padding,
    ),
)
