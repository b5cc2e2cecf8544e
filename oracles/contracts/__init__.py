"""The registry: every module of this package that has ``CONTRACTS`` adds its contracts. There is no list to edit."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from oracles.contract import Contract


class UnknownContract(LookupError):
    """A name that is no family, no contract, or stands for several contracts."""


@cache
def all_contracts() -> tuple[Contract, ...]:
    """All contracts, in the order of their sections."""
    found: list[Contract] = []
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_"):
            continue  # parts of a family: some need torch, which takes seconds to import
        found += getattr(importlib.import_module(f"{__name__}.{module.name}"), "CONTRACTS", ())
    return tuple(sorted(found, key=lambda contract: [int(part) for part in contract.section.split(".")]))


def select(name: str) -> tuple[Contract, ...]:
    """The contracts that a name stands for: a family, ``family.contract``, or a contract's name where it is unique."""
    contracts = all_contracts()
    family = tuple(contract for contract in contracts if contract.family == name)
    exact = tuple(contract for contract in contracts if contract.full_name == name)
    short = tuple(contract for contract in contracts if contract.name == name)
    if exact or family:
        return exact or family
    if len(short) == 1:
        return short
    if short:
        raise UnknownContract(f"{name!r} is ambiguous: {', '.join(contract.full_name for contract in short)}")
    known = sorted({contract.family for contract in contracts} | {contract.full_name for contract in contracts})
    raise UnknownContract(f"there is no contract or family {name!r}; known: {', '.join(known)}")


def by_name(full_name: str) -> Contract:
    """The contract of exactly that ``family.name``."""
    for contract in all_contracts():
        if contract.full_name == full_name:
            return contract
    raise UnknownContract(f"there is no contract {full_name!r}")
