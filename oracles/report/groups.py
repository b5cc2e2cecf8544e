"""Findings as people read them: one fault is one group, however many special inputs show it.

A fault has a bucket for every way to reach it: another output, path or dtype. In full stands what tells a reader most;
of the rest there is one short line each, with the bucket and the file to replay. Documents for machines list them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracles.results import Finding

MOST_IN_FULL = 8
"""Groups that are shown in full, the most severe first: about a screen."""

ONE_GROUP = ("wrongly_accepted",)
"""Kinds that are one group whatever their place is: code that checks nothing is wrong once, not once an argument."""


@dataclass(frozen=True)
class Group:
    """``first``, the smallest case of a kind and place, and ``others``, of the same kind and place.

    ``shown_by`` is the bucket of an earlier group with the same case, which is not written twice.
    """

    first: Finding
    others: tuple[Finding, ...]
    shown_by: str | None = None

    @property
    def also(self) -> list[str]:
        """One line for each of the others."""
        return [f"also: {short(other)}" for other in self.others]


def groups(findings: Sequence[Finding], most: int | None = MOST_IN_FULL) -> tuple[list[Group], list[Finding]]:
    """The groups to be shown in full, ``most`` at the most and the worst first, and what is left for short lines."""
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        place = "" if finding.kind in ONE_GROUP else finding.where
        together.setdefault((finding.kind, place), []).append(finding)
    found, cases = list[Group](), dict[str, str]()
    for members in list(together.values())[:most]:
        first = min(members, key=_size)
        others = tuple(other for other in members if other is not first)
        found.append(Group(first, others, cases.get(str(first.case))))
        cases.setdefault(str(first.case), first.bucket)
    return found, [finding for members in list(together.values())[len(found) :] for finding in members]


def short(finding: Finding) -> str:
    """The bucket and the file."""
    return f"{finding.bucket}  {finding.case}"


def _size(finding: Finding) -> tuple[int, int]:
    """What a reader has to take in: what is special about the input, then its length."""
    return finding.bucket.count("+"), len(finding.summary)
