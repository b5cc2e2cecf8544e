"""Faults planted in the slots of whole contexts are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "dense_page_indices"

FAULTS = {
    "wrong_value:paged_kv_indptr": """
        knows_no_negative_lengths knows_no_lengths_past_the_row clips_to_columns clips_one_token_early
        an_empty_request_has_a_token takes_longer_ones_for_empty counts_pages_of_a_block every_request_has_room_for_all
        starts_are_ends takes_int64_lengths_for_int32 lengths_in_32_bits returns_zeros
    """,
    "wrong_value:paged_kv_last_page_len": "last_pages_are_counted empty_requests_have_no_last_page",
    "wrong_shape:paged_kv_last_page_len": "a_last_page_too_many",
    "wrong_shape:paged_kv_indptr": "returns_int64",
    "wrong_value:paged_kv_indices": """
        a_request_begins_one_element_late the_first_row_for_all knows_64_requests counts_tokens_from_the_first_request
        tokens_in_falling_order knows_1024_tokens shifts_by_powers_of_two blocks_end_one_token_late
        a_column_for_each_token forgets_the_place_in_the_block takes_ids_for_slots masks_by_powers_of_two
        multiplies_in_float32 takes_null_blocks_for_padding empty_rows_clamp_to_their_first_block pads_with_0
        keeps_the_rest_of_the_buffer pads_one_element_late pads_one_element_early pads_what_rows_may_hold
        repeats_the_last_slot leaves_the_buffer_without_requests caches_by_shape
    """,
    "uninitialised_read:paged_kv_indices": """
        assumes_tight_rows assumes_neighbouring_columns multiplies_rows_in_32_bits
    """,
    "uninitialised_read:paged_kv_indptr": "assumes_lengths_side_by_side",
    "stale:paged_kv_indptr": "caches_by_identity reuses_its_starts",
    "out_of_bounds_write:paged_kv_indices": "assumes_a_plain_buffer writes_one_element_too_far",
    "input_mutated:seq_lens": "clips_lengths_in_place",
    "host_sync:tolist": "reads_lengths_on_the_host",
    "host_sync:int": "asks_how_many_there_are",
    "host_sync:nonzero": "counts_used_lengths",
    "wrongly_accepted:paged_kv_indices": "measures_capacity_in_pages",
    "wrongly_accepted:kernel_block_size": "accepts_any_block_size",
    "wrongly_accepted:seq_lens": "accepts_fewer_lengths",
    "wrongly_refused:ValueError": "refuses_blocks_of_one_token",
    "crash:AssertionError": "crashes_without_columns",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_dense.py:{fault}", key)
    assert found.median <= found.given, found.needed


CORRECT = [
    "correct_dense.py:dense_page_indices",
    "unusual_dense.py:returns_a_mapping",
    "unusual_dense.py:returns_views_of_one_buffer",
    "unusual_dense.py:compares_with_all_starts",
    "unusual_dense.py:sums_by_a_triangle",
]
MORE = [
    "unusual_dense.py:counts_from_the_first_token_of_the_block",
    "unusual_dense.py:writes_padding_first",
    "unusual_dense.py:keeps_a_workspace",
]
"""Asked in nightly runs: each costs as much as a dozen faults."""


@pytest.mark.parametrize("spec", [*CORRECT, *(pytest.param(spec, marks=pytest.mark.nightly) for spec in MORE)])
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
