"""The generic reducer: make a choice sequence as simple as it can be while a test still holds.

Simpler means shorter, then smaller from the front (shortlex). The reducer knows nothing of what the choices mean: the
test replays a candidate leniently and answers with the choices that were really used, or ``None``. What it is told is
which sequences stand for many elements by a rule (``cost``), and how they are spelled out (``forms``): that is simpler
however long it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

Choices = tuple[int, ...]
Test = Callable[[Choices], "Choices | None"]
Order = tuple[int, int, Choices]


def simpler(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether ``one`` comes before ``other`` in shortlex order."""
    return (len(one), list(one)) < (len(other), list(other))


class Reducer:
    """Reduces one sequence within a budget of tests and seconds; ``exhausted`` says that the budget ended it."""

    def __init__(
        self,
        test: Test,
        *,
        attempts: int = 2000,
        seconds: float = 60.0,
        cost: Callable[[Choices], int] = lambda choices: 0,
        forms: Callable[[Choices], Iterable[Choices]] = lambda choices: (),
        accepted: Callable[[Choices], None] = lambda choices: None,
    ) -> None:
        self._test = test
        self._cost = cost
        self._forms = forms
        self._accepted = accepted
        self._left = attempts
        self._until = time.monotonic() + seconds
        self._tried: set[Choices] = set()
        self.exhausted = False

    def reduce(self, start: Sequence[int]) -> Choices:
        """The simplest sequence found; ``start`` itself if nothing simpler passes."""
        best = tuple(start)
        improved = True
        while improved and not self.exhausted:
            improved = False
            for candidates in (self._forms, _shorter, _zeroed, _swapped, _lowered, _moved):
                found = self._descend(best, candidates)
                improved |= found != best
                best = found
        return best

    def _descend(self, best: Choices, candidates: Callable[[Choices], Iterable[Choices]]) -> Choices:
        """Take every improvement of one kind, starting over from each."""
        again = True
        while again:
            again = False
            for candidate in candidates(best):
                found = self._attempt(candidate, best)
                if self.exhausted:
                    return best
                if found is not None:
                    self._accepted(found)
                    best, again = found, True
                    break
        return best

    def _attempt(self, candidate: Choices, best: Choices) -> Choices | None:
        if candidate in self._tried:
            return None
        self._tried.add(candidate)
        if self._left <= 0 or time.monotonic() > self._until:
            self.exhausted = True
            return None
        self._left -= 1
        used = self._test(candidate)
        return used if used is not None and self._order(used) < self._order(best) else None

    def _order(self, choices: Choices) -> Order:
        return self._cost(choices), len(choices), choices


def _shorter(choices: Choices) -> Iterator[Choices]:
    for size in (16, 8, 4, 3, 2, 1):
        for at in range(len(choices) - size, -1, -1):
            yield choices[:at] + choices[at + size :]


def _zeroed(choices: Choices) -> Iterator[Choices]:
    for size in (8, 4, 2, 1):
        for at in range(len(choices) - size + 1):
            if any(choices[at : at + size]):
                yield (*choices[:at], *[0] * size, *choices[at + size :])


def _swapped(choices: Choices) -> Iterator[Choices]:
    for size in (2, 1):
        for at in range(len(choices) - 2 * size + 1):
            left, right = choices[at : at + size], choices[at + size : at + 2 * size]
            if right < left:
                yield choices[:at] + right + left + choices[at + 2 * size :]


def _lowered(choices: Choices) -> Iterator[Choices]:
    """Each choice halfway down, then one down: a binary search that ends at the smallest value that still fails."""
    for at, value in enumerate(choices):
        step = value
        while step > 1:
            step //= 2
            yield (*choices[:at], value - step, *choices[at + 1 :])
        # Two down as well: what keeps a parity cannot go down by one.
        for less in (1, 2):
            if value >= less:
                yield (*choices[:at], value - less, *choices[at + 1 :])


def _moved(choices: Choices) -> Iterator[Choices]:
    """One choice down and a later one gone or up: a count with its element, a length that moves to its neighbour."""
    for at, value in enumerate(choices):
        if not value:
            continue
        lowered = (*choices[:at], value - 1, *choices[at + 1 :])
        for other in range(at + 1, min(at + 9, len(choices))):
            yield lowered[:other] + lowered[other + 1 :]
            yield (*lowered[:other], lowered[other] + 1, *lowered[other + 1 :])
