"""How a planted fault is examined, and after how many cases it was found.

Faults of ``chunk_metadata`` are examined as ``oracles check`` does it. Those of a family with a folder of its name are
judged in this process, since plain torch code cannot kill it: the cases of a contract are drawn once for all of its
faults, a small scope, which every profile of ``oracles check`` contains, then as many samples as the profile ``dev``
has.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from oracles.arrays import Inputs, Outputs, array, flat, plain_value
from oracles.backends import by_name as backend
from oracles.backends.base import Variation
from oracles.case import Case
from oracles.check import Subject, judge, same, wrong_shape
from oracles.contract import Contract, Expected, Values
from oracles.contracts import by_name
from oracles.domain import Replay, Sampler, Scope, Source, walk
from oracles.examine import Examination
from oracles.providers import find
from oracles.providers.base import Implementation
from oracles.providers.user_file import Execution
from oracles.reduce import Choices, Reducer
from oracles.results import PROFILES, Profile, Result, Settings
from oracles.run import plan
from oracles.verdict import Unsupported

HERE = Path(__file__).parent
CONTRACT = by_name("chunk_metadata.chunk_metadata")
SMALL = Scope(1, 1)
MOST = PROFILES["dev"].examples
NIGHTLY = bool(os.environ.get("ORACLES_NIGHTLY"))
SEEDS = range(10 if NIGHTLY else 1)
UNUSUAL = 300 if NIGHTLY else 6
"""Samples that correct code has to pass, besides the small scope. Each costs some seven calls."""


@dataclass(frozen=True)
class Examined:
    """What became of one callable. ``cases`` counts the inputs up to the first that failed, 0 if none did."""

    result: Result
    cases: int

    @property
    def keys(self) -> dict[str, Inputs]:
        """The smallest case of each kind and place; of several buckets, the one with the fewest traits."""
        found: dict[str, Inputs] = {}
        for finding in sorted(self.result.findings, key=lambda item: len(item.bucket.split("+"))):
            found.setdefault(f"{finding.kind}:{finding.where}", Case.load(finding.case).inputs)
        return found


def position(choices: list[int], profile: Profile, seed: int) -> int:
    """The number of a case in the order in which cases are tried, from 1."""
    number = 0
    for number, (_, source) in enumerate(walk(CONTRACT.domain, profile.scope), 1):
        if source.choices == choices:
            return number
    for index in range(profile.examples):
        source = Sampler(seed, index)
        CONTRACT.domain(source)
        if source.choices == choices:
            return number + index + 1
    raise AssertionError(f"{choices} is no case of this profile")


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_nurseries: None) -> Callable[..., Examined]:
    """Examine ``FILE:NAME`` of this folder on a backend, as ``oracles check`` does."""
    # A worker process finds this repository as its tests do.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]))

    def run(spec: str, backend: str, scope: Scope, examples: int, time_limit: float | None = None) -> Examined:
        planned = plan(["chunk_metadata.chunk_metadata"], [str(HERE / spec)], [backend])
        assert not planned.missing, planned.missing[0].refused
        # A budget in seconds would make what is found depend on the machine's load; attempts are counted.
        settings = Settings(Profile(scope, examples), state=tmp_path, time_limit=time_limit, reduce_seconds=240)
        first: list[int] = []

        def listen(result: Result) -> None:
            if result.stage == "reducing" and not first:
                failed = [Case.load(path) for path in (tmp_path / "findings").glob("unreduced-*.json")]
                first.extend(position(list(case.origin["choices"]), settings.profile, 0) for case in failed)

        result = Examination(planned.tasks[0], settings, listen).run()
        assert result.refused is None, (result.refused, result.notes)
        return Examined(result, min(first, default=0))

    return run


def inputs_of(
    cu: list[int],
    chunk_size: int = 1,
    dtype: str = "int32",
    host: list[int] | None = None,
    host_dtype: str = "int32",
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
) -> Inputs:
    """Inputs of ``chunk_metadata``; the plainest unless something is said."""
    return {
        "cu_seqlens": array(cu, dtype, strides, offset),
        "cu_seqlens_cpu": array(cu if host is None else host, host_dtype),
        "chunk_size": chunk_size,
    }


@pytest.fixture(name="inputs_of")
def _inputs_of() -> Callable[..., Inputs]:
    """Inputs of ``chunk_metadata`` from what is special about them."""
    return inputs_of


@pytest.fixture
def here() -> Path:
    """The folder of the planted faults."""
    return HERE


@pytest.fixture
def contract() -> Contract:
    """The contract that the faults break."""
    return CONTRACT


@pytest.fixture
def exactly() -> Callable[[Inputs, dict[str, Any]], None]:
    """Assert that inputs are those of an example."""

    def assert_equal(got: Inputs, example: dict[str, Any]) -> None:
        wanted = inputs_of(**example)
        shown, wish = Case(contract=CONTRACT.full_name, inputs=got), Case(contract=CONTRACT.full_name, inputs=wanted)
        assert shown.id == wish.id, f"smallest case: {dict(got)}\nexpected: {wanted}"

    return assert_equal


class Kept:
    """Answers of a contract: to the cases of a stream, which live as long, each is asked for once."""

    def __init__(self, contract: Contract, drawn: set[int]) -> None:
        self._contract, self._drawn = contract, drawn
        self._answers: dict[int, Expected] = {}

    def expected(self, inputs: Inputs) -> Expected:
        """The answer by identity for a case of the stream; other inputs come and go."""
        if id(inputs) not in self._drawn:
            return self._contract.expected(inputs)
        if id(inputs) not in self._answers:
            self._answers[id(inputs)] = self._contract.expected(inputs)
        return self._answers[id(inputs)]

    def settle(self, inputs: Inputs, outputs: Outputs) -> Outputs:
        """What is the answer already is not compared with the other right results, which take long."""
        assert self._contract.settle is not None
        answer = self.expected(inputs)
        if isinstance(answer, Values) and all(
            same(flat(outputs).get(name), plain_value(wanted)) for name, wanted in flat(answer.outputs).items()
        ):
            return outputs
        return self._contract.settle(inputs, outputs)


class Stream:
    """The cases of a contract, and what is expected of them: each is drawn once, and asked for once."""

    def __init__(self, contract: Contract) -> None:
        self._drawn: set[int] = set()
        self._sampled: dict[tuple[int, int], Inputs] = {}
        self._contract = contract
        self._declared: dict[str, Contract] = {}
        self.small = [self._kept(inputs) for inputs, _ in walk(contract.domain, SMALL)]

    def cases(self, seed: int, samples: int = MOST) -> Iterator[Inputs]:
        yield from self.small
        for index in range(samples):
            if (seed, index) not in self._sampled:
                self._sampled[seed, index] = self._kept(self._contract.domain(Sampler(seed, index)))
            yield self._sampled[seed, index]

    def contract_of(self, function: Callable[..., Any]) -> Contract:
        """The contract as a callable declares to follow it, with one and the same for all that declare the same."""
        declaration = repr(vars(function)) if self._contract.declared is not None else ""
        if declaration not in self._declared:
            contract = self._contract.of(function)
            kept = Kept(contract, self._drawn)
            settle = kept.settle if contract.settle is not None else None
            self._declared[declaration] = dataclasses.replace(contract, expected=kept.expected, settle=settle)
        return self._declared[declaration]

    def _kept(self, inputs: Inputs) -> Inputs:
        self._drawn.add(id(inputs))
        return inputs


@cache
def stream_of(family: str, contract: str) -> Stream:
    return Stream(by_name(f"{family}.{contract}"))


_files: dict[tuple[Path, str], Implementation] = {}


def _of_file(path: Path, name: str, family: str, contract: str) -> Implementation:
    """A callable of a file of plain torch code, in which all others are like the first: it is inspected once."""
    key = (path, contract)
    if key not in _files:
        _files[key] = find(f"{path}:{name}", by_name(f"{family}.{contract}"), name)
    return dataclasses.replace(_files[key], spec=f"{path}:{name}", name=name, load=Execution(path, name))


@dataclass(frozen=True)
class Folder:
    """A folder of faults of one family, whose name it has."""

    path: Path

    def stream(self, contract: str) -> Stream:
        return stream_of(self.path.name, contract)

    def loaded(self, contract: str, spec: str) -> Subject:
        """``FILE:NAME`` of this folder, which claims to satisfy a contract, on the host."""
        file, _, name = spec.partition(":")
        implementation = _of_file(self.path / file, name, self.path.name, contract)
        function = implementation.load()
        return Subject(self.stream(contract).contract_of(function), implementation, function, backend("host"))


@pytest.fixture
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Where the test lies: its faults, and their family. They import what those of several families share."""
    monkeypatch.syspath_prepend(str(HERE))
    return Folder(request.path.parent)


def right_at_once(subject: Subject, inputs: Inputs) -> bool:
    """Whether one call does all that is promised. The judge makes more of them, to tell faults apart."""
    expected = subject.contract.expected(inputs)
    if not isinstance(expected, Values):
        return False
    run = subject.run(inputs, Variation())
    if run.error or run.failures or run.misshapen:
        return False
    if subject.contract.accepts is not None:
        return subject.contract.accepts(inputs, run.outputs) is None
    outputs = flat(run.outputs)
    return all(
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


@dataclass(frozen=True)
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
def look_for(folder: Folder) -> Callable[..., Found]:
    """Look for a fault under the name of its verdict, and print after how many cases it was found."""

    def look(contract: str, spec: str, key: str, samples: int = MOST) -> Found:
        subject, stream = folder.loaded(contract, spec), folder.stream(contract)
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
def smallest_case(folder: Folder) -> Callable[[str, str, str], Inputs | None]:
    """The first case of a stream that shows a fault under this name, as simple as the product's reducer makes it."""

    def smallest(contract: str, spec: str, key: str) -> Inputs | None:
        subject = folder.loaded(contract, spec)
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
def complaints(folder: Folder) -> Callable[[str, str], list[tuple[Inputs, list[str]]]]:
    """All cases in which anything is held against correct code, and what."""

    def all_of(contract: str, spec: str) -> list[tuple[Inputs, list[str]]]:
        subject = folder.loaded(contract, spec)
        judged = ((inputs, judge(subject, inputs)) for inputs in folder.stream(contract).cases(0, UNUSUAL))
        return [(inputs, [f"{item.key}: {item.detail}" for item in found]) for inputs, found in judged if found]

    return all_of
