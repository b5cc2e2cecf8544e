"""Kernels with and without planted faults, and what the interpreter backend says about each.

Run as a script, because ``TRITON_INTERPRET`` must be set before Triton is imported: prints one JSON object that maps
the name of each check to what was observed. ``test_interpreter.py`` judges it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from interpreter_kernels import (
    borrowed,
    casts,
    exchange,
    gather,
    half_annotated,
    last_one_sums,
    of_many,
    order_of,
    product,
    product_plain,
    reductions,
    renamed_exp,
    same_flag,
    scaled,
    scan,
    shift_in_place,
    shuffled,
    specialised,
    spread,
    through_slice,
    through_table,
)

from oracles.arrays import array
from oracles.backends.base import Variation
from oracles.backends.interpreter import BACKEND, InterpreterObservation
from oracles.memory import Memory
from oracles.verdict import Unsupported

FAR = 2**31 + 64
"""A row stride, in elements, that no 32-bit product survives."""

CHECKS: dict[str, Callable[[], dict[str, Any]]] = {}


def check(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def watched(call: Callable[[Memory], Mapping[str, torch.Tensor]], variation: Variation | None = None) -> dict[str, Any]:
    """Call, observe, and put everything that was seen into plain values."""
    variation = variation or Variation()
    memory = BACKEND.memory(variation)
    seen = InterpreterObservation()
    result: dict[str, Any] = {"raised": None, "values": {}}
    try:
        with BACKEND.watch(memory, variation) as seen:
            outputs = call(memory)
        result["values"] = {name: tensor.tolist() for name, tensor in outputs.items()}
    except Exception as error:
        result["raised"] = [type(error).__name__, str(error)]
    found = [*seen.failures, *memory.faults()]
    result["failures"] = [[failure.kind, failure.where, failure.detail] for failure in found]
    result["launches"], result["compilations"] = seen.launches, seen.compilations
    result["poisoned"], result["unwritten"] = seen.poisoned, seen.unwritten
    return result


def _gather(memory: Memory, fault: str) -> Mapping[str, torch.Tensor]:
    far = fault in ("stride32", "far")
    values = np.arange(1, 13, dtype=np.int8 if far else np.int32).reshape(3, 4)
    layout = (FAR, 1) if far else (9, 1)
    table = memory.place(array([1, 0, 2], "int32"), "block_table", device=True)
    cache = memory.place(array(values, str(values.dtype), layout), "cache", device=True)
    out = memory.allocate((3, 4), torch.int32, "torch.empty #1 [3, 4]")
    totals = memory.allocate((3,), torch.int32, "torch.empty #2 [3]")
    gather[(3,)](table, cache, out, totals, 3, cache.stride(0), 4, FAULT=fault, BLOCK=8)
    return {"out": out, "totals": totals}


def _scan(memory: Memory, fault: str) -> Mapping[str, torch.Tensor]:
    far = fault in ("stride32", "far")
    layout = (FAR, 1) if far else (5, 1)
    values = array(np.arange(6, dtype=np.int8).reshape(2, 3), "int8", layout)
    lengths = memory.place(values, "lengths", device=True)
    out = memory.allocate((2, 4), torch.int32, "starts")
    scan[lambda meta: (meta["rows"],)](lengths, out, 2, lengths.stride(0), 3, FAULT=fault, BLOCK=4)
    return {"out": out}


@check
def faults() -> dict[str, Any]:
    """Every fault in both kernels, under both sentinels."""
    found = {}
    for name, call in (("gather", _gather), ("scan", _scan)):
        for fault in ("none", "far", "mask", "block", "other", "stride32", "past", "race"):
            for sentinel in (0, 1):
                result = watched(lambda memory, call=call, fault=fault: call(memory, fault), Variation(sentinel))
                found[f"{name} {fault} {sentinel}"] = result
    return found


@check
def orders() -> dict[str, Any]:
    """The ticket that each of five programs draws, in each order."""

    def call(memory: Memory) -> Mapping[str, torch.Tensor]:
        out = memory.allocate((5,), torch.int32, "out")
        counter = memory.place(array([0], "int32"), "counter", device=True, writable=True)
        order_of[(5,)](out, counter)
        return {"out": out}

    def unwritten(memory: Memory) -> Mapping[str, torch.Tensor]:
        order_of[(2,)](memory.allocate((2,), torch.int32, "out"), memory.allocate((1,), torch.int32, "counter"))
        return {}

    kinds = ("forward", "reverse", "random")
    found = {kind: watched(call, Variation(order=kind, seed=3)) for kind in kinds}
    return found | {"unwritten": watched(unwritten)}


@check
def pointer_tables() -> dict[str, Any]:
    """Rows reached through addresses in an integer table, exactly and one element too far."""

    def call(memory: Memory, skew: int) -> Mapping[str, torch.Tensor]:
        rows = [memory.place(array([i] * 4, "int32"), f"rows[{i}]", device=True) for i in range(2)]
        table = memory.place(array([row.data_ptr() for row in rows], "int64"), "pointers", device=True)
        out = memory.allocate((2, 4), torch.int32, "out")
        through_table[(2,)](table, out, skew, BLOCK=4)
        return {"out": out}

    return {str(skew): watched(lambda memory, skew=skew: call(memory, skew)) for skew in (0, 1)}


@check
def races() -> dict[str, Any]:
    """Programs that depend on each other, and programs that only look as if they did."""

    def shift(memory: Memory) -> Mapping[str, torch.Tensor]:
        values = memory.place(array([1, 2, 3, 4], "int32"), "values", device=True, writable=True)
        shift_in_place[(3,)](values)
        return {}

    def flag(memory: Memory) -> Mapping[str, torch.Tensor]:
        same_flag[(4,)](memory.allocate((1,), torch.int32, "flag"), memory.allocate((4,), torch.int32, "out"))
        return {}

    def last(memory: Memory, sem: str) -> Mapping[str, torch.Tensor]:
        counter = memory.place(array([0], "int32"), "counter", device=True, writable=True)
        out = memory.allocate((1,), torch.int32, "out")
        last_one_sums[(3,)](memory.allocate((3,), torch.int32, "parts"), counter, out, 3, SEM=sem, BLOCK=4)
        return {"out": out}

    return {
        "shift": watched(shift),
        "flag": watched(flag),
        "acquire": watched(lambda memory: last(memory, "acq_rel")),
        "relaxed": watched(lambda memory: last(memory, "relaxed")),
    }


@check
def scalars() -> dict[str, Any]:
    """Types of scalar arguments: annotated, by value, too large, and refused."""

    def call(memory: Memory, kernel: Any, *args: Any) -> Mapping[str, torch.Tensor]:
        out = memory.allocate((1,), torch.int64, "out")
        kernel[(1,)](out, *args)
        return {"out": out}

    def float_scale(memory: Memory) -> Mapping[str, torch.Tensor]:
        values = memory.place(array([1.0, 2.0], "float16"), "values", device=True)
        out = memory.allocate((2,), torch.float32, "out")
        scaled[(1,)](values, out, 2.0**-20, BLOCK=2)
        return {"out": out}

    return {
        "annotated": watched(lambda memory: call(memory, product, 2**30, 8)),
        "plain": watched(lambda memory: call(memory, product_plain, 2**30, 8)),
        "one": watched(lambda memory: call(memory, product, 1, 8)),
        "large": watched(lambda memory: call(memory, product_plain, 2**31 + 1, 4)),
        "too large": watched(lambda memory: call(memory, product, 2**64, 1)),
        "not whole": watched(lambda memory: call(memory, product, 1.5, 1)),
        "bfloat16": watched(lambda memory: call(memory, half_annotated, 1.5)),
        "float": watched(float_scale),
    }


@check
def limits() -> dict[str, Any]:
    """What is refused with a reason, and what is the kernel's own failure."""

    def call(memory: Memory, kind: str, dtype: torch.dtype = torch.float32) -> Mapping[str, torch.Tensor]:
        values = torch.zeros(1, dtype=dtype)
        casts[(1,)](values, memory.allocate((1,), torch.float32, "out"), KIND=kind)
        return {}

    def swallowed(memory: Memory) -> Mapping[str, torch.Tensor]:
        try:
            return call(memory, "bf16")
        except Unsupported:
            return {}

    result = {kind: watched(lambda memory, kind=kind: call(memory, kind)) for kind in ("bf16", "fp8", "asm", "assert")}
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        result[str(dtype)] = watched(lambda memory, dtype=dtype: call(memory, "", dtype))
    return {**result, "swallowed": watched(swallowed)}


@check
def compilations() -> dict[str, Any]:
    """Launches that the JIT would compile once, and launches that it would compile again."""

    def call(memory: Memory, arguments: list[tuple[int, int]]) -> Mapping[str, torch.Tensor]:
        out = memory.allocate((4,), torch.int32, "out")
        for a, b in arguments:
            specialised[(1,)](out, a, b, BLOCK=4, num_warps=2)
        return {}

    cases = {
        "same": [(3, 3), (5, 16), (7, 1)],
        "sixteen": [(3, 3), (16, 3)],
        "one": [(3, 3), (1, 3)],
        "wide": [(3, 3), (2**40 + 1, 3)],
    }
    return {name: watched(lambda memory, pairs=pairs: call(memory, pairs)) for name, pairs in cases.items()}


@check
def borrowed_functions() -> dict[str, Any]:
    """A builtin under another name works; a function of the device library does not exist here."""

    def call(memory: Memory, kind: str) -> Mapping[str, torch.Tensor]:
        out = memory.allocate((1,), torch.float32, "out")
        borrowed[(1,)](torch.zeros(1), out, KIND=kind)
        return {"out": out}

    result = {kind: watched(lambda memory, kind=kind: call(memory, kind)) for kind in ("renamed", "stub")}
    result["restored"] = {"values": renamed_exp is tl.exp, "raised": None, "failures": []}
    return result


@check
def extremes() -> dict[str, Any]:
    """Minimum, maximum and sum over a block with one masked lane and no ``other``."""

    def call(memory: Memory) -> Mapping[str, torch.Tensor]:
        values = memory.place(array([1.0, 2.0, 3.0], "float16"), "values", device=True)
        out = memory.allocate((3,), torch.float16, "out")
        reductions[(1,)](values, out, 3, BLOCK=4)
        return {"out": out}

    return {str(sentinel): watched(call, Variation(sentinel)) for sentinel in (0, 1)}


@check
def truth_values() -> dict[str, Any]:
    """A scalar truth value spread over lanes, a zero for a single lane, and a program that touches nothing."""

    def call(memory: Memory) -> Mapping[str, torch.Tensor]:
        values = memory.place(array([5, 6, 7, 8], "int32"), "values", device=True)
        out = memory.allocate((2, 4), torch.int32, "out")
        spread[(3,)](values, out, 2)
        return {"out": out}

    return {str(sentinel): watched(call, Variation(sentinel)) for sentinel in (0, 1)}


@check
def atomics() -> dict[str, Any]:
    """A compare-and-swap and an atomic add, inside a buffer and past its end."""

    def call(memory: Memory, index: int) -> Mapping[str, torch.Tensor]:
        values = memory.place(array([4, 4], "int32"), "values", device=True, writable=True)
        out = memory.allocate((1,), torch.int32, "out")
        exchange[(1,)](values, index, out, 4)
        return {"values": values, "out": out}

    return {str(index): watched(lambda memory, index=index: call(memory, index)) for index in (1, 2)}


@check
def operations() -> dict[str, Any]:
    """Gather and scan work; unregistered storages are legal where they are arguments, and only there."""

    def call(memory: Memory, count: int) -> Mapping[str, torch.Tensor]:
        values, indices = torch.arange(4, dtype=torch.int32), torch.tensor([3, 2, 1, 0], dtype=torch.int32)
        out, sums = torch.zeros(4, dtype=torch.int32), torch.zeros(count, dtype=torch.int32)
        shuffled[(1,)](values, indices, out, sums, BLOCK=4)
        return {"out": out, "sums": sums}

    return {str(count): watched(lambda memory, count=count: call(memory, count)) for count in (4, 3)}


@check
def arguments() -> dict[str, Any]:
    """Tuples, tensor descriptors, three axes, grid functions and wrappers of kernels."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def call(memory: Memory, columns: int) -> Mapping[str, torch.Tensor]:
        block = memory.place(array(np.ones((2, columns)), "float32"), "block", device=True)
        added = memory.place(array([0, 1, 2, 3], "int32"), "added", device=True)
        out = memory.allocate((8, 4), torch.float32, "out")
        descriptor = TensorDescriptor(block, [2, 4], [columns, 1], [2, 4])
        of_many[(2, 2, 2)]((added, 10), descriptor, out, BLOCK=4)
        return {"out": out}

    def tuned(memory: Memory) -> Mapping[str, torch.Tensor]:
        wrapped = triton.heuristics({"BLOCK": lambda values: 4})(specialised)
        out = memory.allocate((4,), torch.int32, "out")
        wrapped[lambda meta: (meta["BLOCK"] // 4,)](out, 1, 2)
        return {"out": out}

    def timed(memory: Memory) -> Mapping[str, torch.Tensor]:
        configurations = [triton.Config({"BLOCK": size}) for size in (4, 8)]
        out = memory.allocate((4,), torch.int32, "out")
        triton.autotune(configurations, key=["a"])(specialised)[(1,)](out, 1, 2)
        return {"out": out}

    def missing(memory: Memory) -> Mapping[str, torch.Tensor]:
        specialised[(1,)](memory.allocate((4,), torch.int32, "out"), 1, BLOCK=4)
        return {}

    return {
        "tuple and descriptor": watched(lambda memory: call(memory, 4)),
        "heuristics": watched(tuned),
        "autotune": watched(timed),
        "missing": watched(missing),
    }


@check
def views() -> dict[str, Any]:
    """An argument that is a slice of a buffer may reach the whole buffer; the report counts from the buffer's start."""

    def call(memory: Memory, first: int) -> Mapping[str, torch.Tensor]:
        values = memory.place(array(range(8), "int32"), "values", device=True)
        out = memory.allocate((2,), torch.int32, "out")
        through_slice[(2,)](values[first:], out)
        return {"out": out}

    return {str(first): watched(lambda memory, first=first: call(memory, first)) for first in (1, 7)}


@check
def quiet() -> dict[str, Any]:
    """A launch makes no torch calls that a function mode or a dispatch mode could take for the implementation's."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    heard: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(str(function))
            return function(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(str(function))
            return function(*args, **(kwargs or {}))

    def call(memory: Memory) -> Mapping[str, torch.Tensor]:
        out = memory.allocate((4,), torch.int32, "out")
        sizes = torch.ones(1, dtype=torch.int64)
        with Functions(), Dispatched():
            specialised[(1,)](out, 2, 3, BLOCK=4)
            in_launch = list(heard)
            specialised[lambda meta: (sizes[0],)](out, 2, 3, BLOCK=4)
        return {"out": out, "in_launch": torch.tensor(len(in_launch)), "in_grid": torch.tensor(len(heard))}

    return {"quiet": watched(call)}


@check
def restored() -> dict[str, Any]:
    """Outside a watch Triton is what it was before, also after a failed call."""
    from triton.runtime import interpreter

    def state() -> list[Any]:
        functions, semantic = interpreter.InterpretedFunction, type(interpreter.interpreter_semantic)
        runs = [functions.run, functions.__call__, interpreter.ReduceScanOpInterface.to_tensor]
        language = [semantic.load, tl.load, tl.core.load, getattr(tl.tensor, "__bool__", None)]
        return [*runs, *language, *sorted(vars(interpreter.interpreter_builder))]

    before = state()
    watched(lambda memory: _scan(memory, "none"))
    watched(lambda memory: _scan(memory, None))  # type: ignore[arg-type]
    return {"restored": [str(item) for item in state() if item not in before]}


def main() -> None:
    """Run the checks named on the command line, or all."""
    BACKEND.prepare()
    names = sys.argv[1:] or list(CHECKS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        print(json.dumps({name: CHECKS[name]() for name in names}))


if __name__ == "__main__":
    main()
