"""Where in a kernel something happened: file, line and text, found by walking the Python stack or a traceback."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

Program = tuple[int, int, int]


class Site(NamedTuple):
    """A line of a kernel or of a device function that it calls."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        name = os.path.basename(self.code.co_filename)
        return f"{name}:{self.line}: {linecache.getline(self.code.co_filename, self.line).strip()}"


@dataclass(frozen=True)
class Access:
    """Who touched memory: the launched kernel, the program's grid index, and the line."""

    kernel: str
    program: Program
    site: Site | None

    def __str__(self) -> str:
        return f"kernel {self.kernel}, program {self.program}, {self.site or 'an unknown line'}"


@cache
def _foreign_roots() -> tuple[str, ...]:
    import numpy
    import triton

    folders = [os.path.dirname(module.__file__ or "") for module in (numpy, triton)]
    return (*(folder + os.sep for folder in folders), os.path.dirname(__file__) + os.sep)


@cache
def _is_kernel(code: CodeType) -> bool:
    return not code.co_filename.startswith(_foreign_roots())


def current_site() -> Site | None:
    """The innermost line outside Triton, NumPy and this package: the kernel's, or that of its device function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_kernel(frame.f_code):
            return Site(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None


def site_of(trace: TracebackType | None) -> Site | None:
    """The innermost such line that an exception passed through."""
    found = None
    while trace is not None:
        if _is_kernel(trace.tb_frame.f_code):
            found = Site(trace.tb_frame.f_code, trace.tb_lineno)
        trace = trace.tb_next
    return found
