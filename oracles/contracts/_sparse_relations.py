"""Laws of sparse lengths and of the ranks' shares (contracts 2.1 and 2.4) that need no second implementation.

Inputs and outputs are those of the contracts; every law speaks of inputs for which they give values, whatever lengths
without a meaning stand in device tensors. The law ``more_top_k_than_tokens_is_causal`` leaves one right answer for the
queries of a batch, and ``one_more_token_goes_to_its_rank`` with ``no_token_is_no_share`` one for the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from oracles.arrays import Inputs, array
from oracles.contract import Relation
from oracles.contracts._law_arrays import Numbers, difference, highest, number, one, part, refilled, shaped
from oracles.contracts._laws import Function, relation

INT32_MAX = (1 << 31) - 1


class Row(NamedTuple):
    """One sequence: its tokens, the queries included, and its queries."""

    length: int
    queries: int


def _rows(inputs: Inputs) -> list[Row]:
    starts = one(inputs, "query_start_loc_cpu").data.tolist()
    lengths = one(inputs, "seq_lens").data.tolist()
    return [Row(length, end - begin) for length, (begin, end) in zip(lengths, pairwise(starts), strict=True)]


def _with_rows(inputs: Inputs, rows: Sequence[Row]) -> Inputs:
    """The same step with other sequences; the padding behind them stays."""
    starts = np.cumsum([0, *(row.queries for row in rows)])
    padding = number(inputs, "num_tokens") - int(one(inputs, "query_start_loc_cpu").data[-1])
    names = ("query_start_loc", "query_start_loc_cpu")
    return {
        **inputs,
        "seq_lens": refilled(one(inputs, "seq_lens"), [row.length for row in rows]),
        **{name: refilled(one(inputs, name), starts) for name in names},
        "num_tokens": int(starts[-1]) + padding,
    }


def _of_rows(inputs: Inputs, begin: int, end: int, num_tokens: int) -> Inputs:
    """A view of the lengths of some sequences, and their starts counted from 0."""
    starts = {}
    for name in ("query_start_loc", "query_start_loc_cpu"):
        view = part(one(inputs, name), begin, end + 1)
        starts[name] = view.with_values(view.data - view.data[0])
    lengths = part(one(inputs, "seq_lens"), begin, end)
    return {**inputs, "seq_lens": lengths, **starts, "num_tokens": num_tokens}


def _found(function: Function, inputs: Inputs) -> tuple[Numbers, Numbers]:
    outputs, count = function(inputs), number(inputs, "num_tokens")
    lengths = shaped("sparse_seq_lens", outputs["sparse_seq_lens"], (count,))
    return lengths, shaped("paged_kv_indptr", outputs["paged_kv_indptr"], (count + 1,))


def _differences(what: str, found: Sequence[Numbers], wanted: Sequence[Numbers]) -> str | None:
    names = ("lengths", "starts")
    problems = (difference(f"{what}, {n}", f, w) for n, f, w in zip(names, found, wanted, strict=True))
    return next((problem for problem in problems if problem), None)


def _summed(lengths: Numbers) -> Numbers:
    return np.cumsum([0, *lengths.tolist()])


def _starts_add_up(function: Function, inputs: Inputs) -> str | None:
    lengths, starts = _found(function, inputs)
    return difference("starts", starts, _summed(lengths))


def _padding_sees_nothing(function: Function, inputs: Inputs) -> str | None:
    queries = int(one(inputs, "query_start_loc_cpu").data[-1])
    lengths, _ = _found(function, {**inputs, "num_tokens": queries})
    for more in (0, 1, 3):
        padded = np.concatenate([lengths, np.zeros(more, np.int32)])
        found = _found(function, {**inputs, "num_tokens": queries + more})
        problem = _differences(f"with {more} padding tokens", found, (padded, _summed(padded)))
        if problem:
            return problem
    return None


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    count = len(_rows(inputs))
    cut, end = count // 2, number(inputs, "num_tokens")
    at = int(one(inputs, "query_start_loc_cpu").data[cut])
    lengths, starts = _found(function, inputs)
    first = _found(function, _of_rows(inputs, 0, cut, at))
    rest = _found(function, _of_rows(inputs, cut, count, end - at))
    return _differences(f"the first {cut} sequences alone", first, (lengths[:at], starts[: at + 1])) or _differences(
        f"sequences from {cut} on alone", rest, (lengths[at:], starts[at:] - starts[at])
    )


def _sequences_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, (lengths, _) = _rows(inputs), _found(function, inputs)
    begins = one(inputs, "query_start_loc_cpu").data.tolist()
    pieces = [lengths[begin:end] for begin, end in pairwise(begins)]
    wanted = np.concatenate([*pieces[::-1], lengths[begins[-1] :]])
    moved = _found(function, _with_rows(inputs, rows[::-1]))
    return _differences("with sequences reversed", moved, (wanted, _summed(wanted)))


def _one_more_token_is_seen_once(function: Function, inputs: Inputs) -> str | None:
    lengths, topk = one(inputs, "seq_lens"), number(inputs, "topk")
    longer = lengths.with_values(np.minimum(lengths.data, highest(lengths) - 1) + 1)
    (before, _), (after, _) = _found(function, inputs), _found(function, {**inputs, "seq_lens": longer})
    # A query that saw nothing may lie before the first token still.
    wanted = np.where((before == 0) & (after == 0), 0, np.minimum(before + 1, topk))
    queries = np.arange(len(before)) < one(inputs, "query_start_loc_cpu").data[-1]
    return difference("with one more token, lengths", after, np.where(queries, wanted, before))


def _more_top_k_than_tokens_is_causal(function: Function, inputs: Inputs) -> str | None:
    most, topk = _longest(inputs), number(inputs, "topk")
    causal, _ = _found(function, {**inputs, "topk": most})
    wanted = np.zeros_like(causal)
    begin = 0
    for length, queries in _rows(inputs):
        # From the last query, which sees all tokens, back to the first.
        seen = max(length, 0)
        for token in reversed(range(begin, begin + queries)):
            wanted[token], seen = seen, max(seen - 1, 0)
        begin += queries
    capped = np.minimum(wanted, topk)
    return difference(f"with top-k {most}, lengths", causal, wanted) or _differences(
        "beside causal attention", _found(function, inputs), (capped, _summed(capped))
    )


def _a_chunked_sequence_sees_the_same(function: Function, inputs: Inputs) -> str | None:
    rows, low = _rows(inputs), int(np.iinfo(one(inputs, "seq_lens").data.dtype).min)
    at = max(range(len(rows)), key=lambda n: rows[n].queries)
    length, queries = rows[at]
    first = queries // 2
    chunks = [Row(max(length - (queries - first), low), first), Row(length, queries - first)]
    chunked = _with_rows(inputs, [*rows[:at], *chunks, *rows[at + 1 :]])
    return _differences(f"with sequence {at} in two chunks", _found(function, chunked), _found(function, inputs))


def _longest(inputs: Inputs) -> int:
    return max(int(one(inputs, "seq_lens").data.max(initial=1)), 1)


def _several(inputs: Inputs) -> bool:
    return len(_rows(inputs)) > 1


def _has_queries(inputs: Inputs) -> bool:
    return any(row.queries for row in _rows(inputs))


LENGTH_RELATIONS: tuple[Relation, ...] = (
    relation("starts_add_up", "The starts are 0 and the running sum of the lengths.", _starts_add_up),
    relation(
        "padding_sees_nothing",
        "Padding tokens have length 0, however many there are, and change no other length.",
        _padding_sees_nothing,
        lambda inputs: (int(one(inputs, "query_start_loc_cpu").data[-1]) + 3) * number(inputs, "topk") <= INT32_MAX,
    ),
    relation(
        "parts_join",
        "The first sequences alone have the lengths they had, and so have the others, with starts counted from theirs.",
        _parts_join,
        _several,
    ),
    relation(
        "sequences_are_free_to_move",
        "Sequences in reverse order, with their queries, have the lengths they had.",
        _sequences_are_free_to_move,
        _several,
    ),
    relation(
        "one_more_token_is_seen_once",
        "A token more in each sequence makes no query's length shorter, and adds one where top-k leaves room.",
        _one_more_token_is_seen_once,
        _has_queries,
    ),
    relation(
        "more_top_k_than_tokens_is_causal",
        "With top-k past all lengths the last query sees all tokens, and each one before it one token less; a smaller "
        "top-k caps that.",
        _more_top_k_than_tokens_is_causal,
        lambda inputs: _has_queries(inputs) and number(inputs, "num_tokens") * _longest(inputs) <= INT32_MAX,
    ),
    relation(
        "a_chunked_sequence_sees_the_same",
        "A sequence whose queries come in two chunks sees in each what it saw.",
        _a_chunked_sequence_sees_the_same,
        lambda inputs: any(row.queries > 1 for row in _rows(inputs)),
    ),
)


def _shares(function: Function, inputs: Inputs) -> Numbers:
    shape = one(inputs, "seq_lens").shape
    wanted = (*shape, number(inputs, "dcp_size")) if inputs["dcp_rank"] is None else shape
    return shaped("local_seq_lens", function(inputs)["local_seq_lens"], wanted)


def _of_all(function: Function, inputs: Inputs) -> Numbers:
    return _shares(function, {**inputs, "dcp_rank": None})


def _tokens(inputs: Inputs) -> Numbers:
    """Lengths that count, as int64."""
    return np.maximum(one(inputs, "seq_lens").data.astype(np.int64), 0)


def _round(inputs: Inputs) -> int:
    return number(inputs, "dcp_size") * number(inputs, "interleave")


def _with_lengths(inputs: Inputs, lengths: Numbers) -> Inputs:
    return {**inputs, "seq_lens": one(inputs, "seq_lens").with_values(lengths)}


def _ranks_share_every_token(function: Function, inputs: Inputs) -> str | None:
    shares = _of_all(function, inputs).astype(np.int64)
    return difference("the sum over ranks", np.atleast_1d(shares.sum(axis=-1)), np.atleast_1d(_tokens(inputs)))


def _no_rank_is_all_ranks(function: Function, inputs: Inputs) -> str | None:
    ranks = range(number(inputs, "dcp_size"))
    each = np.stack([_shares(function, {**inputs, "dcp_rank": rank}) for rank in ranks], axis=-1)
    return difference("beside the ranks one by one, shares", _of_all(function, inputs), each)


def _one_more_token_goes_to_its_rank(function: Function, inputs: Inputs) -> str | None:
    lengths = one(inputs, "seq_lens").data
    owner = _tokens(inputs) // number(inputs, "interleave") % number(inputs, "dcp_size")
    mine = np.arange(number(inputs, "dcp_size")) == owner[..., None]
    wanted = _of_all(function, inputs) + (mine & (lengths >= 0)[..., None])
    return difference("with one more token, shares", _of_all(function, _with_lengths(inputs, lengths + 1)), wanted)


def _a_round_more_is_a_turn_for_each(function: Function, inputs: Inputs) -> str | None:
    longer = _with_lengths(inputs, _tokens(inputs) + _round(inputs))
    wanted = _of_all(function, inputs) + number(inputs, "interleave")
    return difference("with a round more, shares", _of_all(function, longer), wanted)


def _longer_turns_scale(function: Function, inputs: Inputs) -> str | None:
    scaled = {**_with_lengths(inputs, 3 * _tokens(inputs)), "interleave": 3 * number(inputs, "interleave")}
    wanted = 3 * _of_all(function, inputs)
    return difference("with three times the tokens and turns, shares", _of_all(function, scaled), wanted)


def _one_rank_owns_all(function: Function, inputs: Inputs) -> str | None:
    alone = _shares(function, {**inputs, "dcp_size": 1, "dcp_rank": 0})
    return difference("of one rank, shares", np.atleast_1d(alone), np.atleast_1d(_tokens(inputs)))


def _no_token_is_no_share(function: Function, inputs: Inputs) -> str | None:
    for tokens in (0, -1, -_round(inputs) - 1):
        shares = _of_all(function, _with_lengths(inputs, np.full(one(inputs, "seq_lens").shape, tokens)))
        problem = difference(f"of {tokens} tokens, shares", shares, np.zeros_like(shares))
        if problem:
            return problem
    return None


def _lengths_do_not_meet(function: Function, inputs: Inputs) -> str | None:
    lengths = one(inputs, "seq_lens")
    turned = array(lengths.data.reshape(-1)[::-1], lengths.dtype)
    wanted = _of_all(function, inputs).reshape(-1, number(inputs, "dcp_size"))[::-1]
    found = _of_all(function, {**inputs, "seq_lens": turned})
    return difference("with lengths in one row, reversed, shares", found, wanted)


def _room(inputs: Inputs, more: int, times: int = 1) -> bool:
    """Whether lengths that are so much larger fit their dtype, and all shares of them int32."""
    longest = times * int(_tokens(inputs).max(initial=0)) + more
    largest = (longest // (times * _round(inputs)) + 1) * times * number(inputs, "interleave")
    return longest <= highest(one(inputs, "seq_lens")) and largest <= INT32_MAX


def _some(inputs: Inputs) -> bool:
    return bool(one(inputs, "seq_lens").data.size) and _room(inputs, 0)


SHARE_RELATIONS: tuple[Relation, ...] = (
    relation("ranks_share_every_token", "The shares of all ranks sum to the length.", _ranks_share_every_token, _some),
    relation(
        "no_rank_is_all_ranks",
        "Without a rank the last axis holds what each rank gets by itself.",
        _no_rank_is_all_ranks,
        _some,
    ),
    relation(
        "one_more_token_goes_to_its_rank",
        "A token more adds one to the share of the rank whose turn it is, and nothing to any other.",
        _one_more_token_goes_to_its_rank,
        lambda inputs: _some(inputs) and _room(inputs, 1),
    ),
    relation(
        "a_round_more_is_a_turn_for_each",
        "As many tokens more as all ranks take in turn add one turn to each share.",
        _a_round_more_is_a_turn_for_each,
        lambda inputs: _some(inputs) and _room(inputs, _round(inputs)),
    ),
    relation(
        "longer_turns_scale",
        "Three times the tokens in turns three times as long are three times the shares.",
        _longer_turns_scale,
        lambda inputs: _some(inputs) and _room(inputs, 0, times=3),
    ),
    relation(
        "one_rank_owns_all",
        "A rank that is alone owns every token.",
        _one_rank_owns_all,
        lambda inputs: _some(inputs) and int(_tokens(inputs).max()) <= INT32_MAX,
    ),
    relation("no_token_is_no_share", "Lengths of 0 or less give no rank a token.", _no_token_is_no_share, _some),
    relation(
        "lengths_do_not_meet",
        "Lengths in one row, in reverse order, give the same shares in reverse order.",
        _lengths_do_not_meet,
        _some,
    ),
)
