"""A user's file: parsed when it is resolved, executed when it is loaded, judged for the contract it means."""

import inspect
import os
import pickle
import sys
import textwrap
from pathlib import Path

import pytest

from oracles.contract import Contract
from oracles.providers import ProviderError, find, loaded, resolve


def contract(full_name, **options):
    family, name = full_name.split(".")
    defaults = {"runs": "host", "optimized": "math:sqrt"}
    return Contract(
        family=family,
        name=name,
        section="1.1",
        summary="for a test",
        inputs=(),
        outputs=(),
        domain=lambda source: {},
        resample=lambda *_: {},
        expected=lambda inputs: None,
        traits=lambda inputs: frozenset(),
        **(defaults | options),
    )


CONTRACTS = [contract("rope.rotate"), contract("rope.cache"), contract("blocks.cache"), contract("blocks.gather")]


def user(folder, text, name="mine.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    """Executing a user's file changes the module path: that is meant for a worker process."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return 1\n",
        "f = lambda: 1\n",
        "class f:\n    def __new__(cls): return 1\n",
        "def g(): return 1\nf: object = g\n",
        "from sibling import f\n",
        "import sibling\nf = sibling.f\n",
        "from sibling import *\n",
        "if True:\n    def f(): return 1\n",
        "try:\n    from sibling import f\nexcept ImportError:\n    f = None\n",
        "def deco(x): return x\n@deco\ndef f(): return 1\n",
        "_, f = 0, lambda: 1\n",
        "from package.module import f\n",
        "from __future__ import annotations\ndef f(x: Unknown = 0) -> Unknown: return 1\n",
    ],
)
def test_every_way_to_bind_a_callable(tmp_path, text, monkeypatch):
    for module in ("sibling", "package", "package.module"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    user(tmp_path, "def f(): return 1\n", "sibling.py")
    user(tmp_path, "", "package/__init__.py")
    user(tmp_path, "from .deep import f\n", "package/module.py")
    user(tmp_path, "def f(): return 1\n", "package/deep.py")
    path = user(tmp_path, text)
    before = sorted(tmp_path.rglob("*"))
    [implementation] = resolve(f"{path}:f", CONTRACTS[:1], named=True)
    assert (implementation.provider, implementation.name, implementation.runs) == ("mine.py", "f", "host")
    assert implementation.load()() == 1
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written, byte code included"
    assert sys.dont_write_bytecode is False or os.environ.get("PYTHONDONTWRITEBYTECODE")
    for module in ("sibling", "package", "package.module", "package.deep"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("def fast(): pass\n", "fats", r"mine\.py has no fats at top level; it has fast"),
        ("", "f", "it binds nothing that can be called"),
        ("import torch\nN = 3\ndef a(): pass\ndef chunks(): pass\n", "chonks", "top level; it has chunks, a$"),
        ("def g():\n    def f(): pass\n", "f", "has no f at top level; it has g"),
        ("class C:\n    def f(self): pass\n", "C.f", "is not a name at the top level"),
        ("def f(:\n", "f", r"mine\.py:1: not valid Python"),
        ("x = 1\nreturn x\n", "f", r"mine\.py:2: not valid Python: 'return' outside function"),
        ("f = '\0'\n", "f", "not valid Python"),
        ("def f(): pass\nf.refuses = 3\n", "f", r"f\.refuses is 3; it is True or False"),
        ("def f(): pass\nf.refuses = f()\n", "f", r"mine\.py:2: f\.refuses has to be a plain constant"),
    ],
)
def test_files_that_are_refused_without_being_executed(tmp_path, text, name, reason):
    path = user(tmp_path, text)
    with pytest.raises(ProviderError, match=reason):
        resolve(f"{path}:{name}", CONTRACTS[:1], named=True)


def test_resolving_executes_nothing(tmp_path):
    path = user(tmp_path, "def f(): pass\nraise SystemError('executed')\n")
    [implementation] = resolve(f"{path}:f", CONTRACTS[:1], named=True)
    with pytest.raises(SystemError, match="executed"):
        implementation.load()


@pytest.mark.parametrize("name", ["a b.py", "a:b.py", "ä.py", "x.y.py", "1st.py", "random.py"])
def test_unusual_paths(tmp_path, name):
    path = user(tmp_path, "def f(): return __file__\n", name)
    [implementation] = resolve(f"{path}:f", CONTRACTS[:1], named=True)
    assert implementation.load()() == str(path)
    assert sys.modules.get("random") is not sys.modules[implementation.load().__module__]


def test_home_and_relative_paths(tmp_path, monkeypatch):
    user(tmp_path, "def f(): return __file__\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for spec in ("~/mine.py:f", "mine.py:f", "./mine.py:f"):
        [implementation] = resolve(spec, CONTRACTS[:1], named=True)
        assert implementation.load()() == str(tmp_path / "mine.py")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ProviderError, match=r"folder\.py: cannot be read"):
        resolve("folder.py:f", CONTRACTS[:1], named=True)


def test_the_module_behaves_like_one(tmp_path):
    path = user(
        tmp_path,
        """
        from dataclasses import dataclass, field
        from pathlib import Path
        DATA = (Path(__file__).parent / "data.txt").read_text()
        @dataclass
        class f:
            x: int = field(default=3)
        def fails(): raise KeyError(DATA)
        """,
    )
    (tmp_path / "data.txt").write_text("beside")
    cls, fails = (resolve(f"{path}:{name}", CONTRACTS[:1], named=True)[0].load() for name in ("f", "fails"))
    assert cls().x == 3
    assert pickle.loads(pickle.dumps(cls())) == cls()
    assert inspect.getsource(fails) == "def fails(): raise KeyError(DATA)\n"
    assert sys.modules[cls.__module__] is sys.modules[fails.__module__], "one file, one module"
    with pytest.raises(KeyError, match="beside") as info:
        fails()
    assert Path(info.traceback[-1].path) == path


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("def f(): pass\nimport no_such_module_here\n", ModuleNotFoundError, 2),
        ("def f(): pass\n1 / 0\n", ZeroDivisionError, 2),
        ("def f(): pass\n\nimport broken_sibling\n", SyntaxError, 3),
        ("def f(): pass\nraise SystemExit(3)\n", SystemExit, 2),
    ],
)
def test_an_error_while_executing_comes_out_as_it_is(tmp_path, text, error, line):
    user(tmp_path, "def (\n", "broken_sibling.py")
    path = user(tmp_path, text)
    [implementation] = resolve(f"{path}:f", CONTRACTS[:1], named=True)
    for _ in range(2):  # a failed execution leaves nothing behind
        with pytest.raises(error) as info:
            implementation.load()
        assert line in [entry.lineno + 1 for entry in info.traceback if Path(entry.path) == path]


def test_what_turns_out_not_to_be_a_callable(tmp_path):
    path = user(tmp_path, "number = 3\nif not number:\n    gone = 1\ndef f(): pass\ndel f\n")
    for name, reason in (
        ("number", "number is of type int, which cannot be called"),
        ("gone", "it has no gone"),
        ("f", "no f"),
    ):
        [implementation] = resolve(f"{path}:{name}", CONTRACTS[:1], named=True)
        with pytest.raises(ProviderError, match=reason):
            implementation.load()


def test_a_changed_file_is_executed_again(tmp_path):
    path = user(tmp_path, "def f(): return 1\n")
    assert find(f"{path}:f", CONTRACTS[0], "f").load()() == 1
    user(tmp_path, "def f(): return 2\n")
    assert find(f"{path}:f", CONTRACTS[0], "f").load()() == 2


def test_refuses(tmp_path):
    path = user(
        tmp_path,
        """
        def plain(): pass
        def no(): pass
        no.refuses = False
        def yes(): pass
        yes.refuses = True
        class inside:
            refuses = False
        def later(): pass
        setattr(later, "refuses", False)
        """,
    )
    found = {name: find(f"{path}:{name}", CONTRACTS[0], name) for name in ("plain", "no", "yes", "inside", "later")}
    assert [item.refuses for item in found.values()] == [True, False, True, False, True]
    assert [loaded(item)[0].refuses for item in found.values()] == [True, False, True, False, False]


KERNEL = "import triton\n@triton.jit\ndef kernel(): pass\n"


@pytest.mark.parametrize(
    "text",
    [
        "import triton.language as tl\ndef f(): return tl.int32",
        "from triton import jit\n@jit\ndef f(): pass",
        "def f():\n    import triton",
        "try:\n    import triton\nexcept ImportError:\n    triton = None\ndef f(): return triton",
        f"{KERNEL}def g(): kernel[1]()\ndef f(): g()",
        f"{KERNEL}f = lambda: kernel[1]()",
        f"{KERNEL}class A:\n    def run(self): kernel[1]()\ndef f(): A().run()",
        f"{KERNEL}def f(run=kernel): pass",
        f"{KERNEL}def plain(): pass\nf = plain\nf = kernel",
        f"{KERNEL}TABLE = {{}}\nTABLE['k'] = kernel\ndef f(): TABLE['k']()",
        f"{KERNEL}TABLE = []\nTABLE.append(kernel)\ndef f(): TABLE[0]()",
        f"TABLE = []\ndef keep(x):\n    TABLE.append(x)\n    return x\n{KERNEL}@keep\ndef late(): kernel[1]()\n"
        "def f(): TABLE[0]()",
        f"{KERNEL}def f(): return f.run()\nf.run = kernel",
        f"{KERNEL}def f(): return f.run()\nsetattr(f, 'run', kernel)",
        f"{KERNEL}run = None\ndef start():\n    global run\n    run = kernel\ndef f(): run()",
        f"{KERNEL}def f(): globals()['kernel']()",
        f"{KERNEL}def f(): return unknown()",
        "from sibling import kernel as k\ndef f(): k[1]()",
        "import sibling\ndef f(): sibling.kernel[1]()",
        "import sibling\ndef f(): getattr(sibling, 'ker' + 'nel')()",
        "from sibling import *\ndef f(): kernel[1]()",
        "import package.deep\ndef f(): package.deep.kernel[1]()",
        "from package import deep\ndef f(): deep.kernel[1]()",
        "from package.relative import indirect\ndef f(): indirect()",
        "from registry import RUN\nimport sibling\ndef f(): RUN[0]()",
    ],
)
def test_code_that_reaches_triton(tmp_path, text):
    neighbours(tmp_path)
    assert find(f"{user(tmp_path, text)}:f", CONTRACTS[0], "f").runs == "triton"


@pytest.mark.parametrize(
    "text",
    [
        f"import torch\n{KERNEL}def launch(): kernel[1]()\ndef f(x): return torch.arange(x)\nf.refuses = False",
        f"{KERNEL}SIZE = 3\ndef launch(): kernel[SIZE]()\nMADE = launch(SIZE)\ndef f(kernel): return kernel + SIZE",
        f"{KERNEL}def f(): pass\ndef g(): pass\nBOTH = {{'plain': f, 'triton': kernel}}",
        f"{KERNEL}CACHE = {{}}\ndef f(x): return CACHE.setdefault(x, x)",
        f"{KERNEL}def f(): pass\nif __name__ == '__main__':\n    f.run = kernel",
        f"{KERNEL}class f:\n    size = 3\n    twice = 2 * size\n    def __new__(cls): return cls.twice",
        f"{KERNEL}def f():\n    try:\n        pass\n    except OSError as error:\n        print(error, __file__)",
        "from sibling import plain\ndef f(): plain()",
        "import sibling as s\ndef f(): s.plain()",
        "from package.relative import plain\nf = plain",
        "import one\ndef f(): one.x()",
        "import broken\ndef f(): broken.x()",
        "import tritonish, numpy\ndef f(): numpy.arange(3)",
        "def f(): return 'import triton'",
    ],
)
def test_code_beside_triton_that_does_not_reach_it(tmp_path, text):
    neighbours(tmp_path)
    assert find(f"{user(tmp_path, text)}:f", CONTRACTS[0], "f").runs == "host"


def neighbours(folder):
    for name, text in {
        "sibling.py": f"import registry\n{KERNEL}registry.RUN.append(kernel)\ndef plain(): pass\n",
        "registry.py": "RUN = []\n",
        "package/__init__.py": "",
        "package/deep.py": f"{KERNEL}def plain(): pass\n",
        "package/relative.py": "from .deep import kernel, plain\ndef indirect(): kernel[1]()\n",
        "one.py": "import mine\ndef x(): return mine.f\n",
        "broken.py": "def (",
    }.items():
        user(folder, text, name)


# Which contract a user's callable is judged for


@pytest.mark.parametrize(
    ("text", "contracts", "named", "expected"),
    [
        ("def f(): pass", CONTRACTS[:1], True, "rope.rotate"),
        ("def f(): pass\nf.contract = 'blocks.gather'", CONTRACTS[:1], True, "rope.rotate"),
        ("def f(): pass\nf.contract = 'blocks.gather'", CONTRACTS, False, "blocks.gather"),
        ("def f(): pass\nf.contract = 'gather'", CONTRACTS, False, "blocks.gather"),
        ("def f(): pass\nf.contract = 'rope.cache'", CONTRACTS, False, "rope.cache"),
        ("class f:\n    contract = 'blocks.gather'", CONTRACTS, False, "blocks.gather"),
        ("def f(): pass\nf.contract = g = 'gather'", CONTRACTS, False, "blocks.gather"),
        ("def f(): pass\nf.contract = 'x'\nf.contract = 'gather'", CONTRACTS, False, "blocks.gather"),
        ("def gather(): pass", CONTRACTS, False, "blocks.gather"),
        ("def cache(): pass", CONTRACTS[:2], True, "rope.cache"),
        ("def rotate(): pass\nrotate.contract = 'gather'", CONTRACTS, False, "blocks.gather"),
        ("def f(): pass", CONTRACTS[:1], False, "it is not clear what contract f claims to satisfy"),
        ("def f(): pass", CONTRACTS[:2], True, "those named: rope.rotate, rope.cache"),
        ("def cache(): pass", CONTRACTS, False, "cache is more than one contract: rope.cache, blocks.cache"),
        ("def f(): pass\nf.contract = 'cache'", CONTRACTS, False, "is more than one contract"),
        (
            "def f(): pass\nf.contract = 'gone'",
            CONTRACTS,
            False,
            "f.contract is 'gone', which is not among those known",
        ),
        ("def f(): pass\nf.contract = 'gather'", CONTRACTS[:2], True, "which is not among those named"),
        ("def f(): pass\nf.contract = 3", CONTRACTS, False, "it is the name of a contract"),
        ("N = 'x'\ndef f(): pass\nf.contract = N", CONTRACTS, False, "has to be a plain constant"),
        ("def f(): pass", [], False, "it is not clear"),
    ],
)
def test_contract_of_a_user_callable(tmp_path, text, contracts, named, expected):
    path = user(tmp_path, text)
    name = next(word for word in ("gather", "cache", "rotate", "f") if f" {word}(" in text or f" {word}:" in text)
    if expected in [item.full_name for item in CONTRACTS]:
        assert resolve(f"{path}:{name}", contracts, named=named)[0].contract == expected
    else:
        with pytest.raises(ProviderError, match=expected):
            resolve(f"{path}:{name}", contracts, named=named)
