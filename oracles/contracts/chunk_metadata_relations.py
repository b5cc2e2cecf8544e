"""Laws of chunk metadata that need no second implementation.

Inputs are ``cu_seqlens`` and ``cu_seqlens_cpu`` (:class:`oracles.arrays.Array`) and ``chunk_size``; outputs are
``chunk_indices`` and ``chunk_offsets``. Every law speaks of batches whose device and host lengths agree and are not
negative: for any other input the answer is ``None`` at once. The first two laws together leave one right answer; the
others relate answers to different batches, so they also see a fault that the arithmetic of the first ones shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from oracles.arrays import DTYPES, Array, Inputs, array
from oracles.contract import Relation
from oracles.contracts._laws import Function, WrongShape, relation

Row = list[int]


class _Answer(NamedTuple):
    rows: list[Row]
    offsets: list[int]


def _starts(inputs: Inputs) -> list[int]:
    return cast(list[int], cast(Array, inputs["cu_seqlens"]).data.tolist())


def _chunk_size(inputs: Inputs) -> int:
    return cast(int, inputs["chunk_size"])


def _lengths(starts: list[int]) -> list[int]:
    return [end - begin for begin, end in pairwise(starts)]


def _agrees(inputs: Inputs) -> bool:
    lengths = _lengths(_starts(inputs))
    return lengths == _lengths(cast(Array, inputs["cu_seqlens_cpu"]).data.tolist()) and min(lengths, default=0) >= 0


def _answer(function: Function, inputs: Inputs) -> _Answer:
    outputs = function(inputs)
    indices, offsets = np.asarray(outputs["chunk_indices"]), np.asarray(outputs["chunk_offsets"])
    if indices.ndim != 2 or indices.shape[1] != 2:
        raise WrongShape(f"chunk_indices has shape {indices.shape}, not [T, 2]")
    if offsets.shape != (len(_starts(inputs)),):
        raise WrongShape(f"chunk_offsets has shape {offsets.shape} for {len(_starts(inputs)) - 1} sequences")
    return _Answer(indices.tolist(), offsets.tolist())


def _with(inputs: Inputs, change: Callable[[list[int]], list[int]]) -> Inputs:
    """The same input with ``change`` made to both arrays of starts, in their dtypes and strides."""

    def changed(old: Array) -> Array:
        # A stride of 0 suits one element only.
        strides = old.strides if old.strides and old.strides[0] else None
        return array(change(old.data.tolist()), old.dtype, strides, old.offset)

    return {name: changed(value) if isinstance(value, Array) else value for name, value in inputs.items()}


def _shifted(inputs: Inputs, shift: int) -> Inputs:
    return _with(inputs, lambda starts: [start + shift for start in starts])


def _with_start_repeated(inputs: Inputs, place: int) -> Inputs:
    """The same batch with an empty sequence as number ``place``."""
    return _with(inputs, lambda starts: [*starts[: place + 1], *starts[place:]])


def _difference(what: str, found: _Answer, wanted: _Answer) -> str | None:
    rows = _first_unequal(f"{what}: chunk_indices", found.rows, wanted.rows)
    return rows or _first_unequal(f"{what}: chunk_offsets", found.offsets, wanted.offsets)


def _first_unequal(what: str, found: Sequence[object], wanted: Sequence[object]) -> str | None:
    for place, (left, right) in enumerate(zip(found, wanted, strict=False)):
        if left != right:
            return f"{what}[{place}] is {left}, {right} follows from the law"
    if len(found) != len(wanted):
        return f"{what} has {len(found)} rows, {len(wanted)} follow from the law"
    return None


def _offsets_count_chunks(function: Function, inputs: Inputs) -> str | None:
    size = _chunk_size(inputs)
    rows, offsets = _answer(function, inputs)
    if offsets[0] != 0:
        return f"chunk_offsets[0] is {offsets[0]}"
    for i, length in enumerate(_lengths(_starts(inputs))):
        chunks = offsets[i + 1] - offsets[i]
        # The ceiling without a division: that many chunks hold the tokens, and one fewer would not.
        if chunks < 0 or not chunks * size >= length > (chunks - 1) * size:
            return f"chunk_offsets gives sequence {i} {chunks} chunks of {size} for {length} tokens"
    if offsets[-1] != len(rows):
        return f"the last of chunk_offsets is {offsets[-1]}, and chunk_indices has {len(rows)} rows"
    return None


def _rows_lie_in_their_sequence(function: Function, inputs: Inputs) -> str | None:
    rows, offsets = _answer(function, inputs)
    for number, (sequence, chunk) in enumerate(rows):
        if not 0 <= sequence < len(offsets) - 1:
            return f"chunk_indices[{number}] names sequence {sequence} of {len(offsets) - 1}"
        if not offsets[sequence] <= number < offsets[sequence + 1] or chunk != number - offsets[sequence]:
            span = f"{offsets[sequence]} to {offsets[sequence + 1]}"
            return f"chunk_indices[{number}] is {(sequence, chunk)}, and sequence {sequence} owns rows {span}"
    return None


def _rows_cover_tokens_once(function: Function, inputs: Inputs) -> str | None:
    starts, size = _starts(inputs), _chunk_size(inputs)
    pieces = []
    for sequence, chunk in _answer(function, inputs).rows:
        if not 0 <= sequence < len(starts) - 1:
            return f"a row names sequence {sequence} of {len(starts) - 1}"
        begin = starts[sequence] + chunk * size
        pieces.append((begin, min(begin + size, starts[sequence + 1])))
    reached = starts[0]
    for begin, end in sorted(pieces):
        if begin != reached or end <= begin:
            return f"tokens up to {reached} are covered, and the next piece is {begin} to {end}"
        reached = end
    return None if reached == starts[-1] else f"tokens {reached} to {starts[-1]} are in no piece"


def _shift_changes_nothing(function: Function, inputs: Inputs) -> str | None:
    arrays = [value for value in inputs.values() if isinstance(value, Array)]
    lowest = max(int(np.iinfo(DTYPES[item.dtype]).min) - min(item.data.tolist()) for item in arrays)
    highest = min(int(np.iinfo(DTYPES[item.dtype]).max) - max(item.data.tolist()) for item in arrays)
    shifts = {shift for shift in (lowest, -_starts(inputs)[0], 1, highest) if shift and lowest <= shift <= highest}
    if not shifts:
        return None
    before = _answer(function, inputs)
    for shift in sorted(shifts, key=abs):
        moved = _answer(function, _shifted(inputs, shift))
        problem = _difference(f"with {shift} added to every start", moved, before)
        if problem:
            return problem
    return None


def _padding_changes_offsets_only(function: Function, inputs: Inputs) -> str | None:
    rows, offsets = _answer(function, inputs)
    padded = _answer(function, _with_start_repeated(inputs, len(offsets) - 1))
    return _difference("with an empty sequence appended", padded, _Answer(rows, [*offsets, offsets[-1]]))


def _empty_sequence_renumbers_only(function: Function, inputs: Inputs) -> str | None:
    rows, offsets = _answer(function, inputs)
    count = len(offsets) - 1
    for place in sorted({0, count // 2, max(count - 1, 0)}):
        wanted = _Answer(
            [[sequence + (sequence >= place), chunk] for sequence, chunk in rows],
            [*offsets[: place + 1], *offsets[place:]],
        )
        grown = _answer(function, _with_start_repeated(inputs, place))
        problem = _difference(f"with an empty sequence as number {place}", grown, wanted)
        if problem:
            return problem
    return None


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    whole = _answer(function, inputs)
    cut = (len(whole.offsets) - 1) // 2
    left = _answer(function, _with(inputs, lambda starts: starts[: cut + 1]))
    right = _answer(function, _with(inputs, lambda starts: starts[cut:]))
    joined = _Answer(
        left.rows + [[sequence + cut, chunk] for sequence, chunk in right.rows],
        left.offsets + [left.offsets[-1] + offset for offset in right.offsets[1:]],
    )
    return _difference(f"as the join of sequences before {cut} and the others", whole, joined)


def _cut_at_chunk_end_keeps_chunks(function: Function, inputs: Inputs) -> str | None:
    size, lengths = _chunk_size(inputs), _lengths(_starts(inputs))
    long = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    if long is None or lengths[long] <= size:
        return None
    rows, offsets = _answer(function, inputs)
    kept = (lengths[long] // size + 1) // 2
    wanted = _Answer(
        [
            [long + 1, chunk - kept] if sequence == long and chunk >= kept else [sequence + (sequence > long), chunk]
            for sequence, chunk in rows
        ],
        [*offsets[: long + 1], offsets[long] + kept, *offsets[long + 1 :]],
    )
    cut = _with(inputs, lambda starts: [*starts[: long + 1], starts[long] + kept * size, *starts[long + 1 :]])
    return _difference(f"with sequence {long} cut after {kept} chunks", _answer(function, cut), wanted)


RELATIONS: tuple[Relation, ...] = (
    relation(
        "offsets_count_chunks",
        "Offsets start at 0, grow by each sequence's number of chunks, and end at the number of rows.",
        _offsets_count_chunks,
        _agrees,
    ),
    relation(
        "rows_lie_in_their_sequence",
        "Each row lies between the two offsets of the sequence it names, and its chunk number is its place there.",
        _rows_lie_in_their_sequence,
        _agrees,
    ),
    relation(
        "rows_cover_tokens_once",
        "The token ranges that the rows stand for cover the batch from first to last token without overlap.",
        _rows_cover_tokens_once,
        _agrees,
    ),
    relation(
        "shift_changes_nothing",
        "Adding one constant to all starts, up to the ends of the dtype's range, changes nothing.",
        _shift_changes_nothing,
        _agrees,
    ),
    relation(
        "padding_changes_offsets_only",
        "An empty sequence appended to the batch repeats the last offset and changes nothing else.",
        _padding_changes_offsets_only,
        _agrees,
    ),
    relation(
        "empty_sequence_renumbers_only",
        "An empty sequence put anywhere raises the numbers of the sequences after it by one and changes nothing else.",
        _empty_sequence_renumbers_only,
        _agrees,
    ),
    relation(
        "parts_join",
        "The metadata of a batch is that of its first half, followed by that of its second half moved behind it.",
        _parts_join,
        _agrees,
    ),
    relation(
        "cut_at_chunk_end_keeps_chunks",
        "A sequence cut in two where a chunk ends keeps its chunks: the later ones belong to the new sequence.",
        _cut_at_chunk_end_keeps_chunks,
        _agrees,
    ),
)
