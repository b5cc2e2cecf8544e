"""How a planted builder is examined: a life on plain tensors first, and those that go wrong as the product judges them.

A guarded life takes seven times as long as a plain one, which shows most of what is wrong as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from oracles.arrays import Array, Inputs, Value, arrays_of
from oracles.check import Subject, judge
from oracles.contract import Values
from oracles.contracts import metadata_reuse
from oracles.contracts._reuse_engine import CHECKS, Engine
from oracles.domain import Replay, Sampler, Scope, Source, walk
from oracles.reduce import Choices, Reducer
from oracles.verdict import Failure

MOST = 1000
SMALL = Scope(1, 1)
ATTEMPTS = 600


@dataclass(frozen=True)
class Shown:
    """The first case that shows a fault: its number, and what is said of it."""

    number: int
    inputs: Inputs
    failures: list[Failure]


@contextmanager
def filled_memory() -> Iterator[None]:
    """What nobody has written holds the same in every run."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def on_tensors(value: Value) -> Any:
    if isinstance(value, tuple):
        return [on_tensors(item) for item in value]
    return torch.from_numpy(value.data.copy()) if isinstance(value, Array) else value


def placed(inputs: Inputs) -> dict[str, Any]:
    return {name: value if name in ("groups", "steps") else on_tensors(value) for name, value in inputs.items()}


def right_on_plain_tensors(subject: Subject, inputs: Inputs) -> bool:
    """Whether a life without guards shows all that the specification says."""
    expected = subject.contract.expected(inputs)
    assert isinstance(expected, Values)
    assert subject.contract.call is not None
    arguments, given = placed(inputs), [value for _, value in arrays_of(inputs)]
    try:
        with filled_memory():
            found = subject.contract.call(subject.function, arguments)
    except Exception:
        return False
    return all(
        len(found[name]) == len(wanted) and all(map(equal, found[name], wanted))
        for name, wanted in expected.outputs.items()
    ) and all(equal(value, wanted.data) for value, wanted in zip(tensors_of(arguments), given, strict=True))


def equal(got: Any, wanted: Any) -> bool:
    """Bit for bit, shape and dtype too."""
    if not isinstance(wanted, np.ndarray):
        return type(got) is int and got == wanted
    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        return False
    values = got.numpy()
    return values.dtype == wanted.dtype and values.tobytes() == wanted.tobytes()


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def shown(subject: Subject, inputs: Inputs, key: str) -> list[Failure]:
    """What the product says of a life, if it is this among others."""
    # Plain tensors lie in one piece, so they cannot show what strides do.
    apart = any(item.strides is not None for _, item in arrays_of(inputs))
    if not apart and not key.startswith("host_sync") and right_on_plain_tensors(subject, inputs):
        return []
    failures = judge(subject, inputs, fresh=False)
    return failures if any(failure.key == key for failure in failures) else []


@pytest.fixture
def first_shown(folder: Any) -> Callable[..., Shown | None]:
    """The first case that shows a fault, and what is said; ``None`` where no case does. Prints its number."""

    def look(contract: str, spec: str, key: str, samples: int = MOST) -> Shown | None:
        subject, stream = folder.loaded(contract, spec), folder.stream(contract)
        for number, inputs in enumerate(stream.cases(0, samples), 1):
            failures = shown(subject, inputs, key)
            if failures:
                print(contract, spec, key, number)
                return Shown(number, inputs, failures)
        return None

    return look


@pytest.fixture
def said_of(folder: Any) -> Callable[..., list[str]]:
    """All that is said of a builder on the small scope and some samples, by an engine that may lack a check.

    Every life is lived on plain tensors; those that go wrong and a share of the others are judged.
    """

    def look(contract: str, spec: str, *, without: str = "", samples: int = 40, guarded: int = 16) -> list[str]:
        subject = folder.loaded(contract, spec)
        if without:
            call = partial(exercise, [name for name in CHECKS if name != without])
            subject = replace(subject, contract=replace(subject.contract, call=call))
        cases = list(folder.stream(contract).cases(0, samples))
        chosen = {len(cases) * number // guarded for number in range(guarded)} if guarded else set()
        judged = (
            judge(subject, inputs)
            for number, inputs in enumerate(cases)
            if number in chosen or not right_on_plain_tensors(subject, inputs)
        )
        return [f"{failure.key}: {failure.detail}" for failures in judged for failure in failures]

    return look


def exercise(checks: list[str], implementation: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    return Engine(implementation, metadata_reuse.itself, arguments, checks).live()


@pytest.fixture
def engine_of() -> Callable[[str, Inputs], Engine]:
    """A life of the correct builders, about to be lived, on plain tensors."""
    # The folder of the test is where pytest finds conftest.py, so its modules can be imported once it runs.
    from correct_linear import Linear
    from correct_mla import Mla

    def made(family: str, inputs: Inputs) -> Engine:
        classes = {"linear": Linear, "mla": Mla}
        return Engine(classes, lambda given, name: given[name], placed(inputs))

    return made


@pytest.fixture
def reduced(folder: Any) -> Callable[[str, str, str], Shown | None]:
    """The smallest case that shows a fault, and what is said of it."""

    def smallest(contract: str, spec: str, key: str) -> Shown | None:
        subject = folder.loaded(contract, spec)
        domain = subject.contract.domain

        def test(candidate: Choices) -> Choices | None:
            source = Replay(candidate, lenient=True)
            return tuple(source.choices) if shown(subject, domain(source), key) else None

        def drawn() -> Iterator[tuple[Inputs, Source]]:
            yield from walk(domain, SMALL)
            for index in range(MOST):
                source = Sampler(0, index)
                yield domain(source), source

        for number, (inputs, source) in enumerate(drawn(), 1):
            if shown(subject, inputs, key):
                # Attempts are counted: a budget in seconds would make the result depend on the machine's load.
                choices = Reducer(test, attempts=ATTEMPTS, seconds=240).reduce(tuple(source.choices))
                inputs = domain(Replay(choices, lenient=True))
                return Shown(number, inputs, shown(subject, inputs, key))
        return None

    return smallest
