"""Lines of kernels that Triton's cache compiled from another place."""

import importlib.util

import pytest

pytest.importorskip("triton", reason="kernels are compiled with Triton")

import triton
from triton.backends.compiler import GPUTarget

from oracles.backends.cdna.relocation import relocated

CALLEE = """\
import triton
import triton.language as tl


@triton.jit
def _twice__(x):
    return x + tl.cdiv(x, 2)
"""
KERNEL = """

@triton.jit
def store(pointer):
    tl.store(pointer, _twice__(1))
"""
SOURCE = CALLEE + KERNEL
STANDARD = triton.language.standard.__file__


def kernel_in(path, source=SOURCE):
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    name = f"kernel_in_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.store


def asm(folder, name, callee=None):
    """What Triton writes of a kernel, its callee, and a function of its library, shortened to what is read of it."""
    path = f"{folder}/{name}"
    return {
        "amdgcn": f'\t.file\t1 "{folder}" "{name}"\n\t.file\t2 "{STANDARD}"\n'
        f"\t.loc\t1 12 4 ; {name}:12:4\n\t.loc\t2 43 12 ; standard.py:43:12 @[ {name}:7:4 @[ {name}:12:4 ] ]\n",
        "source": f'#loc = loc("{path}":11:1)\n#loc1 = loc("{callee or path}":6:1)\n#loc2 = loc("{STANDARD}":34:1)\n'
        "module {\n  tt.func public @store(%pointer: !tt.ptr<i32>) {\n    tt.return loc(#loc)\n  } loc(#loc)\n"
        '  tt.func private @"a.<locals>._twice____i32"(%x: i32 loc("x"(#loc1))) -> i32 {\n  } loc(#loc1)\n'
        "  tt.func private @triton.language.standard.cdiv__i32_c2(%x: i32) -> i32 {\n  } loc(#loc2)\n} loc(#loc)\n",
        "hsaco": b"",
    }


@pytest.mark.parametrize("old", ["mine.py", "renamed.py"])
@pytest.mark.parametrize("there", [False, True])
def test_a_moved_renamed_or_copied_file_is_called_what_it_is_now(tmp_path, old, there):
    first = tmp_path / "first" / old
    if there:
        kernel_in(first)
    now = tmp_path / "here" / "mine.py"
    found = relocated(asm(first.parent, old), kernel_in(now))
    assert found["amdgcn"] == (
        f'\t.file\t1 "{now}"\n\t.file\t2 "{STANDARD}"\n\t.loc\t1 12 4 ; mine.py:12:4\n'
        "\t.loc\t2 43 12 ; standard.py:43:12 @[ mine.py:7:4 @[ mine.py:12:4 ] ]\n"
    )
    assert str(first) not in found["source"]
    assert found["source"].count(f'"{now}"') == 2


def test_a_file_that_is_where_it_was_stays(tmp_path):
    function = kernel_in(tmp_path / "here" / "mine.py")
    texts = asm(tmp_path / "here", "mine.py")
    assert relocated(texts, function) == texts


def test_what_is_no_jitted_function_stays(tmp_path):
    texts = asm(tmp_path, "gone.py")
    assert relocated(texts, None) == texts


def test_a_function_of_another_file_is_named_by_that_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "callees_of_relocated.py").write_text(CALLEE)
    head = "import triton\nimport triton.language as tl\n"
    for way in ("from callees_of_relocated import _twice__", "import callees_of_relocated"):
        kernel = KERNEL if "from" in way else KERNEL.replace("_twice__", "callees_of_relocated._twice__")
        function = kernel_in(tmp_path / "here" / "mine.py", f"{head}{way}\n{kernel}")
        found = relocated(asm(tmp_path, "first.py", tmp_path / "callees.py"), function)
        assert f'#loc1 = loc("{tmp_path / "callees_of_relocated.py"}":6:1)' in found["source"]
        assert f'#loc = loc("{tmp_path / "here" / "mine.py"}":11:1)' in found["source"]


def test_what_triton_writes_is_understood(tmp_path, monkeypatch):
    """Compiled as one file, and asked of its copy: no line, of the callee neither, is the first one's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # else another run's file may be the first one
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # what it is if it is not set, which Triton 3.9 warns of
    first, copy = kernel_in(tmp_path / "a.py"), kernel_in(tmp_path / "b.py")
    source = triton.compiler.ASTSource(fn=first, signature={"pointer": "*i32"}, constexprs={})
    texts = triton.compile(source, target=GPUTarget("hip", "gfx942", 64)).asm
    assert str(tmp_path / "a.py") in texts["source"]
    found = relocated(texts, copy)
    directives = [line for line in found["amdgcn"].splitlines() if ".file" in line or ".loc" in line]
    assert f'"{tmp_path / "b.py"}"' in "\n".join(directives)
    assert not [line for line in directives if "a.py" in line]
    assert str(tmp_path / "a.py") not in found["source"]
