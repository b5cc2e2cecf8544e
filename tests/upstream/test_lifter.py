"""Lifting: names of a file come to life without their project, and stay readable, traceable and honest."""

import dataclasses
import inspect
import os
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

from oracles.providers.lifter import Lifter
from oracles.providers.standins import MissingImport
from oracles.providers.trees import TextTree

ROOT = Path(__file__).resolve().parents[2]


def lift(files, wanted, path="pkg/a.py", **options):
    if isinstance(files, str):
        files = {path: files}
    tree = TextTree({name: textwrap.dedent(text) for name, text in files.items()}, "pkg 1.0 (text)")
    lifter = Lifter(tree, project=("pkg",), **options)
    return lifter.lift(path, [wanted] if isinstance(wanted, str) else wanted)


# What comes along


def test_a_function_brings_what_it_reads_and_nothing_else():
    lifted = lift(
        """
        import pkg.heavy
        LIMIT = 2
        LIMIT += 1
        OTHER = pkg.heavy.compute()
        def helper(x): return x * LIMIT
        def f(x): return helper(x) + 1
        """,
        "f",
    )
    assert lifted["f"](5) == 16
    assert lifted.report.lifted == ["pkg/a.py:LIMIT", "pkg/a.py:helper", "pkg/a.py:f"]
    assert lifted.missing == []


def test_classes_dataclasses_constants_and_decorators():
    lifted = lift(
        """
        import functools
        from dataclasses import dataclass, field
        from typing import ClassVar
        from pkg.config import Config
        @dataclass
        class Item:
            config: Config
            count: int = 3
            shared: ClassVar[int] = 7
            more: "list[Config | None]" = field(default_factory=list)
        @functools.cache
        def f(x: Config) -> Config: return object()
        """,
        ["Item", "f"],
    )
    item = lifted["Item"](config=1)
    assert [field.name for field in dataclasses.fields(item)] == ["config", "count", "more"]
    assert lifted["f"](1) is lifted["f"](1)
    assert lifted["f"].__wrapped__.__annotations__ == {}
    assert lifted.missing == ["pkg.config:Config"]


def test_postponed_annotations_keep_their_meaning():
    lifted = lift(
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from typing import ClassVar
        @dataclass
        class Item:
            shared: ClassVar[int] = 7
            count: Unknown = 3
        """,
        "Item",
    )
    assert [field.name for field in dataclasses.fields(lifted["Item"])] == ["count"]


def test_annotations_of_compiled_functions_stay():
    lifted = lift(
        """
        from pkg.types import Gone
        class T: pass
        def jit(f): return f
        class lib:
            jit = staticmethod(lambda **_: (lambda f: f))
        @jit
        def bare(x: T): pass
        @lib.jit(fast=True)
        def called(x: T): pass
        def passed(x: T): pass
        passed_on = jit(passed)
        def host(x: Gone) -> Gone:
            def inner(y: Gone): return y
            z: Gone = inner(x)
            return z
        """,
        ["bare", "called", "passed_on", "host", "T"],
    )
    for name in ("bare", "called", "passed_on"):
        assert lifted[name].__annotations__ == {"x": lifted["T"]}
    assert lifted["host"].__annotations__ == {}
    assert lifted["host"](4) == 4
    assert lifted.missing == []


def test_statements_that_change_what_the_file_defines_are_kept(capsys):
    lifted = lift(
        """
        import sys
        TABLE = {}
        TABLE["k"] = 1
        def f(): return TABLE
        f.limit = 3
        sys.unrelated_to_lifting = 1
        sys.path.append("unrelated to lifting")
        for n in range(2):
            TABLE[n] = n
        TABLE.update(m=2)
        print("a call for its effect")
        """,
        "f",
    )
    assert lifted["f"]() == {"k": 1, 0: 0, 1: 1, "m": 2}
    assert "unrelated to lifting" not in sys.path
    assert capsys.readouterr().out == ""
    assert lifted["f"].limit == 3
    assert not hasattr(sys, "unrelated_to_lifting")


def test_module_globals_are_shared_between_calls():
    lifted = lift(
        """
        count = 0
        def bump():
            global count
            count += 1
            return count
        """,
        "bump",
    )
    assert [lifted["bump"](), lifted["bump"]()] == [1, 2]


# Conditions


@pytest.mark.parametrize(
    ("guard", "value"),
    [
        ("if TYPE_CHECKING:\n    from pkg.x import A\nelse:\n    A = 5", 5),
        ("if typing.TYPE_CHECKING:\n    import pkg.x as A\nelse:\n    A = 5", 5),
        ("if not TYPE_CHECKING:\n    A = 5", 5),
        ("if sys.version_info >= (3, 0):\n    A = 5\nelse:\n    A = 6", 5),
        ("try:\n    import no_such_module_anywhere as A\nexcept ImportError:\n    A = 5", 5),
        ("try:\n    from json import nothing_like_this as A\nexcept ImportError:\n    A = 5", 5),
        ("try:\n    import json\n    A = 5\nexcept ImportError:\n    A = 6", 5),
        ("if __name__ == '__main__':\n    A = 6\nelse:\n    A = 5", 5),
        ("with contextlib.nullcontext():\n    A = 5", 5),
    ],
)
def test_conditional_definitions(guard, value):
    head = "import contextlib, sys, typing\nfrom typing import TYPE_CHECKING\n"
    lifted = lift(f"{head}{guard}\ndef f(): return A\n", "f")
    assert lifted["f"]() == value
    assert lifted.missing == []


def test_a_condition_on_something_missing_is_an_error_and_not_a_guess():
    source = """
        from pkg.platforms import current
        if current.is_cuda():
            A = 1
        else:
            A = 2
        def f(): return A
        """
    with pytest.raises(
        MissingImport, match=r"pkg\.platforms:current .*neither stubbed nor followed.*pkg/a\.py"
    ) as info:
        lift(source, "f")
    assert any("while lifting line 3 of pkg/a.py" in note for note in info.value.__notes__)


# Methods


METHODS = """
    import functools
    from pkg.x import Base, deco
    class Owner(Base):
        @staticmethod
        def static(x): return x + 1
        @classmethod
        def made(cls, x): return cls, x
        @property
        def prop(self): return self.__hidden
        @prop.setter
        def prop(self, value): raise AssertionError
        @functools.cached_property
        def cached(self): return 8
        def plain(self, x: Base) -> Base:
            return self.y + helper(x)
        @deco
        def decorated(self): pass
    def helper(x): return 2 * x
    """


def test_single_methods_are_plain_functions():
    wanted = ["Owner.static", "Owner.made", "Owner.prop", "Owner.cached", "Owner.plain"]
    lifted = lift(METHODS, wanted)

    class Self:
        y = 10
        _Owner__hidden = "mangled"

    assert lifted["Owner.static"](1) == 2
    assert lifted["Owner.made"](Self, 3) == (Self, 3)
    assert lifted["Owner.prop"](Self()) == "mangled"
    assert lifted["Owner.cached"](Self()) == 8
    assert lifted["Owner.plain"](Self(), 4) == 18
    assert "return self.y + helper(x)" in inspect.getsource(lifted["Owner.plain"])
    assert lifted.missing == [], "the class, its bases and other methods were not needed"


def test_decorators_of_methods_are_kept():
    with pytest.raises(MissingImport, match=r"pkg\.x:deco"):
        lift(METHODS, "Owner.decorated")
    assert (
        lift(METHODS, "Owner.decorated", stubs={"pkg.x:deco": lambda f: "decorated"})["Owner.decorated"] == "decorated"
    )


# Errors


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ("prepair", r"pkg 1\.0 \(text\): pkg/a\.py has no prepair; near: prepare"),
        ("Owner.stop", r"has no Owner\.stop; near: Owner\.step"),
        ("Nobody.step", r"has no Nobody\.step"),
        ("a.b.c", "neither a name nor Class.method"),
        ("", "neither a name nor Class.method"),
    ],
)
def test_unknown_names(wanted, match):
    with pytest.raises(LookupError, match=match):
        lift("def prepare(): pass\nclass Owner:\n    def step(self): pass\n", wanted)


def test_unknown_file_and_unbound_name():
    with pytest.raises(LookupError, match=r"pkg 1\.0 \(text\) has no file pkg/z\.py"):
        lift({"pkg/a.py": ""}, "f", "pkg/z.py")
    with pytest.raises(LookupError, match="a condition that does not hold"):
        lift("import sys\nif sys.version_info < (3,):\n    f = 1\n", "f")


def test_broken_source_names_the_tree():
    with pytest.raises(SyntaxError) as info:
        lift("def f(:\n", "f")
    assert "pkg 1.0 (text)" in info.value.filename
    with pytest.raises(SyntaxError):
        lift("x = '\0'\n", "x")


# Edits


def test_edits_change_the_text_before_it_is_parsed():
    source = "def f(x):\n    assert x.is_cuda\n    return 1\n"
    lifted = lift(source, "f", edits={"pkg/a.py": [("assert x.is_cuda", "assert x")]})
    assert lifted["f"](2) == 1
    assert "assert x\n" in inspect.getsource(lifted["f"])
    assert lifted.report.edited == ["pkg/a.py"]


@pytest.mark.parametrize(("old", "count"), [("is_metal", 0), ("x", 2)])
def test_an_edit_fits_exactly_one_place(old, count):
    with pytest.raises(LookupError, match=rf"pkg/a\.py: the edit of '{old}' fits {count} places"):
        lift("def f(x): return x\n", "f", edits={"pkg/a.py": [(old, "y")]})


# Source and tracebacks


def test_source_lines_and_tracebacks_are_those_of_the_tree():
    source = "# a comment\nLIMIT = 3\n\n\ndef f(x):\n    y = x\n    return 1 / y  # here\n\n\nclass C:\n    z = 1\n"
    lifted = lift(source, ["f", "C"])
    assert inspect.getsource(lifted["f"]) == "def f(x):\n    y = x\n    return 1 / y  # here\n"
    assert inspect.getsource(lifted["C"]) == "class C:\n    z = 1\n"
    assert inspect.getsourcelines(lifted["f"])[1] == 5
    with pytest.raises(ZeroDivisionError) as info:
        lifted["f"](0)
    last = traceback.extract_tb(info.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (7, "return 1 / y  # here")
    assert "pkg 1.0 (text)" in last.filename
    assert last.filename.endswith("pkg/a.py")
    assert sys.modules[lifted["f"].__module__].f is lifted["f"]


def test_form_feeds_do_not_shift_lines():
    lifted = lift("A = 1\n\x0c\ndef f():\n    return A\n", "f")
    assert inspect.getsource(lifted["f"]) == "def f():\n    return A\n"


def test_two_lifters_do_not_share_state():
    source = "import pkg.x\nfrom pkg.x import v\ndef f(): return v\n"
    one, two = (lift(source, "f", stubs={"pkg.x:v": value}) for value in (1, 2))
    assert (one["f"](), two["f"]()) == (1, 2)


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"pkg/a.py": "from pkg.b import g\ndef f(): return g()\n", "pkg/b.py": "def g(): return 1\n"}
    assert lift(files, "f", follow=["pkg.b"])["f"]() == 1
    assert list(tmp_path.rglob("*")) == []


KERNEL = '''
import torch
from oracles.providers.lifter import Lifter
from oracles.providers.trees import TextTree
import inspect, triton, triton.language as tl

text = """
from pkg.triton_utils import tl, triton
from pkg.types import Config
STEP = tl.constexpr(3)
SIZE = 8
@triton.jit
def _scaled(x, factor: tl.constexpr):
    return x * factor + STEP
@triton.jit(do_not_specialize=["n"])
def kernel(out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, _scaled(at, 2), mask=at < n)
def host(out: Config) -> Config:
    kernel[(1,)](out, out.numel() - 1, BLOCK=SIZE)
    return out
"""
lifter = Lifter(TextTree({"pkg/k.py": text}), project=("pkg",), stubs={"pkg.triton_utils:tl": tl,
                "pkg.triton_utils:triton": triton})
lifted = lifter.lift("pkg/k.py", ["host", "kernel"])
print(lifted["host"](torch.full((8,), -1, dtype=torch.int32)).tolist())
print(lifted.missing, "def kernel" in inspect.getsource(lifted["kernel"].fn))
'''


def test_a_kernel_is_lifted_and_runs_in_the_interpreter():
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["[3, 5, 7, 9, 11, 13, 15, -1]", "[] True"], done.stderr
