"""What calls note that is no fault, and that a pass would hide: how often something was tried at all.

A contract's ``call`` notes words, the worker sends their counts with its progress, and ``Contract.remarks`` says what
they mean.
"""

from __future__ import annotations

from collections import Counter

_counts: Counter[str] = Counter()


def note(word: str) -> None:
    """Count a word once more."""
    _counts[word] += 1


def taken() -> dict[str, int]:
    """What was counted since this was last asked."""
    counts = dict(_counts)
    _counts.clear()
    return counts
