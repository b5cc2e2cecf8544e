"""One fault is one group in the text: its smallest case in full, the others in a line each, and none is lost."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from oracles.backends import by_name as backend_by_name
from oracles.contracts import by_name as contract_by_name
from oracles.providers import resolve
from oracles.report import text
from oracles.report.document import entries
from oracles.report.groups import MOST_IN_FULL, groups
from oracles.results import Finding, Result
from oracles.session import Task


def finding(bucket, case=None, summary="x=1"):
    kind, where = bucket.split(":")[:2]
    path = Path(f"{case or bucket.replace(':', '-')}.json")
    return Finding(kind, where, f"what {bucket} shows", bucket, path, summary, f"oracles replay {path} --impl f", ())


@pytest.fixture
def shown():
    """The text and the document of a result with these findings."""
    contract = contract_by_name("chunk_metadata.mamba_chunk_layout")
    [implementation] = resolve("optimized", [contract], named=True)

    def show(*findings, most=MOST_IN_FULL, **options):
        result = Result(Task(contract, implementation, backend_by_name("host")), judged=9, complete=True)
        for each in findings:
            result.add(each)
        console = Console(file=io.StringIO(), width=200, **options)
        text.show(console, [result], most=most)
        return console.file.getvalue(), entries(result)

    return show


def test_of_one_kind_and_place_the_smallest_case_is_shown_in_full():
    several = finding("wrong_value:y:odd+strided"), finding("wrong_value:y:odd"), finding("wrong_value:y:far+odd")
    [group], left = groups(several)
    assert (group.first.bucket, left) == ("wrong_value:y:odd", [])
    assert group.also == [
        "also: wrong_value:y:odd+strided  wrong_value-y-odd+strided.json",
        "also: wrong_value:y:far+odd  wrong_value-y-far+odd.json",
    ]


def test_of_equally_special_cases_the_shorter_input_is_the_smaller():
    [group], _ = groups([finding("wrong_value:y:a", summary="x=[1, 2]"), finding("wrong_value:y:b", summary="x=[1]")])
    assert group.first.bucket == "wrong_value:y:b"


def test_another_kind_or_another_place_is_another_group():
    found, _ = groups([finding("unwritten:y"), finding("wrong_value:y"), finding("wrong_value:z")])
    assert [group.first.bucket for group in found] == ["unwritten:y", "wrong_value:y", "wrong_value:z"]
    assert not any(group.also for group in found)


def test_arguments_that_are_not_refused_are_one_group():
    [group], _ = groups([finding("wrongly_accepted:a"), finding("wrongly_accepted:b:odd")])
    assert len(group.also) == 1


def test_a_case_that_shows_several_faults_is_written_once(shown):
    plain, _ = shown(finding("wrong_value:a", "same"), finding("wrong_value:b", "same"), finding("wrong_value:c"))
    assert plain.splitlines()[1:] == [
        "  wrong_value:a",
        "    what wrong_value:a shows",
        "    input: x=1",
        "    replay: oracles replay same.json --impl f",
        "  wrong_value:b",
        "    what wrong_value:b shows",
        "    case: that of wrong_value:a",
        "  wrong_value:c",
        "    what wrong_value:c shows",
        "    input: x=1",
        "    replay: oracles replay wrong_value-c.json --impl f",
        "9 cases judged, 3 findings",
    ]


@pytest.mark.parametrize("options", [{}, {"force_terminal": True, "color_system": None}])
def test_nothing_is_lost_however_much_is_wrong(shown, options):
    """Behind so many groups a bucket and its file stay, in the text; a document has all of every finding."""
    many = [finding(f"wrong_value:y{place:02}{trait}") for place in range(3 * MOST_IN_FULL) for trait in ("", ":odd")]
    printed, document = shown(*many, finding("host_sync:item"), **options)
    for each in many:
        assert f"{each.bucket}  {each.case}" in printed or f"replay {each.case}" in printed, each.bucket
    assert printed.count("input") == MOST_IN_FULL
    assert [entry["bucket"] for entry in document] == [each.bucket for each in [*many, finding("host_sync:item")]]
    assert all(entry["detail"] and entry["replay"] for entry in document)


def test_a_replay_shows_all_that_its_case_shows(shown):
    many = [finding(f"wrong_value:y{place:02}", "same") for place in range(3 * MOST_IN_FULL)]
    plain, _ = shown(*many, most=None)
    assert all(each.detail in plain for each in many)
    assert plain.count("replay: ") == 1


def test_a_really_wrong_kernel_takes_about_a_screen(shown):
    many = [finding(f"wrong_value:y{place:02}", f"case{place // 3}") for place in range(20)]
    assert len(shown(*many)[0].splitlines()) < 50
