"""The laws of causal-convolution metadata hold on the specification, and each catches faults that are planted here."""

import itertools

import numpy as np
import pytest
from hypothesis import given

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name
from oracles.domain import strategy

CONTRACT = by_name("chunk_metadata.causal_conv1d_metadata")
BY_NAME = {relation.name: relation for relation in CONTRACT.relations}
each_relation = pytest.mark.parametrize("relation", CONTRACT.relations, ids=list(BY_NAME))


def batch(lengths, block_m, first):
    starts = list(itertools.accumulate(lengths, initial=first))
    return {"query_start_loc": array(starts, "int64"), "block_m": block_m}


SMALL = [
    batch(lengths, block_m, first)
    for count in range(4)
    for lengths in itertools.product((0, 1, 8, 17), repeat=count)
    for block_m in (8, 16)
    for first in (0, -5)
]


def specification(inputs):
    answer = CONTRACT.expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs that are refused: {answer}"
    return answer.outputs


@each_relation
def test_holds_on_every_small_batch(relation) -> None:
    for inputs in SMALL:
        assert relation.holds(specification, inputs) is None


@given(strategy(CONTRACT.domain))
def test_all_hold_on_drawn_inputs(drawn) -> None:
    inputs, _ = drawn
    if isinstance(CONTRACT.expected(inputs), Values):
        for relation in CONTRACT.relations:
            assert relation.holds(specification, inputs) is None, relation.name


def answer(programs, padding=-1):
    total = len(programs)
    columns = np.full((2, 2 * max(1024, total)), padding, np.int32)
    if programs:
        columns[:, :total] = np.array(programs).T
    return {"batch_ptr": columns[0], "token_chunk_offset_ptr": columns[1], "total": total}


def edited(edit):
    """The specification with its programs changed by ``edit(inputs, programs)``."""

    def wrong(inputs):
        right = specification(inputs)
        columns = (right["batch_ptr"].tolist(), right["token_chunk_offset_ptr"].tolist())
        return answer(edit(inputs, list(zip(*columns, strict=True))[: right["total"]]))

    wrong.__name__ = edit.__name__
    return wrong


def pads_with_0(inputs):
    right = specification(inputs)
    return {**right, "batch_ptr": np.maximum(right["batch_ptr"], 0)}


def total_is_one_too_large(inputs):
    right = specification(inputs)
    return {**right, "total": right["total"] + 1}


@edited
def numbers_requests_with_tokens_only(inputs, programs):
    numbers = {request: number for number, request in enumerate(dict.fromkeys(request for request, _ in programs))}
    return [(numbers[request], block) for request, block in programs]


@edited
def block_numbers_run_through(inputs, programs):
    return [(request, number) for number, (request, _) in enumerate(programs)]


@edited
def blocks_from_one(inputs, programs):
    return [(request, block + 1) for request, block in programs]


@edited
def last_block_lost(inputs, programs):
    return programs[:-1]


@edited
def backwards(inputs, programs):
    return programs[::-1]


@edited
def knows_two_requests_only(inputs, programs):
    return [program for program in programs if program[0] < 2]


@edited
def at_most_two_blocks_a_request(inputs, programs):
    return [program for program in programs if program[1] < 2]


@edited
def an_empty_request_has_a_block(inputs, programs):
    empty = {(n, 0) for n, length in enumerate(np.diff(inputs["query_start_loc"].data)) if not length}
    return sorted({*programs, *empty})


@edited
def first_start_taken_for_0(inputs, programs):
    starts, size = inputs["query_start_loc"].data.tolist(), inputs["block_m"]
    others = [program for program in programs if program[0]]
    return [(0, block) for block in range(-(-starts[1] // size))] + others if len(starts) > 1 else programs


def blocks_of_8_for_all(inputs):
    return specification({**inputs, "block_m": 8})


CAUGHT_BY = {
    "behind_the_total_is_padding": [pads_with_0, total_is_one_too_large],
    "programs_go_on_or_begin_anew": [block_numbers_run_through, blocks_from_one, backwards],
    "blocks_cover_tokens_once": [
        numbers_requests_with_tokens_only,
        last_block_lost,
        an_empty_request_has_a_block,
        at_most_two_blocks_a_request,
        blocks_of_8_for_all,
    ],
    "shift_changes_nothing": [first_start_taken_for_0],
    "empty_request_renumbers_only": [
        numbers_requests_with_tokens_only,
        an_empty_request_has_a_block,
        knows_two_requests_only,
    ],
    "order_of_requests_is_free": [backwards, last_block_lost, knows_two_requests_only],
    "cut_at_a_block_keeps_blocks": [at_most_two_blocks_a_request, blocks_from_one],
    "larger_blocks_are_pairs": [blocks_of_8_for_all, last_block_lost],
    "parts_join": [backwards, block_numbers_run_through, last_block_lost],
}


def test_every_relation_has_a_planted_fault() -> None:
    assert set(CAUGHT_BY) == set(BY_NAME)


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name, faults in CAUGHT_BY.items() for fault in faults],
    ids=lambda item: getattr(item, "__name__", item),
)
def test_catches_a_planted_fault(name, fault) -> None:
    problems = (BY_NAME[name].holds(fault, inputs) for inputs in SMALL)
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on all {len(SMALL)} small batches"
    assert "\n" not in found


@each_relation
@pytest.mark.parametrize("name", ["batch_ptr", "token_chunk_offset_ptr"])
def test_outputs_of_a_wrong_shape_break_every_law(relation, name) -> None:
    def wrong(inputs):
        right = specification(inputs)
        return {**right, name: right[name][:-1]}

    assert "has shape" in relation.holds(wrong, batch([20, 0, 9], 8, 0))


@each_relation
def test_a_total_that_is_no_count_breaks_every_law(relation) -> None:
    assert "total is" in relation.holds(lambda inputs: {**specification(inputs), "total": -1}, batch([20, 0, 9], 8, 0))
