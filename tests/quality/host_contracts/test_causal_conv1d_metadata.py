"""Faults planted in a correct ``causal_conv1d_metadata`` are found and shrunk; unusual correct code raises no alarm."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from oracles.arrays import Inputs, array
from oracles.case import Case
from oracles.domain import Scope

CONTRACT = "chunk_metadata.causal_conv1d_metadata"
SMALL, NOTHING = Scope(2, 2), Scope(0, 1)


@dataclass(frozen=True)
class Fault:
    """The finding that has to be made, and its smallest case. ``examples``: samples, where no small scope shows it."""

    name: str
    key: str
    starts: list[int]
    block_m: int = 8
    dtype: str = "int32"
    strides: tuple[int, ...] | None = None
    examples: int = 0

    @property
    def case(self) -> Inputs:
        return {"query_start_loc": array(self.starts, self.dtype, self.strides), "block_m": self.block_m}


BATCH, BLOCKS, TOTAL = "wrong_value:batch_ptr", "wrong_value:token_chunk_offset_ptr", "wrong_value:total"
STARTS = "query_start_loc"

FAULTS = (
    Fault("numbers_requests_with_tokens_only", BATCH, [0, 0, 1]),
    Fault("drops_the_last_partial_block", TOTAL, [0, 1]),
    Fault("one_block_for_an_empty_request", TOTAL, [0, 0]),
    Fault("one_block_too_many_for_whole_ones", TOTAL, [0, 8]),
    Fault("block_numbers_run_through", BLOCKS, [0, 1, 2]),
    Fault("takes_the_first_start_for_0", TOTAL, [1, 1]),
    Fault("cuts_at_absolute_multiples", TOTAL, [1, 9]),
    Fault("knows_blocks_of_8_only", TOTAL, [0, 9], 16, examples=200),
    Fault("subtracts_in_float32", TOTAL, [1 << 24, (1 << 24) + 1], examples=200),
    Fault("subtracts_in_32_bits", TOTAL, [(1 << 31) - 1, 1 << 31], dtype="int64", examples=200),
    Fault("pads_with_0", BATCH, [0]),
    Fault("has_2048_programs_at_most", "wrong_shape:batch_ptr", [0, 8193], examples=100),
    Fault("has_no_spare_programs", "wrong_shape:batch_ptr", [0]),
    Fault("total_counts_the_padding", TOTAL, [0]),
    Fault("total_in_a_tensor", "wrong_shape:total", [0]),
    Fault("requests_in_one_byte", BATCH, list(range(130)), examples=200),
    Fault("columns_in_int64", "wrong_shape:batch_ptr", [0]),
    Fault("leaves_the_padding_unwritten", "unwritten:batch_ptr", [0]),
    Fault("accepts_falling_starts", f"wrongly_accepted:{STARTS}", [0, -1]),
    Fault("accepts_any_multiple_of_8", "wrongly_accepted:block_m", [0, 1], 24),
    Fault("refuses_an_empty_batch", "wrongly_refused:ValueError", [0]),
    Fault("caches_by_identity", "stale:batch_ptr", [0, 0]),
    Fault("reuses_its_buffers", "stale:batch_ptr", [0, 0]),
    Fault("rebases_its_input_in_place", f"input_mutated:{STARTS}", [1]),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_shrunk(fault: Fault, smallest_case) -> None:
    scope = NOTHING if fault.examples else SMALL
    found = smallest_case(CONTRACT, f"faults_conv.py:{fault.name}", fault.key, scope, fault.examples)
    assert found is not None
    same = Case(contract=CONTRACT, inputs=found).id == Case(contract=CONTRACT, inputs=fault.case).id
    assert same, f"smallest case: {dict(found)}\nexpected: {fault.case}"


@pytest.mark.parametrize(
    "spec",
    [
        "correct_conv.py:causal_conv1d_metadata",
        "unusual_conv.py:returns_a_mapping",
        "unusual_conv.py:returns_columns_of_one_table",
        "unusual_conv.py:grows_its_columns",
        "unusual_conv.py:caches_by_content",
        "unusual_conv.py:planner",
    ],
)
def test_correct_code_is_accepted(spec: str, failures) -> None:
    assert failures(CONTRACT, spec, Scope(1, 1), 60) == []
