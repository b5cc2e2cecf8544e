"""The laws of sparse lengths and shares (2.1, 2.4) hold on the specification, and each one catches faults."""

import functools
import itertools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name

CONTRACTS = LENGTHS, SHARES = [by_name(f"sparse_indptr.{name}") for name in ("sparse_indptr", "dcp_local_seq_lens")]
LAWS = [(contract, law) for contract in CONTRACTS for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
SAMPLED, MANY = 40, 200


def specification(inputs):
    answer = (LENGTHS if "topk" in inputs else SHARES).expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return dict(answer.outputs)


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, sampled, applications):
    assert applications(law, sampled(contract.full_name), specification) >= SAMPLED // 2


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


def lengths(seq_lens, starts, **changes):
    inputs = {
        "seq_lens": array(seq_lens, "int32"),
        "query_start_loc": array(starts, "int32"),
        "query_start_loc_cpu": array(starts, "int32"),
        "topk": 4,
        "num_tokens": starts[-1],
    }
    return inputs | changes


def test_laws_about_queries_do_not_apply_without_any():
    about_queries = {"a_chunked_sequence", "one_more_token", "more_top_k"}
    for law in LENGTHS.relations:
        if any(law.name.startswith(begin) for begin in about_queries):
            assert law.holds(explode, lengths([5], [0, 0])) is None


@pytest.mark.parametrize("length", [(1 << 31) - 1, -(1 << 31)])
def test_lengths_stay_in_the_range_of_their_dtype(length):
    for law in LENGTHS.relations:
        assert law.holds(specification, lengths([length, 3], [0, 2, 4])) is None
    shares = {"seq_lens": array([length], "int32"), "dcp_size": 2, "dcp_rank": None, "interleave": 3}
    for law in SHARES.relations:
        assert law.holds(specification, shares) is None


def test_more_tokens_than_int32_counts_are_not_asked_for():
    for law in LENGTHS.relations:
        assert law.holds(specification, lengths([5], [0, 1], num_tokens=1 << 10, topk=(1 << 21) - 1)) is None


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


def edited(edit):
    """The specification with its outputs changed in place by ``edit(inputs, outputs)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        outputs = {name: np.array(value) for name, value in specification(inputs).items()}
        edit(inputs, outputs)
        return outputs

    return wrong


def replaced(inputs, name, values):
    return {name: inputs[name].with_values(values)}


# 2.1.


def rows(inputs):
    return zip(inputs["seq_lens"].data.tolist(), itertools.pairwise(inputs["query_start_loc_cpu"].data), strict=True)


def starts_from(outputs):
    outputs["paged_kv_indptr"] = np.cumsum([0, *outputs["sparse_seq_lens"].tolist()])


@edited
def starts_are_ends(inputs, outputs):
    outputs["paged_kv_indptr"] = np.roll(outputs["paged_kv_indptr"], -1)


@edited
def padding_sees_one(inputs, outputs):
    outputs["sparse_seq_lens"][inputs["query_start_loc_cpu"].data[-1] :] = 1
    starts_from(outputs)


@edited
def padding_goes_on_with_the_last_row(inputs, outputs):
    end = inputs["query_start_loc_cpu"].data[-1]
    outputs["sparse_seq_lens"][end:] = outputs["sparse_seq_lens"][end - 1 : end].sum()
    starts_from(outputs)


@with_other
def the_first_length_for_all(inputs):
    return replaced(inputs, "seq_lens", np.resize(inputs["seq_lens"].data[:1], inputs["seq_lens"].shape))


@with_other
def lengths_are_sorted(inputs):
    return replaced(inputs, "seq_lens", np.sort(inputs["seq_lens"].data))


@edited
def one_ramp_over_the_batch(inputs, outputs):
    ramp = np.arange(1, inputs["num_tokens"] + 1)
    outputs["sparse_seq_lens"][:] = np.minimum(outputs["sparse_seq_lens"], ramp)
    starts_from(outputs)


@edited
def no_room_for_the_last_of_top_k(inputs, outputs):
    outputs["sparse_seq_lens"][outputs["sparse_seq_lens"] == inputs["topk"]] -= 1
    starts_from(outputs)


@edited
def even_lengths_only(inputs, outputs):
    outputs["sparse_seq_lens"] &= -2
    starts_from(outputs)


@edited
def every_query_sees_all(inputs, outputs):
    for length, (begin, end) in rows(inputs):
        outputs["sparse_seq_lens"][begin:end] = min(max(length, 0), inputs["topk"])
    starts_from(outputs)


@edited
def length_0_sees_itself(inputs, outputs):
    for length, (begin, end) in rows(inputs):
        if length <= 0:
            outputs["sparse_seq_lens"][begin:end] = 1
    starts_from(outputs)


@edited
def chunks_count_from_their_first_query(inputs, outputs):
    for _, (begin, end) in rows(inputs):
        outputs["sparse_seq_lens"][begin:end] = np.minimum(np.arange(end - begin) + 1, inputs["topk"])
    starts_from(outputs)


@with_other
def knows_no_top_k(inputs):
    return {"topk": max((1 << 31) // max(inputs["num_tokens"], 1) - 1, 1)}


# 2.4.


def share(of):
    """A rank's share by another formula, ``of(tokens, size, ranks, interleave)``."""

    @functools.wraps(of)
    def wrong(inputs):
        size, rank = inputs["dcp_size"], inputs["dcp_rank"]
        ranks = np.arange(size) if rank is None else np.array([rank])
        tokens = inputs["seq_lens"].data.astype(np.int64)[..., None]
        found = of(tokens, size, ranks, inputs["interleave"]).astype(np.int32)
        return {"local_seq_lens": found if rank is None else found[..., 0]}

    return wrong


@share
def shares_are_even(tokens, size, ranks, interleave):
    return np.maximum(tokens, 0) // size + 0 * ranks


@share
def ignores_the_interleave(tokens, size, ranks, interleave):
    return np.maximum((np.maximum(tokens, 0) - ranks + size - 1) // size, 0)


@share
def ranks_take_turns_from_the_last(tokens, size, ranks, interleave):
    rounds, left = np.divmod(np.maximum(tokens, 0), size * interleave)
    return rounds * interleave + np.clip(left - (size - 1 - ranks) * interleave, 0, interleave)


@share
def whole_turns_only(tokens, size, ranks, interleave):
    return np.maximum(tokens, 0) // (size * interleave) * interleave + 0 * ranks


@share
def negative_lengths_are_lengths(tokens, size, ranks, interleave):
    rounds, left = np.divmod(tokens, size * interleave)
    return rounds * interleave + np.clip(left - ranks * interleave, 0, interleave)


@share
def the_first_rank_takes_the_rest(tokens, size, ranks, interleave):
    rounds, left = np.divmod(np.maximum(tokens, 0), size * interleave)
    return rounds * interleave + left * (ranks == 0)


@share
def a_turn_has_one_token_more(tokens, size, ranks, interleave):
    return ignores_the_interleave.__wrapped__(tokens, size, ranks, interleave) + (tokens > interleave)


@share
def at_most_64_tokens(tokens, size, ranks, interleave):
    return ranks_in_turn(np.minimum(tokens, 64), size, ranks, interleave)


@share
def turns_of_at_most_4(tokens, size, ranks, interleave):
    return ranks_in_turn(tokens, size, ranks, min(interleave, 4))


def ranks_in_turn(tokens, size, ranks, interleave):
    rounds, left = np.divmod(np.maximum(tokens, 0), size * interleave)
    return rounds * interleave + np.clip(left - ranks * interleave, 0, interleave)


@edited
def the_first_length_for_all_ranks(inputs, outputs):
    shares = outputs["local_seq_lens"]
    shares.reshape(inputs["seq_lens"].data.size, -1)[:] = shares.reshape(inputs["seq_lens"].data.size, -1)[:1]


@edited
def one_rank_is_the_first(inputs, outputs):
    if inputs["dcp_rank"]:
        outputs["local_seq_lens"] = specification(inputs | {"dcp_rank": 0})["local_seq_lens"]


@edited
def a_single_rank_owns_nothing(inputs, outputs):
    outputs["local_seq_lens"] *= inputs["dcp_size"] > 1


CAUGHT_BY = {
    LENGTHS.name: {
        "starts_add_up": [starts_are_ends],
        "padding_sees_nothing": [padding_sees_one, padding_goes_on_with_the_last_row],
        "parts_join": [the_first_length_for_all, one_ramp_over_the_batch],
        "sequences_are_free_to_move": [the_first_length_for_all, lengths_are_sorted, one_ramp_over_the_batch],
        "one_more_token_is_seen_once": [
            no_room_for_the_last_of_top_k,
            even_lengths_only,
            chunks_count_from_their_first_query,
        ],
        "more_top_k_than_tokens_is_causal": [
            every_query_sees_all,
            knows_no_top_k,
            length_0_sees_itself,
            no_room_for_the_last_of_top_k,
        ],
        "a_chunked_sequence_sees_the_same": [every_query_sees_all, chunks_count_from_their_first_query],
    },
    SHARES.name: {
        "ranks_share_every_token": [shares_are_even, whole_turns_only, a_turn_has_one_token_more],
        "no_rank_is_all_ranks": [one_rank_is_the_first],
        "one_more_token_goes_to_its_rank": [
            ignores_the_interleave,
            ranks_take_turns_from_the_last,
            the_first_rank_takes_the_rest,
        ],
        "a_round_more_is_a_turn_for_each": [at_most_64_tokens],
        "longer_turns_scale": [turns_of_at_most_4],
        "one_rank_owns_all": [a_single_rank_owns_nothing, whole_turns_only],
        "no_token_is_no_share": [negative_lengths_are_lengths],
        "lengths_do_not_meet": [the_first_length_for_all_ranks],
    },
}
CAUGHT = [
    (contract, law, fault)
    for contract in CONTRACTS
    for law, faults in CAUGHT_BY[contract.name].items()
    for fault in faults
]


@each_law
def test_every_law_has_a_planted_fault(contract, law):
    assert law.name in CAUGHT_BY[contract.name]


@pytest.mark.parametrize(
    ("contract", "name", "fault"), CAUGHT, ids=[f"{c.name}-{name}-{fault.__name__}" for c, name, fault in CAUGHT]
)
def test_catches_a_planted_fault(contract, name, fault, sampled, small):
    law = next(law for law in contract.relations if law.name == name)
    problems = (law.holds(fault, inputs) for inputs in [*small(contract.full_name), *sampled(contract.full_name, MANY)])
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on every input"
    assert "\n" not in found


def an_element_more(inputs):
    return {name: np.append(np.ravel(value), 0) for name, value in specification(inputs).items()}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(contract, law, sampled):
    problems = {law.holds(an_element_more, inputs) for inputs in sampled(contract.full_name)[:20]} - {None}
    assert problems
    assert all("has shape" in problem for problem in problems)
