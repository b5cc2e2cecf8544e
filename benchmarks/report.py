"""A benchmark's output: the table, the JSON document and the plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.figures import BUILDER, OURS, Goal, Point, growth


def contenders(points: Sequence[Point]) -> list[str]:
    """All that were timed somewhere, in the order in which they first appear."""
    return list(dict.fromkeys(name for point in points for name in (*point.times, *point.left_out)))


def table(points: Sequence[Point]) -> Table:
    """One line a batch: microseconds a call in a graph, then host and total of an eager call."""
    shown = Table(title="microseconds a call", caption="graph | eager: host until enqueued / until done")
    for column in ("lengths", "chunk", "N", "chunks"):
        shown.add_column(column, justify="left" if column == "lengths" else "right", no_wrap=True)
    names = contenders(points)
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column(f"{BUILDER} / {OURS}", justify="right")
    for point in points:
        cells = [_cell(point, name) for name in names]
        size = (point.distribution, str(point.chunk_size), f"{point.sequences:,}", f"{point.chunks:,}")
        shown.add_row(*size, *cells, _ratio(point))
    return shown


def growth_table(points: Sequence[Point]) -> Table:
    """One line a series: the exponent of each contender."""
    found = {name: growth(points, name) for name in contenders(points)}
    names = [name for name, powers in found.items() if powers]
    shown = Table(title="power of sequences plus chunks that the graph's time grows with")
    for column in ("series", *names):
        shown.add_column(column, justify="left" if column == "series" else "right")
    for series in found.get(OURS, {}):
        shown.add_row(series, *(f"{found[name][series]:.2f}" if series in found[name] else "-" for name in names))
    return shown


def document(points: Sequence[Point], goals: Sequence[Goal], about: dict[str, Any]) -> dict[str, Any]:
    """All that was measured, as plain data."""
    return {
        **about,
        "points": [asdict(point) for point in points],
        "growth": {name: growth(points, name) for name in contenders(points)},
        "goals": [{**asdict(goal), "state": goal.state} for goal in goals],
    }


def write_json(path: Path, found: dict[str, Any]) -> None:
    """The document as an indented file."""
    path.write_text(json.dumps(found, indent=1) + "\n")


def plot(path: Path, points: Sequence[Point], chunk_size: int, title: str) -> str | None:
    """Draw time over sequences and the ratio below it, one column a distribution. Returns why it cannot, or None."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed (pip install matplotlib)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [point for point in points if point.chunk_size == chunk_size]
    columns = list(dict.fromkeys(point.distribution for point in drawn))
    size = (3.4 * len(columns), 5.4)
    figure, axes = pyplot.subplots(
        2, len(columns), figsize=size, sharex=True, sharey="row", height_ratios=(3, 2), squeeze=False
    )
    for place, distribution in enumerate(columns):
        series = [point for point in drawn if point.distribution == distribution]
        _draw(axes[0][place], axes[1][place], series)
        axes[0][place].set_title(distribution)
        axes[1][place].set_xlabel("sequences N")
    axes[0][0].set_ylabel("us a call in a graph")
    axes[1][0].set_ylabel(f"{BUILDER} / {OURS}")
    axes[0][0].legend(fontsize="small")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return None


def _draw(times: Any, ratios: Any, series: Sequence[Point]) -> None:
    for name in contenders(series):
        found = [(point.sequences, point.graph(name)) for point in series if point.graph(name) is not None]
        if found:
            times.loglog(*zip(*found, strict=True), marker=".", label=name)
    both = [(p.sequences, theirs / ours) for p in series if (ours := p.graph(OURS)) and (theirs := p.graph(BUILDER))]
    if both:
        ratios.loglog(*zip(*both, strict=True), marker=".", color="black")
    ratios.axhline(1, color="grey", linewidth=0.8)
    for axis in (times, ratios):
        axis.grid(alpha=0.3)


def _cell(point: Point, name: str) -> str:
    if name in point.left_out:
        return point.left_out[name]
    times = point.times.get(name)
    if times is None:
        return "-"
    graph = "-" if times.graph is None else _short(times.graph)
    return f"{graph} | {_short(times.host)} / {_short(times.total)}"


def _short(number: float) -> str:
    return f"{number:.2f}" if number < 100 else f"{number:,.0f}"


def _ratio(point: Point) -> str:
    ours, theirs = point.graph(OURS), point.graph(BUILDER)
    return f"{theirs / ours:.2f}" if ours and theirs else "-"
