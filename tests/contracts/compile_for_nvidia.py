"""Script: compile both widths of the chunk metadata kernel to PTX for sm_90 and print, as JSON, what was compiled."""

from __future__ import annotations

import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from optimized.chunk_metadata import _BLOCK_ROWS, _NARROW, _WIDE, _chunk_metadata_kernel

COUNTS = ("stride", "num_seqs", "num_rows", "num_spans", "span_size")


def main() -> None:
    compiled: dict[str, list[int]] = {}
    for pointer in ("*i32", "*i64"):
        for width in (_NARROW, _WIDE):
            constants = {
                "CHUNK_SIZE": 64,
                "BLOCK_SEQS": width.block_seqs,
                "SEARCH_STEPS": width.block_seqs.bit_length() - 1,
                "BLOCK_ROWS": _BLOCK_ROWS,
                "MAX_SPANS": width.max_spans,
            }
            signature = {
                **dict.fromkeys(("cu_seqlens", "chunk_indices"), pointer),
                **dict.fromkeys(("chunk_offsets", "span_totals"), "*i64"),
                **dict.fromkeys(COUNTS, "i64"),
                "sums_only": "i32",
                **dict.fromkeys(constants, "constexpr"),
            }
            source = ASTSource(_chunk_metadata_kernel, signature, constants)
            options = {"num_warps": width.num_warps}
            binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            if ".entry _chunk_metadata_kernel" in binary.asm["ptx"]:
                compiled.setdefault(pointer, []).append(width.block_seqs)
    print(json.dumps(compiled))


if __name__ == "__main__":
    main()
