"""One guarded call: place the inputs, call, take the outputs, look at the damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from oracles.arrays import Inputs
from oracles.backends.base import Backend, Variation
from oracles.contract import Contract
from oracles.interception import intercepted, plain
from oracles.memory import Memory, Region, values_of
from oracles.memory import bits as bits
from oracles.verdict import AddressMoved, Failure, Stale, Unsupported, WrongShape

MOST_BYTES = 1 << 28
"""Bytes of a result up to which it is copied to be compared. No input that is drawn has a result as large."""


@dataclass
class Run:
    """What one call did. ``outputs`` are NumPy copies (in/out buffers included); ``tensors`` the live originals.

    ``raw`` holds the copies as they were taken, where the contract has replaced elements of ``outputs`` by equally
    right ones.
    """

    arguments: dict[str, Any]
    memory: Memory
    outputs: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    error: BaseException | None = None
    failures: list[Failure] = field(default_factory=list)
    misshapen: list[WrongShape] = field(default_factory=list)
    launches: int = 0
    compilations: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)


def call(
    contract: Contract, function: Callable[..., Any], backend: Backend, inputs: Inputs, variation: Variation
) -> Run:
    """Call an implementation on new objects."""
    memory = backend.memory(variation)
    run = call_on(contract, function, backend, place(contract, memory, inputs), memory, variation)
    settle(contract, inputs, run)
    return run


def settle(contract: Contract, inputs: Inputs, run: Run) -> None:
    """Put the specification's results in the place of those that are right as well."""
    if contract.settle is not None and run.error is None and not run.misshapen:
        run.raw, run.outputs = run.outputs, dict(contract.settle(inputs, run.outputs))


def place(contract: Contract, memory: Memory, inputs: Inputs) -> dict[str, Any]:
    """The arguments of a call: guarded tensors for arrays, everything else as it is."""
    arguments: dict[str, Any] = {}
    for name, value in inputs.items():
        item = contract.input(name)
        arguments[name] = values_of(value, memory, name, device=item.role == "device", writable=item.inout)
    return arguments


def call_on(
    contract: Contract,
    function: Callable[..., Any],
    backend: Backend,
    arguments: dict[str, Any],
    memory: Memory,
    variation: Variation,
) -> Run:
    """Call an implementation on these objects."""
    # In/out buffers are judged where they were passed, whatever the implementation puts into the lists.
    run = Run({name: _same_items(value) for name, value in arguments.items()}, memory)
    state = _GlobalState()
    process = os.getpid()
    device = [region.tensor for region in memory.regions if region.device]
    result: Any = None
    with backend.watch(memory, variation) as observation:
        try:
            with intercepted(memory, device) as seen:
                result = _invoke(contract, function, arguments)
        except Unsupported:
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they are the implementation's
            reason = backend.limit_of(error)
            if reason is not None:
                raise Unsupported(reason) from error
            run.error = error
    if os.getpid() != process:
        os._exit(0)  # the implementation forked, and this is its child coming back from the call
    state.restore()
    run.failures = [*seen.failures, *observation.failures, *memory.faults()]
    run.launches, run.compilations = observation.launches, list(observation.compilations)
    run.touched = [region.name for region in memory.regions if region.writable and _input_changed(region, contract)]
    if run.error is None:
        _collect(contract, run, result)
    return run


def _same_items(value: Any) -> Any:
    return [_same_items(item) for item in value] if isinstance(value, list) else value


def _invoke(contract: Contract, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if contract.call is not None:
        return contract.call(function, dict(arguments))
    return function(**arguments)


def _input_changed(region: Region, contract: Contract) -> bool:
    names = {item.name for item in contract.inputs if item.inout}
    return region.name.split("[")[0] in names and bool(region.changed().size)


class _GlobalState:
    """Settings of torch that a callable may leave changed: harmless to the contract, so undone without a verdict."""

    def __init__(self) -> None:
        self.dtype = torch.get_default_dtype()
        self.grad = torch.is_grad_enabled()
        self.deterministic = torch.are_deterministic_algorithms_enabled()

    def restore(self) -> None:
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)
        if torch.is_grad_enabled() != self.grad:
            torch.set_grad_enabled(self.grad)
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            torch.use_deterministic_algorithms(self.deterministic)
        if torch.get_default_device() != torch.device("cpu"):
            torch.set_default_device(None)


def _collect(contract: Contract, run: Run, result: Any) -> None:
    """Name the results, copy them, and note what cannot be compared at all."""
    returned = [item.name for item in contract.outputs]
    buffers = [item.name for item in contract.inputs if item.inout]
    for name in buffers:
        run.outputs[name] = _copy(run, name, run.arguments[name])
    values = _named(returned, {name: run.arguments[name] for name in buffers}, result)
    if isinstance(values, str):
        run.misshapen.append(WrongShape("outputs", values))
        return
    for name, value in values.items():
        run.outputs[name] = _copy(run, name, value)
        _name_after_output(run, name, value)
        _judge_place(contract, run, name, value)
        for shared in _shared_inputs(run, value):
            if contract.is_view(name, shared.public_name):
                continue
            run.failures.append(Stale(name, f"shares memory with the input {shared.name}"))


def _judge_place(contract: Contract, run: Run, name: str, value: Any) -> None:
    """A result that has to be a view of a caller's buffer is no copy of it."""
    inside = next(item.inside for item in contract.outputs if item.name == name)
    if inside is None or not isinstance(value, torch.Tensor) or not value.numel():
        return
    buffer = run.arguments[inside]
    if value.data_ptr() != buffer.data_ptr() or value.stride() != buffer.stride():
        run.failures.append(AddressMoved(name, f"lies elsewhere than {inside}, of which it has to be a view"))


def _name_after_output(run: Run, name: str, value: Any) -> None:
    """Failures of a buffer that the implementation allocated and returned are failures of that output."""
    region = run.memory.region_of(value) if isinstance(value, torch.Tensor) else None
    if region is None or not region.allocated:
        return
    for at, item in enumerate(run.failures):
        if item.where == region.public_name and region.name in item.detail:
            run.failures[at] = type(item)(name, item.detail.replace(region.name, name))


def _named(names: Sequence[str], buffers: Mapping[str, Any], result: Any) -> dict[str, Any] | str:
    """The results by name, or what is wrong: a tuple or list in order, a mapping by the same names, or one value alone.

    Kernel libraries return the in/out buffers too, behind the outputs or by their names. That is accepted of the very
    buffers that were passed, where they are judged anyway. What a mapping has under further names is its own business.
    Without outputs, nobody looks at what is returned.
    """
    if not names:
        return {}
    if isinstance(result, Mapping):
        items, order = dict(result), list(result)
        fits = set(names) <= set(result)
    else:
        values = list(result) if isinstance(result, tuple | list) else [result]
        order = [*names, *buffers]
        items = dict(zip(order, values, strict=False))
        fits = len(values) in (len(names), len(order))
    if not fits:
        more = f", and behind them may be {', '.join(buffers)}" if buffers else ""
        return f"returned {_described(result)}; the contract has {', '.join(names)}{more}"
    for name, buffer in buffers.items():
        if name in items and not _is_same(items[name], buffer):
            place = repr(name) if isinstance(result, Mapping) else f"item {1 + order.index(name)}"
            return f"returned {_described(result)}; its {place} is not the buffer {name} that was passed"
    return {name: items[name] for name in names}


def _described(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"{type(result).__name__} with {', '.join(map(str, result)) or 'nothing'}"
    count = len(result) if isinstance(result, tuple | list) else 1
    return f"{type(result).__name__} with {count} items" if count != 1 else type(result).__name__


def _is_same(value: Any, buffer: Any) -> bool:
    """Whether this is the buffer that was passed, perhaps as another object; of a list, each."""
    if isinstance(buffer, list):
        same = isinstance(value, list | tuple) and len(value) == len(buffer)
        return same and all(map(_is_same, value, buffer))
    if value is buffer or not isinstance(value, torch.Tensor) or not isinstance(buffer, torch.Tensor):
        return value is buffer
    return plain(value, buffer.device.type) and _layout(value) == _layout(buffer)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _copy(run: Run, name: str, value: Any, depth: int = 3) -> Any:
    if isinstance(value, list | tuple) and depth:
        return tuple(_copy(run, f"{name}[{index}]", item, depth - 1) for index, item in enumerate(value))
    if not isinstance(value, torch.Tensor):
        return value
    if not plain(value, run.memory.device_type):
        run.misshapen.append(WrongShape(name, f"{value.layout} on {value.device} where a dense tensor belongs"))
        return None
    if value.device.type != run.memory.device_type and any(region.device for region in run.memory.regions):
        run.misshapen.append(WrongShape(name, f"on {value.device} where a tensor on the device belongs"))
        return None
    if value.numel() * value.element_size() > MOST_BYTES:
        text = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}, more than any result for these inputs"
        run.misshapen.append(WrongShape(name, text))
        return None
    run.tensors[name] = value
    run.dtypes[name] = str(value.dtype).removeprefix("torch.")
    return run.memory.read(value)


def _shared_inputs(run: Run, value: Any) -> list[Region]:
    if isinstance(value, list | tuple):
        tensors = [item for item in value if isinstance(item, torch.Tensor)]
        return [region for item in tensors for region in _shared_inputs(run, item)]
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return []
    region = run.memory.region_of(value)
    return [region] if region is not None and not region.allocated and not region.writable else []
