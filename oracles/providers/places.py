"""The path in a provider spec: what it means from another folder, and whether two specs name the same thing."""

from __future__ import annotations

import os
from pathlib import Path


def anchored(spec: str, folder: Path) -> str:
    """The spec as it is meant in ``folder``, for use in any other; one without a relative path stays as it is."""
    before, path, after = _apart(spec)
    return f"{before}{os.path.normpath(folder / path)}{after}" if is_relative(spec) else spec


def is_relative(spec: str) -> bool:
    """Whether what a spec means depends on the current folder."""
    _, path, _ = _apart(spec)
    return bool(path) and not path.startswith("~") and "://" not in path and not os.path.isabs(path)


def is_there(spec: str) -> bool:
    """Whether the file or folder that a spec names exists; true where it names none."""
    _, path, _ = _apart(spec)
    return not path or Path(path).expanduser().exists()


def identity(spec: str) -> str:
    """Equal for specs that name the same thing, however their paths are written."""
    before, path, after = _apart(spec)
    return f"{before}{os.path.realpath(os.path.expanduser(path))}{after}" if path and "://" not in path else spec


def _apart(spec: str) -> tuple[str, str, str]:
    """What stands before the path, the path, and what follows; the path is empty where there is none."""
    file, colon, name = spec.rpartition(":")
    if file.endswith(".py"):
        return "", file, colon + name
    project, colon, place = spec.partition(":")
    if place.startswith("git+"):
        repository, at, revision = place.removeprefix("git+").rpartition("@")
        return f"{project}:git+", repository, at + revision
    return project + colon, place, ""
