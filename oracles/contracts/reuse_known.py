"""Predicates of known findings for contract 5: which lives show a fault that upstream still has.

A life is followed to where it ends (:mod:`oracles.contracts._reuse_upstream`): a fault shows where it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from oracles.arrays import Array, Inputs
from oracles.contracts import _reuse_upstream as upstream
from oracles.contracts._reuse_upstream import GdnLife, Seen
from oracles.contracts.reuse_bindings import other_blocks_than_drafts

_remembered: list[tuple[Inputs, bool, Seen]] = []
"""The last lives: all predicates ask for the same one."""


def _seen(inputs: Inputs, *, old: bool) -> Seen:
    """Nothing, of a life that the binding excludes."""
    if other_blocks_than_drafts(inputs):
        return Seen()
    for known, release, seen in _remembered:
        if known is inputs and release is old:
            return seen
    _remembered[:] = [*_remembered[-1:], (inputs, old, GdnLife(inputs, old=old).live())]
    return _remembered[-1][2]


def _ends(inputs: Inputs, *, ends: tuple[str, ...], needs: Callable[[Inputs], bool], old: bool = False) -> bool:
    return needs(inputs) and _seen(inputs, old=old).end in ends


def _wrong(inputs: Inputs, reason: str, needs: Callable[[Inputs], bool], *, old: bool = False) -> bool:
    return needs(inputs) and any(found == reason for found, _ in _seen(inputs, old=old).wrong)


def _masked(inputs: Inputs, *, old: bool = False) -> bool:
    """Tokens of requests that speculate, and of others, in a step before the life ends."""
    return _speculates(inputs) and _seen(inputs, old=old).masked


# What a fault cannot do without: asked first, because it takes no life.


def _steps(inputs: Inputs) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return cast("tuple[tuple[str, tuple[str, ...]], ...]", inputs["steps"])


def _asks(inputs: Inputs, probe: str) -> bool:
    return any(probe in probes for _, probes in _steps(inputs))


def _in_mode(inputs: Inputs, mode: str) -> bool:
    return any(group[3] == mode for group in cast("tuple[tuple[Any, ...], ...]", inputs["groups"]))


def _speculates(inputs: Inputs) -> bool:
    return any(drafts is not None for drafts in cast("tuple[Array | None, ...]", inputs["num_decode_draft_tokens_cpu"]))


def _updates(inputs: Inputs) -> bool:
    return len(cast("tuple[Any, ...]", inputs["groups"])) > 1 and any(plan != "build" for plan, _ in _steps(inputs))


def _in_graphs(inputs: Inputs) -> bool:
    return any(cast("tuple[bool, ...]", inputs["full_graph"]))


def _updates_in_graphs(inputs: Inputs) -> bool:
    return _updates(inputs) and _in_graphs(inputs)


_PREDICATES: Mapping[str, partial[bool]] = {
    "reuses_unshared_buffers": partial(_ends, ends=(upstream.UNSHARED, upstream.MOVED), needs=_updates_in_graphs),
    "reuses_its_own": partial(_ends, ends=(upstream.OWN,), needs=partial(_asks, probe="same builder")),
    "reuses_a_refilled_batch": partial(_ends, ends=(upstream.REFILLED,), needs=partial(_asks, probe="refilled")),
    "updates_without_indices": partial(_ends, ends=(upstream.NO_INDICES,), needs=partial(_in_mode, mode="align")),
    "first_columns_in_mode_all": partial(_wrong, reason="first columns", needs=partial(_in_mode, mode="all")),
    "long_token_indices": partial(_wrong, reason="long indices", needs=_speculates),
    "padded_tokens": partial(_wrong, reason="padded tokens", needs=_in_graphs),
    "padded_rows": partial(_wrong, reason="padded rows", needs=_in_graphs),
    "masked_by_the_host": partial(_masked),
}
_OLD = ("reuses_unshared_buffers", "first_columns_in_mode_all", "long_token_indices", "padded_tokens")
LINEAR: dict[str, Callable[[Inputs], bool]] = {
    **_PREDICATES,
    **{
        f"until_0_31_{name}": partial(_PREDICATES[name], old=True)
        for name in (*_OLD, "padded_rows", "masked_by_the_host")
    },
    "until_0_31_no_drafts": partial(_wrong, reason="no drafts", needs=_speculates, old=True),
}


# AITER MLA: every group builds.


def padding_gets_a_query(inputs: Inputs) -> bool:
    """Without graphs, a row without a query in a step of one query a row."""
    return any(build.queries_apart for build in upstream.mla_builds(inputs))


def first_page_for_added_queries(inputs: Inputs) -> bool:
    """Rows of a fixed width, whose added tokens have another page than the request's first."""
    return any(build.pages_apart for build in upstream.mla_builds(inputs))


def rows_that_wrap(inputs: Inputs) -> bool:
    """A table whose rows lie so far apart that a row with pages begins where 32 bits do not reach."""
    return any(build.rows_wrap for build in upstream.mla_builds(inputs))


MLA: dict[str, Callable[[Inputs], bool]] = {
    predicate.__name__: predicate for predicate in (padding_gets_a_query, first_page_for_added_queries, rows_that_wrap)
}
