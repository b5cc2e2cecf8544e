"""Provider specs: what each form resolves to, and what is refused before anything is imported."""

import importlib.metadata
import importlib.util
import inspect
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from oracles.contract import Binding, Contract, Narrowing
from oracles.providers import ProviderError, find, resolve
from oracles.verdict import Unsupported

ROOT = Path(__file__).resolve().parents[2]


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


# This project


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_package_for_a_test").mkdir()
    (tmp_path / "own_package_for_a_test/__init__.py").write_text("raise SystemError('imported while resolving')\n")
    (tmp_path / "own_package_for_a_test/impl.py").write_text("def f(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "own_package_for_a_test"


def test_optimized_is_found_without_an_import_and_loaded_later(own_module):
    judged = contract("a.b", optimized="own_package_for_a_test.impl:f", runs="triton")
    [implementation] = resolve("optimized", [judged], named=False)
    assert (implementation.provider, implementation.name, implementation.contract) == ("this project", "f", "a.b")
    assert (implementation.runs, implementation.refuses, implementation.unsupported) == ("triton", True, None)
    with pytest.raises(SystemError):
        implementation.load()
    (own_module / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert find("optimized", judged, "f").load()() == 1


@pytest.mark.parametrize(
    ("optimized", "reason"),
    [
        ("own_package_for_a_test.impl:g", "own_package_for_a_test.impl has no g"),
        ("own_package_for_a_test.gone:f", "there is no module own_package_for_a_test.gone"),
        ("own_package_for_a_test.impl", "is not module:function"),
        ("math:no_such_function", "math has no no_such_function"),
    ],
)
def test_optimized_that_is_not_there(own_module, optimized, reason):
    with pytest.raises(ProviderError, match=rf"a\.b: .*{reason}"):
        resolve("optimized", [contract("a.b", optimized=optimized)], named=False)


# Upstream projects


HOST = Binding(
    project="vllm",
    name="host",
    symbols={"vllm/ops/index.py": ("count", "Builder.size")},
    adapt=lambda names: lambda value: (names["count"](value), names["Builder.size"](None)),
    runs="host",
    narrowings=(Narrowing(clause="c", source="s", excludes=lambda inputs: False),),
    refuses="an assert in count",
    refusal_types=(AssertionError,),
    follow=("vllm.ops.shared",),
)
STUBBED = Binding(
    project="vllm",
    name="stubbed",
    symbols={"vllm/ops/index.py": ("count",)},
    adapt=lambda names: names["count"],
    runs="triton",
    stubs={"vllm.ops.shared:double": lambda value: -value},
)
ABSENT = Binding(
    project="vllm",
    name="absent",
    symbols={"vllm/ops/index.py": ("count", "gone")},
    adapt=lambda names: names["gone"],
    runs="host",
)
NO_FILE = Binding(
    project="vllm", name="no_file", symbols={"vllm/x.py": ("f",)}, adapt=lambda names: names["f"], runs="host"
)
OTHER = Binding(
    project="aiter", name="other", symbols={"aiter/x.py": ("f",)}, adapt=lambda names: names["f"], runs="host"
)

FILES = {
    "vllm/__init__.py": "raise SystemError('vLLM itself is never imported')\n",
    "vllm/ops/index.py": """
        from vllm.logger import init_logger
        from vllm.utils.gpu_sync_debug import gpu_sync_allowed
        from vllm.utils.math_utils import cdiv
        from .shared import double
        from vllm.config import Config
        logger = init_logger(__name__)
        def count(value: Config):
            with gpu_sync_allowed():
                logger.debug("counting")
                return double(cdiv(value, 2))
        class Builder:
            def size(self): return 7
            def config(self): return Config
        """,
    "vllm/ops/shared.py": "def double(value): return 2 * value\n",
    "vllm/utils/math_utils.py": "def cdiv(a, b): return -(a // -b)\n",
    "vllm/broken.py": "def (\n",
}
BOUND = [
    contract("index.count", bindings=(HOST, STUBBED, ABSENT, NO_FILE, OTHER)),
    contract("index.other", bindings=(OTHER,)),
    contract("index.bare"),
]


def make_wheel(folder, files=FILES, name="vllm", version="0.33.0"):
    path = folder / f"{name}-{version}-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as file:
        for entry, text in files.items():
            file.writestr(entry, textwrap.dedent(text))
        file.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    return path


def make_folder(folder, files=FILES):
    for entry, text in files.items():
        (folder / entry).parent.mkdir(parents=True, exist_ok=True)
        (folder / entry).write_text(textwrap.dedent(text))
    return folder


def test_every_binding_of_the_project_is_lifted_from_a_wheel(tmp_path):
    spec = f"vllm:{make_wheel(tmp_path)}"
    host, stubbed, absent, no_file = resolve(spec, BOUND, named=False)
    assert {item.provider for item in (host, stubbed, absent, no_file)} == {"vllm 0.33.0 (wheel)"}
    assert {item.contract for item in (host, stubbed, absent, no_file)} == {"index.count"}
    assert (host.name, host.runs, host.refuses, host.refusal_types) == ("host", "host", True, (AssertionError,))
    assert host.narrowings == HOST.narrowings
    assert (stubbed.runs, stubbed.refuses) == ("triton", False)
    assert host.load()(5) == (6, 7)
    assert stubbed.load()(5) == -3
    assert absent.unsupported == "not in this release: vllm/ops/index.py has no gone"
    assert no_file.unsupported == "not in this release: there is no vllm/x.py (f)"
    with pytest.raises(Unsupported, match="has no gone"):
        absent.load()


def test_the_report_says_what_came_from_where(tmp_path):
    implementation = find(f"vllm:{make_wheel(tmp_path)}", BOUND[0], "host")
    assert implementation.load.report is None
    implementation.load()
    report = implementation.load.report
    assert "vllm/ops/index.py:count" in report.lifted
    assert "vllm/ops/index.py:Builder.size" in report.lifted
    assert report.followed == ["vllm.utils.math_utils:cdiv", "vllm.ops.shared:double"]
    assert report.stubbed == ["vllm.logger:init_logger", "vllm.utils.gpu_sync_debug:gpu_sync_allowed"]
    assert report.missing == []


def test_a_directory_and_a_git_revision_give_the_same(tmp_path):
    folder = make_folder(tmp_path / "checkout")
    assert find(f"vllm:{folder}", BOUND[0], "host").load()(5) == (6, 7)
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)}
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    implementation = find(f"vllm:git+{folder}@HEAD", BOUND[0], "host")
    assert implementation.provider.startswith("vllm at ")
    assert implementation.load()(5) == (6, 7)


@pytest.mark.parametrize(("asked", "package"), [("vllm", "aiter"), ("aiter", "vllm"), ("vllm", "vllm_extras")])
def test_a_wheel_of_another_project_is_refused(tmp_path, asked, package):
    spec = f"{asked}:{make_wheel(tmp_path, {f'{package}/a.py': ''}, package, '2.0')}"
    label = f"{package.replace('_', '-')} 2.0 (wheel)"
    with pytest.raises(ProviderError) as refused:
        resolve(spec, BOUND, named=False)
    assert str(refused.value) == f"{spec}: {label} is no {asked}: there is no file of that package in it"


def test_a_file_that_this_python_cannot_parse_is_said(tmp_path):
    broken = Binding(project="vllm", name="b", symbols={"vllm/broken.py": ("f",)}, adapt=dict, runs="host")
    [found] = resolve(f"vllm:{make_wheel(tmp_path)}", [contract("a.b", bindings=(broken,))], named=False)
    assert found.unsupported.startswith("this Python cannot parse vllm/broken.py")


def test_a_contract_without_a_binding_is_listed_only_when_it_was_named(tmp_path):
    spec = f"vllm:{make_wheel(tmp_path)}"
    assert resolve(spec, BOUND[1:], named=False) == []
    other, bare = resolve(spec, BOUND[1:], named=True)
    assert (other.contract, other.unsupported) == ("index.other", "nothing of vllm is bound to index.other")
    assert (bare.contract, bare.unsupported) == ("index.bare", "nothing of vllm is bound to index.bare")
    assert find(spec, BOUND[2], "vllm") is not None


def test_a_name_taken_from_two_files_is_refused(tmp_path):
    twice = Binding(
        project="vllm", name="t", symbols={"vllm/a.py": ("f",), "vllm/b.py": ("f",)}, adapt=dict, runs="host"
    )
    spec = f"vllm:{make_wheel(tmp_path, {'vllm/a.py': 'f = 1', 'vllm/b.py': 'f = 2'})}"
    [found] = resolve(spec, [contract("a.b", bindings=(twice,))], named=False)
    with pytest.raises(LookupError, match=r"takes f from two files; vllm/b\.py is the second"):
        found.load()


def test_the_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    make_folder(tmp_path)
    (tmp_path / "vllm-0.40.0.dist-info").mkdir()
    (tmp_path / "vllm-0.40.0.dist-info/METADATA").write_text("Name: vllm\nVersion: 0.40.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    implementation = find("vllm", BOUND[0], "host")
    assert implementation.provider == "vllm 0.40.0 (installed)"
    assert implementation.load()(5) == (6, 7)
    assert "vllm" not in sys.modules


def test_a_package_that_is_not_installed(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    for name in ("vllm", "aiter"):
        with pytest.raises(ProviderError, match=rf"{name} is not installed .* give {name}:FILE.whl, {name}:DIR"):
            resolve(name, BOUND, named=False)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("vllm:", "after the colon comes"),
        ("vllm:/nowhere/at/all", "there is no such file or directory"),
        ("vllm:{tmp}/broken.whl", "not a readable wheel or zip"),
        ("vllm:git+https://example.invalid/vllm@main", "only a local repository"),
        ("", "is no provider; there are: optimized, vllm"),
        ("nonsense", "is no provider"),
        ("optimized:x", "is no provider"),
        ("/some/vllm.whl", "say whose it is: vllm:/some/vllm.whl"),
        ("git+/repo@rev", "say whose it is"),
        ("file.py", "say which callable: file.py:NAME"),
        ("file.py:", "the name of the callable is missing"),
        ("file.txt:f", "is no provider"),
        ("module.path:f", "is no provider"),
        ("/nowhere/x.py:f", r"/nowhere/x\.py: there is no such file"),
    ],
)
def test_specs_that_are_refused(tmp_path, spec, reason):
    (tmp_path / "broken.whl").write_bytes(b"PK")
    with pytest.raises(ProviderError, match=reason):
        resolve(spec.format(tmp=tmp_path), CONTRACTS, named=False)


def test_find_names_what_there_is(tmp_path):
    with pytest.raises(ProviderError, match=r"has no nobody for index\.count; it has host, stubbed"):
        find(f"vllm:{make_wheel(tmp_path)}", BOUND[0], "nobody")


# Cost


def test_resolving_imports_neither_torch_nor_triton_nor_what_it_judges(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import torch, triton\ndef f(): pass\n")
    code = f"""
import sys
from oracles.providers import resolve
from tests_contract import CONTRACT
for spec in ("optimized", {f"{path}:f"!r}, {f"vllm:{make_wheel(tmp_path)}"!r}):
    resolve(spec, [CONTRACT], named=True)
print(sorted({{"torch", "triton", "vllm", "json.tool"}} & set(sys.modules)))
"""
    helper = inspect.getsource(contract).replace('"math:sqrt"', '"json.tool:main"')
    text = f"from oracles.contract import Contract\n{helper}\nCONTRACT = contract('a.b')\n"
    (tmp_path / "tests_contract.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
