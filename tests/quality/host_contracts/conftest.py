"""How a callable is examined against a contract of a host function: in this process, as none of them can kill it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oracles.arrays import Inputs
from oracles.backends import by_name as backend
from oracles.check import Subject, judge
from oracles.contract import Contract
from oracles.contracts import by_name
from oracles.domain import Replay, Sampler, Scope, Source, walk
from oracles.providers import find
from oracles.reduce import Choices, Reducer

HERE = Path(__file__).parent


def drawn(contract: Contract, scope: Scope, examples: int) -> Iterator[tuple[Inputs, Source]]:
    """The small scope, then samples, as ``oracles check`` draws them."""
    yield from walk(contract.domain, scope)
    for index in range(examples):
        source = Sampler(0, index)
        yield contract.domain(source), source


def smallest(subject: Subject, key: str, cases: Iterator[tuple[Inputs, Source]]) -> Inputs | None:
    """The first case that fails under this name (or a name that begins so), made as simple as it can be."""
    domain, stale = subject.contract.domain, key.startswith("stale:")

    def fails(inputs: Inputs) -> bool:
        return any(failure.key.startswith(key) for failure in judge(subject, inputs, fresh=stale))

    def test(candidate: Choices) -> Choices | None:
        source = Replay(candidate, lenient=True)
        return tuple(source.choices) if fails(domain(source)) else None

    for inputs, source in cases:
        if fails(inputs):
            # A budget in seconds would make the result depend on the machine's load; attempts are counted.
            return domain(Replay(Reducer(test, attempts=1500, seconds=240).reduce(tuple(source.choices))))
    return None


@pytest.fixture
def subject_of() -> Callable[[str, str], Subject]:
    """``FILE:NAME`` of this folder, which claims to satisfy a contract, on the host."""

    def load(contract: str, spec: str) -> Subject:
        record = by_name(contract)
        implementation = find(str(HERE / spec), record, spec.partition(":")[2])
        return Subject(record, implementation, implementation.load(), backend("host"))

    return load


@pytest.fixture
def smallest_case(subject_of: Callable[[str, str], Subject]) -> Callable[..., Inputs | None]:
    """The smallest case that shows a fault under its name, or ``None``."""

    def find_it(contract: str, spec: str, key: str, scope: Scope, examples: int) -> Inputs | None:
        subject = subject_of(contract, spec)
        return smallest(subject, key, drawn(subject.contract, scope, examples))

    return find_it


@pytest.fixture
def failures(subject_of: Callable[[str, str], Subject]) -> Callable[..., list[tuple[Inputs, list[str]]]]:
    """All cases that fail, freshness included, and how."""

    def all_of(contract: str, spec: str, scope: Scope, examples: int) -> list[tuple[Inputs, list[str]]]:
        subject = subject_of(contract, spec)
        judged = ((inputs, judge(subject, inputs)) for inputs, _ in drawn(subject.contract, scope, examples))
        return [(inputs, [f"{item.key}: {item.detail}" for item in found]) for inputs, found in judged if found]

    return all_of
