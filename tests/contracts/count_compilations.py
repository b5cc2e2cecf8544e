"""Script: call ``chunk_metadata`` with many layouts on a stand-in device and print, as JSON, what was compiled.

Arguments: the architecture. ``TRITON_CACHE_DIR`` must be empty, or compilations would be taken from it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import triton
from stand_in_driver import install

from optimized.chunk_metadata import chunk_metadata

COUNTS = (*range(3), *range(15, 18), *range(31, 34), *range(63, 66), *range(127, 130), *range(255, 258))
COUNTS += (512, 1023, 1024, 1025, 4096, 8192, 8193)
STRIDES = (1, 2, 3, 16)
SLICES = (0, 1, 4)
PAST_32_BITS = 2**31 + 16


def views(count: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Device tensors of ``count`` sequences, in each stride and slice offset."""
    for stride in STRIDES:
        for start in SLICES:
            yield torch.zeros(start + count * stride + 1, dtype=dtype)[start::stride]


def huge_views(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Strides of 0 and past 2**31, and a storage past 2**31 bytes. The pages are never touched."""
    yield torch.zeros(1, dtype=dtype).as_strided((1,), (0,))
    yield torch.zeros(1, dtype=dtype).as_strided((1,), (PAST_32_BITS,))
    yield torch.empty(PAST_32_BITS + 1, dtype=dtype)[::PAST_32_BITS]


def main(architecture: str) -> None:
    install(architecture)
    compiled: Counter[str] = Counter()

    def listen(*, src: Any, **_: Any) -> None:
        # A hit in the cache directory counts as well: the launch was new to Triton and would compile elsewhere.
        compiled[src.signature["cu_seqlens"]] += 1

    triton.knobs.compilation.listener = listen
    calls = 0
    for dtype in (torch.int32, torch.int64):
        for count in COUNTS:
            host = torch.arange(count + 1, dtype=torch.int64) * (count % 7)
            for view in views(count, dtype):
                chunk_metadata(cu_seqlens=view, cu_seqlens_cpu=host, chunk_size=64)
                calls += 1
        for view in huge_views(dtype):
            host = torch.zeros(view.shape, dtype=torch.int64)
            chunk_metadata(cu_seqlens=view, cu_seqlens_cpu=host, chunk_size=64)
            calls += 1
    print(json.dumps({"architecture": architecture, "calls": calls, "compilations": dict(compiled)}))


if __name__ == "__main__":
    main(sys.argv[1])
