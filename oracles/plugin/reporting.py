"""What the process that reports says of all tests together: a summary, and cases of processes that died."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from oracles.plugin.oracle import properties
from oracles.results import Result
from oracles.run import interrupted
from oracles.state import complaint
from oracles.verdict import UNSUPPORTED


@dataclass(frozen=True)
class _Line:
    """What became of one test."""

    test: str
    properties: dict[str, list[Any]]
    seconds: float

    def first(self, name: str) -> Any:
        return self.properties.get(name, [""])[0]

    @property
    def label(self) -> str:
        names = f"{self.first('provider')}: {self.first('implementation')}"
        return f"{self.first('contract')} | {names} | {self.first('backend')}"

    @property
    def function(self) -> str:
        """The test's id without its parameters."""
        path, colons, name = self.test.partition("::")
        return path + colons + name.partition("[")[0]


class Reporting:
    """Hooks of the process that reports; with xdist that is the one that starts the workers."""

    def __init__(self, config: pytest.Config, unfinished: Mapping[str, Result]) -> None:
        self._config = config
        self._unfinished = unfinished
        self._lines: list[_Line] = []

    def pytest_sessionstart(self) -> None:
        """Say which case was running when an earlier run was killed."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        state = self._config.option.oracle_state
        if reporter is None or self._config.option.collectonly or complaint(state) is not None:
            return
        for left in interrupted(state):
            who = f"{left.meta.name} ({left.meta.backend})"
            reporter.write_line(f"an earlier run was killed while {who} ran a case; replay it: {left.replay}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """A worker of xdist died: the report of its test names the case that it was running."""
        for left in interrupted(self._config.option.oracle_state):
            who = f"{left.meta.name} ({left.meta.backend})"
            report.longrepr = f"{report.longrepr}\n{who} was running a case; replay it: {left.replay}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the tests that judged, or should have."""
        found = _grouped(report.user_properties if report.when == "call" else ())
        if "judged" in found and "verdict" in found:
            self._lines.append(_Line(report.nodeid, found, report.duration))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run in which nothing was judged is no success."""
        nothing = self._lines and not any(line.first("judged") for line in self._lines)
        if nothing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line a test, also for what was left out and for what an interruption left unfinished."""
        for test, result in self._unfinished.items():
            self._lines.append(_Line(test, _grouped(properties(result)), 0.0))
        if not self._lines:
            return
        terminalreporter.section("oracles")
        for line, name in zip(self._lines, _names(self._lines), strict=True):
            terminalreporter.write_line(_sentence(line, name))
        judged = sum(line.first("judged") for line in self._lines)
        findings = sum(len(line.properties.get("bucket", ())) for line in self._lines)
        silent = sum(1 for line in self._lines if not line.first("judged"))
        text = f"{judged} cases judged, {findings} finding{'s' if findings != 1 else ''}"
        text += f", {silent} of {len(self._lines)} not judged" if silent else ""
        terminalreporter.write_line(text if judged else f"{text}: nothing was judged", bold=True, red=not judged)


def _grouped(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _names(lines: Sequence[_Line]) -> list[str]:
    """What to call the tests: where several judge the same, each by its function, and by its parameters if need be."""
    alike = Counter(line.label for line in lines)
    functions = Counter((line.label, line.function) for line in lines)
    names = []
    for line in lines:
        told_apart = line.function if functions[line.label, line.function] == 1 else line.test
        names.append(line.label if alike[line.label] == 1 else f"{line.label} | {told_apart}")
    return names


def _sentence(line: _Line, name: str) -> str:
    verdict, judged, reason = line.first("verdict"), line.first("judged"), line.first("reason")
    if not judged and verdict == UNSUPPORTED:
        return f"not judged   {name} | {reason}"
    rate = f" ({judged / line.seconds:.0f}/s)" if line.seconds else ""
    known = len(line.properties.get("known", ()))
    parts = [f"{verdict:<12} {name}", f"{judged} cases{rate}"]
    parts += [f"{known} known"] if known else []
    parts += [reason] if reason else []
    return " | ".join(parts + line.properties.get("bucket", []))
