"""Medians and how certain they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % confidence interval, in the unit of what was measured."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.1f} ({self.low:.1f} to {self.high:.1f})"


def interval(values: Sequence[float]) -> Interval:
    """By order statistics: no distribution is assumed. Refused: no value."""
    if not values:
        raise ValueError("values: an interval needs at least one")
    ordered = sorted(values)
    count = len(ordered)
    reach = 0.98 * sqrt(count)
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    return Interval(ordered[low], median(ordered), ordered[high])
