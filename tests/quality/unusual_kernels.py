"""Correct kernels of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import correct_kernel
import torch
from correct_host import count_rows, refuse


def one_program_for_everything(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """A block as large as the output, so that the grid is a single program."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    num_rows = count_rows(cu_seqlens_cpu, chunk_size)
    indices = torch.empty((num_rows, 2), dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    offsets = torch.empty(cu_seqlens.shape, dtype=torch.int64, device=cu_seqlens.device)
    rows = 1 << max(num_rows - 1, 0).bit_length()
    correct_kernel.launch(cu_seqlens, indices, offsets, chunk_size, rows=rows)
    return indices, offsets
