"""Graphs (G10): a call that is captured once and replayed with other values equals an eager call.

Asked of contracts whose results are buffers of the caller and that read nothing on the host, on backends that can
capture. The other values are those of the freshness protocol, copied over the same buffers; eager calls with them were
judged before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from oracles.arrays import Array, Inputs, arrays_of
from oracles.backends.base import Backend, Variation
from oracles.call import place
from oracles.contract import Contract
from oracles.lines import line_of, traceback_of, with_line
from oracles.memory import Memory, torch_dtype
from oracles.verdict import Failure, GraphDiverges, described, place_of


@runtime_checkable
class CapturesGraphs(Protocol):
    """What a backend offers on which launches can be captured."""

    def captured(self, function: Callable[..., Mapping[str, torch.Tensor]], inputs: dict[str, torch.Tensor]) -> Any:
        """A capture of ``function(**inputs)``, whose ``failures(values)`` compares a replay with an eager call."""


def applies(contract: Contract) -> bool:
    """Whether the contract promises that captured calls can be replayed."""
    reads_host = any(item.role == "host" for item in contract.inputs)
    return contract.kind == "function" and not reads_host and any(item.inout for item in contract.inputs)


def graphs(contract: Contract, function: Callable[..., Any], backend: Backend, inputs: Inputs) -> list[Failure]:
    """Capture the call on ``inputs``, then replay it with every other input of its layout, and with the first again."""
    others = contract.resample(inputs)
    if not isinstance(backend, CapturesGraphs) or not applies(contract) or not others:
        return []
    variation = Variation()
    memory = backend.memory(variation)
    arguments = place(contract, memory, inputs)
    tensors = {region.name: region.tensor for region in memory.regions if region.device}

    def call(**_: torch.Tensor) -> Mapping[str, torch.Tensor]:
        function(**arguments)
        return {}

    found: list[Failure] = []
    with backend.watch(memory, variation):
        try:
            replay = backend.captured(call, tensors)
            for values in (*others, inputs):
                found += replay.failures(_on_device(memory, tensors, values))
        except Exception as error:
            failure = GraphDiverges("capture", with_line(f"raises {described(error)}", line_of(error)))
            failure.trace = traceback_of(error)
            found.append(failure)
    return [type(item)(place_of(item.where), item.detail) for item in found] + list(memory.faults())


def _on_device(memory: Memory, tensors: Mapping[str, torch.Tensor], values: Inputs) -> dict[str, torch.Tensor]:
    """The values as device tensors, by the names of the buffers that they are copied into."""
    return {name: _tensor(value, tensors[name].device) for name, value in arrays_of(values) if name in tensors}


def _tensor(value: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(value.data.copy()).view(torch_dtype(value.dtype)).to(device)
