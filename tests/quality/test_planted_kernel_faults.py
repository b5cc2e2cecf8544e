"""Faults planted in a correct kernel: each is found in the interpreter, under its name, and shrunk."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from oracles.domain import Scope
from oracles.results import PROFILES


class Fault(NamedTuple):
    """A planted fault, its finding with what is special about the smallest case, and what else may be found."""

    name: str
    key: str
    example: dict[str, Any]
    also: tuple[str, ...] = ()
    scope: Scope = Scope(1, 1)
    examples: int = 0


BOTH = (INDICES, OFFSETS) = ("wrong_value:chunk_indices", "wrong_value:chunk_offsets")
TOKENS, TWO = Scope(1, 2), Scope(2, 2)
HUGE = (2**31 + 8,)

FAULTS = (
    Fault("load_mask", "out_of_bounds_read:cu_seqlens", {"cu": [0, 0]}),
    Fault("store_mask", "out_of_bounds_write:chunk_indices", {"cu": [0]}),
    Fault("off_by_one_block", "unwritten:chunk_indices", {"cu": [0, 1]}, scope=TOKENS),
    # A stride past 2^31 is sampled only.
    Fault(
        "stride_in_int32", "out_of_bounds_read:cu_seqlens", {"cu": [0, 0, 0], "strides": HUGE}, BOTH,
        examples=32,
    ),
    Fault("stride_ignored", "out_of_bounds_read:cu_seqlens", {"cu": [0, 0, 0], "strides": (2,)}, BOTH, TWO),
    Fault("other_dropped", "uninitialised_read:chunk_indices", {"cu": [0, 1], "dtype": "int64"}, scope=TOKENS),
    Fault("gaps_read", "out_of_bounds_read:cu_seqlens", {"cu": [0, 0], "strides": (2,)}),
    Fault("partial_chunk_dropped", OFFSETS, {"cu": [0, 1], "chunk_size": 2}, (INDICES,), scope=TOKENS),
    Fault("base_not_carried", INDICES, {"cu": [*range(130)]}, (OFFSETS,), examples=4),
    Fault("one_past_the_end", "out_of_bounds_write:chunk_offsets", {"cu": [0]}),
    Fault("race", "race:chunk_offsets", {"cu": [0, 65]}, ("race:chunk_indices",), examples=4),
    Fault("tail_unwritten", "unwritten:chunk_indices", {"cu": [0, 0], "host": [0, 1]}, scope=TOKENS),
    Fault("nothing_launched_without_rows", "unwritten:chunk_offsets", {"cu": [0]}),
    Fault("grid_rounded_down", "unwritten:chunk_indices", {"cu": [0, 65]}, examples=4),
    Fault(
        "refuses_after_the_launch", "wrongly_accepted:cu_seqlens_cpu",
        {"cu": [0, 0], "host": [0, -1], "host_dtype": "int64"},
    ),
    Fault("grid_read_from_the_device", "host_sync:index", {"cu": [0]}),
)  # fmt: skip


READ = (
    "chunk_indices[0, 0] changes with what unwritten memory holds: it read cu_seqlens, 1 elements past its last; "
    "kernel chunk_kernel, program (0, 0, 0), correct_kernel.py:30: "
    "end = tl.load(cu + (seqs + 1) * stride, mask=exists).to(tl.int64); "
    "lane 1 of 128, 127 lanes in all, masked off in a load without other"
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_shrunk(fault: Fault, examine, exactly, record_property) -> None:
    examined = examine(f"faults_kernels.py:{fault.name}", "interpreter", fault.scope, fault.examples)
    found = examined.keys
    assert fault.key in found, (list(found), examined.result.notes)
    exactly(found[fault.key], fault.example)
    assert set(found) <= {fault.key, *fault.also}
    if fault.name == "other_dropped":
        assert {finding.detail for finding in examined.result.findings} == {READ}
    record_property("cases", examined.cases)
    print(f"{fault.name}: {fault.key} after {examined.cases} cases")
    # `oracles check --profile dev` tries all of these cases: a larger scope contains a smaller one.
    dev = PROFILES["dev"]
    assert examined.cases > 0
    assert fault.examples <= dev.examples
    assert (fault.scope.count, fault.scope.value) <= (dev.scope.count, dev.scope.value)
