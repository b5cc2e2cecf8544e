"""Laws of the page indices of whole contexts (contract 2.3) that need no second implementation.

Inputs and outputs are those of the contract; every law speaks of inputs for which it gives values, whatever lengths
without a meaning stand in device tensors. Contract 2.2 answers for this one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from oracles.arrays import Inputs, array
from oracles.contract import Relation, Values
from oracles.contracts import _page_indices as pages
from oracles.contracts._law_arrays import Numbers, difference, one, part, refilled, shaped
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


def _starts(function: Function, inputs: Inputs) -> Numbers:
    count = one(inputs, "seq_lens").data.size
    return shaped("paged_kv_indptr", function(inputs)["paged_kv_indptr"], (count + 1,))


def _most(inputs: Inputs) -> int:
    """Tokens that a row of the table holds."""
    return one(inputs, "block_table").shape[1] * block_size(inputs)


def _clipped(inputs: Inputs) -> Numbers:
    lengths: Numbers = np.clip(one(inputs, "seq_lens").data, 0, _most(inputs)).astype(np.int64)
    return lengths


def _with_lengths(inputs: Inputs, lengths: Numbers) -> Inputs:
    return {**inputs, "seq_lens": one(inputs, "seq_lens").with_values(lengths)}


def _first_rows(inputs: Inputs, begin: int, end: int) -> Inputs:
    return {**inputs, **{name: part(one(inputs, name), begin, end) for name in ("block_table", "seq_lens")}}


def _pieces(inputs: Inputs, slots: Numbers) -> list[Numbers]:
    """The slots of each request, where lengths say that they lie."""
    starts = np.cumsum([0, *_clipped(inputs).tolist()]).tolist()
    return [slots[begin:end] for begin, end in pairwise(starts)]


def _filled(inputs: Inputs, pieces: Sequence[Numbers]) -> Numbers:
    """A buffer of these slots, and padding behind them."""
    wanted = np.full(one(inputs, "paged_kv_indices").shape, PAD)
    used = np.concatenate([wanted[:0], *pieces])
    wanted[: len(used)] = used
    return wanted


def _starts_add_up(function: Function, inputs: Inputs) -> str | None:
    lengths = _clipped(inputs)
    last = shaped("paged_kv_last_page_len", function(inputs)["paged_kv_last_page_len"], lengths.shape)
    return difference("starts", _starts(function, inputs), np.cumsum([0, *lengths.tolist()])) or difference(
        "last pages", last, np.ones_like(lengths)
    )


def _lengths_are_clipped(function: Function, inputs: Inputs) -> str | None:
    lengths, most = one(inputs, "seq_lens").data, _most(inputs)
    before, starts = slots_of(function, inputs), _starts(function, inputs)
    far = np.where(lengths >= most, (1 << 31) - 1, np.where(lengths <= 0, -(1 << 31), lengths))
    for what, other in (("past the row", far), ("at the row's end", _clipped(inputs))):
        changed = _with_lengths(inputs, other)
        problem = difference(f"with lengths {what}, starts", _starts(function, changed), starts) or difference(
            f"with lengths {what}, slots", slots_of(function, changed), before
        )
        if problem:
            return problem
    return None


def _requests_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    table, lengths = one(inputs, "block_table"), one(inputs, "seq_lens")
    moved = {
        **inputs,
        "block_table": table.with_values(table.data[::-1]),
        "seq_lens": lengths.with_values(lengths.data[::-1]),
    }
    wanted = _filled(inputs, _pieces(inputs, slots_of(function, inputs))[::-1])
    return difference("with requests reversed, slots", slots_of(function, moved), wanted)


def _slots_move_with_their_block(function: Function, inputs: Inputs) -> str | None:
    wanted = moved_along(inputs, slots_of(function, inputs))
    return difference("with other ids, slots", slots_of(function, renamed(inputs)), wanted)


def _pages_of_one_token_keep_slots(function: Function, inputs: Inputs) -> str | None:
    single = {**inputs, "block_table": array(expanded(inputs), "int32"), "kernel_block_size": 1}
    return difference(
        "with pages of one token, slots", slots_of(function, single), slots_of(function, inputs)
    ) or difference("with pages of one token, starts", _starts(function, single), _starts(function, inputs))


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    count = one(inputs, "seq_lens").data.size
    cut, joined = count // 2, []
    for views in (_first_rows(inputs, 0, cut), _first_rows(inputs, cut, count)):
        joined.extend(_pieces(views, slots_of(function, views)))
    wanted = _filled(inputs, joined)
    return difference(
        f"beside requests from {cut} on in a call of their own, slots", slots_of(function, inputs), wanted
    )


def _a_smaller_batch_leaks_nothing(function: Function, inputs: Inputs) -> str | None:
    whole, kept = slots_of(function, inputs), one(inputs, "seq_lens").data.size // 2
    later = slots_of(function, _first_rows(into(inputs, whole), 0, kept))
    wanted = _filled(inputs, _pieces(inputs, whole)[:kept])
    return difference(f"with {kept} requests, after a call with more, slots", later, wanted)


def _the_buffer_leaks_nothing(function: Function, inputs: Inputs) -> str | None:
    before = slots_of(function, inputs)
    for what, held in (("its result", before), ("zeros", before * 0), ("large numbers", before * 0 + (1 << 30))):
        found = slots_of(function, into(inputs, held))
        problem = difference(f"into a buffer that holds {what}, slots", found, before)
        if problem:
            return problem
    return None


def _shorter_requests_are_prefixes(function: Function, inputs: Inputs) -> str | None:
    lengths = _clipped(inputs)
    pieces = _pieces(inputs, slots_of(function, inputs))
    for what, fewer in (("half the", lengths // 2), ("one of the", np.maximum(lengths - 1, 0))):
        shorter = _with_lengths(inputs, fewer)
        wanted = _filled(inputs, [piece[:count] for piece, count in zip(pieces, fewer.tolist(), strict=True)])
        problem = difference(f"with {what} tokens, slots", slots_of(function, shorter), wanted)
        if problem:
            return problem
    return None


def _tokens_asked_in_order_are_these(function: Function, inputs: Inputs) -> str | None:
    lengths, table, buffer = _clipped(inputs), one(inputs, "block_table"), one(inputs, "paged_kv_indices")
    answer = pages.sparse_expected(
        {
            "req_id_per_token": array(np.arange(lengths.size), "int32"),
            "block_table": table,
            "topk_indices": array(np.tile(np.arange(_most(inputs)), (lengths.size, 1)), "int32"),
            "paged_kv_indptr": array(_starts(function, inputs), "int32"),
            "block_size": block_size(inputs),
            "block_stride": block_size(inputs),
            "paged_kv_indices": refilled(buffer, np.full(buffer.shape, PAD)),
        }
    )
    if not isinstance(answer, Values):
        return f"starts {_starts(function, inputs).tolist()} do not rise from 0"
    wanted = np.asarray(answer.outputs["paged_kv_indices"])
    return difference("beside contract 2.2, slots", slots_of(function, inputs), wanted)


def _several(inputs: Inputs) -> bool:
    return one(inputs, "seq_lens").data.size > 1


def _has_tokens(inputs: Inputs) -> bool:
    return bool(_clipped(inputs).any())


RELATIONS: tuple[Relation, ...] = (
    relation("starts_add_up", "The starts sum the lengths that rows hold; every page holds a token.", _starts_add_up),
    relation(
        "lengths_are_clipped",
        "Lengths past the row, and negative ones, are those of a full row and of none.",
        _lengths_are_clipped,
        _several,
    ),
    relation(
        "requests_are_free_to_move",
        "Requests in reverse order, with their rows, have the slots they had, one after the other.",
        _requests_are_free_to_move,
        _several,
    ),
    relation(
        "slots_move_with_their_block",
        "Blocks with other ids take their slots along, at the same place in the block.",
        _slots_move_with_their_block,
        lambda inputs: _has_tokens(inputs) and fits(inputs, stride_of(inputs)),
    ),
    relation(
        "pages_of_one_token_keep_slots",
        "A table with a block for each token, the block's slots in order, gives the same slots and starts.",
        _pages_of_one_token_keep_slots,
        small_table,
    ),
    relation(
        "parts_join",
        "The slots of the first requests and of the others, in calls of their own, are those of all.",
        _parts_join,
        _several,
    ),
    relation(
        "a_smaller_batch_leaks_nothing",
        "The first requests alone, after a call with all, have the slots they had, and padding behind them.",
        _a_smaller_batch_leaks_nothing,
        lambda inputs: bool(one(inputs, "seq_lens").data.size),
    ),
    relation(
        "the_buffer_leaks_nothing", "What the buffer held before the call does not matter.", _the_buffer_leaks_nothing
    ),
    relation(
        "shorter_requests_are_prefixes",
        "A request with fewer tokens has the first of its slots.",
        _shorter_requests_are_prefixes,
        _has_tokens,
    ),
    relation(
        "tokens_asked_in_order_are_these",
        "Contract 2.2, asked for all tokens of each request in order, gives the same slots.",
        _tokens_asked_in_order_are_these,
        small_table,
    ),
)
