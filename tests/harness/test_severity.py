"""Findings are listed the most severe kind first, wherever they are found."""

import itertools
from pathlib import Path

import pytest

from oracles.backends import by_name as backend_by_name
from oracles.contracts import by_name as contract_by_name
from oracles.providers import resolve
from oracles.results import Finding, Result
from oracles.session import Task
from oracles.verdict import FAILURES, SEVERITY, severity


@pytest.fixture
def result():
    contract = contract_by_name("chunk_metadata.mamba_chunk_layout")
    [implementation] = resolve("optimized", [contract], named=True)
    return Result(Task(contract, implementation, backend_by_name("host")))


def finding(kind, where, bucket=""):
    return Finding(kind, where, "", bucket or f"{kind}:{where}", Path("case.json"), "", "", ())


def test_every_kind_has_one_rank():
    assert sorted(SEVERITY) == sorted(FAILURES)


@pytest.mark.parametrize("cost", ["host_sync", "recompiled"])
def test_what_only_costs_time_comes_behind_everything_that_is_wrong(cost):
    wrong = set(FAILURES) - {"host_sync", "recompiled"}
    assert all(severity(kind) < severity(cost) for kind in wrong)


def test_memory_of_others_then_crashes_then_results_then_refusals():
    groups = [
        ("out_of_bounds_write", "out_of_bounds_read", "input_mutated"),
        ("crash", "hang"),
        ("race", "unwritten", "wrong_value", "wrong_shape", "stale"),
        ("wrongly_refused", "wrongly_accepted"),
    ]
    for worse, better in itertools.pairwise(groups):
        assert max(map(severity, worse)) < min(map(severity, better))


def test_a_result_keeps_that_order_and_within_a_kind_the_order_of_places_then_of_arrival(result):
    for kind, where, bucket in [
        ("host_sync", "item", ""),
        ("wrong_value", "y", "wrong_value:y:first"),
        ("wrong_value", "a", ""),
        ("wrong_value", "y", "wrong_value:y:another"),
        ("crash", "SIGSEGV", ""),
        ("out_of_bounds_write", "y", ""),
    ]:
        result.add(finding(kind, where, bucket))
    assert [each.bucket for each in result.findings] == [
        "out_of_bounds_write:y",
        "crash:SIGSEGV",
        "wrong_value:a",
        "wrong_value:y:first",
        "wrong_value:y:another",
        "host_sync:item",
    ]
