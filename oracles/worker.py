"""The process that runs other people's code, and dies alone.

Its main function is a nursery: it imports what is slow to import, then forks one child at a time. The
child loads the implementation and judges cases; when it dies, the nursery says how, and forks the next one within
milliseconds. Messages travel over one socket that keeps their boundaries; standard output and error are a log file.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import select
import signal
import socket
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from oracles.arrays import Inputs
from oracles.backends import by_name as backend_by_name
from oracles.case import Case, case_id
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Enumerator, Replay, Sampler, Scope, Source, walk
from oracles.environment import environment
from oracles.slot import Slot
from oracles.verdict import Failure, Unsupported, described

PROGRESS_SECONDS = 0.2
WAIT_MILLISECONDS = 10
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOG_LIMIT = 1 << 20
MESSAGE_LIMIT = 8 << 20
SHOWN_ELEMENTS = 12_000
"""Elements of all outputs that are sent; larger ones are judged only. A message must fit a socket's buffer."""
MEMORY_LIMIT = 6 << 30
"""Bytes of private memory a child may have: garbage lengths must not take the machine down with them."""


class Load(msgspec.Struct, tag=True):
    """First message: what to judge, and where to note it."""

    contract: str
    spec: str
    name: str
    backend: str
    slot: str
    findings: str
    seen: list[tuple[str, list[str]]] = []


class Walk(msgspec.Struct, tag=True):
    """Judge the small scope, from behind ``after``."""

    count: int
    value: int
    after: list[int] | None
    avoid: list[list[str]] = []


class Sample(msgspec.Struct, tag=True):
    """Judge sampled inputs ``start .. start + count - 1`` of a seed."""

    seed: int
    start: int
    count: int
    avoid: list[list[str]] = []


class Try(msgspec.Struct, tag=True):
    """Judge one choice sequence."""

    choices: list[int]
    fresh: bool


class Replayed(msgspec.Struct, tag=True):
    """Judge one case file."""

    path: str


class Show(msgspec.Struct, tag=True):
    """Judge one case file, and send the outputs too."""

    path: str


class Fork(msgspec.Struct, tag=True):
    """To the nursery: start a child."""


class Ready(msgspec.Struct, tag=True):
    """The implementation is loaded. ``pid`` is the child's, and its process group's."""

    pid: int


class LoadFailed(msgspec.Struct, tag=True):
    """The implementation could not be loaded."""

    reason: str
    detail: str


class Found(msgspec.Struct, tag=True):
    """A case failed. ``failures`` are (kind, where, detail)."""

    failures: list[tuple[str, str, str]]
    traits: list[str]
    choices: list[int]
    path: str


class Shown(msgspec.Struct, tag=True):
    """Outputs as (dtype, shape, flat values), what an unwritten element of each looks like, or the exception.

    Values that would not fit a message are ``None``.
    """

    outputs: dict[str, tuple[str, list[int], list[Any] | None]]
    poison: dict[str, Any]
    error: str


class Progress(msgspec.Struct, tag=True):
    """Counts since the start of the command. ``unsupported`` counts reasons; ``position`` is where to go on."""

    judged: int
    unsupported: dict[str, int]
    avoided: int
    index: int
    compilations: int
    done: bool


class Broken(msgspec.Struct, tag=True):
    """The harness itself failed: a defect of this project, and no verdict."""

    detail: str


class Died(msgspec.Struct, tag=True):
    """From the nursery: how the child ended."""

    status: int


Command = Load | Walk | Sample | Try | Replayed | Show | Fork
Event = Ready | LoadFailed | Found | Shown | Progress | Broken | Died
_encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Command).decode


def main(fd: int) -> None:
    """The nursery."""
    channel = socket.socket(fileno=fd)
    load = _decode_command(channel.recv(MESSAGE_LIMIT))
    assert isinstance(load, Load)
    backend = backend_by_name(load.backend)
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    backend.prepare()
    import oracles.check  # imported before the fork, so that children need not
    import oracles.interception
    import oracles.providers

    oracles.interception.warm_up()

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the worker goes, not the parent
    _serve(channel, load)
    _kill_descendants()


def _serve(channel: socket.socket, load: Load) -> None:
    while data := channel.recv(MESSAGE_LIMIT):
        if not isinstance(_decode_command(data), Fork):
            continue  # meant for a child that died before it read it
        child = os.fork()
        if child == 0:
            _Child(channel, load).serve()
        status = _await(child, channel)
        if status is None:
            return  # the parent is gone
        channel.send(_encode(Died(status)))


def _await(child: int, channel: socket.socket) -> int | None:
    """Wait until the child ends, or the parent does (``None``); either way nothing that the child started lives on."""
    watch = select.poll()
    watch.register(channel, 0)  # no event but a hang-up: the messages are the child's to read
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or watch.poll(WAIT_MILLISECONDS):
            _kill_descendants(child)
            return status if ended else None


def _kill_descendants(child: int | None = None) -> None:
    """Kill the child's group, and every orphan that came to this process as their subreaper."""
    if child is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    while True:
        for listing in Path("/proc/self/task").glob("*/children"):
            for pid in listing.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class _Child:
    """Loads one implementation and judges its cases until it is told to stop, or dies."""

    def __init__(self, channel: socket.socket, load: Load) -> None:
        self.channel = channel
        self.load = load
        self.seen = {(key, frozenset(traits)) for key, traits in load.seen}

    def send(self, event: Event) -> None:
        self.channel.send(_encode(event))

    def serve(self) -> None:
        """Never returns."""
        try:
            self._prepare()
            self._loop()
        except BaseException:
            with contextlib.suppress(BaseException):
                self.send(Broken(traceback.format_exc()))
        finally:
            os._exit(0)

    def _prepare(self) -> None:
        from oracles.check import Subject
        from oracles.providers import find, loaded

        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no orphan outlives the nursery
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.enable()
        self.slot = Slot(Path(self.load.slot))
        self.contract = contract_by_name(self.load.contract)
        try:
            implementation = find(self.load.spec, self.contract, self.load.name)
            implementation, function = loaded(implementation)
        except BaseException as error:
            self.send(LoadFailed(described(error), traceback.format_exc()))
            os._exit(0)
        self.subject = Subject(self.contract, implementation, function, backend_by_name(self.load.backend))
        self.send(Ready(os.getpid()))

    def _loop(self) -> None:
        while data := self.channel.recv(MESSAGE_LIMIT):
            command = _decode_command(data)
            if isinstance(command, Try):
                source = Replay(command.choices, lenient=True)
                self._judge_all(
                    iter([(self.contract.domain(source), source, -1, -1)]), [], fresh=command.fresh, always=True
                )
            elif isinstance(command, Replayed):
                inputs = Case.load(Path(command.path)).inputs
                self._judge_all(iter([(inputs, None, -1, -1)]), [], always=True, path=command.path)
            elif isinstance(command, Show):
                inputs = Case.load(Path(command.path)).inputs
                self.slot.begin_file(command.path)
                self._show(inputs)
                self._judge_all(iter([(inputs, None, -1, -1)]), [], always=True, path=command.path)
            elif isinstance(command, Walk):
                self._judge_all(self._walk(command), command.avoid)
            elif isinstance(command, Sample):
                self._judge_all(self._sample(command), command.avoid)

    def _walk(self, command: Walk) -> Iterator[tuple[Inputs, Source | None, int, int]]:
        source: Enumerator
        walked = walk(self.contract.domain, Scope(command.count, command.value), command.after)
        for inputs, source in walked:
            yield inputs, source, -1, -1

    def _sample(self, command: Sample) -> Iterator[tuple[Inputs, Source | None, int, int]]:
        for index in range(command.start, command.start + command.count):
            source = Sampler(command.seed, index)
            yield self.contract.domain(source), source, command.seed, index

    def _judge_all(
        self,
        cases: Iterator[tuple[Inputs, Source | None, int, int]],
        avoid: Sequence[Sequence[str]],
        *,
        fresh: bool = True,
        always: bool = False,
        path: str | None = None,
    ) -> None:
        counts = Progress(0, {}, 0, -1, 0, False)
        shown = monotonic()
        avoided = [frozenset(traits) for traits in avoid]
        for inputs, source, seed, index in cases:
            traits = self.contract.traits(inputs)
            counts.index = index
            if any(bad <= traits for bad in avoided):
                counts.avoided += 1
                continue
            choices = source.choices if source is not None else []
            if path is None:
                self.slot.begin(choices, seed, index)
            else:
                self.slot.begin_file(path)
            self._judge_one(inputs, choices, traits, counts, fresh=fresh, always=always)
            self.slot.end(counts.judged)
            if monotonic() - shown > PROGRESS_SECONDS:
                shown = monotonic()
                self._progress(counts)
        self._progress(counts, done=True)

    def _judge_one(
        self,
        inputs: Inputs,
        choices: list[int],
        traits: frozenset[str],
        counts: Progress,
        *,
        fresh: bool,
        always: bool,
    ) -> None:
        from oracles.check import judge

        try:
            failures = judge(self.subject, inputs, fresh=fresh)
        except Unsupported as reason:
            counts.unsupported[str(reason)] = counts.unsupported.get(str(reason), 0) + 1
            return
        counts.judged += 1
        news = [failure for failure in failures if always or (failure.key, traits) not in self.seen]
        if not news:
            return
        self.seen.update((failure.key, traits) for failure in news)
        path = "" if always else self._keep(inputs, choices, news)
        details = [(failure.kind, failure.where, failure.detail) for failure in news]
        self.send(Found(details, sorted(traits), choices, path))

    def _show(self, inputs: Inputs) -> None:
        from oracles.backends.base import Variation
        from oracles.memory import poison, torch_dtype

        try:
            run = self.subject.run(inputs, Variation())
        except Unsupported:
            return
        outputs: dict[str, tuple[str, list[int], list[Any] | None]] = {}
        unwritten: dict[str, Any] = {}
        left = SHOWN_ELEMENTS
        for name, values in run.outputs.items():
            array = np.asarray(values)
            if array.dtype == object:
                continue
            dtype = run.dtypes.get(name, type(values).__name__)
            if array.size > left:
                outputs[name] = (dtype, list(array.shape), None)
                continue
            left -= array.size
            outputs[name] = (dtype, list(array.shape), array.ravel().tolist())
            if name in run.dtypes:
                unwritten[name] = poison(torch_dtype(dtype), 0).view(array.dtype)[0].item()
        error = described(run.error) if run.error is not None else ""
        self.send(Shown(outputs, unwritten, error))

    def _keep(self, inputs: Inputs, choices: list[int], failures: list[Failure]) -> str:
        """On disk before anybody is told: a finding that was made is not lost, whoever is killed next."""
        origin: dict[str, Any] = {"choices": choices, "implementation": self.load.spec, "backend": self.load.backend}
        case = Case(
            contract=self.load.contract,
            inputs=inputs,
            origin=origin,
            environment=environment(),
            verdict={"kind": failures[0].kind, "where": failures[0].where, "detail": failures[0].detail},
        )
        name = f"unreduced-{failures[0].kind}-{case_id(self.load.contract, inputs)}.json"
        return str(case.save(Path(self.load.findings) / name))

    def _progress(self, counts: Progress, *, done: bool = False) -> None:
        counts.done = done
        counts.compilations = sum(len(keys) for keys in self.subject.compilations.values())
        self.send(counts)
        counts.judged, counts.avoided, counts.unsupported = 0, 0, {}
        self.slot.end()
        with contextlib.suppress(OSError):
            if os.fstat(1).st_size > LOG_LIMIT:
                os.ftruncate(1, 0)
