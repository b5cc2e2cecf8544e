"""Chunk metadata on a GPU: this project's kernel, vLLM's device builder and host path, and an empty launch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from benchmarks import batches, figures, report
from benchmarks.figures import BUILDER, FLOOR, HOST_PATH, OURS, Point
from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name
from oracles.environment import environment
from oracles.providers import ProviderError, resolve

CONTRACT = by_name("chunk_metadata.chunk_metadata")
SEQUENCES = (1, 2, 7, 64, 257, 1024, 8192, 16384, 65536)
CHUNK_SIZES = (64, 256)
FRESH_OBJECTS = 16  # more than the eight arguments that vLLM's host path remembers
NOTHING_JUDGED = 3

VLLM = {"prepare_chunk_metadata_device": BUILDER, "prepare_chunk_indices+prepare_chunk_offsets": HOST_PATH}

COUNT = click.IntRange(1)
FILE = click.Path(path_type=Path, dir_okay=False)

Call = Callable[..., Any]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--vllm", metavar="SPEC", help="vLLM's sources, read and not installed, such as vllm:FILE.whl.")
@click.option("--impl", "extra", metavar="SPEC", multiple=True, help="One more contender, such as mine.py:NAME.")
@click.option("-n", "--sequences", type=COUNT, multiple=True, default=SEQUENCES, show_default=True)
@click.option("--chunk-size", "chunk_sizes", type=COUNT, multiple=True, default=CHUNK_SIZES, show_default=True)
@click.option(
    "--lengths",
    type=click.Choice(list(batches.DISTRIBUTIONS)),
    multiple=True,
    default=list(batches.DISTRIBUTIONS),
    show_default=True,
    help="Which batches.",
)
@click.option("--rounds", type=COUNT, default=15, show_default=True, help="Rounds; slow contenders get fewer.")
@click.option("--json", "json_file", type=FILE, help="Write all figures there.")
@click.option("--plot", "plot_file", type=FILE, help="Draw them there as a PNG; needs matplotlib.")
def main(
    vllm: str | None,
    extra: tuple[str, ...],
    sequences: tuple[int, ...],
    chunk_sizes: tuple[int, ...],
    lengths: tuple[str, ...],
    rounds: int,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure the chunk metadata builders side by side on this machine's GPU.

    For each batch the outputs are first compared with the reference; what is wrong is not timed. Then a graph of
    launches is replayed and timed with events, and eager calls are timed on the host: until the call is enqueued, and
    until the device is done. Contenders take turns; the figures are medians, in microseconds.

    \b
    Batches: decode   one token each
             prefill  at most eight long sequences share 2**20 tokens, the others decode
             mixed    1 to 2,048 tokens
             empty    as mixed, but seven of eight sequences have no tokens

    Exit codes: 0 all goals met; 1 a goal is missed, or a result of this project is wrong; 2 usage; 3 no GPU, or no
    goal could be judged (without --vllm).

    \b
    Example: python -m benchmarks.chunk_metadata --vllm vllm:FILE.whl --json out.json --plot out.png
    """
    device = _device_or_exit()
    try:
        calls = _calls(vllm, extra)
    except ProviderError as error:
        raise click.UsageError(str(error)) from error
    points = []
    for name in lengths:
        for chunk_size in chunk_sizes:
            for count in sequences:
                begin = time.perf_counter()
                points.append(_measured(calls, name, chunk_size, count, rounds))
                click.echo(f"{points[-1].name} ({time.perf_counter() - begin:.1f} s)", err=True)
    sys.exit(_reported(points, {"device": device, "vllm": vllm, **environment()}, json_file, plot_file))


def _device_or_exit() -> str:
    try:
        import torch
    except ImportError:
        click.echo("torch is not installed: this benchmark needs a GPU and a build of torch for it", err=True)
        sys.exit(NOTHING_JUDGED)
    if not torch.cuda.is_available():
        click.echo(f"torch {torch.__version__} sees no GPU: nothing can be measured here", err=True)
        sys.exit(NOTHING_JUDGED)
    from benchmarks.device_timing import warm_clocks

    warm_clocks(0.5)
    return torch.cuda.get_device_name()


def _calls(vllm: str | None, extra: tuple[str, ...]) -> dict[str, Call]:
    """Each contender as a function of the contract's inputs."""
    calls: dict[str, Call] = {OURS: resolve("optimized", [CONTRACT], named=True)[0].load()}
    for found in resolve(vllm, [CONTRACT], named=True) if vllm else ():
        if found.unsupported:
            raise ProviderError(f"{found.provider}: {found.unsupported}")
        calls[VLLM[found.name]] = found.load()
    for spec in extra:
        calls[spec] = resolve(spec, [CONTRACT], named=True)[0].load()
    if HOST_PATH in calls:
        calls[HOST_PATH] = _copied_to_device(calls[HOST_PATH])
    return calls


def _copied_to_device(host: Call) -> Call:
    """As vLLM's GDN builder calls it: on the twin, and each result goes through pinned memory to the device."""

    def chunk_metadata(cu_seqlens: Any, cu_seqlens_cpu: Any, chunk_size: int) -> tuple[Any, ...]:
        found = host(cu_seqlens=cu_seqlens_cpu, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
        return tuple(each.pin_memory().to(cu_seqlens.device, non_blocking=True) for each in found)

    return chunk_metadata


def _measured(calls: Mapping[str, Call], distribution: str, chunk_size: int, count: int, rounds: int) -> Point:
    import torch

    from benchmarks.device_timing import Contender, measure
    from benchmarks.empty_launch import empty_launch

    starts = batches.starts(batches.DISTRIBUTIONS[distribution](count))
    wanted = _answer(starts, chunk_size)
    twin = torch.from_numpy(starts)
    on_device = twin.cuda()
    fresh = [(on_device[:], twin[:]) for _ in range(FRESH_OBJECTS)]

    def bound(call: Call) -> Call:
        def run(number: int) -> Any:
            device, host = fresh[number % FRESH_OBJECTS]
            return call(cu_seqlens=device, cu_seqlens_cpu=host, chunk_size=chunk_size)

        return run

    timed, left_out = {}, {}
    for name, call in calls.items():
        complaint = _complaint(bound(call)(0), wanted)
        if complaint and name == OURS:
            raise click.ClickException(f"{distribution}, N = {count}: {OURS} is wrong: {complaint}")
        if complaint:
            left_out[name] = "wrong"
        else:
            timed[name] = Contender(bound(call), captures=name != HOST_PATH)
    timed[FLOOR] = Contender(lambda number: empty_launch(on_device))
    return Point(
        distribution=distribution,
        chunk_size=chunk_size,
        sequences=count,
        chunks=len(wanted[0]),
        times=measure(timed, rounds),
        left_out=left_out,
    )


def _answer(starts: np.ndarray, chunk_size: int) -> tuple[np.ndarray, ...]:
    given = array(starts.tolist(), "int32")
    expected = CONTRACT.expected({"cu_seqlens": given, "cu_seqlens_cpu": given, "chunk_size": chunk_size})
    assert isinstance(expected, Values)
    return tuple(np.asarray(expected.outputs[output.name]) for output in CONTRACT.outputs)


def _complaint(found: Any, wanted: tuple[np.ndarray, ...]) -> str | None:
    """What is wrong with the outputs, or None."""
    for output, got, right in zip(CONTRACT.outputs, found, wanted, strict=True):
        values = got.cpu().numpy()
        if values.dtype != right.dtype or values.shape != right.shape:
            return f"{output.name} is {values.dtype} {values.shape}, not {right.dtype} {right.shape}"
        if not np.array_equal(values, right):
            return f"{output.name} differs at {np.argwhere(values != right)[0].tolist()}"
    return None


def _reported(points: list[Point], about: dict[str, Any], json_file: Path | None, plot_file: Path | None) -> int:
    """Print, write, and return the exit code."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    goals = figures.goals(points)
    console.print(report.table(points))
    console.print(report.growth_table(points))
    if json_file:
        report.write_json(json_file, report.document(points, goals, about))
    if plot_file:
        title = f"chunk metadata on {about['device']}, chunks of {points[0].chunk_size}"
        problem = report.plot(plot_file, points, points[0].chunk_size, title)
        if problem:
            click.echo(problem, err=True)
    for goal in goals:
        console.print(f"{goal.state}: {goal.rule} ({goal.judged} judged, {len(goal.misses)} missed)")
        for miss in goal.misses:
            console.print(f"  {miss}")
    states = {goal.state for goal in goals}
    return 1 if "missed" in states else NOTHING_JUDGED if "not judged" in states else 0


if __name__ == "__main__":
    main()
