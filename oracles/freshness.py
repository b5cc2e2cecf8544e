"""Freshness (G9): the result depends on the values at the call and on nothing else.

Persistent buffers are refilled in place between steps, so identity, shape and address say nothing about the contents.
The protocol calls an implementation on the same objects with other values, then on other objects at the same address,
and looks again at results it returned earlier. Every value it expects comes from the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from oracles.arrays import Array, Inputs, Value, dtype_of, flat, plain_value
from oracles.backends.base import Backend, Variation
from oracles.call import Run, call, call_on, place, settle
from oracles.contract import Contract, Values
from oracles.lines import line_of, traceback_of, with_line
from oracles.memory import Memory, Region, values_of
from oracles.notation import listed
from oracles.verdict import Failure, Stale, described, place_of


def freshness(contract: Contract, function: Callable[..., Any], backend: Backend, inputs: Inputs) -> list[Failure]:
    """Failures of the protocol; nothing if the contract knows no other input of this layout."""
    others = contract.resample(inputs)
    if not others:
        return []
    variation = Variation(0, "forward")
    memory = backend.memory(variation)
    arguments = place(contract, memory, inputs)
    kept: list[tuple[Run, str]] = []
    steps = [(inputs, "same"), *((other, "same") for other in others), (inputs, "same"), (others[-1], "recycled")]
    for step, (values, objects) in enumerate(steps):
        expected = contract.expected(values)
        if not isinstance(expected, Values):
            continue
        if step:
            _refill(contract, memory, arguments, values)
        if objects == "recycled":
            arguments = {name: _other_object(value) for name, value in arguments.items()}
        run = call_on(contract, function, backend, arguments, memory, variation)
        settle(contract, values, run)
        failure = _wrong(contract, values, run, expected, objects)
        if failure is not None:
            # Values that are wrong on new objects too are wrong for another reason, which the plain calls report,
            # unless every other input gets the first one's results: then something remembers more than the objects.
            alone = [call(contract, function, backend, other, variation) for other in (values, *others)]
            remembered = len(others) > 1 and bool(kept) and all(_same(run, kept[0][0]) for run in alone)
            return [failure] if remembered or _wrong(contract, values, alone[0], expected, objects) is None else []
        failure = _moved(contract, kept)
        if failure is not None:
            return [failure]
        kept.append((run, f"call {step}"))
    return []


def _refill(contract: Contract, memory: Memory, arguments: dict[str, Any], values: Inputs) -> None:
    """Copy other values over the same buffers, as an engine refills its persistent ones."""
    for name, value in values.items():
        if contract.input(name).role == "scalar":
            arguments[name] = values_of(value, memory, name, device=False, writable=False)
        else:
            _overwrite(memory, name, value)


def _overwrite(memory: Memory, name: str, value: Value) -> None:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            _overwrite(memory, f"{name}[{index}]", item)
    elif isinstance(value, Array):
        memory.overwrite(name, value)


def _other_object(value: Any) -> Any:
    """Another tensor object over the same memory."""
    if isinstance(value, torch.Tensor):
        return value.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, list):
        return [_other_object(item) for item in value]
    return value


def _wrong(contract: Contract, values: Inputs, run: Run, expected: Values, objects: str) -> Failure | None:
    what = {
        "same": "after the input objects were refilled in place",
        "recycled": "for new objects at an address that was used before",
    }[objects]
    if run.error is not None:
        text = with_line(f"raises {described(run.error)} {what}", line_of(run.error))
        raised = Stale(type(run.error).__name__, text)
        raised.trace = traceback_of(run.error)
        return raised
    if contract.accepts is not None:
        complaint = contract.accepts(values, run.outputs)
        return Stale(contract.outputs[0].name, f"{complaint}, {what}") if complaint else None
    outputs = flat(run.outputs)
    for name, value in flat(expected.outputs).items():
        got, wanted = outputs.get(name), plain_value(value)
        if not _equal(got, wanted):
            dtype = run.dtypes.get(name, "")
            text = f"got {_short(dtype, got)}, expected {_short(dtype_of(value), wanted)}"
            return Stale(place_of(name), f"{name} does not follow the values {what}: {text}")
    return None


def _same(one: Run, other: Run) -> bool:
    """Whether two calls returned the same bits in every output."""
    ours, theirs = flat(one.outputs), flat(other.outputs)
    return one.error is None and ours.keys() == theirs.keys() and all(map(_equal, ours.values(), theirs.values()))


def _equal(got: Any, wanted: Any) -> bool:
    if not isinstance(wanted, np.ndarray):
        return bool(type(got) is type(wanted) and got == wanted)
    return isinstance(got, np.ndarray) and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()


def _moved(contract: Contract, kept: list[tuple[Run, str]]) -> Failure | None:
    """Whether a result that was returned earlier still has its values."""
    for run, label in kept:
        outputs = flat(run.raw or run.outputs)
        for name, tensor in run.tensors.items():
            region = run.memory.region_of(tensor)
            if region is not None and not region.allocated and _may_change(contract, name, region):
                continue
            if run.memory.read(tensor).tobytes() != outputs[name].tobytes():
                return Stale(place_of(name), f"the {name} returned by {label} was changed by a later call")
    return None


def _may_change(contract: Contract, name: str, region: Region) -> bool:
    """A view of an in/out buffer, which later calls are meant to change, or of an input where the contract says so."""
    return region.writable or contract.is_view(name, region.public_name)


def _short(dtype: str, value: Any) -> str:
    return listed(dtype, value, 80) if isinstance(value, np.ndarray) else str(value)
