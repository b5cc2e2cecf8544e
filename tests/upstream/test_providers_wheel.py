"""The released vLLM wheel: its functions come to life without vLLM, and say what they needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import sys
import torch
from oracles.contract import Binding, Contract
from oracles.providers import resolve

DEVICE = "vllm/models/kimi_k3/amd/kda_metadata.py"
HOST = "vllm/third_party/flash_linear_attention/ops/index.py"
BINDINGS = (
    Binding(project="vllm", name="device", symbols={DEVICE: ("prepare_chunk_metadata_device",)}, runs="triton",
            adapt=lambda names: names["prepare_chunk_metadata_device"]),
    Binding(project="vllm", name="host", symbols={HOST: ("prepare_chunk_indices", "prepare_chunk_offsets")},
            runs="host", adapt=lambda names: lambda cu, _, size: (names["prepare_chunk_indices"](cu, size),
                                                     names["prepare_chunk_offsets"](cu, size)),
            follow=("vllm.third_party.flash_linear_attention.ops.utils",)),
    Binding(project="vllm", name="gone", symbols={HOST: ("no_such_function",)}, runs="host", adapt=dict),
)
CONTRACT = Contract(family="a", name="b", section="1", summary="", inputs=(), outputs=(), domain=lambda s: {},
                    resample=lambda *_: {}, expected=lambda i: None, traits=lambda i: frozenset(), optimized="m:f",
                    runs="host", bindings=BINDINGS)
*found, gone = resolve(f"vllm:{sys.argv[1]}", [CONTRACT], named=True)
print(gone.unsupported)
for implementation in found:
    function = implementation.load()
    cu = torch.tensor([0, 64, 64 + 65], dtype=torch.int32)
    indices, offsets = function(cu, cu.clone(), 64)
    print(implementation.provider.split()[0], indices.tolist(), offsets.tolist(), implementation.load.report.missing)
print("vllm" in sys.modules)
"""


@pytest.mark.upstream
def test_both_chunk_builders_of_the_wheel(released):
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(released)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = "[[0, 0], [1, 0], [1, 1]] [0, 1, 3]"
    assert done.stdout.splitlines() == [
        "not in this release: vllm/third_party/flash_linear_attention/ops/index.py has no no_such_function",
        f"vllm {rows} []",
        f"vllm {rows} []",
        "False",
    ], done.stderr
