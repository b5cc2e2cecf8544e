"""Kernels of vLLM on the emulated chips: what they write is what a plain loop says, and nothing is reported."""

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

from oracles.backends.cdna.ir import ARCHITECTURES

INPUTS = 200 if os.environ.get("ORACLES_NIGHTLY") == "1" else 6
"""Inputs a kernel and architecture. The first ones take the edges in turn: no request, counts around those of lanes."""

FILES = (
    "chunk_metadata",
    "page_indices",
    "global_index",
    "sparse_lengths",
    "state_columns",
    "block_tables",
    "slot_mappings",
)
MODULES = [runpy.run_path(str(Path(__file__).with_name(f"{name}.py"))) for name in FILES]
KERNELS = [pytest.param(module, name, id=name) for module in MODULES for name in module["DRAWS"]]


@pytest.mark.upstream
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("module", "name"), KERNELS)
def test_a_kernel_writes_what_a_loop_says(released, lifted, emulate, draw, architecture, module, name):
    kernel = lifted(released, module)
    instructions = workgroups = 0
    for number in range(INPUTS):
        drawn = draw(module, name, number)
        outputs, reports, seen = emulate(kernel, architecture, drawn, number)
        told = f"input {number} of {name}: {drawn}"
        assert [str(report) for report in reports] == [], told
        for output, expected in module["answer"](drawn).items():
            np.testing.assert_array_equal(outputs[output], expected, err_msg=f"{output} of {told}")
        assert seen.launches == 1
        instructions += seen.instructions
        workgroups += seen.workgroups
    assert workgroups > INPUTS
    print(f"{name} on {architecture}: {INPUTS} inputs, {workgroups} workgroups, {instructions} instructions")


FAULTS = [
    # vLLM says of this annotation that a product wraps around without it.
    ("state_columns", 3, ("stride_0: tl.int64,", "stride_0,"), "out_of_bounds_read:table", "vals = tl.load("),
    (
        "chunk_metadata",
        1,
        ("is_seq = offs_n < N", "is_seq = offs_n <= N"),
        "out_of_bounds_read:starts",
        "eos = tl.load(",
    ),
    ("slot_mappings", 2, ("mask=offset < end_idx)", "mask=offset <= end_idx)"), "race:mapping", "tl.store("),
]


@pytest.mark.upstream
@pytest.mark.parametrize(("name", "number", "edit", "key", "line"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_in_a_kernel_is_reported_with_its_line(released, lifted, emulate, draw, name, number, edit, key, line):
    module = MODULES[FILES.index(name)]
    _, reports, _ = emulate(lifted(released, module, edit), "gfx942", draw(module, name, number), number)
    assert [report.key for report in reports] == [key]
    assert f": {line}" in reports[0].detail
