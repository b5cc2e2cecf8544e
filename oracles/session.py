"""The parent's side of a worker: start it, ask it, watch its clock, and say how it died."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from oracles.backends.base import DEVICE_LOST, Backend
from oracles.contract import Contract
from oracles.messages import (
    MESSAGE_LIMIT,
    Broken,
    Command,
    Died,
    Event,
    Fork,
    Found,
    Load,
    LoadFailed,
    Progress,
    Ready,
    Shown,
    decode_event,
    encode,
)
from oracles.origins import way_back
from oracles.providers.base import Bound, Implementation
from oracles.slot import Meta, Running, Slot

LOAD_SECONDS = 180.0
POLL_SECONDS = 0.1
CLOSING_SECONDS = 10.0
OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals that a process does not usually die of by its own fault."""

ROOT = Path(__file__).parents[1]
START = "import sys; sys.path.append(sys.argv[2]); from oracles.worker import main; main(int(sys.argv[1]))"

_numbers = itertools.count()


@dataclass(frozen=True)
class Task:
    """One implementation of one contract on one backend."""

    contract: Contract
    implementation: Implementation
    backend: Backend

    @property
    def label(self) -> str:
        """As a person would name it."""
        who = f"{self.implementation.provider}: {self.implementation.name}"
        return f"{self.contract.full_name} | {who} | {self.backend.name}"


@dataclass(frozen=True)
class Death:
    """A worker died. ``kind`` is ``crash`` or ``hang``.

    ``doubtful``: perhaps the case in ``running`` is not to blame, because somebody else may have killed the worker, or
    because it died between that case and the next. It is to blame if it kills again.
    """

    kind: str
    where: str
    detail: str
    running: Running | None
    doubtful: bool
    judged: int = 0
    nursery: bool = False


class HarnessError(RuntimeError):
    """The harness failed, not the implementation."""


class Stopped(RuntimeError):
    """The run was interrupted, and this session with it."""


class CannotLoad(RuntimeError):
    """The implementation could not be loaded; the message is the reason, in one line."""


class Session:
    """One worker at a time for one task, replaced whenever it dies."""

    def __init__(self, task: Task, state: Path, *, time_limit: float | None = None, known: bool = True) -> None:
        self.task = task
        self.time_limit = task.backend.time_limit if time_limit is None else time_limit
        self.bound: Bound | None = None
        self._meta = Meta(
            task.contract.full_name,
            task.implementation.spec,
            task.implementation.name,
            task.backend.name,
            None if self.time_limit == task.backend.time_limit else self.time_limit,
        )
        state = state.absolute()  # a callable may change the worker's folder
        self._slot = Slot(state / "running" / f"{os.getpid()}-{next(_numbers)}.slot", create=self._meta)
        self._findings = state / "findings"
        self._log: IO[bytes] = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  # closed by __exit__
        self._nursery: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._child: int | None = None
        self._stopped = False
        self._known = known

    def stop(self) -> None:
        """End from another thread: the one that waits here gets :class:`Stopped`."""
        self._stopped = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_nursery()
        self._slot.close(remove=True)
        self._log.close()

    def ask(self, command: Command) -> Iterator[Found | Shown | Progress | Death]:
        """Send a command and yield what comes back, until it is done or the worker died."""
        self._ensure_child()
        self._slot.clear()
        if not self._send(command):
            yield self._death(None)
            return
        while True:
            event = self._receive(self.time_limit)
            if isinstance(event, Death):
                yield event
                return
            if isinstance(event, Broken):
                raise HarnessError(event.detail)
            if isinstance(event, Found | Shown | Progress):
                yield event
                if isinstance(event, Progress) and event.done:
                    return

    def ask_surely(self, command: Command) -> list[Found | Shown | Progress | Death]:
        """The same for a single case, which is run again where somebody else may have killed its worker."""
        events = list(self.ask(command))
        if any(isinstance(event, Death) and event.doubtful for event in events):
            events = list(self.ask(command))
        return events

    def renew(self) -> None:
        """Replace the child by one that has seen no case."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
            self._await_death()

    def _ensure_child(self) -> None:
        if self._child is not None:
            return
        if self._nursery is None:
            self._start_nursery()
        self._slot.end()
        self._send(Fork())
        event = self._receive(LOAD_SECONDS)
        if isinstance(event, Ready):
            self._child, self.bound = event.pid, event.bound
        elif isinstance(event, LoadFailed):
            self._await_death()
            raise CannotLoad(event.reason)
        elif isinstance(event, Broken):
            raise HarnessError(event.detail)
        else:
            what = _in_one_line(event.detail) if isinstance(event, Death) else repr(event)
            raise CannotLoad(f"the process died while it loaded the implementation: {what}")

    def _start_nursery(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_LIMIT)
        environment = os.environ | dict(self.task.backend.environment())
        self._nursery = start_nursery(theirs.fileno(), self._log, environment)
        theirs.close()
        self._channel = ours
        meta = self._meta
        places = str(self._slot.path), str(self._findings)
        back = way_back(meta.spec, self._findings)
        self._send(Load(meta.contract, meta.spec, meta.name, meta.backend, *places, self._known, back))

    def _send(self, command: Command) -> bool:
        assert self._channel is not None
        try:
            self._channel.send(encode(command))
        except OSError:
            return False
        return True

    def _receive(self, limit: float) -> Event | Death:
        """The next message; a death, ours by the clock included, is a message too."""
        assert self._channel is not None
        asked = time.monotonic()
        hung = False
        while True:
            if self._stopped:
                raise Stopped
            ready, _, _ = select.select([self._channel], [], [], POLL_SECONDS)
            if ready:
                try:
                    data = self._channel.recv(MESSAGE_LIMIT)
                except OSError:
                    data = b""
                event = decode_event(data) if data else Died(-1)
                if not isinstance(event, Died):
                    return event
                return self._death(event.status, hung=hung, limit=limit)
            if self._nursery is not None and self._nursery.poll() is not None:
                return self._death(None)  # a grandchild may hold the socket open, so no end of file would come
            if not hung and self._overdue(asked, limit):
                hung = True
                self._kill()

    def _overdue(self, asked: float, limit: float) -> bool:
        running = self._slot.running()
        if running is not None and not running.started:
            return False  # read while the worker wrote it
        since = running.started if running is not None and self._child is not None else asked
        waiting_for_load = self._child is None
        if running is None and not waiting_for_load:
            return False  # between two cases: the harness is at work, and it always ends
        return time.monotonic() - max(since, asked if waiting_for_load else since) > limit

    def _kill(self) -> None:
        assert self._nursery is not None
        target = self._child if self._child is not None else self._nursery.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(target, signal.SIGKILL)

    def _death(self, status: int | None, *, hung: bool = False, limit: float = 0.0) -> Death:
        self._child = None
        between = self._slot.running() is None
        gone = status is None or status == -1
        kind, where, detail, doubtful = self._cause(status, hung=hung, limit=limit)
        running, judged = self._slot.last(), self._slot.judged()
        self._slot.clear()
        return Death(kind, where, f"{detail}\n{self._tail()}".strip(), running, doubtful or between, judged, gone)

    def _cause(self, status: int | None, *, hung: bool, limit: float) -> tuple[str, str, str, bool]:
        """Kind, place, detail, and whether somebody else may have killed it; ``None`` and -1: the nursery is gone."""
        gone = status is None or status == -1
        code = self._end_nursery() if status is None or status == -1 else os.waitstatus_to_exitcode(status)
        if hung:
            return "hang", "time limit", f"no answer within {limit:g} s", False
        where = _signal_name(-code) if code is not None and code < 0 else DEVICE_LOST.get(code or 0, f"exit {code}")
        if gone:
            return "crash", where, f"the worker process was gone: {where}", True
        killed = code is not None and code < 0
        return (
            "crash",
            where,
            f"killed by {where}" if killed else f"the process exited with {code}",
            (killed and -(code or 0) in OUTSIDE),
        )

    def _await_death(self) -> None:
        """Read until the nursery says that the child is gone."""
        while not isinstance(self._receive(LOAD_SECONDS), Death):
            pass

    def _tail(self, lines: int = 12) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 16384))
        text = self._log.read().decode(errors="replace").strip().splitlines()
        fatal = [at for at, line in enumerate(text) if line.startswith("Fatal Python error")]
        # faulthandler prints the innermost frames first; what it says of extension modules helps nobody.
        return "\n".join(text[fatal[-1] :][:lines] if fatal else text[-lines:])

    def _end_nursery(self) -> int | None:
        if self._nursery is None:
            return None
        assert self._channel is not None
        self._channel.close()  # at which the nursery kills everything that it and its children started, and exits
        try:
            code = self._nursery.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._nursery.kill()
            code = self._nursery.wait()
        self._nursery, self._channel, self._child = None, None, None
        return code


def start_nursery(descriptor: int, log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A new process that serves as nursery the other end of a socket with this descriptor."""
    return subprocess.Popen(
        # -P: a file in the current folder must not stand in for a module of the worker.
        [sys.executable, "-P", "-c", START, str(descriptor), str(ROOT)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[descriptor],
        env=environment,
        start_new_session=True,
    )


def _in_one_line(detail: str) -> str:
    """How a process died, and the innermost line of code that a fatal error names."""
    cause, *log = detail.splitlines()
    place = next((line.strip() for line in log if line.lstrip().startswith('File "')), "")
    return f"{cause}, at {place}" if place else cause


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
