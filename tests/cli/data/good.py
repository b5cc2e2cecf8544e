"""A correct host callable: vectorised torch, with no host read of a device tensor."""

from itertools import pairwise

import torch


def refuse(cu_seqlens, cu_seqlens_cpu, chunk_size):
    for tensor in (cu_seqlens, cu_seqlens_cpu):
        if tensor.dim() != 1 or tensor.numel() == 0 or tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError("cumulative lengths: one dimension, at least one element, int32 or int64")
    if cu_seqlens.numel() != cu_seqlens_cpu.numel():
        raise ValueError("cu_seqlens_cpu: the size must be that of cu_seqlens")
    if chunk_size < 1:
        raise ValueError("chunk_size: at least 1")
    if (cu_seqlens_cpu[1:] < cu_seqlens_cpu[:-1]).any():
        raise ValueError("cu_seqlens_cpu: a length is negative")


def chunk_metadata(cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    starts = cu_seqlens_cpu.tolist()
    rows = sum(-(-(end - begin) // chunk_size) for begin, end in pairwise(starts))
    device = cu_seqlens.device
    lengths = cu_seqlens[1:].to(torch.int64) - cu_seqlens[:-1].to(torch.int64)
    counts = lengths // chunk_size + (lengths % chunk_size != 0).to(torch.int64)
    offsets = torch.zeros(cu_seqlens.numel(), dtype=torch.int64, device=device)
    torch.cumsum(counts, 0, out=offsets[1:])
    if not rows or not counts.numel():
        return torch.empty((rows, 2), dtype=cu_seqlens.dtype, device=device), offsets
    row = torch.arange(rows, device=device)
    sequence = torch.searchsorted(offsets[1:].contiguous(), row, right=True)
    inside = sequence < counts.numel()
    chunk = row - offsets[sequence.clamp(max=counts.numel() - 1)]
    pair = torch.stack((torch.where(inside, sequence, -1), torch.where(inside, chunk, -1)), 1)
    return pair.to(cu_seqlens.dtype), offsets
