"""Where the source of a compiled kernel lies now.

Triton keeps compiled kernels by their source text and not by their path. So what comes out of its cache names the file
that the same text was first compiled from, which may have been moved, or deleted.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Any

from triton.runtime.jit import JITFunction

_FILE = re.compile(r'^(\s*\.file\s+\d+\s+)"([^"\\]*)"(?:\s+"([^"\\]*)")?', re.MULTILINE)


def relocated(asm: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """The texts of a compilation, with the files of the jitted function and of those that it calls as they are now."""
    text = asm["amdgcn"]
    moved = _moved({os.path.join(*filter(None, match.groups()[1:])) for match in _FILE.finditer(text)}, function)
    if not moved:
        return dict(asm)

    def named(match: re.Match[str]) -> str:
        path = os.path.join(*filter(None, match.groups()[1:]))
        return f'{match[1]}"{moved[path]}"' if path in moved else match[0]

    found = {name: _replaced(value, moved) if isinstance(value, str) else value for name, value in asm.items()}
    found["amdgcn"] = _FILE.sub(named, text)
    return found


def _moved(named: set[str], function: Any) -> dict[str, str]:
    """What each named file is called now, where that is another path."""
    if not isinstance(function, JITFunction):
        return {}
    own = function.fn.__code__.co_filename
    callees = [value for value in function.fn.__globals__.values() if isinstance(value, JITFunction)]
    now = [*(callee.fn.__code__.co_filename for callee in callees), own]
    here = {os.path.basename(path): path for path in now}
    other = [path for path in named if path not in now]
    moved = {path: here[os.path.basename(path)] for path in other if os.path.basename(path) in here}
    gone = [path for path in other if path not in moved and not os.path.exists(path)]
    if len(gone) == 1 and own not in named:  # the kernel's own file, which has another name now
        moved[gone[0]] = own
    return moved


def _replaced(text: str, moved: Mapping[str, str]) -> str:
    for path, now in moved.items():
        text = text.replace(f'"{path}"', f'"{now}"')
    return text
