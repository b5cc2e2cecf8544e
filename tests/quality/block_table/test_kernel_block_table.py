"""Faults planted in kernel block tables are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "kernel_block_table"

FAULTS = {
    "wrong_value:kernel_table": """
        ignores_the_stride forgets_the_product blocks_begin_at_1 takes_the_gap_for_the_stride
        null_blocks_begin_before_0 leaves_negative_ids multiplies_in_float32 ids_in_16_bits parts_begin_at_1
        every_part_is_the_first knows_32_parts parts_in_falling_order parts_outside_columns the_first_row_for_all
        expands_used_columns_only assumes_neighbouring_columns returns_zeros
    """,
    "wrong_shape:kernel_table": "keeps_three_dimensions one_part_too_few returns_int64",
    "unwritten:kernel_table": "leaves_rows_past_the_64th_unwritten",
    "uninitialised_read:kernel_table": "assumes_tight_rows multiplies_rows_in_32_bits",
    "stale:kernel_table": """
        returns_its_input_where_there_is_one_part caches_by_identity caches_by_shape reuses_its_buffer
    """,
    "out_of_bounds_write:kernel_table": "writes_one_element_too_far",
    "input_mutated:block_table": "multiplies_in_place",
    "host_sync:tolist": "reads_its_table_on_the_host",
    "host_sync:bool": "asks_for_the_largest_id",
    "wrongly_accepted:stride": "accepts_a_stride_below_the_parts",
    "wrongly_accepted:block_table": "accepts_int64_tables",
    "wrongly_refused:ValueError": "refuses_gaps",
    "crash:IndexError": "crashes_for_a_table_of_one_dimension",
}

PLANTED = [pytest.param(fault, key, id=fault) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found(fault: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, f"faults_kernel_table.py:{fault}", key)
    assert found.median <= found.given, found.needed


@pytest.mark.parametrize(
    "spec",
    [
        "correct_kernel_table.py:kernel_block_table",
        "unusual_kernel_table.py:returns_a_mapping",
        "unusual_kernel_table.py:returns_a_list",
        "unusual_kernel_table.py:repeats_columns",
        "unusual_kernel_table.py:goes_part_by_part",
        "unusual_kernel_table.py:returns_rows_of_a_wider_buffer",
        "unusual_kernel_table.py:returns_a_transposed_buffer",
        "unusual_kernel_table.py:wraps_in_32_bits",
        "unusual_kernel_table.py:keeps_a_workspace",
    ],
)
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
