"""Mamba's chunk layout on the host: this project's function and vLLM's method, side by side in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.figures import repetitions
from oracles.arrays import Array, Value, array
from oracles.contract import Values
from oracles.contracts import by_name
from oracles.providers import ProviderError, resolve

CONTRACT = by_name("chunk_metadata.mamba_chunk_layout")
REQUESTS = (1, 2, 8, 32, 128, 512)
LENGTHS = (100, 2048)
CHUNK_SIZE = 256
SECONDS = 2e-2

Call = Callable[[], Any]


def batch(requests: int, tokens: int, checkpoints: bool) -> dict[str, Value]:
    """Requests of one length that earlier steps have begun, with a checkpoint in the middle or without."""
    return {
        "query_start_loc": array(np.arange(requests + 1) * tokens, "int32"),
        "num_computed_tokens": array(np.arange(requests) * 37, "int32"),
        "chunk_size": CHUNK_SIZE,
        "checkpoint_offsets": array(np.full(requests, tokens // 2), "int32") if checkpoints else None,
    }


def microseconds(calls: list[Call], rounds: int) -> list[float]:
    """Medians of processor time a call, the calls in turn."""
    counts = [repetitions(_seconds(call, 1), SECONDS, 1000) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for times, call, count in zip(found, calls, counts, strict=True):
            times.append(_seconds(call, count) / count * 1e6)
    return [median(times) for times in found]


def _seconds(call: Call, count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - begin


def _bound(function: Callable[..., Any], inputs: dict[str, Value]) -> Call:
    """The call with tensors; refused with ``ClickException``: outputs that are not the reference's."""
    import torch

    given = {name: torch.from_numpy(each.data) if isinstance(each, Array) else each for name, each in inputs.items()}
    expected = CONTRACT.expected(inputs)
    assert isinstance(expected, Values)
    for output, got in zip(CONTRACT.outputs, function(**given), strict=True):
        if not np.array_equal(got.numpy(), np.asarray(expected.outputs[output.name])):
            raise click.ClickException(f"{function.__module__}: {output.name} is wrong, so its time means nothing")
    return lambda: function(**given)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--vllm", metavar="SPEC", required=True, help="vLLM's sources, read and not installed: vllm:FILE.whl.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
def main(vllm: str, rounds: int) -> None:
    """Print processor microseconds a call and their ratio. Exits with 1 where this project is slower."""
    import torch

    torch.set_num_threads(1)
    try:
        functions = [resolve(spec, [CONTRACT], named=True)[0].load() for spec in ("optimized", vllm)]
    except (ProviderError, LookupError) as error:
        raise click.UsageError(str(error)) from error
    click.echo(
        f"{'requests':>8}{'tokens each':>13}{'checkpoint':>12}{'optimized':>12}{'vLLM':>12}{'vLLM/optimized':>16}"
    )
    slower = 0
    for requests in REQUESTS:
        for tokens, checkpoints in [(tokens, on) for tokens in LENGTHS for on in (False, True)]:
            inputs = batch(requests, tokens, checkpoints)
            ours, theirs = microseconds([_bound(function, inputs) for function in functions], rounds)
            slower += ours > theirs
            line = f"{requests:>8}{tokens:>13}{'yes' if checkpoints else 'no':>12}"
            click.echo(f"{line}{ours:>12,.1f}{theirs:>12,.1f}{theirs / ours:>9.1f}x")
    sys.exit(slower > 0)


if __name__ == "__main__":
    main()
