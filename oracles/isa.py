"""The machine code of the kernels that an implementation launches, compiled in a process of its own."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oracles.arrays import Inputs, arrays_of
from oracles.backends.base import CHILD_MEMORY
from oracles.backends.cdna.compile_only import CompilingBackend, Kernel
from oracles.case import Case
from oracles.contract import Contract, Values
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Sampler
from oracles.providers.base import Implementation
from oracles.verdict import described

if TYPE_CHECKING:
    from oracles.backends.base import Backend

SAMPLES = 128
"""Sampled inputs of a contract among which the most typical ones are looked for."""

COMPILING_SECONDS = 300.0
ROOT = Path(__file__).parents[1]
START = "import sys; sys.path.append(sys.argv[1]); from oracles.isa import worker; worker(sys.argv[2])"
PR_SET_PDEATHSIG = 1


class Request(msgspec.Struct):
    """What to compile, in one file; the answer goes to another one. Inputs are cases in files."""

    contract: str
    spec: str
    name: str
    architecture: str
    cases: list[str]
    answer: str


class Answer(msgspec.Struct):
    """What was compiled, each variant once, what ended a call early, and why nothing could be loaded, if so."""

    kernels: list[Kernel]
    errors: list[str]
    unloaded: str = ""


class CannotCompile(RuntimeError):
    """The process that compiles gave no answer; the message says why."""


def typical(contract: Contract) -> list[Inputs]:
    """The most typical input for each combination of device dtypes.

    That is the one, among the first sampled ones to which the contract gives values, whose sizes and numbers lie
    nearest to the middle of all.
    """
    groups: dict[tuple[str, ...], list[Inputs]] = {}
    for index in range(SAMPLES):
        inputs = contract.domain(Sampler(0, index))
        if isinstance(contract.expected(inputs), Values):
            dtypes = (value.dtype for name, value in arrays_of(inputs) if _on_device(contract, name))
            groups.setdefault(tuple(dtypes), []).append(inputs)
    return [_middle(groups[dtypes]) for dtypes in sorted(groups)]


def _middle(found: Sequence[Inputs]) -> Inputs:
    """The input whose places in the orders by each of its measures are nearest to the middle."""
    away = [0] * len(found)
    rows = [_measures(inputs) for inputs in found]
    for name in rows[0]:
        order = sorted(range(len(rows)), key=lambda number: rows[number].get(name, 0))
        for place, number in enumerate(order):
            away[number] += abs(2 * place - len(order) + 1)
    return found[min(range(len(found)), key=away.__getitem__)]


def _measures(inputs: Inputs) -> dict[str, int]:
    """Sizes of arrays, and whole numbers."""
    sizes = {name: value.data.size for name, value in arrays_of(inputs)}
    return sizes | {name: value for name, value in inputs.items() if isinstance(value, int)}


def _on_device(contract: Contract, name: str) -> bool:
    return contract.input(name.split("[")[0]).role == "device"


def compiled(contract: Contract, implementation: Implementation, backend: Backend, inputs: Sequence[Inputs]) -> Answer:
    """The kernels that calls with these inputs launch on the emulated architecture ``backend``; none of them is run.

    Raises :class:`CannotCompile` if the process that compiles them crashes or does not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for number, values in enumerate(inputs):
            case = Case(contract=contract.full_name, inputs=values)
            cases.append(str(case.save(Path(folder) / f"{number}.json")))
        answer, request = Path(folder) / "answer", Path(folder) / "request"
        asked = Request(contract.full_name, implementation.spec, implementation.name, backend.name, cases, str(answer))
        request.write_bytes(msgspec.msgpack.encode(asked))
        with (Path(folder) / "log").open("w+b") as log:
            code = _run(request, log, os.environ | dict(backend.environment()))
            if code or not answer.exists():
                log.seek(0)
                said = log.read().decode(errors="replace").strip().splitlines()
                raise CannotCompile("\n".join([f"the process that compiles ended with {code}", *said[-12:]]))
        return msgspec.msgpack.decode(answer.read_bytes(), type=Answer)


def _run(request: Path, log: Any, environment: dict[str, str]) -> int:
    # -P: a file in the current folder must not stand in for a module of the worker.
    command = [sys.executable, "-P", "-c", START, str(ROOT), str(request)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        return process.wait(COMPILING_SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"the calls did not end within {COMPILING_SECONDS:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def worker(path: str) -> None:
    """The process that compiles."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (CHILD_MEMORY, CHILD_MEMORY))
    request = msgspec.msgpack.decode(Path(path).read_bytes(), type=Request)
    from oracles.backends.base import Variation
    from oracles.call import call
    from oracles.providers import find, loaded, why_not_loaded

    backend = CompilingBackend(request.architecture)
    backend.prepare()
    contract, unloaded = contract_by_name(request.contract), ""
    errors: list[str] = []
    try:
        _, function = loaded(find(request.spec, contract, request.name))
    except BaseException as error:  # a file may leave with sys.exit
        unloaded = why_not_loaded(error)
    for path in request.cases if not unloaded else ():
        case = Case.load(Path(path))
        try:
            run = call(contract, function, backend, case.inputs, Variation())
        except Exception as error:
            errors.append(described(error))
            continue
        if run.error is not None:
            errors.append(described(run.error))
    answer = Answer(list(backend.kernels.values()), errors, unloaded)
    Path(request.answer).write_bytes(msgspec.msgpack.encode(answer))
