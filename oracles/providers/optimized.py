"""This project's own implementations."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.contract import Contract
from oracles.providers.base import Implementation, ProviderError
from oracles.providers.toplevel import bound_names

LABEL = "this project"


def implementation(spec: str, contract: Contract) -> Implementation:
    """The implementation that a contract names as ``module:function``.

    Refused: a module or function that is not there. Both are looked up in the text, so that nothing is imported.
    """
    module, _, name = contract.optimized.partition(":")
    if not module or not name.isidentifier():
        raise ProviderError(f"{contract.full_name}: {contract.optimized!r} is not module:function")
    reason = _absent(module, name)
    if reason is not None:
        raise ProviderError(f"{contract.full_name}: {reason}")
    return Implementation(
        spec=spec,
        provider=LABEL,
        name=name,
        contract=contract.full_name,
        runs=contract.runs,
        load=Import(module, name),
    )


@dataclass(frozen=True)
class Import:
    """Imports a function when it is called."""

    module: str
    name: str

    def __call__(self) -> Callable[..., Any]:
        """The function."""
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return found


def _absent(module: str, name: str) -> str | None:
    """Why there is no such function, or ``None``."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return None if hasattr(loaded, name) else f"{module} has no {name}"
    file = source_of(module, None)
    if file is None:
        return f"there is no module {module}"
    names = {bound for node in ast.parse(file.read_bytes()).body for bound in bound_names(node)}
    return None if name in names else f"{module} has no {name}"


def source_of(module: str, folders: list[str] | None) -> Path | None:
    """The source file of a module, found without importing its packages. ``folders``: instead of ``sys.path``."""
    full = ""
    spec: importlib.machinery.ModuleSpec | None = None
    for part in module.split("."):
        full = f"{full}.{part}" if full else part
        spec = importlib.machinery.PathFinder.find_spec(full, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)
