"""Installed packages: imported where they import, else lifted, with the reason; never imported by the parent."""

import dataclasses
import sys

import pytest

from oracles.contract import Binding, Contract
from oracles.providers import find, loaded

PATH = "fakepkg/ops/index.py"
WORKS = "import sys\nWHERE = __name__\ndef count(value): return value, WHERE.split('_')[0]\nclass Box:\n" + (
    "    @staticmethod\n    def size(n): return n\n"
)


def binding(project="fakepkg", **options):
    given = {
        "symbols": {f"{project}/ops/index.py": ("count", "Box.size")},
        "adapt": lambda names: lambda value: (*names["count"](value), names["Box.size"](value)),
    }
    return Binding(project=project, name="count", runs="host", **(given | options))


def contract(bound):
    return Contract(
        family="a",
        name="b",
        section="1",
        summary="for a test",
        inputs=(),
        outputs=(),
        domain=lambda source: {},
        resample=lambda inputs: (),
        expected=lambda inputs: None,
        traits=lambda inputs: frozenset(),
        optimized="math:sqrt",
        runs="host",
        bindings=(bound,),
    )


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package where installed ones are, and forget what was imported of it."""

    def write(files, package="fakepkg"):
        files = {
            f"{package}/__init__.py": "",
            f"{package}/ops/__init__.py": "",
            f"{package}/ops/index.py": WORKS,
        } | files
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / f"{package}-1.5.dist-info").mkdir()
        (tmp_path / f"{package}-1.5.dist-info/METADATA").write_text(f"Name: {package}\nVersion: 1.5\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fakepkg", "vllm")]:
        del sys.modules[name]


def judged_by(bound, seconds=None):
    """What the callable answers, and how it was bound."""
    implementation = find(bound.project, contract(bound), "count")
    assert bound.project not in sys.modules  # resolving reads text
    if seconds is not None:
        implementation = dataclasses.replace(
            implementation, load=dataclasses.replace(implementation.load, seconds=seconds)
        )
    record, function = loaded(implementation)
    return function(7), record.bound


def test_a_package_that_imports_is_imported(install):
    install({})
    answer, bound = judged_by(binding())
    assert answer == (7, "fakepkg.ops.index", 7)
    assert dataclasses.asdict(bound) == {
        "version": "fakepkg 1.5 (installed)",
        "how": "imported",
        "functions": (f"{PATH}:count(value)", f"{PATH}:Box.size(n)"),
        "number": 1,
        "sets": 1,
        "reason": "",
    }


RAISES = {
    "an error": ("raise RuntimeError('no\\n  driver')", "importing fakepkg.ops.index raised RuntimeError: no driver"),
    "a dependency": (
        "import a_dependency_that_nobody_has",
        "importing fakepkg.ops.index raised ModuleNotFoundError: No module named 'a_dependency_that_nobody_has'",
    ),
    "a long message": ("raise ValueError('x' * 5000)", "importing fakepkg.ops.index raised ValueError: " + "x" * 188),
    "an exit": ("import os; os._exit(3)", "importing it ended the process (exit status 3)"),
    "a polite exit": ("raise SystemExit(0)", "importing it ended the process (exit status 0)"),
    "an abort": ("import os; os.abort()", "importing it ended the process (signal 6)"),
    "somewhere else": ("__file__ = '/elsewhere.py'", None),
}


@pytest.mark.parametrize("how", RAISES)
def test_a_package_that_does_not_import_is_lifted_and_the_reason_said(install, how):
    code, reason = RAISES[how]
    # The package itself fails, as vLLM's and AITER's do; the text of the function is sound.
    where = PATH if reason is None else "fakepkg/__init__.py"
    install({where: code + "\n" + (WORKS if reason is None else "")})
    answer, bound = judged_by(binding())
    assert answer == (7, "lifted", 7)
    assert (bound.version, bound.how) == ("fakepkg 1.5 (installed)", "lifted")
    expected = reason or "importing fakepkg.ops.index gives /elsewhere.py instead of "
    assert bound.reason.startswith(expected)
    assert "fakepkg" not in sys.modules


def test_an_import_that_never_ends_is_given_up(install, tmp_path):
    install({"fakepkg/__init__.py": "import time\nwhile True: time.sleep(60)"})
    answer, bound = judged_by(binding(), seconds=0.5)
    assert (answer[1], bound.reason) == ("lifted", "importing it took longer than 0.5 s")


@pytest.mark.parametrize(
    ("has_triton", "how", "reason"),
    [
        ("False", "lifted", "vllm.triton_utils.HAS_TRITON is not true: without a GPU driver, vLLM puts a placeholder"),
        ("True", "imported", ""),
    ],
)
def test_a_vllm_that_would_replace_triton_is_lifted(install, has_triton, how, reason):
    install({"vllm/triton_utils/__init__.py": f"HAS_TRITON = {has_triton}\n"}, "vllm")
    answer, bound = judged_by(binding("vllm"))
    assert (bound.how, answer[1]) == (how, "lifted" if how == "lifted" else "vllm.ops.index")
    assert bound.reason.startswith(reason)
    assert bool(bound.reason) == bool(reason)


def test_a_binding_that_replaces_something_is_lifted(install):
    install({})
    answer, bound = judged_by(binding(stubs={"fakepkg.ops.index:WHERE": "stub"}))
    assert answer == (7, "stub", 7)
    assert bound.reason == "the binding replaces fakepkg.ops.index:WHERE, which an import would not"


def test_a_directory_is_lifted_even_if_it_could_be_imported(install, tmp_path):
    install({})
    found = find(f"fakepkg:{tmp_path}", contract(binding()), "count")
    record, function = loaded(found)
    assert (function(7)[1], record.bound.how, record.bound.reason) == ("lifted", "lifted", "")
