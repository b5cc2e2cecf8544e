"""Faults planted in decode layouts are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "mla_decode_layout"

FAULTS = {
    "wrong_value:kernel_seq_lens": """
        knows_no_padding_of_a_graph pads_without_padding_rows padding_rows_may_be_anywhere rounds_the_width_down
        pads_in_a_graph_only rows_of_a_width_keep_their_length adds_the_whole_width forgets_the_width
        padding_rows_stay_empty rows_are_one_entry_too_long padding_of_a_graph_is_empty
        padding_of_a_graph_has_one_entry every_row_has_the_width short_rows_have_the_width
        padding_of_a_graph_adds_the_width empty_rows_have_an_entry takes_int64_lengths_for_int32 returns_zeros
        rows_of_one_query_are_padded_too the_first_row_says_the_width
    """,
    "wrong_value:paged_kv_indptr": "starts_are_ends sums_lengths_of_sequences sums_in_16_bits",
    "wrong_value:qo_indptr": """
        rows_of_a_width_keep_their_starts a_query_for_each_row_without_a_graph a_query_for_each_row
        starts_end_with_the_padding starts_of_lengths takes_int64_starts_for_int32
    """,
    "wrong_value:max_qo_len": """
        the_longest_row_is_the_first the_longest_row_has_a_query rows_of_a_width_are_as_long_as_they_were
        the_mean_of_rows
    """,
    "wrong_value:min_kv_seq_len": "knows_no_lower_bound",
    "wrong_shape:paged_kv_indptr": "returns_int64",
    "wrong_shape:qo_indptr": "the_last_row_has_no_end",
    "wrong_shape:max_qo_len": "the_longest_as_a_tensor",
    "unwritten:paged_kv_indptr": "the_first_start_is_never_written",
    "uninitialised_read:kernel_seq_lens": "assumes_lengths_side_by_side counts_queries_from_tight_starts",
    "unwritten:qo_indptr": "assumes_starts_side_by_side",
    "stale:kernel_seq_lens": """
        caches_by_identity caches_by_shape reuses_its_buffers returns_its_lengths_themselves
    """,
    "input_mutated:query_start_loc": "moves_starts_in_place",
    "input_mutated:seq_lens": "clamps_lengths_in_place",
    "out_of_bounds_write:kernel_seq_lens": "writes_one_length_too_far",
    "out_of_bounds_write:paged_kv_indptr": "writes_one_start_too_far",
    "host_sync:tolist": "reads_starts_on_the_device",
    "host_sync:int": "asks_for_the_shortest",
    "host_sync:boolean mask": "looks_for_empty_rows",
    "wrongly_accepted:num_decode_tokens": "accepts_fewer_tokens_than_queries",
    "wrongly_accepted:varlen_width": "accepts_a_width_below_a_row",
    "wrongly_accepted:query_start_loc_cpu": "accepts_decreasing_starts",
    "wrongly_refused:ValueError": "refuses_layouts_without_queries",
    "crash:AssertionError": "crashes_without_rows",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_layouts.py:{fault}", key)
    assert found.median <= found.given, found.needed


CORRECT = [
    "correct_layouts.py:mla_decode_layout",
    "unusual_layouts.py:returns_a_mapping",
    "unusual_layouts.py:returns_views_of_one_buffer",
    "unusual_layouts.py:takes_the_hosts_counts",
    "unusual_layouts.py:takes_the_hosts_starts",
]
MORE = [
    "unusual_layouts.py:asks_for_whole_rows_in_front",
    "unusual_layouts.py:takes_full_batches_for_a_graphs",
    "unusual_layouts.py:sums_by_a_triangle",
    "unusual_layouts.py:multiplies_instead_of_choosing",
    "unusual_layouts.py:keeps_a_workspace",
]
"""Asked in nightly runs: each costs as much as a dozen faults."""


@pytest.mark.parametrize("spec", [*CORRECT, *(pytest.param(spec, marks=pytest.mark.nightly) for spec in MORE)])
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
