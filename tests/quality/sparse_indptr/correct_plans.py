"""A correct ``mla_split_plan`` in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

INTEGERS = (torch.int32, torch.int64)
COST = 16
NOTHING = -1


class Row(NamedTuple):
    """A row of the batch: its queries and KV entries, first and last + 1."""

    number: int
    queries: tuple[int, int]
    entries: tuple[int, int]


class Tile(NamedTuple):
    """Queries of a row, and the pieces of KV entries: split, first, last + 1."""

    row: Row
    queries: tuple[int, int]
    pieces: list[tuple[int, int, int]]


def refuse(call):
    """Everything that is wrong by the text."""
    for name in ("qo_indptr", "kv_indptr"):
        if getattr(call, name).dim() != 1 or getattr(call, name).dtype not in INTEGERS:
            raise ValueError(f"{name}: must have one dimension, and be int32 or int64")
    if min(call.kv_granularity, call.q_tile, call.num_splits) < 1:
        raise ValueError("kv_granularity, q_tile, num_splits: must be at least 1")
    if not call.qo_indptr.shape[0] or call.kv_indptr.shape != call.qo_indptr.shape:
        raise ValueError("kv_indptr: must have as many elements as qo_indptr, and at least one")
    refuse_starts(call)


def refuse_starts(call):
    for name in ("qo_indptr", "kv_indptr"):
        starts = getattr(call, name).tolist()
        if starts[0] != 0 or any(end < begin for begin, end in pairwise(starts)) or starts[-1] >= 1 << 31:
            raise ValueError(f"{name}: must begin with 0, not decrease, and fit int32")


def rows_of(call):
    queries, entries = (pairwise(starts.tolist()) for starts in (call.qo_indptr, call.kv_indptr))
    return [Row(number, *both) for number, both in enumerate(zip(queries, entries, strict=True))]


def tiles_of(call, row):
    """Queries of each tile; a row without queries has one tile."""
    begin, end = row.queries
    return [(first, min(first + call.q_tile, end)) for first in range(begin, end, call.q_tile)] or [(begin, begin)]


def entries_of(call, row, queries):
    """The KV entries that a tile reads."""
    return row.entries


def granules(call, begin, end):
    return -(-(end - begin) // call.kv_granularity)


def most_of(call, tiles):
    """What a split may cost."""
    total = sum(granules(call, *row.entries) + COST for row, _ in tiles)
    return -(-total // call.num_splits) + COST


def cut(call, row, begin, room):
    """Where a piece of so many granules ends."""
    return begin + room * call.kv_granularity


def filled(steps, call):
    """Tiles with their pieces: one split after the other."""
    tiles = [(row, queries) for row in steps.rows(call) for queries in steps.tiles(call, row)]
    most = steps.most(call, tiles)
    split, room, made = 0, most, []
    for row, queries in tiles:
        begin, end = steps.entries(call, row, queries)
        pieces = []
        while granules(call, begin, end) + COST > room:
            if room > COST:
                stop = steps.cut(call, row, begin, room - COST)
                pieces.append((split, begin, stop))
                begin = stop
            split, room = split + 1, most
        pieces.append((split, begin, end))
        room -= granules(call, begin, end) + COST
        made.append(Tile(row, queries, pieces))
    return made


def places_of(call, tiles):
    """Places of the partial results of each tile; none for one piece."""
    places, free = [], 0
    for tile in tiles:
        step = max(tile.queries[1] - tile.queries[0], 1)
        count = len(tile.pieces) if len(tile.pieces) > 1 else 0
        places.append([free + number * step for number in range(count)])
        free += count * step
    return places


def work_of(call, tile, piece, place):
    """A work's numbers."""
    _, begin, end = piece
    return [tile.row.number, place, *tile.queries, begin, end, tile.row.entries[1] - end, 0]


def reduced(call, tiles, places):
    """Of each tile of several pieces its queries and places."""
    return [(tile.queries, own) for tile, own in zip(tiles, places, strict=True) if own]


def starts_of(call, splits):
    """First work of each split, of the split of each work."""
    counts = [0] * call.num_splits
    for split in splits:
        counts[split] += 1
    return list(accumulate(counts, initial=0))


def int32(values, columns=0):
    made = torch.tensor(values, dtype=torch.int32)
    return made.reshape(-1, columns) if columns else made.reshape(-1)


@dataclass(frozen=True)
class Steps:
    """How a plan is made."""

    refuse: Callable[..., Any] = refuse
    rows: Callable[..., Any] = rows_of
    tiles: Callable[..., Any] = tiles_of
    entries: Callable[..., Any] = entries_of
    most: Callable[..., Any] = most_of
    cut: Callable[..., Any] = cut
    filled: Callable[..., Any] = filled
    places: Callable[..., Any] = places_of
    work: Callable[..., Any] = work_of
    reduced: Callable[..., Any] = reduced
    starts: Callable[..., Any] = starts_of


def plan(steps=Steps(), /, **call):  # frozen
    """All steps together."""
    call = SimpleNamespace(**call)
    steps.refuse(call)
    tiles = steps.filled(steps, call)
    places = steps.places(call, tiles)
    works = [
        (piece[0], steps.work(call, tile, piece, place))
        for tile, own in zip(tiles, places, strict=True)
        for piece, place in zip(tile.pieces, own or [NOTHING] * len(tile.pieces), strict=True)
    ]
    works.sort(key=lambda work: work[0])
    reductions = steps.reduced(call, tiles, places)
    return (
        int32(steps.starts(call, [split for split, _ in works])),
        int32([numbers for _, numbers in works], 8),
        int32(list(accumulate((len(own) for _, own in reductions), initial=0))),
        int32([queries for queries, _ in reductions], 2),
        int32([place for _, own in reductions for place in own]),
    )


def replaces(step):
    """Makes a function that takes a step's place the planner that has it."""
    return lambda function: partial(plan, Steps(**{step: function}))


def mla_split_plan(*, qo_indptr, kv_indptr, kv_granularity, q_tile, num_splits):
    return plan(**locals())
