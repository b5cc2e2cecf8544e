"""Faults planted in sparse lengths are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "sparse_indptr"

FAULTS = {
    "wrong_value:sparse_seq_lens": """
        a_query_does_not_see_itself a_query_sees_the_next_token every_query_sees_all sees_this_step_only
        counts_from_the_first_token knows_64_queries cuts_the_sequence_to_top_k
        forgets_a_sequence_shorter_than_its_queries a_length_of_0_is_1 knows_no_lower_bound
        a_query_sees_at_least_itself takes_negative_lengths_for_far_ones knows_no_top_k top_k_is_excluded
        top_k_is_at_most_1024 a_sequence_begins_one_query_late knows_64_sequences one_query_a_sequence
        empty_sequences_take_a_query padding_belongs_to_the_last_sequence padding_sees_one lengths_in_32_bits
        takes_int64_lengths_for_int32 takes_int64_starts_for_int32 returns_zeros returns_its_input_where_lengths_fit
    """,
    "wrong_value:paged_kv_indptr": """
        starts_are_ends every_query_has_room_for_top_k starts_of_padding_are_0 sums_in_16_bits
    """,
    "wrong_shape:paged_kv_indptr": "returns_int64 one_start_too_few",
    "unwritten:sparse_seq_lens": "padding_is_never_written",
    "unwritten:paged_kv_indptr": "the_first_start_is_never_written",
    "uninitialised_read:sparse_seq_lens": """
        assumes_lengths_side_by_side assumes_starts_side_by_side multiplies_strides_in_32_bits
    """,
    "stale:sparse_seq_lens": """
        caches_by_identity caches_by_shape caches_by_what_top_k_leaves reuses_its_buffers
    """,
    "out_of_bounds_write:sparse_seq_lens": "writes_one_length_too_far",
    "out_of_bounds_write:paged_kv_indptr": "writes_one_start_too_far",
    "input_mutated:seq_lens": "clamps_lengths_in_place",
    "input_mutated:query_start_loc": "turns_starts_into_ends_in_place",
    "host_sync:tolist": "reads_lengths_on_the_host",
    "host_sync:int": "asks_for_the_longest",
    "wrongly_accepted:topk": "accepts_no_top_k",
    "wrongly_accepted:num_tokens": "accepts_too_many_entries",
    "wrongly_accepted:query_start_loc_cpu": "accepts_any_starts",
    "wrongly_refused:ValueError": "refuses_an_empty_batch",
    "crash:AssertionError": "crashes_for_an_empty_batch",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_lengths.py:{fault}", key)
    assert found.median <= found.given, found.needed


CORRECT = [
    "correct_lengths.py:sparse_indptr",
    "unusual_lengths.py:returns_a_mapping",
    "unusual_lengths.py:takes_the_hosts_starts",
    "unusual_lengths.py:goes_sequence_by_sequence",
    "unusual_lengths.py:counts_from_the_end",
]
MORE = [
    "unusual_lengths.py:clips_top_k_first",
    "unusual_lengths.py:sums_backwards",
    "unusual_lengths.py:keeps_a_workspace",
    "unusual_lengths.py:returns_views_of_one_buffer",
]
"""Asked in nightly runs: each costs as much as a dozen faults."""


@pytest.mark.parametrize("spec", [*CORRECT, *(pytest.param(spec, marks=pytest.mark.nightly) for spec in MORE)])
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
