"""What is made of measured times: medians, repetitions, growth, and whether goals are met. No torch here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

OURS, BUILDER, HOST_PATH, FLOOR = "optimized", "vLLM device", "vLLM host", "empty launch"

SLOWER_AT_MOST = 1.10
FASTER_AT = 8192
FASTER_BY = 20.0
GROWTH_AT_MOST = 1.1
GROWTH_FROM = 8192
HOST_TIME_AT_MOST = 0.7


@dataclass(frozen=True)
class Times:
    """Microseconds a call: in a replayed graph, on the host until the call is enqueued, and until it is done."""

    graph: float | None
    host: float
    total: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """One batch: its size, the times of every contender, and why a contender has none."""

    distribution: str
    chunk_size: int
    sequences: int
    chunks: int
    times: Mapping[str, Times]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Sequences plus chunks: what any implementation has to read and write."""
        return self.sequences + self.chunks

    @property
    def name(self) -> str:
        """How a goal or a message names this batch."""
        return f"{self.distribution}, N = {self.sequences:,}, chunks of {self.chunk_size}"

    def graph(self, contender: str) -> float | None:
        """Its time in a graph, where it has one."""
        return self.times[contender].graph if contender in self.times else None


@dataclass(frozen=True)
class Goal:
    """A rule, and every batch that misses it; ``judged`` counts the batches that could be looked at."""

    rule: str
    judged: int
    misses: Sequence[str]

    @property
    def state(self) -> str:
        """``met``, ``missed`` or ``not judged``."""
        return "missed" if self.misses else "met" if self.judged else "not judged"


def repetitions(seconds: float, budget: float, most: int, least: int = 1) -> int:
    """How often something of so many seconds fits a budget, between ``least`` and ``most``."""
    if seconds <= 0:
        return most
    return max(least, min(most, int(budget / seconds)))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The power of the size that the time grows with: the slope of a straight line through the logarithms.

    Refused: numbers that are not positive, and fewer than two different sizes.
    """
    if min(*sizes, *times, 1) <= 0:
        raise ValueError(f"sizes and times must be positive: {list(sizes)}, {list(times)}")
    if len(set(sizes)) < 2:
        raise ValueError(f"sizes: {list(sizes)}; a slope needs two different ones")
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def growth(points: Iterable[Point], contender: str) -> dict[str, float]:
    """For each series of batches, the exponent of the graph's time over sequences plus chunks.

    Only batches of at least ``GROWTH_FROM`` sequences count: below, the time is mostly that of a launch.
    """
    series: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        if point.sequences >= GROWTH_FROM and point.graph(contender) is not None:
            series[f"{point.distribution}, chunks of {point.chunk_size}"].append(point)
    return {
        name: exponent([point.size for point in found], [point.graph(contender) or 0.0 for point in found])
        for name, found in series.items()
        if len({point.size for point in found}) > 1
    }


def goals(points: Sequence[Point]) -> list[Goal]:
    """What this project promises of its builder, judged on what was measured."""

    def host(point: Point, contender: str) -> float | None:
        return point.times[contender].host if contender in point.times else None

    large = [point for point in points if point.sequences == FASTER_AT]
    powers = growth(points, OURS)
    return [
        _ratio_goal(
            f"in a graph never slower than {SLOWER_AT_MOST} times vLLM's device builder",
            points,
            Point.graph,
            SLOWER_AT_MOST,
        ),
        _ratio_goal(
            f"in a graph at least {FASTER_BY:g} times faster than it at N = {FASTER_AT:,}",
            large,
            Point.graph,
            1 / FASTER_BY,
        ),
        Goal(
            f"time grows with at most the power {GROWTH_AT_MOST} of sequences plus chunks",
            len(powers),
            [f"{name}: {power:.2f}" for name, power in powers.items() if power > GROWTH_AT_MOST],
        ),
        _ratio_goal(
            f"eager host time at most {HOST_TIME_AT_MOST} times vLLM's device builder", points, host, HOST_TIME_AT_MOST
        ),
    ]


def _ratio_goal(rule: str, points: Iterable[Point], measure: Callable[[Point, str], float | None], most: float) -> Goal:
    judged, misses = 0, []
    for point in points:
        ours, theirs = measure(point, OURS), measure(point, BUILDER)
        if ours is None or theirs is None:
            continue
        judged += 1
        if ours > most * theirs:
            misses.append(f"{point.name}: {ours:.2f} us against {theirs:.2f} us, {ours / theirs:.2f} times")
    return Goal(rule, judged, misses)
