"""Script: compile both chunk metadata kernels to PTX for sm_90 and print, as JSON, what was compiled."""

from __future__ import annotations

import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from optimized.chunk_metadata import _grouped_kernel, _single_kernel

COUNTS = ("stride", "num_rows", "num_seqs", "span_size")


def main() -> None:
    compiled: dict[str, list[str]] = {}
    for pointer in ("*i32", "*i64"):
        types = {
            **dict.fromkeys(("cu_seqlens", "chunk_indices"), pointer),
            **dict.fromkeys(("chunk_offsets", "span_totals"), "*i64"),
            **dict.fromkeys(COUNTS, "i64"),
            "CHUNK_SIZE": "constexpr",
        }
        for kernel in (_single_kernel, _grouped_kernel):
            signature = {name: types[name] for name in kernel.arg_names}
            source = ASTSource(kernel, signature, {"CHUNK_SIZE": 64})
            binary = triton.compile(source, target=GPUTarget("cuda", 90, 32))
            if f".entry {kernel.__name__}" in binary.asm["ptx"]:
                compiled.setdefault(pointer, []).append(kernel.__name__)
    print(json.dumps(compiled))


if __name__ == "__main__":
    main()
