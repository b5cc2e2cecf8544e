"""Products in 32 bits and rows past a persistent kernel's programs are found in small scopes, whatever the seed."""

from __future__ import annotations

import pytest

OF = {
    "gather": "gather_block_tables",
    "windowed": "gather_block_tables_windowed",
    "slot": "slot_mapping",
    "hybrid": "slot_mapping_hybrid",
    "expanded": "kernel_block_table",
}
FAULTS = {
    "unwritten:out": "gather_rows gather_columns windowed_columns",
    "uninitialised_read:out": "gather_groups gather_counts windowed_tokens",
    "wrong_value:out": "gather_requests gather_128_requests windowed_128_requests",
    "out_of_bounds_write:out": "gather_out_rows gather_out_columns",
    "uninitialised_read:slot_mapping": "slot_rows slot_columns slot_starts hybrid_rows hybrid_columns",
    "wrong_value:slot_mapping": """
        slot_requests slot_positions slot_128_requests hybrid_requests hybrid_128_requests
    """,
    "out_of_bounds_write:slot_mapping": "slot_slots hybrid_slots",
    "unwritten:kernel_table": "expanded_rows expanded_columns",
    "wrong_value:kernel_table": "expanded_128_rows",
}
PLANTED = [(fault, key) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found_in_the_small_scope(fault: str, key: str, look_for) -> None:
    found = look_for(OF[fault.split("_")[0]], f"faults_ruled.py:{fault}", key, samples=0)
    assert found.median <= found.given, found.needed
