"""The `oracles` command in a process of its own, and what it leaves behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
# How far a run has come is told on standard error, and is no complaint.
PROGRESS = re.compile(r"^\S+ \| .*: [a-z ]+ after \d+ cases\n", re.MULTILINE)
WHOLE = "from oracles.cli import main; main(prog_name='oracles')"
# The same command, whose nurseries are forked from a process that has imported torch.
WARM = f"import runpy; runpy.run_path({str(ROOT / 'tests' / 'warm.py')!r})['use']({{descriptor}}); "
# The same command with a scope of 136 inputs, for tests of what surrounds the judging.
SMALL = (
    "import pathlib; from oracles import cli, domain, results; cli.CORPUS = pathlib.Path('none'); "
    f"results.PROFILES['ci'] = results.Profile(domain.Scope(1, 1), 5); {WHOLE}"
)


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    results: list[dict[str, Any]] | None

    @property
    def only(self) -> dict[str, Any]:
        """The one result in the JSON document."""
        assert self.results is not None, self.err
        assert len(self.results) == 1, self.results
        return self.results[0]


class Command:
    """Starts the command in an empty folder; whatever descends from it carries a mark in its environment.

    ``seed`` is the descriptor of a socket to the process that nurseries are forked from, or ``None``: then each is
    started as it is for a user.
    """

    def __init__(self, folder: Path, seed: int | None) -> None:
        self.folder = folder
        self.seed = seed
        self.data = DATA
        self.mark = f"ORACLES_TEST_MARK={uuid.uuid4().hex}"

    def start(self, *arguments: str, small: bool = True, **options: Any) -> subprocess.Popen[str]:
        name, _, value = self.mark.partition("=")
        environment = os.environ | {name: value, "PYTHONPATH": str(ROOT), "FLAG": str(self.folder / "flag")}
        environment |= {"COLUMNS": "120", "TERM": "xterm"} | options.pop("env", {})
        warm = "" if self.seed is None else WARM.format(descriptor=self.seed)
        return subprocess.Popen(
            [sys.executable, "-c", warm + (SMALL if small else WHOLE), *arguments],
            cwd=self.folder,
            env=environment,
            pass_fds=[] if self.seed is None else [self.seed],
            text=True,
            stdin=subprocess.DEVNULL,
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        )

    def run(self, *arguments: str, small: bool = True, **options: Any) -> Ended:
        process = self.start(*arguments, small=small, **options)
        try:
            out, err = process.communicate(timeout=240)
        finally:
            if process.poll() is None:
                process.kill()
        return Ended(process.returncode, out, PROGRESS.sub("", err), self.document())

    def check(self, name: str, *arguments: str, file: str = "hostile.py", small: bool = True, **options: Any) -> Ended:
        """Judge a callable of a file in ``data``, with a JSON document."""
        spec = f"{DATA / file}:{name}"
        given = ("check", "chunk_metadata.chunk_metadata", "--impl", spec, "--json", "out.json", *arguments)
        return self.run(*given, small=small, **options)

    def document(self) -> list[dict[str, Any]] | None:
        path = self.folder / "out.json"
        if not path.exists():
            return None
        document = json.loads(path.read_bytes())
        assert set(document) == {"schema", "environment", "results", "tasks"}
        assert document["schema"] == 1
        return document["results"]

    def processes(self) -> list[int]:
        """Processes that descend from the command, whatever group or session they are in; zombies do not count."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def left(self, seconds: float = 5.0) -> list[int]:
        """Those that are still there although the command has ended. A kill takes a moment to take effect."""
        until = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        return found


@pytest.fixture
def oracles(tmp_path: Path, seed: ModuleType) -> Iterator[Command]:
    command = Command(tmp_path, seed.started.control.fileno())
    yield command
    for pid in command.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Wait for something that must come to pass, however slow the machine is."""

    def wait(what: Callable[[], Any]) -> Any:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            found = what()
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError("it did not come to pass")

    return wait


@pytest.fixture
def in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_nurseries: None
) -> Callable[..., tuple[int, str, str]]:
    """The command inside this process, for what ends before a worker is needed: exit code, output, errors."""
    from click.testing import CliRunner

    from oracles.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the workers' too

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(main, arguments, prog_name="oracles")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, PROGRESS.sub("", result.stderr)

    return run
