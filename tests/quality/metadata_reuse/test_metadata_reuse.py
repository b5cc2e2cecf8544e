"""Faults planted in builders of metadata are found; unusual correct ones raise no alarm; each check is needed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from oracles.contracts import by_name, metadata_reuse
from oracles.contracts._reuse_engine import CHECKS
from oracles.domain import Sampler

ANYWHERE = {
    "wrongly_accepted:can_reuse_metadata": """
        SharesAtAnyTime AcceptsAnyBatch AcceptsEqualBatches AcceptsTheSameStep AcceptsRefilledBatches AcceptsItsOwn
        AcceptsCopies AcceptsAnyKey AcceptsBuffersOfOthers AcceptsBuffersOfOthersAtFirst AcceptsWhatIsNoMetadata
    """,
    "wrong_shape:update_block_tables": "DropsTheLastGroup",
}

LINEAR = {
    "wrongly_accepted:can_reuse_metadata": """
        KeyWithoutBlockSize KeyWithoutSpeculativeBlocks KeyWithoutMode KeyWithoutDtype KeyWithoutPageSize
    """,
    "stale:non_spec_state_indices_tensor": """
        CopiesShallowly SharesTheBuffersOfStates SharesStatesOfPadding
    """,
    "stale:prefill_state_indices": "KeepsTheOldSlice",
    "wrong_value:prefill_state_indices": "CopiesTheOldSlice",
    "wrong_value:non_spec_state_indices_tensor": """
        UpdatesAsAligned TakesColumnsOfAnEarlierStep WorksInTheSourcesStates StridesChange PaddingKeepsItsIds
        RemembersColumnsByAddress RemembersStatesByStep UsesTheFirstTable ReturnsTheLastGroupFirst ShiftsByPowersOfTwo
        GoesOnWithTheLengthsOfItsFirstRows
    """,
    "wrong_value:spec_state_indices_tensor": "WorksInOneBufferForAll",
    "unwritten:non_spec_state_indices_tensor": "LeavesItsBuffersAsTheyWere MultipliesRowsIn32Bits",
    "address_moved:non_spec_state_indices_tensor": "ForgetsToRestage KeepsBuffersOfOneSize WritesToOldMemoryToo",
    "address_moved:non_spec_query_start_loc": "CopiesWhatIsTheBatchs",
    "address_moved:chunk_indices": "CopiesChunks",
    "unwritten:num_accepted_tokens": "PaddingKeepsOldAcceptedTokens",
    "unwritten:spec_sequence_masks": "PaddingKeepsOldMasks",
    "wrong_value:spec_query_start_loc": "PaddingStartsAtZero",
    "wrong_value:non_spec_query_start_loc": "RemembersStartsByAddress",
    "wrong_value:has_initial_state": "RemembersPlansByRows",
    "wrong_value:num_prefills": "BeginningsOfOneTokenAreDecodes",
    "wrong_shape:prefill_has_initial_state": "StatesOfPrefillsOfAllRows",
    "host_sync:tolist": "ReadsLengthsOnTheHost",
}

MLA = {
    "wrongly_accepted:can_reuse_metadata": """
        KeyWithoutBlockSize KeyWithoutHeads KeyWithoutCacheDtype KeyWithoutDtype KeyWithoutCausal
    """,
    "stale:paged_kv_indices": "CopiesShallowly KeepsTheSourcesPages WritesPagesOfAllIntoTheFirst",
    "stale:block_table": "KeepsTheSourcesTable",
    "wrong_value:slot_mapping": "CopiesTheSourcesSlots",
    "wrong_value:paged_kv_indices": """
        MasksPlacesInBlocks DoesNotRefreshPages TailIsNull ColumnsPastTheRowAreClamped WorksInOneBufferForAll
        UsesTheFirstTable ReturnsTheLastGroupFirst
    """,
    "unwritten:paged_kv_indices": "TailKeepsOldPages",
    "uninitialised_read:paged_kv_indices": "MultipliesRowsIn32Bits",
    "unwritten:paged_kv_indptr": "PaddingKeepsOldStarts",
    "wrong_value:seq_lens": """
        IgnoresVarlen GivesQueriesWithoutACausalMask GivesQueriesWithoutTokens AddsToSharedLengths
        RemembersLengthsByAddress
    """,
    "wrong_value:qo_indptr": "RowsOfGraphsAreNotPadded",
    "input_mutated:seq_lens": "AddsQueriesInPlace",
    "address_moved:seq_lens": "CopiesWhatIsTheBatchs KeepsIndptrOfEachSize",
    "host_sync:item": "ReadsLengthsOnTheHost",
}

MIXED = {
    "wrongly_accepted:can_reuse_metadata": "accepts_the_other_family both_accept_any_batch",
    "stale:paged_kv_indices": "pages_are_not_refreshed",
    "stale:non_spec_state_indices_tensor": "states_are_of_the_source",
    "wrong_value:seq_lens": "pages_remember_lengths",
}


def planted(family: str, faults: dict[str, str], *marks: pytest.MarkDecorator) -> list:
    return [
        pytest.param(f"{family}_metadata_reuse", f"faults_{family}.py:{name}", key, id=f"{family}-{name}", marks=marks)
        for key, names in faults.items()
        for name in names.split()
    ]


PLANTED = [
    *planted("linear", ANYWHERE),
    *planted("linear", LINEAR),
    *planted("mla", ANYWHERE, pytest.mark.nightly),
    *planted("mla", MLA),
    *planted("mixed", MIXED),
]


@pytest.mark.parametrize(("contract", "spec", "key"), PLANTED)
def test_a_fault_is_found(contract: str, spec: str, key: str, first_shown) -> None:
    assert first_shown(contract, spec, key) is not None


@pytest.mark.parametrize(
    ("contract", "spec"),
    [
        ("linear_metadata_reuse", "correct_linear.py:Linear"),
        ("linear_metadata_reuse", "unusual_linear.py:NeverReuses"),
        ("linear_metadata_reuse", "unusual_linear.py:RefusesToUpdate"),
        ("linear_metadata_reuse", "unusual_linear.py:ReturnsAnotherRecord"),
        ("linear_metadata_reuse", "unusual_linear.py:ColumnsOfOneBuffer"),
        ("linear_metadata_reuse", "unusual_linear.py:KeepsItsViews"),
        ("linear_metadata_reuse", "unusual_linear.py:ComputesInInt64"),
        ("linear_metadata_reuse", "unusual_linear.py:ComparesWithAllColumns"),
        ("mla_metadata_reuse", "correct_mla.py:Mla"),
        ("mla_metadata_reuse", "unusual_mla.py:NeverReuses"),
        ("mla_metadata_reuse", "unusual_mla.py:ReturnsAnotherRecord"),
        ("mla_metadata_reuse", "unusual_mla.py:PartsOfOneBuffer"),
        ("mla_metadata_reuse", "unusual_mla.py:MakesObjectsAnew"),
        ("mla_metadata_reuse", "unusual_mla.py:ComputesInInt64"),
        ("mixed_metadata_reuse", "correct_mixed.py:builders"),
    ],
)
def test_correct_builders_are_accepted(contract: str, spec: str, said_of) -> None:
    assert said_of(contract, spec) == []


NEEDED = {
    "identity": ("CopiesChunks", "address_moved:chunk_indices"),
    "own memory": ("SharesStatesOfPadding", "stale:non_spec_state_indices_tensor"),
    "addresses": ("WritesToOldMemoryToo", "address_moved:non_spec_state_indices_tensor"),
    "replays": ("StridesChange", "wrong_value:non_spec_state_indices_tensor"),
    "kept": ("WorksInTheSourcesStates", "wrong_value:non_spec_state_indices_tensor"),
    "rejections": ("AcceptsCopies", "wrongly_accepted:can_reuse_metadata"),
}


def test_there_is_a_fault_for_each_check() -> None:
    assert set(NEEDED) == set(CHECKS)


@pytest.mark.parametrize("check", NEEDED)
def test_a_fault_survives_without_the_check(check: str, first_shown, said_of) -> None:
    name, key = NEEDED[check]
    samples, spec = 60, f"faults_linear.py:{name}"
    assert first_shown("linear_metadata_reuse", spec, key, samples) is not None
    assert said_of("linear_metadata_reuse", spec, without=check, samples=samples, guarded=0) == []


@pytest.mark.parametrize(
    ("contract", "spec", "key", "group", "words"),
    [
        (
            "linear_metadata_reuse",
            "faults_linear.py:ForgetsToRestage",
            "address_moved:non_spec_state_indices_tensor",
            1,
            "lies elsewhere than when its graph was captured",
        ),
        (
            "linear_metadata_reuse",
            "faults_linear.py:AcceptsAnyKey",
            "wrongly_accepted:can_reuse_metadata",
            1,
            "another spec",
        ),
        ("mla_metadata_reuse", "faults_mla.py:KeepsTheSourcesPages", "stale:paged_kv_indices", 1, "in the memory of"),
    ],
)
def test_the_smallest_life_tells_what_happened(
    contract: str, spec: str, key: str, group: int, words: str, reduced
) -> None:
    found = reduced(contract, spec, key)
    assert found is not None
    drawn = metadata_reuse.sketch(found.inputs)
    said = next(failure.detail for failure in found.failures if failure.key == key)
    steps = len(found.inputs["steps"])
    print(drawn, said, sep="\n")
    assert steps == (2 if "address" in key else 1)
    assert len(found.inputs["groups"]) == 2
    assert f"step {steps - 1}: queries [" in drawn
    assert f"step {steps - 1}, group {group}, {'built, because of R1' if 'spec' in words else 'updated'}" in drawn
    assert f"step {steps - 1}" in said
    assert f"group {group}" in said
    assert words in said
    field = key.partition(":")[2]
    assert field in said or field == "can_reuse_metadata"


@pytest.mark.parametrize("family", ["linear", "mla", "mixed"])
def test_what_is_specified_and_what_is_seen_stay_aligned(family: str, engine_of) -> None:
    """Every event of the specification has its counterpart, of the same group: it has the same tensors."""
    contract, looks = by_name(f"metadata_reuse.{family}_metadata_reuse"), Counter()
    for index in range(100):
        inputs = contract.domain(Sampler(1, index))
        told, engine = metadata_reuse.specified(inputs), engine_of(family, inputs)
        engine.live()
        assert len(told) == len(engine.seen)
        for (event, fields), seen in zip(told, engine.seen, strict=True):
            looks[event.when] += 1
            tensors = {name for name, value in fields.items() if isinstance(value, np.ndarray)}
            assert tensors == {name for name, value in seen.items() if isinstance(value, torch.Tensor)}, event.told()
    assert min(looks[when] for when in ("made", "kept", "replayed")) > 20
