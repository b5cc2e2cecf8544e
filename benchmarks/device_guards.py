"""What guarded memory costs on a device: the same cases judged with it and with plain tensors, block by block.

    python benchmarks/device_guards.py --backend cuda --examples 400

Both sides judge the same sampled inputs of a contract with this project's implementation, through the same code; the
plain side has no guard zones, no poison, no copies of inputs, and reads each output by itself. Needs a device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from oracles.arrays import Array, Inputs
from oracles.backends import by_name as backend_by_name
from oracles.backends.base import Backend, Variation
from oracles.backends.device.backend import DeviceBackend
from oracles.backends.device.memory import DeviceMemory
from oracles.check import Subject, judge
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Sampler
from oracles.memory import Memory, Region, bits, torch_dtype
from oracles.providers import find
from oracles.verdict import Failure, Unsupported

BLOCK = 25
"""Cases judged on one side before the other one has its turn."""


class PlainMemory(DeviceMemory):
    """Tensors as a caller without a harness would make them; nothing is watched."""

    def commit(self) -> None:
        """Nothing is left to copy."""

    def read_back(self) -> None:
        """Outputs are read one by one."""

    def faults(self) -> Iterator[Failure]:
        """None are looked for."""
        return iter(())

    def read(self, tensor: torch.Tensor) -> Any:
        """A copy of an output's values."""
        return bits(tensor)

    def region_of(self, tensor: torch.Tensor) -> Region | None:
        """Buffers are not told apart."""
        return None

    def place(self, value: Array, name: str, *, device: bool, writable: bool = False) -> torch.Tensor:
        """A tensor with the values and the layout of ``value``."""
        where = self._runtime.device if device else torch.device("cpu")
        spread = 0 if 0 in value.shape else sum((n - 1) * s for n, s in zip(value.shape, value.layout, strict=True)) + 1
        whole = torch.empty(value.offset + spread, dtype=torch_dtype(value.dtype), device=where)
        tensor = whole.as_strided(value.shape, value.layout, value.offset)
        tensor.copy_(torch.from_numpy(value.data.copy()))
        self._note(name, tensor, device=device, writable=writable)
        return tensor

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, name: str, *, device: bool = True) -> torch.Tensor:
        """What ``torch.empty`` gives."""
        tensor = torch.empty(shape, dtype=dtype, device=self._runtime.device if device else "cpu")
        self._note(name, tensor, device=device, writable=True)
        return tensor

    def overwrite(self, name: str, value: Array) -> None:
        """Put other values into the tensor of that name."""
        region = next(region for region in self.regions if region.name == name)
        region.tensor.copy_(torch.from_numpy(value.data.copy()))

    def _note(self, name: str, tensor: torch.Tensor, *, device: bool, writable: bool) -> None:
        raw = bits(torch.empty(0, dtype=torch.uint8))
        shape, strides = tuple(tensor.shape), tensor.stride()
        region = Region(name, raw, 0, tensor.dtype.itemsize, shape, strides, device, writable, tensor, raw)
        self.regions.append(region)


class PlainBackend(DeviceBackend):
    """A device without guards."""

    def memory(self, variation: Variation) -> Memory:
        """Plain device memory."""
        return PlainMemory(self.runtime(), variation.sentinel)


def subjects(contract_name: str, backend: DeviceBackend) -> dict[str, Subject]:
    """This project's implementation with guards and without."""
    contract = contract_by_name(contract_name)
    implementation = find("optimized", contract, contract.name)
    function = implementation.load()
    sides: dict[str, Backend] = {"guarded": backend, "plain": PlainBackend(backend.vendor)}
    return {name: Subject(contract, implementation, function, side) for name, side in sides.items()}


def judged(subject: Subject, cases: list[Inputs]) -> float:
    """Seconds for these cases. A finding ends the benchmark: its figures would mean nothing."""
    start = time.perf_counter()
    for inputs in cases:
        try:
            failures = judge(subject, inputs)
        except (Unsupported, torch.OutOfMemoryError):
            continue
        if failures and not isinstance(subject.backend, PlainBackend):
            raise click.ClickException(f"a finding: {failures[0]}")
    return time.perf_counter() - start


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--backend", "name", type=click.Choice(["cuda", "rocm"]), default="cuda", show_default=True)
@click.option("--contract", default="chunk_metadata.chunk_metadata", show_default=True)
@click.option("--examples", type=click.IntRange(min=BLOCK), default=400, show_default=True)
def main(name: str, contract: str, examples: int) -> None:
    """Cases a second with guards and without, and their ratio."""
    backend = backend_by_name(name)
    reason = backend.unavailable()
    if reason is not None:
        raise click.ClickException(f"backend {name} is unavailable: {reason}")
    assert isinstance(backend, DeviceBackend)
    sides = subjects(contract, backend)
    domain = sides["guarded"].contract.domain
    cases = [domain(Sampler(0, index)) for index in range(examples)]
    blocks = [cases[at : at + BLOCK] for at in range(0, examples, BLOCK)]
    for subject in sides.values():
        judged(subject, cases)  # compiles what these cases need
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for block in blocks:
        for side, subject in sides.items():
            seconds[side].append(judged(subject, block))
    show(seconds, examples, contract, backend.runtime().name)


def show(seconds: dict[str, list[float]], examples: int, contract: str, device: str) -> None:
    """The table."""
    table = Table(title=f"{contract} on {device}: {examples} cases", title_justify="left")
    for heading in ("memory", "cases a second", "milliseconds a case"):
        table.add_column(heading, justify="right")
    for side, times in seconds.items():
        table.add_row(side, f"{examples / sum(times):,.0f}", f"{1000 * sum(times) / examples:.2f}")
    ratio = statistics.median(g / p for g, p in zip(seconds["guarded"], seconds["plain"], strict=True))
    Console().print(table, f"guarded / plain, median of blocks: {ratio:.2f}")


if __name__ == "__main__":
    main()
