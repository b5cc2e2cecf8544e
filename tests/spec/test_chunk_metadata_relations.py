"""The laws of chunk metadata hold on the specification, and each one catches faults that are planted here."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.arrays import array
from oracles.contracts.chunk_metadata_relations import RELATIONS
from reference.chunk_metadata import chunk_metadata

BY_NAME = {relation.name: relation for relation in RELATIONS}
each_relation = pytest.mark.parametrize("relation", RELATIONS, ids=list(BY_NAME))


def batch(lengths, chunk_size, *, first=0, dtype="int64", host_dtype="int64", strides=None, offset=0):
    starts = list(itertools.accumulate(lengths, initial=first))
    device = array(starts, dtype, strides, offset)
    return {"cu_seqlens": device, "cu_seqlens_cpu": array(starts, host_dtype), "chunk_size": chunk_size}


def specification(inputs):
    outputs = chunk_metadata(inputs["cu_seqlens"].data, inputs["cu_seqlens_cpu"].data, inputs["chunk_size"])
    return dict(zip(("chunk_indices", "chunk_offsets"), outputs, strict=True))


SMALL_BATCHES = [
    batch(lengths, chunk_size, first=first)
    for count in range(4)
    for lengths in itertools.product(range(6), repeat=count)
    for chunk_size in (1, 2, 3)
    for first in (0, 5)
]


@each_relation
def test_holds_on_every_small_batch(relation) -> None:
    for inputs in SMALL_BATCHES:
        assert relation.holds(specification, inputs) is None


@each_relation
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 700)), max_size=40),
    chunk_size=st.sampled_from([1, 7, 32, 64]),
    first=st.integers(-(2**31), 2**31 - 1 - 40 * 700),
    dtype=st.sampled_from(["int32", "int64"]),
    host_dtype=st.sampled_from(["int32", "int64"]),
    layout=st.sampled_from([(None, 0), ((1,), 3), ((4,), 1)]),
)
def test_holds_on_drawn_batches(relation, lengths, chunk_size, first, dtype, host_dtype, layout) -> None:
    strides, offset = layout
    inputs = batch(lengths, chunk_size, first=first, dtype=dtype, host_dtype=host_dtype, strides=strides, offset=offset)
    assert relation.holds(specification, inputs) is None


def test_a_single_element_may_have_stride_0() -> None:
    for relation in RELATIONS:
        assert relation.holds(specification, batch([], 4, strides=(0,))) is None


def test_a_batch_that_fills_the_range_of_its_dtype_is_not_shifted() -> None:
    inputs = batch([2**32 - 1], 2**31, first=-(2**31), dtype="int32")
    assert BY_NAME["shift_changes_nothing"].holds(explode, inputs) is None


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


@each_relation
@pytest.mark.parametrize(("device", "host"), [([0, 4, 8], [0, 4, 9]), ([0, 4, 3], [0, 4, 3])])
def test_does_not_apply_where_lengths_disagree_or_are_negative(relation, device, host) -> None:
    inputs = {"cu_seqlens": array(device, "int64"), "cu_seqlens_cpu": array(host, "int64"), "chunk_size": 2}
    assert relation.holds(explode, inputs) is None


def answer(rows, offsets):
    return {
        "chunk_indices": np.array(rows, dtype=np.int64).reshape(len(rows), 2),
        "chunk_offsets": np.array(offsets, dtype=np.int64),
    }


def edited(edit):
    """The specification with its rows and offsets changed by ``edit(inputs, starts, rows, offsets)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        right = specification(inputs)
        rows, offsets = right["chunk_indices"].tolist(), right["chunk_offsets"].tolist()
        return answer(*edit(inputs, inputs["cu_seqlens"].data.tolist(), rows, offsets))

    return wrong


@edited
def numbers_skip_empty_sequences(inputs, starts, rows, offsets):
    numbers = {sequence: number for number, sequence in enumerate(dict.fromkeys(row[0] for row in rows))}
    return [[numbers[sequence], chunk] for sequence, chunk in rows], offsets


@edited
def offsets_start_at_one(inputs, starts, rows, offsets):
    return rows, [offset + 1 for offset in offsets]


@edited
def floor_for_ceiling(inputs, starts, rows, offsets):
    counts = [(end - begin) // inputs["chunk_size"] for begin, end in itertools.pairwise(starts)]
    rows = [[sequence, chunk] for sequence, count in enumerate(counts) for chunk in range(count)]
    return rows, [0, *itertools.accumulate(counts)]


@edited
def one_chunk_for_an_empty_sequence(inputs, starts, rows, offsets):
    counts = [max(end - begin, 1) for begin, end in itertools.pairwise(offsets)]
    rows = [[sequence, chunk] for sequence, count in enumerate(counts) for chunk in range(count)]
    return rows, [0, *itertools.accumulate(counts)]


@edited
def last_row_lost(inputs, starts, rows, offsets):
    return rows[:-1], offsets


@edited
def chunks_counted_from_one(inputs, starts, rows, offsets):
    return [[sequence, chunk + 1] for sequence, chunk in rows], offsets


@edited
def sequences_counted_from_one(inputs, starts, rows, offsets):
    return [[sequence + 1, chunk] for sequence, chunk in rows], offsets


@edited
def rows_reversed(inputs, starts, rows, offsets):
    return rows[::-1], offsets


@edited
def first_start_taken_for_zero(inputs, starts, rows, offsets):
    counts = [-(-end // inputs["chunk_size"]) for end in starts]
    return rows, [0, *counts[1:]]


@edited
def padding_row_for_the_last_empty_sequence(inputs, starts, rows, offsets):
    return ([*rows, [-1, -1]] if starts[-2:-1] == starts[-1:] else rows), offsets


@edited
def only_the_first_two_sequences(inputs, starts, rows, offsets):
    return [row for row in rows if row[0] < 2], [min(offset, offsets[:3][-1]) for offset in offsets]


@edited
def chunk_numbers_run_through(inputs, starts, rows, offsets):
    return [[sequence, number] for number, (sequence, _) in enumerate(rows)], offsets


@edited
def chunks_lie_on_absolute_multiples(inputs, starts, rows, offsets):
    size = inputs["chunk_size"]
    counts = [-(-end // size) - begin // size if end > begin else 0 for begin, end in itertools.pairwise(starts)]
    rows = [[sequence, chunk] for sequence, count in enumerate(counts) for chunk in range(count)]
    return rows, [0, *itertools.accumulate(counts)]


@edited
def at_most_two_chunks_a_sequence(inputs, starts, rows, offsets):
    counts = [min(end - begin, 2) for begin, end in itertools.pairwise(offsets)]
    rows = [[sequence, chunk] for sequence, count in enumerate(counts) for chunk in range(count)]
    return rows, [0, *itertools.accumulate(counts)]


def flat_rows(inputs):
    right = specification(inputs)
    return {**right, "chunk_indices": right["chunk_indices"].reshape(-1)}


def offsets_without_the_total(inputs):
    right = specification(inputs)
    return {**right, "chunk_offsets": right["chunk_offsets"][:-1]}


CAUGHT_BY = {
    "offsets_count_chunks": [
        offsets_start_at_one,
        floor_for_ceiling,
        one_chunk_for_an_empty_sequence,
        last_row_lost,
        first_start_taken_for_zero,
        chunks_lie_on_absolute_multiples,
        at_most_two_chunks_a_sequence,
    ],
    "rows_lie_in_their_sequence": [
        numbers_skip_empty_sequences,
        offsets_start_at_one,
        chunks_counted_from_one,
        sequences_counted_from_one,
        rows_reversed,
        padding_row_for_the_last_empty_sequence,
        chunk_numbers_run_through,
    ],
    "rows_cover_tokens_once": [
        numbers_skip_empty_sequences,
        floor_for_ceiling,
        one_chunk_for_an_empty_sequence,
        last_row_lost,
        chunks_counted_from_one,
        sequences_counted_from_one,
        padding_row_for_the_last_empty_sequence,
        only_the_first_two_sequences,
        at_most_two_chunks_a_sequence,
    ],
    "shift_changes_nothing": [first_start_taken_for_zero, chunks_lie_on_absolute_multiples],
    "padding_changes_offsets_only": [one_chunk_for_an_empty_sequence, padding_row_for_the_last_empty_sequence],
    "empty_sequence_renumbers_only": [
        numbers_skip_empty_sequences,
        one_chunk_for_an_empty_sequence,
        only_the_first_two_sequences,
    ],
    "parts_join": [
        offsets_start_at_one,
        last_row_lost,
        rows_reversed,
        only_the_first_two_sequences,
        chunk_numbers_run_through,
    ],
    "cut_at_chunk_end_keeps_chunks": [
        chunks_counted_from_one,
        chunk_numbers_run_through,
        at_most_two_chunks_a_sequence,
        only_the_first_two_sequences,
    ],
}


def test_every_relation_has_a_planted_fault() -> None:
    assert set(CAUGHT_BY) == set(BY_NAME)


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in CAUGHT_BY.items() for fault in faults])
def test_catches_a_planted_fault(name, fault) -> None:
    problems = [BY_NAME[name].holds(fault, inputs) for inputs in SMALL_BATCHES]
    found = [problem for problem in problems if problem]
    assert found, f"{name} accepts a wrong function on all {len(SMALL_BATCHES)} small batches"
    assert all("\n" not in problem for problem in found)


@each_relation
@pytest.mark.parametrize("fault", [flat_rows, offsets_without_the_total])
def test_outputs_of_a_wrong_shape_break_every_law(relation, fault) -> None:
    assert "has shape" in relation.holds(fault, batch([5, 0, 9], 2))
