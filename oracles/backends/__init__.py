"""Backends: where implementations run. Every module or folder here that has a ``BACKEND`` is one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from oracles.backends.base import Backend


class UnknownBackend(LookupError):
    """A name that no backend has."""


@cache
def all_backends() -> dict[str, Backend]:
    """Every backend by name."""
    found: dict[str, Backend] = {}
    for module in pkgutil.iter_modules(__path__):
        backend = getattr(importlib.import_module(f"{__name__}.{module.name}"), "BACKEND", None)
        if backend is not None:
            found[backend.name] = backend
    return found


def by_name(name: str) -> Backend:
    """The backend of that name."""
    try:
        return all_backends()[name]
    except KeyError:
        raise UnknownBackend(f"there is no backend {name!r}; known: {', '.join(sorted(all_backends()))}") from None
