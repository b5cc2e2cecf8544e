"""One description of the inputs, three drivers.

A contract's domain is one function that draws from a :class:`Source`. All that a source ever draws is an index
``0 <= index < size``, where 0 is the simplest; integers, lengths, layouts are built on that. The drivers differ only
in how they pick the index: Hypothesis, a fast sampler on a NumPy bit generator, or an enumerator that walks the whole
choice tree of a small scope. The indices, in order, are the *choice sequence*: replayed in any driver it gives the
same input, and the reducer works on it alone.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from oracles.arrays import Array, Inputs, array, contiguous_strides

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

T = TypeVar("T")

COUNTS = (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Counts around which tiles, waves and powers of two change what a kernel does."""

FEW = 8
"""Up to so many lengths are drawn one by one; more follow a rule with exceptions."""

EXCEPTIONS = 3
"""Lengths that a rule leaves to be drawn one by one."""

MOST_WINDOWS = 12
"""So many parts of a long vector are tried alone when a case is reduced."""

HUGE_STRIDE = (1 << 31) + 8
"""A stride in elements that does not fit in 32 bits."""


def far_stride(count: int) -> int:
    """A stride below 2^31 whose product with the last quarter of ``count`` indices passes it.

    ``count`` is at least 3. Elements behind the last one that an implementation looks at may be more than one.
    """
    return (1 << 31) // max((count - 1) * 3 // 4, 2) + 8


def huge_strides(count: int) -> tuple[int, ...]:
    """Strides for ``count`` rows whose products leave 32 bits. From three rows on, one of them does not by itself."""
    return (HUGE_STRIDE,) if count < 3 else (HUGE_STRIDE, far_stride(count))


class Overrun(ValueError):
    """A replayed choice is not possible where it was asked for."""


class Source(ABC):
    """The source of choices. ``choices`` records what was drawn; ``replay`` forces the first draws."""

    def __init__(self, replay: Sequence[int] = (), *, lenient: bool = False) -> None:
        self.choices: list[int] = []
        self.sizes: list[int] = []
        self.events: list[str] = []
        self._replay = replay
        self._lenient = lenient

    @abstractmethod
    def _pick(self, size: int, near: Sequence[int], weights: Sequence[int], small: int | None) -> int:
        """Draw an index below ``size``.

        ``near``: indices worth trying; ``weights``: how often each; ``small``: how many of the simplest the enumerator
        walks (``None``: its scope decides).
        """

    def pick(
        self, size: int, *, near: Sequence[int] = (), weights: Sequence[int] = (), small: int | None = None
    ) -> int:
        """An index ``0 <= index < size``; 0 is the simplest."""
        if size < 1:
            raise ValueError(f"size: {size} leaves nothing to choose from")
        at = len(self.choices)
        if at < len(self._replay):
            index = self._replay[at]
            if not 0 <= index < size:
                if not self._lenient:
                    raise Overrun(f"choice {at} is {index}, but only 0..{size - 1} are possible here")
                index = size - 1 if index >= size else 0
        else:
            index = self._pick(size, near, weights, small)
        self.choices.append(index)
        self.sizes.append(size)
        return index

    def integer(self, low: int, high: int, *, near: Sequence[int] = (), small: int | None = None) -> int:
        """An integer in ``low..high``, often one of ``near``. The simplest is the one nearest to zero."""
        if high < low:
            raise ValueError(f"integer: {low}..{high} is empty")
        if low < 0 < high:
            return self._signed(low, high, near, small)
        if high <= 0:
            return high - self.pick(high - low + 1, near=[high - n for n in near if low <= n <= high], small=small)
        return low + self.pick(high - low + 1, near=[n - low for n in near if low <= n <= high], small=small)

    def _signed(self, low: int, high: int, near: Sequence[int], small: int | None) -> int:
        if self.choose((False, True)):
            return self.integer(low, -1, near=near, small=small)
        return self.integer(0, high, near=near, small=small)

    def choose(self, options: Sequence[T], *, weights: Sequence[int] = (), small: int | None = None) -> T:
        """One of the options. The enumerator walks all of them, or the first ``small``; ``weights`` bias the rest."""
        return options[self.pick(len(options), weights=weights, small=len(options) if small is None else small)]

    def more(self, so_far: int) -> bool:
        """Whether a list that has ``so_far`` elements gets another one."""
        return bool(self.pick(2, weights=(1, 4)))

    def lengths(self, max_length: int, *, near: Sequence[int] = (), max_count: int = 300) -> list[int]:
        """Lengths ``0..max_length`` of 0 to ``max_count`` sequences, zeros often.

        Few of them are drawn one by one. Many follow a rule (all the same, or a seeded mixture of ``near`` values)
        with up to three exceptions, so that a choice sequence stays short and every part of it can be reduced.
        """
        near = (0, 0, 0, *near)
        if not self.choose((False, True), weights=(4, 1), small=1):
            few: list[int] = []
            while len(few) < FEW and self.more(len(few)):
                few.append(self.integer(0, max_length, near=near))
            return few
        begin = len(self.choices) - 1
        count = self.integer(0, max_count, near=COUNTS)
        seeded = self.choose((False, True))
        if seeded:
            rng = np.random.Generator(np.random.Philox(key=self.pick(1 << 16)))
            lengths: list[int] = rng.choice([n for n in near if n <= max_length], size=count).tolist()
        else:
            lengths = [self.integer(0, max_length, near=near)] * count
        for _ in range(EXCEPTIONS):
            if not count or not self.pick(2):
                break
            lengths[self.integer(0, count - 1, near=(count - 1,))] = self.integer(0, max_length, near=near)
        self.followed_rule(begin, 2 if seeded else 1, _spelled_out, [(length,) for length in lengths], seeded)
        return lengths

    def items(self, draw: Callable[[Source], T], *, max_count: int = 300) -> list[T]:
        """0 to ``max_count`` things, each of which ``draw`` makes from choices of its own, as :meth:`lengths` does.

        Many follow a rule: all are the same, or each is drawn from a seed.
        """
        if not self.choose((False, True), weights=(6, 1), small=1):
            few: list[T] = []
            while len(few) < FEW and self.more(len(few)):
                few.append(draw(self))
            return few
        begin = len(self.choices) - 1
        count = self.integer(0, max_count, near=COUNTS)
        seeded = self.choose((False, True))
        if seeded:
            seeded_source = Sampler(self.pick(1 << 16), 0)
            made = [_recorded(draw, seeded_source) for _ in range(count)]
        else:
            made = [_recorded(draw, self)] * count
        for _ in range(EXCEPTIONS):
            if not count or not self.pick(2):
                break
            exception = _recorded(draw, self)
            made[self.integer(0, count - 1, near=(count - 1,))] = exception
        self.followed_rule(begin, 2 if seeded else 1, _spelled_out, [choices for _, choices in made], seeded)
        return [thing for thing, _ in made]

    def view(self, values: npt.ArrayLike, dtype: str, *, small: int = 2) -> Array:
        """The values in one of many layouts: contiguous, strided, a sliced start, a stride past 2^31.

        The enumerator walks the ``small`` simplest.
        """
        plain = array(values, dtype)
        shape = plain.shape
        layouts = ("contiguous", "strided", "sliced", "huge")
        # A huge stride needs address space for every element: a handful is enough to make a 32-bit product wrap.
        huge = 2 <= int(np.prod(shape)) <= 8
        layout = self.choose(layouts[: 4 if huge else 3], weights=(12, 4, 3, 1)[: 4 if huge else 3], small=small)
        if layout == "contiguous" or not shape:
            return plain
        offset = self.integer(1, 7, small=1) if layout == "sliced" else 0
        gap = {"sliced": 1, "huge": 1}.get(layout) or 2 + self.integer(0, 5, small=1)
        self.event(f"layout: {layout}")
        strides = contiguous_strides(shape)
        # Only the outermost dimension of a larger array is stretched: rows with bytes of other owners between them.
        outer = self.choose(huge_strides(shape[0])) if layout == "huge" else strides[0] * gap
        strides = (outer, *strides[1:])
        return Array(dtype, plain.data, None if layout == "sliced" else strides, offset)

    def followed_rule(  # noqa: B027  # most drivers have no use for it
        self, begin: int, cost: int, forms: Callable[..., Iterator[list[int]]], made: Sequence[Any], *more: Any
    ) -> None:
        """Say that the choices from ``begin`` on made many elements by a rule, of which one alone cannot be reduced.

        ``forms(made, *more)`` are choices for the same place that make the same elements, or some of them, one by
        one or by a rule of less ``cost``. Only a replay, which reducers use, wants to know.
        """

    def event(self, label: str) -> None:
        """Say what is special about this input; drivers count it."""
        self.events.append(label)


class Sampler(Source):
    """The fast driver: input number ``index`` of the stream ``seed``, the same on every machine."""

    def __init__(self, seed: int, index: int, replay: Sequence[int] = ()) -> None:
        super().__init__(replay)
        self._bits = np.random.Philox(key=np.array([seed & (2**64 - 1), index], np.uint64))
        self._block: list[int] = []

    def _raw(self) -> int:
        if not self._block:
            self._block = self._bits.random_raw(48).tolist()
        return self._block.pop()

    def _pick(self, size: int, near: Sequence[int], weights: Sequence[int], small: int | None) -> int:
        raw = self._raw()
        if weights:
            ticket = (raw >> 8) % sum(weights)
            for index, weight in enumerate(weights):
                ticket -= weight
                if ticket < 0:
                    return index
        mode, raw = raw & 7, raw >> 3
        if near and mode < 5:
            return near[raw % len(near)]
        if mode < 7 and size > 16:
            # Small values and every order of magnitude show more than a uniform draw of a large range.
            size = min(size, 1 << (1 + (raw & 63) % size.bit_length()))
            raw >>= 6
        return raw % size


@dataclass(frozen=True)
class Scope:
    """The small scope that is walked completely: up to ``count`` elements, the ``value`` simplest integers each."""

    count: int
    value: int


class Enumerator(Source):
    """The exhaustive driver: one walk through the choice tree of a small scope."""

    def __init__(self, scope: Scope, replay: Sequence[int] = ()) -> None:
        super().__init__(replay)
        self.scope = scope
        self.bounds: list[int] = []

    def pick(
        self, size: int, *, near: Sequence[int] = (), weights: Sequence[int] = (), small: int | None = None
    ) -> int:
        """An index below ``size``, within the scope."""
        index = super().pick(size, near=near, weights=weights, small=small)
        self.bounds.append(max(min(size, self.scope.value if small is None else small), index + 1))
        return index

    def more(self, so_far: int) -> bool:
        """Whether to draw another element: both answers up to ``scope.count`` elements."""
        return bool(self.pick(2, small=2 if so_far < self.scope.count else 1))

    def _pick(self, size: int, near: Sequence[int], weights: Sequence[int], small: int | None) -> int:
        return 0


def walk(
    domain: Callable[[Source], Inputs], scope: Scope, after: Sequence[int] | None = None
) -> Iterator[tuple[Inputs, Enumerator]]:
    """Every input of the scope, simplest first; ``after`` continues behind a choice sequence of an earlier walk."""
    forced: list[int] | None = []
    if after is not None:
        source = Enumerator(scope, after)
        domain(source)
        forced = _next(source)
    while forced is not None:
        source = Enumerator(scope, forced)
        yield domain(source), source
        forced = _next(source)


def _next(source: Enumerator) -> list[int] | None:
    trail = list(zip(source.choices, source.bounds, strict=True))
    while trail and trail[-1][0] + 1 >= trail[-1][1]:
        trail.pop()
    if not trail:
        return None
    forced = [index for index, _ in trail]
    forced[-1] += 1
    return forced


def _recorded(draw: Callable[[Source], T], source: Source) -> tuple[T, tuple[int, ...]]:
    """What is drawn, and the choices that make it."""
    begin = len(source.choices)
    thing = draw(source)
    return thing, tuple(source.choices[begin:])


def _spelled_out(made: Sequence[tuple[int, ...]], seeded: bool) -> Iterator[list[int]]:
    """Choices of ``Source.lengths`` or ``items`` that draw every element, or ``FEW`` neighbours of them, one by one.

    ``made`` are the choices of each element. Where as many have to be there, equal ones with exceptions still say
    more than a seed.
    """
    for few in windows(made):
        yield [0, *(choice for one in few for choice in (1, *one)), *[0] * (len(few) < FEW)]
    for usual in sorted(set(made))[: MOST_WINDOWS if seeded else 0]:
        others = [at for at, one in enumerate(made) if one != usual]
        for some in (others[:EXCEPTIONS], others[-EXCEPTIONS:]):
            exceptions = [choice for at in some for choice in (1, *made[at], at)]
            yield [1, len(made), 0, *usual, *exceptions, *[0] * (len(some) < EXCEPTIONS)]


def windows(elements: Sequence[T]) -> list[Sequence[T]]:
    """``FEW`` neighbours, overlapping by half, from at most ``MOST_WINDOWS`` places; few elements are one window."""
    last = max(len(elements) - FEW, 0)
    begins = [*range(0, last, FEW // 2)][: MOST_WINDOWS - 1]
    return [elements[begin : begin + FEW] for begin in (*begins, last)]


class Replay(Source):
    """A recorded choice sequence. Missing choices are the simplest ones; with ``lenient``, impossible ones too.

    ``cost`` counts what followed rules, more for those that say less; ``forms()`` are sequences without one of them.
    """

    def __init__(self, replay: Sequence[int] = (), *, lenient: bool = False) -> None:
        super().__init__(replay, lenient=lenient)
        self.cost = 0
        self._rules: list[tuple[int, int, Iterator[list[int]]]] = []

    def followed_rule(
        self, begin: int, cost: int, forms: Callable[..., Iterator[list[int]]], made: Sequence[Any], *more: Any
    ) -> None:
        """Remember it."""
        self.cost += cost
        self._rules.append((begin, len(self.choices), forms(tuple(made), *more)))

    def forms(self) -> Iterator[tuple[int, ...]]:
        """Once: the sequence with the choices of one rule replaced. Its elements are reduced as all others are."""
        for begin, end, forms in self._rules:
            for form in forms:
                yield (*self.choices[:begin], *form, *self.choices[end:])

    def _pick(self, size: int, near: Sequence[int], weights: Sequence[int], small: int | None) -> int:
        return 0


class HypothesisSource(Source):
    """The driver inside a Hypothesis test: every choice is one draw, so Hypothesis shrinks and replays it."""

    def __init__(self, draw: DrawFn, replay: Sequence[int] = ()) -> None:
        super().__init__(replay)
        self._draw = draw

    def _pick(self, size: int, near: Sequence[int], weights: Sequence[int], small: int | None) -> int:
        from hypothesis import strategies as st

        usable = [index for index in near if 0 <= index < size]
        if usable:
            return self._draw(st.one_of(st.integers(0, size - 1), st.sampled_from(usable)))
        return self._draw(st.integers(0, size - 1))

    def event(self, label: str) -> None:
        """Count the event in Hypothesis's statistics too."""
        from hypothesis import event
        from hypothesis.errors import InvalidArgument

        super().event(label)
        with contextlib.suppress(InvalidArgument):  # raised outside a running test, as in strategy(...).example()
            event(label)


def strategy(domain: Callable[[Source], T]) -> SearchStrategy[tuple[T, list[int]]]:
    """A Hypothesis strategy for ``(input, choice sequence)`` of a domain."""
    from hypothesis import strategies as st

    @st.composite
    def inputs(draw: DrawFn) -> tuple[T, list[int]]:
        source = HypothesisSource(draw)
        return domain(source), source.choices

    return inputs()


def note_lengths(source: Source, lengths: Sequence[int]) -> None:
    """Events for the special places of zeros in a vector of lengths."""
    if not lengths:
        source.event("sequences: none")
        return
    zeros = [length == 0 for length in lengths]
    if all(zeros):
        source.event("zero length: all")
    elif any(zeros):
        for label, there in (
            ("first", zeros[0]),
            ("last", zeros[-1]),
            ("middle", any(zeros[1:-1])),
            ("consecutive", any(a and b for a, b in pairwise(zeros))),
        ):
            if there:
                source.event(f"zero length: {label}")
    if len(lengths) > FEW:
        source.event("sequences: many")
