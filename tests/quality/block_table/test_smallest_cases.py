"""One fault of each contract is reduced to its smallest input."""

from __future__ import annotations

import pytest

from oracles.arrays import Array, Inputs, array
from oracles.case import Case


def ints(*values: object) -> Array:
    return array(values, "int32")


SMALLEST: dict[tuple[str, str, str], Inputs] = {
    ("BlockTables", "faults_tables.py:MovesToItselfErase", "wrong_value:tables"): {
        "block_sizes": (16,),
        "max_num_reqs": 2,
        "max_num_blocks_per_group": (2,),
        "operations": (("append", 0, ((1,),), False), ("move", 0, 0), ("apply",), ("gather", 0, 2)),
        "idx_mappings": (ints(0, 1),),
        "refilled": False,
        "idx_buffer": ints(-7, -7),
    },
    ("gather_block_tables", "faults_gather.py:keeps_stale_columns", "wrong_value:out"): {
        "block_tables": (ints([1, 0], [2, 3]),),
        "num_blocks": ints([1, 2]),
        "idx_mapping": ints(0, 1),
        "out": (ints([7, 8], [9, 10]),),
    },
    ("slot_mapping", "faults_slots.py:reads_the_next_row", "wrong_value:slot_mapping"): {
        "block_table": ints([1]),
        "idx_mapping": ints(0),
        "query_start_loc": ints(0, 1),
        "positions": ints(2),
        "block_size": 2,
        "cp_size": 1,
        "cp_rank": 0,
        "cp_interleave": 1,
        "slot_mapping": array([1001], "int64"),
    },
    ("kernel_block_table", "faults_kernel_table.py:parts_outside_columns", "wrong_value:kernel_table"): {
        "block_table": ints([1, 2]),
        "blocks_per_kernel_block": 2,
        "stride": 2,
    },
    ("slot_mapping_hybrid", "faults_hybrid.py:looks_up_by_block_size", "wrong_value:slot_mapping"): {
        "block_table": ints([2, 3]),
        "idx_mapping": ints(0),
        "query_start_loc": ints(0, 1),
        "positions": ints(1),
        "block_size": 2,
        "cp_size": 1,
        "cp_rank": 0,
        "cp_interleave": 1,
        "kernel_block_size": 1,
        "enabled": True,
        "slot_mapping": array([1001], "int64"),
    },
    ("gather_block_tables_windowed", "faults_windowed.py:ignores_the_reach", "wrong_value:out"): {
        "block_tables": (ints([1, 2]),),
        "num_blocks": ints([2]),
        "idx_mapping": ints(0),
        "num_computed_tokens": ints(2),
        "window_reach": (1,),
        "block_sizes": (2,),
        "out": (ints([7, 8]),),
    },
}


@pytest.mark.parametrize("planted", SMALLEST, ids=lambda planted: planted[1].partition(":")[2])
def test_a_fault_is_reduced_to_its_smallest_input(planted: tuple[str, str, str], smallest_case) -> None:
    found = smallest_case(*planted)
    assert found is not None
    contract, wanted = f"block_table.{planted[0]}", SMALLEST[planted]
    same = Case(contract=contract, inputs=found).id == Case(contract=contract, inputs=wanted).id
    assert same, f"smallest case: {dict(found)}\nexpected: {dict(wanted)}"
