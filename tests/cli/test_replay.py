"""`oracles replay`: a finding's case shows the finding again, and a case file is read strictly."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from oracles.arrays import array
from oracles.case import Case
from oracles.domain import Scope
from oracles.results import PROFILES, Profile

NAME = "chunk_metadata.chunk_metadata"


def a_case(oracles, *, cu=(0, 3), host=None, chunk_size=2, origin=None, name="case.json", contract=NAME):
    inputs = {
        "cu_seqlens": array(list(cu), "int32"),
        "cu_seqlens_cpu": array(list(cu if host is None else host), "int64"),
        "chunk_size": chunk_size,
    }
    path = oracles.folder / name
    Case(contract=contract, inputs=inputs, origin=origin or {}).save(path)
    return path


def spec(oracles, name, file="nonsense.py"):
    return f"{oracles.data / file}:{name}"


@pytest.mark.parametrize(
    ("name", "file"),
    [("wrong_value", "nonsense.py"), ("strided_is_wrong", "nonsense.py"), ("dies_when_strided", "hostile.py"),
     pytest.param("hangs_when_strided", "hostile.py", marks=pytest.mark.nightly)],
)  # fmt: skip
def test_the_printed_command_shows_the_finding_again(oracles, name, file):
    found = oracles.check(name, "--time-limit", "4", file=file)
    assert found.code == 1
    for result in found.results:
        program, *command = shlex.split(result["replay"])
        assert program == "oracles"
        assert command[-2:] == ["--time-limit", "4"]
        again = oracles.run(*command)
        assert again.code == 1
        assert again.err == ""
        lines = again.out.splitlines()
        assert lines[1].strip() == result["bucket"]
        assert lines[-2].strip() == f"replay: {result['replay']}"
    assert oracles.left() == []


def test_a_finding_that_does_not_show_says_so(oracles):
    found = oracles.check("wrong_value", file="nonsense.py")
    filed = next(result for result in found.results if result["replay"])
    path = shlex.split(filed["replay"])[2]
    mended = oracles.run("replay", path, "--impl", spec(oracles, "chunk_metadata", "good.py"), "--backend", "host")
    assert mended.code == 0
    assert f"filed as {filed['bucket']}, which this case alone does not show now" in mended.out
    kept = a_case(oracles)
    assert "filed as" not in oracles.run("replay", str(kept), "--impl", spec(oracles, "chunk_metadata", "good.py")).out


def test_a_refused_input_that_is_left_out_says_what_is_refused(oracles):
    unchecked = oracles.folder / "unchecked.py"
    unchecked.write_text("def chunk_metadata(**_):\n    pass\n\n\nchunk_metadata.refuses = False\n")
    path = a_case(oracles, chunk_size=0)
    ended = oracles.run("replay", str(path), "--impl", f"{unchecked}:chunk_metadata")
    assert ended.code == 3
    assert ended.out.splitlines()[0].split(" | ")[3:] == [
        "0 cases",
        "1 case unsupported: refusals are not judged: the callable has refuses = False; the contract refuses this "
        "input: chunk_size: 0 breaks the rule: it must be an int of at least 1",
    ]


def test_another_implementation_on_the_same_case(oracles):
    path = a_case(oracles, origin={"implementation": spec(oracles, "wrong_value"), "backend": "host"})
    assert oracles.run("replay", str(path)).code == 1
    right = oracles.run("replay", str(path), "--impl", spec(oracles, "chunk_metadata", "good.py"))
    assert (right.code, right.out.splitlines()[-1]) == (0, "1 case judged, 0 findings")
    both = oracles.run("replay", str(path), "--impl", spec(oracles, "chunk_metadata", "good.py"),
                       "--impl", spec(oracles, "wrong_value"))  # fmt: skip
    assert both.code == 1
    assert both.out.splitlines()[-1] == "2 cases judged, 1 finding"


def test_a_case_without_origin_is_judged_on_this_project(oracles):
    ended = oracles.run("replay", str(a_case(oracles)))
    assert ended.code == 0, ended
    assert "this project: chunk_metadata | gfx942" in ended.out


def test_a_refused_case(oracles):
    path = a_case(oracles, chunk_size=0)
    right = oracles.run("replay", str(path), "--impl", spec(oracles, "chunk_metadata", "good.py"))
    assert (right.code, right.err) == (0, "")
    wrong = oracles.run("replay", str(path), "--impl", spec(oracles, "none"))
    assert wrong.code == 1
    assert "wrongly_accepted:chunk_size" in wrong.out


def test_a_case_that_only_promises_memory_safety(oracles):
    path = a_case(oracles, cu=(0, -3), host=(0, 3))
    ended = oracles.run("replay", str(path), "--impl", spec(oracles, "none"))
    assert (ended.code, ended.err) == (0, "")


def test_a_large_case_has_its_archive_beside_it(oracles):
    path = a_case(oracles, cu=np.arange(6000).tolist())
    assert path.with_suffix(".npz").exists()
    given = ("replay", str(path), "--impl", spec(oracles, "chunk_metadata", "good.py"))
    assert oracles.run(*given).code == 0
    path.with_suffix(".npz").unlink()
    ended = oracles.run(*given)
    assert ended.code == 2
    assert "case.npz" in ended.err


def test_nothing_can_be_judged(oracles):
    path = a_case(oracles)
    ended = oracles.run("replay", str(path), "--impl", spec(oracles, "chunk_metadata", "uses_triton.py"),
                        "--backend", "host")  # fmt: skip
    assert ended.code == 3
    assert "backend host runs none" in ended.out


PRINTS = """
import sys

calls = []


def chunk_metadata(**inputs):
    calls.append(0)
    print("the sizes", list(inputs["cu_seqlens"].shape), flush=False)
    if len(calls) == 2:
        print("once more [red]", file=sys.stderr)
    if inputs["chunk_size"] > 9:
        print("a long text" * 1000)
"""


def test_what_a_callable_prints_is_shown(oracles, in_process):
    (oracles.folder / "mine.py").write_text(PRINTS)
    a_case(oracles, origin={"implementation": "mine.py:chunk_metadata", "backend": "host"})
    code, out, err = in_process("replay", "case.json")
    assert (code, err) == (1, "")
    assert out.splitlines()[-6:-1] == [
        "  printed by the callable (standard output and error):",
        "  | the sizes [2]",
        "  | (in further calls for this case:)",
        "  | the sizes [2]",
        "  | once more [red]",
    ]
    a_case(oracles, chunk_size=10, origin={"implementation": "mine.py:chunk_metadata", "backend": "host"})
    _, out, _ = in_process("replay", "case.json")
    assert 2000 < len(out) < 6000
    assert "\n  | ... (11" in out


def test_the_printed_command_and_the_case_alone_work_where_they_may(oracles, in_process, monkeypatch):
    """The command where it was printed, the case from any folder, and from where the project was moved to."""
    project = oracles.folder / "project"
    project.mkdir()
    (project / "mine.py").write_text("def chunk_metadata(**inputs):\n    return ()\n")
    monkeypatch.chdir(project)
    check = ("check", NAME, "--impl", "mine.py:chunk_metadata", "--examples", "0", "--json", "out.json")
    monkeypatch.setattr("oracles.cli.CORPUS", project)
    monkeypatch.setitem(PROFILES, "ci", Profile(Scope(0, 0), 0))
    assert in_process(*check)[0] == 1
    result = json.loads((project / "out.json").read_text())["results"][0]
    origin = json.loads((project / result["case"]).read_text())["origin"]
    assert (origin["implementation"], origin["folder"]) == ("mine.py:chunk_metadata", "../..")
    assert in_process(*shlex.split(result["replay"])[1:])[0] == 1
    moved = project.rename(oracles.folder / "moved")
    monkeypatch.chdir(oracles.folder)
    code, out, _ = in_process("replay", str(Path("moved") / result["case"]))
    assert code == 1
    [line] = [line for line in out.splitlines() if "replay:" in line]
    assert f"--impl {moved / 'mine.py'}:chunk_metadata" in line
    assert in_process(*shlex.split(line)[2:])[0] == 1


def changed(**values):
    return lambda text: json.dumps(json.loads(text) | values)


def without(field):
    return lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != field})


def with_input(name, value):
    def change(text):
        document = json.loads(text)
        document["inputs"][name] = value
        return json.dumps(document)

    return change


def without_input(name):
    def change(text):
        document = json.loads(text)
        del document["inputs"][name]
        return json.dumps(document)

    return change


DAMAGED = {
    "empty": (lambda text: "", "case.json"),
    "truncated": (lambda text: text[:100], "case.json"),
    "not JSON": (lambda text: "chunk", "case.json"),
    "a list": (lambda text: "[]", "Expected `object`"),
    "deeply nested": (lambda text: "[" * 100_000, "case.json"),
    "another schema": (changed(schema=2), "schema: 2 is not 1"),
    "unknown field": (changed(color="red"), "color"),
    "no inputs": (without("inputs"), "inputs"),
    "unknown contract": (changed(contract="weather.forecast"), "weather.forecast"),
    "inputs of another contract": (changed(inputs={"temperature": 3}), "temperature"),
    "an input too many": (with_input("temperature", 3), "temperature"),
    "an input missing": (without_input("chunk_size"), "chunk_size"),
    "a scalar for an array": (with_input("cu_seqlens", 3), "cu_seqlens"),
    "a list for an array": (with_input("cu_seqlens", [3]), "cu_seqlens"),
    "an array for a scalar": (
        with_input("chunk_size", {"dtype": "int32", "shape": [1], "data": [1]}),
        "chunk_size",
    ),
    "wrong shape": (with_input("cu_seqlens", {"dtype": "int32", "shape": [3], "data": [1]}), "cu_seqlens"),
    "unknown dtype": (with_input("cu_seqlens", {"dtype": "int3", "shape": [1], "data": [1]}), "int3"),
    "value that does not fit": (
        with_input("cu_seqlens", {"dtype": "int32", "shape": [1], "data": [1 << 40]}),
        "cu_seqlens",
    ),
    "strides of another rank": (
        with_input("cu_seqlens", {"dtype": "int32", "shape": [1], "data": [1], "strides": [1, 1]}),
        "cu_seqlens",
    ),
    "negative offset": (
        with_input("cu_seqlens", {"dtype": "int32", "shape": [1], "data": [1], "offset": -4}),
        "cu_seqlens",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("command", ["replay", "explain"])
def test_a_damaged_case_is_a_usage_error(oracles, in_process, command, damage):
    change, word = DAMAGED[damage]
    path = a_case(oracles, origin={"implementation": spec(oracles, "chunk_metadata", "good.py"), "backend": "host"})
    path.write_text(change(path.read_text()))
    code, out, err = in_process(command, str(path))
    assert code == 2, (code, out, err)
    assert "Traceback" not in err
    assert word in err
    assert out == ""


@pytest.mark.parametrize(
    ("origin", "word"),
    [
        ({"implementation": "nowhere.py:x"}, "nowhere.py"),
        ({"implementation": "nowhere.py:x", "backend": "host"}, "nowhere.py"),
        ({"backend": "moon"}, "moon"),
        ({"backend": 3}, "backend"),
        ({"implementation": 3}, "implementation"),
        ({"folder": 3}, "origin.folder"),
    ],
)
def test_an_origin_that_is_gone(oracles, in_process, origin, word):
    path = a_case(oracles)
    path.write_text(changed(origin=origin)(path.read_text()))
    code, out, err = in_process("replay", str(path))
    assert (code, out) == (2, "")
    assert word in err


@pytest.mark.parametrize("command", ["replay", "explain"])
def test_a_case_file_that_is_no_file(oracles, in_process, command):
    for path in ("nothing.json", str(oracles.folder)):
        code, out, err = in_process(command, path)
        assert (code, out) == (2, "")
        assert path in err
