"""Where the source of a compiled kernel lies now.

Triton keeps compiled kernels by their source text and not by their path. So what comes out of its cache names the file
that the same text was first compiled from: a file that was moved, deleted, or copied to the one that is judged.
"""

from __future__ import annotations

import inspect
import os.path
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITFunction

_FILE = re.compile(r'^(\s*\.file\s+\d+\s+)"([^"\\]*)"(?:\s+"([^"\\]*)")?', re.MULTILINE)
_LINE = re.compile(r"^\s*\.loc\s.*;.*$", re.MULTILINE)
_FUNCTION = re.compile(r'^  tt\.func (public|private) @"?([^"(]+).*?^  } loc\((#loc\d*)\)$', re.MULTILINE | re.DOTALL)
_LOCATION = re.compile(r'^(#loc\d*) = loc\("([^"\\]*)":\d+:\d+\)$', re.MULTILINE)


def file_of(function: Any) -> str:
    """The file of a jitted function; nothing for what is none."""
    return str(function.fn.__code__.co_filename) if isinstance(function, JITFunction) else ""


def relocated(asm: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """The texts of a compilation, with the files of the jitted function and of those that it calls as they are now."""
    moved = _moved(asm, function) if isinstance(function, JITFunction) else {}
    if not moved:
        return dict(asm)

    def named(match: re.Match[str]) -> str:
        path = os.path.join(*filter(None, match.groups()[1:]))
        return f'{match[1]}"{moved[path]}"' if path in moved else match[0]

    found = {name: _replaced(value, moved) if isinstance(value, str) else value for name, value in asm.items()}
    files = {os.path.join(*filter(None, match.groups()[1:])) for match in _FILE.finditer(asm["amdgcn"])}
    found["amdgcn"] = _LINE.sub(lambda line: _commented(line[0], moved, files), _FILE.sub(named, asm["amdgcn"]))
    return found


def _moved(asm: Mapping[str, Any], function: JITFunction) -> dict[str, str]:
    """What each file that is named is called now, where that is another path.

    What is compiled is the source of the same functions, so each file is that of the live function of that name.
    """
    live = [(reached.fn.__name__, reached.fn.__code__.co_filename) for reached in _reached(function, set())]
    moved: dict[str, str] = {}
    for kernel, name, file in _functions(asm.get("source") or asm.get("ttir", "")):
        # A callee is called ``module.name__types`` there.
        files = [now for own, now in (live[:1] if kernel else live) if kernel or f".{own}__" in f".{name}"]
        if files and file not in files:
            moved.setdefault(file, files[0])
    return moved


def _functions(text: str) -> Iterator[tuple[bool, str, str]]:
    """Of each function in a kernel's Triton IR, whether it is the kernel itself, its name and its file."""
    files = {match[1]: match[2] for match in _LOCATION.finditer(text)}
    for kind, name, location in _FUNCTION.findall(text):
        if location in files:
            yield kind == "public", name, files[location]


def _reached(function: JITFunction, seen: set[int]) -> Iterator[JITFunction]:
    """A jitted function and those that its text names, also as an attribute of a module, and so on."""
    if id(function) in seen:
        return
    seen.add(id(function))
    yield function
    try:
        scope = inspect.getclosurevars(function.fn)
    except ValueError:  # it names a variable around it that has no value yet
        return
    names = function.fn.__code__.co_names
    for value in (*scope.globals.values(), *scope.nonlocals.values()):
        values = [getattr(value, other, None) for other in names] if isinstance(value, ModuleType) else [value]
        for callee in values:
            if isinstance(callee, JITFunction):
                yield from _reached(callee, seen)


def _replaced(text: str, moved: Mapping[str, str]) -> str:
    for path, now in moved.items():
        text = text.replace(f'"{path}"', f'"{now}"')
    return text


def _commented(line: str, moved: Mapping[str, str], files: set[str]) -> str:
    """A ``.loc`` with its comment, which names the callers of an inlined line by the last parts of their files."""
    code, _, comment = line.partition(";")
    renamed = {}
    for path, now in moved.items():
        base = os.path.basename(path)
        if base != os.path.basename(now) and [os.path.basename(file) for file in files].count(base) == 1:
            renamed[base] = os.path.basename(now)
    return f"{code};" + re.sub(r"[^\s:]+(?=:\d+:\d+)", lambda name: renamed.get(name[0], name[0]), comment)
