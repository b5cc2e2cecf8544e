"""A correct ``chunk_metadata`` as one simple Triton kernel, with places at which a fault can be switched on.

Each program writes ``ROWS`` rows and looks at all sequences for that, a tile at a time; the first one writes the
offsets too. ``FAULT`` is a compile-time string, so the kernel with ``FAULT == ""`` contains no fault at all.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from correct_host import count_rows, refuse

ROWS, SEQS = 64, 128


@triton.jit
def counts_of(cu, first, stride, num_seqs, CHUNK: tl.constexpr, SEQS: tl.constexpr, FAULT: tl.constexpr):
    seqs = first + tl.arange(0, SEQS).to(tl.int64)
    exists = seqs < num_seqs
    if FAULT == "load mask <=":
        exists = seqs <= num_seqs
    if FAULT == "stride in int32":
        begin = tl.load(cu + seqs.to(tl.int32) * tl.cast(stride, tl.int32), mask=exists, other=0).to(tl.int64)
    elif FAULT == "stride ignored":
        begin = tl.load(cu + seqs, mask=exists, other=0).to(tl.int64)
    else:
        begin = tl.load(cu + seqs * stride, mask=exists, other=0).to(tl.int64)
    if FAULT == "other dropped":
        end = tl.load(cu + (seqs + 1) * stride, mask=exists).to(tl.int64)
    else:
        end = tl.load(cu + (seqs + 1) * stride, mask=exists, other=0).to(tl.int64)
    if FAULT == "gaps read":
        # All bytes from the first to the last element, of which only the elements are used.
        tl.load(cu + tl.arange(0, SEQS), mask=tl.arange(0, SEQS) <= num_seqs * stride)
    if FAULT == "partial chunk dropped":
        return tl.where(end > begin, (end - begin) // CHUNK, 0)
    return tl.where(end > begin, (end - begin - 1) // CHUNK + 1, 0)


@triton.jit
def chunk_kernel(
    cu, indices, offsets, stride, num_seqs, num_rows,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, SEQS: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    rows = program * ROWS + tl.arange(0, ROWS)
    if FAULT == "off-by-one block":
        rows = (program + 1) * ROWS + tl.arange(0, ROWS)
    numbers = tl.zeros((ROWS,), tl.int64)
    starts = tl.zeros((ROWS,), tl.int64)
    base = tl.zeros((), tl.int64)
    for first in range(0, num_seqs, SEQS):
        counts = counts_of(cu, first, stride, num_seqs, CHUNK, SEQS, FAULT)
        ends = base + tl.cumsum(counts)
        ended = ends[None, :] <= rows[:, None]
        numbers += tl.sum(ended.to(tl.int64), axis=1)
        starts = tl.maximum(starts, tl.max(tl.where(ended, ends[None, :], 0), axis=1))
        seqs = first + tl.arange(0, SEQS)
        if program == 0:
            tl.store(offsets + 1 + seqs, ends, mask=seqs < num_seqs)
        if FAULT == "base not carried":
            base = tl.sum(counts)
        else:
            base += tl.sum(counts)
    if program == 0:
        tl.store(offsets, 0)
        if FAULT == "one past the end":
            tl.store(offsets + num_seqs + 1, base)
    elif FAULT == "race":
        base = tl.load(offsets + num_seqs)
    keep = rows < num_rows
    if FAULT == "store mask <=":
        keep = rows <= num_rows
    if FAULT == "tail unwritten":
        keep = rows < tl.minimum(base, num_rows)
    dtype = indices.dtype.element_ty
    tl.store(indices + rows * 2, tl.where(rows < base, numbers, -1).to(dtype), mask=keep)
    tl.store(indices + rows * 2 + 1, tl.where(rows < base, rows - starts, -1).to(dtype), mask=keep)


def launch(cu_seqlens, indices, offsets, chunk_size, fault="", rows=ROWS, grid=None):
    """One launch on outputs that exist already; at least one program, which writes the offsets."""
    num_seqs, num_rows = cu_seqlens.shape[0] - 1, indices.shape[0]
    grid = grid or (max(triton.cdiv(num_rows, rows), 1),)
    chunk_kernel[grid](
        cu_seqlens, indices, offsets, cu_seqlens.stride(0), num_seqs, num_rows,
        CHUNK=chunk_size, ROWS=rows, SEQS=SEQS, FAULT=fault,
    )  # fmt: skip


def chunk_metadata(*, cu_seqlens, cu_seqlens_cpu, chunk_size, fault=""):
    """The whole call: refuse, allocate, launch."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    num_rows = count_rows(cu_seqlens_cpu, chunk_size)
    indices = torch.empty((num_rows, 2), dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    offsets = torch.empty_like(cu_seqlens, dtype=torch.int64, memory_format=torch.contiguous_format)
    launch(cu_seqlens, indices, offsets, chunk_size, fault)
    return indices, offsets
