"""A correct ``chunk_metadata`` in plain torch, in small steps. Each planted fault replaces one step or wraps the whole.

Values of the device tensor are never looked at by the host: all that depends on them stays in tensors.
"""

from __future__ import annotations

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Everything that host-visible facts show to be wrong."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size} must be at least 1")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape != cu_seqlens_cpu.shape or not cu_seqlens.numel():
        raise ValueError(f"cu_seqlens: {list(cu_seqlens.shape)}, {list(cu_seqlens_cpu.shape)} must be the same [N+1]")
    if cu_seqlens.dtype not in INTEGERS or cu_seqlens_cpu.dtype not in INTEGERS:
        raise ValueError(f"cu_seqlens: {cu_seqlens.dtype}, {cu_seqlens_cpu.dtype} must be int32 or int64")
    if bool((cu_seqlens_cpu.diff() < 0).any()):
        raise ValueError("cu_seqlens_cpu: lengths must not be negative")


def chunk_counts(starts, chunk_size):
    """Chunks of each sequence, int64; the last one may be partial."""
    starts = starts.to(torch.int64)
    # The floor of the negated length is the negated ceiling, and no sum overflows on the way.
    return -torch.div(starts[:-1] - starts[1:], chunk_size, rounding_mode="floor")


def offsets_of(counts):
    """0 and the running sum."""
    offsets = counts.new_zeros(counts.shape[0] + 1)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets


def rows_of(offsets, num_rows):
    """The table ``[T, 2]`` in int64: -1 past the device's total."""
    rows = torch.arange(num_rows, device=offsets.device)
    numbers = torch.searchsorted(offsets[1:].contiguous(), rows, right=True)
    table = torch.stack([numbers, rows - offsets[numbers]], dim=1)
    return table.masked_fill((rows >= offsets[-1])[:, None], -1)


def count_rows(cu_seqlens_cpu, chunk_size):
    """T, from the host twin."""
    return int(chunk_counts(cu_seqlens_cpu, chunk_size).sum())


def chunk_metadata(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """All steps together."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    offsets = offsets_of(chunk_counts(cu_seqlens, chunk_size))
    table = rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size))
    return table.to(cu_seqlens.dtype), offsets
