"""The six faults that other tools miss or blur, in two kernels, and nothing in these kernels without a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOUND = {
    ("chunks", "mask <="): "out_of_bounds_write:chunk_indices",
    ("chunks", "off-by-one block"): "unwritten:chunk_indices",
    ("chunks", "`other` dropped"): "uninitialised_read:chunk_indices",
    ("chunks", "row stride product in int32"): "out_of_bounds_read:cu_seqlens",
    ("chunks", "store one past the end, visible values right"): "out_of_bounds_write:chunk_offsets",
    ("chunks", "race between programs"): "race:chunk_offsets",
    ("gather", "mask <="): "out_of_bounds_read:pool",
    ("gather", "off-by-one block"): "unwritten:gathered",
    ("gather", "`other` dropped"): "uninitialised_read:totals",
    ("gather", "row stride product in int32"): "out_of_bounds_read:pool",
    ("gather", "store one past the end, visible values right"): "out_of_bounds_write:totals",
    ("gather", "race between programs"): "race:totals",
}


def judge_kernels(here: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the script in a process of its own, because it needs the interpreter."""
    paths = [str(here.parents[1]), str(here), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(here / "judge_kernels.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, list)
    return result


def test_all_six_are_found_in_both_kernels(here: Path) -> None:
    rows = judge_kernels(here, "--cases", "400", "--correct", "60")
    faulty = {(row["kernel"], row["fault"]): row for row in rows if row["fault"]}
    assert set(faulty) == set(FOUND)
    for name, row in faulty.items():
        print(name, row["cases"], *(f"{kind}:{where}" for kind, where, _ in row["found"]))
        assert FOUND[name] in [f"{kind}:{where}" for kind, where, _ in row["found"]]
    correct = [row for row in rows if not row["fault"]]
    assert [(row["kernel"], row["cases"], row["found"]) for row in correct] == [
        ("chunks", 60, []),
        ("gather", 60, []),
    ]


@pytest.mark.nightly
@pytest.mark.timeout(3600)  # 10,000 cases of a nightly run take longer than the usual limit of a test
def test_nothing_is_found_in_the_correct_kernels(here: Path) -> None:
    number = 10_000
    rows = judge_kernels(here, "--cases", "0", "--correct", str(number))
    correct = [row for row in rows if not row["fault"]]
    assert [(row["cases"], row["found"]) for row in correct] == [(number, []), (number, [])]
