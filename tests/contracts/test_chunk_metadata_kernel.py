"""The optimized ``chunk_metadata``: right for batches of every size, compiled for AMD and NVIDIA, but once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run_script(name: str, *arguments: str, **environment: str) -> dict:
    """Run a script beside this file in a process of its own and return the JSON on its last line."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.strip(), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interpreted", "least"),
    [
        pytest.param("0", 200, id="machine code"),
        pytest.param("1", 90, id="small tiles", marks=pytest.mark.nightly),
    ],
)
def test_batches_of_every_size_agree_with_the_specification(interpreted, least) -> None:
    summary = run_script("judge_kernel.py", TRITON_INTERPRET=interpreted)
    assert summary["problems"] == []
    assert summary["judged"] >= least
    assert min(summary["kinds"].values()) >= 1


@pytest.mark.parametrize("architecture", ["gfx942", "gfx950"])
def test_at_most_two_compilations_a_dtype(architecture, tmp_path) -> None:
    summary = run_script("count_compilations.py", architecture, TRITON_CACHE_DIR=str(tmp_path))
    assert summary["calls"] >= 600
    assert set(summary["compilations"]) == {"*i32", "*i64"}
    assert max(summary["compilations"].values()) <= 2
    assert len(list(tmp_path.glob("*/*.hsaco"))) == 4


def test_compiles_for_nvidia_sm_90(tmp_path) -> None:
    summary = run_script("compile_for_nvidia.py", TRITON_CACHE_DIR=str(tmp_path))
    both = ["_single_kernel", "_grouped_kernel"]
    assert summary == {"*i32": both, "*i64": both}
