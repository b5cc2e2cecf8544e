"""Where a case was found: what its file says, and what that means to whoever has the file.

The spec stands in a case as it was typed. Where that depends on the folder in which it was typed, this folder is kept
too, as the way to it from the case's own: so a project can be moved as a whole, and no path of a machine is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from oracles.case import Case, CaseError
from oracles.providers.places import anchored, is_relative, is_there


def origin(spec: str, name: str, backend: str, cases: Path) -> dict[str, Any]:
    """The origin of a case that is written into the folder ``cases``."""
    return {"implementation": spec, "callable": name, "backend": backend, **way_back(spec, cases)}


def way_back(spec: str, cases: Path) -> dict[str, str]:
    """The entry ``folder``: how to get from ``cases`` to the current folder. Nothing where the spec needs none."""
    return {"folder": os.path.relpath(Path.cwd(), cases.resolve())} if is_relative(spec) else {}


def typed_spec(case: Case) -> str:
    """The spec that a case was found with, as it was typed; this project's implementation where it says none."""
    return str(case.origin.get("implementation", "optimized"))


def usable_spec(case: Case, path: Path) -> str:
    """The spec that a case was found with, as it has to be given in the current folder.

    Refused: a case whose ``folder`` is no text. A file that is not in that folder is looked for in the current one.
    """
    spec, folder = typed_spec(case), case.origin.get("folder")
    if folder is None:
        return spec
    if not isinstance(folder, str):
        raise CaseError(f"{path}: origin.folder: {folder!r} is no text")
    there = Path(os.path.normpath(path.resolve().parent / folder))
    found = anchored(spec, there)
    return spec if there == Path.cwd() or not is_there(found) else found
