"""Examine one implementation on one backend: walk the small scope, sample, then reduce everything that failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.arrays import Inputs
from oracles.case import Case, sizes
from oracles.contract import Contract, OnlyMemorySafety, Refused, Values
from oracles.domain import Replay, Sampler
from oracles.environment import environment
from oracles.messages import Command, Found, Progress, Replayed, Sample, Try, Walk
from oracles.origins import origin
from oracles.reduce import Choices, Reducer, simpler
from oracles.results import Finding, Result, Settings, result_of
from oracles.session import CannotLoad, Death, HarnessError, Session, Stopped, Task
from oracles.slot import Running
from oracles.verdict import bucket

MOST_BUCKETS = 6
"""Findings of one kind and place that are told apart by their traits."""

PATIENCE = 15
"""What dead workers may cost before an examination goes on to reduce what it has: a crash 1, a hang or a nursery 4."""


HANGING_ATTEMPTS = 60
"""Attempts to reduce a case that hangs: most of them end at once, the others cost a time limit each."""


@dataclass(frozen=True)
class _Failing:
    """A failure that was seen, before reduction."""

    kind: str
    where: str
    detail: str
    traits: frozenset[str]
    choices: Choices
    path: str = ""
    remembered: bool = False

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.where}"


Listener = Callable[[Result], None]


class Examination:
    """One task from start to verdict. ``result`` is up to date at any moment, also when the run is interrupted."""

    def __init__(self, task: Task, settings: Settings, listener: Listener = lambda result: None) -> None:
        self.task = task
        self.settings = settings
        self.result = result_of(task, settings)
        self._tell = listener
        self._failing: dict[str, list[_Failing]] = {}
        self._avoid: list[frozenset[str]] = []
        self._kept: dict[str, tuple[Path, str, str, str]] = {}
        self._session: Session | None = None
        self._patience = PATIENCE

    def run(self) -> Result:
        """Do it all."""
        try:
            settings = self.settings
            with Session(self.task, settings.state, time_limit=settings.time_limit, known=settings.known) as session:
                self._session = session
                self._phases(session)
                self._stage("reducing")
                for key in sorted(self._failing):
                    self._reduce_key(session, key)
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
        scope = profile.scope

        def walk(running: Running | None) -> Command:
            after, parts = running.choices if running else None, self.settings.parts
            return Walk(scope.count, scope.value, after, avoid(), self.settings.part, parts)

        self._phase(session, walk)
        self._stage("sampling")
        self._sampling(session)

    def _sampling(self, session: Session) -> None:
        """The last phase: inputs beyond the small scope, here from the fast sampler."""

        def sample(running: Running | None) -> Command:
            start = running.index + 1 if running else 0
            return Sample(self.settings.seed, start, self.settings.profile.examples - start, self._avoiding())

        self._phase(session, sample)

    def _judge_kept(self, session: Session, path: Path) -> None:
        """One kept case. What it shows is reported as it is, unless the search finds the same and reduces it."""
        for event in session.ask(Replayed(str(path.absolute()), kept=True)):
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
            self.result.findings.append(Finding(kind, where, detail, name, path, sizes(inputs), replay, ()))

    def _avoiding(self) -> list[list[str]]:
        return [sorted(traits) for traits in self._avoid]

    def _phase(self, session: Session, command: Callable[[Running | None], Command]) -> None:
        """One command, taken up again behind every case that killed its worker."""
        running: Running | None = None
        while self._patience > 0:
            death = self._ask(session, command(running))
            if death is None:
                return
            running = self._survived(session, death) or running
        self.result.notes.append(f"{self.result.stage}: ended early, because too many workers died")

    def _survived(self, session: Session, death: Death) -> Running | None:
        """Account for a dead worker; the case that it ran."""
        self._patience -= 4 if death.kind == "hang" or death.nursery else 1
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
        result.compilations = max(result.compilations, event.compilations)
        self._tell(result)

    def _note(self, event: Found) -> None:
        traits, choices = frozenset(event.traits), tuple(event.choices)
        for kind, where, detail in event.failures:
            item = _Failing(kind, where, detail, traits, choices, event.path)
            self._failing.setdefault(item.key, []).append(item)
        self._tell(self.result)

    def _note_death(self, session: Session, death: Death) -> None:
        choices = self._choices_of(death.running)
        if choices is None:
            return
        self.result.judged += 1
        inputs = self.task.contract.domain(Replay(choices))
        item = _Failing(death.kind, death.where, death.detail, self.task.contract.traits(inputs), choices)
        if death.doubtful and not self._dies_again(session, item):
            case = Case(contract=self.task.contract.full_name, inputs=inputs)
            note = f"a worker died ({death.where}) in or behind case {case.id}"
            self.result.notes.append(f"{note}, which does not kill when it is run again: {sizes(inputs)}")
            return
        found = self._origin() | {"choices": list(choices)}
        case = Case(contract=self.task.contract.full_name, inputs=inputs, origin=found)
        path = self.settings.state / "findings" / f"unreduced-{item.kind}-{case.id}.json"
        case.save(path)
        self._failing.setdefault(item.key, []).append(
            _Failing(item.kind, item.where, item.detail, item.traits, choices, str(path))
        )
        if len(self._failing[item.key]) == 2:
            self._learn_to_avoid(session, item)

    def _dies_again(self, session: Session, item: _Failing) -> bool:
        return item.key in {failure.key for failure in self._attempt(session, item.choices, fresh=True)}

    def _learn_to_avoid(self, session: Session, item: _Failing) -> None:
        """What kills twice is reduced at once; cases with all the traits of the smallest one are not run again."""
        reduced = self._reduced(session, item, ())
        self._failing[item.key].append(reduced)
        if reduced.traits:
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

    def _reduce_key(self, session: Session, key: str) -> None:
        """All findings of one kind and place: reduce, then look for failures that lack the traits found so far."""
        found: list[_Failing] = []
        for item in sorted(self._failing[key], key=self._order):
            if len(found) < MOST_BUCKETS and not any(other.traits <= item.traits for other in found):
                found.append(self._reduced(session, item, [other.traits for other in found]))
        for item in self._subsumed(found):
            self._conclude(item)
        for item in self._failing[key]:
            if item.path:
                for suffix in (".json", ".npz"):
                    Path(item.path).with_suffix(suffix).unlink(missing_ok=True)

    def _conclude_unreduced(self) -> None:
        """What was found before an interruption, as small as it is."""
        done = {f"{finding.kind}:{finding.where}" for finding in self.result.findings}
        for key in sorted(set(self._failing) - done):
            self._conclude(min(self._failing[key], key=self._order))

    def _subsumed(self, found: Sequence[_Failing]) -> list[_Failing]:
        """Drop findings whose traits contain another's: the same fault on a special input.

        Of those that are dropped, the simplest case is kept.
        """
        kept: list[_Failing] = []
        for item in found:
            if not any(other.traits < item.traits for other in found):
                simplest = min((other for other in found if item.traits <= other.traits), key=self._order)
                kept.append(dataclasses.replace(simplest, traits=item.traits))
        return kept

    def _order(self, item: _Failing) -> tuple[int, int, Choices]:
        return self._rank_of(item), len(item.choices), item.choices

    def _rank_of(self, item: _Failing) -> int:
        contract = self.task.contract
        return _rank(contract, contract.domain(Replay(item.choices, lenient=True)))

    def _reduced(self, session: Session, item: _Failing, others: Sequence[frozenset[str]]) -> _Failing:
        """The smallest case with this key whose traits do not contain those of another finding."""
        contract = self.task.contract
        latest: dict[Choices, _Failing] = {}
        rank = self._rank_of(item)
        stale = item.kind in ("stale", "crash", "hang")

        def test(candidate: Choices) -> Choices | None:
            source = Replay(candidate, lenient=True)
            inputs = contract.domain(source)
            traits = contract.traits(inputs)
            used = tuple(source.choices)
            if any(other <= traits for other in others) or (used != item.choices and not simpler(used, item.choices)):
                return None
            if _rank(contract, inputs) > rank:
                return None
            for failure in self._attempt(session, used, fresh=stale):
                if failure.key == item.key:
                    latest[used] = failure
                    return used
            return None

        limit = session.time_limit
        if item.kind == "hang":
            # Each attempt that hangs costs the whole limit. A case that is merely slow is told apart at the end.
            session.time_limit = max(1.0, limit / 8)
        session.renew()
        best = item.choices
        shown = test(item.choices) is not None
        if shown:
            attempts = HANGING_ATTEMPTS if item.kind == "hang" else self.settings.reduce_attempts
            reducer = Reducer(test, attempts=attempts, seconds=self.settings.reduce_seconds)
            best = reducer.reduce(item.choices)
        if session.time_limit != limit:
            session.time_limit = limit
            shown = test(best) is not None
        if not shown:
            return _remembered(item)
        return latest[best]

    def _attempt(self, session: Session, choices: Choices, *, fresh: bool) -> Iterable[_Failing]:
        """The failures of one choice sequence, deaths included."""
        found: list[_Failing] = []
        for event in session.ask(Try(list(choices), fresh)):
            traits = self.task.contract.traits(self.task.contract.domain(Replay(choices, lenient=True)))
            if isinstance(event, Found):
                found += [_Failing(*failure, traits, choices) for failure in event.failures]
            elif isinstance(event, Death):
                found.append(_Failing(event.kind, event.where, event.detail, traits, choices))
        return found

    def _origin(self) -> dict[str, Any]:
        about, cases = self.task.implementation, self.settings.state / "findings"
        return origin(about.spec, about.name, self.task.backend.name, cases) | {"provider": about.provider}

    def _conclude(self, item: _Failing) -> None:
        """Write the finding down."""
        task = self.task
        inputs = task.contract.domain(Replay(item.choices, lenient=True))
        name = bucket(item.key, item.traits)
        found = self._origin() | {"choices": list(item.choices), "seed": self.settings.seed}
        verdict = {"kind": item.kind, "where": item.where, "detail": item.detail, "bucket": name}
        name_of_contract = task.contract.full_name
        case = Case(contract=name_of_contract, inputs=inputs, origin=found, verdict=verdict, environment=environment())
        path = case.save(self.settings.state / "findings" / f"{item.kind}-{case.id}.json")
        replay = self.result.replay(path)
        same = [finding for finding in self.result.findings if (finding.kind, finding.where) == (item.kind, item.where)]
        if any(finding.bucket == name or item.remembered for finding in same):
            return  # where cases depend on earlier ones, several keys end as one
        self.result.findings.append(
            Finding(item.kind, item.where, item.detail, name, path, sizes(inputs), replay, item.choices)
        )
        self._tell(self.result)


def _remembered(item: _Failing) -> _Failing:
    """A failure that the case alone, in a new process, does not show: it took the cases before.

    A wrong result that depends on earlier calls is stale (G9). Other kinds, such as a crash by memory that was damaged
    earlier, keep their name.
    """
    note = f"{item.detail}\n(this case alone, in a new process, does not show it: it took the cases before)"
    kind = "stale" if item.kind in ("wrong_value", "wrong_shape", "unwritten", "nondeterministic") else item.kind
    return dataclasses.replace(item, kind=kind, detail=note, remembered=True)


def _rank(contract: Contract, inputs: Inputs) -> int:
    """Legal inputs are better examples than those with fewer promises, and those than inputs to be refused."""
    return (Values, OnlyMemorySafety, Refused).index(type(contract.expected(inputs)))


def corpus_of(task: Task, corpus: Path | None) -> list[Path]:
    """The kept cases of a contract, in a stable order."""
    if corpus is None:
        return []
    paths = sorted((corpus / task.contract.family).glob("*.json"))
    return [path for path in paths if Case.load(path).contract == task.contract.full_name]
