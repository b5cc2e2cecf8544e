"""Faults planted in the class ``BlockTables`` are found; unusual correct code raises no alarm."""

from __future__ import annotations

import pytest

CONTRACT = "BlockTables"

OPERATIONS = {
    "wrong_value:tables": """
        AppendsReplace AppendsInFront AppendsToTheAppliedRow AppendsGroupByGroup AppendsEvenWhereTheyRefuse
        KeepsTheCallersLists AppliesTheFirst64Rows
        OverwritesLeaveTheOldTail OverwritesAppend OverwritesReplaceGroupsWithBlocksOnly ClearsNothing ClearsAtOnce
        ClearsTheFirstGroup MovesToItselfErase MovesLeaveTheSource MovesLeaveTheOldTail MovesBackwards
        MovesOnlyToEmptyRows SwapsOneGroup SwapsMove SwapsNothingWithAnEmptyRow
    """,
    "wrongly_accepted:append": "DropsWhatDoesNotFit AcceptsAnyId AcceptsMoreGroups",
    "wrongly_accepted:block_sizes": "AcceptsSizesOfNothing",
    "wrongly_accepted:move": "CountsRequestsFromTheEnd",
    "wrongly_accepted:clear": "IgnoresRequestsThatThereAreNot",
    "wrongly_refused:append": "TakesTheFirstGroupsWidth RefusesFullRows RefusesEmptyAppends",
    "crash:AssertionError": "CrashesWhereItShouldRefuse",
}

SHOWN = {
    "wrong_value:tables": """
        GathersWhatIsStaged AppliesWhenItGathers AppliesAppendsAgain AppliesOnlyRowsWithBlocks
        AppliesColumnsWithBlocks ForgetsTheLastRequest ForgetsTheLastBlock PadsWithMinusOne PassesIdsThroughFloats
        SharesItsStateWithOtherInstances GathersTheFirstGroup KeepsPaddingRows TakesMinusOneForTheLastRequest
        ClampsIds KnowsNoIdButMinusOne TakesIdsIn32Bits IgnoresTheMapping IgnoresTheStrideOfItsMapping
        GathersAMappingOnce ShowsNothing
    """,
    "unwritten:tables": "BeginsUnwritten",
    "address_moved:tables": "GathersIntoNewTensors GathersIntoTwoBuffersInTurn",
    "wrong_shape:tables": "ReturnsAllRows ReturnsAGenerator",
    "out_of_bounds_write:torch.zeros": "WritesOneRowTooFar",
    "input_mutated:idx_mappings": "ReplacesMinusOneInPlace",
    "host_sync:tolist": "ReadsItsMappingOnTheHost",
    "host_sync:bool": "LooksForMinusOne",
    "wrongly_accepted:gather": "AcceptsFewerRowsThanTheMapping AcceptsMoreRowsThanThereAre",
    "crash:RuntimeError": "CannotGatherBeforeItApplies",
}

PLANTED = [
    pytest.param(f"{file}:{fault}", key, id=fault)
    for file, faults in (("faults_tables.py", OPERATIONS), ("faults_shown.py", SHOWN))
    for key, names in faults.items()
    for fault in names.split()
]


@pytest.mark.parametrize(("spec", "key"), PLANTED)
def test_a_fault_is_found(spec: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, spec, key)
    assert found.median <= found.given, found.needed


@pytest.mark.parametrize(
    "spec",
    [
        "correct_tables.py:BlockTables",
        "unusual_tables.py:ReturnsLists",
        "unusual_tables.py:UploadsWhenItGathers",
        "unusual_tables.py:UploadsChangedRows",
        "unusual_tables.py:AppliesIntoTwoTables",
        "unusual_tables.py:HasOneWideTable",
        "unusual_tables.py:GathersRowByRow",
        "unusual_tables.py:KeepsItsRowsOnTheDevice",
    ],
)
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []
