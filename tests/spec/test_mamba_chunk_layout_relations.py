"""The laws of the Mamba chunk layout hold on the specification, and each one catches faults that are planted here."""

import itertools

import numpy as np
import pytest
from hypothesis import given

from oracles.contract import Values
from oracles.contracts import by_name
from oracles.domain import Scope, strategy, walk

CONTRACT = by_name("chunk_metadata.mamba_chunk_layout")
BY_NAME = {relation.name: relation for relation in CONTRACT.relations}
NAMES = ("cu_chunk_seqlens", "seq_idx", "last_chunk_indices", "checkpoint_chunk_indices")
each_relation = pytest.mark.parametrize("relation", CONTRACT.relations, ids=list(BY_NAME))


def specification(inputs):
    answer = CONTRACT.expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs that are refused: {answer}"
    return answer.outputs


def small_cases():
    """Every small batch with few requests in plain layout, in chunks of one to three tokens."""
    for inputs, source in walk(CONTRACT.domain, Scope(2, 3)):
        plain = not any(event.startswith("layout") for event in source.events)
        if plain and isinstance(CONTRACT.expected(inputs), Values):
            yield inputs


SMALL = list(small_cases())


@each_relation
def test_holds_on_every_small_batch(relation) -> None:
    assert len(SMALL) > 1000
    for inputs in SMALL:
        assert relation.holds(specification, inputs) is None


@given(strategy(CONTRACT.domain))
def test_all_hold_on_drawn_inputs(drawn) -> None:
    inputs, _ = drawn
    if isinstance(CONTRACT.expected(inputs), Values):
        for relation in CONTRACT.relations:
            assert relation.holds(specification, inputs) is None, relation.name


def edited(edit):
    """The specification with its four lists changed by ``edit(inputs, cu, owners, last, at_checkpoint)``."""

    def wrong(inputs):
        right = [np.asarray(specification(inputs)[name]).tolist() for name in NAMES]
        return {name: np.array(column, np.int32) for name, column in zip(NAMES, edit(inputs, *right), strict=True)}

    wrong.__name__ = edit.__name__
    return wrong


def with_other(change):
    """The specification asked about other inputs."""

    def wrong(inputs):
        return specification(change(inputs))

    wrong.__name__ = change.__name__
    return wrong


@with_other
def counts_multiples_from_the_request(inputs):
    computed = inputs["num_computed_tokens"]
    return {**inputs, "num_computed_tokens": computed.with_values(computed.data * 0)}


@with_other
def ignores_checkpoints(inputs):
    return {**inputs, "checkpoint_offsets": None}


@with_other
def chunks_of_one_token(inputs):
    return {**inputs, "chunk_size": 1}


@edited
def loses_the_last_chunk(inputs, cu, owners, last, at_checkpoint):
    return cu[: max(len(cu) - 1, 1)], owners[:-1], last, at_checkpoint


@edited
def an_empty_chunk_in_front(inputs, cu, owners, last, at_checkpoint):
    moved = [[index + 1 if index >= 0 else index for index in column] for column in (last, at_checkpoint)]
    return ([0, *cu], [0, *owners], *moved) if owners else (cu, owners, last, at_checkpoint)


@edited
def numbers_requests_with_tokens_only(inputs, cu, owners, last, at_checkpoint):
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
    return cu, [numbers[owner] for owner in owners], last, at_checkpoint


@edited
def owners_from_one(inputs, cu, owners, last, at_checkpoint):
    return cu, [owner + 1 for owner in owners], last, at_checkpoint


@edited
def empty_requests_point_to_the_chunk_before(inputs, cu, owners, last, at_checkpoint):
    return cu, owners, list(itertools.accumulate(last, max)), at_checkpoint


@edited
def last_indices_one_too_far(inputs, cu, owners, last, at_checkpoint):
    return cu, owners, [index + 1 for index in last], at_checkpoint


@edited
def checkpoints_count_from_the_request(inputs, cu, owners, last, at_checkpoint):
    first = {owner: owners.index(owner) for owner in owners}
    return cu, owners, last, [index - first[n] if index >= 0 else -1 for n, index in enumerate(at_checkpoint)]


@edited
def knows_two_requests_only(inputs, cu, owners, last, at_checkpoint):
    count = sum(owner < 2 for owner in owners)
    return cu[: count + 1], owners[:count], last, at_checkpoint


@edited
def ends_of_the_first_request_only_at_its_end(inputs, cu, owners, last, at_checkpoint):
    """Something that depends on the place in the batch."""
    drop = [chunk for chunk in range(len(owners) - 1) if owners[chunk] == owners[chunk + 1] == 0]
    kept = [chunk for chunk in range(len(owners)) if chunk not in drop]
    return (
        [0, *(cu[chunk + 1] for chunk in kept)],
        [owners[chunk] for chunk in kept],
        [index - sum(chunk < index for chunk in drop) if index >= 0 else -1 for index in last],
        at_checkpoint,
    )


def none_means_a_checkpoint_at_the_first_token(inputs):
    if inputs["checkpoint_offsets"] is None and len(specification(inputs)["seq_idx"]):
        starts, computed = inputs["query_start_loc"].data, inputs["num_computed_tokens"]
        offsets = computed.with_values(np.minimum(np.diff(starts), 1))
        return specification({**inputs, "checkpoint_offsets": offsets})
    return specification(inputs)


def forgets_the_phase_of_large_counts(inputs):
    computed = inputs["num_computed_tokens"]
    small = np.where(computed.data > 1 << 20, 0, computed.data)
    return specification({**inputs, "num_computed_tokens": computed.with_values(small)})


CAUGHT_BY = {
    "ends_grow_to_the_last_token": [loses_the_last_chunk, an_empty_chunk_in_front],
    "chunks_stay_in_their_request": [numbers_requests_with_tokens_only, owners_from_one],
    "ends_are_where_they_must_be": [
        counts_multiples_from_the_request,
        ignores_checkpoints,
        chunks_of_one_token,
        loses_the_last_chunk,
        ends_of_the_first_request_only_at_its_end,
    ],
    "indices_name_the_chunks_that_end_there": [
        ignores_checkpoints,
        empty_requests_point_to_the_chunk_before,
        last_indices_one_too_far,
        checkpoints_count_from_the_request,
    ],
    "cut_at_a_multiple_keeps_chunks": [counts_multiples_from_the_request, knows_two_requests_only],
    "order_of_requests_is_free": [
        ends_of_the_first_request_only_at_its_end,
        checkpoints_count_from_the_request,
        loses_the_last_chunk,
    ],
    "empty_request_renumbers_only": [
        numbers_requests_with_tokens_only,
        empty_requests_point_to_the_chunk_before,
        knows_two_requests_only,
    ],
    "whole_chunks_computed_change_nothing": [forgets_the_phase_of_large_counts],
    "checkpoints_only_cut": [none_means_a_checkpoint_at_the_first_token],
    "parts_join": [ends_of_the_first_request_only_at_its_end, loses_the_last_chunk, checkpoints_count_from_the_request],
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


def without_the_last_element(name):
    def wrong(inputs):
        right = dict(specification(inputs))
        return {**right, name: np.asarray(right[name])[:-1]}

    return wrong


@each_relation
@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_a_wrong_shape_break_every_law(relation, name) -> None:
    inputs = max(SMALL, key=lambda item: int(item["query_start_loc"].data[-1]))
    assert relation.holds(without_the_last_element(name), inputs) is not None
