"""Laws of causal-convolution metadata that need no second implementation.

Inputs and outputs are those of contract 1.3; every law speaks of inputs that the contract allows. The first three laws
together leave one right answer; the others relate answers to different batches, so they also see a fault that the
arithmetic of the first ones shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, cast

import numpy as np

from oracles.arrays import DTYPES, Array, Inputs, array
from oracles.contract import Relation
from oracles.contracts._laws import Function, WrongShape, relation

Program = tuple[int, int]
FAR = 1 << 31
LARGEST_BLOCK = 64


class _Answer(NamedTuple):
    batch: list[int]
    blocks: list[int]
    total: int

    @property
    def programs(self) -> list[Program]:
        """Request and block of every program with work."""
        return list(zip(self.batch[: self.total], self.blocks[: self.total], strict=True))


def _size(inputs: Inputs) -> int:
    return cast(int, inputs["block_m"])


def _starts(inputs: Inputs) -> list[int]:
    return cast(list[int], cast(Array, inputs["query_start_loc"]).data.tolist())


def _lengths(inputs: Inputs) -> list[int]:
    return [end - begin for begin, end in pairwise(_starts(inputs))]


def _with(inputs: Inputs, starts: Sequence[int]) -> Inputs:
    """The same input with other starts, in the dtype and stride it has."""
    old = cast(Array, inputs["query_start_loc"])
    # A stride of 0 suits one element only, and one past 2^31 few of them.
    strides = old.strides if old.strides and 0 < old.strides[0] < FAR else None
    return {**inputs, "query_start_loc": array(starts, old.dtype, strides, old.offset)}


def _of_lengths(inputs: Inputs, lengths: Sequence[int]) -> Inputs:
    return _with(inputs, list(accumulate(lengths, initial=_starts(inputs)[0])))


def _answer(function: Function, inputs: Inputs) -> _Answer:
    outputs = function(inputs)
    batch, blocks = np.asarray(outputs["batch_ptr"]), np.asarray(outputs["token_chunk_offset_ptr"])
    total = outputs["total"]
    if not isinstance(total, int) or total < 0:
        raise WrongShape(f"total is {total!r}")
    for name, values in (("batch_ptr", batch), ("token_chunk_offset_ptr", blocks)):
        if values.shape != (2 * max(1024, total),):
            raise WrongShape(f"{name} has shape {values.shape} for {total} blocks")
    return _Answer(batch.tolist(), blocks.tolist(), total)


def _difference(what: str, found: Sequence[Program], wanted: Sequence[Program]) -> str | None:
    for place, (left, right) in enumerate(zip(found, wanted, strict=False)):
        if left != right:
            return f"{what}: program {place} is {left}, {right} follows from the law"
    if len(found) != len(wanted):
        return f"{what}: {len(found)} programs, {len(wanted)} follow from the law"
    return None


def _behind_the_total_is_padding(function: Function, inputs: Inputs) -> str | None:
    found = _answer(function, inputs)
    for name, values in (("batch_ptr", found.batch), ("token_chunk_offset_ptr", found.blocks)):
        for place, value in enumerate(values):
            if (value == -1) != (place >= found.total):
                return f"{name}[{place}] is {value} with {found.total} blocks"
    return None


def _programs_go_on_or_begin_anew(function: Function, inputs: Inputs) -> str | None:
    before, count = (-1, -1), len(_starts(inputs)) - 1
    for place, (request, block) in enumerate(_answer(function, inputs).programs):
        if not 0 <= request < count:
            return f"program {place} works on request {request} of {count}"
        goes_on = (request, block) == (before[0], before[1] + 1)
        if not goes_on and not (request > before[0] and block == 0):
            return f"program {place} is {(request, block)} behind {before}"
        before = (request, block)
    return None


def _blocks_cover_tokens_once(function: Function, inputs: Inputs) -> str | None:
    starts, size = _starts(inputs), _size(inputs)
    reached = starts[0]
    for place, (request, block) in enumerate(_answer(function, inputs).programs):
        if not 0 <= request < len(starts) - 1:
            return f"program {place} works on request {request} of {len(starts) - 1}"
        begin = starts[request] + block * size
        end = min(begin + size, starts[request + 1])
        if begin != reached or end <= begin:
            return f"tokens up to {reached} are covered, and program {place} works on {begin} to {end}"
        reached = end
    return None if reached == starts[-1] else f"tokens {reached} to {starts[-1]} have no program"


def _shift_changes_nothing(function: Function, inputs: Inputs) -> str | None:
    starts, limits = _starts(inputs), np.iinfo(DTYPES[cast(Array, inputs["query_start_loc"]).dtype])
    lowest, highest = int(limits.min) - starts[0], int(limits.max) - starts[-1]
    before = _answer(function, inputs).programs
    for shift in sorted({lowest, -starts[0], 1, highest} - {0}, key=abs):
        if lowest <= shift <= highest:
            moved = _answer(function, _with(inputs, [start + shift for start in starts])).programs
            problem = _difference(f"with {shift} added to every start", moved, before)
            if problem:
                return problem
    return None


def _empty_request_renumbers_only(function: Function, inputs: Inputs) -> str | None:
    lengths, found = _lengths(inputs), _answer(function, inputs).programs
    for at in sorted({0, len(lengths) // 2, len(lengths)}):
        grown = _answer(function, _of_lengths(inputs, [*lengths[:at], 0, *lengths[at:]])).programs
        wanted = [(request + (request >= at), block) for request, block in found]
        problem = _difference(f"with a request without tokens as number {at}", grown, wanted)
        if problem:
            return problem
    return None


def _order_of_requests_is_free(function: Function, inputs: Inputs) -> str | None:
    lengths = _lengths(inputs)
    forward = _answer(function, inputs).programs
    backward = _answer(function, _of_lengths(inputs, lengths[::-1])).programs
    mapped = sorted((len(lengths) - 1 - request, block) for request, block in backward)
    return _difference("as the programs of the reversed batch, sorted", forward, mapped)


def _cut_at_a_block_keeps_blocks(function: Function, inputs: Inputs) -> str | None:
    size, lengths = _size(inputs), _lengths(inputs)
    number = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    if number is None or lengths[number] <= size:
        return None
    kept = (lengths[number] // size + 1) // 2
    pieces = [*lengths[:number], kept * size, lengths[number] - kept * size, *lengths[number + 1 :]]
    wanted = [
        (number + 1, block - kept) if request == number and block >= kept else (request + (request > number), block)
        for request, block in _answer(function, inputs).programs
    ]
    cut = _answer(function, _of_lengths(inputs, pieces)).programs
    return _difference(f"with request {number} cut after {kept} blocks", cut, wanted)


def _larger_blocks_are_pairs(function: Function, inputs: Inputs) -> str | None:
    if _size(inputs) == LARGEST_BLOCK:
        return None
    small = _answer(function, inputs).programs
    large = _answer(function, {**inputs, "block_m": 2 * _size(inputs)}).programs
    wanted = [(request, block // 2) for request, block in small if block % 2 == 0]
    return _difference(f"with blocks of {2 * _size(inputs)} tokens", large, wanted)


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    starts = _starts(inputs)
    cut = (len(starts) - 1) // 2
    left = _answer(function, _with(inputs, starts[: cut + 1])).programs
    right = _answer(function, _with(inputs, starts[cut:])).programs
    joined = left + [(request + cut, block) for request, block in right]
    whole = _answer(function, inputs).programs
    return _difference(f"as the join of requests before {cut} and the others", whole, joined)


RELATIONS: tuple[Relation, ...] = (
    relation(
        "behind_the_total_is_padding",
        "Both columns are -1 from the total on, and nowhere before.",
        _behind_the_total_is_padding,
    ),
    relation(
        "programs_go_on_or_begin_anew",
        "A program has the next block of the same request, or block 0 of a later one.",
        _programs_go_on_or_begin_anew,
    ),
    relation(
        "blocks_cover_tokens_once",
        "The programs' blocks cover the batch from first to last token without overlap.",
        _blocks_cover_tokens_once,
    ),
    relation(
        "shift_changes_nothing",
        "Adding one constant to all starts, up to the ends of the dtype's range, changes nothing.",
        _shift_changes_nothing,
    ),
    relation(
        "empty_request_renumbers_only",
        "A request without tokens put anywhere raises the numbers behind it by one and changes nothing else.",
        _empty_request_renumbers_only,
    ),
    relation(
        "order_of_requests_is_free",
        "The reversed batch has the same programs, sorted by the requests they had.",
        _order_of_requests_is_free,
    ),
    relation(
        "cut_at_a_block_keeps_blocks",
        "A request cut in two where a block ends keeps its blocks: the later ones belong to the new request.",
        _cut_at_a_block_keeps_blocks,
    ),
    relation(
        "larger_blocks_are_pairs",
        "Blocks of twice the size are the pairs of neighbouring blocks of a request.",
        _larger_blocks_are_pairs,
    ),
    relation(
        "parts_join",
        "The programs of a batch are those of its first half, followed by those of its second half, renumbered.",
        _parts_join,
    ),
)
