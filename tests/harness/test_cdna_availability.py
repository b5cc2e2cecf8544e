"""The emulated backends as the command line sees them, without a launch."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from oracles.backends import gfx942, gfx950
from oracles.backends.base import CountsInstructions, Executed
from oracles.backends.cdna.backend import CdnaBackend
from oracles.check import TracesLoads
from oracles.report import document, text
from oracles.results import Result

pytest.importorskip("triton", reason="the emulated backends compile with Triton")


def test_both_architectures_are_backends_and_one_is_the_default_without_a_device(monkeypatch):
    from oracles.backends import all_backends
    from oracles.run import default_backend

    for module in (gfx942, gfx950):
        backend = module.BACKEND
        assert all_backends()[backend.name] is backend
        assert isinstance(backend, TracesLoads)
        assert isinstance(backend, CountsInstructions)
        assert backend.unavailable() is None
    for absent in ("rocm", "cuda"):
        monkeypatch.setattr(all_backends()[absent], "unavailable", lambda: "no device", raising=False)
    assert default_backend("triton").name == "gfx942"
    assert default_backend("host").name == "host"
    monkeypatch.setattr(gfx942.BACKEND, "unavailable", lambda: "no triton", raising=False)
    assert default_backend("triton").name == "interpreter"
    monkeypatch.setattr(all_backends()["cuda"], "unavailable", lambda: None)
    assert default_backend("triton").name == "cuda"


def test_a_list_of_backends_imports_no_triton():
    program = (
        "import sys; from oracles.backends import all_backends; [b.unavailable() for b in all_backends().values()]; "
        "sys.exit('triton' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("module", "words"), [("triton", "triton is not installed"), ("elftools", "pyelftools is not installed")]
)
def test_what_is_missing_is_named(monkeypatch, module, words):
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else original(name))
    assert CdnaBackend("gfx942").unavailable() == words


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0"])
def test_other_versions_of_triton_are_refused(monkeypatch, version):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert CdnaBackend("gfx942").unavailable() == f"triton {version} is outside 3.6 to 3.9"


def test_an_interpreted_process_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is 1"):
        CdnaBackend("gfx942").prepare()


def test_how_much_ran_is_reported():
    task = SimpleNamespace(backend=gfx942.BACKEND, label="what", implementation=SimpleNamespace(narrowings=()))
    result = Result(task, judged=3, executed=Executed(1204, 3_140_000))
    assert text._executed(result) == "1,204 launches, 3.1 M instructions of gfx942"
    assert text._executed(Result(task)) == ""
    task.contract = SimpleNamespace(full_name="what")
    task.implementation = SimpleNamespace(name="it", provider="somebody", narrowings=())
    assert document.task_of(result)["executed"] == {"launches": 1204, "instructions": 3_140_000}
    assert document.task_of(Result(task))["executed"] is None
    assert Executed(5, 70).since(Executed(2, 30)) == (3, 40)
