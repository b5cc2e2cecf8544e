"""Wrong values, shapes, dtypes and refusals: the correct steps of ``correct_host`` with one of them replaced."""

from __future__ import annotations

import torch
from correct_host import chunk_counts, chunk_metadata, count_rows, offsets_of, refuse, rows_of


def returns_zeros(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return torch.zeros_like(indices), torch.zeros_like(offsets)


def echoes_an_input(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, _ = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return indices, cu_seqlens.to(torch.int64, copy=True)


def renumbers_after_empty_sequences(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    begins = (indices[:, 1] == 0).to(torch.int64)
    return torch.stack([begins.cumsum(0) - 1, indices[:, 1]], 1).to(indices.dtype), offsets


def drops_the_last_partial_chunk(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    offsets = offsets_of(cu_seqlens.to(torch.int64).diff() // chunk_size)
    table = rows_of(offsets, int((cu_seqlens_cpu.to(torch.int64).diff() // chunk_size).sum()))
    return table.to(cu_seqlens.dtype), offsets


def one_chunk_too_many_for_whole_ones(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    offsets = offsets_of(cu_seqlens.to(torch.int64).diff() // chunk_size + 1)
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def counts_from_zero(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Takes for granted that the first start is 0."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    starts = cu_seqlens.clone()
    starts[:1] = 0
    offsets = offsets_of(chunk_counts(starts, chunk_size))
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def follows_the_host(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Both outputs from the host's lengths, which are the device's only as long as nobody disagrees."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    twin = cu_seqlens_cpu.to(cu_seqlens.dtype).to(cu_seqlens.device)
    return chunk_metadata(cu_seqlens=twin, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def sums_in_32_bits(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    counts = chunk_counts(cu_seqlens.to(torch.int32), chunk_size)
    offsets = offsets_of(counts.to(torch.int32)).to(torch.int64)
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def reads_int64_as_int32(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Right for int32 only: takes the first N+1 32-bit words, whatever the width."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    words = cu_seqlens.clone(memory_format=torch.contiguous_format).view(torch.int32)[: cu_seqlens.shape[0]]
    offsets = offsets_of(chunk_counts(words, chunk_size))
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def forgets_the_base_after_128_sequences(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    counts = chunk_counts(cu_seqlens, chunk_size)
    blocks = [offsets_of(block)[1:] for block in counts.split(128)]
    offsets = torch.cat([counts.new_zeros(1), *blocks])
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def offsets_in_int32(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return indices, offsets.to(torch.int32)


def indices_in_int64(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return indices.to(torch.int64), offsets


def indices_transposed(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return indices.T.contiguous(), offsets


def accepts_falling_host_lengths(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu.cummax(0).values, chunk_size)
    offsets = offsets_of(chunk_counts(cu_seqlens, chunk_size))
    num_rows = max(count_rows(cu_seqlens_cpu, chunk_size), 0)
    return rows_of(offsets, num_rows).to(cu_seqlens.dtype), offsets


def accepts_floats(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    whole = cu_seqlens.to(torch.int64) if cu_seqlens.is_floating_point() else cu_seqlens
    return chunk_metadata(cu_seqlens=whole, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def refuses_an_empty_batch(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    if cu_seqlens.shape[0] == 1:
        raise ValueError("cu_seqlens: there must be at least one sequence")
    return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def refuses_strided_views(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    if not cu_seqlens.is_contiguous():
        raise ValueError("cu_seqlens: must be contiguous")
    return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def refuses_with_an_assertion(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    assert chunk_size >= 1
    return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
