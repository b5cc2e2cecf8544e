"""What laws about a step's requests share: their queries, the same step with other ones, and counts compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from oracles.arrays import Inputs, Value
from oracles.contracts._law_arrays import one, refilled

HOST_STARTS = "query_start_loc_cpu"
MORE = 2
"""Padding rows that laws add."""


def queries_of(inputs: Inputs, name: str) -> list[int]:
    """Queries of each request, from its starts."""
    return [end - begin for begin, end in pairwise(one(inputs, name).data.tolist())]


def with_queries(inputs: Inputs, name: str, queries: Sequence[int]) -> dict[str, Value]:
    """The same step with other queries, as far as starts say."""
    starts = list(accumulate(queries, initial=0))
    return {**inputs, name: refilled(one(inputs, name), starts)}


def changed(what: str, found: Sequence[object], wanted: Sequence[object], names: Sequence[str]) -> str | None:
    """The first of several named results that is not the wanted one, in one sentence; else ``None``."""
    for name, left, right in zip(names, found, wanted, strict=True):
        if left != right:
            return f"{what}, {name} is {left}, {right} follows from the law"
    return None
