"""Chunk indices and offsets for chunked linear attention, built on the device without a look from the host.

Programs are owned by sequences: each one adds up the chunks before its sequences and writes their offsets and rows.
Up to 1,024 sequences have programs of their own; of a larger batch, 32 sequences share one. Where adding up all that
is before would take long, from 8,193 sequences on, a launch before it sums the chunks of up to 1,024 spans, so that no
program reads more than the spans' totals and its own span.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from optimized.errors import ContractError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_FEW = 24  # starts of a batch that is counted without NumPy
_MOST_SINGLE = 1024  # sequences of a batch in which each has programs of its own
_MOST_ONE_SPAN = 8192  # sequences of a batch that takes one launch
_WARPS_SINGLE = 2
_MOST_PROGRAMS = 1056  # up to which long sequences' rows are shared out: 8 a multiprocessor of an H200

# Of the kernels. All are powers of two.
_FEW_TILE = tl.constexpr(32)  # sequences added up at once in a small batch,
_SINGLE_TILE = tl.constexpr(256)  # and at a time in a larger one
_SPAN_TILE = tl.constexpr(1024)
_MAX_SPANS = tl.constexpr(1024)
_GROUP = tl.constexpr(32)
_SHORT = tl.constexpr(32)  # chunks up to which the sequences of a group are written together
_STEP = tl.constexpr(8)  # and how many of their chunks at a time
_BLOCK_ROWS = tl.constexpr(256)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_SINGLE_ARGUMENTS = ["cu_seqlens", "chunk_indices", "chunk_offsets", "stride", "num_rows"]
_GROUPED_ARGUMENTS = [*_SINGLE_ARGUMENTS, "span_totals", "num_seqs", "span_size"]


def chunk_metadata(
    *, cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor, chunk_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(chunk_indices, chunk_offsets)`` on the device of ``cu_seqlens``.

    ``cu_seqlens``
        int32 or int64 ``[N + 1]``, cumulative lengths in tokens, any stride and storage offset; never read here.
    ``cu_seqlens_cpu``
        int32 or int64 ``[N + 1]`` on the CPU, any stride: the same lengths. It gives the number of rows ``T``.
    ``chunk_size``
        tokens a chunk, an ``int`` of at least 1. Each value is compiled once for each dtype and each kernel.
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
    starts = cu_seqlens_cpu.numpy()
    num_seqs, num_rows = starts.size - 1, _count_rows(starts, chunk_size, cu_seqlens.dtype)

    chunk_indices = cu_seqlens.new_empty((num_rows, 2))
    if num_seqs == 0:
        return chunk_indices, cu_seqlens.new_zeros((1,), dtype=torch.int64)
    chunk_offsets = cu_seqlens.new_empty((num_seqs + 1,), dtype=torch.int64)
    launch = _launch_single if num_seqs <= _MOST_SINGLE else _launch_grouped
    if cu_seqlens.is_cuda and cu_seqlens.get_device() != torch.cuda.current_device():
        with torch.cuda.device(cu_seqlens.device):
            launch(cu_seqlens, chunk_indices, chunk_offsets, num_seqs, num_rows, chunk_size)
    else:
        launch(cu_seqlens, chunk_indices, chunk_offsets, num_seqs, num_rows, chunk_size)
    return chunk_indices, chunk_offsets


def _refuse_bad_tensors(cu_seqlens: torch.Tensor, cu_seqlens_cpu: torch.Tensor) -> None:
    named = (("cu_seqlens", cu_seqlens), ("cu_seqlens_cpu", cu_seqlens_cpu))
    for name, tensor in named:
        if tensor.dim() != 1:
            raise ContractError(name, tuple(tensor.shape), "the shape must have one dimension")
    for name, tensor in named:
        if tensor.numel() == 0:
            raise ContractError(name, tuple(tensor.shape), "there must be at least one element")
    if cu_seqlens_cpu.numel() != cu_seqlens.numel():
        raise ContractError(
            "cu_seqlens_cpu", cu_seqlens_cpu.numel(), f"the size must be that of cu_seqlens, {cu_seqlens.numel()}"
        )
    for name, tensor in named:
        if tensor.dtype is not torch.int32 and tensor.dtype is not torch.int64:
            raise ContractError(name, str(tensor.dtype).removeprefix("torch."), "the dtype must be int32 or int64")


def _count_rows(starts: npt.NDArray[np.signedinteger], chunk_size: int, dtype: torch.dtype) -> int:
    """Chunks of the host's batch, or a refusal."""
    if starts.size <= _FEW:
        # A dozen NumPy operations on next to nothing cost more than these steps.
        num_rows, largest = 0, starts.size - 2
        for sequence, (begin, end) in enumerate(pairwise(starts.tolist())):
            if end < begin:
                raise _falling(sequence, end - begin)
            count = -((begin - end) // chunk_size)
            num_rows += count
            largest = max(largest, count - 1)
        _refuse_total(int(starts[-1]) - int(starts[0]))
    else:
        num_rows, largest = _count_many(starts, chunk_size)
    limit = _INT32_MAX if dtype is torch.int32 else _INT64_MAX
    if largest > limit:
        name = str(dtype).removeprefix("torch.")
        raise ContractError("cu_seqlens_cpu", largest, f"sequence and chunk numbers must fit {name}")
    return num_rows


def _count_many(starts: npt.NDArray[np.signedinteger], chunk_size: int) -> tuple[int, int]:
    """Chunks of the host's batch, and its largest sequence or chunk number."""
    begins, ends = starts[:-1], starts[1:]
    # Compared, not subtracted: the difference of two int64 can wrap to the wrong sign.
    falls = ends < begins
    if np.count_nonzero(falls):
        sequence = int(falls.argmax())
        raise _falling(sequence, int(ends[sequence]) - int(begins[sequence]))
    total = int(starts[-1]) - int(starts[0])
    _refuse_total(total)
    if total > _INT32_MAX:
        begins, ends = begins.astype(np.int64), ends.astype(np.int64)
    # The floor of the negated length is the negated ceiling. No length, no count and no sum of counts exceeds the
    # total, so all fit the dtype; a chunk size beyond the total changes nothing.
    negated_counts = (begins - ends) // min(chunk_size, max(total, 1))
    num_rows = -int(np.add.reduce(negated_counts, dtype=negated_counts.dtype))
    largest = begins.size - 1
    if num_rows > _INT32_MAX:
        largest = max(largest, -int(negated_counts.min()) - 1)
    return num_rows, largest


def _falling(sequence: int, length: int) -> ContractError:
    return ContractError("cu_seqlens_cpu", length, f"the length of sequence {sequence} must not be negative")


def _refuse_total(total: int) -> None:
    if total > _INT64_MAX:
        raise ContractError("cu_seqlens_cpu", total, "the lengths must sum to at most 2**63 - 1")


def _launch_single(
    cu_seqlens: torch.Tensor,
    chunk_indices: torch.Tensor,
    chunk_offsets: torch.Tensor,
    num_seqs: int,
    num_rows: int,
    chunk_size: int,
) -> None:
    grid = num_seqs, _programs_each(num_seqs, num_rows, 64)
    _single_kernel[grid](
        cu_seqlens, chunk_indices, chunk_offsets, cu_seqlens.stride(0), num_rows, chunk_size, num_warps=_WARPS_SINGLE
    )


def _launch_grouped(
    cu_seqlens: torch.Tensor,
    chunk_indices: torch.Tensor,
    chunk_offsets: torch.Tensor,
    num_seqs: int,
    num_rows: int,
    chunk_size: int,
) -> None:
    stride, num_groups = cu_seqlens.stride(0), _ceil(num_seqs, _GROUP.value)
    if num_seqs <= _MOST_ONE_SPAN:
        span_size, span_totals = num_seqs, chunk_offsets  # Nobody reads totals, so any int64 tensor will do.
    else:
        span_size = _ceil(_ceil(num_seqs, _SPAN_TILE.value), _MAX_SPANS.value) * _SPAN_TILE.value
        num_spans = _ceil(num_seqs, span_size)
        span_totals = cu_seqlens.new_empty((num_spans,), dtype=torch.int64)
        _grouped_kernel[(num_spans,)](
            cu_seqlens, chunk_indices, chunk_offsets, stride, -1, span_totals, num_seqs, span_size, chunk_size
        )
    _grouped_kernel[(num_groups, _programs_each(num_groups, num_rows, 256))](
        cu_seqlens, chunk_indices, chunk_offsets, stride, num_rows, span_totals, num_seqs, span_size, chunk_size
    )


def _programs_each(num_owners: int, num_rows: int, rows_a_program: int) -> int:
    """Programs that share an owner's rows: more than one where more rows than that come to an owner on average."""
    if num_rows <= num_owners * rows_a_program:
        return 1
    wanted = min(_ceil(num_rows, num_owners * rows_a_program), _ceil(num_rows, _BLOCK_ROWS.value))
    return max(1, min(wanted, _MOST_PROGRAMS // num_owners))


def _ceil(dividend: int, divisor: int) -> int:
    # triton.cdiv does the same and takes about 2 us of host time each time.
    return -(-dividend // divisor)


@triton.jit(do_not_specialize=_SINGLE_ARGUMENTS, do_not_specialize_on_alignment=_SINGLE_ARGUMENTS)
def _single_kernel(
    cu_seqlens,
    chunk_indices,
    chunk_offsets,
    stride: tl.int64,
    num_rows: tl.int64,
    CHUNK_SIZE: tl.constexpr,
):
    """One sequence a program; programs of axis 1 share its rows. No program reads what another one writes."""
    seq = tl.program_id(0).to(tl.int64)
    part, num_parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    stride = tl.cast(stride, tl.int64)
    # Loaded first and used last: the loads of the loop do not wait for these.
    begin, end = tl.load(cu_seqlens + seq * stride), tl.load(cu_seqlens + (seq + 1) * stride)
    zero = tl.zeros((), tl.int64)
    if tl.num_programs(0) <= _FEW_TILE:
        # So few that every warp holds them all: the sum needs no barrier.
        start = tl.sum(_chunks_of_tile(cu_seqlens, stride, zero, seq, CHUNK_SIZE, _FEW_TILE)).to(tl.int64)
    else:
        start = _count_chunks(cu_seqlens, stride, zero, seq, CHUNK_SIZE, _SINGLE_TILE)
    count = _chunks_of(begin, end, CHUNK_SIZE).to(tl.int64)
    if part == 0:
        if seq == 0:
            tl.store(chunk_offsets, 0)
        tl.store(chunk_offsets + seq + 1, start + count)
    _write_rows(chunk_indices, seq, start, count, num_rows, part, num_parts)
    if seq + 1 == tl.num_programs(0):
        _write_rows(chunk_indices, tl.full((), -1, tl.int64), start + count, num_rows, num_rows, part, num_parts)


@triton.jit(do_not_specialize=_GROUPED_ARGUMENTS, do_not_specialize_on_alignment=_GROUPED_ARGUMENTS)
def _grouped_kernel(
    cu_seqlens,
    chunk_indices,
    chunk_offsets,
    stride: tl.int64,
    num_rows: tl.int64,
    span_totals,
    num_seqs: tl.int64,
    span_size: tl.int64,
    CHUNK_SIZE: tl.constexpr,
):
    """``num_rows`` of -1: a program writes the total of a span. Else it writes what belongs to ``_GROUP`` sequences.

    A span begins with a group. Programs of axis 1 share the rows of long sequences. No program reads what another one
    of the same launch writes.
    """
    program = tl.program_id(0).to(tl.int64)
    stride = tl.cast(stride, tl.int64)
    if num_rows < 0:
        stop = tl.minimum((program + 1) * span_size, num_seqs)
        total = _count_chunks(cu_seqlens, stride, program * span_size, stop, CHUNK_SIZE, _SPAN_TILE)
        tl.store(span_totals + program, total)
    else:
        first = program * _GROUP
        span = first // span_size
        spans = tl.arange(0, _MAX_SPANS)
        base = tl.sum(tl.load(span_totals + spans, mask=spans < span, other=0))
        base += _count_chunks(cu_seqlens, stride, span * span_size, first, CHUNK_SIZE, _SPAN_TILE)
        _write_group(cu_seqlens, chunk_indices, chunk_offsets, stride, num_seqs, num_rows, first, base, CHUNK_SIZE)


@triton.jit
def _chunks_of(begins, ends, CHUNK_SIZE: tl.constexpr):
    """Chunks of sequences from their starts and ends. A negative length counts as 0: no sum may fall.

    Starts of 32 bits give uint32, which holds every length between two of them, and every sum of chunks up to the last:
    dividing and adding up take half the instructions there. Sums of falling starts wrap.
    """
    # Not (length + size - 1) // size: that sum overflows, and // rounds towards zero.
    if begins.dtype == tl.int32:
        longest: tl.constexpr = min(CHUNK_SIZE, 2**32 - 1)
        lengths = ends.to(tl.uint32, bitcast=True) - begins.to(tl.uint32, bitcast=True)
        return tl.where(ends > begins, (lengths - 1) // tl.full((), longest, tl.uint32) + 1, 0)
    else:
        lengths = ends - begins
        return tl.where(lengths > 0, (lengths - 1) // tl.full((), CHUNK_SIZE, tl.int64) + 1, 0)


@triton.jit
def _count_chunks(cu_seqlens, stride, first, stop, CHUNK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Chunks of the sequences from ``first`` to before ``stop``."""
    # The first tile stands before the loop: there its loads go out together with those of the caller.
    counts = _chunks_of_tile(cu_seqlens, stride, first, stop, CHUNK_SIZE, TILE)
    first += TILE
    while first < stop:
        counts += _chunks_of_tile(cu_seqlens, stride, first, stop, CHUNK_SIZE, TILE)
        first += TILE
    return tl.sum(counts).to(tl.int64)


@triton.jit
def _chunks_of_tile(cu_seqlens, stride, first, stop, CHUNK_SIZE: tl.constexpr, TILE: tl.constexpr):
    seqs = first + tl.arange(0, TILE)
    begins = tl.load(cu_seqlens + seqs * stride, mask=seqs < stop, other=0)
    ends = tl.load(cu_seqlens + (seqs + 1) * stride, mask=seqs < stop, other=0)
    return _chunks_of(begins, ends, CHUNK_SIZE)


@triton.jit
def _write_group(
    cu_seqlens, chunk_indices, chunk_offsets, stride, num_seqs, num_rows, first, base, CHUNK_SIZE: tl.constexpr
):
    """Offsets and rows of a group's sequences, ``base`` chunks before them."""
    part, num_parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    places = tl.arange(0, _GROUP)
    seqs = first + places
    exists = seqs < num_seqs
    begins = tl.load(cu_seqlens + seqs * stride, mask=exists, other=0)
    ends = tl.load(cu_seqlens + (seqs + 1) * stride, mask=exists, other=0)
    counts = _chunks_of(begins, ends, CHUNK_SIZE).to(tl.int64)
    stops = base + tl.cumsum(counts)
    starts = stops - counts
    if part == 0:
        if first == 0:
            tl.store(chunk_offsets, 0)
        tl.store(chunk_offsets + 1 + seqs, stops, mask=exists)
        _write_short(chunk_indices, seqs, starts, tl.where(counts <= _SHORT, counts, 0), num_rows)

    place = tl.min(tl.where(counts > _SHORT, places, _GROUP))
    while place < _GROUP:
        start = tl.sum(tl.where(places == place, starts, 0))
        count = tl.sum(tl.where(places == place, counts, 0))
        _write_rows(chunk_indices, first + place, start, count, num_rows, part, num_parts)
        place = tl.min(tl.where((counts > _SHORT) & (places > place), places, _GROUP))
    if first + _GROUP >= num_seqs:
        _write_rows(
            chunk_indices, tl.full((), -1, tl.int64), base + tl.sum(counts), num_rows, num_rows, part, num_parts
        )


@triton.jit
def _write_short(chunk_indices, seqs, starts, counts, num_rows):
    """The rows of a group's sequences, some chunks of all of them at a time."""
    dtype = chunk_indices.dtype.element_ty
    most, chunk = tl.max(counts), tl.zeros((), tl.int64)
    while chunk < most:
        elements = 2 * chunk + tl.arange(0, 2 * _STEP)[None, :]
        chunks = elements // 2
        rows = starts[:, None] + chunks
        inside = (chunks < counts[:, None]) & (rows >= 0) & (rows < num_rows)
        values = tl.where(elements % 2 == 0, seqs[:, None], chunks)
        tl.store(chunk_indices + 2 * starts[:, None] + elements, values.to(dtype), mask=inside)
        chunk += _STEP


@triton.jit
def _write_rows(chunk_indices, number, start, count, num_rows, part, num_parts):
    """A part of the rows of one sequence, or of the rows behind all sequences, whose number is -1.

    ``start`` is negative where a sum of garbage has wrapped: there nothing is written.
    """
    dtype = chunk_indices.dtype.element_ty
    stop = tl.where(start >= 0, tl.minimum(count, num_rows - start), 0)
    # Places in a block are of 32 bits; only where the block lies is not.
    places = tl.arange(0, 2 * _BLOCK_ROWS)
    chunk = part * _BLOCK_ROWS
    while chunk < stop:
        inside = places // 2 < tl.minimum(stop - chunk, _BLOCK_ROWS).to(tl.int32)
        values = tl.where((places % 2 == 0) | (number < 0), number.to(dtype), chunk.to(dtype) + places // 2)
        tl.store(chunk_indices + 2 * (start + chunk) + places, values.to(dtype), mask=inside)
        chunk += num_parts * _BLOCK_ROWS
