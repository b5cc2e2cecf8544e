"""Every small batch, one contract after the other: no luck is needed where all inputs are tried.

The whole of it is ``nightly``: batches of up to three requests with lengths 0 to 3. Every run tries those of up to one
request with lengths 0 and 1; `oracles check` walks small scopes of its own besides.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WHOLE = {
    "sparse_indptr": 8_738,
    "dense_page_indices": 765,
    "state_columns": 2_295,
    "stage_decode_state": 1_530,
    "split_decodes_and_prefills": 34_952,
    "spec_token_partition": 585,
}
"""Inputs with up to three requests of lengths 0 to 3."""

FEW = {
    "sparse_indptr": 10,
    "dense_page_indices": 27,
    "state_columns": 81,
    "stage_decode_state": 54,
    "split_decodes_and_prefills": 40,
    "spec_token_partition": 5,
}
"""Inputs with up to one request of lengths 0 and 1."""


def judged(requests: int, length: int, *names: str) -> dict:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, str(HERE / "judge_every_small_batch.py"), "gfx942", str(requests), str(length), *names],
        env={**inherited, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip(), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_smallest_batches() -> None:
    assert judged(1, 1, *FEW) == {name: {"judged": count, "problems": []} for name, count in FEW.items()}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_every_batch_of_three_requests(name) -> None:
    assert judged(3, 3, name) == {name: {"judged": WHOLE[name], "problems": []}}
