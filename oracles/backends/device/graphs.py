"""Capture a call in a device graph, replay it with other values, and compare with the eager call (G10).

An engine captures once and replays for every step: the kernels run again on the addresses that they were captured
with. So whatever a captured function works on has to stay where it is, values are changed by copying over the same
tensors, and nothing that the host computes from values may be part of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from oracles.memory import bits
from oracles.notation import with_bits
from oracles.verdict import AddressMoved, Failure, GraphDiverges

Tensors = Mapping[str, torch.Tensor]
Function = Callable[..., Tensors]

WARM_UPS = 2
"""Eager calls before the capture: a compilation or a first allocation cannot be captured."""


class Replay:
    """A captured call. ``inputs`` are the tensors it works on, in/out buffers too; ``outputs`` what it returned."""

    def __init__(self, function: Function, inputs: Tensors, outputs: Tensors, replay: Callable[[], None]) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self._function = function
        self._replay = replay
        self._addresses = {name: tensor.data_ptr() for name, tensor in self._everything().items()}

    def __call__(self, values: Tensors) -> dict[str, torch.Tensor]:
        """Copy values over the inputs (those not named keep theirs), replay, and give copies of all that came out."""
        self._refill(values)
        self._replay()
        return _copies(self._everything())

    def failures(self, values: Tensors) -> list[Failure]:
        """Replay with these values, then call eagerly with the same: what differs, and what is somewhere else."""
        start = _copies(self.inputs) | dict(values)
        replayed = self(start)
        self._refill(start)
        eager = self._function(**self.inputs)
        found = self._moved(eager)
        for name, tensor in {**self.inputs, **eager}.items():
            failure = _different(name, replayed.get(name), tensor)
            if failure is not None:
                found.append(failure)
        return found

    def _everything(self) -> dict[str, torch.Tensor]:
        return self.inputs | self.outputs

    def _refill(self, values: Tensors) -> None:
        for name, value in values.items():
            if self.inputs[name].shape != value.shape or self.inputs[name].dtype != value.dtype:
                raise ValueError(f"{name}: a captured graph has one shape and dtype for it")
            self.inputs[name].copy_(value)

    def _moved(self, eager: Tensors) -> list[Failure]:
        """Caller-owned memory that a later call would use in another place than the graph does."""
        found: list[Failure] = []
        for name, tensor in {**self.inputs, **eager}.items():
            before = self._addresses.get(name)
            owned = name in self.inputs or self._in_inputs(self.outputs.get(name))
            if owned and before is not None and tensor.numel() and tensor.data_ptr() != before:
                found.append(AddressMoved(name, f"{name} is {tensor.data_ptr() - before:+} bytes from where it was"))
        return found

    def _in_inputs(self, tensor: torch.Tensor | None) -> bool:
        if tensor is None:
            return False
        storage = tensor.untyped_storage().data_ptr()
        return any(storage == other.untyped_storage().data_ptr() for other in self.inputs.values())


def capture(function: Function, static_inputs: Tensors, *, cuda: Any = None) -> Replay:
    """Capture ``function(**static_inputs)``.

    ``cuda`` is ``torch.cuda`` unless a test puts a stand-in there; it has the same name on AMD devices. The values of
    the inputs after this are those from before it, whatever the warm-up calls did to in/out buffers.
    """
    cuda = torch.cuda if cuda is None else cuda
    values = _copies(static_inputs)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UPS):
            function(**static_inputs)
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        outputs = function(**static_inputs)
    for name, value in values.items():
        static_inputs[name].copy_(value)
    return Replay(function, static_inputs, outputs, graph.replay)


def _copies(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _different(name: str, replayed: torch.Tensor | None, eager: torch.Tensor) -> Failure | None:
    if replayed is None:
        return GraphDiverges(name, f"{name} is returned by the eager call only")
    if replayed.shape != eager.shape or replayed.dtype != eager.dtype:
        return GraphDiverges(name, f"{name} is {list(replayed.shape)} in the graph, {list(eager.shape)} eagerly")
    one, two = bits(replayed), bits(eager)
    if one.tobytes() == two.tobytes():
        return None
    where, dtype = _first_difference(one, two), str(eager.dtype).removeprefix("torch.")
    found, wanted = (with_bits(dtype, values[tuple(where)]) for values in (one, two))
    return GraphDiverges(name, f"{name}{where} is {found} after a replay, {wanted} eagerly")


def _first_difference(one: Any, two: Any) -> list[int]:
    size = one.dtype.itemsize
    changed = (one.reshape(*one.shape, 1).view("u1") != two.reshape(*two.shape, 1).view("u1")).reshape(-1, size).any(1)
    flat = int(changed.argmax())
    index = []
    for count in reversed(one.shape):
        index.append(flat % count)
        flat //= count
    return index[::-1]
