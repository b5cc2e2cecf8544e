"""A stranger's Triton kernel with the wrong result: it returns one tensor."""

import torch
import triton
import triton.language as tl


@triton.jit
def fill(out, count: tl.constexpr):
    tl.store(out + tl.arange(0, count), 1)


def chunk_metadata(cu_seqlens, cu_seqlens_cpu, chunk_size):
    out = torch.empty(4, dtype=torch.int64, device=cu_seqlens.device)
    fill[(1,)](out, 4)
    return out
