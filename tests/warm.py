"""Nurseries forked from one process that has imported torch, where a test would otherwise wait for that import.

As a script, it is that process: it forks a nursery for every request that reaches it. ``Seed`` starts it, and ``use``
makes the sessions of a process ask it. A nursery gets here what it gets as a program of its own (environment, folder,
descriptors, session), so all that differs is what was read of the environment while Python and torch were loaded.
How a nursery is really started is tested by ``tests/cli/test_kill.py``, ``test_docs.py`` and ``test_pytest_plugin.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[1]
MARK = "ORACLES_TEST_MARK"
"""A variable that tells the processes of one test from others; see ``tests/cli/conftest.py``."""

UNMARKED = "0" * 32
MESSAGE_LIMIT = 1 << 17
INTEGER = struct.Struct("=i")


class Nursery:
    """What a session uses of ``subprocess.Popen``. ``told`` is a pipe that brings the process id, then the status."""

    def __init__(self, told: int) -> None:
        self._told = told
        self._code: int | None = None
        self.pid: int = INTEGER.unpack(os.read(told, INTEGER.size))[0]

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("nursery", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._told], [], [], timeout)[0]:
            self._code = os.waitstatus_to_exitcode(INTEGER.unpack(os.read(self._told, INTEGER.size))[0])
            os.close(self._told)
        return self._code


class Seed:
    """The process that nurseries are forked from. ``control`` may be inherited by other processes that ``use`` it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={**environment, MARK: UNMARKED, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def close(self) -> None:
        self.control.close()
        self._process.wait()


def nursery(control: socket.socket, descriptor: int, log: IO[bytes], environment: Mapping[str, str]) -> Nursery:
    """Ask for one; the arguments behind the first are those of ``oracles.session.start_nursery``."""
    ours, theirs = os.pipe()
    try:
        asked = json.dumps({"folder": os.getcwd(), "environment": dict(environment)}).encode()
        socket.send_fds(control, [asked], [descriptor, log.fileno(), theirs])
    finally:
        os.close(theirs)
    return Nursery(ours)


def use(descriptor: int) -> None:
    """Have the sessions of this process ask the seed at the other end of a socket."""
    import oracles.session

    control = socket.socket(fileno=descriptor)
    oracles.session.start_nursery = lambda *arguments: nursery(control, *arguments)


def main(control: socket.socket) -> None:
    """Load what a nursery loads, then fork a keeper for every request until nobody can ask any more."""
    import torch

    import oracles.check
    import oracles.contracts
    import oracles.interception
    import oracles.providers
    import oracles.worker

    torch.set_num_threads(1)
    oracles.contracts.all_contracts()
    oracles.interception.warm_up()
    gc.collect()
    gc.freeze()
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, MESSAGE_LIMIT, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not asked:
            break
        if os.fork() == 0:
            control.close()
            _keep(json.loads(asked), *descriptors)
        for each in descriptors:
            os.close(each)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _keep(asked: dict[str, object], channel: int, log: int, told: int) -> NoReturn:
    """The parent of one nursery: says who it is, and how it ended."""
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _become_nursery(asked, channel, log)
    os.close(channel)
    os.write(told, INTEGER.pack(pid))
    with contextlib.suppress(BrokenPipeError):  # nobody may be left to hear it
        os.write(told, INTEGER.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become_nursery(asked: dict[str, object], channel: int, log: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(str(asked["folder"]))
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        environment = asked["environment"]
        assert isinstance(environment, dict)
        os.environ.clear()
        os.environ.update(environment)
        _show_mark(environment.get(MARK, UNMARKED))
        sys.path.remove(str(ROOT))
        sys.path[:0] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path.append(str(ROOT))
        from oracles.worker import main as nurse

        nurse(channel)
        code = 0
    finally:
        os._exit(code)


def _show_mark(mark: str) -> None:
    """``/proc/PID/environ`` shows the environment that a program was started with: write the mark there."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5), behind the name and two more
    held = ctypes.string_at(start, end - start)
    place = held.index(f"{MARK}={UNMARKED}".encode()) + len(MARK) + 1
    assert len(mark) == len(UNMARKED)
    ctypes.memmove(start + place, mark.encode(), len(mark))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
