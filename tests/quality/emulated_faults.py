"""Small kernels with one fault each, for machine code. ``FAULT`` is a compile-time flag; without it each is correct.

What is reported must name the line that the tests pick out by its text.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@triton.jit
def masked(x, y, n, B: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at <= n if FAULT else at < n
    values = tl.load(x + at, mask=inside, other=0)
    tl.store(y + at, values + 1, mask=inside)


@triton.jit
def blocks(x, y, B: tl.constexpr, FAULT: tl.constexpr):
    block = tl.program_id(0) + 1 if FAULT else tl.program_id(0)
    values = tl.load(x + block * B + tl.arange(0, B))
    tl.store(y + block * B + tl.arange(0, B), values)


@triton.jit
def exchange(x, y, z, B: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at))
    if not FAULT:
        tl.debug_barrier()
    tl.store(z + at, tl.load(y + B - 1 - at))


@triton.jit
def total(x, y, B: tl.constexpr):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, B))))


@triton.jit
def rows_of(table, rows, y, stride, B: tl.constexpr, FAULT: tl.constexpr):
    row = tl.load(rows + tl.program_id(0))
    first = row * stride if FAULT else row.to(tl.int64) * stride
    tl.store(y + tl.program_id(0) * B + tl.arange(0, B), tl.load(table + first + tl.arange(0, B)))


@triton.jit
def left_over(x, y, n, B: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, B)
    values = tl.load(x + at, mask=at < n, other=None if FAULT else 0)
    tl.store(y, tl.sum(values))


@triton.jit
def past_the_end(x, y, n, B: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0), mask=at < n)
    if FAULT:
        tl.store(y + n, 0)


@triton.jit
def neighbour(x, y, distance, B: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, B)
    values = tl.load(x + at)
    tl.store((x + distance if FAULT else y) + at, values)


@gluon.jit
def local(x, y, B: gl.constexpr, WARPS: gl.constexpr, FAULT: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [WARPS], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    at = gl.arange(0, B, layout=layout)
    buffer = gl.allocate_shared_memory(gl.int32, [B], shared)
    if not FAULT:
        buffer.store(gl.load(x + at))
    gl.store(y + at, buffer.load(layout))


@triton.jit
def same_place(y, FAULT: tl.constexpr):
    tl.store(y if FAULT else y + tl.program_id(0), tl.program_id(0) + 1)


@triton.jit
def count(y, FAULT: tl.constexpr):
    if FAULT:
        before = tl.load(y)
        tl.store(y, before + 1)
    else:
        tl.atomic_add(y, 1)


@triton.jit
def some_wait(y, z, B: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, at + 1)
    if not FAULT:
        tl.debug_barrier()
    # Without the barrier a wave may come here before the first one has stored.
    if tl.load(y) == 0:
        tl.debug_barrier()  # not for all
    tl.store(z + at, at)


@triton.jit
def until(x, y, n, step):
    at = 0
    while at < n:
        tl.store(y + at, tl.load(x + at) + 1)
        at += step
