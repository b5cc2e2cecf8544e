"""The laws of batch classes (3.3, 3.5) hold on the specification, and each one catches faults planted here."""

import functools
import itertools

import numpy as np
import pytest

from oracles.arrays import Array, array
from oracles.contract import Values
from oracles.contracts import by_name

SPLIT, CLASSES = (
    by_name(f"state_columns.{name}") for name in ("split_decodes_and_prefills", "classify_linear_attention_batch")
)
LAWS = [(contract, law) for contract in (SPLIT, CLASSES) for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
SAMPLED, MANY = 40, 200


def specification(inputs):
    contract = SPLIT if "decode_threshold" in inputs else CLASSES
    answer = contract.expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return dict(answer.outputs)


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, sampled, applications):
    assert applications(law, sampled(contract.full_name), specification) >= SAMPLED // 4


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def queries(inputs):
    name = "query_start_loc_cpu" if "query_start_loc_cpu" in inputs else "query_start_loc"
    return np.diff(inputs[name].data.astype(np.int64))


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


def split_at(inputs, first):
    """The answer of contract 3.3 if this were the first prefill."""
    counts = queries(inputs)
    found = [first, len(counts) - first, int(counts[:first].sum()), int(counts[first:].sum())]
    return dict(zip((item.name for item in SPLIT.outputs), found, strict=True))


def splits(place):
    """A split where ``place(inputs, decodes)`` says how many decodes there are."""

    @functools.wraps(place)
    def wrong(inputs):
        first = place(inputs, specification(inputs)["num_decodes"])
        return split_at(inputs, min(max(int(first), 0), len(queries(inputs))))

    return wrong


# Wrong splits


@with_other
def decodes_have_fewer_queries_than_the_threshold(inputs):
    return {"decode_threshold": max(inputs["decode_threshold"] - 1, 1)}


@with_other
def nothing_has_to_be_uniform(inputs):
    return {"require_uniform": False}


@with_other
def everything_has_to_be_uniform(inputs):
    return {"require_uniform": True}


@with_other
def short_extends_are_decodes(inputs):
    return {"treat_short_extends_as_decodes": True}


@with_other
def short_extends_are_prefills(inputs):
    return {"treat_short_extends_as_decodes": inputs["is_prefilling"] is None}


@splits
def the_first_prefill_is_a_decode(inputs, decodes):
    return decodes + 1


@splits
def the_last_decode_is_a_prefill(inputs, decodes):
    return decodes - (0 < decodes < len(queries(inputs)))


@splits
def requests_without_queries_are_prefills(inputs, decodes):
    idle = np.flatnonzero(queries(inputs) == 0)
    return min(decodes, *idle) if idle.size else decodes


@splits
def sorts_decodes_to_the_front(inputs, decodes):
    return (queries(inputs) <= inputs["decode_threshold"]).sum()


@splits
def decodes_behind_the_last_prefill_count(inputs, decodes):
    long = np.flatnonzero(queries(inputs) > inputs["decode_threshold"])
    return long[-1] if long.size else decodes


@splits
def looks_at_the_last_request_first(inputs, decodes):
    counts = queries(inputs)
    return counts.size if counts.size and counts[-1] <= inputs["decode_threshold"] else decodes


@splits
def a_higher_threshold_is_none(inputs, decodes):
    return decodes if inputs["decode_threshold"] < 5 else 0


def uniform_requests_are_decodes(inputs):
    """Whatever their number of queries is."""
    equal = len(set(queries(inputs).tolist())) == 1
    return split_at(inputs, len(queries(inputs))) if inputs["require_uniform"] and equal else specification(inputs)


def counts_idle_requests_nowhere(inputs):
    found, idle = specification(inputs), queries(inputs) == 0
    found["num_prefills"] -= int(idle[found["num_decodes"] :].sum())
    return found


# Wrong classes


def edited(edit):
    """The specification with its outputs changed by ``edit(inputs, outputs)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        outputs = specification(inputs)
        edit(inputs, outputs)
        return outputs

    return wrong


@with_other
def one_token_is_a_decode(inputs):
    one = queries(inputs) == 1
    lengths = inputs["seq_lens_cpu"]
    return {"seq_lens_cpu": lengths.with_values(np.where(one, 2, lengths.data))}


@with_other
def prompts_are_prefills_to_their_end(inputs):
    flags, lengths = inputs["is_prefilling"], inputs["seq_lens_cpu"]
    left = np.zeros(lengths.data.shape, bool) if flags is None else flags.data != 0
    return {"seq_lens_cpu": lengths.with_values(np.where(left, 1, lengths.data))}


@with_other
def drafts_count_without_a_model(inputs):
    return {"num_speculative_tokens": max(inputs["num_speculative_tokens"], 1)}


@with_other
def counts_of_minus_one_are_drafts(inputs):
    drafts = inputs["num_decode_draft_tokens_cpu"]
    if not isinstance(drafts, Array):
        return {}
    return {"num_decode_draft_tokens_cpu": drafts.with_values(np.maximum(drafts.data, 0))}


@edited
def decodes_stay_beside_drafts(inputs, outputs):
    one = int(((queries(inputs) == 1) & ~outputs["spec_mask"]).sum())
    if outputs["num_spec_decodes"] and one == outputs["num_prefills"]:
        outputs.update(num_decodes=one, num_prefills=0, num_decode_tokens=one, num_prefill_tokens=0)
        outputs["has_initial_state"], outputs["prefill_query_start_loc"] = np.zeros(0, bool), np.zeros(1, np.int32)


@edited
def idle_requests_are_prefills(inputs, outputs):
    if outputs["num_prefills"]:
        others = ~outputs["spec_mask"]
        outputs["num_prefills"] = int(others.sum()) - outputs["num_decodes"]


@edited
def prefill_starts_are_not_rebased(inputs, outputs):
    if outputs["num_prefills"]:
        outputs["prefill_query_start_loc"] = outputs["prefill_query_start_loc"] + outputs["num_decode_tokens"]


@edited
def idle_requests_have_no_start(inputs, outputs):
    starts = outputs["prefill_query_start_loc"]
    outputs["prefill_query_start_loc"] = np.concatenate([starts[:1], starts[1:][::-1]])


@edited
def states_begin_at_the_first_request(inputs, outputs):
    if outputs["num_prefills"]:
        states = inputs["seq_lens_cpu"].data > queries(inputs)
        outputs["has_initial_state"] = states[: outputs["has_initial_state"].size]


@edited
def queries_are_states(inputs, outputs):
    if outputs["num_prefills"]:
        states = inputs["seq_lens_cpu"].data >= queries(inputs)
        outputs["has_initial_state"] = states[~outputs["spec_mask"]]


@edited
def tokens_of_drafts_are_requests(inputs, outputs):
    outputs["num_spec_decode_tokens"] = outputs["num_spec_decodes"]


@with_other
def only_the_first_draft_counts(inputs):
    drafts = inputs["num_decode_draft_tokens_cpu"]
    if not isinstance(drafts, Array):
        return {}
    first = np.where(np.arange(drafts.data.size) == 0, drafts.data, -1)
    return {"num_decode_draft_tokens_cpu": drafts.with_values(first)}


CAUGHT_IN_SPLIT = {
    "split_adds_up": [counts_idle_requests_nowhere],
    "decodes_qualify_and_the_first_prefill_does_not": [
        decodes_have_fewer_queries_than_the_threshold,
        nothing_has_to_be_uniform,
        everything_has_to_be_uniform,
        short_extends_are_decodes,
        short_extends_are_prefills,
        the_first_prefill_is_a_decode,
        the_last_decode_is_a_prefill,
        requests_without_queries_are_prefills,
        sorts_decodes_to_the_front,
        decodes_behind_the_last_prefill_count,
    ],
    "padding_joins_the_last_class": [requests_without_queries_are_prefills, sorts_decodes_to_the_front],
    "a_threshold_of_the_longest_leaves_decodes": [
        decodes_have_fewer_queries_than_the_threshold,
        short_extends_are_prefills,
        short_extends_are_decodes,
        requests_without_queries_are_prefills,
    ],
    "a_higher_threshold_takes_no_decode": [a_higher_threshold_is_none],
    "requests_behind_the_first_prefill_move": [
        looks_at_the_last_request_first,
    ],
    "classes_alone_stay": [the_first_prefill_is_a_decode, sorts_decodes_to_the_front],
    "equal_queries_are_uniform": [uniform_requests_are_decodes],
    "short_extends_need_no_flags": [short_extends_are_prefills],
}
CAUGHT_IN_CLASSES = {
    "classes_add_up": [
        idle_requests_are_prefills,
        tokens_of_drafts_are_requests,
    ],
    "rebased_starts_are_the_suffix": [prefill_starts_are_not_rebased, idle_requests_have_no_start],
    "drafts_of_nobody_are_none": [drafts_count_without_a_model, counts_of_minus_one_are_drafts],
    "speculation_takes_the_decodes": [
        decodes_stay_beside_drafts,
        counts_of_minus_one_are_drafts,
        tokens_of_drafts_are_requests,
    ],
    "states_follow_from_lengths": [queries_are_states],
    "first_chunks_are_prefills": [one_token_is_a_decode, idle_requests_are_prefills],
    "one_token_with_a_state_is_a_decode": [prompts_are_prefills_to_their_end],
    "padding_is_counted_nowhere": [idle_requests_are_prefills, counts_of_minus_one_are_drafts],
    "speculating_batches_are_free_to_move": [
        states_begin_at_the_first_request,
        only_the_first_draft_counts,
        idle_requests_have_no_start,
    ],
    "splits_as_3_3_does": [one_token_is_a_decode, prompts_are_prefills_to_their_end],
}


CAUGHT = [
    (contract, law, fault)
    for contract, table in ((SPLIT, CAUGHT_IN_SPLIT), (CLASSES, CAUGHT_IN_CLASSES))
    for law, faults in table.items()
    for fault in faults
]


@each_law
def test_every_law_has_a_planted_fault(contract, law):
    assert any((contract.name, law.name) == (one.name, name) for one, name, _ in CAUGHT)


@pytest.mark.parametrize(
    ("contract", "name", "fault"), CAUGHT, ids=[f"{c.name}-{name}-{fault.__name__}" for c, name, fault in CAUGHT]
)
def test_catches_a_planted_fault(contract, name, fault, sampled, small):
    law = next(law for law in contract.relations if law.name == name)
    problems = (law.holds(fault, inputs) for inputs in [*small(contract.full_name), *sampled(contract.full_name, MANY)])
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on every input"
    assert "\n" not in found


def misshapen(inputs):
    """An element less; counts of NumPy's type."""
    found = specification(inputs)
    if "decode_threshold" in inputs:
        return {name: np.int64(value) for name, value in found.items()}
    return {name: value[:-1] if isinstance(value, np.ndarray) else value for name, value in found.items()}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(contract, law, sampled):
    problems = {law.holds(misshapen, inputs) for inputs in sampled(contract.full_name)[:20]} - {None}
    assert problems
    assert all(any(part in problem for part in ("has shape", "Python ints")) for problem in problems)


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


def no_requests(contract, small):
    return next(inputs for inputs in small(contract.full_name) if not queries(inputs).size)


@pytest.mark.parametrize("contract", [SPLIT, CLASSES], ids=lambda contract: contract.name)
def test_laws_about_requests_do_not_apply_without_any(contract, small):
    about_all = {
        "split_adds_up",
        "padding_joins_the_last_class",
        "classes_add_up",
        "rebased_starts_are_the_suffix",
        "drafts_of_nobody_are_none",
        "padding_is_counted_nowhere",
    }
    inputs = no_requests(contract, small)
    for law in contract.relations:
        assert law.holds(specification if law.name in about_all else explode, inputs) is None


def test_idle_requests_among_prefills_hide_tokens_and_break_no_law():
    """By contract 3.5: requests of 0, 2, 0 and 3 queries have two prefills, and the tokens of the first three."""
    lengths = array([0, 2, 0, 3], "int32")
    inputs = {
        "query_start_loc_cpu": array([*itertools.accumulate(lengths.data.tolist(), initial=0)], "int32"),
        "seq_lens_cpu": lengths,
        "is_prefilling": None,
        "num_decode_draft_tokens_cpu": None,
        "num_speculative_tokens": 0,
    }
    assert specification(inputs)["num_prefill_tokens"] == 2
    for law in CLASSES.relations:
        assert law.holds(specification, inputs) is None
