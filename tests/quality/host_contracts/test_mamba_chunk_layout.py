"""Faults planted in a correct ``mamba_chunk_layout`` are found and shrunk; unusual correct code raises no alarm."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from oracles.arrays import Inputs, array
from oracles.case import Case
from oracles.domain import Scope

CONTRACT = "chunk_metadata.mamba_chunk_layout"
SMALL, NOTHING = Scope(2, 2), Scope(0, 1)


@dataclass(frozen=True)
class Fault:
    """The finding that has to be made, and its smallest case. ``examples``: samples, where no small scope shows it."""

    name: str
    key: str
    starts: list[int]
    computed: list[int] = field(default_factory=list)
    chunk_size: int = 1
    checkpoints: list[int] | None = None
    dtypes: tuple[str, str] = ("int32", "int32")
    strides: tuple[int, ...] | None = None
    examples: int = 0

    @property
    def case(self) -> Inputs:
        return {
            "query_start_loc": array(self.starts, self.dtypes[0], self.strides),
            "num_computed_tokens": array(self.computed, self.dtypes[1]),
            "chunk_size": self.chunk_size,
            "checkpoint_offsets": None if self.checkpoints is None else array(self.checkpoints, "int32"),
        }


OWNERS, LAST, CHECKPOINT = (
    f"wrong_value:{name}" for name in ("seq_idx", "last_chunk_indices", "checkpoint_chunk_indices")
)
CU_SHAPE, STALE = "wrong_shape:cu_chunk_seqlens", "stale:cu_chunk_seqlens"
REFUSES = "wrongly_accepted:"

FAULTS = (
    Fault("numbers_requests_with_tokens_only", OWNERS, [0, 0, 1], [0, 0]),
    Fault("empty_requests_point_to_the_chunk_before", LAST, [0, 1, 1], [0, 0]),
    Fault("empty_requests_inside_a_chunk_get_one", CU_SHAPE, [0, 0], [1], 2),
    Fault("an_empty_chunk_follows_a_checkpoint_at_the_end", CU_SHAPE, [0, 1], [0], 2, [1]),
    Fault("counts_multiples_from_the_request", CU_SHAPE, [0, 2], [1], 2),
    Fault("counts_multiples_from_the_checkpoint", "wrong_", [0, 3], [0], 2, [1], examples=100),
    Fault("cuts_no_chunk_at_a_checkpoint", CU_SHAPE, [0, 2], [0], 2, [1]),
    Fault("no_index_for_a_checkpoint_at_the_end", CHECKPOINT, [0, 1], [0], 1, [1]),
    Fault("checkpoint_indices_count_from_the_request", CHECKPOINT, [0, 1, 2], [0, 0], 1, [0, 1]),
    Fault(
        "refuses_counts_past_32_bits",
        "wrongly_refused:ValueError",
        [0, 0],
        [1 << 31],
        dtypes=("int32", "int64"),
        examples=100,
    ),
    Fault("drops_the_last_partial_chunk", CU_SHAPE, [0, 2], [1], 2),
    Fault("joins_short_requests", CU_SHAPE, [0, 1, 2], [0, 0], 2),
    Fault("ends_in_int64", CU_SHAPE, [0]),
    Fault("the_last_end_is_missing", CU_SHAPE, [0, 1], [0]),
    Fault("clips_checkpoints", f"{REFUSES}checkpoint_offsets", [0, 1], [0], 1, [2]),
    Fault("accepts_any_first_start", f"{REFUSES}query_start_loc", [1, 2], [0], 1, [0]),
    Fault("needs_checkpoints", "wrongly_refused:ValueError", [0]),
    Fault("looks_at_the_first_checkpoint", "crash:IndexError", [0], [], 1, []),
    Fault("caches_by_identity", STALE, [0, 0], [0]),
    Fault("reuses_one_output_buffer", STALE, [0, 1], [0], 2),
    Fault("returns_its_input_where_each_request_is_a_chunk", STALE, [0]),
    Fault("reduces_computed_counts_in_place", "input_mutated:num_computed_tokens", [0, 0], [1]),
    Fault("refuses_strided_starts", "wrongly_refused:ValueError", [0, 0], [0], strides=(2,)),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_shrunk(fault: Fault, smallest_case) -> None:
    scope = NOTHING if fault.examples else SMALL
    found = smallest_case(CONTRACT, f"faults_mamba.py:{fault.name}", fault.key, scope, fault.examples)
    assert found is not None
    same = Case(contract=CONTRACT, inputs=found).id == Case(contract=CONTRACT, inputs=fault.case).id
    assert same, f"smallest case: {dict(found)}\nexpected: {fault.case}"


@pytest.mark.parametrize(
    "spec",
    [
        "correct_mamba.py:mamba_chunk_layout",
        "unusual_mamba.py:returns_a_mapping",
        "unusual_mamba.py:returns_views_of_one_buffer",
        "unusual_mamba.py:caches_by_content",
        "unusual_mamba.py:goes_backwards",
        "unusual_mamba.py:layout",
    ],
)
def test_correct_code_is_accepted(spec: str, failures) -> None:
    assert failures(CONTRACT, spec, Scope(1, 1), 60) == []
