"""Laws of split plans and of decode layouts (contracts 2.5 and 2.6) that need no second implementation.

Inputs and outputs are those of the contracts. Plans are never compared with each other, since many are right: a plan
for one batch is rewritten to one for another, and the contract's checker is asked about that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from oracles.arrays import Array, Inputs, Outputs
from oracles.contract import Relation
from oracles.contracts import _mla_plans as plans
from oracles.contracts._law_arrays import Numbers, difference, highest, number, one, refilled, shaped
from oracles.contracts._laws import Function, WrongShape, relation

INT32_MAX = (1 << 31) - 1
ROW, PLACE, QUERIES, ENTRIES, BEHIND = 0, 1, slice(2, 4), slice(4, 6), 6
"""Columns of a work."""


def _tensor(outputs: Outputs, name: str, dimensions: int) -> Numbers:
    found = np.asarray(outputs[name])
    if found.ndim != dimensions:
        raise WrongShape(f"{name} has shape {found.shape}, not {dimensions} dimensions")
    return found


def _works(outputs: Outputs) -> int:
    starts = _tensor(outputs, "work_indptr", 1)
    info = _tensor(outputs, "work_info_set", 2)
    if not starts.size or not 0 <= starts[-1] <= len(info) or info.shape[1] != 8:
        raise WrongShape(f"work_info_set has shape {info.shape}, and work_indptr {starts[-1:].tolist()} works")
    return int(starts[-1])


def _lengths(starts: Array) -> Numbers:
    return np.diff(starts.data.astype(np.int64))


def _with_rows(inputs: Inputs, queries: Numbers, entries: Numbers) -> Inputs:
    """The same call for rows of so many queries and KV entries."""
    new = {"qo_indptr": queries, "kv_indptr": entries}
    return {**inputs, **{name: refilled(one(inputs, name), np.cumsum([0, *v.tolist()])) for name, v in new.items()}}


def _plan(function: Function, inputs: Inputs) -> dict[str, Numbers]:
    """A plan whose works can be rewritten."""
    outputs = function(inputs)
    _works(outputs)
    dimensions = {"work_info_set": 2, "reduce_final_map": 2}
    return {name: _tensor(outputs, name, dimensions.get(name, 1)).copy() for name in plans.OUTPUTS}


def _rejected(what: str, inputs: Inputs, plan: dict[str, Numbers]) -> str | None:
    """Why a rewritten plan is not right."""
    complaint = plans.accepts(inputs, {name: tensor.astype(np.int32) for name, tensor in plan.items()})
    return None if complaint is None else f"{what}: {complaint}".replace("\n", " ")


def _rows_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    starts = [one(inputs, name).data.astype(np.int64) for name in ("qo_indptr", "kv_indptr")]
    turned = [starts_of[-1] - starts_of[::-1] for starts_of in starts]
    plan = _plan(function, _with_rows(inputs, *(np.diff(starts_of) for starts_of in turned)))
    works = plan["work_info_set"][: _works(plan)].astype(np.int64)
    rows = works[:, ROW].copy()
    count = starts[0].size - 1
    if rows.size and not (rows.min() >= 0 and rows.max() < count):
        return f"with rows reversed, a work is of row {rows.min()} or {rows.max()}, and there are {count}"
    works[:, ROW] = count - 1 - rows
    for columns, old, new in zip((QUERIES, ENTRIES), starts, turned, strict=True):
        works[:, columns] += (old[count - 1 - rows] - new[rows])[:, None]
    plan["work_info_set"][: len(works)] = works
    _move_reductions(plan, starts[0], turned[0])
    return _rejected("made for rows in reverse order", inputs, plan)


def _move_reductions(plan: dict[str, Numbers], old: Numbers, new: Numbers) -> None:
    """Queries of reductions as the rows in their first order have them."""
    for final, (begin, end) in zip(plan["reduce_final_map"], pairwise(plan["reduce_indptr"].tolist()), strict=False):
        row = _row_of(plan, plan["reduce_partial_map"][begin:end], len(old) - 1)
        if row is not None:
            final += int(old[row] - new[len(old) - 2 - row])


def _row_of(plan: dict[str, Numbers], places: Numbers, count: int) -> int | None:
    """The row whose partial results lie there; a reduction of nothing has none."""
    works = plan["work_info_set"][: _works(plan)]
    rows = works[np.isin(works[:, PLACE], places), ROW]
    return int(rows[0]) if rows.size and 0 <= rows[0] < count else None


def _granules_scale(function: Function, inputs: Inputs) -> str | None:
    queries, entries = (_lengths(one(inputs, name)) for name in ("qo_indptr", "kv_indptr"))
    doubled = {**_with_rows(inputs, queries, 2 * entries), "kv_granularity": 2 * number(inputs, "kv_granularity")}
    plan = _plan(function, doubled)
    works = plan["work_info_set"][: _works(plan)]
    if (works[:, [4, 5, BEHIND]] % 2).any():
        return "with twice the entries and granules, a work begins or ends at an odd KV entry"
    works[:, [4, 5, BEHIND]] //= 2
    return _rejected("made for twice the entries and granules", inputs, plan)


def _one_split_has_no_partial_result(function: Function, inputs: Inputs) -> str | None:
    plan = _plan(function, {**inputs, "num_splits": 1})
    works, tiles = plan["work_info_set"][: _works(plan)], _tiles(inputs)
    if len(works) != tiles:
        return f"one split has {len(works)} works for {tiles} tiles"
    places = difference("one split, places", works[:, PLACE], np.full(len(works), -1))
    starts = plan["reduce_indptr"]
    return places or difference("one split, reductions", starts, np.zeros_like(starts))


def _tiles(inputs: Inputs) -> int:
    queries, tile = _lengths(one(inputs, "qo_indptr")), number(inputs, "q_tile")
    return int(np.maximum(-(-queries // tile), 1).sum())


def _an_empty_row_has_one_empty_work(function: Function, inputs: Inputs) -> str | None:
    rows = [_lengths(one(inputs, name)) for name in ("qo_indptr", "kv_indptr")]
    longer = _with_rows(inputs, *(np.append(lengths, 0) for lengths in rows))
    plan = _plan(function, longer)
    works = plan["work_info_set"][: _works(plan)]
    own = works[works[:, ROW] == rows[0].size].tolist()
    ends = [int(lengths.sum()) for lengths in rows]
    if len(own) != 1 or own[0][PLACE : BEHIND + 1] != [-1, ends[0], ends[0], ends[1], ends[1], 0]:
        return f"an empty row at the end has works {own}"
    return _rejected("with an empty row at the end", longer, plan)


def _rows_of_one_granule_are_not_cut(function: Function, inputs: Inputs) -> str | None:
    rows = [_lengths(one(inputs, name)) for name in ("qo_indptr", "kv_indptr")]
    granularity, tiles = number(inputs, "kv_granularity"), _tiles(inputs)
    # Cuts lie between granules.
    short = _with_rows(inputs, rows[0], np.minimum(rows[1], granularity))
    plan = _plan(function, {**short, "num_splits": tiles + 3})
    if _works(plan) != tiles:
        return f"rows of one granule have {_works(plan)} works for {tiles} tiles"
    return _rejected("with rows of one granule", {**short, "num_splits": tiles + 3}, plan)


def _one_tile_a_row(inputs: Inputs) -> bool:
    """Without several tiles nothing tells whether a plan is causal."""
    return bool((_lengths(one(inputs, "qo_indptr")) <= number(inputs, "q_tile")).all())


PLAN_RELATIONS: tuple[Relation, ...] = (
    relation(
        "rows_are_free_to_move",
        "A plan for the rows in reverse order, with its works named as the rows were, is right.",
        _rows_are_free_to_move,
        lambda inputs: one(inputs, "qo_indptr").data.size > 2,
    ),
    relation(
        "granules_scale",
        "A plan for twice the KV entries in granules twice as large is, halved, right.",
        _granules_scale,
        lambda inputs: _one_tile_a_row(inputs) and 2 * int(one(inputs, "kv_indptr").data[-1]) <= INT32_MAX,
    ),
    relation(
        "one_split_has_no_partial_result",
        "One split works on every tile in one piece, and nothing is reduced.",
        _one_split_has_no_partial_result,
    ),
    relation(
        "an_empty_row_has_one_empty_work",
        "A row without queries and KV entries at the end has one work, without queries and entries.",
        _an_empty_row_has_one_empty_work,
    ),
    relation(
        "rows_of_one_granule_are_not_cut",
        "Rows of one granule are not cut, however many splits there are.",
        _rows_of_one_granule_are_not_cut,
    ),
)


def _found(function: Function, inputs: Inputs) -> dict[str, Numbers]:
    """All outputs of a layout; the two ints as arrays of one element."""
    outputs, count = function(inputs), one(inputs, "seq_lens").data.size
    shapes = {"kernel_seq_lens": (count,), "paged_kv_indptr": (count + 1,), "qo_indptr": (count + 1,)}
    found = {name: shaped(name, outputs[name], shape) for name, shape in shapes.items()}
    ints = ("max_qo_len", "min_kv_seq_len")
    return found | {name: shaped(name, outputs[name], ()).reshape(1) for name in ints}


def _differences(what: str, found: dict[str, Numbers], wanted: dict[str, Numbers]) -> str | None:
    problems = (difference(f"{what}, {name}", found[name], wanted[name]) for name in found)
    return next((problem for problem in problems if problem), None)


def _queries(inputs: Inputs) -> Numbers:
    return _lengths(one(inputs, "query_start_loc_cpu"))


def _with_decodes(inputs: Inputs, queries: Numbers, lengths: Numbers, tokens: int | None = None) -> Inputs:
    """The same step with rows of so many queries and tokens, by default without padding tokens."""
    starts = np.cumsum([0, *queries.tolist()])
    names = ("query_start_loc", "query_start_loc_cpu")
    return {
        **inputs,
        **{name: refilled(one(inputs, name), starts) for name in names},
        "seq_lens": refilled(one(inputs, "seq_lens"), lengths),
        "num_decode_tokens": int(starts[-1]) if tokens is None else tokens,
    }


def _starts_add_up(function: Function, inputs: Inputs) -> str | None:
    found = _found(function, inputs)
    wanted = np.cumsum([0, *found["kernel_seq_lens"].tolist()])
    most = np.diff(found["qo_indptr"]).max(initial=0)
    return difference("starts of KV entries", found["paged_kv_indptr"], wanted) or difference(
        "the most queries of a row", found["max_qo_len"], np.array([most])
    )


def _a_graph_is_eager(function: Function, inputs: Inputs) -> str | None:
    both = [_found(function, {**inputs, "full_graph": graph}) for graph in (True, False)]
    return _differences("in a graph", *both)


def _rows_of_a_layout_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    queries, lengths = _queries(inputs), one(inputs, "seq_lens").data
    # Without padding tokens no row's place decides between layouts.
    before = _found(function, _with_decodes(inputs, queries, lengths))
    after = _found(function, _with_decodes(inputs, queries[::-1], lengths[::-1]))
    for name in ("paged_kv_indptr", "qo_indptr"):
        after[name] = after[name][-1] - after[name][::-1]
    after["kernel_seq_lens"] = after["kernel_seq_lens"][::-1]
    return _differences("with rows reversed", after, before)


def _padding_rows_get_no_query(function: Function, inputs: Inputs) -> str | None:
    queries, lengths = _queries(inputs), one(inputs, "seq_lens").data
    plain = {**inputs, "varlen_width": 0}
    before = _found(function, _with_decodes(plain, queries, lengths))
    after = _found(function, _with_decodes(plain, np.append(queries, [0, 0]), np.append(lengths, [0, 0])))
    wanted = {
        **before,
        "kernel_seq_lens": np.append(before["kernel_seq_lens"], [0, 0]),
        **{name: np.append(before[name], [before[name][-1]] * 2) for name in ("paged_kv_indptr", "qo_indptr")},
    }
    return _differences("with two rows of padding", after, wanted)


def _queries_see_what_they_saw(function: Function, inputs: Inputs) -> str | None:
    width, found, queries = number(inputs, "varlen_width"), _found(function, inputs), _queries(inputs)
    hidden = one(inputs, "seq_lens").data.astype(np.int64) - queries
    problem = difference("entries before a row's queries", found["kernel_seq_lens"] - width, hidden)
    return problem or difference("first queries", found["qo_indptr"], np.arange(queries.size + 1) * width)


def _a_wider_row_is_longer(function: Function, inputs: Inputs) -> str | None:
    before = _found(function, inputs)
    after = _found(function, {**inputs, "varlen_width": number(inputs, "varlen_width") + 1})
    steps = np.arange(before["qo_indptr"].size)
    more = {"kernel_seq_lens": 1, "paged_kv_indptr": steps, "qo_indptr": steps, "max_qo_len": 1, "min_kv_seq_len": 0}
    return _differences("one query wider", after, {name: before[name] + more[name] for name in before})


def _a_width_of_all_rows_is_plain(function: Function, inputs: Inputs) -> str | None:
    width = _common_width(inputs)
    plain = {**_with_decodes(inputs, _all_alike(inputs), one(inputs, "seq_lens").data), "varlen_width": 0}
    varlen = _found(function, {**plain, "varlen_width": width})
    return _differences("with the rows' own width", varlen, _found(function, plain))


def _padding_of_a_graph_is_full_rows(function: Function, inputs: Inputs) -> str | None:
    lengths, width = one(inputs, "seq_lens").data, max(_common_width(inputs), 2)
    rows = np.full(lengths.size, width)
    plain = {**inputs, "varlen_width": 0}
    before = _found(function, _with_decodes(plain, rows, lengths))
    padded = _with_decodes(plain, np.append(rows, 0), np.append(lengths, 0), width * (rows.size + 1))
    wanted = {
        **before,
        "kernel_seq_lens": np.append(before["kernel_seq_lens"], width),
        **{n: np.append(before[n], before[n][-1] + width) for n in ("paged_kv_indptr", "qo_indptr")},
    }
    return _differences("with a row of a graph's padding", _found(function, padded), wanted)


def _common_width(inputs: Inputs) -> int:
    return max(int(_queries(inputs).max(initial=0)), 1)


def _all_alike(inputs: Inputs) -> Numbers:
    return np.full(_queries(inputs).size, _common_width(inputs))


def _room(inputs: Inputs, more: int) -> bool:
    """Whether so many entries more a row fit all dtypes, and int32 still counts entries and queries."""
    lengths, rows = one(inputs, "seq_lens"), one(inputs, "seq_lens").data.size
    width = more + max(_common_width(inputs), number(inputs, "varlen_width"), 2)
    fits = int(lengths.data.max(initial=0)) + width <= highest(lengths)
    return fits and int(lengths.data.astype(np.int64).sum()) + width * (rows + 2) <= INT32_MAX


def _wide(inputs: Inputs) -> bool:
    return number(inputs, "varlen_width") > 0 and _room(inputs, 1)


def _several(inputs: Inputs) -> bool:
    return one(inputs, "seq_lens").data.size > 1 and _room(inputs, 0)


def _with_rows_of(least: int) -> Callable[[Inputs], bool]:
    return lambda inputs: one(inputs, "seq_lens").data.size >= least and _room(inputs, 2)


LAYOUT_RELATIONS: tuple[Relation, ...] = (
    relation(
        "starts_add_up",
        "The starts of KV entries sum the kernel's lengths, and the longest row of queries is as long as it says.",
        _starts_add_up,
        lambda inputs: bool(one(inputs, "seq_lens").data.size),
    ),
    relation("a_graph_is_eager", "A graph's buffers hold what a call without a graph gives.", _a_graph_is_eager),
    relation(
        "rows_are_free_to_move",
        "Rows in reverse order, without padding tokens, have the lengths and queries they had.",
        _rows_of_a_layout_are_free_to_move,
        _several,
    ),
    relation(
        "padding_rows_get_no_query",
        "Rows of padding behind a plain layout have no query and no entry, and change no other row.",
        _padding_rows_get_no_query,
        _with_rows_of(0),
    ),
    relation(
        "queries_see_what_they_saw",
        "In rows of one width each query has as many entries before it as in its own row.",
        _queries_see_what_they_saw,
        _wide,
    ),
    relation(
        "a_wider_row_is_longer",
        "Rows given one query more are one entry longer.",
        _a_wider_row_is_longer,
        _wide,
    ),
    relation(
        "a_width_of_all_rows_is_plain",
        "Where every row has as many queries as the width, the layout is the plain one.",
        _a_width_of_all_rows_is_plain,
        _with_rows_of(1),
    ),
    relation(
        "padding_of_a_graph_is_full_rows",
        "A row of padding behind a graph's rows of one width has that many queries and entries.",
        _padding_of_a_graph_is_full_rows,
        _with_rows_of(1),
    ),
)
