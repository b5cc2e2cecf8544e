"""Faults planted in ``spec_token_partition`` are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "spec_token_partition"

FAULTS = {
    "wrong_value:spec_token_indices": """
        ends_belong_to_the_request_before forgets_the_last_token requests_that_speculate_come_first
        only_drafts_speculate the_mask_is_inverted the_mask_belongs_to_the_next_request
        the_mask_is_taken_without_idle_requests turns_tokens_that_speculate_round puts_others_first
        knows_64_tokens returns_tokens_in_order
    """,
    "wrong_value:non_spec_token_indices": "takes_tokens_for_requests numbers_each_part_from_zero counts_from_one",
    "wrong_shape:spec_token_indices": "has_int64_indices counts_requests_that_speculate",
    "wrong_shape:non_spec_token_indices": "drops_the_last_other_token",
    "wrong_value:spec_query_start_loc": """
        starts_are_not_rebased starts_are_rebased_to_the_first reads_int64_as_pairs_of_int32
    """,
    "wrong_value:non_spec_query_start_loc": """
        starts_begin_with_the_first_length forgets_the_total counts_requests returns_zeros
        caches_by_shape
    """,
    "wrong_shape:spec_query_start_loc": "an_empty_part_has_no_start",
    "wrong_shape:non_spec_query_start_loc": "idle_requests_have_no_start",
    "unwritten:non_spec_query_start_loc": "ignores_the_stride_of_starts",
    "stale:spec_query_start_loc": "caches_by_identity returns_its_starts_where_all_speculate",
    "stale:spec_token_indices": "reuses_one_output_buffer",
    "out_of_bounds_write:spec_token_indices": "writes_one_token_too_far",
    "input_mutated:spec_mask_cpu": "inverts_the_mask_in_place",
    "host_sync:tolist": "reads_starts_on_the_host",
    "host_sync:repeat_interleave": "repeats_without_a_size",
    "host_sync:nonzero": "looks_for_tokens_by_nonzero",
    "wrongly_accepted:query_start_loc": "accepts_a_longer_mask",
    "wrongly_accepted:query_start_loc_cpu": "accepts_any_first_start",
    "wrongly_accepted:spec_mask_cpu": "accepts_flags_of_int32",
    "wrongly_refused:ValueError": "refuses_batches_without_drafts",
    "crash:AssertionError": "asserts_that_requests_have_tokens",
    "crash:IndexError": "looks_at_the_first_request",
}

PLANTED = [
    pytest.param(f"faults_partition.py:{fault}", key, id=fault)
    for key, names in FAULTS.items()
    for fault in names.split()
]


@pytest.mark.parametrize(("spec", "key"), PLANTED)
def test_a_fault_is_found(spec: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, spec, key)
    assert found.median <= found.given, found.needed


@pytest.mark.parametrize(
    "spec",
    [
        "correct_partition.py:spec_token_partition",
        "unusual_partition.py:returns_a_mapping",
        "unusual_partition.py:host",
        "unusual_partition.py:repeats_flags",
        "unusual_partition.py:counts_begun_requests",
        "unusual_partition.py:scatters_to_ranks",
        "unusual_partition.py:works_in_int32",
        "unusual_partition.py:returns_parts_of_one_tensor",
    ],
)
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
