"""RoPE and the KV-cache write of MLA on a GPU: one fused launch against torch and AITER's kernel, and bandwidth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.chunk_metadata import NOTHING_JUDGED
from benchmarks.device_timing import Contender, measure, warm_clocks
from benchmarks.empty_launch import empty_launch, row_of_position
from benchmarks.figures import Times
from oracles.contracts import by_name
from oracles.environment import environment
from oracles.providers import resolve

LATENT, ROPE, BLOCK_SIZE, POSITIONS = 512, 64, 64, 4_096
TOKENS = (1, 8, 32, 128, 512, 1_024, 4_096, 8_192, 16_384)
OURS, TORCH, AITER, COPY, ROW, FLOOR = (
    "optimized",
    "torch, unfused",
    "AITER Triton",
    "copy of the same bytes",
    "a position's row",
    "empty launch",
)
BANDWIDTH_SHARE, FLOORS_AT_8 = 0.8, 1.3
"""Goals: of the copy's bandwidth from 4,096 tokens on, and empty launches at 8 tokens."""


@dataclass(frozen=True)
class Point:
    """One batch: heads and tokens, the bytes that must move, and what each contender took."""

    heads: int
    tokens: int
    moved: int
    times: Mapping[str, Times]

    @property
    def share(self) -> float:
        """Bandwidth in parts of the copy's."""
        return (self.graph(COPY) or 0.0) / (self.graph(OURS) or 1.0)

    def graph(self, name: str) -> float | None:
        """Microseconds in a graph."""
        return self.times[name].graph if name in self.times else None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--aiter", metavar="SPEC", help="AITER's sources, read and not installed, such as aiter:FILE.zip.")
@click.option("-t", "--tokens", type=click.IntRange(1), multiple=True, default=TOKENS, show_default=True)
@click.option("--heads", type=click.IntRange(1), multiple=True, default=(16, 128), show_default=True)
@click.option("--rounds", type=click.IntRange(3), default=11, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures there.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path, dir_okay=False), help="Draw them as a PNG there.")
def main(
    aiter: str | None,
    tokens: tuple[int, ...],
    heads: tuple[int, ...],
    rounds: int,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure the fused write side by side with unfused torch, AITER's kernel and a copy, in replayed graphs.

    bfloat16, a latent of 512, 64 rotated lanes. "Bytes" are what any implementation must read and write once; the copy
    moves as many, half read and half written. "A position's row" is one program that loads a position and then its row
    of the table, which nobody can do without. Contenders take turns; figures are medians in microseconds a call.

    Exit codes: 0 all goals met; 1 a goal is missed; 2 usage; 3 no GPU.
    """
    if not torch.cuda.is_available():
        click.echo(f"torch {torch.__version__} sees no GPU: nothing can be measured here", err=True)
        sys.exit(NOTHING_JUDGED)
    warm_clocks(0.5)
    points = []
    for count in heads:
        for length in tokens:
            points.append(_measured(count, length, aiter, rounds))
            click.echo(f"{count} heads, {length:,} tokens", err=True)
    misses = _misses(points)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(_table(points))
    for miss in misses:
        console.print(miss)
    if json_file:
        about = {"device": torch.cuda.get_device_name(), "aiter": aiter, **environment()}
        json_file.write_text(json.dumps({**about, "points": [asdict(p) for p in points], "misses": misses}) + "\n")
    if plot_file:
        _draw(plot_file, points)
    sys.exit(1 if misses else 0)


def _inputs(heads: int, tokens: int) -> dict[str, Any]:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    angles = torch.rand(POSITIONS, ROPE // 2, device="cuda") * 6.28
    blocks = -(-tokens // BLOCK_SIZE) + 1
    return {
        "q_nope": drawn(tokens, heads, LATENT),
        "q_pe": drawn(tokens, heads, ROPE),
        "kv_c": drawn(tokens, LATENT),
        "k_pe": drawn(tokens, ROPE),
        "cos": angles.cos().bfloat16(),
        "sin": angles.sin().bfloat16(),
        "positions": torch.randint(0, POSITIONS, (tokens,), device="cuda"),
        "slot_mapping": torch.randperm(blocks * BLOCK_SIZE, device="cuda")[:tokens],
        "k_scale": None,
        "q_scale": None,
        "is_neox": True,
        "cache_dtype": "auto",
        "kv_cache": torch.zeros(blocks, BLOCK_SIZE, LATENT + ROPE, device="cuda", dtype=torch.bfloat16),
    }


def unfused(inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in separate torch operations, as an engine without the fusion has them."""
    cos, sin = (inputs[name][inputs["positions"]] for name in ("cos", "sin"))
    query, key = _rotated(inputs["q_pe"], cos[:, None], sin[:, None]), _rotated(inputs["k_pe"], cos, sin)
    cache = inputs["kv_cache"].view(-1, LATENT + ROPE)
    cache[inputs["slot_mapping"]] = torch.cat((inputs["kv_c"], key), dim=-1)
    return torch.cat((inputs["q_nope"], query), dim=-1), key


def _rotated(lanes: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = lanes.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _measured(heads: int, tokens: int, aiter: str | None, rounds: int) -> Point:
    from optimized.rope_kv_cache import rope_and_cache_mla

    inputs = _inputs(heads, tokens)
    named = ("q_nope", "q_pe", "kv_c", "k_pe")
    read = sum(inputs[name].nbytes for name in named)
    moved = 2 * read + inputs["k_pe"].nbytes + tokens * (8 + 8 + 2 * ROPE)
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target, row = torch.empty_like(source), torch.empty_like(inputs["cos"][0])
    runs: dict[str, Callable[[int], Any]] = {
        OURS: lambda number: rope_and_cache_mla(**inputs),
        TORCH: lambda number: unfused(inputs),
        COPY: lambda number: target.copy_(source),
        ROW: lambda number: row_of_position(inputs["positions"], inputs["cos"], row),
        FLOOR: lambda number: empty_launch(source),
    }
    if aiter:
        fused = _aiters(aiter)
        runs[AITER] = lambda number: fused(**inputs)
    _compare(inputs, runs)
    times = measure({name: Contender(run) for name, run in runs.items()}, rounds)
    return Point(heads, tokens, moved, times)


def _aiters(spec: str) -> Callable[..., Any]:
    contract = by_name("rope_kv_cache.rope_and_cache_mla")
    found = [item for item in resolve(spec, [contract], named=True) if "fused_qk_rope_cat_and_cache_mla" in item.name]
    if not found or found[0].unsupported:
        reason = found[0].unsupported if found else "it has no fused_qk_rope_cat_and_cache_mla"
        raise click.UsageError(f"{spec}: {reason}")
    return found[0].load()


def _compare(inputs: Mapping[str, Any], runs: Mapping[str, Callable[[int], Any]]) -> None:
    """Roundings differ in their last bit between orders; what is copied must be equal."""
    query, key = runs[OURS](0)
    wanted_query, wanted_key = runs[TORCH](0)
    if not torch.equal(query[..., :LATENT], wanted_query[..., :LATENT]):
        raise click.ClickException("the part of the queries that is not rotated differs")
    for got, wanted in ((query, wanted_query), (key, wanted_key)):
        if not torch.allclose(got.float(), wanted.float(), rtol=2**-6, atol=2**-5):
            raise click.ClickException("rotated lanes differ by more than roundings do")


def _misses(points: list[Point]) -> list[str]:
    found = []
    for point in points:
        name, ours, floor, theirs = f"H = {point.heads}, T = {point.tokens:,}", *map(point.graph, (OURS, FLOOR, AITER))
        assert ours is not None
        assert floor is not None
        if point.tokens >= 4_096 and point.share < BANDWIDTH_SHARE:
            found.append(f"missed: {name}: {point.share:.0%} of the copy's bandwidth")
        if point.tokens == 8 and ours > FLOORS_AT_8 * floor:
            found.append(f"missed: {name}: {ours / floor:.2f} empty launches")
        if theirs is not None and ours > theirs:
            found.append(f"missed: {name}: {ours:.1f} us, AITER's kernel {theirs:.1f} us")
    return found


def _table(points: list[Point]) -> Table:
    names = list(dict.fromkeys(name for point in points for name in point.times))
    table = Table(title="microseconds a call in a replayed graph")
    for column in ("H", "T", "MB", *names, "of the copy's bandwidth"):
        table.add_column(column, justify="right")
    for point in points:
        cells = [f"{point.graph(name) or 0:.2f}" for name in names]
        size = (str(point.heads), f"{point.tokens:,}", f"{point.moved / 1e6:.1f}")
        table.add_row(*size, *cells, f"{point.share:.0%}")
    return table


def _draw(path: Path, points: list[Point]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heads = list(dict.fromkeys(point.heads for point in points))
    figure, axes = pyplot.subplots(1, len(heads), figsize=(5 * len(heads), 4), sharey=True, squeeze=False)
    for axis, count in zip(axes[0], heads, strict=True):
        chosen = [point for point in points if point.heads == count]
        for name in dict.fromkeys(name for point in chosen for name in point.times):
            shown = [(point.tokens, point.graph(name)) for point in chosen if point.graph(name)]
            axis.plot([size for size, _ in shown], [each for _, each in shown], label=name, marker="o", markersize=3)
        axis.set(title=f"{count} heads", xlabel="tokens", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("microseconds a call, in a graph")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
