"""An examination whose last phase Hypothesis drives: it draws the inputs, and shrinks those that fail.

Inside pytest this brings what people know from it: profiles, ``--hypothesis-seed``, statistics, and a database of
failing examples where the profile keeps one. The judging happens in the worker, as in every examination.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.arrays import Inputs
from oracles.case import case_id
from oracles.domain import strategy
from oracles.examine import Examination
from oracles.messages import Try
from oracles.reduce import Choices
from oracles.results import Result, Settings
from oracles.session import HarnessError, Session, Stopped, Task
from oracles.verdict import Failure, failure

ROUNDS = 12
"""Faults that are shrunk one after the other. What more there are is found when the first ones are mended."""

DEADLY = ("crash", "hang")
"""Kinds that Hypothesis does not shrink: an attempt costs a worker, and the generic reducer limits how many."""


class DrivenExamination(Examination):
    """An examination in which Hypothesis draws; ``statistics`` gets what it counted.

    ``seed`` makes one of several tests that share the examples draw other inputs than its neighbours.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        listener: Callable[[Result], None] = lambda result: None,
        *,
        seed: str | None = None,
        statistics: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(task, settings, listener)
        self._seed = seed
        self._statistics = statistics
        self._shown: dict[Choices, frozenset[str]] = {}
        self._settled: set[str] = set()
        self._target: str | None = None
        self._not_run = 0
        self._error: HarnessError | Stopped | None = None

    def run(self) -> Result:
        """Do it all. Interrupted, what was found so far is concluded first."""
        try:
            return super().run()
        except KeyboardInterrupt:
            self._conclude_unreduced()
            raise

    def _sampling(self, session: Session) -> None:
        """One round of Hypothesis finds and shrinks one kind and place; the next one looks past it."""
        if self.settings.profile.examples == 0:
            return  # Hypothesis draws at least one
        self._rounds(self._test(session))
        if self._not_run:
            self._note_early_end(f"{self._not_run:,}")

    def _rounds(self, run: Callable[[], None]) -> None:
        from hypothesis.errors import Flaky, Unsatisfiable

        for _ in range(ROUNDS):
            self._target = None
            try:
                run()
            except (Failure, Flaky):
                # Flaky: it did not show again. What was seen is kept, and the reducer says what it depends on.
                pass
            except Unsatisfiable as error:
                self.result.notes.append(f"sampling: {error}")
            if self._error is not None:
                raise self._error
            if self._target is None:
                return
            self._settled.add(self._target)
        self.result.notes.append(f"sampling: ended after {ROUNDS} faults; there may be more")

    def _test(self, session: Session) -> Callable[[], None]:
        """The property: no input shows a failure that is not settled yet."""
        import hypothesis

        def holds(drawn: tuple[Inputs, list[int]]) -> None:
            inputs, choices = drawn
            keys = self._keys(session, inputs, tuple(choices))
            fresh = sorted(key for key in keys - self._settled if key.split(":")[0] not in DEADLY)
            if self._target is None and fresh:
                self._target = fresh[0]
            if self._target in fresh:
                kind, _, where = str(self._target).partition(":")
                raise failure(kind, where)

        checks = hypothesis.HealthCheck
        test = hypothesis.given(strategy(self.task.contract.domain))(holds)
        if self._seed is not None:
            test = hypothesis.seed(self._seed)(test)
        settings = hypothesis.settings(
            max_examples=self.settings.profile.examples,
            deadline=None,
            # How long an input takes is the implementation's affair, and its size the domain's.
            suppress_health_check=[checks.too_slow, checks.data_too_large, checks.large_base_example],
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
            **self._database(),
        )
        return _counted(settings(test), self._statistics)

    def _database(self) -> dict[str, Any]:
        """A folder of the state for each task, where the profile keeps failing examples at all."""
        import hypothesis
        from hypothesis.database import DirectoryBasedExampleDatabase

        default = hypothesis.settings()
        if default.derandomize or default.database is None or self._seed is not None:
            return {}
        name = case_id(self.task.label, {})
        return {"database": DirectoryBasedExampleDatabase(self.settings.state / "examples" / name)}

    def _keys(self, session: Session, inputs: Inputs, choices: Choices) -> frozenset[str]:
        """What an input shows; judged once, because every round draws the same examples first."""
        if choices not in self._shown:
            self._shown[choices] = self._judged(session, inputs, choices)
        return self._shown[choices]

    def _judged(self, session: Session, inputs: Inputs, choices: Choices) -> frozenset[str]:
        if self._error is not None:
            return frozenset()
        if self._patience <= 0:
            self._not_run += 1
            return frozenset()
        traits = self.task.contract.traits(inputs)
        if any(avoided <= traits for avoided in self._avoid):
            self.result.avoided += 1
            return frozenset()
        before = {key: len(items) for key, items in self._failing.items()}
        try:
            death = self._ask(session, Try(list(choices), fresh=True, example=True))
            if death is not None:
                self._survived(session, death)
        except (HarnessError, Stopped) as error:  # Hypothesis would take it for a failure, and shrink it
            self._error = error
        return frozenset(key for key, items in self._failing.items() if len(items) > before.get(key, 0))


def _counted(test: Callable[[], None], statistics: Callable[[str], None] | None) -> Callable[[], None]:
    """The test with what ``--hypothesis-show-statistics`` prints handed to ``statistics``."""
    if statistics is None:
        return test
    from hypothesis.statistics import collector, describe_statistics

    variable: Any = collector  # annotated as if it could only hold its default, None

    def run() -> None:
        with variable.with_value(lambda found: statistics(describe_statistics(found))):
            test()

    return run
