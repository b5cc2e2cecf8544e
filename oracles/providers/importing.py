"""Taking a binding's names out of an installed package by importing it.

A foreign package may raise at import, end the process, take long, or never come back.
So a process of its own tries first, against a clock. Only what came through there is imported into the worker.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oracles.providers.base import Symbols
from oracles.providers.imports import dotted
from oracles.providers.lifter import plain_function

IMPORT_SECONDS = 75.0
"""How long the trial may take: less than half of what a worker may take to load, which imports once more."""

LONGEST_REASON = 200
TRIAL = "import json, sys; sys.path[:], *rest = json.loads(sys.argv[1]); " + (
    "from oracles.providers.importing import trial; trial(*rest)"
)


class NotImported(LookupError):
    """The installed package cannot be used by importing it; the message is one short reason."""


def imported(root: Path, symbols: Symbols, needs: Mapping[str, str]) -> dict[str, Any]:
    """The objects of a binding by name, from the packages below ``root``.

    Refused with ``NotImported``: an import that raises, a module that comes from elsewhere than ``root``, a name that
    a module does not have, and an entry of ``needs`` (``module:name`` to its meaning) that is not true.
    """
    for need, meaning in needs.items():
        module, _, name = need.partition(":")
        if not getattr(_module(module), name, False):
            raise NotImported(f"{module}.{name} is not true: {meaning}")
    found: dict[str, Any] = {}
    for path, names in symbols.items():
        module = _module(dotted(path))
        origin = Path(getattr(module, "__file__", None) or "nowhere").resolve()
        if origin != (root / path).resolve():
            raise NotImported(f"importing {dotted(path)} gives {origin} instead of {root / path}")
        for name in names:
            if name in found:
                raise NotImported(f"the binding takes {name} from two files")
            found[name] = _member(module, name)
    return found


def why_not_imported(
    root: Path, symbols: Symbols, needs: Mapping[str, str], *, seconds: float = IMPORT_SECONDS
) -> str | None:
    """Why :func:`imported` cannot be called in this process, tried in another one; ``None`` if it can."""
    with tempfile.TemporaryFile() as answer:
        arguments = json.dumps([sys.path, answer.fileno(), str(root), dict(symbols), dict(needs)])
        process = subprocess.Popen(
            # -P: a file in the current folder must not stand in for a module.
            [sys.executable, "-P", "-c", TRIAL, arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[answer.fileno()],
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # What the package started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answer.seek(0)
        said = answer.read().decode()
    if status is None:
        return f"importing it took longer than {seconds:g} s"
    if not said:
        end = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"importing it ended the process ({end})"
    return json.loads(said) or None


def trial(answer: int, root: str, symbols: Symbols, needs: Mapping[str, str]) -> None:
    """Import, and write down the reason why not, empty if it went well. Runs in a process of its own."""
    reason = ""
    try:
        imported(Path(root), symbols, needs)
    except NotImported as error:
        reason = str(error)
    os.write(answer, json.dumps(reason).encode())
    os._exit(0)  # threads and exit handlers of the package have no say


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except SystemExit:
        raise
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise NotImported(f"importing {name} raised {text[:LONGEST_REASON]}") from error


def _member(module: Any, name: str) -> Any:
    """``function``, or ``Class.method`` as a plain function."""
    owner, dot, member = name.partition(".")
    try:
        found = getattr(module, owner)
        return plain_function(inspect.getattr_static(found, member)) if dot else found
    except AttributeError as error:
        raise NotImported(f"{module.__name__}, imported, has no {name}") from error
