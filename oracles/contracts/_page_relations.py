"""Laws of page indices (contracts 2.2 and 2.3) that need no second implementation.

Inputs and outputs are those of the contracts; every law speaks of inputs for which they give values, whatever numbers
without a meaning stand in device tensors. The law ``slots_lead_back`` leaves one right answer for the elements of the
queries; the two contracts also answer for each other, where a query asks for all tokens.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from oracles.arrays import Inputs, Value, array
from oracles.contract import Relation, Values
from oracles.contracts import _page_indices as pages
from oracles.contracts._law_arrays import (
    Numbers,
    difference,
    one,
    part,
    refilled,
    turned_round,
)
from oracles.contracts._laws import Function, relation
from oracles.contracts._page_steps import (
    PAD,
    block_size,
    expanded,
    fits,
    into,
    moved_along,
    renamed,
    slots_of,
    small_table,
    stride_of,
)

TAIL = 2
"""Columns of newest tokens beside those that top-k picked."""


def _starts(inputs: Inputs) -> list[int]:
    found: list[int] = one(inputs, "paged_kv_indptr").data.tolist()
    return found


def _owned(inputs: Inputs) -> slice:
    """The elements that queries own."""
    starts = _starts(inputs)
    return slice(starts[0], starts[-1])


def _row_starts(lengths: object) -> Numbers:
    return np.cumsum([0, *np.asarray(lengths).tolist()])


def _with_queries(inputs: Inputs, tokens: Numbers, lengths: object, rows: Numbers | None = None) -> Inputs:
    """The same table asked for other tokens, into a buffer from element 0 on that just holds them."""
    starts = _row_starts(lengths)
    held = one(inputs, "req_id_per_token").data if rows is None else rows
    return {
        **inputs,
        "req_id_per_token": refilled(one(inputs, "req_id_per_token"), held),
        "topk_indices": array(tokens, one(inputs, "topk_indices").dtype),
        "paged_kv_indptr": refilled(one(inputs, "paged_kv_indptr"), starts),
        "paged_kv_indices": refilled(one(inputs, "paged_kv_indices"), np.arange(starts[-1]) % 89 + 7),
    }


def _all_columns(function: Function, inputs: Inputs, tokens: Numbers) -> Numbers:
    """The slots of all columns of other tokens, ``[T, K]``."""
    count, width = tokens.shape
    return slots_of(function, _with_queries(inputs, tokens, [width] * count)).reshape(count, width)


def _requests_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, table = one(inputs, "req_id_per_token"), one(inputs, "block_table")
    moved = {
        **inputs,
        "block_table": table.with_values(table.data[::-1]),
        "req_id_per_token": rows.with_values(turned_round(rows.data, table.shape[0])),
    }
    what = "with requests in other rows of the table, slots"
    return difference(what, slots_of(function, moved), slots_of(function, inputs))


def _queries_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, tokens, starts = (one(inputs, n) for n in ("req_id_per_token", "topk_indices", "paged_kv_indptr"))
    begins, before = _starts(inputs), slots_of(function, inputs)
    turned = begins[0] + _row_starts(np.diff(starts.data)[::-1])
    moved = {
        **inputs,
        "req_id_per_token": rows.with_values(rows.data[::-1]),
        "topk_indices": tokens.with_values(tokens.data[::-1]),
        "paged_kv_indptr": starts.with_values(turned),
    }
    pieces = [before[begin:end] for begin, end in pairwise(begins)]
    wanted = np.concatenate([before[: begins[0]], *pieces[::-1], before[begins[-1] :]])
    return difference("with queries reversed, slots", slots_of(function, moved), wanted)


def _columns_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    tokens = one(inputs, "topk_indices").data
    turned = _all_columns(function, inputs, tokens[:, ::-1])
    return difference("with columns reversed, slots", turned, _all_columns(function, inputs, tokens)[:, ::-1])


def _slots_move_with_their_block(function: Function, inputs: Inputs) -> str | None:
    wanted, own = slots_of(function, inputs).astype(np.int64), _owned(inputs)
    wanted[own] = moved_along(inputs, wanted[own])
    return difference("with other ids, slots", slots_of(function, renamed(inputs)), wanted)


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    count = one(inputs, "req_id_per_token").data.size
    cut, found = count // 2, one(inputs, "paged_kv_indices").data
    for begin, end in ((0, cut), (cut, count)):
        views = {name: part(one(inputs, name), begin, end) for name in ("req_id_per_token", "topk_indices")}
        views["paged_kv_indptr"] = part(one(inputs, "paged_kv_indptr"), begin, end + 1)
        found = slots_of(function, {**into(inputs, found), **views})
    return difference(f"with queries from {cut} on in a call of their own, slots", found, slots_of(function, inputs))


def _twice_is_once(function: Function, inputs: Inputs) -> str | None:
    once = slots_of(function, inputs)
    return difference("called again, slots", slots_of(function, into(inputs, once)), once)


def _only_elements_of_queries_change(function: Function, inputs: Inputs) -> str | None:
    before, buffer = slots_of(function, inputs), one(inputs, "paged_kv_indices").data
    own = np.zeros(buffer.shape, bool)
    own[_owned(inputs)] = True
    for fill in (PAD, 0, 1 << 30):
        filled = slots_of(function, into(inputs, np.full(buffer.shape, fill)))
        problem = difference(f"into a buffer full of {fill}, slots", filled, np.where(own, before, fill))
        if problem:
            return problem
    return difference("slots", before, np.where(own, before, buffer))


def _pages_of_one_token_keep_slots(function: Function, inputs: Inputs) -> str | None:
    single = {**inputs, "block_table": array(expanded(inputs), "int32"), "block_size": 1, "block_stride": 1}
    return difference("with pages of one token, slots", slots_of(function, single), slots_of(function, inputs))


def _a_wider_stride_spreads_blocks(function: Function, inputs: Inputs) -> str | None:
    before, stride, own = slots_of(function, inputs).astype(np.int64), stride_of(inputs), _owned(inputs)
    wanted = before.copy()
    wanted[own] = np.where(before[own] == PAD, PAD, before[own] + 5 * (before[own] // stride))
    wider = slots_of(function, {**inputs, "block_stride": stride + 5})
    return difference("with blocks five slots farther apart, slots", wider, wanted)


def _longer_rows_keep_the_earlier(function: Function, inputs: Inputs) -> str | None:
    tokens = one(inputs, "topk_indices").data
    count, width = tokens.shape
    whole = _all_columns(function, inputs, tokens)
    for entries in (width - 1, width + 3):
        asked = _with_queries(inputs, tokens, [entries] * count)
        wanted = np.full((count, entries), PAD)
        wanted[:, :width] = whole[:, :entries]
        found = slots_of(function, asked).reshape(count, entries)
        problem = difference(f"with {entries} entries a query, slots", found, wanted)
        if problem:
            return problem
    return None


def _fitted(tokens: Numbers, tail: Numbers) -> tuple[Numbers, Numbers]:
    """Rows of ``K`` picked tokens and some newest ones in ``K`` columns: the tokens, and the column of each.

    The newest ones have precedence; of those that top-k picked, the last ones give way.
    """
    count, width = tokens.shape
    fitted, columns = np.full((count, width), PAD, np.int64), np.full((count, width), PAD)
    for row in range(count):
        picked, newest = int((tokens[row] >= 0).sum()), int((tail[row] >= 0).sum())
        kept = min(picked, width - newest)
        order = [*range(kept), *range(width, width + newest)]
        columns[row, : len(order)] = order
        fitted[row, : len(order)] = np.concatenate([tokens[row], tail[row]])[order]
    return fitted, columns


def _fitted_rows_keep_their_slots(function: Function, inputs: Inputs) -> str | None:
    asked = one(inputs, "topk_indices").data.astype(np.int64)
    count, width = asked.shape
    # Picked tokens stand in front, as AITER's layout has them, and the newest ones behind all columns.
    order = np.argsort(asked < 0, axis=1, kind="stable")
    tokens = np.take_along_axis(asked, order, axis=1)
    newest = np.minimum(np.arange(count) % (TAIL + 1), width)[:, None]
    tail = np.where(np.arange(TAIL) < newest, np.arange(TAIL) + np.arange(count)[:, None], PAD)
    wide = _all_columns(function, inputs, np.concatenate([tokens, tail], axis=1))
    fitted, columns = _fitted(tokens, tail)
    wanted = np.where(columns == PAD, PAD, np.take_along_axis(wide, np.maximum(columns, 0), axis=1))
    return difference("fitted to AITER's columns, slots", _all_columns(function, inputs, fitted), wanted)


def _slots_lead_back(function: Function, inputs: Inputs) -> str | None:
    table, asked = one(inputs, "block_table"), one(inputs, "topk_indices").data
    stride, size = stride_of(inputs), block_size(inputs)
    requests, columns = table.shape
    own = {**inputs, "block_table": refilled(table, np.arange(1, table.data.size + 1).reshape(table.shape))}
    found = _all_columns(function, own, asked)
    for query, request in enumerate(one(inputs, "req_id_per_token").data.tolist()):
        for column, slot in enumerate(found[query].tolist()):
            token, there = int(asked[query, column]), PAD
            if 0 <= request < requests and 0 <= token < columns * size:
                there = token
            place, offset = divmod(slot, stride)
            row, held = divmod(place - 1, max(columns, 1))
            back = PAD if slot == PAD else held * size + offset
            if back != there or (slot != PAD and (row != request or not 0 <= offset < size)):
                return f"query {query}, column {column}: slot {slot} is token {back} of request {row}, not {there}"
    return None


def _all_tokens_in_order_are_dense(function: Function, inputs: Inputs) -> str | None:
    table, size = one(inputs, "block_table"), block_size(inputs)
    requests, most = table.shape[0], table.shape[1] * size
    lengths = np.arange(requests) * 7 % (most + 1)
    buffer = array(np.zeros(requests * most), "int32")
    dense: dict[str, Value] = {"block_table": table, "seq_lens": array(lengths, "int64"), "kernel_block_size": size}
    answer = pages.dense_expected(dense | {"paged_kv_indices": buffer})
    assert isinstance(answer, Values)
    wanted = np.asarray(answer.outputs["paged_kv_indices"])[: int(lengths.sum())]
    tokens = np.tile(np.arange(most), (requests, 1))
    asked = {**_with_queries(inputs, tokens, lengths, np.arange(requests)), "block_stride": size}
    return difference("asked for all tokens, slots", slots_of(function, asked), wanted)


def _has_queries(inputs: Inputs) -> bool:
    return bool(one(inputs, "topk_indices").data.size)


def _several_queries(inputs: Inputs) -> bool:
    """Asked where more than one query owns elements, and all of them are there."""
    whole = _starts(inputs)[-1] <= one(inputs, "paged_kv_indices").data.size
    return whole and one(inputs, "req_id_per_token").data.size > 1


SPARSE_RELATIONS: tuple[Relation, ...] = (
    relation(
        "requests_are_free_to_move",
        "Requests in other rows of the table, and queries that name them there, have the same slots.",
        _requests_are_free_to_move,
        lambda inputs: _has_queries(inputs) and one(inputs, "block_table").shape[0] > 1,
    ),
    relation(
        "queries_are_free_to_move",
        "Queries in reverse order, with their tokens and as many elements, have the slots they had.",
        _queries_are_free_to_move,
        _several_queries,
    ),
    relation(
        "columns_are_free_to_move",
        "Tokens of a query in reverse order have their slots in reverse order.",
        _columns_are_free_to_move,
        _has_queries,
    ),
    relation(
        "slots_move_with_their_block",
        "Blocks with other ids take their slots along, at the same place in the block.",
        _slots_move_with_their_block,
        lambda inputs: _has_queries(inputs) and fits(inputs, stride_of(inputs)),
    ),
    relation(
        "parts_join",
        "Two calls on views of the first and the other queries, into one buffer, give what one call gives.",
        _parts_join,
        _several_queries,
    ),
    relation("twice_is_once", "A call into the buffer that it filled changes nothing.", _twice_is_once),
    relation(
        "only_elements_of_queries_change",
        "Elements outside the starts are the buffer's; nothing else depends on the buffer.",
        _only_elements_of_queries_change,
    ),
    relation(
        "pages_of_one_token_keep_slots",
        "A table with a page for each token, the block's slots in order, gives the same slots.",
        _pages_of_one_token_keep_slots,
        small_table,
    ),
    relation(
        "a_wider_stride_spreads_blocks",
        "Blocks that lie farther apart keep their tokens at the same places behind their first.",
        _a_wider_stride_spreads_blocks,
        lambda inputs: _has_queries(inputs) and fits(inputs, stride_of(inputs) + 5),
    ),
    relation(
        "longer_rows_keep_the_earlier",
        "Queries that own more or fewer elements have the same slots in those that stay; past the columns is padding.",
        _longer_rows_keep_the_earlier,
        _has_queries,
    ),
    relation(
        "fitted_rows_keep_their_slots",
        "Picked and newest tokens fitted to the columns of AITER's layout have the slots they have side by side.",
        _fitted_rows_keep_their_slots,
        _has_queries,
    ),
    relation(
        "slots_lead_back",
        "Where every place of the table has a block of its own, a slot leads back to its request and token.",
        _slots_lead_back,
        lambda inputs: _has_queries(inputs) and one(inputs, "block_table").data.size * stride_of(inputs) < 1 << 30,
    ),
    relation(
        "all_tokens_in_order_are_dense",
        "Queries that ask for the first tokens of a request in order get what contract 2.3 gives.",
        _all_tokens_in_order_are_dense,
        small_table,
    ),
)
