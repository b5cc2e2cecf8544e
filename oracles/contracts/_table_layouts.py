"""Where two-dimensional tensors lie in memory, besides the layouts that a source gives any tensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy.typing as npt

from oracles.arrays import Array, array
from oracles.domain import Source, huge_strides

LAYOUTS = ("side by side", "columns apart", "turned", "rows far apart")
"""Columns side by side in whatever layout a source gives; every second column; a transposed tensor; row strides past
2^31."""

MOST_FAR = (4, 64)
"""Rows and elements of a tensor up to which its rows can lie far apart: address space has to hold all between them."""

View = Callable[[npt.ArrayLike, str], Array]


def draw_views(source: Source) -> View:
    """What lays out the two-dimensional tensors of a case.

    Mostly their columns lie side by side. In some cases every tensor has the unusual layout drawn for the case or
    none, so that implementations are seen that take one tensor's strides for another's.
    """
    layout = source.choose(LAYOUTS, weights=(9, 1, 1, 1), small=1)
    if layout != LAYOUTS[0]:
        source.event(f"tables: {layout}")

    def view(values: npt.ArrayLike, dtype: str) -> Array:
        if layout == LAYOUTS[0] or source.choose((False, True), weights=(2, 1), small=1):
            return source.view(values, dtype, small=1)
        plain = array(values, dtype)
        return Array(dtype, plain.data, _strides(source, plain, layout))

    return view


def _strides(source: Source, plain: Array, layout: str) -> tuple[int, ...] | None:
    rows, columns = plain.shape
    if layout == "columns apart":
        return 2 * columns + 1, 2
    if layout == "turned":
        return 1, max(rows, 1)
    if 2 <= rows <= MOST_FAR[0] and plain.data.size <= MOST_FAR[1]:
        return source.choose(huge_strides(rows)), 1
    return None


def columns_apart(table: Array) -> bool:
    """Whether columns of a two-dimensional tensor do not lie side by side."""
    return table.data.ndim == 2 and table.shape[1] > 1 and table.data.size > 0 and table.layout[1] != 1
