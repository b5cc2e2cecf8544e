"""What a result depends on besides the input: versions, read without importing anything."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import cache

PACKAGES = ("metadata-oracles", "torch", "triton", "numpy", "hypothesis", "msgspec")


@cache
def environment() -> dict[str, str]:
    """Python, platform and package versions; a package that is not installed is ``absent``."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found
