"""Laws of the Mamba chunk layout that need no second implementation.

Inputs and outputs are those of contract 1.2; every law speaks of inputs that the contract allows. The first four laws
together leave one right answer; the others relate answers to different batches, so they also see a fault that the
arithmetic of the first ones shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, cast

import numpy as np

from oracles.arrays import DTYPES, Array, Inputs, Value, array
from oracles.contract import Relation
from oracles.contracts._laws import Function, WrongShape, relation

FAR = 1 << 31
OUTPUTS = ("cu_chunk_seqlens", "seq_idx", "last_chunk_indices", "checkpoint_chunk_indices")


class _Request(NamedTuple):
    length: int
    computed: int
    checkpoint: int


class _Answer(NamedTuple):
    cu: list[int]
    owners: list[int]
    last: list[int]
    checkpoints: list[int]


def _size(inputs: Inputs) -> int:
    return cast(int, inputs["chunk_size"])


def _values(inputs: Inputs, name: str) -> list[int]:
    return cast(list[int], cast(Array, inputs[name]).data.tolist())


def _requests(inputs: Inputs) -> list[_Request]:
    lengths = [end - begin for begin, end in pairwise(_values(inputs, "query_start_loc"))]
    given = inputs["checkpoint_offsets"] is not None
    checkpoints = _values(inputs, "checkpoint_offsets") if given else [0] * len(lengths)
    columns = (lengths, _values(inputs, "num_computed_tokens"), checkpoints)
    return [_Request(*each) for each in zip(*columns, strict=True)]


def _with(inputs: Inputs, requests: Sequence[_Request]) -> Inputs:
    """The same input with other requests, in the dtypes and strides it has."""
    values: dict[str, list[int]] = {
        "query_start_loc": list(accumulate((each.length for each in requests), initial=0)),
        "num_computed_tokens": [each.computed for each in requests],
        "checkpoint_offsets": [each.checkpoint for each in requests],
    }

    def changed(name: str, old: Value) -> Value:
        if not isinstance(old, Array):
            return old
        # A stride of 0 suits one element only, and one past 2^31 few of them.
        strides = old.strides if old.strides and 0 < old.strides[0] < FAR else None
        return array(values[name], old.dtype, strides, old.offset)

    return {name: changed(name, value) for name, value in inputs.items()}


def _answer(function: Function, inputs: Inputs) -> _Answer:
    outputs = function(inputs)
    found = _Answer(*(np.asarray(outputs[name]).tolist() for name in OUTPUTS))
    count = len(_requests(inputs))
    for name, values in zip(OUTPUTS, found, strict=True):
        if np.asarray(outputs[name]).ndim != 1:
            raise WrongShape(f"{name} has shape {np.asarray(outputs[name]).shape}")
        if name.endswith("chunk_indices") and len(values) != count:
            raise WrongShape(f"{name} has {len(values)} elements for {count} requests")
    if len(found.cu) != len(found.owners) + 1:
        raise WrongShape(f"cu_chunk_seqlens has {len(found.cu)} elements for {len(found.owners)} of seq_idx")
    return found


def _difference(what: str, found: _Answer, wanted: _Answer) -> str | None:
    for name, one, other in zip(OUTPUTS, found, wanted, strict=True):
        for place, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return f"{what}: {name}[{place}] is {left}, {right} follows from the law"
        if len(one) != len(other):
            return f"{what}: {name} has {len(one)} elements, {len(other)} follow from the law"
    return None


def _ends_grow_to_the_last_token(function: Function, inputs: Inputs) -> str | None:
    cu = _answer(function, inputs).cu
    total = _values(inputs, "query_start_loc")[-1]
    for place, (begin, end) in enumerate(pairwise(cu)):
        if end <= begin:
            return f"chunk {place} holds tokens {begin} to {end}"
    return None if (cu[0], cu[-1]) == (0, total) else f"chunks go from {cu[0]} to {cu[-1]}, tokens from 0 to {total}"


def _chunks_stay_in_their_request(function: Function, inputs: Inputs) -> str | None:
    starts, found = _values(inputs, "query_start_loc"), _answer(function, inputs)
    for place, owner in enumerate(found.owners):
        if not 0 <= owner < len(starts) - 1:
            return f"seq_idx[{place}] is {owner} of {len(starts) - 1} requests"
        if not starts[owner] <= found.cu[place] <= found.cu[place + 1] <= starts[owner + 1]:
            held = f"tokens {found.cu[place]} to {found.cu[place + 1]}"
            return f"chunk {place} holds {held}; its request {owner} has {starts[owner]} to {starts[owner + 1]}"
    return None


def _ends_are_where_they_must_be(function: Function, inputs: Inputs) -> str | None:
    size, ends = _size(inputs), set(_answer(function, inputs).cu[1:])
    wanted: dict[int, str] = {}
    for number, (start, each) in enumerate(zip(_values(inputs, "query_start_loc"), _requests(inputs), strict=False)):
        multiples = range(size - each.computed % size, each.length + 1, size)
        wanted |= {start + place: f"a multiple in request {number}" for place in multiples}
        wanted |= {start + place: f"the end of request {number}" for place in (each.length,) if place}
        wanted |= {start + place: f"the checkpoint of request {number}" for place in (each.checkpoint,) if place}
    if wanted.keys() - ends:
        first = min(wanted.keys() - ends)
        return f"no chunk ends behind token {first - 1}: {wanted[first]}"
    return f"a chunk ends behind token {min(ends - wanted.keys()) - 1} for no reason" if ends - wanted.keys() else None


def _indices_name_the_chunks_that_end_there(function: Function, inputs: Inputs) -> str | None:
    starts, found = _values(inputs, "query_start_loc"), _answer(function, inputs)
    for number, each in enumerate(_requests(inputs)):
        for name, chunk, offset in (
            ("last_chunk_indices", found.last[number], each.length),
            ("checkpoint_chunk_indices", found.checkpoints[number], each.checkpoint),
        ):
            if not offset:
                if chunk != -1:
                    return f"{name}[{number}] is {chunk}, and there is no such chunk"
            elif not 0 <= chunk < len(found.owners) or found.cu[chunk + 1] != starts[number] + offset:
                return f"{name}[{number}] is {chunk}, which does not end behind token {starts[number] + offset - 1}"
    return None


def _cut_at_a_multiple_keeps_chunks(function: Function, inputs: Inputs) -> str | None:
    """A prompt cut into two steps, here as two requests of one batch."""
    size, requests = _size(inputs), _requests(inputs)
    number, at = max(
        ((number, size - each.computed % size) for number, each in enumerate(requests)),
        key=lambda cut: requests[cut[0]].length - cut[1],
        default=(0, 0),
    )
    room = requests[number].length - at if requests else 0
    if room <= 0:
        return None
    at += (room - 1) // size // 2 * size
    each = requests[number]
    in_second = each.checkpoint > at
    head = _Request(at, each.computed, 0 if in_second else each.checkpoint)
    tail = _Request(each.length - at, each.computed + at, each.checkpoint - at if in_second else 0)
    if tail.computed > np.iinfo(DTYPES[cast(Array, inputs["num_computed_tokens"]).dtype]).max:
        return None
    whole = _answer(function, inputs)
    cut = _answer(function, _with(inputs, [*requests[:number], head, tail, *requests[number + 1 :]]))
    boundary = _values(inputs, "query_start_loc")[number] + at
    owners = [owner + (begin >= boundary) for owner, begin in zip(whole.owners, whole.cu, strict=False)]
    checkpoints = list(whole.checkpoints)
    checkpoints.insert(number if in_second else number + 1, -1)
    inner = whole.cu.index(boundary) - 1 if boundary in whole.cu else None
    if inner is None:
        return f"no chunk of request {number} ends behind its token {at - 1}, a multiple of {size}"
    last = [*whole.last[:number], inner, *whole.last[number:]]
    return _difference(
        f"with request {number} cut after {at} tokens", cut, _Answer(whole.cu, owners, last, checkpoints)
    )


def _order_of_requests_is_free(function: Function, inputs: Inputs) -> str | None:
    """The batch in reverse: the same chunks for each request, by their sizes and places."""
    requests = _requests(inputs)
    forward = _by_request(_answer(function, inputs), len(requests))
    backward = _by_request(_answer(function, _with(inputs, requests[::-1])), len(requests))
    for number, (one, other) in enumerate(zip(forward, backward[::-1], strict=True)):
        if one != other:
            return f"request {number} has chunks, last and checkpoint {one}, and {other} in the reversed batch"
    return None


def _by_request(found: _Answer, count: int) -> list[tuple[list[int], int | None, int | None]]:
    """Sizes of each request's chunks, and which of them are its last and its checkpoint's."""
    sizes: list[list[int]] = [[] for _ in range(count)]
    places = []
    for owner, (begin, end) in zip(found.owners, pairwise(found.cu), strict=True):
        if not 0 <= owner < count:
            raise WrongShape(f"seq_idx names request {owner} of {count}")
        places.append(len(sizes[owner]))
        sizes[owner].append(end - begin)

    def place(number: int, chunk: int) -> int | None:
        owned = 0 <= chunk < len(places) and found.owners[chunk] == number
        return places[chunk] if owned else None if chunk == -1 else chunk - (1 << 40)

    indices = zip(found.last, found.checkpoints, strict=True)
    return [(sizes[n], place(n, last), place(n, cut)) for n, (last, cut) in enumerate(indices)]


def _empty_request_renumbers_only(function: Function, inputs: Inputs) -> str | None:
    requests, found = _requests(inputs), _answer(function, inputs)
    size = _size(inputs)
    for at in sorted({0, len(requests) // 2, len(requests)}):
        for computed in {0, size - 1}:
            if computed > np.iinfo(DTYPES[cast(Array, inputs["num_computed_tokens"]).dtype]).max:
                continue
            wanted = _Answer(
                found.cu,
                [owner + (owner >= at) for owner in found.owners],
                [*found.last[:at], -1, *found.last[at:]],
                [*found.checkpoints[:at], -1, *found.checkpoints[at:]],
            )
            grown = _answer(function, _with(inputs, [*requests[:at], _Request(0, computed, 0), *requests[at:]]))
            problem = _difference(f"with a request without tokens as number {at}", grown, wanted)
            if problem:
                return problem
    return None


def _whole_chunks_computed_change_nothing(function: Function, inputs: Inputs) -> str | None:
    size, requests = _size(inputs), _requests(inputs)
    highest = int(np.iinfo(DTYPES[cast(Array, inputs["num_computed_tokens"]).dtype]).max)
    found = _answer(function, inputs)
    for what, moved in (
        ("one chunk computed more", [each.computed + size for each in requests]),
        ("all whole chunks taken away", [each.computed % size for each in requests]),
        ("all whole chunks that fit", [each.computed + (highest - each.computed) // size * size for each in requests]),
    ):
        if max(moved, default=0) > highest:
            continue
        others = [each._replace(computed=computed) for each, computed in zip(requests, moved, strict=True)]
        problem = _difference(f"with {what}", _answer(function, _with(inputs, others)), found)
        if problem:
            return problem
    return None


def _checkpoints_only_cut(function: Function, inputs: Inputs) -> str | None:
    """Without checkpoints (0, or ``None``) the ends are the same but for those at checkpoints."""
    requests, found = _requests(inputs), _answer(function, inputs)
    zeros = _with(inputs, [each._replace(checkpoint=0) for each in requests])
    plain = _answer(function, zeros)
    problem = _difference(
        "with None for no checkpoints", _answer(function, {**zeros, "checkpoint_offsets": None}), plain
    )
    if problem:
        return problem
    starts = _values(inputs, "query_start_loc")
    at = {start + each.checkpoint for start, each in zip(starts, requests, strict=False) if each.checkpoint}
    if set(plain.cu) - set(found.cu):
        return f"ends {sorted(set(plain.cu) - set(found.cu))[:5]} are lost with checkpoints"
    if set(found.cu) - set(plain.cu) - at:
        return f"ends {sorted(set(found.cu) - set(plain.cu) - at)[:5]} appear with checkpoints, and none is there"
    return None


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    requests, whole = _requests(inputs), _answer(function, inputs)
    cut = len(requests) // 2
    left = _answer(function, _with(inputs, requests[:cut]))
    right = _answer(function, _with(inputs, requests[cut:]))
    chunks = len(left.owners)

    def moved(indices: list[int]) -> list[int]:
        return [index + chunks if index >= 0 else index for index in indices]

    joined = _Answer(
        left.cu + [left.cu[-1] + end for end in right.cu[1:]],
        left.owners + [owner + cut for owner in right.owners],
        left.last + moved(right.last),
        left.checkpoints + moved(right.checkpoints),
    )
    return _difference(f"as the join of requests before {cut} and the others", whole, joined)


RELATIONS: tuple[Relation, ...] = (
    relation(
        "ends_grow_to_the_last_token",
        "The ends start at 0, grow, and reach the last token: every token lies in exactly one chunk.",
        _ends_grow_to_the_last_token,
    ),
    relation(
        "chunks_stay_in_their_request",
        "Each chunk lies between the starts of the request that seq_idx names and the next one.",
        _chunks_stay_in_their_request,
    ),
    relation(
        "ends_are_where_they_must_be",
        "A chunk ends at absolute multiples, at the request's end and at its checkpoint, and nowhere else.",
        _ends_are_where_they_must_be,
    ),
    relation(
        "indices_name_the_chunks_that_end_there",
        "The last chunk ends with its request, the checkpoint's chunk at the checkpoint; -1 where there is neither.",
        _indices_name_the_chunks_that_end_there,
    ),
    relation(
        "cut_at_a_multiple_keeps_chunks",
        "A prompt cut into two steps at an absolute multiple keeps its chunks: the later ones belong to the new step.",
        _cut_at_a_multiple_keeps_chunks,
    ),
    relation(
        "order_of_requests_is_free",
        "The same requests in reverse order have the same chunks each.",
        _order_of_requests_is_free,
    ),
    relation(
        "empty_request_renumbers_only",
        "A request without tokens put anywhere, whatever it has computed, only adds -1 to the indices and renumbers.",
        _empty_request_renumbers_only,
    ),
    relation(
        "whole_chunks_computed_change_nothing",
        "Computed counts matter modulo the chunk size only, up to the end of their dtype's range.",
        _whole_chunks_computed_change_nothing,
    ),
    relation(
        "checkpoints_only_cut",
        "Checkpoints add ends where they are and change no other; None stands for zeros.",
        _checkpoints_only_cut,
    ),
    relation(
        "parts_join",
        "The layout of a batch is that of its first half, followed by that of its second half moved behind it.",
        _parts_join,
    ),
)
