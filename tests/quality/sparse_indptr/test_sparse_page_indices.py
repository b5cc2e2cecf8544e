"""Faults planted in the slots of picked tokens are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "sparse_page_indices"

FAULTS = {
    "wrong_value:paged_kv_indices": """
        takes_the_first_start_for_0 a_query_begins_one_element_late knows_32_queries queries_own_all_columns
        columns_begin_at_1 columns_wrap the_last_column_for_all_behind_it reads_on_in_the_next_query
        skips_columns_without_a_token knows_minus_1_only takes_token_0_for_none
        tokens_in_32_bits takes_int64_tokens_for_int32 knows_no_negative_requests_only
        takes_minus_1_for_the_first_request one_request_too_many requests_wrap requests_in_32_bits
        takes_int64_requests_for_int32 one_query_a_request knows_one_block_less reads_the_next_row
        divides_by_the_stride shifts_by_powers_of_two blocks_end_one_token_late ignores_the_stride
        forgets_the_place_in_the_block masks_by_powers_of_two takes_the_place_in_the_stride multiplies_in_float32
        multiplies_in_16_bits takes_null_blocks_for_padding pads_with_0 keeps_what_has_no_slot
        pads_behind_the_last_query pads_before_the_first_query leaves_what_is_past_the_columns one_element_too_few
        one_element_too_many writes_nothing_where_the_buffer_is_short fills_with_zeros copies_its_tokens
        returns_slots_of_its_own clamps_blocks_to_the_row one_block_too_many
        assumes_neighbouring_columns_of_tokens assumes_tight_rows_of_tokens assumes_requests_side_by_side
    """,
    "uninitialised_read:paged_kv_indices": """
        assumes_tight_rows_of_the_table multiplies_rows_in_32_bits assumes_starts_side_by_side
        assumes_neighbouring_columns_of_the_table
    """,
    "stale:paged_kv_indices": "caches_by_identity caches_by_shape",
    "out_of_bounds_write:paged_kv_indices": "assumes_a_plain_buffer writes_one_element_too_far",
    "input_mutated:topk_indices": "moves_tokens_in_place",
    "input_mutated:req_id_per_token": "clamps_requests_in_place",
    "host_sync:tolist": "reads_starts_on_the_host",
    "host_sync:int": "asks_where_queries_end",
    "host_sync:boolean mask": "selects_by_a_mask",
    "wrongly_accepted:block_stride": "accepts_a_stride_below_the_block",
    "wrongly_accepted:paged_kv_indptr": "accepts_any_number_of_starts",
    "wrongly_accepted:block_table": "accepts_int64_tables",
    "wrongly_refused:ValueError": "refuses_longer_rows",
    "crash:AssertionError": "crashes_without_queries",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_pages.py:{fault}", key)
    assert found.median <= found.given, found.needed


CORRECT = [
    "correct_pages.py:sparse_page_indices",
    "unusual_pages.py:returns_a_mapping",
    "unusual_pages.py:compares_with_all_starts",
    "unusual_pages.py:appends_a_column_without_a_token",
    "unusual_pages.py:looks_up_in_a_flat_copy",
]
MORE = [
    "unusual_pages.py:counts_from_the_first_token_of_the_block",
    "unusual_pages.py:writes_twice",
    "unusual_pages.py:writes_query_by_query",
    "unusual_pages.py:keeps_a_workspace",
    "unusual_pages.py:converter",
]
"""Asked in nightly runs: each costs as much as a dozen faults."""


@pytest.mark.parametrize("spec", [*CORRECT, *(pytest.param(spec, marks=pytest.mark.nightly) for spec in MORE)])
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
