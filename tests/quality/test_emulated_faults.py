"""Faults planted in small kernels, found in their machine code on both architectures, and nothing in their twins."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.backends.base import Order, Variation
from oracles.backends.cdna.backend import CdnaBackend
from oracles.check import Subject, judge
from oracles.contract import Contract, Input, Output, Values
from oracles.memory import Memory
from oracles.providers.base import Implementation
from oracles.verdict import Failure

pytest.importorskip("triton", reason="the emulated backends compile with Triton")

ARCHITECTURES = ("gfx942", "gfx950")
SEEDS = range(200 if os.environ.get("ORACLES_NIGHTLY") == "1" else 2)
ORDERS: tuple[tuple[Order, int], ...] = (("forward", 0), ("reverse", 0), *(("random", seed) for seed in SEEDS))
KERNELS = Path(__file__).with_name("emulated_faults.py")
LINES = KERNELS.read_text().splitlines()
STEP_LIMIT = 5_000
HUGE = 1 << 29
"""A row stride with which row 4 begins at element 2^31."""

Launch = Callable[[ModuleType, Memory, bool], tuple[torch.Tensor, list[int]]]
"""Launches a kernel, with its fault or without; what it wrote, and what it should have written."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """``keys``: all that is found over all orders. ``lines``: texts of the kernel's lines, one of which each names."""

    name: str
    launch: Launch
    keys: frozenset[str]
    lines: tuple[str, ...]


FAULTS: list[Fault] = []


def fault(name: str, keys: str, *lines: str) -> Callable[[Launch], Launch]:
    """Add a fault; ``keys`` are separated by spaces, with ``_`` for a space within."""

    def add(launch: Launch) -> Launch:
        FAULTS.append(Fault(name, launch, frozenset(key.replace("__", " ") for key in keys.split()), lines))
        return launch

    return add


def ints(memory: Memory, name: str, values: Any, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """A guarded tensor that a kernel may write to."""
    return memory.place(array(values, "int32", strides), name, device=True, writable=True)


LAST = tuple(range(100, 164))


@fault("mask <=", "out_of_bounds_read:x out_of_bounds_write:y", "tl.load(x + at, mask=inside", "values + 1, mask=ins")
def _mask(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", LAST), ints(memory, "y", [0] * 64)
    kernels.masked[(2,)](x, y, 64, B=64, FAULT=faulty, num_warps=1)
    return y, [value + 1 for value in LAST]


@fault(
    "off-by-one block", "out_of_bounds_read:x out_of_bounds_write:y", "tl.load(x + block", "tl.store(y + block"
)  # fmt: skip
def _block(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", LAST * 2), ints(memory, "y", [0] * 128)
    kernels.blocks[(2,)](x, y, B=64, FAULT=faulty, num_warps=1)
    return y, [*LAST, *LAST]


@fault("missing debug_barrier", "race:y", "tl.store(y + at, tl.load(x + at))", "tl.load(y + B - 1 - at)")
def _exchange(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y, z = (ints(memory, name, values) for name, values in (("x", range(256)), ("y", [0] * 256), ("z", [0] * 256)))
    kernels.exchange[(1,)](x, y, z, B=256, FAULT=faulty, num_warps=4)
    return z, [*range(255, -1, -1)]


@fault("s_barrier taken out", "race:shared__memory uninitialised_read:shared__memory", "tl.store(y, tl.sum(tl.load(")
def _barrier(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", range(256)), ints(memory, "y", [0])
    with without_barriers() if faulty else nullcontext():
        kernels.total[(1,)](x, y, B=256, num_warps=4)
    return y, [sum(range(256))]


@fault("row * stride in int32", "out_of_bounds_read:table", "tl.load(table + first")
def _stride(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    table = ints(memory, "table", [[10 * row + column for column in range(4)] for row in range(5)], (HUGE, 1))
    rows, y = ints(memory, "rows", [4, 0, 3]), ints(memory, "y", [0] * 12)
    kernels.rows_of[(3,)](table, rows, y, table.stride(0), B=4, FAULT=faulty, num_warps=1)
    return y, [40, 41, 42, 43, 0, 1, 2, 3, 30, 31, 32, 33]


@fault("one past the end", "out_of_bounds_write:y", "tl.store(y + n, 0)")
def _past(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", LAST[:50]), ints(memory, "y", [0] * 50)
    kernels.past_the_end[(1,)](x, y, 50, B=64, FAULT=faulty, num_warps=1)
    return y, [*LAST[:50]]


@fault("store to the neighbour", "out_of_bounds_write:x", "tl.store((x + distance if FAULT else y) + at")
def _neighbour(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", LAST), ints(memory, "y", [0] * 64)
    kernels.neighbour[(1,)](x, y, (y.data_ptr() - x.data_ptr()) // 4, B=64, FAULT=faulty, num_warps=1)
    return y, [*LAST]


@fault("uninitialised LDS", "uninitialised_read:shared__memory", "buffer.load(layout)")
def _local(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", LAST * 2), ints(memory, "y", [0] * 128)
    kernels.local[(1,)](x, y, B=128, WARPS=2, FAULT=faulty, num_warps=2)
    return y, [*LAST, *LAST]


@fault("two values at one address", "race:y", "tl.store(y if FAULT else")
def _same(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    y = ints(memory, "y", [0] * 3)
    kernels.same_place[(3,)](y, FAULT=faulty, num_warps=1)
    return y, [1, 2, 3]


@fault("read-modify-write without an atomic", "race:y", "before = tl.load(y)", "tl.store(y, before + 1)")
def _count(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    y = ints(memory, "y", [5])
    kernels.count[(4,)](y, FAULT=faulty, num_warps=2)
    return y, [9]


@fault(
    "barrier in divergent flow", "barrier_divergence:some_wait race:y",
    "tl.debug_barrier()  # not for all", "tl.store(y + at, at + 1)", "if tl.load(y) == 0",
)  # fmt: skip
def _divergent(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    y, z = ints(memory, "y", [0] * 128), ints(memory, "z", [0] * 128)
    kernels.some_wait[(1,)](y, z, B=128, FAULT=faulty, num_warps=2)
    return z, [*range(128)]


@fault("endless loop", "hang:until", "while at < n", "tl.load(x + at) + 1)", "at += step")
def _endless(kernels: ModuleType, memory: Memory, faulty: bool) -> tuple[torch.Tensor, list[int]]:
    x, y = ints(memory, "x", LAST[:7]), ints(memory, "y", [0] * 7)
    kernels.until[(1,)](x, y, 7, 0 if faulty else 1, num_warps=1)
    return y, [value + 1 for value in LAST[:7]]


@contextmanager
def without_barriers() -> Iterator[None]:
    """Machine code inside has no ``s_barrier``, as if the code generator had left them out."""
    from oracles.backends.cdna import launch

    original = launch.loaded

    def loaded(*arguments: Any) -> Any:
        kernel = original(*arguments)
        changed = tuple(
            dataclasses.replace(each, name="s_nop", operands=()) if each.name == "s_barrier" else each
            for each in kernel.program.instructions
        )
        assert changed != kernel.program.instructions
        return dataclasses.replace(kernel, program=dataclasses.replace(kernel.program, instructions=changed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "loaded", loaded)
        yield


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, own_triton: Any, kernel_module: Any) -> Iterator[ModuleType]:
    """The kernels, in a process whose Triton is put back afterwards, and in which no wave runs for long."""
    with pytest.MonkeyPatch.context() as patch:
        own_triton(patch, tmp_path_factory.mktemp("triton"))
        session = importlib.import_module("oracles.backends.cdna.session")
        patch.setattr(session, "Machine", functools.partial(session.Machine, step_limit=STEP_LIMIT))
        yield kernel_module(patch, KERNELS)


def watched(backend: CdnaBackend, kernels: ModuleType, launch: Launch, faulty: bool, order: Order, seed: int) -> Any:
    """One call: what was found, what the kernel wrote, and what it should have written."""
    backend.prepare()
    variation = Variation(0, order, seed)
    memory = backend.memory(variation)
    with backend.watch(memory, variation) as seen:
        written, expected = launch(kernels, memory, faulty)
    assert seen.launches == 1
    return [*seen.failures, *memory.faults()], written.tolist(), expected


def places_of(texts: tuple[str, ...]) -> list[str]:
    """The lines of the kernels that hold these texts, as reports name them: themselves, or as those that call."""
    numbers = [[at for at, line in enumerate(LINES, 1) if text in line] for text in texts]
    assert all(len(found) == 1 for found in numbers), (texts, numbers)
    lines = [at for [at] in numbers]
    return [
        *(f"{KERNELS.name}:{at}: {LINES[at - 1].strip()}" for at in lines),
        *(f"(called from {KERNELS.name}:{at})" for at in lines),
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_line(kernels: ModuleType, architecture: str, fault: Fault) -> None:
    backend = CdnaBackend(architecture)
    found: list[Failure] = []
    for order, seed in ORDERS:
        failures, _, _ = watched(backend, kernels, fault.launch, True, order, seed)
        assert failures, (order, seed)
        found += failures
    assert {failure.key for failure in found} == fault.keys
    places = places_of(fault.lines)
    for failure in found:
        assert any(place in failure.detail for place in places), failure.detail


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_nothing_is_found_in_the_correct_twin(kernels: ModuleType, architecture: str, fault: Fault) -> None:
    backend = CdnaBackend(architecture)
    for order, seed in ORDERS:
        failures, written, expected = watched(backend, kernels, fault.launch, False, order, seed)
        assert (failures, written) == ([], expected), (order, seed)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("faulty", [True, False])
def test_a_missing_other_is_found_by_the_judge(kernels: ModuleType, architecture: str, faulty: bool) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(1)
        kernels.left_over[(1,)](x, y, x.numel(), B=64, FAULT=faulty, num_warps=1)
        return y

    contract = Contract(
        family="quality", name="total", section="0", summary="the sum of all elements",
        inputs=(Input(name="x", role="device", doc="int32 [N]"),), outputs=(Output(name="y", doc="int32 [1]"),),
        domain=lambda source: {}, resample=lambda inputs: (), traits=lambda inputs: frozenset(),
        expected=lambda inputs: Values({"y": inputs["x"].data.sum(keepdims=True, dtype=np.int32)}),
        optimized="", runs="triton",
    )  # fmt: skip
    implementation = Implementation(
        spec="t", provider="t", name="t", contract=contract.full_name, runs="triton", load=lambda: total
    )
    backend = CdnaBackend(architecture)
    backend.prepare()
    failures = judge(Subject(contract, implementation, total, backend), {"x": array([5, 6, 7], "int32")})
    assert [failure.key for failure in failures] == ["uninitialised_read:y"] * faulty
    [place, _] = places_of(("other=None if FAULT else 0",))
    assert all(f"lanes that kernel left_over, {place}, masks off" in failure.detail for failure in failures)
