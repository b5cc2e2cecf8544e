"""The kernel of ``correct_kernel`` with one fault switched on, and faults of the code around a launch."""

from __future__ import annotations

import functools

import correct_kernel
import torch
from correct_host import count_rows, refuse


def _with(fault):
    return functools.partial(correct_kernel.chunk_metadata, fault=fault)


load_mask = _with("load mask <=")
store_mask = _with("store mask <=")
off_by_one_block = _with("off-by-one block")
stride_in_int32 = _with("stride in int32")
stride_ignored = _with("stride ignored")
other_dropped = _with("other dropped")
gaps_read = _with("gaps read")
partial_chunk_dropped = _with("partial chunk dropped")
base_not_carried = _with("base not carried")
one_past_the_end = _with("one past the end")
race = _with("race")
tail_unwritten = _with("tail unwritten")


def _outputs(cu_seqlens, num_rows):
    indices = torch.empty((num_rows, 2), dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return indices, torch.empty(cu_seqlens.shape, dtype=torch.int64, device=cu_seqlens.device)


def nothing_launched_without_rows(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    indices, offsets = _outputs(cu_seqlens, count_rows(cu_seqlens_cpu, chunk_size))
    if indices.shape[0]:
        correct_kernel.launch(cu_seqlens, indices, offsets, chunk_size)
    return indices, offsets


def grid_rounded_down(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    indices, offsets = _outputs(cu_seqlens, count_rows(cu_seqlens_cpu, chunk_size))
    programs = max(indices.shape[0] // correct_kernel.ROWS, 1)
    correct_kernel.launch(cu_seqlens, indices, offsets, chunk_size, grid=(programs,))
    return indices, offsets


def refuses_after_the_launch(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, torch.zeros_like(cu_seqlens_cpu), chunk_size)
    indices, offsets = _outputs(cu_seqlens, max(count_rows(cu_seqlens_cpu, chunk_size), 0))
    correct_kernel.launch(cu_seqlens, indices, offsets, chunk_size)
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    return indices, offsets


def grid_read_from_the_device(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    indices, offsets = _outputs(cu_seqlens, count_rows(cu_seqlens_cpu, chunk_size))
    last = (cu_seqlens[-1] - cu_seqlens[0]) * 0 + indices.shape[0] // correct_kernel.ROWS + 1
    correct_kernel.launch(cu_seqlens, indices, offsets, chunk_size, grid=lambda _: (last,))
    return indices, offsets
