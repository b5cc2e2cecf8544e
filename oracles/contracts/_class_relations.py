"""Laws of what a linear-attention layer takes each request of a batch for (contract 3.5).

They speak of inputs for which the contract gives values. What contract 3.3 says of a batch without speculation is a
law of its own.
"""

from __future__ import annotations

from itertools import accumulate
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Relation, Values
from oracles.contracts import _batch_classes as classes
from oracles.contracts._law_arrays import difference, number, one, refilled
from oracles.contracts._law_queries import HOST_STARTS, MORE, changed, queries_of, with_queries
from oracles.contracts._laws import Function, WrongShape, relation

COUNTS = classes.CLASSES[:6]


def _classified(function: Function, inputs: Inputs) -> tuple[list[int], list[list[int]]]:
    """The counts, and the tensors as lists."""
    outputs, rows = function(inputs), one(inputs, HOST_STARTS).data.size - 1
    counts = [cast(int, outputs[name]) for name in COUNTS]
    tensors = [np.asarray(outputs[name]) for name in classes.CLASSES[6:]]
    speculating = int((tensors[0] != 0).sum())
    sizes = [rows, rows - speculating if counts[1] else 0, rows - speculating - counts[0] + 1 if counts[1] else 1]
    for name, tensor, size in zip(classes.CLASSES[6:], tensors, sizes, strict=True):
        if tensor.shape != (size,):
            raise WrongShape(f"{name} has shape {tensor.shape}, not {(size,)}")
    return counts, [[int(item) for item in tensor.tolist()] for tensor in tensors]


def _same_classes(
    what: str, found: tuple[list[int], list[list[int]]], wanted: tuple[list[int], list[list[int]]]
) -> str | None:
    return changed(what, [*found[0], *found[1]], [*wanted[0], *wanted[1]], classes.CLASSES)


def _with_drafts(inputs: Inputs) -> Inputs:
    """The same step, in which the first request speculates where none did."""
    drafts, most = inputs["num_decode_draft_tokens_cpu"], number(inputs, "num_speculative_tokens")
    if isinstance(drafts, Array) and most > 0 and bool((drafts.data >= 0).any()):
        return inputs
    given = array([1, *[-1] * (_class_count(inputs) - 1)], "int32")
    return {**inputs, "num_decode_draft_tokens_cpu": given, "num_speculative_tokens": 2}


def _class_count(inputs: Inputs) -> int:
    return one(inputs, HOST_STARTS).data.size - 1


def _classes_add_up(function: Function, inputs: Inputs) -> str | None:
    counts, (mask, _, _) = _classified(function, inputs)
    queries, total = queries_of(inputs, HOST_STARTS), int(one(inputs, HOST_STARTS).data[-1])
    decodes, prefills, speculating, decode_tokens, _, _ = counts
    of_drafts = sum(number_of for number_of, drafted in zip(queries, mask, strict=True) if drafted)
    idle = [not number_of for number_of, drafted in zip(queries, mask, strict=True) if not drafted]
    uncounted = sum(idle[decodes:]) if prefills or speculating else 0
    wanted = [len(idle) - prefills - uncounted, len(idle) - decodes - uncounted, sum(mask)]
    problem = changed("counted one by one", [decodes, prefills, speculating], wanted, COUNTS[:3])
    # Idle requests in front of a prefill hide tokens behind it.
    if problem or (not speculating and 0 in queries[decodes : decodes + prefills]):
        return problem
    tokens = [sum(queries[:decodes]), total - decode_tokens - of_drafts, of_drafts]
    return changed("counted one by one", counts[3:], tokens, COUNTS[3:])


def _rebased_starts_are_the_suffix(function: Function, inputs: Inputs) -> str | None:
    counts, (mask, _, found) = _classified(function, inputs)
    queries = queries_of(inputs, HOST_STARTS)
    others = [number_of for number_of, drafted in zip(queries, mask, strict=True) if not drafted]
    wanted = [*accumulate(others[counts[0] :], initial=0)] if counts[1] else [0]
    return difference("prefill_query_start_loc", np.array(found), np.array(wanted))


def _drafts_of_nobody_are_none(function: Function, inputs: Inputs) -> str | None:
    rows = _class_count(inputs)
    plain = _classified(function, {**inputs, "num_decode_draft_tokens_cpu": None})
    changes: list[dict[str, Value]] = [
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": 0, "num_decode_draft_tokens_cpu": array([1] * rows, "int32")},
        {"num_speculative_tokens": 2, "num_decode_draft_tokens_cpu": array([-1] * rows, "int64")},
    ]
    for change in changes:
        problem = _same_classes("without speculation", _classified(function, {**inputs, **change}), plain)
        if problem:
            return problem
    return None


def _speculation_takes_the_decodes(function: Function, inputs: Inputs) -> str | None:
    rows, queries = _class_count(inputs), queries_of(inputs, HOST_STARTS)
    drafts = array([3, *[-1] * (rows - 1)], "int32")
    mixed = {**inputs, "num_decode_draft_tokens_cpu": drafts, "num_speculative_tokens": 2}
    tokens = sum(queries[1:])
    wanted = [0, sum(number_of > 0 for number_of in queries[1:]), 1, 0, tokens, queries[0]]
    return changed("where the first request speculates", _classified(function, mixed)[0], wanted, COUNTS)


def _states_follow_from_lengths(function: Function, inputs: Inputs) -> str | None:
    inputs = _with_drafts(inputs)
    starts = one(inputs, HOST_STARTS).data.astype(np.int64)
    lengths = array(np.diff(starts), "int64")
    before = _classified(function, inputs)
    for more in (0, 1):
        other = {**inputs, "seq_lens_cpu": lengths.with_values(lengths.data + more)}
        counts, (mask, states, rebased) = _classified(function, other)
        wanted = [more] * len(before[1][1])
        problem = _same_classes(
            f"with lengths {more} above the queries",
            (counts, [mask, states, rebased]),
            (before[0], [mask, wanted, rebased]),
        )
        if problem:
            return problem
    return None


def _first_chunks_are_prefills(function: Function, inputs: Inputs) -> str | None:
    rows, queries = _class_count(inputs), queries_of(inputs, HOST_STARTS)
    first = next((row for row, number_of in enumerate(queries) if number_of), rows)
    fresh = {
        **inputs,
        "seq_lens_cpu": array(queries, "int64"),
        "is_prefilling": array([True] * rows, "bool"),
        "num_decode_draft_tokens_cpu": None,
    }
    wanted = [first, sum(number_of > 0 for number_of in queries)]
    return changed("of first chunks", _classified(function, fresh)[0][:2], wanted, COUNTS[:2])


def _one_token_with_a_state_is_a_decode(function: Function, inputs: Inputs) -> str | None:
    rows = _class_count(inputs)
    step = {
        **with_queries(inputs, HOST_STARTS, [1] * rows),
        "seq_lens_cpu": array([2 + row for row in range(rows)], "int32"),
        "is_prefilling": array([row % 2 == 0 for row in range(rows)], "bool"),
        "num_decode_draft_tokens_cpu": None,
    }
    found = _classified(function, step)
    wanted = ([rows, 0, 0, rows, 0, 0], [[0] * rows, [], [0]])
    return _same_classes("of single tokens with states", found, wanted)


def _padding_is_counted_nowhere(function: Function, inputs: Inputs) -> str | None:
    counts, (mask, states, rebased) = _classified(function, inputs)
    queries, drafts, flags = (
        queries_of(inputs, HOST_STARTS),
        inputs["num_decode_draft_tokens_cpu"],
        inputs["is_prefilling"],
    )
    lengths = one(inputs, "seq_lens_cpu")
    padded = {
        **with_queries(inputs, HOST_STARTS, [*queries, *[0] * MORE]),
        "seq_lens_cpu": refilled(lengths, [*lengths.data.tolist(), *[0] * MORE]),
    }
    if isinstance(flags, Array):
        padded["is_prefilling"] = array([*flags.data.tolist(), *[False] * MORE], "bool")
    if isinstance(drafts, Array):
        padded["num_decode_draft_tokens_cpu"] = refilled(drafts, [*drafts.data.tolist(), *[-1] * MORE])
    # Without prefills and drafts they are decodes, as all others are.
    decodes = counts[0] + (MORE if not counts[1] and not counts[2] else 0)
    more = MORE if counts[1] else 0
    wanted = (
        [decodes, *counts[1:]],
        [[*mask, *[0] * MORE], [*states, *[0] * more], [*rebased, *[rebased[-1]] * more]],
    )
    return _same_classes(f"with {MORE} padding rows", _classified(function, padded), wanted)


def _speculating_batches_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    inputs = _with_drafts(inputs)
    counts, (mask, states, rebased) = _classified(function, inputs)
    turned = with_queries(inputs, HOST_STARTS, queries_of(inputs, HOST_STARTS)[::-1])
    for name in ("seq_lens_cpu", "is_prefilling", "num_decode_draft_tokens_cpu"):
        given = inputs[name]
        if isinstance(given, Array):
            turned[name] = given.with_values(given.data[::-1])
    backward = [rebased[-1] - start for start in rebased[::-1]]
    wanted = (counts, [mask[::-1], states[::-1], backward])
    return _same_classes("with requests reversed", _classified(function, turned), wanted)


def _splits_as_3_3_does(function: Function, inputs: Inputs) -> str | None:
    queries, flags = np.array(queries_of(inputs, HOST_STARTS)), inputs["is_prefilling"]
    prefilling = cast(Array, flags).data != 0 if flags is not None else np.zeros(queries.shape, np.bool_)
    first_chunks = prefilling & (queries > 0) & (one(inputs, "seq_lens_cpu").data <= queries)
    split = classes.split_expected(
        {
            "query_start_loc": one(inputs, HOST_STARTS),
            "is_prefilling": array(first_chunks, "bool"),
            "decode_threshold": 1,
            "require_uniform": False,
            "treat_short_extends_as_decodes": False,
        }
    )
    assert isinstance(split, Values)
    wanted = [split.outputs["num_decodes"], split.outputs["num_decode_tokens"]]
    counts, _ = _classified(function, {**inputs, "num_decode_draft_tokens_cpu": None})
    return changed("beside contract 3.3", [counts[0], counts[3]], wanted, (COUNTS[0], COUNTS[3]))


def _has_requests(inputs: Inputs) -> bool:
    return _class_count(inputs) > 0


CLASSES_RELATIONS: tuple[Relation, ...] = (
    relation(
        "classes_add_up",
        "Classes are all requests but idle ones behind the decodes, and have all tokens where no prefill follows one.",
        _classes_add_up,
    ),
    relation(
        "rebased_starts_are_the_suffix",
        "Starts of prefills are those of their tokens alone, idle requests among them counted.",
        _rebased_starts_are_the_suffix,
    ),
    relation(
        "drafts_of_nobody_are_none",
        "No counts of drafts, none of a request, and a model that never drafts are the same.",
        _drafts_of_nobody_are_none,
    ),
    relation(
        "speculation_takes_the_decodes",
        "Beside a request that speculates, all others with queries are prefills.",
        _speculation_takes_the_decodes,
        _has_requests,
    ),
    relation(
        "states_follow_from_lengths",
        "Beside drafts, lengths say only who has a state: who has more tokens than queries.",
        _states_follow_from_lengths,
        _has_requests,
    ),
    relation(
        "first_chunks_are_prefills",
        "Requests that begin are prefills, those of one token too.",
        _first_chunks_are_prefills,
        _has_requests,
    ),
    relation(
        "one_token_with_a_state_is_a_decode",
        "Requests of one token with a state are decodes, those with a prompt left too.",
        _one_token_with_a_state_is_a_decode,
        _has_requests,
    ),
    relation(
        "padding_is_counted_nowhere",
        "Requests without queries at the end change no count, unless all are decodes, and have no state.",
        _padding_is_counted_nowhere,
    ),
    relation(
        "speculating_batches_are_free_to_move",
        "Where a request speculates, requests in reverse order have the same counts.",
        _speculating_batches_are_free_to_move,
        _has_requests,
    ),
    relation(
        "splits_as_3_3_does",
        "Without speculation, decodes are those of contract 3.3 with threshold 1, where first chunks are prefilling.",
        _splits_as_3_3_does,
        _has_requests,
    ),
)
