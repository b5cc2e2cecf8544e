"""How a planted fault is examined, and after how many cases it was found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oracles.arrays import Inputs, array
from oracles.case import Case
from oracles.contract import Contract
from oracles.contracts import by_name
from oracles.domain import Sampler, Scope, walk
from oracles.examine import Examination
from oracles.results import Profile, Result, Settings
from oracles.run import plan

HERE = Path(__file__).parent
CONTRACT = by_name("chunk_metadata.chunk_metadata")


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
