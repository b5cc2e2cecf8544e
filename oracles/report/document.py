"""The JSON document of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from oracles import known
from oracles.environment import environment
from oracles.providers.base import Bound
from oracles.results import Result
from oracles.verdict import INTERRUPTED, PASS, UNSUPPORTED

SCHEMA = 1
ROOT = Path(__file__).resolve().parents[2]
INTERRUPTIONS = {
    "waiting": "before it began",
    "corpus": "while replaying kept cases",
    "small scope": "while walking the small scope",
}
"""What a task did when it was interrupted, by its stage, where the stage's name alone is no sentence."""


def verdict_of(result: Result) -> str:
    """The verdict of a task that has no finding."""
    if not result.judged or result.refused is not None:
        return UNSUPPORTED
    return PASS if result.complete else INTERRUPTED


def reason_of(result: Result) -> str:
    """Why nothing was judged, or what was left out, in one line."""
    parts = [result.refused] if result.refused else []
    narrowed = result.narrowed
    for reason, count in result.unsupported.most_common():
        parts.append(f"{cases(count)} {'narrowed' if reason in narrowed else 'unsupported'}: {reason}")
    if result.avoided:
        parts.append(f"{cases(result.avoided)} not run")
    if result.remarks:
        parts.append(result.remarks)
    if not result.complete:
        parts.append(f"interrupted {INTERRUPTIONS.get(result.stage, f'while {result.stage}')}")
    return "; ".join([*parts, *(note.splitlines()[-1] for note in result.notes if note)])


def cases(count: int) -> str:
    """A number of cases in words."""
    return f"{count} case{'' if count == 1 else 's'}"


def entries(result: Result) -> list[dict[str, Any]]:
    """One entry a finding; one entry alone where there is none."""
    task = result.task
    common = {
        "contract": task.contract.full_name,
        "implementation": task.implementation.name,
        "provider": task.implementation.provider,
        "backend": task.backend.name,
        "examples": result.judged,
    }
    found = _findings(result, common) + _known(result, common) + _unexpected(result, common)
    if found:
        return found
    nothing = {"known": None, "bucket": None, "case": None, "detail": reason_of(result), "replay": None}
    return [common | {"verdict": verdict_of(result)} | nothing]


def _findings(result: Result, common: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        common
        | {
            "verdict": finding.kind,
            "known": None,
            "bucket": finding.bucket,
            "case": str(finding.case),
            "detail": finding.detail,
            "replay": finding.replay,
        }
        for finding in result.findings
    ]


def _known(result: Result, common: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry a known finding that showed."""
    entries = []
    for identifier, count in sorted(result.known.items()):
        entry = known.by_id(identifier)
        entries.append(
            common
            | {
                "verdict": entry.shows[0].split(":")[0],
                "known": identifier,
                "bucket": entry.bucket,
                "case": entry.case,
                "detail": f"{entry.summary} ({entry.reference}; {cases(count)})",
                "replay": result.replay(known_case(entry)),
            }
        )
    return entries


def known_case(entry: known.Entry) -> Path:
    """The case file of a known finding, as it is reached from the current folder."""
    place = ROOT / entry.case
    return Path(entry.case) if Path.cwd() == ROOT or not place.exists() else place


def _unexpected(result: Result, common: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry a known finding that a matching case did not show."""
    return [
        common
        | {
            "verdict": PASS,
            "known": identifier,
            "bucket": None,
            "case": path,
            "detail": unexpected_pass(identifier),
            "replay": result.replay(Path(path)),
        }
        for identifier, path in sorted(result.unexpected.items())
    ]


def unexpected_pass(identifier: str) -> str:
    """What an unexpected pass means, in one sentence."""
    return f"unexpected pass: the known finding {identifier} matches this case, which does not show it"


def task_of(result: Result) -> dict[str, Any]:
    """How one implementation was bound, and what became of every case.

    ``bound`` is null of what is no binding, ``executed`` where the backend counts no instructions.
    """
    implementation, bound = result.task.implementation, result.bound
    return {
        "contract": result.task.contract.full_name,
        "implementation": implementation.name,
        "provider": implementation.provider,
        "backend": result.task.backend.name,
        "judged": result.judged,
        "narrowed": dict(result.narrowed),
        "unsupported": dict(result.unsupported - result.narrowed),
        "not_run": result.avoided,
        "refused": result.refused,
        "executed": result.executed._asdict() if result.executed.launches else None,
        "bound": None if bound is None else msgspec.to_builtins(bound),
    }


def bound_line(bound: Bound) -> str:
    """How a binding came to life, for people."""
    reason = f", because {bound.reason}" if bound.reason else ""
    which = f", symbol set {bound.number} of {bound.sets}" if bound.sets > 1 else ""
    return f"bound: {bound.version}, {bound.how}{reason}{which}: {', '.join(bound.functions)}"


def document(results: Sequence[Result]) -> dict[str, Any]:
    """The whole run as one object."""
    return {
        "schema": SCHEMA,
        "environment": environment(),
        "results": [entry for result in results for entry in entries(result)],
        "tasks": [task_of(result) for result in results],
    }


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the document; the old file stays until the new one is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(document(results)), indent=2) + b"\n")
    partial.replace(path)
