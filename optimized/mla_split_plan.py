"""MLA split plan, made on the host: which pieces of a paged MLA decode each split works on, and how they are added up.

The tiles of all rows are laid out on a line, each as long as it costs, and the line is cut into equal stretches, one a
split. A split is given what begins in its stretch: only its first work can cost more than its share of the line, by
what a work costs besides its granules. So no tile waits for the one before it, and a few NumPy calls make the plan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import PAD_SLOT_ID, ContractError
from optimized.query_starts import refuse_other_size, starts_from_zero
from optimized.refusals import refuse_bad_index, refuse_bad_int

_INT32_MAX = 2**31 - 1
_COST_OF_A_WORK = 16
_COLUMNS = 8

_Numbers = npt.NDArray[np.int64]


class _Tiles(NamedTuple):
    """What is known of each query tile: its row, its queries, and the row's KV entries in granules."""

    rows: _Numbers
    begins: _Numbers
    ends: _Numbers
    granules: _Numbers


class _Works(NamedTuple):
    """Each piece of a tile: the tile, the split that does it, and its granules, from the row's first one on."""

    tiles: _Numbers
    splits: _Numbers
    begins: _Numbers
    ends: _Numbers
    pieces: _Numbers
    """Of each tile, how many there are."""


def mla_split_plan(
    *, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_granularity: int, q_tile: int, num_splits: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``(work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map)``, int32 on the CPU.

    A row of the batch has ``max(1, ceil(q / q_tile))`` tiles of its queries, ``T`` in all, and each tile with its
    row's KV entries is cut into one piece or more, at multiples of ``kv_granularity`` from the row's start. A piece is
    one work of one of ``S = num_splits`` splits. A work costs its granules and 16 more; no split costs more than the
    even share of the uncut tiles' cost and 16. The plan is for attention that is not causal.

    ``qo_indptr``, ``kv_indptr``
        int32 or int64 ``[B + 1]`` on the CPU, any strides, in queries and in KV entries; both begin with 0. How many
        tiles there are follows from their values and from nothing else that the host sees, so they cannot be tensors
        of a device: the host would have to wait for it.
    ``kv_granularity``, ``q_tile``, ``num_splits``
        ints of at least 1: KV entries of a granule, the most queries of a tile, splits.
    ``work_indptr``
        ``[S + 1]``: where the works of each split begin.
    ``work_info_set``
        ``[T + S - 1, 8]`` (no rows without tiles): row; place of the partial result, or -1 if the tile is one piece;
        first query and last + 1; first KV entry and last + 1; KV entries of the row behind those; 0.
    ``reduce_indptr``
        ``[T + 1]``: which partial results belong to each tile, in the order of the tiles.
    ``reduce_final_map``
        ``[T, 2]``: first query and last + 1 of a tile of several pieces.
    ``reduce_partial_map``
        ``[min(T + S - 1, 2 * (S - 1))]`` (no element without tiles): places of partial results, as query rows.

    What the plan does not need is -1 everywhere.

    Refused (:class:`ContractError`): a tensor that is not one-dimensional, or neither int32 nor int64; ints below 1 (a
    ``bool`` is no ``int``); no element; sizes that differ; a tensor that is not on the CPU; one that does not begin
    with 0, or decreases; a plan with a number that int32 cannot hold.

    Source of the definition: contracts.md, section 2.5, and AITER's `get_mla_metadata_v1`.
    """
    refuse_bad_index("qo_indptr", qo_indptr)
    refuse_bad_index("kv_indptr", kv_indptr)
    refuse_bad_int("kv_granularity", kv_granularity, 1)
    refuse_bad_int("q_tile", q_tile, 1)
    refuse_bad_int("num_splits", num_splits, 1)
    queries = starts_from_zero("qo_indptr", qo_indptr)
    refuse_other_size("kv_indptr", kv_indptr, queries.size, "that of qo_indptr")
    entries = starts_from_zero("kv_indptr", kv_indptr)
    for name, indptr in (("qo_indptr", queries), ("kv_indptr", entries)):
        if indptr[-1] > _INT32_MAX:
            raise ContractError(name, int(indptr[-1]), "the numbers of a plan must fit int32")
    # No row has more, so with less every row is one granule, and one tile, as well.
    kv_granularity, q_tile = min(kv_granularity, _INT32_MAX), min(q_tile, _INT32_MAX)
    tiles = _tiles_of(queries, entries, kv_granularity, q_tile)
    works = _works_of(tiles, num_splits)
    longest = int((tiles.ends - tiles.begins).max(initial=1))
    num_partial = int(works.pieces[works.pieces > 1].sum())
    if num_partial * longest > _INT32_MAX:
        rule = f"the places of {num_partial} partial results must fit int32"
        raise ContractError("num_splits", num_splits, rule)
    plan = (
        np.searchsorted(works.splits, np.arange(num_splits + 1)),
        _work_info_set(tiles, works, entries, kv_granularity, num_splits, longest),
        *_reductions(tiles, works, num_splits, longest),
    )
    return tuple(torch.from_numpy(part.astype(np.int32, copy=False)) for part in plan)  # type: ignore[return-value]


def _tiles_of(queries: _Numbers, entries: _Numbers, kv_granularity: int, q_tile: int) -> _Tiles:
    counts = np.maximum(-(-np.diff(queries) // q_tile), 1)
    rows = np.repeat(np.arange(counts.size), counts)
    numbers = np.arange(rows.size) - (np.cumsum(counts) - counts)[rows]
    begins = queries[rows] + numbers * q_tile
    granules = -(-np.diff(entries) // kv_granularity)
    return _Tiles(rows, begins, np.minimum(begins + q_tile, queries[rows + 1]), granules[rows])


def _works_of(tiles: _Tiles, num_splits: int) -> _Works:
    """Cut the line of all tiles. On it, a tile is 16 long, and a granule longer for each granule that it has."""
    ends = np.cumsum(tiles.granules + _COST_OF_A_WORK)
    firsts = ends - tiles.granules  # each tile's first granule
    share = max(-(-int(ends[-1]) // num_splits), 1) if ends.size else 1
    # A tile without granules belongs where it ends.
    first_splits = np.minimum(firsts, ends - 1) // share
    pieces = (ends - 1) // share - first_splits + 1
    owners = np.repeat(np.arange(pieces.size), pieces)
    steps = np.arange(owners.size) - (np.cumsum(pieces) - pieces)[owners]
    splits = first_splits[owners] + steps
    cuts = splits * share - firsts[owners]
    begins = np.where(steps > 0, cuts, 0)
    return _Works(owners, splits, begins, np.minimum(cuts + share, tiles.granules[owners]), pieces)


def _work_info_set(
    tiles: _Tiles, works: _Works, entries: _Numbers, kv_granularity: int, num_splits: int, longest: int
) -> _Numbers:
    rows = tiles.rows[works.tiles]
    row_begins, row_ends = entries[rows], entries[rows + 1]
    ends = np.minimum(row_begins + works.ends * kv_granularity, row_ends)
    num_tiles, num_works = tiles.rows.size, rows.size
    work_info_set = np.full((num_tiles + num_splits - 1 if num_tiles else 0, _COLUMNS), PAD_SLOT_ID, np.int64)
    shared = works.pieces[works.tiles] > 1
    places = np.where(shared, (np.cumsum(shared) - 1) * longest, PAD_SLOT_ID)
    queries = tiles.begins[works.tiles], tiles.ends[works.tiles]
    begins = row_begins + works.begins * kv_granularity
    columns = (rows, places, *queries, begins, ends, row_ends - ends, np.zeros_like(rows))
    work_info_set[:num_works] = np.stack(columns, axis=1)
    return work_info_set


def _reductions(tiles: _Tiles, works: _Works, num_splits: int, longest: int) -> tuple[_Numbers, _Numbers, _Numbers]:
    shared = works.pieces > 1
    ends = np.cumsum(np.where(shared, works.pieces, 0))
    num_tiles, num_partial = shared.size, int(ends[-1]) if ends.size else 0
    final_map = np.where(shared[:, None], np.stack((tiles.begins, tiles.ends), axis=1), PAD_SLOT_ID)
    room = min(num_tiles + num_splits - 1, 2 * (num_splits - 1)) if num_tiles else 0
    partial_map = np.full(room, PAD_SLOT_ID, np.int64)
    partial_map[:num_partial] = np.arange(num_partial) * longest
    return np.concatenate(([0], ends)), final_map, partial_map
