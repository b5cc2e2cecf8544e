"""The kernels that ``interpreter_programs.py`` runs, with and without planted faults. Import it in interpreted mode."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

renamed_exp = tl.exp
stub_tanh = libdevice.tanh


@triton.jit
def gather(table, values, out, totals, rows, row_stride, width, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    keep = lanes < width
    if FAULT == "mask":
        keep = lanes <= width
    source = tl.load(table + row)
    if FAULT == "block":
        source = source + 1
    step = row_stride
    if FAULT == "stride32":
        step = row_stride.to(tl.int32)
    x = load_row(values + source * step, lanes, keep, FAULT)
    tl.store(out + row * width + lanes, x, mask=keep)
    tl.store(totals + row, tl.sum(x, 0))
    if FAULT == "past":
        tl.store(totals + rows, 7)
    if FAULT == "race":
        tl.store(totals + 0, row)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def load_row(start, lanes, keep, FAULT: tl.constexpr):
    if FAULT == "other":
        return tl.load(start + lanes, mask=keep)
    return tl.load(start + lanes, mask=keep, other=0)


@triton.jit
def scan(lengths, out, rows, row_stride: tl.int64, width, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    keep = lanes < width
    if FAULT == "mask":
        keep = lanes <= width
    step = row_stride
    if FAULT == "stride32":
        step = row_stride.to(tl.int32)
    start = lengths + row * step
    if FAULT == "block":
        start = lengths + (row + 1) * step
    x = load_row(start, lanes, keep, FAULT).to(tl.int32)
    ends = tl.associative_scan(x, 0, add)
    total = tl.sum(x, 0)
    first = out + row * (width + 1)
    tl.store(first + lanes, ends - x, mask=lanes < width)
    tl.store(first + width, total)
    if FAULT == "past":
        tl.store(out + rows * (width + 1), total)
    if FAULT == "race":
        tl.store(out + 0, row)


@triton.jit
def through_table(pointers, out, skew, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = tl.load(pointers + row).to(tl.pointer_type(tl.int32))
    lanes = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + lanes, tl.load(start + lanes + skew))


@triton.jit
def order_of(out, counter):
    ticket = tl.atomic_add(counter, 1)
    tl.store(out + tl.program_id(0), ticket)


@triton.jit
def shift_in_place(values):
    row = tl.program_id(0)
    tl.store(values + row, tl.load(values + row + 1) + 1)


@triton.jit
def same_flag(flag, out):
    tl.store(flag, 1)
    tl.store(out + tl.program_id(0), tl.load(flag))


@triton.jit
def last_one_sums(parts, counter, out, programs, SEM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(parts + row, row + 1)
    done = tl.atomic_add(counter, 1, sem=SEM)
    if done == programs - 1:
        lanes = tl.arange(0, BLOCK)
        tl.store(out, tl.sum(tl.load(parts + lanes, mask=lanes < programs, other=0), 0))


@triton.jit
def product(out, a: tl.int64, b):
    tl.store(out, (a * b).to(tl.int64))


@triton.jit
def product_plain(out, a, b):
    tl.store(out, (a * b).to(tl.int64))


@triton.jit
def scaled(values, out, scale, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, (tl.load(values + lanes) * scale).to(tl.float32))


@triton.jit
def half_annotated(out, a: tl.bfloat16):
    tl.store(out, a)


@triton.jit
def casts(values, out, KIND: tl.constexpr):
    if KIND == "bf16":
        tl.store(out, tl.load(values).to(tl.bfloat16).to(tl.float32))
    elif KIND == "fp8":
        tl.store(out, tl.load(values).to(tl.float8e5).to(tl.float32))
    elif KIND == "asm":
        tl.store(out, tl.inline_asm_elementwise("v_mov_b32 $0, $1", "=v,v", [tl.load(values)], tl.float32, True, 1))
    elif KIND == "assert":
        tl.static_assert(KIND == "", "this kernel fails")


@triton.jit(do_not_specialize=["b"])
def specialised(out, a, b, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, a + b)


@triton.jit
def exchange(values, index, out, compare: tl.int32):
    tl.store(out, tl.atomic_cas(values + index, compare, 9))
    tl.atomic_add(values + index, 5)


@triton.jit
def shuffled(values, indices, out, sums, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(values + lanes)
    tl.store(out + lanes, tl.gather(x, tl.load(indices + lanes), 0))
    tl.store(sums + lanes, tl.cumsum(x, 0))


@triton.jit
def borrowed(values, out, KIND: tl.constexpr):
    x = tl.load(values)
    if KIND == "renamed":
        tl.store(out, renamed_exp(x))
    else:
        tl.store(out, stub_tanh(x))


@triton.jit
def reductions(values, out, count, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(values + lanes, mask=lanes < count)
    tl.store(out, tl.min(x, 0))
    tl.store(out + 1, tl.max(x, 0))
    tl.store(out + 2, tl.sum(x, 0))


@triton.jit
def of_many(pair, descriptor, out, BLOCK: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lanes = tl.arange(0, BLOCK)
    block = descriptor.load([0, 0])
    row = tl.sum(block, 0)
    number = x + 2 * y + 4 * z
    tl.store(out + number * BLOCK + lanes, row + tl.load(pair[0] + lanes) + pair[1])


@triton.jit
def through_slice(values, out):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(values + row - 1))


@triton.jit
def spread(values, out, count):
    lanes = tl.arange(0, 4)
    row = tl.program_id(0)
    used = row < count
    left_out = tl.load(values + row, mask=row > count, other=0)
    x = tl.load(values + lanes, mask=(lanes < 2) & used, other=0)
    tl.store(out + row * 4 + lanes, x + left_out, mask=tl.broadcast_to(used, (4,)))
