"""Which line of the source an instruction of an assembly text comes from."""

from __future__ import annotations

import os.path
import re

from oracles.backends.cdna.ir import Line

_FILE = re.compile(r'\.file\s+(\d+)\s+("(?:[^"\\]|\\.)*")(?:\s+("(?:[^"\\]|\\.)*"))?')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^;]*(?:;\s*(.*))?")
_PLACE = re.compile(r"(.*):(\d+):\d+")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")


class SourceLines:
    """Follows the ``.file`` and ``.loc`` directives of a text."""

    def __init__(self) -> None:
        self.current: Line | None = None
        self._files: dict[int, str] = {}
        self._known: dict[Line, Line] = {}

    def note_file(self, directive: str) -> None:
        """A file and its number. They may follow where they are used, so the numbers are known only behind the text."""
        if match := _FILE.match(directive):
            names = [_string(quoted) for quoted in match.groups()[1:] if quoted is not None]
            self._files[int(match[1])] = os.path.join(*names)

    def follow(self, directive: str) -> None:
        """A ``.loc``: what comes next is from there, or, in line 0, from no line in particular."""
        match = _LOC.match(directive)
        if match is None:
            return
        number = int(match[2])
        if number == 0:
            self.current = None
            return
        line = Line(self._files.get(int(match[1]), "?"), number, self._inlined(match[3] or ""))
        self.current = self._known.setdefault(line, line)

    def _inlined(self, comment: str) -> Line | None:
        """The callers of an inlined line, which only LLVM's comment tells: ``f.py:9:1 @[ g.py:8:1 @[ h.py:7:1 ] ]``."""
        line: Line | None = None
        for place in reversed(comment.split(" @[ ")[1:]):
            if match := _PLACE.fullmatch(place.rstrip(" ]")):
                line = Line(self._full(match[1]), int(match[2]), line)
        return line

    def _full(self, name: str) -> str:
        """The path of a file that a comment calls by its last part, if only one file has that name."""
        same = {path for path in self._files.values() if path == name or path.endswith(f"/{name}")}
        return same.pop() if len(same) == 1 else name


def _string(quoted: str) -> str:
    """A quoted string with its escapes resolved: three octal digits are a byte, another letter is itself."""

    def resolved(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 0xFF]) if code.isdigit() else code

    return _ESCAPE.sub(resolved, quoted[1:-1].encode()).decode(errors="replace")
