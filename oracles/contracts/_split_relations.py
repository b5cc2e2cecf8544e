"""Laws of how many requests of a batch are decodes, and how many prefills (contract 3.3).

They speak of inputs for which the contract gives values. The laws ``split_adds_up`` and
``decodes_qualify_and_the_first_prefill_does_not`` together leave one right answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from oracles.arrays import Array, Inputs, array
from oracles.contract import Relation
from oracles.contracts import _batch_classes as classes
from oracles.contracts._law_arrays import number, one
from oracles.contracts._law_queries import MORE, changed, queries_of, with_queries
from oracles.contracts._laws import Function, WrongShape, relation


def _split(function: Function, inputs: Inputs) -> list[int]:
    outputs = function(inputs)
    found = [outputs[name] for name in classes.SPLIT]
    if any(type(count) is not int for count in found):
        raise WrongShape(f"{', '.join(classes.SPLIT)} are {found}, not four Python ints")
    return cast(list[int], found)


def _of_rows(inputs: Inputs, rows: Sequence[int]) -> Inputs:
    """The step of these requests only, in this order."""
    queries = queries_of(inputs, "query_start_loc")
    picked = with_queries(inputs, "query_start_loc", [queries[row] for row in rows])
    flags = inputs["is_prefilling"]
    if isinstance(flags, Array):
        picked["is_prefilling"] = array(flags.data[list(rows)], "bool")
    return picked


def _row_count(inputs: Inputs) -> int:
    return one(inputs, "query_start_loc").data.size - 1


def _short(inputs: Inputs) -> bool:
    return inputs["treat_short_extends_as_decodes"] is True


def _uniform(inputs: Inputs) -> bool:
    return inputs["require_uniform"] is True


def _flags(inputs: Inputs) -> list[bool]:
    """Who is prefilling, as far as it matters."""
    flags, rows = inputs["is_prefilling"], _row_count(inputs)
    return [False] * rows if _short(inputs) or flags is None else (cast(Array, flags).data != 0).tolist()


def _split_adds_up(function: Function, inputs: Inputs) -> str | None:
    decodes, *_ = found = _split(function, inputs)
    starts, rows = one(inputs, "query_start_loc").data.tolist(), _row_count(inputs)
    if not 0 <= decodes <= rows:
        return f"num_decodes is {decodes}, of {rows} requests"
    wanted = [decodes, rows - decodes, starts[decodes], starts[-1] - starts[decodes]]
    return changed("counted from the starts", found, wanted, classes.SPLIT)


def _decodes_qualify(function: Function, inputs: Inputs) -> str | None:
    queries, flags, threshold = (
        queries_of(inputs, "query_start_loc"),
        _flags(inputs),
        number(inputs, "decode_threshold"),
    )
    decodes = _split(function, inputs)[0]
    # Requests of one token at most are decodes of one width, whatever else is asked for.
    one_width = _uniform(inputs) and not (_short(inputs) and max(threshold, *queries, 1) == 1)
    for row, (number_of, flagged) in enumerate(zip(queries[: decodes + 1], flags, strict=False)):
        qualifies = number_of <= threshold and not flagged and not (one_width and number_of not in (queries[0], 0))
        if qualifies != (row < decodes):
            return f"request {row} of {number_of} queries is {'no ' if qualifies else 'a '}decode"
    return None


def _padding_joins_the_last_class(function: Function, inputs: Inputs) -> str | None:
    decodes, prefills, *tokens = _split(function, inputs)
    padded = with_queries(inputs, "query_start_loc", [*queries_of(inputs, "query_start_loc"), *[0] * MORE])
    flags = inputs["is_prefilling"]
    if isinstance(flags, Array):
        padded["is_prefilling"] = array([*flags.data.tolist(), *[False] * MORE], "bool")
    wanted = [decodes + (0 if prefills else MORE), prefills + (MORE if prefills else 0), *tokens]
    return changed(f"with {MORE} padding rows", _split(function, padded), wanted, classes.SPLIT)


def _a_threshold_of_the_longest_leaves_decodes(function: Function, inputs: Inputs) -> str | None:
    queries, plain = queries_of(inputs, "query_start_loc"), {**inputs, "require_uniform": False}
    first = next((row for row, flagged in enumerate(_flags(inputs)) if flagged), len(queries))
    for threshold in (max(1, *queries), max(1, *queries) + 3):
        found = _split(function, {**plain, "decode_threshold": threshold})[0]
        if found != first:
            return f"with threshold {threshold}, num_decodes is {found}, {first} follows from the law"
    return None


def _a_higher_threshold_takes_no_decode(function: Function, inputs: Inputs) -> str | None:
    plain = {**inputs, "require_uniform": False}
    known = _split(function, plain)[0]
    for more in (1, 5):
        found = _split(function, {**plain, "decode_threshold": number(inputs, "decode_threshold") + more})[0]
        if found < known:
            return f"with a threshold {more} higher, num_decodes is {found}, {known} before"
        known = found
    return None


def _requests_behind_the_first_prefill_move(function: Function, inputs: Inputs) -> str | None:
    wanted = _split(function, inputs)
    rows, first = [*range(_row_count(inputs))], wanted[0]
    moved = [*rows[: first + 1], *rows[first + 1 :][::-1]]
    if not _uniform(inputs):
        moved = [*rows[:first][::-1], *moved[first:]]
    return changed("with classes reversed", _split(function, _of_rows(inputs, moved)), wanted, classes.SPLIT)


def _classes_alone_stay(function: Function, inputs: Inputs) -> str | None:
    decodes, prefills, decode_tokens, prefill_tokens = _split(function, inputs)
    rows = range(_row_count(inputs))
    first = _split(function, _of_rows(inputs, rows[:decodes]))
    problem = changed("of decodes alone", first, [decodes, 0, decode_tokens, 0], classes.SPLIT)
    if problem or _uniform(inputs):
        return problem
    rest = _split(function, _of_rows(inputs, rows[decodes:]))
    return changed("of prefills alone", rest, [0, prefills, 0, prefill_tokens], classes.SPLIT)


def _equal_queries_are_uniform(function: Function, inputs: Inputs) -> str | None:
    queries = queries_of(inputs, "query_start_loc")
    equal = with_queries(inputs, "query_start_loc", [min(queries[0], 1 << 16)] * len(queries))
    uniform, plain = (_split(function, {**equal, "require_uniform": flag}) for flag in (True, False))
    return changed("of equal queries, all of one width", uniform, plain, classes.SPLIT)


def _short_extends_need_no_flags(function: Function, inputs: Inputs) -> str | None:
    rows, short = _row_count(inputs), {**inputs, "treat_short_extends_as_decodes": True}
    wanted = _split(function, {**short, "is_prefilling": None})
    for flags in ([True] * rows, [False] * rows):
        found = _split(function, {**short, "is_prefilling": array(flags, "bool")})
        problem = changed("of short extends and other flags", found, wanted, classes.SPLIT)
        if problem:
            return problem
    return None


def _has_rows(inputs: Inputs) -> bool:
    return _row_count(inputs) > 0


SPLIT_RELATIONS: tuple[Relation, ...] = (
    relation("split_adds_up", "Decodes and prefills are all requests, with all tokens.", _split_adds_up),
    relation(
        "decodes_qualify_and_the_first_prefill_does_not",
        "Decodes have few queries, one number of them where that is required, and are not prefilling where that "
        "matters; the first prefill lacks one of these.",
        _decodes_qualify,
        _has_rows,
    ),
    relation(
        "padding_joins_the_last_class",
        "Requests without queries at the end are counted with the last class, and bring no tokens.",
        _padding_joins_the_last_class,
    ),
    relation(
        "a_threshold_of_the_longest_leaves_decodes",
        "With a threshold of the longest query or more, decodes end at the first request that is prefilling.",
        _a_threshold_of_the_longest_leaves_decodes,
        _has_rows,
    ),
    relation(
        "a_higher_threshold_takes_no_decode",
        "Where decodes need not be uniform, a higher threshold leaves all decodes decodes.",
        _a_higher_threshold_takes_no_decode,
        _has_rows,
    ),
    relation(
        "requests_behind_the_first_prefill_move",
        "Prefills but the first in another order change nothing, nor do decodes that need not be uniform.",
        _requests_behind_the_first_prefill_move,
        lambda inputs: _row_count(inputs) > 1,
    ),
    relation(
        "classes_alone_stay",
        "Decodes alone are decodes; prefills alone are prefills, where decodes need not be uniform.",
        _classes_alone_stay,
        _has_rows,
    ),
    relation(
        "equal_queries_are_uniform",
        "Of requests with one number of queries it changes nothing to require that.",
        _equal_queries_are_uniform,
        _has_rows,
    ),
    relation(
        "short_extends_need_no_flags",
        "Where short extends are decodes it changes nothing who is prefilling.",
        _short_extends_need_no_flags,
        _has_rows,
    ),
)
