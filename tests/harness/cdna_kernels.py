"""Script: compile kernels for both AMD architectures and leave their text and binaries in the folder that it is given.

Each kernel is there for a kind of instruction. The compiler needs no tensors, so torch is not imported. ``NAME.s`` and
``NAME.hsaco`` are written for every variant, and ``index.json`` says what belongs together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def scan(x, out, n, BLOCK: tl.constexpr):
    """Lanes of a row by DPP, others by permutation, waves through local memory."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + places, mask=places < n, other=0)
    tl.store(out + places, tl.cumsum(values, 0) + tl.sum(values, 0) * tl.num_programs(1), mask=places < n)


@triton.jit
def transpose(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Wide and narrow accesses of local memory, and on gfx950 swaps of rows of lanes."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tile = tl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(out + columns[:, None] * ROWS + rows[None, :], tl.trans(tl.sort(tile, 1)))


@triton.jit
def divide(x, out, divisor, n, BLOCK: tl.constexpr):
    """Division by something unknown, on each lane and for a whole program; a loop; programs on two axes."""
    place = (tl.program_id(0) + tl.program_id(1)).to(tl.int64)
    while place < n // divisor:
        places = place * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + places, mask=places < n, other=1)
        tl.store(out + places, (places // values) % divisor, mask=places < n)
        place += tl.num_programs(0)


@triton.jit
def count(x, out, n, BLOCK: tl.constexpr):
    """Atomic operations, with and without a result, and their fences."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + places, mask=places < n, other=0)
    before = tl.atomic_add(out + values % 7, values, mask=places < n)
    tl.atomic_max(out + 8 + before % 7, values, sem="relaxed")
    tl.atomic_xchg(out + 16 + places, values, scope="sys")
    tl.atomic_cas(out + places, before, values)
    tl.atomic_min(out + tl.program_id(0), 3, sem="release")


@triton.jit
def convert(x, out, n, BLOCK: tl.constexpr):
    """From one element type to another, through float32; a rounded result and special functions."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + places, mask=places < n).to(tl.float32)
    values = tl.maximum(tl.exp(values * 0.25) / (1.0 + tl.abs(values)), tl.sqrt(tl.floor(values)) - values)
    tl.store(out + places, values.to(out.dtype.element_ty), mask=places < n)


@triton.jit
def multiply(x, y, out, BLOCK: tl.constexpr):
    """Products and sums in the elements' own type: packed ones, mixed ones and fused ones."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left, right = tl.load(x + places), tl.load(y + places)
    tl.store(out + places, left * right + left - right)
    tl.store(out + BLOCK + places, tl.fma(left.to(tl.float32), right.to(tl.float32), 0.5).to(out.dtype.element_ty))


@triton.jit
def pick(x, out, n, BLOCK: tl.constexpr):
    """Bits, bytes and halves of words; the place of the largest element."""
    places = tl.arange(0, BLOCK)
    values = tl.load(x + places, mask=places < n, other=0)
    mixed = ((values >> 3) ^ (values << 5)) & ~values | (values & 0x55)
    tl.store(out + places, mixed.to(tl.int8).to(tl.int32) + (values.to(tl.int16) >> 2), mask=values != 5)
    tl.store(out + BLOCK, tl.argmax(values, 0) + tl.xor_sum(values, 0))


BLOCKS = {"BLOCK": 256}
FLOATS = ("fp16", "bf16", "fp32")
VARIANTS = [
    *((scan, f"{kind} {kind} i32", {"BLOCK": size}) for kind in ("*i32", "*i64", "*fp32") for size in (64, 1024)),
    *((transpose, f"{kind} {kind}", {"ROWS": 32, "COLUMNS": 16}) for kind in ("*i8", "*fp16", "*i32", "*i64")),
    *((divide, f"{kind} {kind} i32 {kind[1:]}", BLOCKS) for kind in ("*i32", "*i64")),
    *((count, f"{kind} {kind} i32", BLOCKS) for kind in ("*i32", "*i64")),
    *((convert, f"*{source} *{to} i32", BLOCKS) for source, to in zip(FLOATS, (*FLOATS[1:], "fp16"), strict=True)),
    *((convert, f"*fp32 *{to} i32", BLOCKS) for to in ("fp8e5", "fp64", "i64")),
    *((convert, f"*{source} *fp32 i32", BLOCKS) for source in ("u8", "fp64", "i64", "fp8e5", "fp8e4nv")),
    *((multiply, f"*{kind} *{kind} *{kind}", {"BLOCK": 1024}) for kind in FLOATS),
    (pick, "*i32 *i32 i32", BLOCKS),
]
EIGHT_BITS = {"gfx942": "fp8e4b8", "gfx950": "fp8e4nv"}


def compiled(kernel, signature: str, constants: dict[str, int], target: GPUTarget, *, buffers: bool):
    """One variant. ``buffers``: no tensor exceeds 2 GiB, which lets the compiler use buffer instructions."""
    types = dict(zip(kernel.arg_names, [*signature.split(), *["constexpr"] * len(constants)], strict=True))
    near = [["tt.divisibility", 16], *([["tt.pointer_range", 32]] if buffers else [])]
    attributes = {(place,): near for place, kind in enumerate(types.values()) if kind.startswith("*")}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, types, places, attributes), target=target)


def chosen(*, every: bool) -> Iterator[tuple]:
    """Architecture, variant, and whether with buffer instructions: of every variant, or of few that show all kinds."""
    for architecture, eight_bits in EIGHT_BITS.items():
        seen = set()
        for variant in [*VARIANTS, (convert, f"*fp32 *{eight_bits} i32", BLOCKS)]:
            kernel = variant[0]
            if every:
                yield architecture, variant, False
                yield architecture, variant, True
            elif kernel not in seen and (architecture == "gfx942" or kernel is transpose):
                yield architecture, variant, kernel is not divide
            seen.add(kernel)


def main(folder: Path, *, every: bool) -> None:
    index = []
    for architecture, (kernel, signature, constants), buffers in chosen(every=every):
        result = compiled(kernel, signature, constants, GPUTarget("hip", architecture, 64), buffers=buffers)
        stem = str(folder / str(len(index)))
        Path(f"{stem}.s").write_text(result.asm["amdgcn"])
        Path(f"{stem}.hsaco").write_bytes(result.asm["hsaco"])
        described = {"name": result.metadata.name, "architecture": architecture, "signature": signature}
        index.append({**described, "stem": stem, "source": kernel.src})
    (folder / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main(Path(sys.argv[1]), every=sys.argv[2:] == ["every"])
