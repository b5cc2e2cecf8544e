"""A row gather of the kind block tables need, its contract for these tests alone, and six faults to switch on.

``gathered[r, c] = pool[table[r], c]`` and ``totals[r]`` is the sum of that row. A program writes ``COLUMNS`` columns of
a row; the first program of a row sums all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from oracles.arrays import Array, Inputs, array
from oracles.contract import Contract, Expected, Input, Output, Values
from oracles.domain import Source

COLUMNS = 4


@triton.jit
def gather_kernel(
    table, pool, gathered, totals, rows, stride, width,
    COLUMNS: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    if FAULT == "off-by-one block":
        part += 1
    source = tl.load(table + row)
    start = pool + source.to(tl.int64) * stride
    if FAULT == "stride in int32":
        start = pool + source * tl.cast(stride, tl.int32)
    lanes = part * COLUMNS + tl.arange(0, COLUMNS)
    keep = lanes < width
    if FAULT == "mask <=":
        keep = lanes <= width
    tl.store(gathered + row * width + lanes, tl.load(start + lanes, mask=keep, other=0), mask=keep)
    total = tl.zeros((), tl.int64)
    for first in range(0, width, COLUMNS):
        lanes = first + tl.arange(0, COLUMNS)
        if FAULT == "other dropped":
            total += tl.sum(tl.load(start + lanes, mask=lanes < width).to(tl.int64))
        else:
            total += tl.sum(tl.load(start + lanes, mask=lanes < width, other=0).to(tl.int64))
    if FAULT == "race":
        # Each program of a row leaves its own number of columns in front of the total that the first one writes.
        tl.store(totals + row, total + tl.program_id(1))
    if tl.program_id(1) == 0:
        tl.store(totals + row, total)
        if FAULT == "one past the end" and row == 0:
            tl.store(totals + rows, total)


def gather(*, table: torch.Tensor, pool: torch.Tensor, fault: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = table.shape[0], pool.shape[1]
    gathered = torch.empty((rows, width), dtype=pool.dtype, device=table.device)
    totals = torch.empty((rows,), dtype=torch.int64, device=table.device)
    grid = (rows, max(triton.cdiv(width, COLUMNS), 1))
    gather_kernel[grid](
        table, pool, gathered, totals, rows, pool.stride(0), width,
        COLUMNS=COLUMNS, FAULT=fault,
    )  # fmt: skip
    return gathered, totals


def with_fault(fault: str) -> Callable[..., Any]:
    return partial(gather, fault=fault)


def domain(source: Source) -> Inputs:
    """A pool of rows in any layout, and ids of its rows."""
    blocks, width = source.integer(1, 5, near=(1, 2, 3)), source.integer(0, 9, near=(1, 2, 4, 5, 8))
    values = [[1 + source.integer(0, 99) for _ in range(width)] for _ in range(blocks)]
    rows = source.integer(0, 6)
    ids = [source.integer(0, blocks - 1, near=(blocks - 1,)) for _ in range(rows)]
    pool = np.array(values, np.int32).reshape(blocks, width)
    return {"table": array(np.array(ids, np.int32), "int32"), "pool": source.view(pool, "int32")}


def expected(inputs: Inputs) -> Expected:
    table, pool = inputs["table"], inputs["pool"]
    assert isinstance(table, Array)
    assert isinstance(pool, Array)
    rows = [pool.data[block] for block in table.data.tolist()]
    gathered = np.array(rows, np.int32).reshape(len(rows), pool.shape[1])
    return Values({"gathered": gathered, "totals": np.array([row.sum() for row in rows], np.int64)})


CONTRACT = Contract(
    family="quality",
    name="gather",
    section="0.1",
    summary="rows of a pool, by a table of their ids",
    inputs=(
        Input(name="table", role="device", doc="int32 [R], ids of rows of the pool"),
        Input(name="pool", role="device", doc="int32 [B, W], any row stride"),
    ),
    outputs=(Output(name="gathered", doc="int32 [R, W]"), Output(name="totals", doc="int64 [R]")),
    domain=domain,
    resample=lambda inputs: (),
    expected=expected,
    traits=lambda inputs: frozenset(),
    optimized="",
    runs="triton",
)
