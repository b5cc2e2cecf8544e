"""`oracles check` on callables of every temper: what is reported, and that nothing else happens."""

import json
import os
import pty
import re

import pytest

RIGHT = (
    "prints",
    "forks",
    "forks_for_long",
    "forks_a_daemon",
    "forks_and_raises",
    "forks_and_exits",
    "uses_multiprocessing",
    "starts_threads",
    "closes_standard_output",
    "changes_settings",
    "changes_path",
    "sets_device_before",
    "patches_empty",
    "stops_nursery_once",
    "kills_nursery_once",
)
"""Right values, strange manners: no finding."""

WRONG = {
    "wrong_value": "wrong_value:chunk_offsets",
    "raises_keyboard_interrupt": "crash:KeyboardInterrupt",
    "raises_surrogates": "crash:RuntimeError",
    "allocates_50_gb": "crash:RuntimeError",
    "cyclic_list": "wrong_shape:chunk_indices",
    "meta_tensors": "wrong_shape:chunk_indices",
    "mutates": "input_mutated:cu_seqlens",
}
"""What the contract blames, and how a bucket begins. (Many more are judged in the tests of the worker.)"""

DEADLY = {
    "segfault": "crash:SIGSEGV",
    "aborts": "crash:SIGABRT",
    "exits_with_0": "crash:exit 0",
    "exits_with_1": "crash:exit 1",
    "prints_and_crashes": "crash:SIGSEGV",
    "sets_alarm": "crash:SIGALRM",
    "kills_group": "crash:SIGTERM",
    "kills_itself": "crash:SIGKILL",
    "stops_itself": "hang:time limit",
    "hangs": "hang:time limit",
    "hangs_deaf": "hang:time limit",
    "hangs_busy": "hang:time limit",
    "closes_descriptors": "crash:",
}
"""What ends the worker, case after case: a finding, and the run comes to its end."""

LONG = {
    "forks", "forks_for_long", "forks_a_daemon", "forks_and_raises", "uses_multiprocessing", "changes_path",
    "sets_device_before", "kills_nursery_once", "raises_surrogates", "allocates_50_gb", "cyclic_list", "aborts",
    "exits_with_0", "prints_and_crashes", "sets_alarm", "kills_group", "stops_itself", "hangs_deaf", "hangs_busy",
}  # fmt: skip
"""Kin of others that are kept, and each some seconds of two processes: nightly."""


def named(names):
    return [pytest.param(name, marks=[pytest.mark.nightly] * (name in LONG)) for name in names]


def clean(ended, oracles):
    """Nothing that the callable printed, no traceback of ours, and no process."""
    assert "the callable" not in ended.out + ended.err
    assert "Traceback" not in ended.err
    assert oracles.left() == []


@pytest.mark.parametrize("name", named(RIGHT))
def test_manners_are_not_judged(oracles, name):
    ended = oracles.check(name, "--time-limit", "20")
    clean(ended, oracles)
    assert (ended.code, ended.only["verdict"], ended.only["examples"]) == (0, "pass", 141), ended
    assert ended.err == ""


@pytest.mark.parametrize("name", named(WRONG))
def test_a_fault_is_a_finding(oracles, name):
    ended = oracles.check(name, "--time-limit", "20", file="nonsense.py")
    clean(ended, oracles)
    assert ended.code == 1, ended
    assert ended.err == ""
    assert {result["examples"] for result in ended.results} == {141}
    buckets = [result["bucket"] for result in ended.results]
    assert any(bucket.startswith(WRONG[name]) for bucket in buckets), buckets
    for result in ended.results:
        assert result["bucket"].startswith(result["verdict"] + ":")
        assert len(result["detail"]) < 5000
        assert (oracles.folder / result["case"]).exists()


@pytest.mark.parametrize("name", named(DEADLY))
def test_a_death_is_a_finding_and_the_run_goes_on(oracles, name):
    limit = "1" if DEADLY[name].startswith("hang") else "20"
    ended = oracles.check(name, "--time-limit", limit)
    assert oracles.left() == []
    assert ended.code == 1, ended
    assert ended.err == ""
    assert all(result["bucket"].startswith(DEADLY[name]) for result in ended.results), ended.results
    assert ended.out.splitlines()[-1].endswith(f"{len(ended.results)} finding{'s' * (len(ended.results) != 1)}")


def test_one_bad_implementation_does_not_spoil_another(oracles, data):
    """Both are reported, whatever becomes of the first."""
    ended = oracles.check("raises_unprintable", "--impl", f"{data / 'good.py'}:chunk_metadata", file="nonsense.py")
    assert ended.code == 1
    assert [result["verdict"] for result in ended.results] == ["crash", "pass"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "ImportError: this machine has no such library"),
        ("exits", "SystemExit"),
        ("interrupts", "KeyboardInterrupt, at load_interrupts.py:3"),
        ("dies", "SIGSEGV"),
        ("leaves", "exited with 0"),
        ("unprintable", "Unprintable (its text cannot be read: RuntimeError)"),
        ("not_callable", "is of type int"),
    ],
)
def test_what_cannot_be_loaded_is_not_judged(oracles, name, text):
    ended = oracles.check("chunk_metadata", file=f"load_{name}.py")
    clean(ended, oracles)
    assert (ended.code, ended.only["verdict"], ended.only["examples"]) == (3, "unsupported", 0)
    assert ended.only["detail"].startswith("could not be loaded: ")
    assert ended.only["detail"].count(text) == 1
    assert f"| 0 cases | {ended.only['detail']}\n" in ended.out  # one line, which says it once
    assert ended.err == ""


def test_required_means_judged(oracles, data):
    ended = oracles.check("chunk_metadata", "--require", "--impl", f"{data / 'good.py'}:chunk_metadata",
                          file="load_raises.py")  # fmt: skip
    assert ended.code == 1
    assert [result["verdict"] for result in ended.results] == ["unsupported", "pass"]
    assert "1 of 2 implementations not judged" in ended.out


def test_missing_without_require_is_said_and_forgiven(oracles, data):
    ended = oracles.check("chunk_metadata", "--impl", f"{data / 'good.py'}:chunk_metadata", file="load_raises.py")
    assert ended.code == 0
    assert "1 of 2 implementations not judged" in ended.out


def test_triton_code_on_the_host_backend_is_not_judged(oracles):
    ended = oracles.check("chunk_metadata", "--backend", "host", file="uses_triton.py")
    assert (ended.code, ended.only["verdict"]) == (3, "unsupported")
    assert "backend host runs none; try " in ended.only["detail"]


def test_plain_lines_in_a_pipe(oracles, data):
    ended = oracles.check("wrong_value", file="nonsense.py")
    lines = ended.out.replace(str(data), "DATA").splitlines()
    case = ended.only["case"]
    assert lines == [
        "1 finding    chunk_metadata.chunk_metadata | nonsense.py: wrong_value | host | 141 cases",
        "  wrong_value:chunk_offsets",
        "    chunk_offsets[0] is 1, expected 0",
        "    input: cu_seqlens int32[1] = [0], cu_seqlens_cpu int32[1] = [0], chunk_size=1",
        f"    replay: oracles replay {case} --impl DATA/nonsense.py:wrong_value --backend host",
        "141 cases judged, 1 finding",
    ]


def test_the_document_of_a_pass(oracles, data):
    ended = oracles.check("chunk_metadata", file="good.py")
    assert ended.code == 0
    assert ended.only == {
        "contract": "chunk_metadata.chunk_metadata",
        "implementation": "chunk_metadata",
        "provider": "good.py",
        "backend": "host",
        "examples": 141,
        "verdict": "pass",
        "known": None,
        "bucket": None,
        "case": None,
        "detail": "",
        "replay": None,
    }
    document = json.loads((oracles.folder / "out.json").read_bytes())
    assert {"python", "platform", "torch", "triton", "numpy"} <= set(document["environment"])
    assert list((oracles.folder / ".oracles" / "running").iterdir()) == []


def test_a_strangers_kernel_is_judged_as_machine_code(oracles):
    ended = oracles.check("chunk_metadata", file="uses_triton.py")
    assert oracles.left() == []
    assert ended.code == 1
    assert {result["backend"] for result in ended.results} == {"gfx942"}
    assert "wrong_shape:outputs" in {result["bucket"] for result in ended.results}


def test_the_same_seed_gives_the_same_document(oracles):
    first = oracles.check("strided_is_wrong", "--seed", "3", "--examples", "60", file="nonsense.py")
    second = oracles.check("strided_is_wrong", "--seed", "3", "--examples", "60", file="nonsense.py")
    assert first.code == second.code == 1
    assert first.results == second.results


def test_tables_on_a_terminal(oracles):
    shown = on_terminal(oracles, "wrong_value")
    for word in ("contract", "provider", "implementation", "backend", "cases", "verdict", "1 finding", "replay"):
        assert word in shown
    assert "┃" in shown
    assert "wrong_value:chunk_offsets" in shown


def test_a_message_is_shown_as_it_is_but_for_control_characters(oracles):
    """It may not move the cursor or colour the reader's terminal, and markup in it is text."""
    shown = on_terminal(oracles, "raises_markup")
    assert "[red]not markup[/]" in shown
    assert "\x1b[35mviolet" not in shown


def on_terminal(oracles, name):
    """What the command writes to a terminal, colours removed unless they are the callable's."""
    ours, theirs = pty.openpty()
    process = oracles.start("check", "chunk_metadata.chunk_metadata", "--impl", f"{oracles.data}/nonsense.py:{name}",
                            stdout=theirs, stderr=theirs)  # fmt: skip
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other side is closed: the end, on a terminal
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    assert process.wait() == 1
    text = b"".join(chunks).decode()
    return re.sub(r"\x1b\[(?!35m)[0-9;?]*[A-Za-z]", "", text)
