"""Faults planted in gathers of block tables are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

PLAIN, WINDOWED = "gather_block_tables", "gather_block_tables_windowed"

PLAIN_FAULTS = {
    "wrong_value:out": """
        keeps_stale_columns keeps_padding_rows clears_one_padding_row takes_one_block_too_many drops_the_last_block
        copies_whole_rows pads_with_minus_one knows_128_columns knows_64_rows knows_8_groups
        reads_the_first_groups_table takes_the_first_groups_counts counts_by_batch_row takes_negative_counts_for_all
        counts_in_32_bits ignores_idx_mapping takes_minus_one_for_the_last_request clamps_ids
        knows_no_id_but_minus_one takes_one_id_too_many ids_in_32_bits assumes_neighbouring_columns
        leaves_null_tables copies_its_first_rows returns_tables_of_its_own
        puts_its_own_tables_into_the_list
    """,
    "unwritten:out": "assumes_tight_rows multiplies_rows_in_32_bits",
    "uninitialised_read:out": "takes_the_first_groups_row_stride ignores_the_stride_of_counts",
    "stale:out": "caches_by_identity caches_by_shape",
    "out_of_bounds_write:out": "takes_the_tables_row_stride_for_outs writes_one_row_too_far writes_one_column_too_far",
    "input_mutated:num_blocks": "clips_counts_in_place",
    "input_mutated:idx_mapping": "replaces_minus_one_in_place sorts_idx_mapping_in_place",
    "host_sync:tolist": "reads_ids_on_the_host",
    "host_sync:int": "asks_for_the_longest_row",
    "host_sync:boolean mask": "selects_by_a_mask",
    "wrongly_accepted:out": "accepts_fewer_rows_than_requests accepts_wider_outs",
    "wrongly_refused:ValueError": "refuses_an_empty_batch refuses_no_groups",
    "crash:AssertionError": "asserts_tight_tables",
}

WINDOWED_FAULTS = {
    "wrong_value:out": """
        rounds_up keeps_one_block_more hides_one_block_more reach_ends_one_token_early reach_ends_one_token_late
        ignores_the_reach takes_no_window_for_one_of_no_tokens ignores_windows rounds_both_alone
        computed_tokens_by_batch_row takes_the_first_groups_reach takes_the_first_groups_block_size
        subtracts_in_32_bits hides_the_whole_row_of_negative_counts moves_blocks_to_the_front
        hidden_columns_hold_minus_one hidden_columns_keep_what_they_held counts_begin_at_the_window forgets_the_counts
    """,
    "uninitialised_read:out": "ignores_the_stride_of_computed_tokens",
    "stale:out": "caches_by_identity_of_computed_tokens",
    "out_of_bounds_write:out": "writes_before_its_tables",
    "input_mutated:num_computed_tokens": "clamps_computed_tokens_in_place",
    "host_sync:item": "reads_computed_tokens_on_the_host",
    "wrongly_accepted:window_reach": "accepts_negative_reaches accepts_one_reach_for_all_groups",
    "wrongly_accepted:num_computed_tokens": "checks_what_4_2_checks",
    "wrongly_refused:ValueError": "refuses_groups_without_a_window",
}

PLANTED = [
    pytest.param(contract, f"{file}:{fault}", key, id=fault)
    for contract, file, faults in (
        (PLAIN, "faults_gather.py", PLAIN_FAULTS),
        (WINDOWED, "faults_windowed.py", WINDOWED_FAULTS),
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
        (PLAIN, "correct_gather.py:gather_block_tables"),
        (PLAIN, "unusual_gather.py:returns_a_mapping"),
        (PLAIN, "unusual_gather.py:takes_the_last_group_first"),
        (PLAIN, "unusual_gather.py:compares_with_all_requests"),
        (PLAIN, "unusual_gather.py:writes_twice"),
        (PLAIN, "unusual_gather.py:gatherer"),
        (WINDOWED, "correct_gather.py:gather_block_tables_windowed"),
        (WINDOWED, "unusual_gather.py:returns_its_buffers"),
        (WINDOWED, "unusual_gather.py:copies_row_by_row"),
        (WINDOWED, "unusual_gather.py:gathers_from_a_flat_copy"),
        (WINDOWED, "unusual_gather.py:keeps_a_workspace"),
    )
]


@pytest.mark.parametrize(("contract", "spec"), CORRECT)
def test_correct_code_is_accepted(contract: str, spec: str, complaints) -> None:
    assert complaints(contract, spec) == []
