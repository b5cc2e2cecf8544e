"""The fixture ``oracle``: judge one implementation inside one test."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oracles.case import Case
from oracles.driven import DrivenExamination
from oracles.plugin.jobs import Job, profile_of
from oracles.report import text
from oracles.report.document import reason_of, verdict_of
from oracles.results import Result, Settings
from oracles.state import StateError

CORPUS = Path(__file__).parents[2] / "corpus"


class Oracle:
    """Judges ``job``; what comes out is the test's outcome, its text, and properties of its report."""

    def __init__(self, node: pytest.Item, job: Job, unfinished: dict[str, Result]) -> None:
        self.job = job
        self._node = node
        self._option: Any = node.config.option
        self._unfinished = unfinished

    def check(self) -> None:
        """Judge the implementation: kept cases, the small scope, then what Hypothesis draws.

        The test fails if there is a finding, or a known one that did not show. It is skipped, or with ``--require``
        fails, if nothing could be judged.
        """
        try:
            result = self.job.missing or self._examined()
        except StateError as error:
            pytest.fail(f"not judged: {self.job.task.label}: --oracle-state: {error}", pytrace=False)
        self._node.user_properties += properties(result)
        if result.findings or result.unexpected or result.broken:
            pytest.fail(_shown(result), pytrace=False)
        if not result.judged:
            reason = f"not judged: {self.job.task.label}: {reason_of(result)}"
            pytest.fail(reason, pytrace=False) if self._option.oracle_require else pytest.skip(reason)

    def _examined(self) -> Result:
        option, job = self._option, self.job
        settings = Settings(
            job.examples(profile_of(option)),
            state=option.oracle_state,
            time_limit=option.oracle_time_limit,
            known=not option.oracle_no_known,
            corpus=CORPUS if CORPUS.is_dir() and job.shard == 0 else None,
            part=job.shard,
            parts=job.shards,
        )
        examination = DrivenExamination(job.task, settings, seed=job.seed, statistics=self._statistics())
        self._unfinished[self._node.nodeid] = examination.result
        try:
            result = examination.run()
        except Exception:
            del self._unfinished[self._node.nodeid]
            raise
        del self._unfinished[self._node.nodeid]  # an interruption leaves it there, for the summary
        return result

    def _statistics(self) -> Any:
        """Hypothesis's own plugin prints what it finds under this name of an item."""
        if not getattr(self._option, "hypothesis_show_statistics", False):
            return None
        rounds: list[str] = []

        def keep(statistics: str) -> None:
            rounds.append(statistics)
            vars(self._node)["hypothesis_statistics"] = f"{self._node.nodeid}:\n\n" + "\n".join(rounds)

        return keep


def properties(result: Result) -> list[tuple[str, Any]]:
    """What JUnit XML and the summary say of a test: names, numbers, and bucket, case and replay of each finding."""
    task = result.task
    bad = bool(result.findings or result.unexpected)
    found: list[tuple[str, Any]] = [
        ("contract", task.contract.full_name),
        ("implementation", task.implementation.name),
        ("provider", task.implementation.provider),
        ("backend", task.backend.name),
        ("verdict", "finding" if bad else "broken" if result.broken else verdict_of(result)),
        ("judged", result.judged),
        ("reason", reason_of(result)),
    ]
    for finding in result.findings:
        case = Case.load(finding.case).id
        found += [("bucket", finding.bucket), ("case", case), ("case_file", str(finding.case))]
        found.append(("replay", finding.replay))
    found += [("known", identifier) for identifier in sorted(result.known)]
    return found + [("unexpected_pass", identifier) for identifier in sorted(result.unexpected)]


def _shown(result: Result) -> str:
    """The report of one result, in plain lines."""
    plain = io.StringIO()
    text.show(Console(file=plain, force_terminal=False, width=120), [result])
    return plain.getvalue().rstrip()
