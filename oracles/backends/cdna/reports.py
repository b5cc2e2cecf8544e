"""What was wrong with a launch, and how it is told: which element, which line of the kernel, which instruction, who."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oracles.backends.cdna.ir import LANES
from oracles.verdict import Failure, UninitialisedRead

if TYPE_CHECKING:
    from oracles.backends.cdna.ir import Instruction, Line
    from oracles.backends.cdna.wave import Wave

Grid = tuple[int, int, int]

SHARED = "shared memory"
"""The name of a workgroup's local memory (LDS) in failures: it has no tensor's."""


@dataclass(frozen=True)
class Report:
    """One thing that was wrong. ``what`` says it in words; ``lanes`` is how many lanes of the wave are concerned.

    ``place`` is the stable name that the failure carries; ``lane`` is the first lane, or ``None`` where no lane counts.
    """

    kind: type[Failure]
    place: str
    what: str
    instruction: Instruction | None
    workgroup: Grid
    wave: int
    lane: int | None = None
    lanes: int = 1


@dataclass
class LaunchRecord:
    """What one launch did: instructions of all its waves, workgroups that ran, and reports without repetitions.

    ``repeated`` counts, for each report, how often the same instruction did the same to the same buffer again.
    ``unwritten`` describes the first load of words of a buffer that nobody had written.
    """

    kernel: str
    grid: Grid
    instructions: int = 0
    workgroups: int = 0
    reports: list[Report] = field(default_factory=list)
    unwritten: str | None = None
    repeated: list[int] = field(default_factory=list)
    _places: dict[tuple[str, str, int | None], int] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        """Take up a report, or count it where there is one like it."""
        number = None if report.instruction is None else report.instruction.number
        key = (report.kind.kind, report.place, number)
        at = self._places.setdefault(key, len(self.reports))
        if at == len(self.reports):
            self.reports.append(report)
            self.repeated.append(0)
        else:
            self.repeated[at] += 1

    def note_unwritten(self, what: str, wave: Wave, instruction: Instruction, lane: int, lanes: int) -> None:
        """Describe a load of what nobody had written."""
        report = Report(UninitialisedRead, "", what, instruction, wave.group.index, wave.number, lane, lanes)
        self.unwritten = f"{what}, which nobody had written; {_who(self.kernel, report)}"

    def note(
        self,
        kind: type[Failure],
        place: str,
        what: str,
        wave: Wave,
        instruction: Instruction | None,
        lane: int | None = None,
        lanes: int = 1,
    ) -> None:
        """Take up what a wave did."""
        self.add(Report(kind, place, what, instruction, wave.group.index, wave.number, lane, lanes))


def failures(record: LaunchRecord) -> Iterator[Failure]:
    """The reports of a launch as failures, in the order in which they were made.

    Two reports that differ in the instruction only, as when the compiler unrolls a loop, are one failure: that of the
    first one.
    """
    told = set()
    for report, more in zip(record.reports, record.repeated, strict=True):
        line = None if report.instruction is None else report.instruction.line
        key = (report.kind, report.place, line)
        if line is not None and key in told:
            continue
        told.add(key)
        again = f"; {more} more such accesses in this launch" if more else ""
        yield report.kind(report.place, f"{report.what}; {_who(record.kernel, report)}{again}")


def _who(kernel: str, report: Report) -> str:
    parts = [f"kernel {kernel}", f"workgroup {report.workgroup}"]
    if report.instruction is not None:
        parts += [site(report.instruction.line), f"instruction `{report.instruction.text or report.instruction.name}`"]
    parts.append(f"wave {report.wave}")
    if report.lane is not None:
        parts.append(f"lane {report.lane} of {LANES}, {report.lanes} lanes in all")
    return ", ".join(parts)


def site(line: Line | None) -> str:
    """A line of a kernel's source with its text, and from where the function around it was called."""
    if line is None:
        return "an unknown line"
    text = linecache.getline(line.file, line.number).strip()
    here = f"{os.path.basename(line.file)}:{line.number}" + (f": {text}" if text else "")
    return here if line.inlined is None else f"{here} (called from {_callers(line.inlined)})"


def _callers(line: Line) -> str:
    name = f"{os.path.basename(line.file)}:{line.number}"
    return name if line.inlined is None else f"{name}, {_callers(line.inlined)}"
