"""What a reference's answer, or its refusal, means to the harness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oracles.arrays import Array, Inputs, Value
from oracles.contract import Expected, OnlyMemorySafety, Refused, Values
from reference import errors


def answer(reference: Callable[..., Any], names: Sequence[str], inputs: Inputs) -> Expected:
    """Call a reference with NumPy values and name its outputs."""
    try:
        outputs = reference(**{name: _plain(value) for name, value in inputs.items()})
    except errors.ContractError as error:
        return Refused(error.argument, str(error))
    except errors.OnlyMemorySafety as error:
        return OnlyMemorySafety(str(error))
    return Values(dict(zip(names, outputs, strict=True)))


def _plain(value: Value) -> Any:
    if isinstance(value, Array):
        return value.data.copy()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
