"""What a run is asked for, and what comes out of it."""

from __future__ import annotations

import bisect
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from oracles.backends.base import Executed
from oracles.domain import Scope
from oracles.providers.base import Bound
from oracles.reduce import Choices
from oracles.session import CannotLoad, HarnessError, Task
from oracles.verdict import severity


@dataclass(frozen=True)
class Profile:
    """How much is tried: the small scope, then so many samples."""

    scope: Scope
    examples: int


PROFILES = {
    "smoke": Profile(Scope(1, 2), 30),
    "ci": Profile(Scope(2, 2), 200),
    "dev": Profile(Scope(3, 3), 1000),
    "nightly": Profile(Scope(4, 3), 10_000),
}


@dataclass(frozen=True)
class Settings:
    """What a run was asked for. Of several ``parts`` that share the small scope, it is part ``part``."""

    profile: Profile
    seed: int = 0
    state: Path = Path(".oracles")
    time_limit: float | None = None
    known: bool = True
    corpus: Path | None = None
    part: int = 0
    parts: int = 1
    reduce_attempts: int = 1500
    reduce_seconds: float = 20.0


@dataclass(frozen=True)
class Finding:
    """A failing verdict with its smallest case."""

    kind: str
    where: str
    detail: str
    bucket: str
    case: Path
    summary: str
    replay: str
    choices: Choices


@dataclass
class Result:
    """What became of one task. ``refused`` says why nothing could be judged, ``bound`` what a binding was bound to.

    ``time_limit`` is that of a case, where it was not the backend's own. ``printed`` is what the callable wrote to
    standard output and error, where that was asked for. ``executed`` counts what a backend ran that executes
    instructions one by one; what a worker did just before it died is not in it. ``noted`` is what calls have noted.
    """

    task: Task
    judged: int = 0
    avoided: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: str | None = None
    compilations: int = 0
    stage: str = "waiting"
    known: Counter[str] = field(default_factory=Counter)
    unexpected: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    broken: bool = False
    bound: Bound | None = None
    time_limit: float | None = None
    printed: str = ""
    executed: Executed = field(default_factory=Executed)
    noted: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Put a finding where it belongs: the most severe kind first, a kind's by place, then as they were found."""
        bisect.insort(self.findings, finding, key=lambda other: (severity(other.kind), other.where))

    def replay(self, path: Path) -> str:
        """The command line that judges a case file as it was judged here."""
        task = self.task
        return replay_command(path, task.implementation.spec, task.backend.name, self.time_limit)

    @property
    def narrowed(self) -> Counter[str]:
        """The part of ``unsupported`` that was not given to a binding, because a narrowing excludes it."""
        reasons = {narrowing.reason for narrowing in self.task.implementation.narrowings}
        return Counter({reason: count for reason, count in self.unsupported.items() if reason in reasons})

    @property
    def remarks(self) -> str:
        """What the contract says of what calls have noted."""
        contract = self.task.contract
        return contract.remarks(self.noted) if contract.remarks is not None else ""

    def note_broken(self, error: HarnessError) -> None:
        """The harness failed: no verdict on the implementation."""
        self.broken = True
        self.refused = "the harness itself failed, which is a defect of metadata-oracles"
        self.notes.append(str(error))

    def note_unloadable(self, error: CannotLoad) -> None:
        """The implementation could not be loaded: nothing was judged."""
        self.refused = f"could not be loaded: {error}"


def result_of(task: Task, settings: Settings) -> Result:
    """The result of a task that is about to be judged with these settings."""
    limit = settings.time_limit
    return Result(task, time_limit=None if limit == task.backend.time_limit else limit)


def replay_command(path: Path, spec: str, backend: str, time_limit: float | None = None) -> str:
    """The exact command line that shows a finding again; ``time_limit`` in seconds, where the backend's is another."""
    words = ["oracles", "replay", str(path), "--impl", spec, "--backend", backend]
    if time_limit is not None:
        words += ["--time-limit", repr(time_limit).removesuffix(".0")]
    return shlex.join(words)
