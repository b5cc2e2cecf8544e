"""What this backend sees beyond the common observation."""

from __future__ import annotations

from dataclasses import dataclass, field

from oracles.backends.base import Observation


@dataclass
class InterpreterObservation(Observation):
    """``poisoned`` counts, for each kernel line with a load without ``other``, the lanes that were masked off.

    ``reads`` describes the first such load of each line, and ``unwritten`` the first load of memory that nobody had
    written: what it read, the program, the line and the lane.
    """

    poisoned: dict[str, int] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    unwritten: list[str] = field(default_factory=list)
