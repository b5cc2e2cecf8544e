"""Laws of the tokens of requests that speculate, and of all others (contract 3.4).

They speak of inputs for which the contract gives values: device and host agree. The laws ``each_token_is_in_one_part``
and ``a_request_keeps_its_tokens`` together leave one right answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from oracles.arrays import Inputs, array
from oracles.contract import Relation
from oracles.contracts import _batch_classes as classes
from oracles.contracts._law_arrays import Numbers, difference, one, refilled, shaped
from oracles.contracts._law_queries import HOST_STARTS, MORE, queries_of
from oracles.contracts._laws import Function, WrongShape, relation


class Part(NamedTuple):
    """The tokens of one part, and where those of each of its requests begin."""

    tokens: Numbers
    starts: Numbers


def _parts(function: Function, inputs: Inputs) -> tuple[Part, Part]:
    """The part that speculates, then the other one. Refused with ``WrongShape``: sizes that no answer has."""
    outputs, mask = function(inputs), _mask(inputs)
    tokens, other_tokens = (np.asarray(outputs[name]) for name in classes.PARTITION[:2])
    total = int(one(inputs, HOST_STARTS).data[-1])
    if tokens.ndim != 1 or other_tokens.shape != (total - tokens.size,):
        raise WrongShape(f"token indices have shapes {tokens.shape} and {other_tokens.shape}, of {total} tokens")
    sizes = int(mask.sum()) + 1, int((~mask).sum()) + 1
    starts, others = (
        shaped(name, outputs[name], (size,)) for name, size in zip(classes.PARTITION[2:], sizes, strict=True)
    )
    return Part(tokens, starts), Part(other_tokens, others)


def _mask(inputs: Inputs) -> Numbers:
    return one(inputs, "spec_mask_cpu").data.astype(np.bool_)


def _step(inputs: Inputs, queries: Sequence[int], mask: Sequence[bool]) -> Inputs:
    """The same step with other requests."""
    starts = np.cumsum([0, *queries])
    return {
        "query_start_loc": refilled(one(inputs, "query_start_loc"), starts),
        HOST_STARTS: refilled(one(inputs, HOST_STARTS), starts),
        "spec_mask_cpu": array(list(mask), "bool"),
    }


def _differences(what: str, found: Sequence[Part], wanted: Sequence[Part]) -> str | None:
    for part, left, right in zip(("spec", "non_spec"), found, wanted, strict=True):
        for name, ours, theirs in (
            (f"{part}_token_indices", left.tokens, right.tokens),
            (f"{part}_query_start_loc", left.starts, right.starts),
        ):
            if ours.shape != theirs.shape:
                return f"{what}, {name} has {ours.size} elements, {theirs.size} follow from the law"
            problem = difference(f"{what}, {name}", ours, theirs)
            if problem:
                return problem
    return None


def _each_token_is_in_one_part(function: Function, inputs: Inputs) -> str | None:
    parts = _parts(function, inputs)
    for part in parts:
        fallen = np.flatnonzero(np.diff(part.tokens) <= 0)
        if fallen.size:
            return f"token indices {part.tokens[fallen[0] :][:2].tolist()} follow one another"
    tokens = np.sort(np.concatenate([part.tokens for part in parts]))
    return difference("both parts together, in order", tokens, np.arange(tokens.size))


def _a_request_keeps_its_tokens(function: Function, inputs: Inputs) -> str | None:
    starts, mask = one(inputs, HOST_STARTS).data.tolist(), _mask(inputs).tolist()
    for part, speculates in zip(_parts(function, inputs), (True, False), strict=True):
        ranges = [pair for pair, drafted in zip(pairwise(starts), mask, strict=True) if drafted is speculates]
        for (begin, end), (first, last) in zip(ranges, pairwise(part.starts.tolist()), strict=True):
            if part.tokens[first:last].tolist() != list(range(begin, end)):
                return f"tokens {begin}..{end - 1} of a request are {part.tokens[first:last].tolist()} of its part"
    return None


def _starts_are_those_of_packed_tokens(function: Function, inputs: Inputs) -> str | None:
    queries, mask = np.array(queries_of(inputs, HOST_STARTS), np.int64), _mask(inputs)
    for name, part, own in zip(classes.PARTITION[2:], _parts(function, inputs), (mask, ~mask), strict=True):
        problem = difference(name, part.starts, np.cumsum([0, *queries[own].tolist()]))
        if problem or part.tokens.size != part.starts[-1]:
            return problem or f"{name} ends at {part.starts[-1]}, of {part.tokens.size} tokens"
    return None


def _the_other_mask_swaps_the_parts(function: Function, inputs: Inputs) -> str | None:
    other = {**inputs, "spec_mask_cpu": array(~_mask(inputs), "bool")}
    return _differences("with the mask inverted", _parts(function, other), _parts(function, inputs)[::-1])


def _padding_has_starts_only(function: Function, inputs: Inputs) -> str | None:
    queries, mask = queries_of(inputs, HOST_STARTS), _mask(inputs).tolist()
    spec, others = _parts(function, inputs)
    padded = _step(inputs, [*queries, *[0] * MORE], [*mask, *[False] * MORE])
    longer = Part(others.tokens, np.append(others.starts, [others.starts[-1]] * MORE))
    return _differences(f"with {MORE} padding rows", _parts(function, padded), (spec, longer))


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    queries, mask = queries_of(inputs, HOST_STARTS), _mask(inputs).tolist()
    cut = len(queries) // 2
    first = _parts(function, _step(inputs, queries[:cut], mask[:cut]))
    later = _parts(function, _step(inputs, queries[cut:], mask[cut:]))
    joined = [
        Part(
            np.concatenate([one_part.tokens, other.tokens + sum(queries[:cut])]),
            np.concatenate([one_part.starts, other.starts[1:] + one_part.starts[-1]]),
        )
        for one_part, other in zip(first, later, strict=True)
    ]
    return _differences(f"with requests from {cut} on in a call of their own", joined, _parts(function, inputs))


def _a_request_cut_in_two_keeps_its_part(function: Function, inputs: Inputs) -> str | None:
    queries, mask = queries_of(inputs, HOST_STARTS), _mask(inputs).tolist()
    at = int(np.argmax(queries))
    half = queries[at] // 2
    pieces = _step(
        inputs, [*queries[:at], half, queries[at] - half, *queries[at + 1 :]], [*mask[:at], mask[at], *mask[at:]]
    )
    found, wanted = _parts(function, pieces), [*_parts(function, inputs)]
    place, own = sum(drafted == mask[at] for drafted in mask[:at]), 0 if mask[at] else 1
    starts = wanted[own].starts
    wanted[own] = Part(wanted[own].tokens, np.insert(starts, place + 1, starts[place] + half))
    return _differences(f"with request {at} cut in two", found, wanted)


def _a_token_more_at_the_end_is_one_more(function: Function, inputs: Inputs) -> str | None:
    queries, mask, wanted = queries_of(inputs, HOST_STARTS), _mask(inputs).tolist(), [*_parts(function, inputs)]
    longer = _parts(function, _step(inputs, [*queries[:-1], queries[-1] + 1], mask))
    own = 0 if mask[-1] else 1
    starts = wanted[own].starts.copy()
    starts[-1] += 1
    wanted[own] = Part(np.append(wanted[own].tokens, sum(queries)), starts)
    return _differences("with a token more in the last request", longer, wanted)


def _has_requests(inputs: Inputs) -> bool:
    return _mask(inputs).size > 0


PARTITION_RELATIONS: tuple[Relation, ...] = (
    relation(
        "each_token_is_in_one_part",
        "Both parts rise, and together have each token once.",
        _each_token_is_in_one_part,
    ),
    relation(
        "a_request_keeps_its_tokens",
        "Between a request's starts its part has the request's tokens, in order.",
        _a_request_keeps_its_tokens,
        _has_requests,
    ),
    relation(
        "starts_are_those_of_packed_tokens",
        "Starts of a part count the tokens of its requests, those without any included.",
        _starts_are_those_of_packed_tokens,
    ),
    relation(
        "the_other_mask_swaps_the_parts",
        "Where the others speculate, the parts change places.",
        _the_other_mask_swaps_the_parts,
    ),
    relation(
        "padding_has_starts_only",
        "Requests without tokens at the end repeat the last start of the others, and change nothing else.",
        _padding_has_starts_only,
    ),
    relation(
        "parts_join",
        "Two calls for the first and the other requests, the second one's tokens moved, give what one call gives.",
        _parts_join,
        lambda inputs: _mask(inputs).size > 1,
    ),
    relation(
        "a_request_cut_in_two_keeps_its_part",
        "A request cut into two adds a start to its part, and changes no token.",
        _a_request_cut_in_two_keeps_its_part,
        lambda inputs: max(queries_of(inputs, HOST_STARTS), default=0) > 1,
    ),
    relation(
        "a_token_more_at_the_end_is_one_more",
        "One more token in the last request is the last one of its part.",
        _a_token_more_at_the_end_is_one_more,
        _has_requests,
    ),
)
