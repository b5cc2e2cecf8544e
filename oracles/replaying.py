"""Judge a single case file."""

from __future__ import annotations

from pathlib import Path

from oracles.case import Case, sizes
from oracles.contract import Refused
from oracles.messages import Found, Progress, Replayed
from oracles.results import Finding, Result, Settings, result_of
from oracles.session import CannotLoad, Death, HarnessError, Session, Task
from oracles.verdict import bucket


def _bucket(case: Case, kind: str, where: str, traits: frozenset[str]) -> str:
    """The bucket that the case was filed under, if it still fails in the same way."""
    filed = case.verdict or {}
    if (filed.get("kind"), filed.get("where")) == (kind, where) and "bucket" in filed:
        return filed["bucket"]
    return bucket(f"{kind}:{where}", traits)


def _refusal(task: Task, case: Case) -> str:
    """What the contract refuses of an input, which is not judged where the implementation leaves refusals out."""
    expected = task.contract.expected(case.inputs)
    if not isinstance(expected, Refused):
        return ""
    named = expected.reason.startswith(f"{expected.argument}:")
    return f"the contract refuses this input: {'' if named else f'{expected.argument}: '}{expected.reason}"


def judge_case(task: Task, path: Path, case: Case, settings: Settings) -> Result:
    """One task on one case. A death of the worker is a finding like any other."""
    result = result_of(task, settings)
    traits = task.contract.traits(case.inputs)
    replay = result.replay(path)
    try:
        with Session(task, settings.state, time_limit=settings.time_limit) as session:
            for event in session.ask_surely(Replayed(str(path.absolute()))):
                if isinstance(event, Death):
                    result.judged += 1
                    failures = [(event.kind, event.where, event.detail)]
                elif isinstance(event, Found):
                    failures = [item for item in event.failures if f"{item[0]}:{item[1]}" not in event.known]
                    result.known.update(event.known.values())
                else:
                    if isinstance(event, Progress):
                        result.judged += event.judged
                        result.unsupported.update(event.unsupported)
                        result.printed += event.printed
                        result.noted.update(event.noted)
                        result.executed = result.executed.plus(*event.executed)
                    continue
                for kind, where, detail in failures:
                    name = _bucket(case, kind, where, traits)
                    summary = sizes(case.inputs)
                    result.add(Finding(kind, where, detail, name, path, summary, replay, ()))
            result.bound = session.bound
    except HarnessError as error:
        result.note_broken(error)
    except CannotLoad as error:
        result.note_unloadable(error)
    refused = _refusal(task, case) if result.unsupported else ""
    if refused:
        result.notes.append(refused)
    if not result.findings and case.verdict is not None and result.judged:
        filed = case.verdict.get("bucket", "a finding")
        text = f"filed as {filed}, which this case alone does not show now"
        result.notes.append(f"{text}: it is mended, or it took the cases before, as in a check with the same seed")
    result.complete = True
    return result
