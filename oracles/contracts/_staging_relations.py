"""Laws of staged decode state (contract 3.2): what a step leaves in the buffers of a full CUDA graph.

They speak of inputs for which the contract gives values. ``rows_of_the_step_are_copied`` and ``padding_is_null_rows``
together leave one right answer for the rows of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import Relation
from oracles.contracts._law_arrays import Numbers, difference, number, one, part, refilled, shaped
from oracles.contracts._laws import Function, relation

SOURCES = ("state_indices", "query_start_loc", "num_accepted_tokens")
BUFFERS = ("state_buffer", "query_start_loc_buffer", "num_accepted_buffer")
FILLS = (-1, 0, 1 << 30)
SHIFT = 5


class Staged(NamedTuple):
    """What is in the buffers after a call."""

    states: Numbers
    starts: Numbers
    accepted: Numbers


def _staged(function: Function, inputs: Inputs) -> Staged:
    """The buffers. Refused with ``WrongShape``: another shape of one of them, or of what is returned of it."""
    outputs, rows = function(inputs), number(inputs, "batch_size")
    found = []
    for name, source, more in zip(BUFFERS, SOURCES, (0, 1, 0), strict=True):
        shape = one(inputs, name).shape
        found.append(shaped(name, outputs[name], shape))
        shaped(f"{source}_staged", outputs[f"{source}_staged"], (rows + more, *shape[1:]))
    return Staged(*found)


def _with_buffers(inputs: Inputs, buffers: Sequence[Numbers]) -> Inputs:
    filled = {name: one(inputs, name).with_values(data) for name, data in zip(BUFFERS, buffers, strict=True)}
    return {**inputs, **filled}


def _row_count(inputs: Inputs) -> int:
    return one(inputs, "state_indices").shape[0]


def _differences(what: str, found: Staged, wanted: Staged) -> str | None:
    for name, left, right in zip(BUFFERS, found, wanted, strict=True):
        problem = difference(f"{what}, {name}", left, right)
        if problem:
            return problem
    return None


def _first_rows(inputs: Inputs, count: int) -> Inputs:
    pieces = [part(one(inputs, name), 0, count + more) for name, more in zip(SOURCES, (0, 1, 0), strict=True)]
    return {**inputs, **dict(zip(SOURCES, pieces, strict=True))}


def _padded(staged: Staged, begin: int, end: int) -> Staged:
    """The same with rows ``begin..end - 1`` as padding has them."""
    states, starts, accepted = (buffer.copy() for buffer in staged)
    states[begin:end], accepted[begin:end] = 0, 1
    starts[begin + 1 : end + 1] = starts[begin]
    return Staged(states, starts, accepted)


def _views_are_the_beginnings(function: Function, inputs: Inputs) -> str | None:
    outputs, buffers = function(inputs), _staged(function, inputs)
    for name, buffer in zip(SOURCES, buffers, strict=True):
        view = np.asarray(outputs[f"{name}_staged"])
        problem = difference(f"{name}_staged", view, buffer[: len(view)])
        if problem:
            return problem
    return None


def _rows_of_the_step_are_copied(function: Function, inputs: Inputs) -> str | None:
    rows = _row_count(inputs)
    for name, buffer, more in zip(SOURCES, _staged(function, inputs), (0, 1, 0), strict=True):
        problem = difference(f"of the step's rows, {name}", buffer[: rows + more], one(inputs, name).data)
        if problem:
            return problem
    return None


def _padding_is_null_rows(function: Function, inputs: Inputs) -> str | None:
    rows, found = _row_count(inputs), _staged(function, inputs)
    states, starts, accepted = (one(inputs, name) for name in SOURCES)
    spelled_out = {
        "state_indices": refilled(states, np.concatenate([states.data, np.zeros((1, states.shape[1]), np.int32)])),
        "query_start_loc": refilled(starts, [*starts.data.tolist(), int(starts.data[rows])]),
        "num_accepted_tokens": refilled(accepted, [*accepted.data.tolist(), 1]),
    }
    return _differences("with a padding row as one of the step", _staged(function, {**inputs, **spelled_out}), found)


def _twice_is_once(function: Function, inputs: Inputs) -> str | None:
    once = _staged(function, inputs)
    return _differences("staged again", _staged(function, _with_buffers(inputs, once)), once)


def _a_smaller_batch_leaks_nothing(function: Function, inputs: Inputs) -> str | None:
    before, rows, graph = _staged(function, inputs), _row_count(inputs), number(inputs, "batch_size")
    for kept in sorted({0, rows // 2}):
        later = _staged(function, _with_buffers(_first_rows(inputs, kept), before))
        problem = _differences(f"with {kept} rows after {rows}", later, _padded(before, kept, graph))
        if problem:
            return problem
    return None


def _a_smaller_graph_keeps_what_is_behind(function: Function, inputs: Inputs) -> str | None:
    before, kept = _staged(function, inputs), _row_count(inputs) // 2
    smaller = {**_with_buffers(_first_rows(inputs, kept), before), "batch_size": kept}
    return _differences(f"with a graph of {kept} rows after a larger one", _staged(function, smaller), before)


def _a_larger_graph_adds_padding(function: Function, inputs: Inputs) -> str | None:
    graph, before = number(inputs, "batch_size"), _staged(function, inputs)
    larger = _staged(function, {**inputs, "batch_size": graph + 1})
    return _differences("with a graph of one more row", larger, _padded(before, graph, graph + 1))


def _only_rows_of_the_graph_are_written(function: Function, inputs: Inputs) -> str | None:
    before, graph = _staged(function, inputs), number(inputs, "batch_size")
    for fill in FILLS:
        filled = _with_buffers(inputs, [np.full_like(buffer, fill) for buffer in before])
        wanted = [buffer.copy() for buffer in before]
        for buffer, more in zip(wanted, (0, 1, 0), strict=True):
            buffer[graph + more :] = fill
        problem = _differences(f"into buffers full of {fill}", _staged(function, filled), Staged(*wanted))
        if problem:
            return problem
    return None


def _rows_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    rows, wanted = _row_count(inputs), [buffer.copy() for buffer in _staged(function, inputs)]
    states, _, accepted = (one(inputs, name) for name in SOURCES)
    turned = {
        **inputs,
        "state_indices": states.with_values(states.data[::-1]),
        "num_accepted_tokens": accepted.with_values(accepted.data[::-1]),
    }
    wanted[0][:rows], wanted[2][:rows] = wanted[0][:rows][::-1].copy(), wanted[2][:rows][::-1].copy()
    return _differences("with rows reversed", _staged(function, turned), Staged(*wanted))


def _starts_only_shift(function: Function, inputs: Inputs) -> str | None:
    graph, before, starts = number(inputs, "batch_size"), _staged(function, inputs), one(inputs, "query_start_loc")
    later = _staged(function, {**inputs, "query_start_loc": starts.with_values(starts.data + SHIFT)})
    moved = before.starts.copy()
    moved[: graph + 1] += SHIFT
    return _differences(f"with {SHIFT} tokens in front", later, before._replace(starts=moved))


def _widths_are_idle(function: Function, inputs: Inputs) -> str | None:
    others = {name: _in_other_width(one(inputs, name)) for name in SOURCES[1:]}
    return _differences("of the other width", _staged(function, {**inputs, **others}), _staged(function, inputs))


def _in_other_width(narrow: Array) -> Array:
    dtype = "int32" if narrow.dtype == "int64" else "int64"
    return Array(dtype, narrow.data.astype(dtype), narrow.strides, narrow.offset)


def _has_padding(inputs: Inputs) -> bool:
    return number(inputs, "batch_size") > _row_count(inputs)


def _has_rows(inputs: Inputs) -> bool:
    return _row_count(inputs) > 0


def _room_behind(inputs: Inputs) -> bool:
    return one(inputs, "state_buffer").shape[0] > number(inputs, "batch_size")


def _room_to_shift(inputs: Inputs) -> bool:
    return int(one(inputs, "query_start_loc").data.max()) < (1 << 31) - SHIFT


STAGING_RELATIONS: tuple[Relation, ...] = (
    relation(
        "views_are_the_beginnings",
        "What is returned are the beginnings of the buffers.",
        _views_are_the_beginnings,
    ),
    relation(
        "rows_of_the_step_are_copied",
        "The step's rows, starts and accepted counts stand at the beginnings of the buffers.",
        _rows_of_the_step_are_copied,
    ),
    relation(
        "padding_is_null_rows",
        "A padding row is one of NULL blocks, without queries, and with one accepted token.",
        _padding_is_null_rows,
        _has_padding,
    ),
    relation("twice_is_once", "Staged into the buffers that it filled, a step changes nothing.", _twice_is_once),
    relation(
        "a_smaller_batch_leaks_nothing",
        "The first rows alone, after a call with all, leave padding in place of the others.",
        _a_smaller_batch_leaks_nothing,
        _has_rows,
    ),
    relation(
        "a_smaller_graph_keeps_what_is_behind",
        "A graph of the first rows only, after a larger one, changes nothing: they are there, the others stay.",
        _a_smaller_graph_keeps_what_is_behind,
        _has_rows,
    ),
    relation(
        "a_larger_graph_adds_padding",
        "A graph of one more row has one more padding row.",
        _a_larger_graph_adds_padding,
        _room_behind,
    ),
    relation(
        "only_rows_of_the_graph_are_written",
        "Rows past the graph are the buffers'; nothing else depends on the buffers.",
        _only_rows_of_the_graph_are_written,
    ),
    relation(
        "rows_are_free_to_move",
        "States and accepted counts in reverse order are staged in reverse order; starts and padding stay.",
        _rows_are_free_to_move,
        lambda inputs: _row_count(inputs) > 1,
    ),
    relation(
        "starts_only_shift",
        "Larger starts are staged larger, those of padding rows too, and nothing else changes.",
        _starts_only_shift,
        _room_to_shift,
    ),
    relation("widths_are_idle", "int32 or int64 starts and counts are staged alike.", _widths_are_idle),
)
