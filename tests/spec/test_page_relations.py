"""The laws of page indices (2.2, 2.3) hold on the specification, and each one catches faults planted here."""

import functools
import itertools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name

CONTRACTS = SPARSE, DENSE = [by_name(f"sparse_indptr.{name}") for name in ("sparse_page_indices", "dense_page_indices")]
LAWS = [(contract, law) for contract in CONTRACTS for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
PAD = -1
SAMPLED, MANY = 40, 200


def specification(inputs):
    answer = (SPARSE if "topk_indices" in inputs else DENSE).expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return dict(answer.outputs)


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, sampled, applications):
    assert applications(law, sampled(contract.full_name), specification) >= SAMPLED // 2


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def test_fitted_rows_are_those_of_the_public_layout():
    """Two picked tokens of four and two newest ones in a layout of four columns; a row too full loses its last."""
    law = next(law for law in SPARSE.relations if law.name == "fitted_rows_keep_their_slots")
    asked = []

    def function(inputs):
        asked.append(inputs["topk_indices"].data.tolist())
        return specification(inputs)

    inputs = {
        "req_id_per_token": array([0, 0, 0], "int32"),
        "block_table": array([[5, 6, 7, 8]], "int32"),
        "topk_indices": array([[1, 2, 3, 4], [9, PAD, 3, 8], [5, 6, 7, 8]], "int32"),
        "paged_kv_indptr": array([0, 4, 8, 12], "int32"),
        "block_size": 4,
        "block_stride": 4,
        "paged_kv_indices": array([7] * 12, "int32"),
    }
    assert law.holds(function, inputs) is None
    wide, fitted = asked
    assert wide == [[1, 2, 3, 4, PAD, PAD], [9, 3, 8, PAD, 1, PAD], [5, 6, 7, 8, 2, 3]]
    assert fitted == [[1, 2, 3, 4], [9, 3, 8, 1], [5, 6, 2, 3]]


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


@with_other
def queries_are_requests(inputs):
    return replaced(inputs, "req_id_per_token", np.arange(inputs["req_id_per_token"].data.size))


@with_other
def the_first_request_for_all(inputs):
    ids = inputs["req_id_per_token"].data
    return replaced(inputs, "req_id_per_token", np.resize(ids[:1], ids.shape))


@with_other
def tokens_are_sorted(inputs):
    return replaced(inputs, "topk_indices", np.sort(inputs["topk_indices"].data, axis=1))


@with_other
def reads_the_first_column_only(inputs):
    tokens = inputs["topk_indices"].data
    return replaced(inputs, "topk_indices", np.repeat(tokens[:, :1], tokens.shape[1], axis=1))


@with_other
def tokens_past_the_row_wrap(inputs):
    held = inputs["block_table"].shape[1] * inputs["block_size"]
    tokens = inputs["topk_indices"].data
    return replaced(inputs, "topk_indices", np.where(tokens < 0, tokens, tokens % held) if held else tokens)


@with_other
def blocks_touch(inputs):
    return {"block_stride": inputs["block_size"]}


@with_other
def requests_wrap(inputs):
    count = inputs["block_table"].shape[0]
    return replaced(inputs, "req_id_per_token", inputs["req_id_per_token"].data % count) if count else {}


@edited
def null_blocks_have_no_slots(inputs, outputs):
    slots = outputs["paged_kv_indices"]
    own = slice(*inputs["paged_kv_indptr"].data[[0, -1]]) if "topk_indices" in inputs else slice(None)
    stride = inputs.get("block_stride", inputs.get("kernel_block_size"))
    slots[own] = np.where(slots[own] // stride == 0, PAD, slots[own])


@edited
def padding_is_slot_0(inputs, outputs):
    slots = outputs["paged_kv_indices"]
    slots[slots == PAD] = 0


@edited
def forgets_the_place_in_the_block(inputs, outputs):
    size = inputs.get("block_stride", inputs.get("kernel_block_size"))
    slots = outputs["paged_kv_indices"]
    own = slice(*inputs["paged_kv_indptr"].data[[0, -1]]) if "topk_indices" in inputs else slice(None)
    slots[own] -= np.maximum(slots[own], 0) % size


@edited
def adds_to_the_buffer(inputs, outputs):
    outputs["paged_kv_indices"] += inputs["paged_kv_indices"].data


@edited
def keeps_the_buffer_where_there_is_no_token(inputs, outputs):
    slots = outputs["paged_kv_indices"]
    slots[:] = np.where(slots == PAD, inputs["paged_kv_indices"].data, slots)


@edited
def pads_behind_the_last_query(inputs, outputs):
    outputs["paged_kv_indices"][inputs["paged_kv_indptr"].data[-1] :] = PAD


@edited
def clears_before_the_first_query(inputs, outputs):
    outputs["paged_kv_indices"][: inputs["paged_kv_indptr"].data[0]] = PAD


@edited
def an_element_too_few(inputs, outputs):
    for end in inputs["paged_kv_indptr"].data[1:]:
        outputs["paged_kv_indices"][end - 1 : end] = PAD


@edited
def masks_places_as_if_blocks_were_powers_of_two(inputs, outputs):
    size = inputs.get("block_stride", inputs.get("kernel_block_size"))
    slots = outputs["paged_kv_indices"]
    own = slice(*inputs["paged_kv_indptr"].data[[0, -1]]) if "topk_indices" in inputs else slice(None)
    slots[own] = np.where(slots[own] < 0, slots[own], slots[own] // size * size + (slots[own] % size & (size - 1)))


@edited
def tokens_past_top_k_are_the_last(inputs, outputs):
    width = inputs["topk_indices"].shape[1]
    for begin, end in itertools.pairwise(inputs["paged_kv_indptr"].data):
        row = outputs["paged_kv_indices"][begin:end]
        row[width:] = row[width - 1 : width]


@with_other
def lengths_are_not_clipped_below(inputs):
    return replaced(inputs, "seq_lens", np.abs(inputs["seq_lens"].data.astype(np.int64)) % (1 << 31))


@with_other
def the_first_row_for_all(inputs):
    table = inputs["block_table"].data
    return replaced(inputs, "block_table", np.repeat(table[:1], len(table), axis=0))


@edited
def last_pages_are_counted(inputs, outputs):
    size = inputs["kernel_block_size"]
    outputs["paged_kv_last_page_len"] = (np.maximum(inputs["seq_lens"].data, 1) - 1) % size + 1


@edited
def newest_tokens_first(inputs, outputs):
    for begin, end in itertools.pairwise(outputs["paged_kv_indptr"]):
        outputs["paged_kv_indices"][begin:end] = outputs["paged_kv_indices"][begin:end][::-1]


@edited
def leaves_the_rest_of_the_buffer(inputs, outputs):
    end = outputs["paged_kv_indptr"][-1]
    outputs["paged_kv_indices"][end:] = inputs["paged_kv_indices"].data[end:]


@edited
def requests_begin_at_their_full_width(inputs, outputs):
    most = inputs["block_table"].shape[1] * inputs["kernel_block_size"]
    slots = np.full_like(outputs["paged_kv_indices"], PAD)
    for row, (begin, end) in enumerate(itertools.pairwise(outputs["paged_kv_indptr"])):
        slots[row * most : row * most + end - begin] = outputs["paged_kv_indices"][begin:end]
    outputs["paged_kv_indices"] = slots


CAUGHT_BY = {
    SPARSE.name: {
        "requests_are_free_to_move": [queries_are_requests],
        "queries_are_free_to_move": [queries_are_requests, the_first_request_for_all],
        "columns_are_free_to_move": [tokens_are_sorted, reads_the_first_column_only],
        "slots_move_with_their_block": [null_blocks_have_no_slots],
        "parts_join": [queries_are_requests, clears_before_the_first_query, the_first_request_for_all],
        "twice_is_once": [adds_to_the_buffer],
        "only_elements_of_queries_change": [
            adds_to_the_buffer,
            keeps_the_buffer_where_there_is_no_token,
            pads_behind_the_last_query,
            clears_before_the_first_query,
        ],
        "pages_of_one_token_keep_slots": [
            blocks_touch,
            forgets_the_place_in_the_block,
            masks_places_as_if_blocks_were_powers_of_two,
        ],
        "a_wider_stride_spreads_blocks": [blocks_touch],
        "longer_rows_keep_the_earlier": [tokens_past_top_k_are_the_last, an_element_too_few],
        "fitted_rows_keep_their_slots": [tokens_are_sorted, reads_the_first_column_only, an_element_too_few],
        "slots_lead_back": [
            tokens_past_the_row_wrap,
            requests_wrap,
            padding_is_slot_0,
            queries_are_requests,
            blocks_touch,
        ],
        "all_tokens_in_order_are_dense": [forgets_the_place_in_the_block, an_element_too_few],
    },
    DENSE.name: {
        "starts_add_up": [lengths_are_not_clipped_below, last_pages_are_counted],
        "lengths_are_clipped": [lengths_are_not_clipped_below],
        "requests_are_free_to_move": [the_first_row_for_all],
        "slots_move_with_their_block": [null_blocks_have_no_slots],
        "pages_of_one_token_keep_slots": [
            forgets_the_place_in_the_block,
            masks_places_as_if_blocks_were_powers_of_two,
        ],
        "parts_join": [the_first_row_for_all, requests_begin_at_their_full_width],
        "a_smaller_batch_leaks_nothing": [leaves_the_rest_of_the_buffer, keeps_the_buffer_where_there_is_no_token],
        "the_buffer_leaks_nothing": [leaves_the_rest_of_the_buffer, adds_to_the_buffer],
        "shorter_requests_are_prefixes": [newest_tokens_first, requests_begin_at_their_full_width],
        "tokens_asked_in_order_are_these": [
            newest_tokens_first,
            the_first_row_for_all,
            requests_begin_at_their_full_width,
            padding_is_slot_0,
        ],
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
