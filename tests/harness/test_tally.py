"""What calls note is counted once, added up over messages, and put into words beside what was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from oracles import tally
from oracles.arrays import array
from oracles.contracts import by_name
from oracles.examine import Examination
from oracles.messages import Progress, decode_event, encode
from oracles.report.document import entries, reason_of
from oracles.results import PROFILES, Result, Settings


@pytest.fixture
def task():
    """A task whose contract tells how often ``tried`` was noted."""
    contract = replace(
        by_name("chunk_metadata.chunk_metadata"),
        remarks=lambda noted: f"tried {noted['tried']} times" if "tried" in noted else "",
        complains=lambda inputs: "the size is odd" if inputs["chunk_size"] % 2 else None,
    )
    about = SimpleNamespace(spec="mine.py:f", name="f", provider="user", narrowings=())
    return SimpleNamespace(contract=contract, implementation=about, backend=SimpleNamespace(name="host", time_limit=1))


def test_what_was_noted_is_taken_once():
    tally.taken()
    for word in ("tried", "left", "tried"):
        tally.note(word)
    assert tally.taken() == {"tried": 2, "left": 1}
    assert tally.taken() == {}


def test_counts_of_several_messages_add_up(task):
    examination = Examination(task, Settings(PROFILES["smoke"]))
    for number in (1, 2):
        event = decode_event(encode(Progress(1, {}, 0, -1, 0, True, noted={"tried": number})))
        examination._count(event)
    assert examination.result.noted == {"tried": 3}


def test_a_pass_says_what_it_hides(task):
    result = Result(task, judged=4, complete=True, noted=Counter(tried=1200), unsupported=Counter(small=2))
    assert reason_of(result) == "2 cases unsupported: small; tried 1200 times"
    assert entries(result)[0]["detail"] == reason_of(result)
    assert entries(result)[0]["verdict"] == "pass"
    assert reason_of(Result(task, judged=4, complete=True)) == ""
    silent = SimpleNamespace(**vars(task) | {"contract": replace(task.contract, remarks=None)})
    assert reason_of(Result(silent, judged=4, complete=True, noted=Counter(tried=1))) == ""


def test_inputs_of_the_right_types_may_be_no_case(task):
    inputs = dict.fromkeys(("cu_seqlens", "cu_seqlens_cpu"), array([0], "int32")) | {"chunk_size": 3}
    assert task.contract.complaint(inputs) == "the size is odd"
    assert task.contract.complaint(inputs | {"chunk_size": 4}) is None
    assert task.contract.complaint(inputs | {"cu_seqlens": None}).startswith("cu_seqlens: None breaks the rule")
