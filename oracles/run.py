"""A run: all tasks of a command, in parallel, with results that are complete as far as they go at any moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from oracles.backends import all_backends, by_name
from oracles.backends.base import Backend
from oracles.case import Case
from oracles.contract import Contract
from oracles.contracts import all_contracts, select
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Replay, Sampler
from oracles.examine import Examination
from oracles.origins import origin
from oracles.providers import Implementation, ProviderError, resolve
from oracles.providers.places import identity
from oracles.results import Result, Settings, replay_command
from oracles.session import Task
from oracles.slot import Meta, Running, leftovers


@dataclass(frozen=True)
class Plan:
    """The tasks of a run, the results of those that cannot be started, and a line for each that was named again."""

    tasks: list[Task]
    missing: list[Result]
    repeated: list[str] = field(default_factory=list)


def plan(names: Sequence[str], specs: Sequence[str], backends: Sequence[str]) -> Plan:
    """What a command line stands for. Raises for names and specs that mean nothing (exit 2)."""
    contracts: list[Contract] = []
    for name in names:
        contracts += [contract for contract in select(name) if contract not in contracts]
    chosen = [by_name(name) for name in dict.fromkeys(backends)]
    found = Plan([], [])
    first: dict[str, str] = {}
    for spec in specs:
        earlier = first.get(identity(spec))
        if earlier is not None:
            found.repeated.append(f"--impl {spec} names the same as --impl {earlier}: it is judged once")
            continue
        first[identity(spec)] = spec
        for implementation in _resolved(spec, contracts, names):
            contract = contract_by_name(implementation.contract)
            for backend in chosen or [default_backend(implementation.runs)]:
                task = Task(contract, implementation, backend)
                reason = why_not(task)
                if reason is None:
                    found.tasks.append(task)
                else:
                    found.missing.append(Result(task, refused=reason, complete=True))
    return found


def _resolved(spec: str, contracts: Sequence[Contract], names: Sequence[str]) -> list[Implementation]:
    """A word that names a family may be a contract's name too: it is, for a callable that fits no contract better."""
    try:
        return resolve(spec, list(contracts) or list(all_contracts()), named=bool(names))
    except ProviderError:
        meant = [contract for contract in contracts if contract.name in names]
        if not meant or meant == list(contracts):
            raise
        return resolve(spec, meant, named=True)


NEAREST = ("rocm", "cuda", "gfx942", "interpreter")
"""Where kernels run if nobody says otherwise: on a device that is here, else as what an AMD device would execute."""


def default_backend(runs: str) -> Backend:
    """Where code of this kind, ``host`` or ``triton``, runs if nobody says otherwise."""
    if runs == "host":
        return by_name("host")
    found = [by_name(name) for name in NEAREST]
    return next((backend for backend in found if backend.unavailable() is None), found[-1])


def why_not(task: Task) -> str | None:
    """Why a task cannot be started."""
    if task.implementation.unsupported is not None:
        return task.implementation.unsupported
    if task.implementation.runs not in task.backend.runs:
        able = [name for name, backend in all_backends().items() if task.implementation.runs in backend.runs]
        return f"it launches Triton kernels, and backend {task.backend.name} runs none; try {' or '.join(able)}"
    return task.backend.unavailable()


class Execution:
    """Runs a plan. ``results`` can be read at any time; ``stop`` ends it and keeps what was found."""

    def __init__(self, planned: Plan, settings: Settings, *, jobs: int | None = None) -> None:
        self.settings = settings
        self.results = [*planned.missing]
        self._jobs = jobs or os.cpu_count() or 1
        self._examinations: list[Examination] = []
        self._lock = threading.Lock()
        self._listener: Callable[[Result], None] = lambda result: None
        for task in planned.tasks:
            examination = Examination(task, settings, lambda result: self._listener(result))
            self._examinations.append(examination)
            self.results.append(examination.result)

    def run(self, listener: Callable[[Result], None] = lambda result: None) -> list[Result]:
        """All tasks; the first defect of the harness itself is raised."""

        def tell(result: Result) -> None:
            with self._lock:
                listener(result)

        self._listener = tell
        with ThreadPoolExecutor(self._jobs) as pool:
            running = [pool.submit(examination.run) for examination in self._examinations]
            try:
                wait(running)
            except BaseException:
                for future in running:
                    future.cancel()
                for examination in self._examinations:
                    examination.stop()
                raise
            for future in running:
                future.result()
        return self.results


@dataclass(frozen=True)
class Interrupted:
    """A case that was running when an earlier run was killed."""

    meta: Meta
    path: Path
    replay: str


def interrupted(state: Path) -> list[Interrupted]:
    """Leftovers of killed runs, each written down as a case file."""
    found = []
    for meta, running in leftovers(state / "running"):
        try:
            case = _case_of(meta, running, state / "interrupted")
        except Exception:  # written by another release, whose choices mean something else here, or by nobody of ours
            continue
        path = case.save(state / "interrupted" / f"{case.id}.json")
        found.append(Interrupted(meta, path, replay_command(path, meta.spec, meta.backend, meta.time_limit)))
    return found


def _case_of(meta: Meta, running: Running, folder: Path) -> Case:
    if running.path is not None:
        return Case.load(Path(running.path))
    contract = contract_by_name(meta.contract)
    if running.choices is not None and (running.choices or running.index < 0):
        inputs = contract.domain(Replay(running.choices))
    else:
        inputs = contract.domain(Sampler(running.seed, running.index))
    found = origin(meta.spec, meta.name, meta.backend, folder)
    return Case(contract=meta.contract, inputs=inputs, origin=found)
