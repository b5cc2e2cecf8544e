"""`oracles isa`: what it shows of a kernel's machine code, and what it refuses."""

import json
import re

import pytest


def test_a_kernel_is_described_and_listed(oracles):
    ended = oracles.run("isa", "chunk_metadata.chunk_metadata", "--arch", "gfx950", "--lines")
    assert (ended.code, ended.err) == (0, "")
    head, *kernels = re.split(r"^(?=_\w+kernel\()", ended.out, flags=re.MULTILINE)
    assert head.startswith("chunk_metadata.chunk_metadata | this project: chunk_metadata | gfx950\n")
    assert re.findall(r"^  input +cu_seqlens (int\d+)\[", head, re.MULTILINE) == ["int32", "int64"]
    assert [kernel.partition(", chunk_indices")[0] for kernel in kernels] == [
        "_single_kernel(cu_seqlens: *i32",
        "_single_kernel(cu_seqlens: *i64",
    ]
    for kernel in kernels:
        said = dict(re.findall(r"^  ([\w-]+) {2,}(.*)$", kernel, re.MULTILINE))
        assert re.fullmatch(r"grid \d+x1x1, \d+ waves? a workgroup", said["launch"])
        assert re.fullmatch(r"\d+ VGPRs, \d+ SGPRs", said["registers"])
        assert re.fullmatch(r"\d+ bytes", said["LDS"])
        assert said["scratch"] == "0 bytes a lane, 0 VGPRs and 0 SGPRs spilled"
        total, mix = said["instructions"].split(": ")
        assert int(total) == sum(map(int, re.findall(r" (\d+)", mix)))
        way = re.fullmatch(
            r"(buffer and )?global; (\d+) of (\d+) accesses by a 64-bit address of each lane", said["addressing"]
        )
        assert int(way[2]) <= int(way[3])
        assert re.fullmatch(r"\d+ vector instructions for integers of 64 bits", said["64-bit"])
        listed = re.findall(r"^  [> ] *(\d+)  \S+.*$", kernel, re.MULTILINE)
        assert listed == [str(number) for number in range(int(total))]
        assert re.search(r"^  > +\d+ ", kernel, re.MULTILINE), "the targets of branches are marked"
        assert re.search(r"  s_load_dword\S* s\S+, s\[0:1\], 0x0 +chunk_metadata\.py:\d+  def _single_kernel", kernel)
        assert re.search(r"  wait +s_waitcnt vmcnt\(0\)", kernel)


def test_an_implementation_without_kernels_has_nothing_to_show(in_process):
    code, out, err = in_process("isa", "chunk_metadata.mamba_chunk_layout")
    assert (code, out) == (3, "")
    assert err == (
        "chunk_metadata.mamba_chunk_layout | this project: mamba_chunk_layout | gfx942: it launches no Triton kernel\n"
    )


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("raise IndexError('so there')", "2 calls raised IndexError: so there"),
        ("os._exit(7)", "the process that compiles ended with 7"),
    ],
)
def test_a_call_that_ends_early_is_told(in_process, tmp_path, end, told):
    body = f"def mine(*, cu_seqlens, cu_seqlens_cpu, chunk_size):\n    triton.cdiv(chunk_size, 2)\n    {end}\n"
    (tmp_path / "mine.py").write_text(f"import os\n\nimport triton\n\n\n{body}")
    code, _, err = in_process("isa", "chunk_metadata.chunk_metadata", "--impl", "mine.py:mine")
    assert code == 3
    assert f"mine.py: mine | gfx942: {told}\n" in err


def test_a_file_that_cannot_be_loaded_is_told_once(in_process, tmp_path):
    kernel = "import triton\nimport no_module_here\n\n\ndef mine(**inputs):\n    triton.cdiv(1, 2)\n"
    (tmp_path / "mine.py").write_text(kernel)
    code, out, err = in_process("isa", "chunk_metadata.chunk_metadata", "--impl", "mine.py:mine")
    assert (code, out) == (3, "")
    said = "ModuleNotFoundError: No module named 'no_module_here', at mine.py:2: import no_module_here"
    assert err == f"chunk_metadata.chunk_metadata | mine.py: mine | gfx942: could not be loaded: {said}\n"


def test_what_is_refused(in_process, tmp_path):
    code, _, err = in_process("isa", "nonsense")
    assert code == 2
    assert "nonsense" in err
    code, _, err = in_process("isa", "chunk_metadata", "--arch", "gfx1100")
    assert code == 2
    assert "'gfx1100' is not one of 'gfx942', 'gfx950'" in err
    case = tmp_path / "case.json"
    inputs = {"query_start_loc": {"dtype": "int32", "shape": [1], "data": [0]}, "block_m": 1}
    case.write_text(json.dumps({"schema": 1, "contract": "chunk_metadata.causal_conv1d_metadata", "inputs": inputs}))
    code, _, err = in_process("isa", "chunk_metadata.chunk_metadata", "--case", str(case))
    assert code == 2
    assert "its contract is chunk_metadata.causal_conv1d_metadata, which chunk_metadata.chunk_metadata does not" in err
