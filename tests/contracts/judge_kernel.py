"""Script: the optimized ``chunk_metadata`` against the specification; prints a JSON summary.

Batches of every size are executed as gfx942 machine code. With ``TRITON_INTERPRET=1``, which must be set before Python
starts, it runs those that need other tile sizes in Triton's interpreter instead: a compiled kernel's cannot be changed.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl

import optimized.chunk_metadata as module
from optimized.chunk_metadata import chunk_metadata as optimized
from oracles.backends import by_name
from oracles.backends.base import Variation
from oracles.memory import Memory
from reference.chunk_metadata import chunk_metadata as reference
from reference.errors import OnlyMemorySafety

NIGHTLY = os.environ.get("ORACLES_NIGHTLY") == "1"
COUNTS = (0, 1, 2, 3, 31, 33, 64, 259, 1025)
CHUNK_SIZES = (1, 3, 64, 100) if NIGHTLY else (1, 3, 64)  # 3 is no power of two, as 100 is none
ORIGINAL_NEW_EMPTY = torch.Tensor.new_empty
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BACKEND = by_name("gfx942")


class Case(NamedTuple):
    kind: str
    device: np.ndarray
    host: np.ndarray
    chunk_size: int
    stride: int = 1
    start: int = 0


def starts_of(lengths: np.ndarray, dtype: str, first: int = 0) -> np.ndarray:
    return np.concatenate([[first], first + np.cumsum(lengths, dtype=np.int64)]).astype(dtype)


def length_patterns(count: int, size: int, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    yield "edges", rng.choice([0, 1, size - 1, size, size + 1], count)
    sparse = rng.choice([0, 2 * size + 1], count, p=[0.8, 0.2])
    yield "empty first and last", np.where((np.arange(count) == 0) | (np.arange(count) == count - 1), 0, sparse)
    yield "all empty", np.zeros(count, dtype=np.int64)
    giant = np.zeros(count, dtype=np.int64)
    giant[count // 2 : count // 2 + 1] = 700 * size + 1
    yield "one giant", giant


def agreeing(rng: np.random.Generator) -> Iterator[Case]:
    for number, count in enumerate(COUNTS):
        for size in CHUNK_SIZES:
            for index, (kind, lengths) in enumerate(length_patterns(count, size, rng)):
                dtype = ("int32", "int64")[(number + index) % 2]
                host = ("int64", "int32")[(number + index // 2) % 2]
                stride = (1, 2, 5)[(number + index) % 3]
                device_starts = starts_of(lengths, dtype, first=index * 7)
                yield Case(kind, device_starts, starts_of(lengths, host), size, stride, start=index)


def many_sequences(rng: np.random.Generator) -> Iterator[Case]:
    # Each row costs time in the emulator, and two chunks a sequence take the paths of twenty.
    for count, size, longest in ((5000, 64, 130), (6143, 1, 130 if NIGHTLY else 3)):
        starts = starts_of(rng.choice([0, 0, 1, 2, longest], count), "int32", first=-3)
        yield Case("many sequences", starts, starts, size)
    lengths = np.zeros(9000, dtype=np.int64)
    lengths[[0, 8999]] = 5
    yield Case("empty tiles between", starts_of(lengths, "int64"), starts_of(lengths, "int32"), 2)
    yield Case("all empty", np.full(5001, 4), np.full(5001, 4), 64)
    starts = starts_of(np.array([2**20, 0, 3]), "int32")
    yield Case("a million tokens", starts, starts, 64)


def disagreeing(rng: np.random.Generator) -> Iterator[Case]:
    for count in (1, 2, 33, 1100):
        for dtype in ("int32", "int64"):
            for device_high, host_high in ((9, 30), (30, 9), (1, 9), (9, 1)):
                device = starts_of(rng.integers(0, device_high, count), dtype)
                yield Case("disagreement", device, starts_of(rng.integers(0, host_high, count), dtype), 4, stride=2)
    for count in (3, 90, 1100):
        device = starts_of(rng.integers(0, 2**40, count), "int64")
        yield Case("sums past 32 bits", device, starts_of(rng.integers(0, 9, count), "int64"), 3)


def extreme() -> Iterator[Case]:
    zero = np.zeros(2, dtype="int64")
    small = np.array([0, 300])
    for low, high, dtype in ((INT32_MIN, INT32_MAX, "int32"), (0, INT64_MAX, "int64"), (INT64_MIN, -1, "int64")):
        for size in (1, 64, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**40, INT64_MAX, 2**70):
            yield Case("longest length", np.array([low, high], dtype=dtype), zero, size)
            yield Case("longest length", np.array([low, high], dtype=dtype), small, size)
    wide = np.array([INT64_MIN, -1, INT64_MAX - 1])
    yield Case("longest total", wide, np.array([0, 400, 800]), 3)
    twin = np.array([INT32_MIN, INT32_MAX])
    yield Case("longest length", twin.astype("int32"), twin, 2**24 + 1)


def absurd(rng: np.random.Generator) -> Iterator[Case]:
    for count in (1, 2, 40, 1100):
        for dtype in ("int32", "int64"):
            limits = np.iinfo(dtype)
            device = rng.integers(limits.min, limits.max, count + 1, dtype=dtype, endpoint=True)
            host = starts_of(rng.integers(0, 12, count), "int64")
            for size in (1, 64):
                yield Case("absurd values", device, host, size)
                yield Case("falling starts", host[::-1].astype(dtype), host, size)


def for_small_tiles(rng: np.random.Generator) -> Iterator[Case]:
    """Batches that need several spans of several tiles each once the tiles are small."""
    for count in (*range(9), 16, 17, 31, 32, 33, 64, 65, 97, 200):
        for high, host_high in ((2, 2), (5, 5), (40, 40), (5, 9), (9, 5)):
            lengths = rng.integers(0, high, count) * (rng.random(count) < 0.4)
            twin = lengths if high == host_high else rng.integers(0, host_high, count)
            yield Case("small tiles", starts_of(lengths, "int32", first=-7), starts_of(twin, "int64"), 2)
    for count in (5, 64, 100):
        device = starts_of(rng.integers(0, 2**40, count) * (rng.random(count) < 0.4), "int64")
        yield Case("small tiles", device, starts_of(rng.integers(0, 9, count), "int64"), 2)
    for count in (9, 33, 100):
        garbage = rng.integers(INT64_MIN, INT64_MAX, count + 1)
        yield Case("small tiles", garbage, starts_of(rng.integers(0, 9, count), "int64"), 2)


# With these, 2 to 200 sequences take the paths of 1,025 to tens of millions.
SMALL_TILES = patch.multiple(
    module,
    _MOST_SINGLE=2,
    _MOST_ONE_SPAN=12,
    _SINGLE_TILE=tl.constexpr(1),
    _SPAN_TILE=tl.constexpr(4),
    _MAX_SPANS=tl.constexpr(8),
    _GROUP=tl.constexpr(2),
    _SHORT=tl.constexpr(4),
    _STEP=tl.constexpr(2),
    _BLOCK_ROWS=tl.constexpr(4),
)


def tensor_of(values: np.ndarray, stride: int, start: int) -> torch.Tensor:
    """A strided view with absurd values between its elements."""
    storage = torch.full((start + len(values) * stride,), torch.iinfo(torch.int32).min, dtype=torch.int64)
    view = storage.to(getattr(torch, str(values.dtype)))[start::stride][: len(values)]
    view.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return view


class Guards:
    """Stands in for ``Tensor.new_empty``: outputs lie, filled with an impossible number, between guard zones."""

    ZONE = 64
    FILL = -777

    def __init__(self) -> None:
        self.storages: list[torch.Tensor] = []

    def new_empty(self, like: torch.Tensor, shape: Any, *, dtype: Any = None, **other: Any) -> torch.Tensor:
        if other:  # Triton's interpreter names a device.
            return ORIGINAL_NEW_EMPTY(like, shape, dtype=dtype, **other)
        size = int(np.prod(shape))
        self.storages.append(torch.full((size + 2 * self.ZONE,), self.FILL, dtype=dtype or like.dtype))
        return self.storages[-1][self.ZONE : self.ZONE + size].view(shape)

    def broken(self) -> bool:
        zones = [zone for storage in self.storages for zone in (storage[: self.ZONE], storage[-self.ZONE :])]
        return any(bool((zone != self.FILL).any()) for zone in zones)


def machine() -> AbstractContextManager[object]:
    """What executes the launches inside."""
    return nullcontext() if INTERPRETED else BACKEND.watch(Memory(), Variation())


def judge(case: Case) -> str | None:
    device, host = tensor_of(case.device, case.stride, case.start), tensor_of(case.host, case.start + 1, 1)
    before = device.clone(), host.clone()
    guards = Guards()
    with (
        machine(),
        patch.object(torch.Tensor, "new_empty", lambda *given, **named: guards.new_empty(*given, **named)),
    ):
        indices, offsets = optimized(cu_seqlens=device, cu_seqlens_cpu=host, chunk_size=case.chunk_size)
    if guards.broken():
        return "something was written outside the outputs"
    if not (torch.equal(device, before[0]) and torch.equal(host, before[1])):
        return "an input changed"
    try:
        wanted = reference(case.device, case.host, case.chunk_size)
    except OnlyMemorySafety:
        return None
    for name, found, right in zip(("chunk_indices", "chunk_offsets"), (indices, offsets), wanted, strict=True):
        if found.numpy().dtype != right.dtype or found.shape != right.shape:
            return f"{name} is {found.dtype} {tuple(found.shape)}, not {right.dtype} {right.shape}"
        if not np.array_equal(found.numpy(), right):
            place = np.argwhere(found.numpy() != right)[0].tolist()
            return f"{name}{place} is {found.numpy()[tuple(place)]}, not {right[tuple(place)]}"
    return None


def main() -> int:
    rng = np.random.default_rng(20260)
    judged: Counter[str] = Counter()
    problems = []

    def judge_all(cases: Iterator[Case]) -> None:
        for case in cases:
            judged[case.kind] += 1
            problem = judge(case)
            if problem:
                problems.append(f"{case.kind}, N={len(case.device) - 1}, {case.device.dtype}, {case[3:]}: {problem}")

    if INTERPRETED:
        with SMALL_TILES:
            judge_all(for_small_tiles(rng))
    else:
        BACKEND.prepare()
        for cases in (agreeing(rng), many_sequences(rng), disagreeing(rng), extreme(), absurd(rng)):
            judge_all(cases)
    print(json.dumps({"judged": sum(judged.values()), "kinds": dict(judged), "problems": problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
