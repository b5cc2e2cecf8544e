"""An examination: deaths are survived and counted, crashes are avoided, and what is reported is as small as can be."""

from pathlib import Path

import pytest

from oracles.backends import by_name as backend_by_name
from oracles.case import Case
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Replay, Sampler, Scope, walk
from oracles.examine import PATIENCE, Examination
from oracles.providers import find
from oracles.results import PROFILES, Profile, Settings, replay_command
from oracles.session import Task

NAME = "chunk_metadata.chunk_metadata"
DATA = Path(__file__).resolve().parents[1] / "cli" / "data"
SCOPE = Scope(1, 1)
SAMPLES = 5
PREAMBLE = f"""\
import os, sys, time
sys.path.insert(0, {str(DATA)!r})
from good import chunk_metadata as good
"""


@pytest.fixture
def examine(tmp_path, warm_nurseries):
    """Examine a callable with this body, which sees its inputs as ``inputs``."""

    def run(body, *, scope=SCOPE, samples=SAMPLES, time_limit=60.0, listener=lambda result: None, corpus=None):
        file = tmp_path / "mine.py"
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        file.write_text(f"{PREAMBLE}\n\ncalls = []\n\n\ndef chunk_metadata(**inputs):\n{lines}")
        contract = contract_by_name(NAME)
        implementation = find(f"{file}:chunk_metadata", contract, "chunk_metadata")
        task = Task(contract, implementation, backend_by_name("host"))
        settings = Settings(Profile(scope, samples), state=tmp_path / "state", time_limit=time_limit, corpus=corpus)
        return Examination(task, settings, listener).run()

    return run


def cases(scope=SCOPE, samples=SAMPLES):
    domain = contract_by_name(NAME).domain
    return [inputs for inputs, _ in walk(domain, scope)] + [domain(Sampler(0, index)) for index in range(samples)]


ALL = len(cases())


def test_a_correct_callable(examine):
    result = examine("return good(**inputs)")
    assert (result.judged, result.findings, result.notes, result.refused) == (ALL, [], [], None)
    assert (result.complete, result.stage, result.avoided) == (True, "done", 0)


def test_the_stages_are_told_in_order(examine):
    stages = []
    examine("return good(**inputs)", listener=lambda result: stages.append(result.stage))
    assert list(dict.fromkeys(stages))[-4:] == ["small scope", "sampling", "reducing", "done"]


def test_every_other_case_is_judged_once_behind_a_crash(examine, tmp_path):
    """The walk and the sampling are taken up behind the case that killed, and neither skip nor repeat one."""
    body = "\n".join(
        [
            "once = inputs['cu_seqlens'].numel() == 2",
            f"flag = {str(tmp_path / 'flag')!r}",
            "if once and not os.path.exists(flag):",
            "    open(flag, 'w').close()",
            "    os._exit(5)",
            "return good(**inputs)",
        ]
    )
    result = examine(body)
    assert result.judged == ALL
    (finding,) = result.findings
    assert finding.bucket.startswith("crash:exit 5")
    assert "this case alone, in a new process, does not show it" in finding.detail


def test_crashes_with_a_trait_are_avoided(examine):
    result = examine(
        "cu = inputs['cu_seqlens']\nif cu.dim() == 1 < cu.numel() and cu.stride(0) > 1: os._exit(5)\n"
        "return good(**inputs)",
        samples=60,
    )
    (finding,) = result.findings
    assert finding.bucket == "crash:exit 5:strided"
    assert result.avoided > 0
    learnt, count = result.notes
    assert learnt == "cases with strided are not run again: they end in crash:exit 5"
    assert count == f"{result.avoided} cases were not run for that reason"
    assert result.judged + result.avoided == len(cases(samples=60))


def test_deaths_are_limited(examine):
    """An implementation that always dies costs a bounded number of workers, and the run says that it gave up."""
    result = examine("os._exit(5)")
    (finding,) = result.findings
    assert finding.bucket == "crash:exit 5"
    assert result.judged <= PATIENCE
    early = "ended early, because too many workers died"
    # The walk is taken up behind the last death, and nothing has survived that would make more samples worth a try.
    left = len(cases(samples=0)) - result.judged
    assert result.notes == [
        f"small scope: {early}; {left} cases were not run",
        f"sampling: {early}; 5 cases were not run",
    ]


@pytest.mark.nightly
def test_hangs_cost_more_than_crashes(examine):
    result = examine("while True: pass", time_limit=1.0)
    assert {finding.kind for finding in result.findings} == {"hang"}
    assert result.judged <= PATIENCE // 4 + 1


@pytest.mark.nightly
def test_a_trait_that_does_not_always_kill_is_neither_named_nor_avoided(examine):
    """The first cases that die have traits, and so have the smallest ones; the faults need none."""
    body = "\n".join(
        [
            "cpu = inputs['cu_seqlens_cpu']",
            "if cpu.dim() == 1 and cpu.numel() == 3 and cpu[1] == 1: os._exit(5)",
            "if inputs['chunk_size'] == 64: os._exit(6)",
            "return good(**inputs)",
        ]
    )
    result = examine(body, scope=Scope(2, 2), samples=20)
    shown = {finding.where: Case.load(finding.case).inputs for finding in result.findings}
    assert shown["exit 5"]["cu_seqlens_cpu"].data.tolist() == [0, 1, 2]
    assert shown["exit 6"]["chunk_size"] == 64
    assert [finding.bucket for finding in result.findings] == ["crash:exit 5", "crash:exit 6"]
    assert result.avoided == 0


def test_a_kept_case_that_was_killed_from_outside_is_no_finding(examine, tmp_path):
    """Run again it passes; the bucket of a kept case would name traits that have nothing to do with it."""
    corpus = tmp_path / "corpus" / "chunk_metadata"
    corpus.mkdir(parents=True)
    inputs = contract_by_name(NAME).domain(Replay([]))
    Case(contract=NAME, inputs=inputs).save(corpus / "kept.json")
    flag = str(tmp_path / "flag")
    once = f"if not os.path.exists({flag!r}):\n    open({flag!r}, 'w').close()\n    os.kill(os.getpid(), 9)\n"
    result = examine(f"{once}return good(**inputs)", corpus=tmp_path / "corpus")
    assert (result.findings, result.notes, result.judged) == ([], [], ALL + 1)


CACHE = """\
cu = inputs['cu_seqlens']
key = cu.data_ptr(), cu._version, tuple(cu.shape), cu.dtype, inputs['chunk_size']
if not any(seen == key for seen, _ in calls): calls.append((key, good(**inputs)))
return next(found for seen, found in calls if seen == key)
"""


def test_a_result_that_takes_the_cases_before_is_named_by_what_its_case_shows_alone(examine):
    """A cache by address: in a stream of cases also wrong, or dependent on poison or chance; alone only stale."""
    result = examine(CACHE, scope=Scope(2, 1), samples=20)
    assert result.findings
    assert {finding.kind for finding in result.findings} == {"stale"}
    assert not [finding for finding in result.findings if "does not show it" in finding.detail]


def test_a_kill_from_outside_that_does_not_repeat_is_a_note(examine, tmp_path):
    flag = str(tmp_path / "flag")
    once = f"if not os.path.exists({flag!r}):\n    open({flag!r}, 'w').close()\n    os.kill(os.getpid(), 9)\n"
    body = f"{once}return good(**inputs)"
    result = examine(body)
    assert (result.findings, result.judged) == ([], ALL)
    (note,) = result.notes
    assert note.startswith("a worker died (SIGKILL) in or behind case ")


def test_a_case_that_always_kills_its_worker_is_a_finding(examine):
    result = examine("if inputs['chunk_size'] == 1: os.kill(os.getpid(), 9)\nreturn good(**inputs)")
    assert {finding.kind for finding in result.findings} == {"crash"}
    assert all(finding.bucket.startswith("crash:SIGKILL") for finding in result.findings)


def test_a_death_behind_a_case_is_that_cases(examine):
    """The callable returns right values, and its process falls later."""
    result = examine("result = good(**inputs)\nos.closerange(3, 4096)\nreturn result")
    assert result.findings
    assert {finding.kind for finding in result.findings} == {"crash"}


@pytest.mark.parametrize(
    ("body", "bucket", "inputs"),
    [
        ("return good(**inputs)[0], good(**inputs)[1] + 1", "wrong_value:chunk_offsets", ([0], [0], 1)),
        (
            "indices, offsets = good(**inputs)\nreturn indices, offsets + (offsets.numel() > 1)",
            "wrong_value:chunk_offsets",
            ([0, 0], [0, 0], 1),
        ),
        (
            "cpu = inputs['cu_seqlens_cpu']\nindices, offsets = good(**inputs)\n"
            "return indices, offsets + bool(cpu.numel() > 1 and (cpu[1:] == cpu[:-1]).any())",
            "wrong_value:chunk_offsets:empty_sequence",
            ([0, 0], [0, 0], 1),
        ),
        (
            "indices, offsets = good(**inputs)\nreturn indices, offsets + (inputs['chunk_size'] > 40)",
            "wrong_value:chunk_offsets",
            ([0], [0], 41),
        ),
    ],
)
def test_a_finding_is_minimal(examine, body, bucket, inputs):
    result = examine(body, samples=60)
    (finding,) = result.findings
    assert finding.bucket.startswith(bucket)
    case = Case.load(finding.case)
    shown = (case.inputs["cu_seqlens"].data.tolist(), case.inputs["cu_seqlens_cpu"].data.tolist())
    assert (*shown, case.inputs["chunk_size"]) == inputs
    assert case.verdict["bucket"] == finding.bucket
    assert finding.replay == replay_command(finding.case, case.origin["implementation"], "host", 60.0)


def test_the_same_fault_on_special_inputs_is_one_finding(examine):
    """Many traits, one cause: the bucket with the fewest traits stands for the others."""
    result = examine("return good(**inputs)[0], good(**inputs)[1] + 1", scope=Scope(2, 2), samples=100)
    assert [finding.bucket for finding in result.findings] == ["wrong_value:chunk_offsets"]


def test_two_faults_of_one_place_are_told_apart_by_their_traits(examine):
    body = "\n".join(
        [
            "indices, offsets = good(**inputs)",
            "cu = inputs['cu_seqlens']",
            "wrong = cu.numel() > 1 and (cu.stride(0) == 2 or cu.dtype.itemsize == 8)",
            "return indices, offsets + wrong",
        ]
    )
    result = examine(body, samples=300)
    assert sorted(finding.bucket for finding in result.findings) == [
        "wrong_value:chunk_offsets:int64",
        "wrong_value:chunk_offsets:strided",
    ]


def test_a_fault_that_takes_the_cases_before_says_so(examine):
    result = examine("calls.append(1)\nindices, offsets = good(**inputs)\nreturn indices, offsets + (len(calls) > 90)")
    assert result.findings
    for finding in result.findings:
        assert "this case alone, in a new process, does not show it: it took the cases before" in finding.detail


def test_only_final_cases_stay_on_disk(examine, tmp_path):
    result = examine("return good(**inputs)[0], good(**inputs)[1] + 1")
    kept = list((tmp_path / "state" / "findings").iterdir())
    assert kept == [finding.case for finding in result.findings]
    assert not [path for path in (tmp_path / "state").rglob("*") if path.name.startswith(("unreduced", "."))]


def test_what_was_seen_before_an_interruption_is_concluded(examine, monkeypatch):
    """Stopped behind the walk: the findings are as small as they are, and the result is not complete."""

    def stop(result):
        if result.stage == "sampling" and not stopped:
            stopped.append(result)
            Examination.stop(running[0])

    stopped, running = [], []
    start = Examination.run
    monkeypatch.setattr(Examination, "run", lambda self: running.append(self) or start(self))
    result = examine("return good(**inputs)[0], good(**inputs)[1] + 1", listener=stop)
    assert result.complete is False
    assert [finding.kind for finding in result.findings] == ["wrong_value"]
    assert all(finding.case.exists() for finding in result.findings)


def test_profiles_grow():
    sizes = [(p.scope.count, p.scope.value, p.examples) for p in (PROFILES["ci"], PROFILES["dev"], PROFILES["nightly"])]
    assert sizes == sorted(sizes)


def test_a_replay_command_is_quoted():
    command = replay_command(Path("a folder/it's.json"), "my file.py:f", "host")
    assert command == """oracles replay 'a folder/it'"'"'s.json' --impl 'my file.py:f' --backend host"""
