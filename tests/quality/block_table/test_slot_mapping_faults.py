"""Faults planted in slot mappings are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

PLAIN, HYBRID = "slot_mapping", "slot_mapping_hybrid"

PLAIN_FAULTS = {
    "wrong_value:slot_mapping": """
        one_token_a_row a_row_begins_one_token_late knows_64_rows ignores_idx_mapping
        takes_minus_one_for_the_last_request clamps_ids knows_no_id_but_minus_one ids_in_32_bits
        pads_up_to_the_tokens pads_behind_the_tokens_only pads_before_the_first_start begins_at_the_first_token
        pads_with_0 gives_padding_tokens_to_the_last_row counts_from_the_rows_first_token
        takes_negative_positions_for_the_first positions_in_32_bits clamps_columns_to_the_row reads_the_next_row
        blocks_end_one_token_late shifts_by_powers_of_two multiplies_in_32_bits takes_null_blocks_for_padding
        takes_negative_ids_for_padding forgets_the_offset assumes_neighbouring_columns every_rank_owns_all
        ownership_ignores_the_interleave ownership_by_block ranks_in_falling_order ownership_by_parts_of_a_block
        position_stays_global local_ignores_the_interleave local_forgets_the_rounds local_counts_rounds_as_tokens
        local_forgets_the_place_in_its_stripe looks_up_by_virtual_blocks pads_everything copies_its_positions
        returns_slots_of_its_own
    """,
    "uninitialised_read:slot_mapping": "ignores_the_stride_of_starts assumes_tight_rows multiplies_rows_in_32_bits",
    "stale:slot_mapping": "caches_by_identity caches_by_shape moves_its_buffer_to_memory_of_its_own",
    "out_of_bounds_write:slot_mapping": "ignores_the_stride_of_its_buffer writes_one_slot_too_far",
    "input_mutated:positions": "clamps_positions_in_place",
    "input_mutated:query_start_loc": "subtracts_the_first_start_in_place",
    "host_sync:tolist": "reads_starts_on_the_host",
    "host_sync:int": "asks_where_tokens_end",
    "host_sync:boolean mask": "selects_by_a_mask",
    "wrongly_accepted:slot_mapping": "accepts_a_short_buffer",
    "wrongly_accepted:cp_rank": "accepts_any_rank",
    "wrongly_accepted:block_size": "accepts_any_interleave",
    "wrongly_accepted:positions": "accepts_float_positions",
    "wrongly_refused:ValueError": "refuses_an_empty_batch",
    "crash:IndexError": "crashes_for_an_empty_batch",
}

HYBRID_FAULTS = {
    "wrong_value:slot_mapping": """
        looks_up_by_block_size multiplies_by_block_size offset_in_the_managers_block knows_no_kernel_blocks
        takes_ids_for_the_managers a_column_for_each_part shifts_by_powers_of_two masks_by_powers_of_two
        multiplies_in_32_bits counts_the_managers_columns ownership_by_kernel_block_size ownership_by_kernel_block
        local_by_kernel_block_size local_by_kernel_block looks_up_by_virtual_kernel_blocks
        offset_of_the_virtual_block disabled_leaves_its_buffer disabled_pads_up_to_the_tokens
        disabled_keeps_what_is_before_the_first_start disabled_fills_with_0 knows_no_switch
        disabled_and_enabled_are_exchanged
    """,
    "stale:slot_mapping": "caches_by_identity",
    "out_of_bounds_write:slot_mapping": "disabled_writes_one_slot_too_far",
    "input_mutated:query_start_loc": "turns_starts_into_lengths_in_place",
    "host_sync:bool": "disabled_asks_for_the_first_start",
    "wrongly_accepted:slot_mapping": "disabled_refuses_nothing",
    "wrongly_accepted:kernel_block_size": "checks_what_4_3_checks",
    "wrongly_refused:ValueError": "refuses_blocks_of_other_sizes",
    "crash:AssertionError": "crashes_where_it_should_refuse",
}

PLANTED = [
    pytest.param(contract, f"{file}:{fault}", key, id=fault)
    for contract, file, faults in (
        (PLAIN, "faults_slots.py", PLAIN_FAULTS),
        (HYBRID, "faults_hybrid.py", HYBRID_FAULTS),
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
        (PLAIN, "correct_slots.py:slot_mapping"),
        (PLAIN, "unusual_slots.py:returns_a_mapping"),
        (PLAIN, "unusual_slots.py:compares_with_all_starts"),
        (PLAIN, "unusual_slots.py:goes_row_by_row"),
        (PLAIN, "unusual_slots.py:counts_blocks_in_int64"),
        (PLAIN, "unusual_slots.py:writes_twice"),
        (HYBRID, "correct_slots.py:slot_mapping_hybrid"),
        (HYBRID, "unusual_slots.py:mapper"),
        (HYBRID, "unusual_slots.py:writes_token_by_token"),
        (HYBRID, "unusual_slots.py:looks_up_in_a_flat_copy"),
        (HYBRID, "unusual_slots.py:never_sees_a_negative_id"),
        (HYBRID, "unusual_slots.py:keeps_a_workspace"),
    )
]


@pytest.mark.parametrize(("contract", "spec"), CORRECT)
def test_correct_code_is_accepted(contract: str, spec: str, complaints) -> None:
    assert complaints(contract, spec) == []
