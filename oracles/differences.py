"""Where an output parts from what was expected: a table of got and expected around the first difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.arrays import dtype_of, plain_value
from oracles.notation import bits, plain, with_bits

CONTEXT = 4
"""Lines shown before and after the first difference."""

WIDEST_ROW = 6
"""Elements up to which a line of the table is a whole row; of wider rows it is one element."""


AS_EXPECTED = "as expected"
"""What is said of an output that does not differ."""


@dataclass(frozen=True)
class Returned:
    """One output as an implementation returned it.

    ``elements`` are in order, floats by their bits, or ``None`` where they are too many; ``poison`` is what an element
    that was never written looks like.
    """

    dtype: str
    shape: list[int]
    elements: list[Any] | None
    poison: Any = None


def difference(name: str, expected: Any, got: Returned) -> list[str]:
    """What is to be said of one output; ``expected`` is an array, with or without a name of its dtype, or an int."""
    wanted, dtype = np.asarray(plain_value(expected)), dtype_of(expected)
    if got.shape != list(wanted.shape) or got.dtype != dtype:
        return [f"  {name}: {described(got.dtype, got.shape)}, expected {described(dtype, wanted.shape)}"]
    if got.elements is None:
        return [f"  {name}: {described(dtype, got.shape)}, too large to be shown here"]
    wish = bits(wanted)
    found = np.array(got.elements, dtype=object).reshape(wish.shape)
    differ = np.array(found != wish.astype(object), dtype=bool)
    if not differ.any():
        return [f"  {name}: {AS_EXPECTED}"]
    first = [int(n) for n in np.argwhere(differ)[0]]
    lines = [f"  {name}: {int(differ.sum())} of {differ.size} elements differ, first at {name}{first or ''}"]
    return lines + _Table(dtype, found, wish, got.poison).around(first)


def described(dtype: str, shape: Any) -> str:
    """``int32[2, 3]``, or the type alone of a Python value."""
    return dtype if dtype in ("int", "bool", "float", "str", "NoneType") else f"{dtype}{list(shape)}"


@dataclass(frozen=True)
class _Table:
    """Two outputs by their bits, side by side."""

    dtype: str
    got: npt.NDArray[Any]
    wanted: npt.NDArray[Any]
    poison: Any

    def around(self, first: list[int]) -> list[str]:
        """The lines around an element: rows, or where they are wide, the elements of the innermost one."""
        if not first:
            got, wanted = (self._element(part[()], poison) for part, poison in self._sides)
            return [f"    got {got}, expected {wanted}"]
        outer: tuple[int, ...] = ()
        if len(first) > 1 and self.got[first[0]].size > WIDEST_ROW:
            outer = tuple(first[:-1])
        at, count = first[len(outer)], self.got[outer].shape[0]
        lines = [(self._place(outer, n), *self._cells((*outer, n))) for n in self._near(at, count)]
        left, middle = max(8, *(len(line[0]) for line in lines)), max(26, *(len(line[1]) for line in lines))
        head = f"    {'element' if outer else 'row':>{left}}  {'got':<{middle}}  expected"
        rows = [f"    {place:>{left}}  {got:<{middle}}  {wanted}" for place, got, wanted in lines]
        rows[at - self._near(at, count).start] += " <-- first difference"
        return [head, *rows]

    @property
    def _sides(self) -> tuple[tuple[npt.NDArray[Any], Any], ...]:
        return (self.got, self.poison), (self.wanted, None)

    @staticmethod
    def _near(at: int, count: int) -> range:
        return range(max(at - CONTEXT, 0), min(at + CONTEXT + 1, count))

    @staticmethod
    def _place(outer: tuple[int, ...], number: int) -> str:
        return str([*outer, number]) if outer else str(number)

    def _cells(self, place: tuple[int, ...]) -> list[str]:
        return [self._cell(part[place], poison) for part, poison in self._sides]

    def _cell(self, value: Any, poison: Any) -> str:
        if isinstance(value, np.ndarray) and value.ndim:
            return "[" + ", ".join(self._inner(item, poison) for item in value) + "]"
        return self._element(value, poison)

    def _inner(self, value: Any, poison: Any) -> str:
        """An element of a row: its bits only where its number does not say them."""
        if isinstance(value, np.ndarray) and value.ndim:
            return self._cell(value, poison)
        return "(unwritten)" if self._unwritten(value, poison) else plain(self.dtype, self._held(value))

    def _element(self, value: Any, poison: Any) -> str:
        return "(unwritten)" if self._unwritten(value, poison) else with_bits(self.dtype, self._held(value))

    def _held(self, value: Any) -> Any:
        """An element with the width that its bits have."""
        return np.asarray(value, dtype=self.wanted.dtype)[()] if self.wanted.dtype != object else value

    @staticmethod
    def _unwritten(value: Any, poison: Any) -> bool:
        return poison is not None and bool(value == poison)
