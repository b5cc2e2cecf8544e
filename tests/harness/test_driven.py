"""An examination that Hypothesis drives: what it finds is as small, and nothing of an ordinary examination is lost."""

from pathlib import Path

import pytest

from oracles.backends import by_name as backend_by_name
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Scope
from oracles.driven import DrivenExamination
from oracles.providers import find
from oracles.results import Profile, Settings
from oracles.session import Task

NAME = "chunk_metadata.chunk_metadata"
DATA = Path(__file__).resolve().parents[1] / "cli" / "data"
PREAMBLE = f"""\
import os, sys, time
sys.path.insert(0, {str(DATA)!r})
from good import chunk_metadata as good
"""


@pytest.fixture
def drive(tmp_path, warm_nurseries):
    """Examine a callable with this body, of which only Hypothesis draws inputs."""

    def run(body, *, examples=60, time_limit=60.0, **options):
        file = tmp_path / "mine.py"
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        file.write_text(f"{PREAMBLE}\n\ncalls = []\n\n\ndef chunk_metadata(**inputs):\n{lines}")
        implementation = find(f"{file}:chunk_metadata", contract_by_name(NAME), "chunk_metadata")
        task = Task(contract_by_name(NAME), implementation, backend_by_name("host"))
        settings = Settings(Profile(Scope(0, 1), examples), state=tmp_path / "state", time_limit=time_limit)
        return DrivenExamination(task, settings, **options).run()

    return run


def test_a_correct_callable(drive):
    result = drive("return good(**inputs)")
    assert (result.findings, result.notes, result.refused, result.complete) == ([], [], None, True)
    assert result.judged >= 60


def test_no_examples_means_none(drive):
    assert drive("return good(**inputs)", examples=0).judged < drive("return good(**inputs)", examples=9).judged


def test_two_faults_are_each_shrunk(drive):
    result = drive(
        """\
indices, offsets = good(**inputs)
if inputs["cu_seqlens"].shape[0] > 3:
    offsets = offsets + 1
if inputs["chunk_size"] > 5:
    indices = indices + 1
return indices, offsets
"""
    )
    shown = {finding.where: finding.summary for finding in result.findings if finding.kind == "wrong_value"}
    assert set(shown) == {"chunk_indices", "chunk_offsets"}
    assert "cu_seqlens int32[4] = [0, 0, 0, 0]" in shown["chunk_offsets"]
    assert "chunk_size=6" in shown["chunk_indices"]


def test_a_crash_is_survived_counted_and_reduced(drive):
    result = drive("if inputs['chunk_size'] == 64: os._exit(3)\nreturn good(**inputs)", examples=40)
    assert {(finding.kind, finding.where) for finding in result.findings} == {("crash", "exit 3")}
    assert result.judged + result.avoided > 20


def test_a_fault_that_takes_the_cases_before_says_so(drive):
    result = drive("calls.append(1)\nindices, offsets = good(**inputs)\nreturn indices, offsets + (len(calls) > 40)")
    details = [finding.detail for finding in result.findings if finding.where == "chunk_offsets"]
    assert any("it took the cases before" in detail for detail in details)


def test_an_interruption_keeps_what_was_found(drive, monkeypatch, tmp_path):
    seen = []
    original = DrivenExamination._judged

    def judged(self, session, inputs, choices):
        keys = original(self, session, inputs, choices)
        seen.append(keys)
        if len(seen) == 30:
            raise KeyboardInterrupt
        return keys

    monkeypatch.setattr(DrivenExamination, "_judged", judged)
    with pytest.raises(KeyboardInterrupt):
        drive("indices, offsets = good(**inputs)\nreturn indices, offsets + 1")
    assert [path.name.split("-")[0] for path in (tmp_path / "state" / "findings").glob("wrong_value-*.json")]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """What Hypothesis draws, with every input taken for one that passes."""

    def draw(examples, **options):
        seen = []
        monkeypatch.setattr(
            DrivenExamination, "_judged", lambda self, session, inputs, choices: seen.append(choices) or frozenset()
        )
        contract = contract_by_name(NAME)
        task = Task(contract, find("optimized", contract, "chunk_metadata"), backend_by_name("interpreter"))
        examination = DrivenExamination(task, Settings(Profile(Scope(0, 1), examples), state=tmp_path), **options)
        examination._sampling(None)
        return seen

    return draw


def test_shards_draw_inputs_of_their_own(drawn):
    first, second, again = (drawn(30, seed=seed) for seed in ("shard 0", "shard 1", "shard 0"))
    assert first == again
    assert len(set(first) - set(second)) > 20


def test_statistics_count_the_domain_s_events(drawn):
    told = []
    drawn(20, statistics=told.append)
    assert "20 passing" in told[0]
    assert "flavour: agreeing" in told[0]
