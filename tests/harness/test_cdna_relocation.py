"""Lines of kernels that Triton's cache compiled from another place."""

import importlib.util

import pytest

pytest.importorskip("triton", reason="kernels are compiled with Triton")

from oracles.backends.cdna.relocation import relocated

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def store(pointer):
    tl.store(pointer, 1)
"""


def kernel_in(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(f"kernel_in_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.store


def asm(folder, name):
    return {
        "amdgcn": f'\t.file\t1 "{folder}" "{name}"\n\t.file\t2 "{__file__}"\n\t.loc\t1 7 4 ; {name}:7:4\n',
        "ttir": f'#loc1 = loc("{folder}/{name}":7:4)\n',
        "hsaco": b"",
    }


@pytest.mark.parametrize("old", ["mine.py", "renamed.py"])
def test_a_moved_or_renamed_file_is_called_what_it_is_now(tmp_path, old):
    function = kernel_in(tmp_path / "here" / "mine.py")
    now = tmp_path / "here" / "mine.py"
    found = relocated(asm("/nowhere", old), function)
    assert f'\t.file\t1 "{now}"\n\t.file\t2 "{__file__}"\n' in found["amdgcn"]
    assert found["ttir"] == f'#loc1 = loc("{now}":7:4)\n'


def test_a_file_that_is_where_it_was_stays(tmp_path):
    function = kernel_in(tmp_path / "here" / "mine.py")
    texts = asm(tmp_path / "here", "mine.py")
    assert relocated(texts, function) == texts
