"""What this backend sees beyond the common observation."""

from __future__ import annotations

from dataclasses import dataclass, field

from oracles.backends.base import Observation


@dataclass
class InterpreterObservation(Observation):
    """``poisoned`` counts, for each kernel line with a load without ``other``, the lanes that were masked off."""

    poisoned: dict[str, int] = field(default_factory=dict)
