"""Faults planted in ``mla_cache_write_dispatch`` are found; unusual correct dispatchers raise no alarm."""

from __future__ import annotations

import re

import pytest

from oracles.check import judge
from oracles.contracts._write_life import sketch
from oracles.providers import ProviderError

CONTRACT = "mla_cache_write_dispatch"

FAULTS = {
    "wrong_value:written_again": "both_paths_write a_row_of_both_fused_paths",
    "wrong_value:rotated_again": "decode_rows_are_rotated_twice prompts_begin_behind_decodes",
    "wrong_value:kv_cache": """
        neither_writes writes_before_it_rotates leaves_keys_to_a_fused_path knows_one_run_of_rows
        prompts_take_the_first_slots prompts_take_the_slots_behind_those_of_decodes
        a_batch_with_prompts_has_no_decodes dummy_runs_write_slot_0
        profiling_writes_the_first_slots remembers_slots_by_identity
    """,
    "wrong_value:q_out": """
        profiling_leaves_queries_unrotated rows_without_a_slot_return_early rows_behind_the_slots_are_left_out
        decodes_come_first returns_its_own_buffer
    """,
    "wrong_value:k_pe_out": "returns_keys_as_they_came",
    "input_mutated:k_pe": "rotates_in_place",
    "host_sync:item": "looks_at_slots_on_the_host",
    "wrongly_accepted:prefill_rows": "accepts_everything",
    "wrongly_refused:ValueError": "refuses_steps_without_tokens",
    "crash:AssertionError": "needs_slots",
}

PLANTED = [
    pytest.param(f"faults_dispatch.py:{fault}", key, id=fault)
    for key, names in FAULTS.items()
    for fault in names.split()
]


@pytest.mark.parametrize(("spec", "key"), PLANTED)
def test_a_fault_is_found(spec: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, spec, key)
    assert found.median <= found.given, found.needed


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        ("prompts_take_the_slots_behind_those_of_decodes", "wrong_value:kv_cache"),
        ("prompts_take_the_first_slots", "wrong_value:kv_cache"),
        ("prompts_begin_behind_decodes", "wrong_value:rotated_again"),
        ("decodes_come_first", "wrong_value:q_out"),
        ("knows_one_run_of_rows", "wrong_value:kv_cache"),
    ],
)
def test_an_order_of_paths_that_is_assumed_is_found_in_the_small_scope(fault: str, key: str, look_for, folder) -> None:
    found = look_for(CONTRACT, f"faults_dispatch.py:{fault}", key, samples=0)
    assert found.median <= len(folder.stream(CONTRACT).small), found.needed


@pytest.mark.parametrize(
    "spec",
    [
        "correct_dispatch.py:mla_cache_write_dispatch",
        "unusual_dispatch.py:one_path_for_all",
        "unusual_dispatch.py:masks_what_is_written",
        "unusual_dispatch.py:rotates_all_before_any_write",
        "unusual_dispatch.py:server",
        "unusual_dispatch.py:in_torch_order",
        "unusual_dispatch.py:in_promote_order",
        "unusual_dispatch.py:kernels_of_its_own",
    ],
)
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []


def test_the_smallest_case_is_one_token(smallest_case) -> None:
    inputs = smallest_case(CONTRACT, "faults_dispatch.py:dummy_runs_write_slot_0", "wrong_value:kv_cache")
    assert sketch(inputs).splitlines() == [
        "step 0: dummy, tokens 1, nothing may be written",
        "  token 0  decode   position 1   slot -1, not written",
    ]


@pytest.mark.parametrize(
    ("fault", "key", "said"),
    [
        (
            "both_paths_write",
            "wrong_value:written_again",
            "token 0 of step 0, a real one, on the decode path was written by more than one call of a path",
        ),
        (
            "decode_rows_are_rotated_twice",
            "wrong_value:q_out",
            "the decode path; .*rotated lane 0.*a second rotation",
        ),
        (
            "neither_writes",
            "wrong_value:kv_cache",
            r"slot 1, as it was before the first step, last written by token 1 of step 0, a real one, on the unfused",
        ),
        ("dummy_runs_write_slot_0", "wrong_value:kv_cache", "slot 0, belongs to no token of any step"),
    ],
)
def test_what_is_said_of_a_fault(fault: str, key: str, said: str, folder) -> None:
    subject, stream = folder.loaded(CONTRACT, f"faults_dispatch.py:{fault}"), folder.stream(CONTRACT)
    found = (failure for inputs in stream.small for failure in judge(subject, inputs, fresh=False))
    detail = next(failure.detail for failure in found if failure.key == key)
    assert re.search(said, detail, re.DOTALL), detail


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("nothing", "wrong_shape:outputs", "returned None,"),
        ("queries_alone", "wrong_shape:outputs", "returned Tensor,"),
        ("no_keys", "wrong_shape:k_pe_out", "returned a tuple of Tensor, None,"),
        ("lists_of_tensors", "wrong_shape:q_out", "returned a list of list, list,"),
        ("mapping_without_keys", "wrong_shape:outputs", "returned a dict with 'q_out',"),
        ("four_results", "wrong_shape:outputs", "returned a tuple of Tensor, Tensor, Tensor, int,"),
    ],
)
def test_results_that_are_no_two_tensors_are_told(name: str, key: str, said: str, folder) -> None:
    subject, stream = folder.loaded(CONTRACT, f"wrong_results.py:{name}"), folder.stream(CONTRACT)
    (failure,) = judge(subject, stream.small[0], fresh=False)
    assert failure.key == key
    assert failure.detail.startswith(f"step 0: {said} where the tensors q_out and k_pe_out belong")


def test_an_unknown_rounding_order_is_refused_before_anything_is_judged(folder) -> None:
    with pytest.raises(ProviderError, match="rounding is 'hop'; it must be one of hip, torch"):
        folder.loaded(CONTRACT, "wrong_results.py:unknown_order")
