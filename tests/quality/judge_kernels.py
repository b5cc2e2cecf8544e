"""Script: two correct kernels and the six faults in each, on one backend; prints JSON, or a table with ``--table``.

``TRITON_INTERPRET`` is read when Triton is imported, so this is a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import chosen_backend  # first, see there
import correct_kernel
import gather_kernel
import torch

from oracles.arrays import Array, Inputs
from oracles.check import Subject, judge
from oracles.contract import Contract, Refused
from oracles.contracts import by_name
from oracles.domain import Sampler
from oracles.providers.base import Implementation
from oracles.verdict import Failure, Recompiled

MOST_ROWS = 300
"""Inputs with more chunks are left out: the interpreter takes a millisecond for some dozen rows."""

CHUNKS = by_name("chunk_metadata.chunk_metadata")
FAULTS = {
    "mask <=": ("store mask <=", "mask <="),
    "off-by-one block": ("off-by-one block", "off-by-one block"),
    "`other` dropped": ("other dropped", "other dropped"),
    "row stride product in int32": ("stride in int32", "stride in int32"),
    "store one past the end, visible values right": ("one past the end", "one past the end"),
    "race between programs": ("race", "race"),
}
"""Name of a fault -> what switches it on in the chunk kernel and in the gather kernel."""


def subject(kernel: str, fault: str) -> Subject:
    """A kernel with a fault, ready to be judged."""
    contract, function = {
        "chunks": (CHUNKS, partial(correct_kernel.chunk_metadata, fault=fault)),
        "gather": (gather_kernel.CONTRACT, gather_kernel.with_fault(fault)),
    }[kernel]
    return Subject(contract, _implementation(contract, function), function, chosen_backend.BACKEND)


def _implementation(contract: Contract, function: Callable[..., Any]) -> Implementation:
    return Implementation(
        spec=contract.name, provider="tests", name=contract.name, contract=contract.full_name,
        runs="triton", load=lambda: function,
    )  # fmt: skip


def inputs_of(contract: Contract, seed: int) -> Iterator[Inputs]:
    """The sampled inputs of a contract on which a kernel runs at all, without the few slow ones."""
    index = 0
    while True:
        inputs = contract.domain(Sampler(seed, index))
        index += 1
        if isinstance(contract.expected(inputs), Refused) or _rows(inputs) > MOST_ROWS:
            continue
        yield inputs


def _rows(inputs: Inputs) -> int:
    twin, chunk_size = inputs.get("cu_seqlens_cpu"), inputs.get("chunk_size")
    if not isinstance(twin, Array) or not isinstance(chunk_size, int):
        return 0
    lengths = twin.data[1:] - twin.data[:-1]
    return int((-(-lengths // chunk_size)).sum())


def first_failure(kernel: str, fault: str, cases: int, seed: int = 0) -> tuple[int, list[Failure]]:
    """How many cases it took, and the failures of that case; all of them and nothing, where none failed."""
    judged = subject(kernel, fault)
    for number, inputs in zip(range(1, cases + 1), inputs_of(judged.contract, seed), strict=False):
        # Freshness is about memory of earlier calls, which a kernel has none of, and these kernels are simple: the JIT
        # specialises them on all that it can, which G6 does not allow and is not among the six.
        failures = [item for item in judge(judged, inputs, fresh=False) if not isinstance(item, Recompiled)]
        if failures:
            return number, failures
    return cases, []


def main() -> int:
    chosen_backend.BACKEND.prepare()
    torch.set_num_threads(1)
    rows = []
    for kernel, which in (("chunks", 0), ("gather", 1)):
        for fault, switches in FAULTS.items():
            number, failures = first_failure(kernel, switches[which], chosen_backend.OPTIONS.cases)
            found = [(item.kind, item.where, item.detail) for item in failures]
            rows.append({"kernel": kernel, "fault": fault, "cases": number, "found": found})
        if chosen_backend.OPTIONS.correct:
            number, failures = first_failure(kernel, "", chosen_backend.OPTIONS.correct)
            found = [(item.kind, item.where, item.detail) for item in failures]
            rows.append({"kernel": kernel, "fault": "", "cases": number, "found": found})
    print("\n".join(as_table(rows)) if chosen_backend.OPTIONS.table else json.dumps(rows))
    return 0


def as_table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows of a Markdown table."""
    lines = ["| fault | kernel | found as | after |", "|---|---|---|---|"]
    for row in rows:
        kinds = ", ".join(f"`{kind}` of `{where}`" for kind, where, _ in row["found"]) or "nothing"
        number = f"{row['cases']} case{'s' * (row['cases'] != 1)}"
        lines.append(f"| {row['fault'] or 'none: the correct kernel'} | {row['kernel']} | {kinds} | {number} |")
    details = [f"{row['kernel']}, {row['fault']}: {row['found'][0][2]}" for row in rows if row["found"]]
    return [*lines, "", *details]


if __name__ == "__main__":
    sys.exit(main())
