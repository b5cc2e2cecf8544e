"""Somebody kills the parent, the nursery or the child, or presses Ctrl-C: what stays, and what the next run says."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oracles.run import interrupted

NAME = "chunk_metadata.chunk_metadata"
SAYS = re.compile(r"an earlier run was killed while (\S+) \((\w+)\) ran a case; replay it: (.*)")


@pytest.fixture
def oracles(oracles):
    """The nurseries are children of the command, as they are for a user."""
    oracles.seed = None
    return oracles


def started(oracles, name, *arguments, **options):
    spec = f"{oracles.data / 'hostile.py'}:{name}"
    return oracles.start(
        "check", "chunk_metadata.chunk_metadata", "--impl", spec, "--json", "out.json", *arguments, **options
    )


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def worker_of(parent):
    """The child that judges: the nursery's child."""
    nurseries = children_of(parent)
    return next(iter(children_of(nurseries[0])), None) if nurseries else None


def asleep(oracles):
    """Whether the callable has said that it is being run."""
    return (oracles.folder / "flag").exists()


@pytest.mark.parametrize("name", ["sleeps_on_the_first_call", "spins_on_the_first_call"])
def test_nothing_outlives_a_killed_parent(oracles, eventually, name):
    process = started(oracles, name, "--time-limit", "600")
    eventually(lambda: asleep(oracles))
    process.kill()
    process.communicate()
    assert oracles.left(10) == []


def test_the_next_run_names_the_case_once_and_its_command_works(oracles, eventually):
    process = started(oracles, "sleeps_on_the_first_call", "--time-limit", "600")
    eventually(lambda: asleep(oracles))
    process.kill()
    process.communicate()
    again = oracles.check("wrong_value", file="nonsense.py")
    said = SAYS.search(again.err)
    assert said is not None, again.err
    assert said.group(1, 2) == ("sleeps_on_the_first_call", "host")
    program, *command = shlex.split(said.group(3))
    assert program == "oracles"
    assert (oracles.folder / command[1]).exists()
    replayed = oracles.run(*command)  # the callable sleeps only once: what it sees now is an ordinary case
    assert (replayed.code, replayed.err) == (0, ""), replayed
    assert oracles.check("wrong_value", file="nonsense.py").err == ""


def test_a_killed_run_keeps_its_findings(oracles, eventually):
    process = started(oracles, "wrong_then_sleeps", "--time-limit", "600")
    eventually(lambda: asleep(oracles))
    process.kill()
    process.communicate()
    kept = sorted((oracles.folder / ".oracles" / "findings").glob("*.json"))
    assert kept
    for path in kept:
        replayed = oracles.run("replay", str(path))
        assert replayed.code == 1, replayed
        assert "wrong_value:chunk_offsets" in replayed.out


@pytest.mark.parametrize("whom", ["child", "nursery"])
def test_a_kill_from_outside_is_no_finding(oracles, eventually, whom):
    process = started(oracles, "sleeps_on_the_first_call", "--time-limit", "600")
    eventually(lambda: asleep(oracles))
    victim = worker_of(process.pid) if whom == "child" else children_of(process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, (out, err)
    (result,) = oracles.document()
    assert (result["verdict"], result["examples"]) == ("pass", 141), result
    said = r"a worker died \(SIGKILL\) in or behind case [0-9a-f]{16}, which does not kill when it is run again: cu_"
    assert re.search(said, result["detail"])
    assert oracles.left() == []


def test_nothing_of_pytest_outlives_it_and_every_case_is_known(oracles, eventually):
    """Two processes of xdist run a case each when the one that started them is killed."""
    sleeper = "import pathlib, time\n\n\ndef chunk_metadata(**inputs):\n"
    for name in ("one", "two"):
        body = f"    pathlib.Path({name!r}).touch()\n    time.sleep(3600)\n"
        (oracles.folder / f"{name}.py").write_text(sleeper + body)
    mark, _, value = oracles.mark.partition("=")
    asked = ("--impl", "one.py:chunk_metadata", "--impl", "two.py:chunk_metadata", "--contract", NAME)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "oracles.pytest_plugin", "-n2", "--oracle-time-limit", "3600", *asked],
        cwd=oracles.folder,
        env=os.environ | {mark: value, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: all((oracles.folder / name).exists() for name in ("one", "two")))
    process.kill()
    process.wait()
    assert oracles.left(10) == []
    left = interrupted(oracles.folder / ".oracles")
    assert sorted(item.meta.spec for item in left) == ["one.py:chunk_metadata", "two.py:chunk_metadata"]
    assert all(item.path.is_file() for item in left)


def test_interrupting_keeps_what_was_found(oracles, eventually):
    process = started(oracles, "wrong_then_sleeps", "--time-limit", "600", start_new_session=True)
    eventually(lambda: asleep(oracles))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, (out, err)
    assert "interrupted: what was found so far" in err
    assert "Traceback" not in err
    assert "wrong_value:chunk_offsets" in out
    results = oracles.document()
    assert [result["verdict"] for result in results] == ["wrong_value"]
    assert (oracles.folder / results[0]["case"]).exists()
    assert oracles.left() == []
    assert (
        oracles.check("wrong_value", file="nonsense.py").err == ""
    )  # an interrupted run ended in order: there is nothing to tell


def test_interrupting_before_anything_was_found(oracles, eventually):
    process = started(oracles, "sleeps_on_the_first_call", "--time-limit", "600", start_new_session=True)
    eventually(lambda: asleep(oracles))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert out.startswith("unsupported ") or out.startswith("interrupted ")
    (result,) = oracles.document()
    assert "interrupted while walking the small scope" in result["detail"]
    assert oracles.left() == []


def test_interrupting_while_the_implementation_is_loaded(oracles, eventually):
    spec = f"{oracles.data / 'load_sleeps.py'}:chunk_metadata"
    process = oracles.start(
        "check", "chunk_metadata.chunk_metadata", "--impl", spec, "--json", "out.json", start_new_session=True
    )
    eventually(lambda: worker_of(process.pid))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 130
    assert oracles.document()[0]["examples"] == 0
    assert oracles.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_is_cancelled_or_a_terminal_that_closes_ends_with_a_report(oracles, eventually, number):
    process = started(oracles, "sleeps_on_the_first_call", "--time-limit", "600")
    eventually(lambda: asleep(oracles))
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, (out, err)
    assert "interrupted: what was found so far" in err
    assert "Traceback" not in err
    assert "interrupted while walking the small scope" in oracles.document()[0]["detail"]
    assert oracles.left(10) == []


def test_two_runs_in_one_state_folder(oracles):
    """They start at the same time, and neither says anything of the other."""
    gate = threading.Barrier(2)

    def one(name):
        gate.wait()
        return oracles.run("check", "chunk_metadata.chunk_metadata", "--impl", f"{oracles.data}/{name}")

    with ThreadPoolExecutor(2) as pool:
        wrong, right = pool.map(one, ["nonsense.py:wrong_value", "hostile.py:prints"])
    assert (wrong.code, wrong.err, right.code, right.err) == (1, "", 0, "")
    assert "wrong_value:chunk_offsets" in wrong.out
    assert right.out.startswith("pass ")


def test_damaged_slots_are_no_obstacle(oracles):
    running = oracles.folder / ".oracles" / "running"
    running.mkdir(parents=True)
    for number, content in enumerate((b"", b"short", b"\0" * 100_000, b"{}" + b"\xff" * 100_000)):
        (running / f"1-{number}.slot").write_bytes(content)
    ended = oracles.check("wrong_value", file="nonsense.py")
    assert (ended.code, ended.err) == (1, "")
    assert list(running.iterdir()) == []
