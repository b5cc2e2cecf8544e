"""What is wrong with an MLA split plan: the invariants I1 to I9 that :mod:`reference.mla_split_plan` writes out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from reference.errors import PAD_SLOT_ID
from reference.query_starts import query_lengths

COST_OF_A_WORK = 16
"""Granules, beside those that it reads."""

COLUMNS = 8
"""Numbers of a work."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Row:
    """A row of the batch: its queries and KV entries, and the number of its tiles."""

    number: int
    queries: tuple[int, int]
    entries: tuple[int, int]
    num_tiles: int

    def end(self, tile: int, causal: bool) -> int:
        """Where the KV entries of a tile end."""
        begin, end = self.entries
        return max(end - (self.num_tiles - 1 - tile), begin) if causal else end


@dataclass(frozen=True)
class _Work:
    split: int
    row: int
    place: int
    queries: tuple[int, int]
    entries: tuple[int, int]
    behind: int


@dataclass(frozen=True)
class _Tile:
    """A tile of a row, with its works by KV entries."""

    row: Row
    number: int
    queries: tuple[int, int]
    works: tuple[_Work, ...]

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(work.place for work in self.works) if len(self.works) > 1 else ()

    @property
    def room(self) -> int:
        """Query rows of one partial result."""
        return max(size(self.queries), 1)

    def __str__(self) -> str:
        return f"row {self.row.number}, tile {self.number}"


class _Wrong(Exception):
    """What is wrong with a plan."""


def complaint(
    rows: list[Row],
    kv_granularity: int,
    q_tile: int,
    num_splits: int,
    plan: tuple[Int32, Int32, Int32, Int32, Int32],
) -> str | None:
    """Return what is wrong with a plan for these rows, or ``None``."""
    work_indptr, work_info_set, reduce_indptr, final_map, partial_map = plan
    try:
        _check_form(num_splits, work_indptr, work_info_set, reduce_indptr, final_map, partial_map)
        works = _works(work_indptr, work_info_set, len(rows))
        tiles = [tile for row in rows for tile in _tiles(row, works[row.number], q_tile)]
        _check_pieces(tiles, kv_granularity)
        _check_places(tiles, q_tile, partial_map.size)
        _check_reductions(tiles, reduce_indptr.tolist(), final_map.tolist(), partial_map.tolist())
        _check_counts(tiles, num_splits)
        _check_costs(tiles, kv_granularity, num_splits)
    except _Wrong as wrong:
        return str(wrong)
    return None


def even_share(rows: list[Row], kv_granularity: int, num_splits: int) -> int:
    """What each split would cost, if all tiles stayed in one piece and costs could be shared evenly; rounded up."""
    costs = [(granules(row.entries, kv_granularity) + COST_OF_A_WORK) * row.num_tiles for row in rows]
    return ceil(sum(costs), num_splits)


def granules(entries: tuple[int, int], kv_granularity: int) -> int:
    """How many granules these KV entries are, the last one perhaps short."""
    return ceil(size(entries), kv_granularity)


def size(interval: tuple[int, int]) -> int:
    """Elements from the first to the last, of a first and a last + 1."""
    return interval[1] - interval[0]


def ceil(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return (number + by - 1) // by


def _check_form(
    num_splits: int,
    work_indptr: Int32,
    work_info_set: Int32,
    reduce_indptr: Int32,
    final_map: Int32,
    partial_map: Int32,
) -> None:
    named = {"work_indptr": work_indptr, "reduce_indptr": reduce_indptr, "reduce_partial_map": partial_map}
    matrices = {"work_info_set": work_info_set, "reduce_final_map": final_map}
    for name, tensor in (named | matrices).items():
        dimensions = 1 if name in named else 2
        if tensor.dtype != np.int32 or tensor.ndim != dimensions:
            raise _Wrong(f"{name}: {tensor.dtype} {tensor.shape} is not int32 of {dimensions} dimensions")
    if work_indptr.size != num_splits + 1:
        raise _Wrong(f"work_indptr has {work_indptr.size} elements for {num_splits} splits")
    if work_info_set.shape[1] != COLUMNS:
        raise _Wrong(f"work_info_set has {work_info_set.shape[1]} columns, and not {COLUMNS}")
    if final_map.shape != (reduce_indptr.size - 1, 2):
        raise _Wrong(f"reduce_final_map is {final_map.shape} beside {reduce_indptr.size} elements of reduce_indptr")


def _works(work_indptr: Int32, work_info_set: Int32, num_rows: int) -> dict[int, list[_Work]]:
    """The works of each row (I1)."""
    starts = _rising_from_zero("I1: work_indptr", work_indptr.tolist())
    if starts[-1] > work_info_set.shape[0]:
        raise _Wrong(f"I1: {starts[-1]} works, and {work_info_set.shape[0]} rows in work_info_set")
    works = defaultdict(list)
    for split, (first, end) in enumerate(pairwise(starts)):
        for number in range(first, end):
            row, place, *numbers, behind, _ = work_info_set[number].tolist()
            if not 0 <= row < num_rows:
                raise _Wrong(f"I2: work {number} is of row {row}, and there are {num_rows} rows")
            queries, entries = (numbers[0], numbers[1]), (numbers[2], numbers[3])
            works[row].append(_Work(split, row, place, queries, entries, behind))
    return works


def _tiles(row: Row, works: list[_Work], q_tile: int) -> list[_Tile]:
    """The tiles of a row (I9, and what I2 says of queries)."""
    if not works:
        raise _Wrong(f"I9: row {row.number} has no work")
    by_queries = defaultdict(list)
    for work in sorted(works, key=lambda work: (work.queries, work.entries)):
        by_queries[work.queries].append(work)
    if len(by_queries) != row.num_tiles:
        raise _Wrong(f"I2: row {row.number} has {len(by_queries)} tiles, and not {row.num_tiles}")
    least, start, tiles = min(size(row.queries), 1), row.queries[0], []
    for number, (queries, pieces) in enumerate(by_queries.items()):
        tile = _Tile(row, number, queries, tuple(pieces))
        if queries[0] != start or not least <= size(queries) <= q_tile:
            raise _Wrong(f"I2: {tile} has queries {queries}; {least} to {q_tile} from {start} on are allowed")
        start = queries[1]
        tiles.append(tile)
    if start != row.queries[1]:
        raise _Wrong(f"I2: {tiles[-1]} ends at query {start}, and the row at {row.queries[1]}")
    return tiles


def _check_pieces(tiles: list[_Tile], kv_granularity: int) -> None:
    causal = _is_causal(tiles)
    for tile in tiles:
        begin, end, start = tile.row.entries[0], tile.row.end(tile.number, causal), tile.row.entries[0]
        for work in tile.works:
            if work.entries[0] != start:
                raise _Wrong(f"I2: {tile} has a piece of KV entries {work.entries}, and {start} comes next")
            if size(work.entries) < min(end - begin, 1) or (end == begin and len(tile.works) > 1):
                raise _Wrong(f"I2: {tile} has an empty piece of KV entries {work.entries}")
            if work.behind != tile.row.entries[1] - work.entries[1]:
                behind = tile.row.entries[1] - work.entries[1]
                raise _Wrong(f"I2: {tile} says {work.behind} behind KV entry {work.entries[1]}, where {behind} are")
            start = work.entries[1]
            if work is not tile.works[-1] and (start - begin) % kv_granularity != 0:
                raise _Wrong(f"I7: {tile} is cut {start - begin} KV entries from the row's first")
        if start != end:
            raise _Wrong(f"I2: the pieces of {tile} end at KV entry {start}, and not at {end}")


def _is_causal(tiles: list[_Tile]) -> bool:
    """Which of the two kinds a plan is: the first tile that ends elsewhere in the other kind tells."""
    for tile in tiles:
        causal_end = tile.row.end(tile.number, causal=True)
        if causal_end != tile.row.end(tile.number, causal=False):
            return tile.works[-1].entries[1] == causal_end
    return False


def _check_places(tiles: list[_Tile], q_tile: int, num_places: int) -> None:
    taken: list[tuple[int, int, _Tile]] = []
    for tile in tiles:
        if len(tile.works) == 1 and tile.works[0].place != PAD_SLOT_ID:
            raise _Wrong(f"I3: {tile} is one piece and has place {tile.works[0].place}")
        steps = {after - before for before, after in pairwise(tile.places)}
        if len(steps) > 1 or any(not tile.room <= step <= q_tile for step in steps):
            rule = f"they must rise by a fixed number of {tile.room} to {q_tile}"
            raise _Wrong(f"I3: {tile} has places {tile.places}; {rule}")
        taken.extend((place, place + tile.room, tile) for place in tile.places)
    end_before = 0
    for place, end, tile in sorted(taken, key=lambda item: item[:2]):
        if place < end_before or end > num_places * q_tile:
            rule = f"it must lie from {end_before} on, and end by {num_places * q_tile}"
            raise _Wrong(f"I3: {tile} has place {place}; {rule}")
        end_before = end


def _check_reductions(
    tiles: list[_Tile], reduce_indptr: list[int], final_map: list[list[int]], partial_map: list[int]
) -> None:
    left = {tile.places[0]: tile for tile in tiles if tile.places}
    total = sum(len(tile.places) for tile in left.values())
    ends = _rising_from_zero("I4: reduce_indptr", reduce_indptr)
    if ends[-1] != total or total > len(partial_map):
        raise _Wrong(f"I4: reduce_indptr ends with {ends[-1]} of {len(partial_map)} for {total} partial results")
    for number, (first, end) in enumerate(pairwise(ends)):
        if end > first:
            places = partial_map[first:end]
            tile = left.pop(places[0], None)
            if tile is None or tuple(places) != tile.places:
                raise _Wrong(
                    f"I4: reduction {number} has places {places}, and {tile or 'no tile left'} has not just these"
                )
            if tuple(final_map[number]) != tile.queries:
                raise _Wrong(f"I4: reduction {number} has queries {final_map[number]}, and {tile} {tile.queries}")


def _check_counts(tiles: list[_Tile], num_splits: int) -> None:
    # So many works leave no room for more partial results than I5 allows.
    most, num_works = len(tiles) + num_splits - 1, sum(len(tile.works) for tile in tiles)
    if num_works > most:
        raise _Wrong(f"I5: {num_works} works, and at most {most} are allowed")


def _check_costs(tiles: list[_Tile], kv_granularity: int, num_splits: int) -> None:
    most = even_share([tile.row for tile in tiles if tile.number == 0], kv_granularity, num_splits)
    most += COST_OF_A_WORK + 1
    costs: dict[int, int] = defaultdict(int)
    for tile in tiles:
        for work in tile.works:
            costs[work.split] += granules(work.entries, kv_granularity) + COST_OF_A_WORK
            if costs[work.split] > most:
                raise _Wrong(f"I8: split {work.split} costs more than {most}, with {tile}")


def _rising_from_zero(name: str, values: list[int]) -> list[int]:
    """What I1 and I4 say of starts."""
    if values[0] != 0 or min(query_lengths(values), default=0) < 0:
        raise _Wrong(f"{name} does not begin with 0, or it decreases: {values}")
    return values
