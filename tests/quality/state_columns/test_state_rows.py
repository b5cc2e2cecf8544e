"""Faults planted in state columns and their staging are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

COLUMNS, STAGING = "state_columns", "stage_decode_state"

COLUMNS_FAULTS = {
    "wrong_value:state_indices": """
        takes_the_block_of_the_next_token rounds_up takes_the_block_before_the_last begins_past_a_full_block
        counts_empty_requests_from_the_end takes_absolute_lengths shifts_by_powers_of_two
        knows_blocks_of_up_to_16_tokens takes_the_longest_requests_column takes_the_first_requests_column
        lengths_in_32_bits reads_int64_as_pairs_of_int32 takes_all_for_none aligns_in_every_mode
        aligns_where_nobody_speculates repeats_the_first_column speculative_columns_follow_the_first_block
        speculative_columns_lie_in_front clamps_past_the_row forgets_the_last_column
        has_no_block_where_the_last_column_is_missing empty_requests_have_no_block pads_with_minus_one
        absurd_ids_are_null reads_the_next_row knows_64_rows returns_null returns_the_prefix
    """,
    "wrong_shape:state_indices": """
        has_no_room_for_the_last_block has_a_column_more returns_int64 divides_lengths_of_one_dtype
    """,
    "unwritten:state_indices": "assumes_tight_rows multiplies_rows_in_32_bits leaves_null_unwritten",
    "uninitialised_read:state_indices": "assumes_neighbouring_columns ignores_the_stride_of_lengths",
    "stale:state_indices": "caches_by_identity caches_by_shape reuses_one_output_buffer",
    "out_of_bounds_write:state_indices": "writes_one_column_too_far",
    "input_mutated:seq_lens": "clamps_lengths_in_place",
    "input_mutated:block_table": "clears_unused_columns_in_place",
    "host_sync:tolist": "reads_lengths_on_the_host",
    "host_sync:int": "asks_for_the_longest",
    "host_sync:boolean mask": "selects_by_a_mask",
    "wrongly_accepted:block_table": "accepts_narrow_tables",
    "wrongly_accepted:mamba_cache_mode": "takes_unknown_modes_for_align",
    "wrongly_accepted:seq_lens": "accepts_fewer_lengths",
    "wrongly_accepted:num_speculative_blocks": "accepts_negative_blocks",
    "wrongly_refused:ValueError": "refuses_narrow_tables_in_every_mode refuses_an_empty_batch",
    "crash:AssertionError": "asserts_tight_tables",
    "crash:RuntimeError": "gathers_past_the_row",
}

STAGING_FAULTS = {
    "wrong_value:state_buffer": """
        padding_keeps_old_states padding_has_state_minus_one padding_has_the_last_rows_state pads_one_row_only
        pads_the_first_column_only clears_the_whole_buffer pads_one_row_past_the_graph
        stages_the_first_column_only forgets_the_last_row takes_null_states_for_padding
        passes_states_through_floats stages_padding_only
    """,
    "wrong_value:query_start_loc_buffer": """
        padding_keeps_old_starts padding_starts_at_zero padding_repeats_the_start_before_the_last
        padding_has_a_token_each forgets_the_end_of_the_graph repeats_the_last_start_to_the_end begins_at_zero
        has_no_start_without_rows clamps_starts returns_what_is_there stages_into_tensors_of_its_own
    """,
    "wrong_value:num_accepted_buffer": """
        padding_accepts_nothing padding_keeps_old_counts pads_counts_to_the_end clamps_counts_to_the_columns
        reads_int64_as_pairs_of_int32
    """,
    "wrong_shape:state_indices_staged": "returns_whole_buffers returns_rows_of_the_step",
    "address_moved:state_indices_staged": "returns_copies_of_the_buffers",
    "unwritten:state_buffer": "assumes_tight_states assumes_neighbouring_columns",
    "unwritten:query_start_loc_buffer": "ignores_the_stride_of_starts",
    "unwritten:num_accepted_buffer": "ignores_the_stride_of_counts",
    "stale:state_indices_staged": "caches_by_identity caches_by_shape",
    "out_of_bounds_write:state_buffer": "assumes_a_tight_buffer writes_between_rows",
    "out_of_bounds_write:query_start_loc_buffer": "assumes_a_tight_start_buffer",
    "out_of_bounds_write:num_accepted_buffer": "writes_one_row_too_far",
    "input_mutated:num_accepted_tokens": "clamps_counts_in_place",
    "host_sync:tolist": "reads_counts_on_the_host",
    "host_sync:int": "asks_for_the_last_start",
    "wrongly_accepted:batch_size": """
        accepts_batches_past_the_capacity accepts_fewer_rows_than_requests refuses_after_it_has_written
    """,
    "wrongly_accepted:state_buffer": "accepts_other_columns",
    "wrongly_refused:ValueError": "refuses_empty_steps refuses_full_graphs",
    "crash:AssertionError": "asserts_tight_states",
}

PLANTED = [
    pytest.param(contract, f"{file}:{fault}", key, id=f"{contract}-{fault}")
    for contract, file, faults in (
        (COLUMNS, "faults_columns.py", COLUMNS_FAULTS),
        (STAGING, "faults_staging.py", STAGING_FAULTS),
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
        (COLUMNS, "correct_columns.py:state_columns"),
        (COLUMNS, "unusual_columns.py:returns_a_view_in_mode_none"),
        (COLUMNS, "unusual_columns.py:returns_a_mapping"),
        (COLUMNS, "unusual_columns.py:truncates_and_then_clamps"),
        (COLUMNS, "unusual_columns.py:compares_with_all_columns"),
        (COLUMNS, "unusual_columns.py:gathers_from_a_padded_copy"),
        (COLUMNS, "unusual_columns.py:takes_one_row_at_a_time"),
        (COLUMNS, "unusual_columns.py:returns_a_part_of_a_larger_tensor"),
        (COLUMNS, "unusual_columns.py:keeps_a_workspace"),
        (COLUMNS, "unusual_columns.py:finder"),
        (STAGING, "correct_staging.py:stage_decode_state"),
        (STAGING, "unusual_staging.py:returns_a_mapping"),
        (STAGING, "unusual_staging.py:pads_first_and_copies_then"),
        (STAGING, "unusual_staging.py:gathers_starts_by_clamped_places"),
        (STAGING, "unusual_staging.py:copies_single_elements"),
        (STAGING, "unusual_staging.py:stages_whole_rows_of_copies"),
        (STAGING, "unusual_staging.py:selects_with_masks"),
        (STAGING, "unusual_staging.py:stager"),
    )
]


@pytest.mark.parametrize(("contract", "spec"), CORRECT)
def test_correct_code_is_accepted(contract: str, spec: str, complaints) -> None:
    assert complaints(contract, spec) == []
