"""Waits of the host for the device (G6), as the device's runtime sees them.

The torch modes of :mod:`oracles.interception` see reads by what is called. Here torch itself says whenever it waits for
a stream, which also shows blocking copies *to* the device; and the calls that wait on purpose are replaced.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from oracles.interception import HostReadMode, waits_are_own
from oracles.lines import current_line, with_line
from oracles.verdict import Failure, HostSync

_MESSAGE = "called a synchronizing"

_WAITS = (
    (None, "synchronize"),
    ("Stream", "synchronize"),
    ("Event", "synchronize"),
)
"""Class in ``torch.cuda`` (``None`` for a function) and name of what waits on purpose."""

Report = Callable[[str, str], None]


@contextmanager
def observed(cuda: Any, failures: list[Failure]) -> Iterator[None]:
    """Add one failure for each kind of wait inside."""

    def report(where: str, detail: str) -> None:
        if not waits_are_own() and all(failure.where != where for failure in failures):
            failures.append(HostSync(where, with_line(detail, current_line())))

    waiting: list[str] = []
    with ExitStack() as undo:
        undo.enter_context(_warnings_heard(report, waiting))
        before = cuda.get_sync_debug_mode()
        undo.callback(cuda.set_sync_debug_mode, before)
        cuda.set_sync_debug_mode("warn")
        for owner_name, name in _WAITS:
            owner = cuda if owner_name is None else getattr(cuda, owner_name)
            _replace(undo, owner, name, _reporting(getattr(owner, name), owner_name, name, report, waiting))
        yield


def _reporting(
    original: Callable[..., Any], owner: str | None, name: str, report: Report, waiting: list[str]
) -> Callable[..., Any]:
    """A wait that is reported once: what torch says about it meanwhile is the same wait."""
    label = f"{owner}.{name}" if owner else name

    def wait(*args: Any, **kwargs: Any) -> Any:
        report(label, f"torch.cuda.{label} waits for the device")
        waiting.append(label)
        try:
            return original(*args, **kwargs)
        finally:
            waiting.pop()

    return wait


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    if name in vars(owner):
        undo.callback(setattr, owner, name, getattr(owner, name))
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


@contextmanager
def _warnings_heard(report: Report, waiting: list[str]) -> Iterator[None]:
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def hear(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if _MESSAGE not in str(message):
                shown(message, category, *rest)
                return
            operation = None if waiting else _operation()
            if operation is not None:
                report(operation, f"{operation} waits for the device")

        warnings.showwarning = hear  # type: ignore[assignment]
        # The message is a regular expression, and torch prints other things about the same operations.
        warnings.filterwarnings("always", message=f".*{_MESSAGE}")
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        yield


def _operation() -> str | None:
    """The torch function that waits, or ``None`` if the torch modes have reported it already.

    Torch delivers its warnings when the outermost function returns to Python, so what is running then is found on the
    stack: every function of torch goes through the mode that looks for reads.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is HostReadMode._on_host.__code__:
            return None
        if frame.f_code is HostReadMode.__torch_function__.__code__:
            name = str(frame.f_locals["name"])
            return name.strip("_") if name.startswith("__") else name
        frame = frame.f_back  # type: ignore[assignment]
    return "stream"
