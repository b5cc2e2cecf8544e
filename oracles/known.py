"""Known findings: faults that upstream still has, so that a run fails for news only.

``known_findings.toml`` names each with a public reference, the versions that have it, what it shows as, and a predicate
on the case. The predicate must be exact: a case that matches and passes is an *unexpected pass*, which fails the run,
so a fault that upstream mended, or a predicate that matches too much, does not stay unnoticed.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from oracles.arrays import Inputs
from oracles.backends import all_backends
from oracles.contract import Contract
from oracles.providers.base import Implementation
from oracles.verdict import FAILURES

FILE = Path(__file__).with_name("known_findings.toml")
DEADLY = ("crash", "hang")
"""Kinds that are never launched again once they are known."""


class KnownFindingsError(ValueError):
    """The file breaks its rules: the message names the entry and the rule."""


class Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One entry of the file.

    ``versions`` lists those that were run, each by itself: of one in between, or a later one, nothing is known.
    ``shows`` lists keys, kind and place; a matching case must show at least one of them, and those that it shows are
    known. ``bucket`` is the name of its smallest case, which ``case`` holds. ``reference`` is a public issue, or
    ``new`` with the ``date`` on which it was found. ``backends`` are those that it concerns, where a fault shows as
    another kind on some of them; without it, all. ``cumulative``: it takes several cases to show, as too many
    compilations do, so that a matching case that does not show it says nothing.
    """

    id: str
    contract: str
    provider: str
    implementation: str
    versions: tuple[str, ...]
    shows: tuple[str, ...]
    bucket: str
    predicate: str
    summary: str
    reference: str
    case: str
    date: datetime.date | None = None
    backends: tuple[str, ...] = ()
    cumulative: bool = False


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    finding: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Known:
    """An entry that concerns one implementation, with its predicate."""

    entry: Entry
    matches: Callable[[Inputs], bool]

    @property
    def deadly(self) -> bool:
        """Whether a matching case must not be run."""
        return any(key.split(":")[0] in DEADLY for key in self.entry.shows)


@cache
def entries(path: Path = FILE) -> tuple[Entry, ...]:
    """All entries, read strictly."""
    try:
        document = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Document)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise KnownFindingsError(f"{path}: {error}") from error
    seen: set[str] = set()
    for entry in document.finding:
        complaint = _complaint(entry) or (f"the id is used twice: {entry.id}" if entry.id in seen else None)
        if complaint is not None:
            raise KnownFindingsError(f"{path}: {entry.id}: {complaint}")
        seen.add(entry.id)
    return document.finding


def _complaint(entry: Entry) -> str | None:
    if not entry.shows:
        return "shows: at least one key is needed"
    for key in entry.shows:
        kind, colon, where = key.partition(":")
        if kind not in FAILURES or not colon or not where:
            return f"shows: {key!r} is no kind and place"
    if entry.reference == "new" and entry.date is None:
        return "reference: a new finding needs the date on which it was found"
    for backend in entry.backends:
        if backend not in all_backends():
            return f"backends: there is no {backend!r}"
    if not entry.versions:
        return "versions: at least one is needed"
    for version in entry.versions:
        try:
            Version(version)
        except InvalidVersion:
            return f"versions: {version!r} is no version; list those that were run, one by one"
    return None


def applicable(contract: Contract, implementation: Implementation, backend: str) -> list[Known]:
    """The entries that concern an implementation there. One whose version is unknown has no known findings."""
    found = re.match(r"(\S+) (\d\S*) \(", implementation.provider)
    if found is None:
        return []
    try:
        provider, version = found[1], Version(found[2])
    except InvalidVersion:
        return []
    known = []
    for entry in entries():
        about = (entry.contract, entry.provider, entry.implementation)
        if about != (contract.full_name, provider, implementation.name):
            continue
        if entry.backends and backend not in entry.backends:
            continue
        # A local label, as of a build for one platform, does not make it another release.
        if Version(version.public) not in map(Version, entry.versions):
            continue
        if entry.predicate not in contract.known:
            raise KnownFindingsError(f"{entry.id}: predicate: {contract.full_name} has no {entry.predicate}")
        known.append(Known(entry, contract.known[entry.predicate]))
    return known


def by_id(identifier: str) -> Entry:
    """The entry of that id."""
    return next(entry for entry in entries() if entry.id == identifier)
