"""Products in 32 bits and rows past a persistent kernel's programs are found in small scopes, whatever the seed."""

from __future__ import annotations

import pytest

OF = {"column": "state_columns", "staged": "stage_decode_state", "parted": "spec_token_partition"}
FAULTS = {
    "unwritten:state_indices": "column_rows column_columns",
    "uninitialised_read:state_indices": "column_lengths",
    "wrong_value:state_indices": "column_128_lengths",
    "unwritten:state_buffer": "staged_rows staged_columns",
    "unwritten:query_start_loc_buffer": "staged_starts",
    "unwritten:num_accepted_buffer": "staged_counts",
    "wrong_value:num_accepted_buffer": "staged_128_counts",
    "uninitialised_read:non_spec_query_start_loc": "parted_starts",
    "wrong_shape:spec_token_indices": "parted_128_masks",
}
PLANTED = [(fault, key) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found_in_the_small_scope(fault: str, key: str, look_for) -> None:
    found = look_for(OF[fault.split("_")[0]], f"faults_ruled.py:{fault}", key, samples=0)
    assert found.median <= found.given, found.needed
