"""Explain a case in text: what goes in, what should come out, what came out, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oracles.arrays import Array, Value, flat, plain_value
from oracles.case import Case
from oracles.contract import Contract, OnlyMemorySafety, Refused, Values
from oracles.contracts import by_name as contract_by_name
from oracles.messages import Found, Show, Shown
from oracles.results import Settings
from oracles.run import Plan
from oracles.session import CannotLoad, Death, Session, Task

CONTEXT = 4
"""Rows shown before and after the first difference."""


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
    flat = value.data.ravel().tolist()
    shown = str(value.data.tolist()) if len(flat) <= 32 else f"[{', '.join(map(str, flat[:24]))}, ... {flat[-1]}]"
    return f"{value.dtype}{list(value.shape)}{layout} = {shown}"


def _expectation(contract: Contract, case: Case) -> str:
    expected = contract.expected(case.inputs)
    if isinstance(expected, Refused):
        return f"expected: a refusal. {expected.reason}"
    if isinstance(expected, OnlyMemorySafety):
        return f"expected: no particular values, but nothing outside the buffers may be touched. {expected.reason}"
    outputs = flat(expected.outputs)
    lines = [f"  {name:<16} {_array(np.asarray(plain_value(value)))}" for name, value in outputs.items()]
    return "expected\n" + "\n".join(lines)


def _array(values: np.ndarray) -> str:
    text = str(values.tolist())
    return f"{values.dtype}{list(values.shape)} = {text if len(text) <= 300 else text[:297] + '...'}"


def _comparison(task: Task, case: Case, path: Path, settings: Settings) -> str:
    lines, verdict = [task.label], []
    try:
        with Session(task, settings.state, time_limit=settings.time_limit) as session:
            for event in session.ask_surely(Show(str(path.absolute()))):
                if isinstance(event, Shown):
                    lines += _got(task.contract, case, event)
                elif isinstance(event, Found):
                    verdict += [f"  {kind}: {where}: {detail}" for kind, where, detail in event.failures]
                elif isinstance(event, Death):
                    verdict.append(f"  {event.kind}: {event.where}: {event.detail}")
                else:
                    verdict += [f"  unsupported: {reason}" for reason in event.unsupported]
    except CannotLoad as error:
        verdict.append(f"  could not be loaded: {error}")
    return "\n".join([*lines, *(verdict or ["  pass"])])


def _got(contract: Contract, case: Case, shown: Shown) -> list[str]:
    if shown.error:
        return [f"  raised {shown.error}"]
    expected = contract.expected(case.inputs)
    if not isinstance(expected, Values):
        return [f"  {name:<16} returned {dtype}{shape}" for name, (dtype, shape, _) in shown.outputs.items()]
    lines: list[str] = []
    for name, wanted in flat(expected.outputs).items():
        if name in shown.outputs:
            wish, poison = np.asarray(plain_value(wanted)), shown.poison.get(name)
            lines += _difference(name, wish, *shown.outputs[name], poison=poison)
        else:
            lines.append(f"  {name}: not returned")
    return lines


def _difference(
    name: str, wanted: np.ndarray, dtype: str, shape: list[int], values: list[Any] | None, *, poison: Any
) -> list[str]:
    if shape != list(wanted.shape) or dtype != str(wanted.dtype):
        return [f"  {name}: {dtype}{shape}, expected {wanted.dtype}{list(wanted.shape)}"]
    if values is None:
        return [f"  {name}: {dtype}{shape}, too large to be shown here"]
    got = np.array(values, dtype=object).reshape(shape)
    wish = wanted.astype(object)
    differ = np.array(got != wish, dtype=bool)
    if not differ.any():
        return [f"  {name}: as expected"]
    first = [int(n) for n in np.argwhere(differ)[0]]
    lines = [f"  {name}: {int(differ.sum())} of {differ.size} elements differ, first at {name}{first}"]
    if not first:
        return [*lines, f"    got {got}, expected {wish}"]
    begin, end = max(first[0] - CONTEXT, 0), min(first[0] + CONTEXT + 1, shape[0])
    lines.append(f"    {'row':>8}  {'got':<28}expected")
    for row in range(begin, end):
        mark = " <-- first difference" if row == first[0] else ""
        lines.append(f"    {row:>8}  {_cell(got[row], poison):<28}{_cell(wish[row], None)}{mark}")
    return lines


def _cell(value: Any, poison: Any) -> str:
    if isinstance(value, np.ndarray):
        return "[" + ", ".join(_cell(item, poison) for item in value.tolist()) + "]"
    return "(unwritten)" if poison is not None and value == poison else str(value)
