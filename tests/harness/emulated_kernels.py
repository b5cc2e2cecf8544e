"""Kernels whose machine code is run, each for one thing that a launch can need."""

import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, stride, factor, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at * stride, mask=at < n, other=0) * factor, mask=at < n)


@triton.jit(do_not_specialize=["n", "stride"])
def unspecialised(x, y, n, stride, factor, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at * stride, mask=at < n, other=0) * factor, mask=at < n)


@triton.jit
def programs(y):
    at = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.store(y + at, tl.num_programs(0) * 100 + tl.num_programs(1) * 10 + tl.num_programs(2))


@triton.jit
def scalars(y, small: tl.int8, large, unsigned: tl.uint32, half: tl.float16, short: tl.bfloat16, double, flag, pair):
    tl.store(y, small.to(tl.float32))
    tl.store(y + 1, (large >> 40).to(tl.float32))
    tl.store(y + 2, unsigned.to(tl.float32))
    tl.store(y + 3, half.to(tl.float32))
    tl.store(y + 4, short.to(tl.float32))
    tl.store(y + 5, double)
    tl.store(y + 6, flag.to(tl.float32))
    tl.store(y + 7, (tl.load(pair[0]) + pair[1][0]).to(tl.float32))


@triton.jit
def described(x, y, B: tl.constexpr):
    tl.store(y + tl.arange(0, B), x.load([2]))


@triton.jit
def _loaded(x, at, keep):
    return tl.load(x + at, mask=keep)


@triton.jit
def sums(x, y, n, B: tl.constexpr):
    at = tl.arange(0, B)
    near = tl.load(x + at, mask=at < n)
    far = _loaded(x, at, at < n)
    tl.store(y, tl.sum(tl.where(at < n, near, 0), 0))
    tl.store(y + 1, tl.sum(far, 0))


@triton.jit
def copied(x, y, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n))


@triton.jit
def beyond(x, y, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at <= n, other=0), mask=at < n)


@triton.jit
def refused(x, UNKNOWN: tl.constexpr):
    tl.static_assert(UNKNOWN == 0, "not here")
    tl.store(x, 1)


@triton.autotune([triton.Config({"B": 32}, num_warps=1), triton.Config({"B": 64}, num_warps=2)], key=["n"])
@triton.heuristics({"factor": lambda arguments: arguments["n"] + 1})
@triton.jit
def tuned(x, y, n, factor, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0) * factor + B, mask=at < n)


@triton.jit
def waits(x, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(x + at, at + 1)
    tl.debug_barrier()
    tl.store(x + B + at, tl.load(x + B - 1 - at))
