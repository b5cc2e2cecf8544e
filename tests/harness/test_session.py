"""A session: one worker at a time, whose every death is told with its case, and which leaves nothing behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from oracles import session as module
from oracles.backends import by_name as backend_by_name
from oracles.contracts import by_name as contract_by_name
from oracles.messages import Found, Progress, Replayed, Sample, Show, Shown, Try, Walk
from oracles.providers import find
from oracles.session import CannotLoad, Death, HarnessError, Session, Stopped, Task

CONTRACT = "chunk_metadata.chunk_metadata"
DATA = Path(__file__).resolve().parents[1] / "cli" / "data"
DIED = "the process died while it loaded the implementation"
PREAMBLE = f"""\
import os, signal, sys, time
sys.path.insert(0, {str(DATA)!r})
from good import chunk_metadata as good
"""


@pytest.fixture
def session(warm_nurseries, tmp_path):
    """A session for a callable with this body, which sees its inputs as ``inputs``."""
    opened = []

    def make(body, *, preamble=PREAMBLE, time_limit=60.0):
        file = tmp_path / "mine.py"
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        file.write_text(f"{preamble}\n\ndef chunk_metadata(**inputs):\n{lines}")
        contract = contract_by_name(CONTRACT)
        implementation = find(f"{file}:chunk_metadata", contract, "chunk_metadata")
        task = Task(contract, implementation, backend_by_name("host"))
        opened.append(Session(task, tmp_path / "state", time_limit=time_limit))
        return opened[-1]

    yield make
    for each in opened:
        each.__exit__(None, None, None)
    assert list((tmp_path / "state" / "running").glob("*")) == []


def gone(pid):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_command_is_answered_in_order(session):
    with_it = session("return good(**inputs)")
    *others, last = with_it.ask(Try([], False))
    assert others == []
    assert (last.judged, last.done, last.unsupported, last.avoided) == (1, True, {}, 0)
    totals = [event.judged for event in with_it.ask(Walk(1, 1, None))]
    assert sum(totals) == 136
    assert sum(event.judged for event in with_it.ask(Sample(0, 0, 7))) == 7


def test_one_worker_serves_many_commands(session):
    with_it = session("return good(**inputs)")
    list(with_it.ask(Try([], False)))
    first = with_it._child
    list(with_it.ask(Try([], False)))
    assert with_it._child == first
    with_it.renew()
    assert with_it._child is None
    list(with_it.ask(Try([], False)))
    assert with_it._child not in (None, first)


@pytest.mark.parametrize(
    ("body", "kind", "where", "doubtful"),
    [
        ("os._exit(5)", "crash", "exit 5", False),
        ("os.abort()", "crash", "SIGABRT", False),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "SIGKILL", True),
        ("os.kill(os.getpid(), signal.SIGTERM)", "crash", "SIGTERM", True),
        ("os.kill(os.getpid(), 40)", "crash", "signal 40", False),
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(3600)", "crash", "SIGKILL", True),
    ],
)
def test_a_death_names_the_case_and_the_session_goes_on(session, body, kind, where, doubtful):
    with_it = session(f"if inputs['chunk_size'] == 2:\n    {body}\nreturn good(**inputs)")
    (death,) = with_it.ask(Try([1], False))
    assert isinstance(death, Death)
    assert (death.kind, death.where, death.doubtful) == (kind, where, doubtful)
    assert death.running is not None
    assert death.running.choices[0] == 1
    (progress,) = with_it.ask(Try([0], False))
    assert (progress.judged, progress.done) == (1, True)


def test_a_hang_is_ended_by_the_clock_and_names_the_case(session):
    with_it = session("while inputs['chunk_size'] == 2: pass\nreturn good(**inputs)", time_limit=1.0)
    (death,) = with_it.ask(Try([1], False))
    assert (death.kind, death.where, death.doubtful) == ("hang", "time limit", False)
    assert "no answer within 1 s" in death.detail
    assert death.running.choices[0] == 1


def test_what_the_callable_wrote_last_is_told(session):
    body = "\n".join(
        [
            "for n in range(100): os.write(2, b'line %d\\n' % n)",
            "os._exit(5)",
        ]
    )
    (death,) = session(body).ask(Try([], False))
    assert death.detail.splitlines()[-1] == "line 99"
    assert "line 50" not in death.detail


def test_a_fatal_error_is_told_from_its_first_line(session):
    body = "import ctypes\nos.write(2, b'before\\n')\nctypes.string_at(0)"
    (death,) = session(body).ask(Try([], False))
    assert death.where == "SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in death.detail
    assert "mine.py" in death.detail
    assert "before" not in death.detail


def test_the_log_does_not_grow_for_ever(session):
    with_it = session("os.write(1, b'x' * (1 << 20))\nreturn good(**inputs)")
    assert sum(event.judged for event in with_it.ask(Sample(0, 0, 3))) == 3
    list(with_it.ask(Sample(0, 0, 1)))
    assert os.fstat(with_it._log.fileno()).st_size < 64 << 20


@pytest.mark.parametrize(
    ("preamble", "reason"),
    [
        (
            "raise ImportError('no such library')",
            "ImportError: no such library, at mine.py:1: raise ImportError('no such library')",
        ),
        ("raise ValueError('two\\nlines')", "ValueError: two lines, at mine.py:1: raise ValueError('two\\nlines')"),
        (
            "import no_such_module_anywhere",
            "ModuleNotFoundError: No module named 'no_such_module_anywhere', "
            "at mine.py:1: import no_such_module_anywhere",
        ),
        ("raise SystemExit", "SystemExit, at mine.py:1: raise SystemExit"),
        ("import os; os._exit(3)", f"{DIED}: the process exited with 3"),
        ("import os; os.abort()", f'{DIED}: killed by SIGABRT, at File "FOLDER/mine.py", line 1 in <module>'),
        ("import os, time; os.kill(os.getppid(), 9); time.sleep(60)", f"{DIED}: the worker process was gone: SIGKILL"),
    ],
)
def test_what_cannot_be_loaded_says_why_once_in_one_line(session, tmp_path, preamble, reason):
    with_it = session("return None", preamble=preamble)
    for _ in range(2):  # and says so again
        with pytest.raises(CannotLoad) as refused:
            list(with_it.ask(Try([], False)))
        assert str(refused.value).replace(str(tmp_path), "FOLDER") == reason


@pytest.mark.parametrize(
    ("last_line", "reason"),
    [
        ("del chunk_metadata", "executed, but it has no chunk_metadata; it has good"),
        ("chunk_metadata = 3", "chunk_metadata is of type int, which cannot be called"),
    ],
)
def test_a_file_without_the_callable_says_so_without_the_name_of_an_exception(session, tmp_path, last_line, reason):
    with_it = session(f"return None\n\n{last_line}")
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace(f"    {last_line}", last_line))
    with pytest.raises(CannotLoad) as refused:
        list(with_it.ask(Try([], False)))
    assert str(refused.value) == f"{file}: {reason}"


def test_loading_has_a_time_limit(session, monkeypatch, tmp_path):
    assert module.LOAD_SECONDS >= 60
    flag = tmp_path / "loaded"
    preamble = f"{PREAMBLE}\nif os.path.exists({str(flag)!r}): time.sleep(3600)\nopen({str(flag)!r}, 'w').close()"
    with_it = session("return good(**inputs)", preamble=preamble)
    list(with_it.ask(Try([], False)))
    with_it.renew()
    monkeypatch.setattr(module, "LOAD_SECONDS", 2.0)
    with pytest.raises(CannotLoad, match="no answer within 2 s"):
        list(with_it.ask(Try([], False)))


def test_a_file_that_changes_meanwhile_cannot_be_loaded(session, tmp_path):
    with_it = session("return good(**inputs)")
    list(with_it.ask(Try([], False)))
    (tmp_path / "mine.py").write_text("another = 1\n")
    with_it.renew()
    with pytest.raises(CannotLoad, match="has no chunk_metadata"):
        list(with_it.ask(Try([], False)))


def test_a_failure_of_the_harness_is_no_verdict(session, tmp_path):
    with pytest.raises(HarnessError, match="No such file"):
        list(session("return good(**inputs)").ask(Replayed(str(tmp_path / "none.json"))))


def test_a_session_can_be_stopped_from_outside(session):
    with_it = session("return good(**inputs)")
    with_it.stop()
    with pytest.raises(Stopped):
        list(with_it.ask(Try([], False)))


def test_nothing_is_left_when_it_ends(session, tmp_path):
    body = "\n".join(
        [
            "if os.fork() == 0:",
            "    os.setsid()",
            "    if os.fork() == 0:",
            # Under its name only once it is complete: whoever waits for it reads it at once.
            f"        open({str(tmp_path / 'partial')!r}, 'w').write(str(os.getpid()))",
            f"        os.rename({str(tmp_path / 'partial')!r}, {str(tmp_path / 'daemon')!r})",
            "        time.sleep(3600)",
            "    os._exit(0)",
            f"while not os.path.exists({str(tmp_path / 'daemon')!r}): time.sleep(0.01)",
            "return good(**inputs)",
        ]
    )
    with_it = session(body)
    list(with_it.ask(Replayed(str(a_case(tmp_path)))))
    pids = [with_it._child, with_it._nursery.pid, int((tmp_path / "daemon").read_text())]
    with_it._end_nursery()
    assert [pid for pid in pids if not gone(pid)] == []


def a_case(folder):
    from oracles.case import Case
    from oracles.domain import Replay

    inputs = contract_by_name(CONTRACT).domain(Replay([]))
    return Case(contract=CONTRACT, inputs=inputs).save(folder / "case.json")


def test_a_stopped_nursery_is_no_obstacle(session):
    """Whatever state it is in, it ends with the session."""
    with_it = session("return good(**inputs)")
    list(with_it.ask(Try([], False)))
    nursery = with_it._nursery.pid
    os.kill(nursery, signal.SIGSTOP)
    with_it._end_nursery()
    assert gone(nursery)


def test_outputs_are_shown(session, tmp_path):
    shown, progress = session("return good(**inputs)").ask(Show(str(a_case(tmp_path))))
    assert isinstance(shown, Shown)
    assert shown.outputs == {"chunk_indices": ("int32", [0, 2], []), "chunk_offsets": ("int64", [1], [0])}
    assert set(shown.poison) == {"chunk_indices", "chunk_offsets"}
    assert shown.error == ""
    assert isinstance(progress, Progress)


def test_an_exception_is_shown(session, tmp_path):
    shown, found, _ = session("raise KeyError('x')").ask(Show(str(a_case(tmp_path))))
    assert (shown.outputs, shown.error) == ({}, "KeyError: 'x'")
    assert isinstance(found, Found)
    assert found.failures[0][:2] == ("crash", "KeyError")


def test_large_outputs_are_judged_but_not_sent(session, tmp_path):
    body = "import torch\nreturn torch.zeros(30_000), torch.zeros(1)"
    shown, found, _ = session(body).ask(Show(str(a_case(tmp_path))))
    assert shown.outputs == {"chunk_indices": ("float32", [30_000], None), "chunk_offsets": ("float32", [1], [0.0])}
    assert [failure[:2] for failure in found.failures] == [
        ("wrong_shape", "chunk_indices"),
        ("wrong_shape", "chunk_offsets"),
    ]


def test_outputs_of_a_hundred_million_elements_are_judged(session):
    body = "import torch\nreturn torch.zeros(10_000, 10_000), torch.zeros(1)"
    found, *progress = session(body).ask(Try([], False))
    assert found.failures[0][:2] == ("wrong_shape", "chunk_indices")
    assert sum(event.judged for event in progress) == 1


def test_a_label_is_what_a_person_would_say(session):
    assert session("return None").task.label == f"{CONTRACT} | mine.py: chunk_metadata | host"
