"""Imports of lifted code: what each is resolved to, in what order, and what a missing one does."""

import textwrap

import pytest

from oracles.providers.lifter import Lifter
from oracles.providers.standins import MissingImport
from oracles.providers.trees import TextTree
from oracles.verdict import Unsupported


def lift(files, wanted, path="pkg/a.py", **options):
    if isinstance(files, str):
        files = {path: files}
    tree = TextTree({name: textwrap.dedent(text) for name, text in files.items()}, "pkg 1.0 (text)")
    lifter = Lifter(tree, project=("pkg",), **options)
    return lifter.lift(path, [wanted] if isinstance(wanted, str) else wanted)


FAMILY = {
    "pkg/a.py": "from pkg.b import g\nimport pkg.b as whole\ndef f(): return g()\ndef h(): return whole.g()\n",
    "pkg/b.py": "from .c import VALUE\ndef g(): return VALUE\n",
    "pkg/c.py": "VALUE = 'real'\n",
    "pkg/__init__.py": "raise SystemError('the package itself is never executed')\n",
}


@pytest.mark.parametrize("name", ["f", "h"])
def test_import_order_stub_before_followed_before_stand_in(name):
    both = ["pkg.b", "pkg/c.py"]
    assert lift(FAMILY, name, follow=both)[name]() == "real"
    assert lift(FAMILY, name, follow=both, stubs={"pkg.b:g": lambda: "stub"})[name]() == "stub"
    assert lift(FAMILY, name, follow=both, stubs={"pkg.c:VALUE": "stub"})[name]() == "stub"
    partly = lift(FAMILY, name, follow=["pkg.b"])
    not_at_all = lift(FAMILY, name)
    with pytest.raises(MissingImport, match=r"pkg\.b:g was used"):
        not_at_all[name]()
    assert not_at_all.missing == ["pkg.b:g"]
    if name == "f":
        assert partly.missing == ["pkg.c:VALUE"]
        assert partly.report.followed == ["pkg.b:g"]


def test_a_whole_module_can_be_stubbed():
    class Envs:
        FLAG = 3

    source = "import pkg.envs as envs\nfrom pkg import envs as again\ndef f(): return envs.FLAG + again.FLAG\n"
    lifted = lift(source, "f", stubs={"pkg.envs": Envs})
    assert lifted["f"]() == 6
    assert lifted.report.stubbed == ["pkg.envs"]


def test_a_stub_replaces_a_third_party_module_and_a_definition_of_the_file():
    lifted = lift(
        """
        import json
        from json import dumps, loads
        def limit(): return 1
        def f(): return dumps(1), loads("2"), json.dumps(3), limit()
        """,
        "f",
        stubs={"json:dumps": lambda value: "stub", "pkg.a:limit": lambda: 9},
    )
    assert lifted["f"]() == ("stub", 2, "stub", 9)


@pytest.mark.parametrize(
    "line",
    ["from .sub import g", "from .sub.deep import g", "from . import sub\ng = sub.g", "from ..pkg.sub import g"],
)
def test_relative_imports(line):
    files = {
        "pkg/inner.py": f"{line}\ndef f(): return g()\n",
        "pkg/sub/__init__.py": "from .deep import g\n",
        "pkg/sub/deep.py": "def g(): return 'deep'\n",
    }
    if ".." in line:
        files = {path.replace("pkg/", "pkg/pkg/"): text for path, text in files.items()}
        follow = ["pkg.pkg.sub", "pkg.pkg.sub.deep"]
        assert lift(files, "f", "pkg/pkg/inner.py", follow=follow)["f"]() == "deep"
    else:
        assert lift(files, "f", "pkg/inner.py", follow=["pkg.sub", "pkg.sub.deep"])["f"]() == "deep"


def test_a_relative_import_that_leaves_the_tree():
    with pytest.raises(ImportError, match=r"pkg/a\.py: the relative import \.\.\.x leads out of the tree"):
        lift("from ...x import y\ndef f(): return y\n", "f")


def test_imports_inside_functions_follow_the_same_rules():
    source = """
        def f():
            from pkg.b import g
            return g()
        def h():
            import pkg.gone as gone
            from pkg.nowhere import thing
            import no_such_module_anywhere
        """
    files = {"pkg/a.py": source, "pkg/b.py": "def g(): return 4\n"}
    assert lift(files, "f", follow=["pkg.b"])["f"]() == 4
    assert lift(files, "f", stubs={"pkg.b:g": lambda: 5})["f"]() == 5
    lifted = lift(files, ["f", "h"])
    assert lifted.missing == ["pkg.b:g", "pkg.nowhere:thing"], "listed before the functions run"
    with pytest.raises(MissingImport):
        lifted["f"]()
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        lifted["h"]()


def test_a_missing_third_party_import_waits_until_it_is_used():
    lifted = lift(
        "import no_such_one\nfrom json import no_such_name\nfrom no_such_two.x import y\n"
        "def f(): return 1\ndef g(): return no_such_one.thing\ndef h(): return no_such_name()\ndef k(): return y + 1\n",
        ["f", "g", "h", "k"],
    )
    assert lifted["f"]() == 1
    for name, match in (("h", "json:no_such_name"), ("k", "no_such_two.x:y .*ModuleNotFoundError")):
        with pytest.raises(MissingImport, match=match):
            lifted[name]()
    with pytest.raises(MissingImport):
        bool(lifted["g"]())


def test_stand_ins_raise_when_used_and_only_then():
    lifted = lift("from pkg.x import Gone\ndef get(): return Gone\nOptional = Gone | None\n", ["get", "Optional"])
    thing = lifted["get"]()
    assert "pkg.x:Gone" in repr(thing)
    assert thing is lifted["get"]()
    assert lifted["Optional"] is thing
    uses = [
        lambda: thing(),
        lambda: thing.attribute,
        lambda: bool(thing),
        lambda: thing == 1,
        lambda: thing + 1,
        lambda: thing > 1,
        lambda: thing[0],
        lambda: list(thing),
        lambda: len(thing),
        lambda: isinstance(1, thing),
        lambda: setattr(thing, "x", 1),
        lambda: thing.__enter__(),
    ]
    for use in uses:
        with pytest.raises(MissingImport, match=r"pkg\.x:Gone was used"):
            use()
    assert issubclass(MissingImport, Unsupported)


def test_a_missing_base_class_raises_for_what_only_it_could_answer():
    lifted = lift(
        "from pkg.x import Base\nclass Own(Base):\n    def __init__(self): self.a = 1\n    def f(self): return self.a\n"
        "class Bare(Base): pass\n",
        ["Own", "Bare"],
    )
    assert lifted["Own"]().f() == 1
    with pytest.raises(MissingImport, match=r"pkg\.x:Base"):
        lifted["Own"]().inherited()
    with pytest.raises(MissingImport, match=r"pkg\.x:Base"):
        lifted["Bare"]()


def test_names_passed_on_by_another_file():
    files = {
        "pkg/__init__.py": "from .one import f as public\nfrom .star import *\n",
        "pkg/one.py": "from pkg.two import f\n",
        "pkg/two.py": "def f(): return 'two'\n",
        "pkg/star.py": "def starred(): return helper()\ndef helper(): return 'star'\n",
    }
    lifted = lift(files, ["public", "starred"], "pkg/__init__.py")
    assert (lifted["public"](), lifted["starred"]()) == ("two", "star")
    broken = {"pkg/a.py": "from .b import f, g\nfrom .gone import h\n", "pkg/b.py": "f = 1\n"}
    with pytest.raises(LookupError, match=r"pkg/a\.py takes g from pkg\.b, which does not have it"):
        lift(broken, "g")
    with pytest.raises(LookupError, match=r"takes h from pkg\.gone, which is not there"):
        lift(broken, "h")


def test_files_that_import_each_other():
    files = {
        "pkg/a.py": "from pkg.b import g\nK = 2\ndef f(): return g()\n",
        "pkg/b.py": "from pkg.a import K\nfrom pkg.a import f\ndef g(): return K\ndef loop(): return f\n",
    }
    assert lift(files, "f", follow=["pkg.a", "pkg.b"])["f"]() == 2
    with pytest.raises(LookupError, match="circular"):
        lift({**files, "pkg/a.py": "from pkg.b import loop\ndef f(): return loop()\n"}, "f", follow=["pkg.a", "pkg.b"])
    stars = {"pkg/a.py": "from pkg.b import *\n", "pkg/b.py": "from pkg.a import *\n"}
    with pytest.raises(LookupError, match=r"pkg/a\.py has no f"):
        lift(stars, "f")
