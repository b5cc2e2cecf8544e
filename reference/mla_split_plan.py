"""MLA split plan: which pieces of a paged MLA decode each split works on, and how their results are put together.

Many plans are right: :func:`check` says what is wrong with one, :func:`mla_split_plan` makes a plain one.

A batch has ``B`` rows. Row ``b`` holds queries ``qo_indptr[b]`` to ``qo_indptr[b + 1]`` and KV entries ``kv_indptr[b]``
to ``kv_indptr[b + 1]`` (a page is one token). Its ``q`` queries are cut into ``max(1, ceil(q / q_tile))`` tiles: a row
without queries has one, without queries too. A *work* is a tile with a piece of its row's KV entries, to be done by one
of ``S = num_splits`` splits. A *granule* is ``kv_granularity`` KV entries. A work costs its granules, the last one
perhaps short, and 16 more.

A plan has five int32 tensors:

``work_indptr`` ``[S + 1]``
    split ``s`` has works ``work_indptr[s]`` to ``work_indptr[s + 1]``.
``work_info_set`` ``[W, 8]``, ``W`` at least the number of works
    a work: row of the batch; place of its partial result, or -1; first query and last + 1; first KV entry and last + 1;
    KV entries of the row behind those; a column that nobody reads.
``reduce_indptr`` ``[E + 1]``
    reduction ``e < E`` adds up elements ``reduce_indptr[e]`` to ``reduce_indptr[e + 1]`` of ``reduce_partial_map``, if
    there are any. Which reduction belongs to which tile is free.
``reduce_final_map`` ``[E, 2]``
    of a reduction that adds something up: first query and last + 1.
``reduce_partial_map`` ``[P]``, ``P`` at least the number of partial results
    places of partial results, as query rows of a buffer of ``P * q_tile``.

It is right if and only if:

- I1: ``work_indptr`` begins with 0 and does not decrease. Its last element is the number of works.
- I2: the tiles of a row are consecutive, with at most ``q_tile`` queries, and none is empty in a row with queries. The
  pieces of a tile are consecutive and cover the row's KV entries. In a plan for causal attention they end ``n - 1 - i``
  entries earlier, for tile ``i`` of ``n``, or at the row's first entry. A piece is empty only where it covers a tile
  that has no KV entry.
- I3: a tile of one piece has no place (-1). A tile of ``k > 1`` pieces has ``k`` places that rise with the KV entries
  by a fixed number: at least 1 and the tile's queries, at most ``q_tile``. No two partial results overlap, and none
  reaches past the buffer.
- I4: ``reduce_indptr`` begins with 0, its differences are 0 or at least 2, and its last element is the number of
  partial results. Each tile of several pieces has one reduction, with its queries, and its places in order.
- I5: of ``T`` tiles there are at most ``T + S - 1`` works, and therefore at most ``min(T + S - 1, 2 * (S - 1))``
  partial results.
- I6: what is past the last work, past the last partial result, or belongs to a reduction of nothing is not read.
- I7: pieces end at multiples of ``kv_granularity`` from the row's first KV entry, or with their tile.
- I8: no split costs more than ``ceil(total / S) + 16 + 1``, where the total is the cost of all tiles in one piece: the
  even share, what a cut adds, and one granule.
- I9: every row has work, also one without KV entries.

Source of the definition: contracts.md, section 2.5, and AITER's `get_mla_metadata_v1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from reference.errors import PAD_SLOT_ID, ContractError, OnlyMemorySafety
from reference.mla_split_plan_rules import (
    COLUMNS,
    COST_OF_A_WORK,
    Int32,
    Row,
    ceil,
    complaint,
    even_share,
    granules,
    size,
)
from reference.query_starts import query_lengths, refuse_other_size
from reference.refusals import refuse_bad_index, refuse_bad_int

_INT32_MAX = 2**31 - 1
_MOST_TILES = 2**16

Indptr = npt.NDArray[np.signedinteger]


def check(
    qo_indptr: Indptr,
    kv_indptr: Indptr,
    kv_granularity: int,
    q_tile: int,
    num_splits: int,
    work_indptr: Int32,
    work_info_set: Int32,
    reduce_indptr: Int32,
    reduce_final_map: Int32,
    reduce_partial_map: Int32,
) -> str | None:
    """Return what is wrong with a plan: the invariant that is broken, the row, the tile; ``None`` if it is right.

    The module says what a plan is. The lengths that it leaves free (``W``, ``E``, ``P``) may be any that suffice.

    A wrong plan is never refused. Inputs are (:class:`ContractError`), or have no plan that is promised
    (:class:`OnlyMemorySafety`), where :func:`mla_split_plan` says so; its places of partial results play no part here.

    Source of the definition: contracts.md, section 2.5, and AITER's `get_mla_metadata_v1`.
    """
    rows = _rows(qo_indptr, kv_indptr, kv_granularity, q_tile, num_splits)
    plan = (work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map)
    return complaint(rows, kv_granularity, q_tile, num_splits, plan)


def mla_split_plan(
    qo_indptr: Indptr, kv_indptr: Indptr, kv_granularity: int, q_tile: int, num_splits: int
) -> tuple[Int32, Int32, Int32, Int32, Int32]:
    """Return ``(work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map)``, a right plan.

    One split after the other is filled, with the rows and tiles in order, up to ``ceil(total / S) + 16``; a tile that
    does not fit is cut, and goes on in the next split. The plan is for attention that is not causal. The module says
    what the tensors hold. Their lengths, with ``n`` the most tiles of a row (1 without rows):
    ``W = (B + S - 1) * n``, ``E = B * n``, ``P = min(B + S - 1, 2 * (S - 1)) * n``. The tiles' reductions are in the
    order of the tiles. What nobody reads is -1, and 0 in a work's last column.

    ``qo_indptr``, ``kv_indptr``
        int32 or int64 ``[B + 1]`` on the host, in queries and KV entries; both begin with 0. How many tiles there are
        follows from their values alone.
    ``kv_granularity``, ``q_tile``, ``num_splits``
        ints of at least 1: KV entries of a granule, the most queries of a tile, splits.

    Refused (:class:`ContractError`), in this order: a tensor that is not one-dimensional, or neither int32 nor int64;
    an ``int`` that is none or too small (a ``bool`` is no ``int``); ``qo_indptr`` without an element; ``kv_indptr`` of
    another size; either of them that does not begin with 0, decreases, or passes 2**31 - 1.

    No values are promised (:class:`OnlyMemorySafety`) for more than 2**16 tiles, which no batch has, and where int32
    cannot hold the place of a partial result.

    Source of the definition: contracts.md, section 2.5, and AITER's `get_mla_metadata_v1`.

    >>> mla_split_plan(np.array([0, 1]), np.array([0, 40]), 16, 1, 2)[1].tolist()
    [[0, -1, 0, 1, 0, 40, 0, 0], [-1, -1, -1, -1, -1, -1, -1, -1]]
    """
    rows = _rows(qo_indptr, kv_indptr, kv_granularity, q_tile, num_splits)
    most = max((row.num_tiles for row in rows), default=1)
    num_rows, works, places, ends, final = len(rows), [], [], [0], []
    counts, next_place = [0] * num_splits, 0
    for row, queries, pieces in _filled(rows, kv_granularity, q_tile, num_splits):
        step = max(1, min(q_tile, size(row.queries)))
        for split, start, end in pieces:
            place = next_place if len(pieces) > 1 else PAD_SLOT_ID
            works.append([row.number, place, *queries, start, end, row.entries[1] - end, 0])
            counts[split] += 1
            if len(pieces) > 1:
                places.append(place)
                next_place += step
        ends.append(len(places))
        final.append(list(queries) if len(pieces) > 1 else [PAD_SLOT_ID] * 2)
    return (
        _int32(list(accumulate(counts, initial=0))),
        _int32(works + [[PAD_SLOT_ID] * COLUMNS] * ((num_rows + num_splits - 1) * most - len(works)), COLUMNS),
        _int32(ends + [len(places)] * (num_rows * most + 1 - len(ends))),
        _int32(final + [[PAD_SLOT_ID] * 2] * (num_rows * most - len(final)), 2),
        _int32(places + [PAD_SLOT_ID] * (min(num_rows + num_splits - 1, 2 * (num_splits - 1)) * most - len(places))),
    )


def _filled(
    rows: list[Row], kv_granularity: int, q_tile: int, num_splits: int
) -> Iterator[tuple[Row, tuple[int, int], list[tuple[int, int, int]]]]:
    """Each tile in order: its row, its queries, and its pieces as split, first KV entry, last + 1."""
    most = even_share(rows, kv_granularity, num_splits) + COST_OF_A_WORK
    split, room = 0, most
    for row in rows:
        for tile in range(row.num_tiles):
            start, pieces = row.entries[0], []
            while (left := granules((start, row.entries[1]), kv_granularity)) + COST_OF_A_WORK > room:
                if room > COST_OF_A_WORK:
                    end = start + (room - COST_OF_A_WORK) * kv_granularity
                    pieces.append((split, start, end))
                    start = end
                split, room = split + 1, most
            pieces.append((split, start, row.entries[1]))
            room -= left + COST_OF_A_WORK
            first = row.queries[0] + tile * q_tile
            yield row, (first, min(first + q_tile, row.queries[1])), pieces


def _rows(qo_indptr: Indptr, kv_indptr: Indptr, kv_granularity: int, q_tile: int, num_splits: int) -> list[Row]:
    refuse_bad_index("qo_indptr", qo_indptr)
    refuse_bad_index("kv_indptr", kv_indptr)
    refuse_bad_int("kv_granularity", kv_granularity, 1)
    refuse_bad_int("q_tile", q_tile, 1)
    refuse_bad_int("num_splits", num_splits, 1)
    if qo_indptr.size == 0:
        raise ContractError("qo_indptr", qo_indptr.shape, "there must be at least one element")
    refuse_other_size("kv_indptr", kv_indptr, qo_indptr.size, "that of qo_indptr")
    for name, indptr in (("qo_indptr", qo_indptr), ("kv_indptr", kv_indptr)):
        values = indptr.tolist()
        if values[0] != 0 or min(query_lengths(values), default=0) < 0 or values[-1] > _INT32_MAX:
            raise ContractError(name, values, "it must begin with 0, not decrease, and fit int32")
    ranges = zip(pairwise(qo_indptr.tolist()), pairwise(kv_indptr.tolist()), strict=True)
    rows = [
        Row(number, queries, entries, max(1, ceil(size(queries), q_tile)))
        for number, (queries, entries) in enumerate(ranges)
    ]
    num_tiles = sum(row.num_tiles for row in rows)
    if num_tiles > _MOST_TILES:
        raise OnlyMemorySafety(f"the rows have {num_tiles} tiles, more than any batch")
    return rows


def _int32(values: list[int] | list[list[int]], columns: int | None = None) -> Int32:
    array = np.array(values, dtype=object).reshape((-1, columns) if columns else -1)
    if array.size and array.max() > _INT32_MAX:
        raise OnlyMemorySafety(f"a partial result has place {array.max()}, which int32 cannot hold")
    return array.astype(np.int32)
