"""Specs with paths: what they mean from another folder, and which name the same thing."""

from pathlib import Path

import pytest

from oracles.arrays import array
from oracles.case import Case
from oracles.origins import origin, usable_spec
from oracles.providers.places import anchored, identity, is_relative
from oracles.run import plan

FOLDER = Path("/a/b")
CASE = Case(contract="c", inputs={"x": array([0], "int32")})


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("mine.py:f", "/a/b/mine.py:f"),
        ("../mine.py:f", "/a/mine.py:f"),
        ("a:b.py:f", "/a/b/a:b.py:f"),
        ("vllm:wheels/x.whl", "vllm:/a/b/wheels/x.whl"),
        ("vllm:.", "vllm:/a/b"),
        ("vllm:git+clone@v1.0", "vllm:git+/a/b/clone@v1.0"),
    ],
)
def test_a_relative_path_is_anchored(spec, meant):
    assert is_relative(spec)
    assert anchored(spec, FOLDER) == meant
    assert not is_relative(meant)


@pytest.mark.parametrize(
    "spec",
    ["optimized", "vllm", "/x/mine.py:f", "~/mine.py:f", "vllm:/x.whl", "vllm:git+/x@HEAD", "vllm:https://x/y.whl"],
)
def test_other_specs_stay(spec):
    assert not is_relative(spec)
    assert anchored(spec, FOLDER) == spec


def test_which_specs_name_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert identity("mine.py:f") == identity("./mine.py:f") == identity(f"{tmp_path}/x/../mine.py:f")
    assert identity("vllm:x.whl") == identity("vllm:./x.whl")
    assert len({identity(spec) for spec in ("mine.py:f", "mine.py:g", "vllm:mine.py", "optimized", "vllm")}) == 5


def test_what_is_named_twice_is_judged_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def chunk_metadata(**inputs): pass\ndef other(**inputs): pass\n")
    specs = ["mine.py:chunk_metadata", "./mine.py:chunk_metadata", "mine.py:other"]
    planned = plan(["chunk_metadata.chunk_metadata"], specs, ["host", "host"])
    assert [task.implementation.name for task in planned.tasks] == ["chunk_metadata", "other"]
    assert planned.repeated == [f"--impl {specs[1]} names the same as --impl {specs[0]}: it is judged once"]


def test_a_case_says_the_way_back(tmp_path, monkeypatch):
    """A case that lies where its spec is not found falls back on the current folder."""
    monkeypatch.chdir(tmp_path)
    found = origin("mine.py:f", "f", "host", Path("state/findings"))
    assert found == {"implementation": "mine.py:f", "callable": "f", "backend": "host", "folder": "../.."}
    assert "folder" not in origin("optimized", "f", "host", Path("state"))
    case = Case(contract=CASE.contract, inputs=CASE.inputs, origin=found)
    (tmp_path / "mine.py").touch()
    other = tmp_path / "other"
    other.mkdir()
    for here, path, spec in (
        (tmp_path, "state/findings/x.json", "mine.py:f"),
        (other, "../state/findings/x.json", f"{tmp_path}/mine.py:f"),
        (other, "/nowhere/state/x.json", "mine.py:f"),
    ):
        monkeypatch.chdir(here)
        assert usable_spec(case, Path(path)) == spec
