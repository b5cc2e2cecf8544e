"""Providers: where the implementations of a contract come from.

A provider spec is one of ``optimized``; ``vllm`` or ``aiter`` (installed: imported, or lifted where that fails);
``vllm:DIR``, ``vllm:FILE.whl``, ``vllm:FILE.zip``, ``vllm:git+REPOSITORY@REVISION`` (lifted from source text, nothing
imported); ``FILE.py:NAME``.
Resolving one reads text only. Importing, lifting and executing happen in ``Implementation.load``, in the worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from oracles.contract import Contract
from oracles.providers import optimized, upstream, user_file
from oracles.providers.base import Implementation, ProviderError, why_not_loaded
from oracles.providers.projects import PROJECTS

__all__ = ["Implementation", "ProviderError", "find", "loaded", "resolve", "why_not_loaded"]

_FORMS = "optimized, vllm, vllm:FILE.whl, vllm:DIR, vllm:git+REPOSITORY@REVISION (aiter likewise), FILE.py:NAME"


def resolve(spec: str, contracts: Sequence[Contract], *, named: bool) -> list[Implementation]:
    """The implementations that a spec stands for. ``named``: the contracts were named on the command line.

    Refused with ``ProviderError``: a spec of no known form, and one whose file, revision or package is not usable.
    """
    if spec == "optimized":
        return [optimized.implementation(spec, contract) for contract in contracts]
    project, colon, place = spec.partition(":")
    if project in PROJECTS | {binding.project: None for contract in contracts for binding in contract.bindings}:
        if colon and not place:
            raise ProviderError(
                f"{spec!r}: after the colon comes a wheel, a zip, a directory or git+REPOSITORY@REVISION"
            )
        return upstream.implementations(spec, project, place, contracts, named=named)
    return [_from_file(spec, contracts, named=named)]


def find(spec: str, contract: Contract, name: str) -> Implementation:
    """The implementation of that name once more, in another process."""
    found = resolve(spec, [contract], named=True)
    for implementation in found:
        if implementation.name == name:
            return implementation
    names = ", ".join(implementation.name for implementation in found)
    raise ProviderError(f"{spec} has no {name} for {contract.full_name}; it has {names or 'nothing'}")


def loaded(implementation: Implementation) -> tuple[Implementation, Callable[..., Any]]:
    """Load an implementation, and complete its record by what only the live callable shows.

    That is ``refuses = False``, and what a binding was bound to.
    """
    function = implementation.load()
    if getattr(function, "refuses", None) is False:
        implementation = dataclasses.replace(implementation, refuses=False)
    return dataclasses.replace(implementation, bound=getattr(implementation.load, "bound", None)), function


def _from_file(spec: str, contracts: Sequence[Contract], *, named: bool) -> Implementation:
    # A path may itself hold colons: the name is what follows the last one.
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        if not name:
            raise ProviderError(f"{spec!r}: the name of the callable is missing: {file}:NAME")
        return user_file.implementation(spec, file, name, contracts, named=named)
    if spec.endswith(".py"):
        raise ProviderError(f"{spec!r}: say which callable: {spec}:NAME")
    if spec.endswith((".whl", ".zip")) or "git+" in spec:
        raise ProviderError(f"{spec!r}: say whose it is: vllm:{spec}")
    raise ProviderError(f"{spec!r} is no provider; there are: {_FORMS}")
