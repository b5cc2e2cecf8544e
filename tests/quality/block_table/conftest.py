"""How planted faults of block tables are found: in this process, since plain torch code cannot kill it.

The cases of a contract are drawn once for all of its faults: a small scope, which every profile of ``oracles check``
contains, then as many samples as the profile ``dev`` has.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from oracles.arrays import Inputs, flat, plain_value
from oracles.backends import by_name as backend
from oracles.backends.base import Variation
from oracles.check import Subject, judge, same, wrong_shape
from oracles.contract import Contract, Expected, Values
from oracles.contracts import by_name
from oracles.domain import Replay, Sampler, Scope, Source, walk
from oracles.providers import find
from oracles.reduce import Choices, Reducer
from oracles.results import PROFILES
from oracles.verdict import Unsupported

HERE = Path(__file__).parent
SMALL = Scope(1, 1)
MOST = PROFILES["dev"].examples
NIGHTLY = bool(os.environ.get("ORACLES_NIGHTLY"))
SEEDS = range(10 if NIGHTLY else 1)
UNUSUAL = 300 if NIGHTLY else 6
"""Samples that correct code has to pass, besides the small scope. Each costs some seven calls."""


class Stream:
    """The cases of a contract, and what is expected of them: each is drawn once, and asked for once."""

    def __init__(self, contract: Contract) -> None:
        self._ask = contract.expected
        self._answers: dict[int, Expected | None] = {}
        self._sampled: dict[tuple[int, int], Inputs] = {}
        self.contract = dataclasses.replace(contract, expected=self._expected)
        self.small = [self._kept(inputs) for inputs, _ in walk(contract.domain, SMALL)]

    def cases(self, seed: int, samples: int = MOST) -> Iterator[Inputs]:
        yield from self.small
        for index in range(samples):
            if (seed, index) not in self._sampled:
                self._sampled[seed, index] = self._kept(self.contract.domain(Sampler(seed, index)))
            yield self._sampled[seed, index]

    def _kept(self, inputs: Inputs) -> Inputs:
        self._answers[id(inputs)] = None
        return inputs

    def _expected(self, inputs: Inputs) -> Expected:
        """The answer by identity for a case of this stream, which lives as long; others come and go."""
        if id(inputs) not in self._answers:
            return self._ask(inputs)
        answer = self._answers[id(inputs)] or self._ask(inputs)
        self._answers[id(inputs)] = answer
        return answer


@cache
def stream_of(contract: str) -> Stream:
    return Stream(by_name(f"block_table.{contract}"))


def loaded(contract: str, spec: str) -> Subject:
    """``FILE:NAME`` of this folder, which claims to satisfy a contract, on the host."""
    record = stream_of(contract).contract
    implementation = find(str(HERE / spec), record, spec.partition(":")[2])
    return Subject(record, implementation, implementation.load(), backend("host"))


def right_at_once(subject: Subject, inputs: Inputs) -> bool:
    """Whether one call does all that is promised. The judge makes more of them, to tell faults apart."""
    expected = subject.contract.expected(inputs)
    if not isinstance(expected, Values):
        return False
    run = subject.run(inputs, Variation())
    outputs = flat(run.outputs)
    return not (run.error or run.failures or run.misshapen) and all(
        wrong_shape(name, wanted, outputs.get(name), run.dtypes.get(name)) is None
        and same(outputs[name], plain_value(wanted))
        for name, wanted in flat(expected.outputs).items()
    )


def shows(subject: Subject, inputs: Inputs, key: str) -> bool:
    """Whether a case fails under this name. Only what is stale needs the protocol of many calls."""
    stale = key.startswith("stale:")
    if not stale and right_at_once(subject, inputs):
        return False
    try:
        return any(failure.key == key for failure in judge(subject, inputs, fresh=stale))
    except Unsupported:
        return False


@dataclasses.dataclass(frozen=True)
class Found:
    """After how many cases a fault showed: one number a seed, ``inf`` where none of the ``given`` ones shows it."""

    contract: str
    name: str
    key: str
    needed: tuple[float, ...]
    given: int

    @property
    def median(self) -> float:
        return statistics.median(self.needed)

    def __str__(self) -> str:
        return f"{self.contract} {self.name} {self.key} {self.median:.0f}"


@pytest.fixture
def look_for() -> Callable[..., Found]:
    """Look for a fault under the name of its verdict, and print after how many cases it was found."""

    def look(contract: str, spec: str, key: str, samples: int = MOST) -> Found:
        subject, stream = loaded(contract, spec), stream_of(contract)
        needed: list[float] = []
        for seed in SEEDS:
            cases = enumerate(stream.cases(seed, samples), 1)
            needed.append(next((number for number, inputs in cases if shows(subject, inputs, key)), float("inf")))
            if needed[0] <= len(stream.small):
                break  # the small scope is the same for every seed
        found = Found(contract, spec.partition(":")[2], key, tuple(needed), len(stream.small) + samples)
        print(found)
        return found

    return look


@pytest.fixture
def smallest_case() -> Callable[[str, str, str], Inputs | None]:
    """The first case of a stream that shows a fault under this name, as simple as the product's reducer makes it."""

    def smallest(contract: str, spec: str, key: str) -> Inputs | None:
        subject = loaded(contract, spec)
        domain = subject.contract.domain

        def test(candidate: Choices) -> Choices | None:
            source = Replay(candidate, lenient=True)
            return tuple(source.choices) if shows(subject, domain(source), key) else None

        def drawn() -> Iterator[tuple[Inputs, Source]]:
            yield from walk(domain, PROFILES["ci"].scope)
            for index in range(MOST):
                source = Sampler(0, index)
                yield domain(source), source

        def replayed(choices: Choices) -> Replay:
            source = Replay(choices, lenient=True)
            domain(source)
            return source

        for inputs, source in drawn():
            if shows(subject, inputs, key):
                # A budget in seconds would make the result depend on the machine's load; attempts are counted.
                reducer = Reducer(
                    test,
                    attempts=3000,
                    seconds=240,
                    cost=lambda choices: replayed(choices).cost,
                    forms=lambda choices: replayed(choices).forms(),
                )
                return domain(Replay(reducer.reduce(tuple(source.choices)), lenient=True))
        return None

    return smallest


@pytest.fixture
def complaints() -> Callable[[str, str], list[tuple[Inputs, list[str]]]]:
    """All cases in which anything is held against correct code, and what."""

    def all_of(contract: str, spec: str) -> list[tuple[Inputs, list[str]]]:
        subject = loaded(contract, spec)
        judged = ((inputs, judge(subject, inputs)) for inputs in stream_of(contract).cases(0, UNUSUAL))
        return [(inputs, [f"{item.key}: {item.detail}" for item in found]) for inputs, found in judged if found]

    return all_of
