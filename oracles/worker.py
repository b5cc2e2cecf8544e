"""The process that runs other people's code, and dies alone.

Its main function is a nursery: it imports what is slow to import, then forks one child at a time. The child loads the
implementation and judges cases; when it dies, the nursery says how, and forks the next one within milliseconds.
Messages travel over one socket that keeps their boundaries; standard output and error are a log file.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import socket
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from oracles.arrays import Inputs
from oracles.backends import by_name as backend_by_name
from oracles.case import Case
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Replay, Sampler, Scope, Source, walk
from oracles.judging import Job, Judging
from oracles.known import applicable
from oracles.messages import (
    MESSAGE_LIMIT,
    Broken,
    Command,
    Died,
    Event,
    Fork,
    Load,
    LoadFailed,
    Ready,
    Replayed,
    Sample,
    Show,
    Try,
    Walk,
    decode_command,
    encode,
)
from oracles.slot import Slot

WAIT_MILLISECONDS = 10
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(fd: int) -> None:
    """The nursery."""
    channel = socket.socket(fileno=fd)
    load = decode_command(channel.recv(MESSAGE_LIMIT))
    assert isinstance(load, Load)
    backend = backend_by_name(load.backend)
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    backend.prepare()
    import oracles.check  # imported before the fork, so that children need not
    import oracles.interception
    import oracles.providers

    contract_by_name(load.contract)
    oracles.interception.warm_up()
    Sampler(0, 0).integer(0, 9)  # NumPy loads a part of itself at the first draw, and a callable may break imports
    gc.collect()
    gc.freeze()  # else each child's first full collection visits, and so copies, all that the imports made

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, the worker goes, not the parent
    _serve(channel, load)
    _kill_descendants()


def _serve(channel: socket.socket, load: Load) -> None:
    while data := channel.recv(MESSAGE_LIMIT):
        if not isinstance(decode_command(data), Fork):
            continue  # meant for a child that died before it read it
        child = os.fork()
        if child == 0:
            _Child(channel, load).serve()
        status = _await(child, channel)
        if status is None:
            return  # the parent is gone
        channel.send(encode(Died(status)))


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

    def send(self, event: Event) -> None:
        self.channel.send(encode(event))

    def serve(self) -> None:
        """Never returns."""
        try:
            self._loop(self._prepare())
        except BaseException:
            with contextlib.suppress(BaseException):
                self.send(Broken(traceback.format_exc()))
        finally:
            os._exit(0)

    def _prepare(self) -> Judging:
        from oracles.check import Subject
        from oracles.providers import find, loaded, why_not_loaded

        os.setsid()
        backend = backend_by_name(self.load.backend)
        if backend.memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (backend.memory_limit, backend.memory_limit))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no orphan outlives the nursery
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.enable()
        load = self.load
        slot, contract = Slot(Path(load.slot)), contract_by_name(load.contract)
        try:
            backend.begin()
            implementation, function = loaded(find(load.spec, contract, load.name))
            declared = contract.of(function)
        except BaseException as error:
            self.send(LoadFailed(why_not_loaded(error)))
            os._exit(0)
        subject = Subject(declared, implementation, function, backend)
        known = applicable(contract, implementation, load.backend) if load.known else []
        self.send(Ready(os.getpid(), implementation.bound))
        return Judging(load, subject, known, slot, self.send)

    def _loop(self, judging: Judging) -> None:
        """Obey until nobody asks any more."""
        while data := self.channel.recv(MESSAGE_LIMIT):
            self._obey(judging, decode_command(data))

    def _obey(self, judging: Judging, command: Command) -> None:
        domain = judging.subject.contract.domain
        if isinstance(command, Try):
            source = Replay(command.choices, lenient=True)
            judging.run(
                [Job(domain(source), source.choices)],
                mode="example" if command.example else "trial",
                fresh=command.fresh,
            )
        elif isinstance(command, Replayed | Show):
            job = Job(Case.load(Path(command.path)).inputs, [], path=command.path)
            if isinstance(command, Show):
                judging.slot.begin_file(command.path)
                judging.show(job.inputs)
            kept = isinstance(command, Replayed) and command.kept
            judging.run([job], mode="kept" if kept else "replay")
        elif isinstance(command, Walk):
            judging.run(_walked(domain, command), avoid=command.avoid)
        elif isinstance(command, Sample):
            judging.run(_sampled(domain, command), avoid=command.avoid)


def _walked(domain: Callable[[Source], Inputs], command: Walk) -> Iterator[Job]:
    """What belongs to a part is decided by the choices alone, so that a walk can be taken up anywhere."""
    for inputs, source in walk(domain, Scope(command.count, command.value), command.after):
        if zlib.crc32(repr(source.choices).encode()) % command.parts == command.part:
            yield Job(inputs, source.choices)


def _sampled(domain: Callable[[Source], Inputs], command: Sample) -> Iterator[Job]:
    for index in range(command.start, command.start + command.count):
        source = Sampler(command.seed, index)
        yield Job(domain(source), source.choices, command.seed, index)
