"""Wrong split plans of every kind are found; unusual correct ones raise no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "mla_split_plan"

FAULTS = {
    "wrong_value:work_indptr": """
        one_split_takes_everything the_longest_row_is_a_share
        rows_are_never_cut every_row_is_cut_for_all_splits the_last_split_takes_what_is_left
        cuts_one_entry_late cuts_at_multiples_from_the_batch knows_granules_of_16 takes_granules_for_powers_of_two
        pieces_overlap
        pieces_leave_an_entry_out the_last_entry_is_left_out every_tile_ends_with_its_last_query
        rows_without_entries_have_no_work rows_without_queries_have_no_work empty_rows_are_not_numbered
        the_last_row_is_forgotten knows_no_tiles a_tile_has_one_query_more a_full_row_has_an_empty_tile
        the_rest_of_a_row_has_no_tile entries_begin_with_the_row queries_begin_with_the_row nothing_is_behind_a_piece
        counts_what_is_before_a_piece no_work_has_a_place single_pieces_have_place_0 ends_are_counts
        every_row_begins_at_place_0 a_place_for_each_piece pieces_share_a_place places_fall
        places_of_splits_not_of_pieces the_last_tile_is_never_reduced reduces_two_pieces the_first_piece_is_not_reduced
        reductions_name_their_row reductions_have_the_queries_of_the_row single_pieces_are_reduced reduces_backwards
        used_splits_only starts_are_ends splits_take_works_in_turn the_last_work_is_left_out
        takes_int64_starts_for_int32 assumes_starts_side_by_side returns_zeros returns_int64 returns_works_flat
    """,
    "stale:work_indptr": "caches_by_identity caches_by_shape reuses_its_buffers",
    "out_of_bounds_write:work_indptr": "writes_one_element_too_far",
    "input_mutated:kv_indptr": "turns_starts_into_ends_in_place",
    "input_mutated:qo_indptr": "shortens_rows_in_place",
    "wrongly_accepted:kv_granularity": "accepts_no_granule",
    "wrongly_accepted:num_splits": "accepts_no_split",
    "wrongly_accepted:kv_indptr": "accepts_decreasing_entries",
    "wrongly_refused:ValueError": "refuses_rows_without_queries",
    "crash:AssertionError": "crashes_without_rows",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_plans.py:{fault}", key)
    assert found.median <= found.given, found.needed


CORRECT = [
    "correct_plans.py:mla_split_plan",
    "unusual_plans.py:returns_a_mapping",
    "unusual_plans.py:leaves_room_behind",
    "unusual_plans.py:plans_for_causal_attention",
    "unusual_plans.py:reduces_the_last_tile_first",
]
MORE = [
    "unusual_plans.py:places_are_whole_tiles_apart",
    "unusual_plans.py:splits_in_falling_order",
    "unusual_plans.py:keeps_rows_whole_where_it_can",
    "unusual_plans.py:works_of_a_split_in_falling_order",
]
"""Asked in nightly runs: each costs as much as a dozen faults."""


@pytest.mark.parametrize("spec", [*CORRECT, *(pytest.param(spec, marks=pytest.mark.nightly) for spec in MORE)])
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
