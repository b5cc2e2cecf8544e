"""The laws of split plans and decode layouts (2.5, 2.6) hold on the specification, and each one catches faults."""

import functools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name

CONTRACTS = PLANS, LAYOUTS = [by_name(f"sparse_indptr.{name}") for name in ("mla_split_plan", "mla_decode_layout")]
LAWS = [(contract, law) for contract in CONTRACTS for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
SAMPLED, MANY = 40, 200

LEAST = {
    "granules_scale": SAMPLED // 4,
    "queries_see_what_they_saw": SAMPLED // 4,
    "a_wider_row_is_longer": SAMPLED // 4,
}
"""Rows of several tiles may be causal, and a quarter of the layouts have a width."""


def specification(inputs):
    answer = (PLANS if "q_tile" in inputs else LAYOUTS).expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return dict(answer.outputs)


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, sampled, applications):
    assert applications(law, sampled(contract.full_name), specification) >= LEAST.get(law.name, SAMPLED // 2)


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


def test_plans_that_may_be_causal_are_not_scaled():
    law = next(law for law in PLANS.relations if law.name == "granules_scale")
    starts = {"qo_indptr": array([0, 2], "int32"), "kv_indptr": array([0, 40], "int32")}
    assert law.holds(explode, {**starts, "kv_granularity": 16, "q_tile": 1, "num_splits": 2}) is None


def test_causal_plans_keep_the_laws():
    """Two tiles of one query: the first sees one entry less than the row has."""

    def causal(inputs):
        plan = specification(inputs)
        works, (queries, entries) = plan["work_info_set"].copy(), (inputs["qo_indptr"].data, inputs["kv_indptr"].data)
        for work in works[: plan["work_indptr"][-1]]:
            row = work[0]
            end = max(entries[row + 1] - (queries[row + 1] - work[3]), entries[row])
            if work[5] == entries[row + 1]:
                work[5], work[6] = end, entries[row + 1] - end
        return plan | {"work_info_set": works}

    starts = {"qo_indptr": array([0, 2, 3], "int32"), "kv_indptr": array([0, 40, 50], "int32")}
    inputs = {**starts, "kv_granularity": 16, "q_tile": 1, "num_splits": 1}
    assert PLANS.accepts(inputs, causal(inputs)) is None
    for law in PLANS.relations:
        assert law.holds(causal, inputs) is None


@pytest.mark.parametrize("width", [0, 3])
def test_lengths_stay_in_the_range_of_int32(width):
    starts = {name: array([0, 2], "int32") for name in ("query_start_loc", "query_start_loc_cpu")}
    more = {"num_decode_tokens": 2, "varlen_width": width, "full_graph": False}
    for law in LAYOUTS.relations:
        assert law.holds(specification, {**starts, "seq_lens": array([(1 << 31) - 2], "int32"), **more}) is None


def edited(edit):
    """The specification with its outputs changed in place by ``edit(inputs, outputs)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        outputs = {name: np.array(value) for name, value in specification(inputs).items()}
        edit(inputs, outputs)
        return outputs

    return wrong


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


# 2.5: what the function that plans may do wrong.


@with_other
def cuts_anywhere(inputs):
    granularity = inputs["kv_granularity"]
    return {"kv_granularity": granularity // 2} if granularity % 2 == 0 else {}


@with_other
def knows_granules_of_16(inputs):
    return {"kv_granularity": 16}


@edited
def the_last_row_first(inputs, outputs):
    works = outputs["work_info_set"][: outputs["work_indptr"][-1]]
    works[:, 0] = works[::-1, 0]


@edited
def counts_entries_from_the_row(inputs, outputs):
    works = outputs["work_info_set"][: outputs["work_indptr"][-1]]
    works[:, 4:6] -= inputs["kv_indptr"].data[works[:, 0]][:, None].astype(np.int32)


@edited
def reductions_count_queries_from_the_row(inputs, outputs):
    outputs["reduce_final_map"] -= outputs["reduce_final_map"][:, :1]


@edited
def every_work_has_a_place(inputs, outputs):
    works = outputs["work_info_set"][: outputs["work_indptr"][-1]]
    works[:, 1] = np.arange(len(works)) * inputs["q_tile"]


@edited
def reduces_single_pieces(inputs, outputs):
    outputs["reduce_indptr"] = np.arange(outputs["reduce_indptr"].size, dtype=np.int32)


def rows_without_entries_have_no_work(inputs):
    outputs = {name: np.array(value) for name, value in specification(inputs).items()}
    starts = outputs["work_indptr"]
    works = outputs["work_info_set"][: starts[-1]]
    kept = works[:, 4] != works[:, 5]
    outputs["work_info_set"] = works[kept]
    outputs["work_indptr"] = np.cumsum([0, *kept])[starts].astype(np.int32)
    return outputs


@edited
def empty_rows_read_an_entry(inputs, outputs):
    works = outputs["work_info_set"][: outputs["work_indptr"][-1]]
    works[works[:, 4] == works[:, 5], 5] += 1


def two_works_a_tile(inputs):
    """Each piece in halves that nobody asked for."""
    outputs = {name: np.array(value) for name, value in specification(inputs).items()}
    outputs["work_info_set"] = np.repeat(outputs["work_info_set"][: outputs["work_indptr"][-1]], 2, axis=0)
    outputs["work_indptr"] *= 2
    return outputs


# 2.6.


@edited
def starts_are_of_the_sequences(inputs, outputs):
    outputs["paged_kv_indptr"] = np.cumsum([0, *inputs["seq_lens"].data.tolist()])


@edited
def the_first_row_is_the_longest(inputs, outputs):
    outputs["max_qo_len"] = np.diff(outputs["qo_indptr"])[:1].sum()


@edited
def without_a_graph_a_query_for_each_row(inputs, outputs):
    if not inputs["full_graph"] and outputs["max_qo_len"] == 1:
        outputs["qo_indptr"] = np.arange(outputs["qo_indptr"].size)


@edited
def a_query_for_each_row(inputs, outputs):
    if outputs["max_qo_len"] == 1:
        outputs["qo_indptr"] = np.arange(outputs["qo_indptr"].size)


@edited
def a_graph_pads_to_one_entry(inputs, outputs):
    if inputs["full_graph"]:
        outputs["kernel_seq_lens"] = np.maximum(outputs["kernel_seq_lens"], 1)
        outputs["paged_kv_indptr"] = np.cumsum([0, *outputs["kernel_seq_lens"].tolist()])


@edited
def every_row_has_an_entry(inputs, outputs):
    outputs["kernel_seq_lens"] = np.maximum(outputs["kernel_seq_lens"], 1)
    outputs["paged_kv_indptr"] = np.cumsum([0, *outputs["kernel_seq_lens"].tolist()])


@with_other
def lengths_are_sorted(inputs):
    return {"seq_lens": inputs["seq_lens"].with_values(np.sort(inputs["seq_lens"].data))}


@edited
def rows_of_a_width_keep_their_length(inputs, outputs):
    if inputs["varlen_width"]:
        outputs["kernel_seq_lens"] = inputs["seq_lens"].data.copy()
        outputs["paged_kv_indptr"] = np.cumsum([0, *outputs["kernel_seq_lens"].tolist()])


@edited
def rows_of_a_width_have_all_of_it_on_top(inputs, outputs):
    if inputs["varlen_width"]:
        outputs["kernel_seq_lens"] = inputs["seq_lens"].data + inputs["varlen_width"]
        outputs["paged_kv_indptr"] = np.cumsum([0, *outputs["kernel_seq_lens"].tolist()])


@edited
def widths_keep_the_queries(inputs, outputs):
    if inputs["varlen_width"]:
        outputs["qo_indptr"] = inputs["query_start_loc_cpu"].data.copy()


@edited
def padding_of_a_graph_is_empty(inputs, outputs):
    outputs["kernel_seq_lens"] = np.where(np.diff(inputs["query_start_loc_cpu"].data), outputs["kernel_seq_lens"], 0)
    outputs["paged_kv_indptr"] = np.cumsum([0, *outputs["kernel_seq_lens"].tolist()])


@with_other
def knows_no_padding_tokens(inputs):
    return {"num_decode_tokens": int(inputs["query_start_loc_cpu"].data[-1])}


CAUGHT_BY = {
    PLANS.name: {
        "rows_are_free_to_move": [
            the_last_row_first,
            counts_entries_from_the_row,
            reductions_count_queries_from_the_row,
            cuts_anywhere,
        ],
        "granules_scale": [knows_granules_of_16, counts_entries_from_the_row, cuts_anywhere],
        "one_split_has_no_partial_result": [every_work_has_a_place, reduces_single_pieces, two_works_a_tile],
        "an_empty_row_has_one_empty_work": [
            rows_without_entries_have_no_work,
            empty_rows_read_an_entry,
            two_works_a_tile,
        ],
        "rows_of_one_granule_are_not_cut": [two_works_a_tile, rows_without_entries_have_no_work],
    },
    LAYOUTS.name: {
        "starts_add_up": [starts_are_of_the_sequences, the_first_row_is_the_longest],
        "a_graph_is_eager": [without_a_graph_a_query_for_each_row, a_graph_pads_to_one_entry],
        "rows_are_free_to_move": [lengths_are_sorted, the_first_row_is_the_longest],
        "padding_rows_get_no_query": [a_query_for_each_row, every_row_has_an_entry],
        "queries_see_what_they_saw": [
            rows_of_a_width_keep_their_length,
            rows_of_a_width_have_all_of_it_on_top,
            widths_keep_the_queries,
        ],
        "a_wider_row_is_longer": [rows_of_a_width_keep_their_length, widths_keep_the_queries],
        "a_width_of_all_rows_is_plain": [rows_of_a_width_have_all_of_it_on_top],
        "padding_of_a_graph_is_full_rows": [padding_of_a_graph_is_empty, knows_no_padding_tokens],
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


def a_dimension_more(inputs):
    return {name: np.asarray(value)[None] for name, value in specification(inputs).items()}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(contract, law, sampled):
    problems = {law.holds(a_dimension_more, inputs) for inputs in sampled(contract.full_name)[:20]} - {None}
    assert problems
    assert all("has shape" in problem for problem in problems)
