"""Faults planted in the shares of ranks are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "dcp_local_seq_lens"

FAULTS = {
    "wrong_value:local_seq_lens": """
        takes_negative_lengths_for_lengths takes_negative_lengths_for_far_ones an_empty_sequence_has_a_token
        the_last_token_is_not_counted knows_4096_tokens rounds_are_of_ranks forgets_the_rounds counts_rounds_as_tokens
        the_rest_is_of_a_turn nobody_gets_the_rest the_first_rank_gets_the_rest every_rank_gets_a_turn
        forgets_the_lower_bound forgets_the_upper_bound whole_turns_only rounds_turns_up one_token_a_turn
        ranks_begin_at_1 ranks_in_falling_order the_rank_is_not_scaled even_shares parts_of_equal_length
        no_rank_is_the_first every_rank_is_the_first rank_0_is_none lengths_in_32_bits lengths_in_float32
        takes_int64_lengths_for_int32 returns_zeros
    """,
    "wrong_shape:local_seq_lens": """
        ranks_come_first one_rank_keeps_its_axis a_number_becomes_a_vector flattens_lengths returns_int64
    """,
    "unwritten:local_seq_lens": "leaves_lengths_past_the_64th_unwritten",
    "uninitialised_read:local_seq_lens": """
        assumes_tight_lengths assumes_neighbouring_columns multiplies_strides_in_32_bits
    """,
    "stale:local_seq_lens": """
        caches_by_identity caches_by_shape reuses_its_buffer returns_its_input_for_one_rank
    """,
    "out_of_bounds_write:local_seq_lens": "writes_one_element_too_far",
    "input_mutated:seq_lens": "clamps_lengths_in_place",
    "host_sync:tolist": "reads_lengths_on_the_host",
    "host_sync:bool": "asks_for_negative_lengths",
    "wrongly_accepted:dcp_rank": "accepts_a_rank_past_the_last takes_negative_ranks_from_the_end",
    "wrongly_accepted:interleave": "accepts_any_interleave",
    "wrongly_accepted:seq_lens": "accepts_int16",
    "wrongly_refused:ValueError": "refuses_a_number",
    "crash:AssertionError": "crashes_without_a_dimension",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_shares.py:{fault}", key)
    assert found.median <= found.given, found.needed


CORRECT = [
    "correct_shares.py:dcp_local_seq_lens",
    "unusual_shares.py:returns_a_mapping",
    "unusual_shares.py:returns_a_tensor_alone",
    "unusual_shares.py:counts_tokens_of_the_last_round",
    "unusual_shares.py:counts_down_from_the_end",
]
MORE = [
    "unusual_shares.py:takes_differences_of_minima",
    "unusual_shares.py:returns_a_transposed_buffer",
    "unusual_shares.py:keeps_a_workspace",
    "unusual_shares.py:sharer",
]
"""Asked in nightly runs: each costs as much as a dozen faults."""


@pytest.mark.parametrize("spec", [*CORRECT, *(pytest.param(spec, marks=pytest.mark.nightly) for spec in MORE)])
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
