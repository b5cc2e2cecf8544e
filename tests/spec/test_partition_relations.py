"""The laws of token partitions (3.4) hold on the specification, and each one catches faults planted here."""

import functools

import numpy as np
import pytest

from oracles.contract import Values
from oracles.contracts import by_name

CONTRACT = by_name("state_columns.spec_token_partition")
BY_NAME = {law.name: law for law in CONTRACT.relations}
each_law = pytest.mark.parametrize("law", CONTRACT.relations, ids=list(BY_NAME))
NAME, SAMPLED, MANY, SEED = CONTRACT.full_name, 40, 200, 5


def specification(inputs):
    answer = CONTRACT.expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return dict(answer.outputs)


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(law, applications, sampled):
    assert applications(law, sampled(NAME, SAMPLED, SEED), specification) >= SAMPLED // 4


@each_law
def test_holds_on_every_small_input(law, small):
    for inputs in small(NAME):
        assert law.holds(specification, inputs) is None


def queries(inputs):
    return np.diff(inputs["query_start_loc_cpu"].data.astype(np.int64))


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


def edited(edit):
    """The specification with its outputs changed by ``edit(inputs, outputs)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        outputs = specification(inputs)
        edit(inputs, outputs)
        return outputs

    return wrong


@edited
def tokens_of_requests_are_reversed(inputs, outputs):
    outputs["spec_token_indices"] = outputs["spec_token_indices"][::-1]


@edited
def the_last_token_is_the_first(inputs, outputs):
    outputs["non_spec_token_indices"] = np.minimum(outputs["non_spec_token_indices"], max(queries(inputs).sum() - 2, 0))


@edited
def others_are_numbered_from_zero(inputs, outputs):
    outputs["non_spec_token_indices"] = np.arange(outputs["non_spec_token_indices"].size)


@edited
def starts_are_not_rebased(inputs, outputs):
    starts, mask = inputs["query_start_loc_cpu"].data, inputs["spec_mask_cpu"].data != 0
    outputs["spec_query_start_loc"] = np.append(starts[:-1][mask], starts[-1:])


@edited
def starts_count_requests(inputs, outputs):
    outputs["non_spec_query_start_loc"] = np.arange(outputs["non_spec_query_start_loc"].size)


@edited
def nobody_speculates_without_others(inputs, outputs):
    """Tokens of the part that speculates change places where all requests do."""
    if outputs["non_spec_query_start_loc"].size == 1:
        outputs["spec_token_indices"] = np.roll(outputs["spec_token_indices"], 1)


@with_other
def idle_requests_speculate(inputs):
    mask = inputs["spec_mask_cpu"]
    idle = (queries(inputs) == 0) & (np.arange(mask.data.size) == mask.data.size - 1)
    return {"spec_mask_cpu": mask.with_values((mask.data != 0) | idle)}


@edited
def the_last_request_has_one_token(inputs, outputs):
    counts, mask = queries(inputs), inputs["spec_mask_cpu"].data != 0
    if counts.size and mask[-1] and counts[-1] > 1:
        spec = outputs["spec_token_indices"].copy()
        spec[-1] = spec[-counts[-1]]
        outputs["spec_token_indices"] = spec


@edited
def the_first_part_of_a_request_is_lost(inputs, outputs):
    counts = queries(inputs)
    if counts.size and counts.max() > 1:
        outputs["spec_query_start_loc"] = np.minimum(outputs["spec_query_start_loc"], 1)
        outputs["non_spec_query_start_loc"] = np.minimum(outputs["non_spec_query_start_loc"], 1)


CAUGHT_BY = {
    "each_token_is_in_one_part": [
        tokens_of_requests_are_reversed,
        the_last_token_is_the_first,
        others_are_numbered_from_zero,
        the_last_request_has_one_token,
    ],
    "a_request_keeps_its_tokens": [
        tokens_of_requests_are_reversed,
        others_are_numbered_from_zero,
        starts_are_not_rebased,
        starts_count_requests,
        the_last_request_has_one_token,
    ],
    "starts_are_those_of_packed_tokens": [starts_are_not_rebased, starts_count_requests],
    "the_other_mask_swaps_the_parts": [others_are_numbered_from_zero, starts_are_not_rebased],
    "padding_has_starts_only": [starts_count_requests, nobody_speculates_without_others],
    "parts_join": [starts_are_not_rebased, others_are_numbered_from_zero, nobody_speculates_without_others],
    "a_request_cut_in_two_keeps_its_part": [starts_count_requests, the_first_part_of_a_request_is_lost],
    "a_token_more_at_the_end_is_one_more": [the_last_request_has_one_token, starts_count_requests],
}
CAUGHT = [(name, fault) for name, faults in CAUGHT_BY.items() for fault in faults]


def test_every_law_has_a_planted_fault():
    assert set(CAUGHT_BY) == set(BY_NAME)


@pytest.mark.parametrize(("name", "fault"), CAUGHT, ids=[f"{name}-{fault.__name__}" for name, fault in CAUGHT])
def test_catches_a_planted_fault(name, fault, small, sampled):
    problems = (BY_NAME[name].holds(fault, inputs) for inputs in [*small(NAME), *sampled(NAME, MANY, SEED)])
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on every input"
    assert "\n" not in found


def an_element_less(inputs):
    return {name: value[:-1] for name, value in specification(inputs).items()}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(law, sampled):
    problems = {law.holds(an_element_less, inputs) for inputs in sampled(NAME, SAMPLED, SEED)[:20]} - {None}
    assert problems
    assert all("has shape" in problem or "have shapes" in problem for problem in problems)


def test_laws_about_requests_do_not_apply_without_any(small):
    def explode(inputs):
        raise AssertionError("a law that does not apply must not call the function")

    inputs = next(inputs for inputs in small(NAME) if not queries(inputs).size)
    for name in ("parts_join", "a_request_cut_in_two_keeps_its_part", "a_token_more_at_the_end_is_one_more"):
        assert BY_NAME[name].holds(explode, inputs) is None
