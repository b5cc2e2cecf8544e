"""Explain a case in text: what goes in, what should come out, what came out, and where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from oracles.arrays import Array, Value, dtype_of, flat, plain_value
from oracles.case import Case
from oracles.contract import Contract, OnlyMemorySafety, Refused, Values
from oracles.contracts import by_name as contract_by_name
from oracles.differences import AS_EXPECTED, Returned, described, difference
from oracles.messages import Found, Show, Shown
from oracles.notation import listed, shortened
from oracles.results import Settings
from oracles.run import Plan
from oracles.session import CannotLoad, Death, Session, Task

LONGEST_OUTPUT = 300
"""Characters of an expected output that are shown."""


def explanation(case: Case, path: Path, planned: Plan, settings: Settings) -> str:
    """The whole text."""
    contract = contract_by_name(case.contract)
    parts = [f"{case.contract}  case {case.id}", _inputs(contract, case.inputs)]
    drawing = contract.sketch(case.inputs) if contract.sketch is not None else ""
    if drawing:
        parts.append(drawing)
    parts.append(_expectation(contract, case))
    for missing in planned.missing:
        parts.append(f"{missing.task.label}: {missing.refused}")
    parts += [_comparison(task, case, path, settings) for task in planned.tasks]
    return "\n\n".join(parts)


def _inputs(contract: Contract, inputs: Mapping[str, Value]) -> str:
    lines = []
    for name, value in inputs.items():
        lines.append(f"  {name:<16} {_value(value)}")
        lines.append(f"  {'':<16} ({contract.input(name).role}) {contract.input(name).doc}")
    return "inputs\n" + "\n".join(lines)


def _value(value: Value) -> str:
    if isinstance(value, tuple) and any(isinstance(item, Array) for item in value):
        return f"\n  {'':<16} ".join(f"[{at}] {_value(item)}" for at, item in enumerate(value))
    if not isinstance(value, Array):
        return repr(value)
    layout = "" if value.strides is None else f", strides {list(value.strides)}"
    layout += f", {value.offset} elements into its buffer" if value.offset else ""
    return f"{value.dtype}{list(value.shape)}{layout} = {shortened(value.dtype, value.data, 32, 24)}"


def _expectation(contract: Contract, case: Case) -> str:
    expected = contract.expected(case.inputs)
    if isinstance(expected, Refused):
        return f"expected: a refusal. {expected.reason}"
    if isinstance(expected, OnlyMemorySafety):
        return f"expected: no particular values, but nothing outside the buffers may be touched. {expected.reason}"
    told = [(name, _output(value)) for name, value in flat(expected.outputs).items()]
    return "expected\n" + "\n".join(f"  {name:<16} {text}" for name, text in _merged(told))


def _merged(told: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours in a list of outputs of which the same is said, as one: ``slots[0..3]``."""
    merged = list[tuple[str, str]]()
    for (place, text), run in groupby(told, key=lambda item: (item[0].partition("[")[0], item[1])):
        names = [name for name, _ in run]
        first, last = (name.removeprefix(place).strip("[]") for name in (names[0], names[-1]))
        merged.append((names[0] if len(names) == 1 else f"{place}[{first}..{last}]", text))
    return merged


def _output(value: Any) -> str:
    dtype, elements = dtype_of(value), np.asarray(plain_value(value))
    return f"{described(dtype, elements.shape)} = {listed(dtype, elements, LONGEST_OUTPUT)}"


def _comparison(task: Task, case: Case, path: Path, settings: Settings) -> str:
    lines, verdict = [task.label], []
    try:
        with Session(task, settings.state, time_limit=settings.time_limit) as session:
            for event in session.ask_surely(Show(str(path.absolute()))):
                if isinstance(event, Shown):
                    lines += _got(task.contract, case, event)
                elif isinstance(event, Found):
                    verdict += [_found(*failure) for failure in event.failures]
                elif isinstance(event, Death):
                    verdict.append(_found(event.kind, event.where, event.detail))
                else:
                    verdict += [f"  unsupported: {reason}" for reason in event.unsupported]
    except CannotLoad as error:
        verdict.append(f"  could not be loaded: {error}")
    return "\n".join([*lines, *(verdict or ["  pass"])])


def _found(kind: str, where: str, detail: str) -> str:
    """A failure in words, all its further lines below the first."""
    return f"  {kind}: {where}: " + detail.replace("\n", "\n    ")


def _got(contract: Contract, case: Case, shown: Shown) -> list[str]:
    if shown.error:
        return [f"  raised {shown.error}"]
    expected = contract.expected(case.inputs)
    returned = {name: Returned(*output, shown.poison.get(name)) for name, output in shown.outputs.items()}
    if not isinstance(expected, Values):
        return [f"  {name:<16} returned {described(got.dtype, got.shape)}" for name, got in returned.items()]
    lines: list[str] = []
    right: list[tuple[str, str]] = []
    for name, wanted in flat(expected.outputs).items():
        if name in returned:
            said = difference(name, wanted, returned[name])
        else:
            said = [f"  {name}: not returned"] if wanted is not None else []
        if said == [f"  {name}: {AS_EXPECTED}"]:
            right.append((name, AS_EXPECTED))
            continue
        lines += [f"  {place}: {text}" for place, text in _merged(right)] + said
        right.clear()
    return lines + [f"  {place}: {text}" for place, text in _merged(right)]
