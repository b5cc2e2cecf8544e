"""Chunk indices and offsets for chunked linear attention, built on the device without a look from the host.

One kernel, compiled in two widths. A batch of at most 2,048 sequences takes one launch: some programs write the
offsets, the others write 256 rows each and find their rows' sequences themselves. A larger batch takes a launch before
it that sums the chunks of up to 1,024 spans of sequences, so that each program of the second launch starts where its
own sequences start instead of reading all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from optimized.errors import ContractError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_BLOCK_ROWS = 256


class _Width(NamedTuple):
    """A compiled variant: sequences a tile holds, how many spans of tiles a launch may have, and its warps."""

    block_seqs: int
    max_spans: int
    num_warps: int


_NARROW = _Width(block_seqs=256, max_spans=1, num_warps=4)
_WIDE = _Width(block_seqs=2048, max_spans=1024, num_warps=8)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_RUNTIME_ARGUMENTS = (
    "cu_seqlens",
    "chunk_indices",
    "chunk_offsets",
    "span_totals",
    "stride",
    "num_seqs",
    "num_rows",
    "num_spans",
    "span_size",
    "sums_only",
)


def chunk_metadata(
    *, cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor, chunk_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(chunk_indices, chunk_offsets)`` on the device of ``cu_seqlens``.

    ``cu_seqlens``
        int32 or int64 ``[N + 1]``, cumulative lengths in tokens, any stride and storage offset; never read here.
    ``cu_seqlens_cpu``
        int32 or int64 ``[N + 1]`` on the CPU, any stride: the same lengths. It gives the number of rows ``T``.
    ``chunk_size``
        tokens a chunk, an ``int`` of at least 1. Each value is compiled once for each dtype and width.
    ``chunk_indices``
        ``[T, 2]``, dtype of ``cu_seqlens``: row ``chunk_offsets[i] + t`` is ``(i, t)``, chunk ``t`` of sequence ``i``;
        rows past the device's total are ``(-1, -1)``.
    ``chunk_offsets``
        int64 ``[N + 1]``, in chunks: 0 and the running sum of the device's chunk counts.

    Refused (:class:`ContractError`) before anything is allocated: a tensor that is not one-dimensional, has no
    element or is neither int32 nor int64; sizes that differ; a chunk size that is not an ``int`` of at least 1; a twin
    that is not on the CPU; negative host lengths; host lengths or numbers that do not fit. Any device values are
    memory-safe; negative lengths count as 0, sums past 2**63 - 1 wrap.

    Source of the definition: contracts.md, section 1.1.
    """
    _refuse_bad_tensors(cu_seqlens, cu_seqlens_cpu)
    if not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1:
        raise ContractError("chunk_size", chunk_size, "it must be an int of at least 1")
    if not cu_seqlens_cpu.is_cpu:
        raise ContractError("cu_seqlens_cpu", str(cu_seqlens_cpu.device), "it must be on the CPU")
    # No int64 length is longer than this, and one chunk holds it either way.
    chunk_size = min(chunk_size, _INT64_MAX)
    num_rows = _count_rows(cu_seqlens_cpu.numpy(), chunk_size, cu_seqlens.dtype)

    device = cu_seqlens.device
    chunk_indices = torch.empty((num_rows, 2), dtype=cu_seqlens.dtype, device=device)
    chunk_offsets = torch.empty((cu_seqlens.shape[0],), dtype=torch.int64, device=device)
    if cu_seqlens.is_cuda and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            _launch(cu_seqlens, chunk_indices, chunk_offsets, chunk_size)
    else:
        _launch(cu_seqlens, chunk_indices, chunk_offsets, chunk_size)
    return chunk_indices, chunk_offsets


def _refuse_bad_tensors(cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor) -> None:
    named = (("cu_seqlens", cu_seqlens), ("cu_seqlens_cpu", cu_seqlens_cpu))
    for name, tensor in named:
        if tensor.dim() != 1:
            raise ContractError(name, tuple(tensor.shape), "the shape must have one dimension")
    for name, tensor in named:
        if tensor.shape[0] == 0:
            raise ContractError(name, tuple(tensor.shape), "there must be at least one element")
    if cu_seqlens_cpu.shape[0] != cu_seqlens.shape[0]:
        raise ContractError(
            "cu_seqlens_cpu", cu_seqlens_cpu.shape[0], f"the size must be that of cu_seqlens, {cu_seqlens.shape[0]}"
        )
    for name, tensor in named:
        if tensor.dtype is not torch.int32 and tensor.dtype is not torch.int64:
            raise ContractError(name, str(tensor.dtype).removeprefix("torch."), "the dtype must be int32 or int64")


def _count_rows(starts: npt.NDArray[np.signedinteger], chunk_size: int, dtype: torch.dtype) -> int:
    """Chunks of the host's batch, or a refusal."""
    begins, ends = starts[:-1], starts[1:]
    # Compared, not subtracted: the difference of two int64 can wrap to the wrong sign.
    falls = ends < begins
    if falls.any():
        sequence = int(falls.argmax())
        length = int(ends[sequence]) - int(begins[sequence])
        raise ContractError("cu_seqlens_cpu", length, f"the length of sequence {sequence} must not be negative")
    total = int(starts[-1]) - int(starts[0])
    if total > _INT64_MAX:
        raise ContractError("cu_seqlens_cpu", total, "the lengths must sum to at most 2**63 - 1")
    # The floor of the negated length is the negated ceiling, and nothing overflows on the way.
    negated_counts = np.subtract(begins, ends, dtype=np.int64) // chunk_size
    num_rows = -int(negated_counts.sum())
    limit = _INT32_MAX if dtype is torch.int32 else _INT64_MAX
    if num_rows > limit or begins.size > limit:
        largest = max(begins.size - 1, -int(negated_counts.min(initial=0)) - 1)
        if largest > limit:
            name = str(dtype).removeprefix("torch.")
            raise ContractError("cu_seqlens_cpu", largest, f"sequence and chunk numbers must fit {name}")
    return num_rows


def _launch(
    cu_seqlens: torch.Tensor, chunk_indices: torch.Tensor, chunk_offsets: torch.Tensor, chunk_size: int
) -> None:
    num_seqs, num_rows = chunk_offsets.shape[0] - 1, chunk_indices.shape[0]
    width = _NARROW if num_seqs <= _NARROW.block_seqs else _WIDE
    num_tiles = max(_ceil(num_seqs, width.block_seqs), 1)
    tiles_a_span = _ceil(num_tiles, width.max_spans)
    num_spans = _ceil(num_tiles, tiles_a_span)
    span_totals = chunk_offsets  # With one span nobody reads totals, so any int64 tensor will do.
    if num_spans > 1:
        span_totals = torch.empty((num_spans,), dtype=torch.int64, device=chunk_offsets.device)

    def run(num_programs: int, sums_only: int) -> None:
        _chunk_metadata_kernel[(num_programs,)](
            cu_seqlens,
            chunk_indices,
            chunk_offsets,
            span_totals,
            cu_seqlens.stride(0),
            num_seqs,
            num_rows,
            num_spans,
            tiles_a_span * width.block_seqs,
            sums_only,
            CHUNK_SIZE=chunk_size,
            BLOCK_SEQS=width.block_seqs,
            SEARCH_STEPS=width.block_seqs.bit_length() - 1,
            BLOCK_ROWS=_BLOCK_ROWS,
            MAX_SPANS=width.max_spans,
            num_warps=width.num_warps,
        )

    if num_spans > 1:
        run(num_spans, 1)
    run(num_spans + _ceil(num_rows, _BLOCK_ROWS), 0)


def _ceil(dividend: int, divisor: int) -> int:
    # triton.cdiv does the same and takes about 2 us of host time each time.
    return -(-dividend // divisor)


@triton.jit(do_not_specialize=_RUNTIME_ARGUMENTS, do_not_specialize_on_alignment=_RUNTIME_ARGUMENTS)
def _chunk_metadata_kernel(
    cu_seqlens,
    chunk_indices,
    chunk_offsets,
    span_totals,
    stride: tl.int64,
    num_seqs: tl.int64,
    num_rows: tl.int64,
    num_spans: tl.int64,
    span_size: tl.int64,
    sums_only: tl.int32,
    CHUNK_SIZE: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MAX_SPANS: tl.constexpr,
):
    """A span's programs come first, then one for each block of rows. ``span_size`` is a multiple of ``BLOCK_SEQS``.

    No program reads what another one of the same launch writes, and each row is stored by one program, once.
    """
    program = tl.program_id(0).to(tl.int64)
    stride = tl.cast(stride, tl.int64)
    if sums_only != 0:
        _sum_span(cu_seqlens, span_totals, stride, num_seqs, program, span_size, CHUNK_SIZE, BLOCK_SEQS)
    elif program < num_spans:
        _write_offsets(
            cu_seqlens,
            chunk_offsets,
            span_totals,
            stride,
            num_seqs,
            num_spans,
            program,
            span_size,
            CHUNK_SIZE,
            BLOCK_SEQS,
            MAX_SPANS,
        )
    else:
        _write_rows(
            cu_seqlens,
            chunk_indices,
            span_totals,
            stride,
            num_seqs,
            num_rows,
            num_spans,
            span_size,
            (program - num_spans) * BLOCK_ROWS,
            CHUNK_SIZE,
            BLOCK_SEQS,
            SEARCH_STEPS,
            BLOCK_ROWS,
            MAX_SPANS,
        )


@triton.jit
def _chunk_counts(cu_seqlens, stride, first, num_seqs, CHUNK_SIZE: tl.constexpr, BLOCK_SEQS: tl.constexpr):
    """Chunk counts, int64, of the tile that starts at sequence ``first``; 0 past the last sequence."""
    seqs = first + tl.arange(0, BLOCK_SEQS)
    exists = seqs < num_seqs
    begins = tl.load(cu_seqlens + seqs * stride, mask=exists, other=0).to(tl.int64)
    ends = tl.load(cu_seqlens + (seqs + 1) * stride, mask=exists, other=0).to(tl.int64)
    lengths = ends - begins
    # Not (length + size - 1) // size: that sum overflows, and // rounds towards zero. A negative length counts as 0,
    # which keeps every running sum from falling.
    return tl.where(lengths > 0, (lengths - 1) // tl.full((), CHUNK_SIZE, tl.int64) + 1, 0)


@triton.jit
def _sum_span(
    cu_seqlens, span_totals, stride, num_seqs, span, span_size, CHUNK_SIZE: tl.constexpr, BLOCK_SEQS: tl.constexpr
):
    first = span * span_size
    stop = tl.minimum(first + span_size, num_seqs)
    counts = tl.zeros((BLOCK_SEQS,), tl.int64)
    while first < stop:
        counts += _chunk_counts(cu_seqlens, stride, first, num_seqs, CHUNK_SIZE, BLOCK_SEQS)
        first += BLOCK_SEQS
    tl.store(span_totals + span, tl.sum(counts))


@triton.jit
def _load_span_totals(span_totals, num_spans, MAX_SPANS: tl.constexpr):
    """Totals of all spans but the last, whose total nobody needs; 0 elsewhere."""
    spans = tl.arange(0, MAX_SPANS)
    return tl.load(span_totals + spans, mask=spans + 1 < num_spans, other=0)


@triton.jit
def _write_offsets(
    cu_seqlens,
    chunk_offsets,
    span_totals,
    stride,
    num_seqs,
    num_spans,
    span,
    span_size,
    CHUNK_SIZE: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    MAX_SPANS: tl.constexpr,
):
    if span == 0:
        tl.store(chunk_offsets, 0)
    totals = _load_span_totals(span_totals, num_spans, MAX_SPANS)
    base = tl.sum(tl.where(tl.arange(0, MAX_SPANS) < span, totals, 0))
    first = span * span_size
    stop = tl.minimum(first + span_size, num_seqs)
    while first < stop:
        counts = _chunk_counts(cu_seqlens, stride, first, num_seqs, CHUNK_SIZE, BLOCK_SEQS)
        seqs = first + tl.arange(0, BLOCK_SEQS)
        tl.store(chunk_offsets + 1 + seqs, base + tl.cumsum(counts), mask=seqs < num_seqs)
        base += tl.sum(counts)
        first += BLOCK_SEQS


@triton.jit
def _write_rows(
    cu_seqlens,
    chunk_indices,
    span_totals,
    stride,
    num_seqs,
    num_rows,
    num_spans,
    span_size,
    first_row,
    CHUNK_SIZE: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MAX_SPANS: tl.constexpr,
):
    rows = first_row + tl.arange(0, BLOCK_ROWS)
    stop_row = tl.minimum(first_row + BLOCK_ROWS, num_rows)
    numbers = tl.full((BLOCK_ROWS,), -1, tl.int64)
    chunks = tl.full((BLOCK_ROWS,), -1, tl.int64)

    totals = _load_span_totals(span_totals, num_spans, MAX_SPANS)
    span_ids = tl.arange(0, MAX_SPANS)
    span_ends = tl.cumsum(totals)
    row = first_row
    span = tl.full((), -1, tl.int64)
    while (row < stop_row) & (span + 1 < num_spans):
        # The span that holds ``row``; spans without chunks are stepped over. The maximum ends the loop for any values.
        ended = (span_ends <= row) & (span_ids + 1 < num_spans)
        span = tl.maximum(span + 1, tl.sum(ended.to(tl.int64)))
        base = tl.sum(tl.where(span_ids < span, totals, 0))
        first = span * span_size
        stop = tl.minimum(first + span_size, num_seqs)
        while (first < stop) & (base < stop_row):
            counts = _chunk_counts(cu_seqlens, stride, first, num_seqs, CHUNK_SIZE, BLOCK_SEQS)
            ends = base + tl.cumsum(counts)
            place = _sequence_of_rows(ends, first_row, BLOCK_SEQS, SEARCH_STEPS, BLOCK_ROWS)
            starts = tl.gather(ends - counts, place, 0)
            stop_tile = base + tl.sum(counts)
            inside = (rows >= base) & (rows < stop_tile)
            numbers = tl.where(inside, first + place, numbers)
            chunks = tl.where(inside, rows - starts, chunks)
            base = stop_tile
            first += BLOCK_SEQS
        row = base

    out = chunk_indices + rows * 2
    dtype = chunk_indices.dtype.element_ty
    tl.store(out, numbers.to(dtype), mask=rows < num_rows)
    tl.store(out + 1, chunks.to(dtype), mask=rows < num_rows)


@triton.jit
def _sequence_of_rows(ends, first_row, BLOCK_SEQS: tl.constexpr, SEARCH_STEPS: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """For each row, how many of the tile's (non-falling) chunk ends it has passed, at most ``BLOCK_SEQS - 1``.

    For a row of this tile that is its sequence's place in the tile: ends that are equal belong to empty sequences.
    """
    # Seen from this block of rows, all ends before it are alike and so are all behind it: 32 bits are enough.
    near = tl.minimum(tl.maximum(ends - first_row, 0), BLOCK_ROWS).to(tl.int32)
    rows = tl.arange(0, BLOCK_ROWS)
    passed = tl.zeros((BLOCK_ROWS,), tl.int32)
    for halving in tl.static_range(SEARCH_STEPS):
        step = BLOCK_SEQS >> (halving + 1)
        end = tl.gather(near, passed + (step - 1), 0)
        passed = tl.where(end <= rows, passed + step, passed)
    return passed
