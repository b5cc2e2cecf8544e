"""Known findings: the file keeps its rules, predicates are exact, and a run fails for news only."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from oracles import known
from oracles.arrays import array
from oracles.case import Case
from oracles.contracts import all_contracts, by_name
from oracles.domain import Sampler
from oracles.judging import Job, Judging
from oracles.messages import Found, Load, Progress
from oracles.slot import Meta, Slot

ROOT = Path(__file__).parents[2]
ENTRIES = known.entries()
NAME = "chunk_metadata.chunk_metadata"
ENOUGH = 400 if os.environ.get("ORACLES_NIGHTLY") == "1" else 60
"""Inputs that a predicate answers for. Some run a reference; more are asked only until both answers were given."""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_names_a_predicate_and_a_case_that_matches_it(entry: known.Entry) -> None:
    contract = by_name(entry.contract)
    case = Case.load(ROOT / entry.case)
    assert case.contract == entry.contract
    assert contract.known[entry.predicate](case.inputs)
    assert entry.bucket.startswith(tuple(entry.shows))


@pytest.mark.parametrize("contract", all_contracts(), ids=lambda contract: contract.full_name)
def test_a_predicate_answers_for_every_input_and_not_always_yes(contract) -> None:
    inputs = [contract.domain(Sampler(3, index)) for index in range(400)]
    for name, predicate in contract.known.items():
        answers = set()
        for number, values in enumerate(inputs):
            answers.add(predicate(values))
            if number >= ENOUGH and len(answers) == 2:
                break
        assert answers == {True, False}, name


FAULTY = {
    "unknown field": ('extra = "x"', "unknown field `extra`"),
    "no such kind": ('shows = ["wrong:chunk_indices"]', "is no kind and place"),
    "no place": ('shows = ["wrong_value:"]', "is no kind and place"),
    "shows nothing": ("shows = []", "at least one key"),
    "new without a date": ('reference = "new"', "needs the date"),
    "no versions": ("versions = []", "versions: at least one"),
    "no such backend": ('backends = ["gpu"]', "backends: there is no 'gpu'"),
    "a range": ('versions = [">=0.30"]', "versions: '>=0.30' is no version"),
}
GOOD = {
    "id": '"x"',
    "contract": f'"{NAME}"',
    "provider": '"vllm"',
    "implementation": '"f"',
    "versions": '["0.33.0"]',
    "shows": '["wrong_value:chunk_indices"]',
    "bucket": '"wrong_value:chunk_indices"',
    "predicate": '"every_case"',
    "summary": '"s"',
    "reference": '"vllm-project/vllm#1"',
    "case": '"corpus/x.json"',
}


def written(path: Path, *documents: dict[str, str]) -> Path:
    texts = ["[[finding]]\n" + "".join(f"{key} = {value}\n" for key, value in each.items()) for each in documents]
    path.write_text("\n".join(texts))
    return path


@pytest.mark.parametrize("fault", FAULTY)
def test_what_breaks_a_rule_is_refused_with_the_entry_and_the_rule(tmp_path: Path, fault: str) -> None:
    line, message = FAULTY[fault]
    key, _, value = line.partition(" = ")
    path = written(tmp_path / "known.toml", GOOD | {key: value})
    with pytest.raises(known.KnownFindingsError, match=message):
        known.entries(path)


def test_an_id_stands_for_one_entry(tmp_path: Path) -> None:
    assert len(known.entries(written(tmp_path / "one.toml", GOOD))) == 1
    with pytest.raises(known.KnownFindingsError, match="used twice"):
        known.entries(written(tmp_path / "two.toml", GOOD, GOOD))


@pytest.mark.parametrize(
    ("provider", "count"),
    [
        ("vllm 0.33.0 (wheel)", 5),
        ("vllm 0.30.0 (installed)", 5),
        ("vllm 0.33.0+rocm7 (wheel)", 5),
        ("vllm 0.33.1 (wheel)", 0),
        ("vllm 0.29.0 (wheel)", 0),
        ("vllm at 0123456789 (git)", 0),
        ("mine.py", 0),
    ],
)
def test_entries_are_tied_to_versions(provider: str, count: int) -> None:
    implementation = SimpleNamespace(provider=provider, name="prepare_chunk_indices+prepare_chunk_offsets")
    assert len(known.applicable(by_name(NAME), implementation, "host")) == count


def test_an_entry_may_concern_some_backends_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = known.entries(written(tmp_path / "x.toml", GOOD | {"backends": '["cuda"]', "predicate": '"strided"'}))
    monkeypatch.setattr(known, "entries", lambda: found)
    implementation = SimpleNamespace(provider="vllm 0.33.0 (wheel)", name="f")
    counts = [len(known.applicable(by_name(NAME), implementation, name)) for name in ("cuda", "interpreter")]
    assert counts == [1, 0]


def judged(tmp_path: Path, function, matches, shows=("wrong_value:chunk_offsets",), cumulative=False):
    """What a worker tells about one case of a callable with one known finding."""
    from oracles.backends import by_name as backend_by_name
    from oracles.check import Subject

    entry = SimpleNamespace(id="known-one", shows=shows, cumulative=cumulative)
    implementation = SimpleNamespace(narrowings=(), refuses=True, refusal_types=(ValueError,), graphs=False)
    subject = Subject(by_name(NAME), implementation, function, backend_by_name("host"))
    slot = Slot(tmp_path / "x.slot", create=Meta(NAME, "s", "f", "host"))
    events: list[object] = []
    load = Load(NAME, "s", "f", "host", str(tmp_path / "x.slot"), str(tmp_path / "findings"))
    item = known.Known(entry, matches)
    judging = Judging(load, subject, [item], slot, events.append)
    cu = array([0, 1], "int32")
    judging.run([Job({"cu_seqlens": cu, "cu_seqlens_cpu": cu, "chunk_size": 1}, [])])
    slot.close(remove=True)
    told = [event for event in events if isinstance(event, Found)]
    counts = [event for event in events if isinstance(event, Progress)]
    known_counts = {key: value for event in counts for key, value in event.known.items()}
    unexpected = {key: value for event in counts for key, value in event.unexpected.items()}
    return told, sum(event.judged for event in counts), known_counts, unexpected


def wrong(**inputs):
    import torch

    return torch.zeros(1, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)


def right(**inputs):
    import torch

    return torch.zeros(1, 2, dtype=torch.int32), torch.tensor([0, 1])


def test_a_known_fault_is_counted_and_not_told(tmp_path: Path) -> None:
    assert judged(tmp_path, wrong, lambda inputs: True) == ([], 1, {"known-one": 1}, {})


def test_a_fault_beside_a_known_one_is_news(tmp_path: Path) -> None:
    (found,), _, counts, _ = judged(tmp_path, wrong, lambda inputs: False)
    assert [failure[:2] for failure in found.failures] == [("wrong_value", "chunk_offsets")]
    assert counts == {}


def test_a_predicate_that_matches_a_passing_case_is_an_unexpected_pass(tmp_path: Path) -> None:
    _, _, counts, unexpected = judged(tmp_path, right, lambda inputs: True)
    assert (counts, list(unexpected)) == ({}, ["known-one"])
    assert Case.load(Path(unexpected["known-one"])).contract == NAME


def test_a_known_crash_is_not_launched(tmp_path: Path) -> None:
    def deadly(**inputs):
        raise SystemExit(1)

    _, cases, counts, _ = judged(tmp_path, deadly, lambda inputs: True, shows=("crash:SIGSEGV",))
    assert (cases, counts) == (0, {"known-one": 1})
