"""One failure made small: its case reduced, without traits that it can do without, and shown by that case alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from oracles.arrays import Inputs
from oracles.contract import OnlyMemorySafety, Refused, Values
from oracles.domain import Replay, Sampler
from oracles.messages import Found, Try
from oracles.reduce import Choices, Reducer
from oracles.results import Settings
from oracles.session import Death, Session, Task

HANGING_ATTEMPTS = 60
"""Attempts to reduce a case that hangs: most of them end at once, the others cost a time limit each."""

LOSING_ATTEMPTS = 40
"""Neighbours of a case that kills, with fewer traits than it, that are tried."""

PROBES = 8
"""Other cases with the traits of one that kills. If one of them survives, it is not the traits that kill."""

CONFIRMED = 8
"""Reduced cases that are tried in a new process, the smallest first, until one fails there too."""

MOST_CHANGED = 16
"""Choices of a sequence up to which two at a time are changed; longer ones would have too many neighbours."""

OF_STATE = (
    "wrong_value", "wrong_shape", "unwritten", "nondeterministic", "uninitialised_read", "race", "wrongly_accepted",
    "wrongly_refused",
)  # fmt: skip
"""Kinds that are ``stale`` (G9) where only earlier calls bring them out: order and poison are not to blame then."""


@dataclass(frozen=True)
class Failing:
    """A failure that was seen. ``deadly``: it took the worker; ``remembered``: it takes the cases before."""

    kind: str
    where: str
    detail: str
    traits: frozenset[str]
    choices: Choices
    path: str = ""
    remembered: bool = False
    deadly: bool = False

    @property
    def key(self) -> str:
        """Kind and place."""
        return f"{self.kind}:{self.where}"


class Shrinker:
    """Makes failures of one task small."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self.contract = task.contract
        self.settings = settings

    def order(self, item: Failing) -> tuple[int, int, int, Choices]:
        """Legal inputs first, then shorter sequences."""
        source, inputs = self._replayed(item.choices)
        return self.rank(inputs), source.cost, len(item.choices), item.choices

    def rank(self, inputs: Inputs) -> int:
        """Legal inputs are better examples than those with fewer promises, and those than inputs to be refused."""
        return (Values, OnlyMemorySafety, Refused).index(type(self.contract.expected(inputs)))

    def attempt(self, session: Session, choices: Choices, *, fresh: bool) -> list[Failing]:
        """The failures of one choice sequence, deaths included."""
        found: list[Failing] = []
        traits = self.contract.traits(self._replayed(choices)[1])
        for event in session.ask_surely(Try(list(choices), fresh)):
            if isinstance(event, Found):
                found += [Failing(*failure, traits, choices) for failure in event.failures]
            elif isinstance(event, Death):
                found.append(Failing(event.kind, event.where, event.detail, traits, choices, deadly=True))
        return found

    def reduced(self, session: Session, item: Failing, others: Sequence[frozenset[str]]) -> Failing:
        """The smallest case with this key, in a new process, whose traits do not contain those of another finding.

        If the failure takes the cases before, it is what its case shows alone, under another key, or is remembered.
        """
        search = _Search(self, session, item, others)
        with _Limit(session, item.kind):
            search.run()
        for smallest in [*search.accepted[: -CONFIRMED - 1 : -1], *search.accepted[:1]]:
            session.renew()
            for failure in self.attempt(session, smallest.choices, fresh=search.fresh):
                if failure.key == item.key:
                    return failure
        session.renew()
        alone = self.attempt(session, item.choices, fresh=True)
        return min(alone, key=lambda other: (other.kind != "stale", other.key)) if alone else remembered(item)

    def always(self, session: Session, item: Failing) -> bool:
        """Whether all of some other cases with these traits fail like this one."""
        with _Limit(session, item.kind):
            return all(
                item.key in {failure.key for failure in self.attempt(session, choices, fresh=False)}
                for choices in itertools.islice(self._with_traits(item), PROBES)
            )

    def _with_traits(self, item: Failing) -> Iterator[Choices]:
        """Cases that share all traits of this one: of its neighbours and of the sampled ones in turn."""
        rank = self.rank(self._replayed(item.choices)[1])

        def sampled() -> Iterator[Choices]:
            for index in range(1000):
                source = Sampler(self.settings.seed, index)
                self.contract.domain(source)
                yield tuple(source.choices)

        def alike(some: Iterator[Choices]) -> Iterator[Choices]:
            for choices in some:
                inputs = self._replayed(choices)[1]
                if item.traits <= self.contract.traits(inputs) and self.rank(inputs) <= rank:
                    yield choices

        neighbours = alike(neighbours_of(item.choices, self._used))
        for pair in itertools.zip_longest(neighbours, itertools.islice(alike(sampled()), PROBES)):
            yield from filter(None, pair)

    def with_fewer_traits(self, item: Failing) -> list[Choices]:
        """The simplest neighbours of a case that have some of its traits, not all, and no other."""
        rank, found = self.rank(self._replayed(item.choices)[1]), []
        for choices in neighbours_of(item.choices, self._used):
            source, inputs = self._replayed(choices)
            if self.contract.traits(inputs) < item.traits and self.rank(inputs) <= rank:
                found.append((source.cost, len(choices), choices))
        return [choices for _, _, choices in sorted(found)[:LOSING_ATTEMPTS]]

    def _replayed(self, choices: Choices) -> tuple[Replay, Inputs]:
        source = Replay(choices, lenient=True)
        return source, self.contract.domain(source)

    def _used(self, choices: Choices) -> Choices:
        return tuple(self._replayed(choices)[0].choices)

    def cost(self, choices: Choices) -> int:
        """What follows rules in a sequence."""
        return self._replayed(choices)[0].cost

    def forms(self, choices: Choices) -> Iterator[Choices]:
        """The sequence with rules spelled out."""
        return self._replayed(choices)[0].forms()


class _Search:
    """One reduction. ``accepted`` are the cases that showed the failure, each better than the one before."""

    def __init__(self, shrinker: Shrinker, session: Session, item: Failing, others: Sequence[frozenset[str]]) -> None:
        self.shrinker, self.session, self.item, self.others = shrinker, session, item, others
        self.fresh = item.kind in ("stale", "crash", "hang")
        self.accepted: list[Failing] = []
        self._shown: dict[Choices, Failing] = {}
        self._rank = shrinker.rank(shrinker._replayed(item.choices)[1])
        self._traits: frozenset[str] | None = None
        self._descending = False

    def run(self) -> None:
        self.session.renew()
        if self._test(self.item.choices) is None:
            return
        self._descend(self._shown[self.item.choices])
        # Faults that kill hide what else would show them, so nobody else looks for a case with fewer traits.
        while self.accepted[-1].deadly and self.accepted[-1].traits:
            best = self.accepted[-1]
            fewer = (self._test(choices) for choices in self.shrinker.with_fewer_traits(best))
            found = next((choices for choices in fewer if choices is not None), None)
            if found is None:
                return
            self._traits = self._shown[found].traits
            self._descend(self._shown[found])

    def _descend(self, start: Failing) -> None:
        settings, shrinker = self.shrinker.settings, self.shrinker
        attempts = HANGING_ATTEMPTS if self.item.kind == "hang" else settings.reduce_attempts
        seconds = settings.reduce_seconds
        reducer = Reducer(
            self._test, attempts=attempts, seconds=seconds, cost=shrinker.cost, forms=shrinker.forms,
            accepted=lambda choices: self.accepted.append(self._shown[choices]),
        )  # fmt: skip
        self.accepted.append(start)
        self._descending = True
        reducer.reduce(start.choices)
        self._descending = False

    def _test(self, candidate: Choices) -> Choices | None:
        source, inputs = self.shrinker._replayed(candidate)
        traits, used = self.shrinker.contract.traits(inputs), tuple(source.choices)
        if any(other <= traits for other in self.others) or self.shrinker.rank(inputs) > self._rank:
            return None
        if self._traits is not None and not traits <= self._traits:
            return None
        if self._descending and not self._simpler(source, used):
            return None
        for failure in self.shrinker.attempt(self.session, used, fresh=self.fresh):
            if failure.key == self.item.key:
                self._shown[used] = failure
                return used
        return None

    def _simpler(self, source: Replay, used: Choices) -> bool:
        best = self.accepted[-1].choices
        return (source.cost, len(used), used) < (self.shrinker.cost(best), len(best), best)


class _Limit:
    """Inside, a hang is one much earlier: each attempt costs the limit. What is merely slow is told apart later."""

    def __init__(self, session: Session, kind: str) -> None:
        self.session, self.hangs, self.limit = session, kind == "hang", session.time_limit

    def __enter__(self) -> None:
        if self.hangs:
            self.session.time_limit = max(1.0, self.limit / 8)

    def __exit__(self, *_: object) -> None:
        self.session.time_limit = self.limit


def neighbours_of(choices: Choices, used: Callable[[Choices], Choices]) -> Iterator[Choices]:
    """Sequences that differ in one choice, then in two, each once."""
    seen = {choices}
    for count in (1, 2) if len(choices) <= MOST_CHANGED else (1,):
        for places in itertools.combinations(range(len(choices)), count):
            values = [sorted({0, 1, 2, 3, choices[at] + 1, max(choices[at] - 1, 0)} - {choices[at]}) for at in places]
            for some in itertools.product(*values):
                changed = list(choices)
                for at, value in zip(places, some, strict=True):
                    changed[at] = value
                made = used(tuple(changed))
                if made not in seen:
                    seen.add(made)
                    yield made


def remembered(item: Failing) -> Failing:
    """A failure that the case alone, in a new process, does not show: it took the cases before.

    A wrong result that depends on earlier calls is stale (G9). Other kinds, such as a crash by memory that was damaged
    earlier, keep their name.
    """
    note = f"{item.detail}\n(this case alone, in a new process, does not show it: it took the cases before)"
    kind = "stale" if item.kind in OF_STATE else item.kind
    return dataclasses.replace(item, kind=kind, detail=note, remembered=True)
