"""The JSON document of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from oracles import known
from oracles.environment import environment
from oracles.results import Result, replay_command
from oracles.verdict import PASS, UNSUPPORTED

SCHEMA = 1


def verdict_of(result: Result) -> str:
    """The verdict of a task that has no finding."""
    return PASS if result.judged and result.refused is None else UNSUPPORTED


def reason_of(result: Result) -> str:
    """Why nothing was judged, or what was left out, in one line."""
    parts = [result.refused] if result.refused else []
    parts += [f"{count} cases unsupported: {reason}" for reason, count in result.unsupported.most_common()]
    if result.avoided:
        parts.append(f"{result.avoided} cases not run")
    if not result.complete:
        parts.append(f"interrupted while {result.stage}")
    return "; ".join([*parts, *(note.splitlines()[-1] for note in result.notes if note)])


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
    task, entries = result.task, []
    for identifier, count in sorted(result.known.items()):
        entry = known.by_id(identifier)
        entries.append(
            common
            | {
                "verdict": entry.shows[0].split(":")[0],
                "known": identifier,
                "bucket": entry.bucket,
                "case": entry.case,
                "detail": f"{entry.summary} ({entry.reference}; {count} cases)",
                "replay": replay_command(Path(entry.case), task.implementation.spec, task.backend.name),
            }
        )
    return entries


def _unexpected(result: Result, common: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry a known finding that a matching case did not show."""
    task = result.task
    return [
        common
        | {
            "verdict": PASS,
            "known": identifier,
            "bucket": None,
            "case": path,
            "detail": unexpected_pass(identifier),
            "replay": replay_command(Path(path), task.implementation.spec, task.backend.name),
        }
        for identifier, path in sorted(result.unexpected.items())
    ]


def unexpected_pass(identifier: str) -> str:
    """What an unexpected pass means, in one sentence."""
    return f"unexpected pass: the known finding {identifier} matches this case, which does not show it"


def document(results: Iterable[Result]) -> dict[str, Any]:
    """The whole run as one object."""
    return {
        "schema": SCHEMA,
        "environment": environment(),
        "results": [entry for result in results for entry in entries(result)],
    }


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the document; the old file stays until the new one is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(document(results)), indent=2) + b"\n")
    partial.replace(path)
