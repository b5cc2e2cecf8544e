"""Examine one implementation on one backend: walk the small scope, sample, then reduce everything that failed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oracles.case import Case, sizes
from oracles.domain import Replay, Sampler
from oracles.domain import walk as walked
from oracles.environment import environment
from oracles.messages import Command, Found, Progress, Replayed, Sample, Walk
from oracles.origins import origin
from oracles.reduce import Choices
from oracles.results import Finding, Result, Settings, result_of
from oracles.session import CannotLoad, Death, HarnessError, Session, Stopped, Task
from oracles.shrinking import Failing, Shrinker
from oracles.slot import Running
from oracles.verdict import bucket

MOST_BUCKETS = 6
"""Findings of one kind and place that are told apart by their traits."""

PATIENCE = 15
"""What dead workers may cost before a phase ends, and what was found is reduced: a crash 1, a hang or a nursery 4."""

FAR_APART = 20
"""Behind so many cases a crash costs nothing: a worker is replaced in less time than they took."""

SPARSE = 17
"""Of the rest of a walk that ended early, one case in so many is tried."""

MOST_COUNTED = 10_000
"""Cases that were not run are counted up to here."""

STRAYS = 3
"""Failures of one key whose cases alone show another one, after which the rest of that key is taken for the same."""

Listener = Callable[[Result], None]


class Examination:
    """One task from start to verdict. ``result`` is up to date at any moment, also when the run is interrupted."""

    def __init__(self, task: Task, settings: Settings, listener: Listener = lambda result: None) -> None:
        self.task = task
        self.settings = settings
        self.result = result_of(task, settings)
        self._tell = listener
        self._failing: dict[str, list[Failing]] = {}
        self._shrinker = Shrinker(task, settings)
        self._remembered: list[Failing] = []
        self._avoid: list[frozenset[str]] = []
        self._kept: dict[str, tuple[Path, str, str, str]] = {}
        self._session: Session | None = None
        self._patience = PATIENCE
        self._deaths, self._judged_at_death = 0, 0

    def run(self) -> Result:
        """Do it all."""
        try:
            settings = self.settings
            with Session(self.task, settings.state, time_limit=settings.time_limit, known=settings.known) as session:
                self._session = session
                self._phases(session)
                if self._avoid:
                    self.result.notes.append(f"{self.result.avoided:,} cases were not run for that reason")
                self._stage("reducing")
                self._reduce_all(session)
                self._report_kept()
        except Stopped:
            self._conclude_unreduced()
            return self.result
        except HarnessError as error:
            self.result.note_broken(error)
            self._conclude_unreduced()
        except CannotLoad as error:
            self.result.note_unloadable(error)
        self.result.complete = True
        self._stage("done")
        return self.result

    def stop(self) -> None:
        """End the examination from another thread: its worker is killed, and what was found stays."""
        if self._session is not None:
            self._session.stop()

    def _stage(self, stage: str) -> None:
        self.result.stage = stage
        self.result.bound = self._session.bound if self._session is not None else None
        self._tell(self.result)

    def _phases(self, session: Session) -> None:
        profile, avoid = self.settings.profile, self._avoiding
        self._stage("corpus")
        for path in corpus_of(self.task, self.settings.corpus):
            self._judge_kept(session, path)
        self._stage("small scope")
        scope, sparse = profile.scope, 1

        def walk(running: Running | None) -> Command:
            after, parts = running.choices if running else None, self.settings.parts * sparse
            return Walk(scope.count, scope.value, after, avoid(), self.settings.part, parts)

        def unwalked(running: Running | None) -> str:
            rest = walked(self.task.contract.domain, scope, running.choices if running else None)
            count = sum(1 for _ in itertools.islice(rest, MOST_COUNTED))
            more = " or more" if count == MOST_COUNTED else ""
            return f"{count // self.settings.parts:,}{more}"

        ended = self._phase(session, walk, unwalked)
        if ended is not None and self._regain_patience():
            # Neighbours in a walk are alike, and so die alike. Further on there may be other faults.
            sparse = SPARSE
            self.result.notes.append(f"small scope: one in {SPARSE} of these cases was run nevertheless")
            self._phase(session, walk, unwalked, ended)
        self._stage("sampling")
        self._regain_patience()
        self._sampling(session)

    def _sampling(self, session: Session) -> None:
        """The last phase: inputs beyond the small scope, here from the fast sampler."""

        def sample(running: Running | None) -> Command:
            start = running.index + 1 if running else 0
            return Sample(self.settings.seed, start, self.settings.profile.examples - start, self._avoiding())

        def unsampled(running: Running | None) -> str:
            return f"{self.settings.profile.examples - (running.index + 1 if running else 0):,}"

        self._phase(session, sample, unsampled)

    def _judge_kept(self, session: Session, path: Path) -> None:
        """One kept case. What it shows is reported as it is, unless the search finds the same and reduces it."""
        for event in session.ask_surely(Replayed(str(path.absolute()), kept=True)):
            failures: Sequence[tuple[str, str, str]] = ()
            if isinstance(event, Death):
                self._patience -= 1
                failures = [(event.kind, event.where, event.detail)]
            elif isinstance(event, Found):
                failures = event.failures
            elif isinstance(event, Progress):
                self._count(event)
            for kind, where, detail in failures:
                self._kept.setdefault(f"{kind}:{where}", (path, kind, where, detail))

    def _report_kept(self) -> None:
        found = {f"{finding.kind}:{finding.where}" for finding in self.result.findings}
        task = self.task
        for key, (path, kind, where, detail) in self._kept.items():
            if key in found:
                continue
            inputs = Case.load(path).inputs
            name = bucket(key, task.contract.traits(inputs))
            replay = self.result.replay(path)
            self.result.add(Finding(kind, where, detail, name, path, sizes(inputs), replay, ()))

    def _avoiding(self) -> list[list[str]]:
        return [sorted(traits) for traits in self._avoid]

    def _phase(
        self,
        session: Session,
        command: Callable[[Running | None], Command],
        left: Callable[[Running | None], str],
        running: Running | None = None,
    ) -> Running | None:
        """One command, taken up again behind every case that killed its worker; ``left`` counts what comes then.

        The last of them, if there were too many.
        """
        while self._patience > 0:
            death = self._ask(session, command(running))
            if death is None:
                return None
            running = self._survived(session, death) or running
        self._note_early_end(left(running))
        return running

    def _note_early_end(self, left: str) -> None:
        early = f"{self.result.stage}: ended early, because too many workers died"
        self.result.notes.append(f"{early}; {left} cases were not run")

    def _regain_patience(self) -> bool:
        """Where cases survive, other inputs are worth their own try."""
        survived = self.result.judged > self._deaths
        self._patience = PATIENCE if survived else self._patience
        return survived

    def _survived(self, session: Session, death: Death) -> Running | None:
        """Account for a dead worker; the case that it ran."""
        self._deaths += 1
        rare = self.result.judged - self._judged_at_death > FAR_APART
        self._patience -= 4 if death.kind == "hang" or death.nursery else 0 if rare else 1
        self._judged_at_death = self.result.judged
        if death.running is None:
            self.result.notes.append(f"the worker died between two cases ({death.where}) and was replaced")
        else:
            self._note_death(session, death)
        return death.running

    def _ask(self, session: Session, command: Command) -> Death | None:
        for event in session.ask(command):
            if isinstance(event, Death):
                self.result.judged += event.judged
                return event
            if isinstance(event, Found):
                self._note(event)
            elif isinstance(event, Progress):
                self._count(event)
        return None

    def _count(self, event: Progress) -> None:
        result = self.result
        result.judged += event.judged
        result.avoided += event.avoided
        result.unsupported.update(event.unsupported)
        result.known.update(event.known)
        result.unexpected |= event.unexpected
        result.noted.update(event.noted)
        result.compilations = max(result.compilations, event.compilations)
        result.executed = result.executed.plus(*event.executed)
        self._tell(result)

    def _note(self, event: Found) -> None:
        traits, choices = frozenset(event.traits), tuple(event.choices)
        for kind, where, detail in event.failures:
            item = Failing(kind, where, detail, traits, choices, event.path)
            self._failing.setdefault(item.key, []).append(item)
        self._tell(self.result)

    def _note_death(self, session: Session, death: Death) -> None:
        choices = self._choices_of(death.running)
        if choices is None:
            return
        self.result.judged += 1
        inputs = self.task.contract.domain(Replay(choices))
        traits = self.task.contract.traits(inputs)
        item = Failing(death.kind, death.where, death.detail, traits, choices, deadly=True)
        if death.doubtful and not self._dies_again(session, item):
            case = Case(contract=self.task.contract.full_name, inputs=inputs)
            note = f"a worker died ({death.where}) in or behind case {case.id}"
            self.result.notes.append(f"{note}, which does not kill when it is run again: {sizes(inputs)}")
            return
        found = self._origin() | {"choices": list(choices)}
        case = Case(contract=self.task.contract.full_name, inputs=inputs, origin=found)
        path = case.save(self.settings.state / "findings" / f"unreduced-{item.kind}-{case.id}.json")
        self._failing.setdefault(item.key, []).append(dataclasses.replace(item, path=str(path)))
        if len(self._failing[item.key]) == 2:
            self._learn_to_avoid(session, item)

    def _dies_again(self, session: Session, item: Failing) -> bool:
        return item.key in {failure.key for failure in self._shrinker.attempt(session, item.choices, fresh=True)}

    def _learn_to_avoid(self, session: Session, item: Failing) -> None:
        """What kills twice is reduced at once; if its traits always kill, no case that has them all is run again."""
        reduced = self._shrinker.reduced(session, item, ())
        if reduced.key != item.key:
            return
        self._failing[item.key].append(reduced)
        if reduced.traits and not reduced.remembered and self._shrinker.always(session, reduced):
            self._avoid.append(reduced.traits)
            self.result.notes.append(
                f"cases with {' and '.join(sorted(reduced.traits))} are not run again: they end in {item.key}"
            )

    def _choices_of(self, running: Running | None) -> Choices | None:
        if running is None:
            return None
        if running.choices is not None:
            return tuple(running.choices)
        source = Sampler(running.seed, running.index)
        self.task.contract.domain(source)
        return tuple(source.choices)

    def _reduce_all(self, session: Session) -> None:
        """Key by key. What takes the cases before comes last, if nothing that a case shows alone explains it."""
        done: set[str] = set()
        while waiting := sorted(set(self._failing) - done, key=lambda key: (key.startswith("stale:"), key)):
            done.add(waiting[0])
            self._reduce_key(session, waiting[0])
        stale = any(finding.kind == "stale" for finding in self.result.findings)
        for item in self._remembered:
            if item.kind != "stale" or not stale:
                self._conclude(item)
        self._remembered = []

    def _reduce_key(self, session: Session, key: str) -> None:
        """All findings of one kind and place: reduce, then look for failures that lack the traits found so far."""
        found, strays = list[Failing](), 0
        for item in sorted(self._failing[key], key=self._shrinker.order):
            if len(found) == MOST_BUCKETS or (strays == STRAYS and not found):
                break
            if any(other.traits <= item.traits for other in found):
                continue
            smallest = self._shrinker.reduced(session, item, [other.traits for other in found])
            if smallest.key == key or smallest.remembered:
                found.append(smallest)
            else:
                strays += 1
                self._failing.setdefault(smallest.key, []).append(smallest)
        for item in self._subsumed(found):
            if item.remembered:
                self._remembered.append(item)
            else:
                self._conclude(item)
        for item in self._failing[key]:
            if item.path:
                for suffix in (".json", ".npz"):
                    Path(item.path).with_suffix(suffix).unlink(missing_ok=True)

    def _conclude_unreduced(self) -> None:
        """What was found before an interruption, as small as it is."""
        done = {f"{finding.kind}:{finding.where}" for finding in self.result.findings}
        for key in sorted(set(self._failing) - done):
            self._conclude(min(self._failing[key], key=self._shrinker.order))

    def _subsumed(self, found: Sequence[Failing]) -> list[Failing]:
        """Drop findings whose traits contain another's: the same fault on a special input.

        Of those that are dropped, the simplest case is kept.
        """
        kept: list[Failing] = []
        for item in found:
            if not any(other.traits < item.traits for other in found):
                simplest = min((other for other in found if item.traits <= other.traits), key=self._shrinker.order)
                kept.append(dataclasses.replace(simplest, traits=item.traits))
        return kept

    def _origin(self) -> dict[str, Any]:
        about, cases = self.task.implementation, self.settings.state / "findings"
        return origin(about.spec, about.name, self.task.backend.name, cases) | {"provider": about.provider}

    def _conclude(self, item: Failing) -> None:
        """Write the finding down."""
        task = self.task
        inputs = task.contract.domain(Replay(item.choices, lenient=True))
        # What is special about a case says nothing about a fault that takes the cases before it.
        name = bucket(item.key, () if item.remembered else item.traits)
        found = self._origin() | {"choices": list(item.choices), "seed": self.settings.seed}
        verdict = {"kind": item.kind, "where": item.where, "detail": item.detail, "bucket": name}
        name_of_contract = task.contract.full_name
        case = Case(contract=name_of_contract, inputs=inputs, origin=found, verdict=verdict, environment=environment())
        path = case.save(self.settings.state / "findings" / f"{item.kind}-{case.id}.json")
        replay = self.result.replay(path)
        same = [finding for finding in self.result.findings if (finding.kind, finding.where) == (item.kind, item.where)]
        if any(finding.bucket == name or item.remembered for finding in same):
            return  # where cases depend on earlier ones, several keys end as one
        self.result.add(Finding(item.kind, item.where, item.detail, name, path, sizes(inputs), replay, item.choices))
        self._tell(self.result)


def corpus_of(task: Task, corpus: Path | None) -> list[Path]:
    """The kept cases of a contract, in a stable order."""
    if corpus is None:
        return []
    paths = sorted((corpus / task.contract.family).glob("*.json"))
    return [path for path in paths if Case.load(path).contract == task.contract.full_name]
