"""The plot of the metadata benchmark: how a step's cost grows with groups, and that context does not matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.intervals import Interval
from benchmarks.reuse_steps import Setting

Found = Mapping[Setting, Mapping[str, tuple[Interval, Interval]]]


def draw(path: Path, found: Found, device: str) -> None:
    """Three panels: over groups, over context, over requests. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, tuple[Callable[[Setting], bool], Callable[[Setting], int]]] = {
        "KDA groups": (lambda s: not s.mla and s.requests == 8 and s.context == 16_384, lambda s: s.linear),
        "context, 14 KDA groups": (lambda s: s.linear == 14 and not s.mla and s.requests == 8, lambda s: s.context),
        "requests, 14 KDA groups": (
            lambda s: s.linear == 14 and not s.mla and s.context == 16_384,
            lambda s: s.requests,
        ),
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 4), sharey=True)
    for axis, (title, (belongs, size)) in zip(axes, panels.items(), strict=True):
        chosen = sorted((setting for setting in found if belongs(setting)), key=size)
        for name in dict.fromkeys(name for setting in chosen for name in found[setting]):
            _line(
                axis, name, [(size(setting), found[setting][name][1]) for setting in chosen if name in found[setting]]
            )
        axis.set(title=title, xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds a step")
    axes[-1].legend(fontsize=7)
    figure.suptitle(f"metadata of a decode step, {device}: median and 95 % interval")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _line(axis: Any, name: str, points: list[tuple[int, Interval]]) -> None:
    sizes, middles = [size for size, _ in points], [each.middle for _, each in points]
    below = [each.middle - each.low for _, each in points]
    above = [each.high - each.middle for _, each in points]
    axis.errorbar(sizes, middles, yerr=(below, above), label=name, marker="o", markersize=3, linewidth=1)
