"""Which releases of Triton the backends that reach into it are known to work with."""

from __future__ import annotations

import importlib.metadata

FIRST, LAST = (3, 6), (3, 9)
"""First and last minor version."""


def complaint() -> str | None:
    """Why the installed release cannot be used. Triton is not imported: that would fix its mode for the process."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "triton has no package metadata, so its version is unknown"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not FIRST <= numbers <= LAST:
        return f"triton {version} is outside {FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}"
    return None
