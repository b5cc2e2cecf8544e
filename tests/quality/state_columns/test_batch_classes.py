"""Faults planted in splits and classes of batches are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

SPLIT, CLASSES = "split_decodes_and_prefills", "classify_linear_attention_batch"

SPLIT_FAULTS = {
    "wrong_value:num_decodes": """
        a_decode_is_below_the_threshold the_longest_must_be_below_the_threshold
        the_first_must_be_below_the_threshold takes_the_threshold_for_1
        looks_at_the_first_request_like_at_any_other nothing_has_to_be_uniform everything_has_to_be_uniform
        padding_is_not_uniform uniform_is_at_most_the_first uniform_is_the_longest short_batches_are_uniform
        single_tokens_have_to_be_uniform short_extends_are_decodes short_extends_are_prefills
        short_batches_are_decodes only_requests_with_queries_are_prefilling flags_of_the_next_request
        the_first_prefill_is_a_decode the_last_decode_is_a_prefill takes_the_last_prefill
        counts_decodes_wherever_they_are takes_no_prefill_for_the_first requests_without_queries_are_prefills
        requests_without_queries_are_no_decodes_at_the_end padding_is_no_decode returns_zeros
        takes_all_for_prefills a_first_request_without_queries_is_a_prefill
    """,
    "wrong_value:num_prefills": "padding_is_no_prefill",
    "wrong_value:num_decode_tokens": """
        decode_tokens_are_decodes ignores_the_offset_of_starts reads_int64_as_pairs_of_int32 caches_by_shape
    """,
    "wrong_value:num_prefill_tokens": "prefill_tokens_begin_behind_the_first all_tokens_are_prefill_tokens",
    "wrong_shape:num_decodes": "returns_tensors",
    "uninitialised_read:num_decodes": "ignores_the_stride_of_starts",
    "stale:num_decodes": "caches_by_identity",
    "input_mutated:query_start_loc": "rebases_starts_in_place",
    "input_mutated:is_prefilling": "clears_flags_of_decodes_in_place",
    "wrongly_accepted:is_prefilling": "takes_unknown_flags_for_none",
    "wrongly_accepted:query_start_loc": "accepts_any_first_start",
    "wrongly_accepted:decode_threshold": "accepts_thresholds_of_nothing",
    "wrongly_refused:ValueError": "refuses_an_empty_batch",
    "crash:IndexError": "looks_at_the_first_request",
    "crash:AssertionError": "asserts_tight_starts",
}

CLASSES_FAULTS = {
    "wrong_value:num_decodes": """
        one_token_is_a_decode prompts_are_prefills_to_their_end idle_requests_begin whoever_has_no_state_begins
        everybody_prefills_if_nobody_knows flags_of_the_next_request whole_prompts_are_states
        any_length_is_a_state two_tokens_make_a_state the_first_prefill_is_a_decode the_last_decode_is_a_prefill
        two_tokens_are_a_decode idle_requests_are_no_decodes idle_requests_are_decodes_nowhere
        requests_without_drafts_speculate_not drafts_count_without_a_model
        whoever_has_several_queries_speculates decodes_stay_beside_drafts returns_zeros begins_without_a_prompt
    """,
    "wrong_value:num_prefills": """
        idle_requests_are_prefills the_mask_belongs_to_the_next_request idle_requests_beside_drafts_are_prefills
    """,
    "wrong_value:num_spec_decodes": "idle_requests_do_not_speculate",
    "wrong_value:num_decode_tokens": "decode_tokens_are_decodes caches_by_shape",
    "wrong_value:num_prefill_tokens": "all_tokens_behind_the_decodes_count prefill_tokens_are_all_tokens",
    "wrong_value:num_spec_decode_tokens": "counts_drafts_for_tokens requests_that_speculate_have_all_their_drafts",
    "wrong_value:has_initial_state": """
        states_of_the_first_requests nobody_has_a_state reads_int64_as_pairs_of_int32
    """,
    "wrong_value:prefill_query_start_loc": """
        starts_are_not_rebased starts_hold_tokens_that_speculate starts_are_less_by_the_decodes
    """,
    "wrong_shape:num_decodes": "returns_tensors_for_counts",
    "wrong_shape:has_initial_state": "states_of_all_requests states_of_prefills_only",
    "wrong_shape:prefill_query_start_loc": """
        starts_begin_at_the_first_request idle_requests_have_no_start forgets_the_total
        has_starts_and_states_without_prefills starts_are_int32
    """,
    "uninitialised_read:num_prefill_tokens": "ignores_the_stride_of_starts",
    "uninitialised_read:has_initial_state": "ignores_the_stride_of_lengths",
    "stale:num_prefills": "caches_by_identity",
    "stale:prefill_query_start_loc": "returns_its_starts_where_all_prefill reuses_one_output_buffer",
    "out_of_bounds_write:prefill_query_start_loc": "writes_one_start_too_far",
    "input_mutated:seq_lens_cpu": "subtracts_queries_from_lengths_in_place",
    "wrongly_accepted:seq_lens_cpu": "accepts_negative_lengths",
    "wrongly_accepted:num_speculative_tokens": "accepts_negative_drafts",
    "wrongly_refused:ValueError": "refuses_drafts_without_a_model needs_to_know_who_is_prefilling",
    "crash:AssertionError": "asserts_that_drafts_come_alone",
}

PLANTED = [
    pytest.param(contract, f"{file}:{fault}", key, id=f"{contract}-{fault}")
    for contract, file, faults in (
        (SPLIT, "faults_split.py", SPLIT_FAULTS),
        (CLASSES, "faults_classes.py", CLASSES_FAULTS),
    )
    for key, names in faults.items()
    for fault in names.split()
]


@pytest.mark.parametrize(("contract", "spec", "key"), PLANTED)
def test_a_fault_is_found(contract: str, spec: str, key: str, look_for) -> None:
    found = look_for(contract, spec, key)
    assert found.median <= found.given, found.needed


CORRECT = [
    pytest.param(contract, spec, id=f"{contract}-{spec.partition(':')[2]}")
    for contract, spec in (
        (SPLIT, "correct_split.py:split_decodes_and_prefills"),
        (SPLIT, "unusual_split.py:returns_a_mapping"),
        (SPLIT, "unusual_split.py:goes_backwards"),
        (SPLIT, "unusual_split.py:searches_with_numpy"),
        (SPLIT, "unusual_split.py:takes_tokens_from_starts"),
        (SPLIT, "unusual_split.py:caches_by_content"),
        (SPLIT, "unusual_split.py:copies_its_inputs"),
        (SPLIT, "unusual_split.py:splitter"),
        (CLASSES, "correct_classes.py:classify_linear_attention_batch"),
        (CLASSES, "unusual_classes.py:returns_a_mapping"),
        (CLASSES, "unusual_classes.py:returns_numpy_memory"),
        (CLASSES, "unusual_classes.py:goes_backwards"),
        (CLASSES, "unusual_classes.py:compares_positions_of_first_queries"),
        (CLASSES, "unusual_classes.py:drafts_none_where_nobody_drafts"),
        (CLASSES, "unusual_classes.py:returns_parts_of_larger_tensors"),
        (CLASSES, "unusual_classes.py:classifier"),
    )
]


@pytest.mark.parametrize(("contract", "spec"), CORRECT)
def test_correct_code_is_accepted(contract: str, spec: str, complaints) -> None:
    assert complaints(contract, spec) == []
