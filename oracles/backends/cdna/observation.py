"""What this backend sees beyond the common observation."""

from __future__ import annotations

from dataclasses import dataclass, field

from oracles.backends.base import Observation


@dataclass
class CdnaObservation(Observation):
    """``poisoned`` names the lines with masked loads without ``other`` of the kernels that ran, with what each is.

    ``unwritten`` describes the first load of memory that nobody had written. ``instructions`` are those of all waves.
    """

    poisoned: dict[str, str] = field(default_factory=dict)
    unwritten: str | None = None
    instructions: int = 0
    workgroups: int = 0
