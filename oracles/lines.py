"""Where in somebody's Python code something happened: the line, and the traceback without the harness."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType

from oracles.verdict import readable

HARNESS = os.path.dirname(__file__) + os.sep
CALL = os.path.join(os.path.dirname(__file__), "call.py")
"""Where every call begins: what is outside of it on the stack is nobody's but the harness's."""

LIBRARIES = ("torch", "numpy", "triton")
"""Their innermost lines say less than the line that called them."""

Place = tuple[str, int]


def line_of(error: BaseException) -> str:
    """``file:line: text`` of the innermost line of the callable's code that an exception passed through, or nothing."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return _shown(_innermost(reversed(places)))


def current_line() -> str:
    """The same of the line that is running."""
    return _shown(_innermost(_stack(sys._getframe(1))))


def with_line(text: str, line: str) -> str:
    """A detail with the line it happened on, if one is known."""
    return f"{text}\nat {line}" if line and line not in text else text


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, causes included, without the frames of the harness."""
    shown = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = shown
    while part is not None:
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not frame.filename.startswith(HARNESS)]
        )
        part = part.__cause__ or part.__context__
    return readable("".join(shown.format()).rstrip())


def _stack(frame: FrameType | None) -> Iterator[Place]:
    while frame is not None and frame.f_code.co_filename != CALL:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _innermost(places: Iterable[Place]) -> Place | None:
    """The first that is no library's; of installed packages only if nothing else is there, as of an installed vLLM."""
    installed: Place | None = None
    for place in places:
        if _is_foreign(place[0]):
            continue
        if not _is_installed(place[0]):
            return place
        installed = installed or place
    return installed


@cache
def _is_foreign(file: str) -> bool:
    """Whether a file belongs to the harness, to Python, or to a library that everybody calls."""
    if file.startswith((HARNESS, "<frozen ", "<string>", "<__array_function__")):
        return True
    if _is_installed(file):
        return file.startswith(_libraries())
    return file.startswith((sysconfig.get_path("stdlib") + os.sep, *_libraries()))


def _is_installed(file: str) -> bool:
    return f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file


def _libraries() -> tuple[str, ...]:
    modules = [sys.modules.get(name) for name in LIBRARIES]
    files = [getattr(module, "__file__", None) for module in modules]
    return tuple(os.path.dirname(file) + os.sep for file in files if file)


def _shown(place: Place | None) -> str:
    """The file without its folder, so that the same fault has the same detail everywhere."""
    if place is None:
        return ""
    return f"{os.path.basename(place[0])}:{place[1]}: {linecache.getline(*place).strip()}"
