"""Faults of ``mla_split_plan``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import cheats
import torch
from correct_plans import (
    COST,
    NOTHING,
    Tile,
    cut,
    filled,
    most_of,
    places_of,
    plan,
    reduced,
    refuse,
    replaces,
    rows_of,
    starts_of,
    tiles_of,
    work_of,
)

# Shares.


@replaces("most")
def one_split_takes_everything(call, tiles):
    return 1 << 40


@replaces("most")
def the_longest_row_is_a_share(call, tiles):
    longest = max((row.entries[1] - row.entries[0] for row, _ in tiles), default=0)
    return max(most_of(call, tiles), longest // call.kv_granularity + 1 + COST)


@replaces("filled")
def rows_are_never_cut(steps, call):
    """Rows one by one to the splits in turn."""
    tiles = [(row, queries) for row in rows_of(call) for queries in tiles_of(call, row)]
    return [Tile(row, q, [(n % call.num_splits, *row.entries)]) for n, (row, q) in enumerate(tiles)]


@replaces("filled")
def every_row_is_cut_for_all_splits(steps, call):
    """However short it is."""
    made = []
    for row in rows_of(call):
        begin, end = row.entries
        step = max(-(-(end - begin) // call.kv_granularity // call.num_splits), 1) * call.kv_granularity
        firsts = list(range(begin, end, step)) or [begin]
        for queries in tiles_of(call, row):
            pieces = [(n % call.num_splits, first, min(first + step, end)) for n, first in enumerate(firsts)]
            made.append(Tile(row, queries, pieces))
    return made


@replaces("filled")
def the_last_split_takes_what_is_left(steps, call):
    """Shares are half as large as they have to be."""
    made = []
    for tile in filled(steps, call):
        pieces = [(min(2 * split, call.num_splits - 1), begin, end) for split, begin, end in tile.pieces]
        made.append(tile._replace(pieces=pieces))
    return made


# Cuts.


@replaces("cut")
def cuts_one_entry_late(call, row, begin, room):
    return min(cut(call, row, begin, room) + 1, row.entries[1] - 1)


@replaces("cut")
def cuts_at_multiples_from_the_batch(call, row, begin, room):
    """Absolute ones, where rows begin anywhere."""
    end = cut(call, row, begin, room)
    return max(end // call.kv_granularity * call.kv_granularity, begin + 1)


@replaces("cut")
def knows_granules_of_16(call, row, begin, room):
    return begin + max(room * call.kv_granularity // 16 * 16, 1)


@replaces("cut")
def takes_granules_for_powers_of_two(call, row, begin, room):
    granule = 1 << (call.kv_granularity.bit_length() - 1)
    return begin + max(-(-room * call.kv_granularity // granule) * granule, 1)


@replaces("filled")
def pieces_overlap(steps, call):
    return [_moved(tile, -1) for tile in filled(steps, call)]


@replaces("filled")
def pieces_leave_an_entry_out(steps, call):
    return [_moved(tile, 1) for tile in filled(steps, call)]


def _moved(tile, by):
    """Later pieces begin elsewhere."""
    later = [(split, begin + by, end) for split, begin, end in tile.pieces[1:]]
    return tile._replace(pieces=[tile.pieces[0], *later])


@replaces("entries")
def the_last_entry_is_left_out(call, row, queries):
    begin, end = row.entries
    return begin, max(end - 1, begin)


@replaces("entries")
def every_tile_ends_with_its_last_query(call, row, queries):
    """Trimmed by queries, not by tiles, and in some rows only."""
    begin, end = row.entries
    return begin, max(end - (row.queries[1] - queries[1]), begin)


# Rows and tiles.


@replaces("rows")
def rows_without_entries_have_no_work(call):
    return [row for row in rows_of(call) if row.entries[0] < row.entries[1]]


@replaces("rows")
def rows_without_queries_have_no_work(call):
    return [row for row in rows_of(call) if row.queries[0] < row.queries[1]]


@replaces("rows")
def empty_rows_are_not_numbered(call):
    kept = [row for row in rows_of(call) if row.entries[0] < row.entries[1] or row.queries[0] < row.queries[1]]
    return [row._replace(number=number) for number, row in enumerate(kept)]


@replaces("rows")
def the_last_row_is_forgotten(call):
    return rows_of(call)[:-1]


@replaces("tiles")
def knows_no_tiles(call, row):
    return [row.queries]


@replaces("tiles")
def a_tile_has_one_query_more(call, row):
    begin, end = row.queries
    return [(n, min(n + call.q_tile + 1, end)) for n in range(begin, end, call.q_tile + 1)] or [(begin, begin)]


@replaces("tiles")
def a_full_row_has_an_empty_tile(call, row):
    begin, end = row.queries
    full = end > begin and (end - begin) % call.q_tile == 0
    return tiles_of(call, row) + [(end, end)] * full


@replaces("tiles")
def the_rest_of_a_row_has_no_tile(call, row):
    tiles = tiles_of(call, row)
    return tiles[:-1] if len(tiles) > 1 and tiles[-1][1] - tiles[-1][0] < call.q_tile else tiles


# Works.


@replaces("work")
def entries_begin_with_the_row(call, tile, piece, place):
    _, begin, end = piece
    first = tile.row.entries[0]
    made = work_of(call, tile, piece, place)
    return [*made[:4], begin - first, end - first, *made[6:]]


@replaces("work")
def queries_begin_with_the_row(call, tile, piece, place):
    made, first = work_of(call, tile, piece, place), tile.row.queries[0]
    return [*made[:2], made[2] - first, made[3] - first, *made[4:]]


@replaces("work")
def nothing_is_behind_a_piece(call, tile, piece, place):
    return [*work_of(call, tile, piece, place)[:6], 0, 0]


@replaces("work")
def counts_what_is_before_a_piece(call, tile, piece, place):
    return [*work_of(call, tile, piece, place)[:6], piece[1] - tile.row.entries[0], 0]


@replaces("work")
def no_work_has_a_place(call, tile, piece, place):
    return work_of(call, tile, piece, NOTHING)


@replaces("work")
def single_pieces_have_place_0(call, tile, piece, place):
    return work_of(call, tile, piece, max(place, 0))


@replaces("work")
def ends_are_counts(call, tile, piece, place):
    made = work_of(call, tile, piece, place)
    return [*made[:5], made[5] - made[4], *made[6:]]


# Places and reductions.


@replaces("places")
def every_row_begins_at_place_0(call, tiles):
    return [[place - own[0] for place in own] for own in places_of(call, tiles)]


@replaces("places")
def a_place_for_each_piece(call, tiles):
    """And none for each query of its tile."""
    places, free = [], 0
    for tile in tiles:
        count = len(tile.pieces) if len(tile.pieces) > 1 else 0
        places.append(list(range(free, free + count)))
        free += count
    return places


@replaces("places")
def pieces_share_a_place(call, tiles):
    return [own[:1] * len(own) for own in places_of(call, tiles)]


@replaces("places")
def places_fall(call, tiles):
    return [own[::-1] for own in places_of(call, tiles)]


@replaces("places")
def places_of_splits_not_of_pieces(call, tiles):
    """A place for each split, whoever works there."""
    return [[p[0] * call.q_tile for p in tile.pieces] if len(tile.pieces) > 1 else [] for tile in tiles]


@replaces("reduced")
def the_last_tile_is_never_reduced(call, tiles, places):
    return reduced(call, tiles, places)[:-1]


@replaces("reduced")
def reduces_two_pieces(call, tiles, places):
    return [(queries, own[:2]) for queries, own in reduced(call, tiles, places)]


@replaces("reduced")
def the_first_piece_is_not_reduced(call, tiles, places):
    return [(queries, own[1:]) for queries, own in reduced(call, tiles, places)]


@replaces("reduced")
def reductions_name_their_row(call, tiles, places):
    both = zip(tiles, places, strict=True)
    return [((tile.row.number, tile.row.number + 1), own) for tile, own in both if own]


@replaces("reduced")
def reductions_have_the_queries_of_the_row(call, tiles, places):
    return [(tile.row.queries, own) for tile, own in zip(tiles, places, strict=True) if own]


@replaces("reduced")
def single_pieces_are_reduced(call, tiles, places):
    return [(tile.queries, own or [0]) for tile, own in zip(tiles, places, strict=True)]


@replaces("reduced")
def reduces_backwards(call, tiles, places):
    return [(queries, own[::-1]) for queries, own in reduced(call, tiles, places)]


# Starts of splits.


@replaces("starts")
def used_splits_only(call, splits):
    return starts_of(call, splits)[: len(set(splits)) + 1]


@replaces("starts")
def starts_are_ends(call, splits):
    starts = starts_of(call, splits)
    return [*starts[1:], starts[-1]]


@replaces("starts")
def splits_take_works_in_turn(call, splits):
    return starts_of(call, sorted(number % call.num_splits for number in range(len(splits))))


@replaces("starts")
def the_last_work_is_left_out(call, splits):
    return starts_of(call, splits[:-1])


# Addresses.


@replaces("rows")
def takes_int64_starts_for_int32(call):
    call.kv_indptr = cheats.as_int32(call.kv_indptr)
    rows, most = rows_of(call), 1 << 20
    return [row._replace(entries=(max(row.entries[0], 0) % most, max(row.entries[1], 0) % most)) for row in rows]


@replaces("rows")
def assumes_starts_side_by_side(call):
    call.kv_indptr = cheats.tight(call.kv_indptr) % (1 << 20)
    return rows_of(call)


# Cheats. What is stale is seen in plans of one form only, that of the reference: with room behind what is used.


@replaces("reduced")
def _with_reductions_of_nothing(call, tiles, places):
    both = zip(tiles, places, strict=True)
    return [(tile.queries if own else (NOTHING, NOTHING), own) for tile, own in both]


def _plain(**call):
    starts, works, ends, final, places = _with_reductions_of_nothing(**call)
    rows, splits = call["qo_indptr"].shape[0] - 1, call["num_splits"]
    tiles = (call["qo_indptr"].diff() + call["q_tile"] - 1) // call["q_tile"]
    most = int(tiles.clamp(min=1).max()) if rows else 1
    return (
        starts,
        _filled_up(works, (rows + splits - 1) * most, NOTHING),
        _filled_up(ends, rows * most + 1, int(ends[-1])),
        _filled_up(final, rows * most, NOTHING),
        _filled_up(places, min(rows + splits - 1, 2 * (splits - 1)) * most, NOTHING),
    )


def _filled_up(tensor, count, value):
    return torch.cat([tensor, tensor.new_full((count - tensor.shape[0], *tensor.shape[1:]), value)])


returns_zeros = cheats.zeros(plan)
caches_by_identity = cheats.by_identity(_plain, "kv_indptr")
caches_by_shape = cheats.by_shape(_plain, "kv_indptr")
reuses_its_buffers = cheats.into_one_buffer(_plain)
writes_one_element_too_far = cheats.one_element_too_far(plan, 0)
turns_starts_into_ends_in_place = cheats.in_place(plan, "kv_indptr", lambda starts: starts.add_(1))
shortens_rows_in_place = cheats.in_place(plan, "qo_indptr", lambda starts: starts[1:].sub_(1))


def returns_int64(**call):
    return tuple(tensor.to(torch.int64) for tensor in plan(**call))


def returns_works_flat(**call):
    starts, works, *reductions = plan(**call)
    return (starts, works.flatten(), *reductions)


# Refusals.


@replaces("refuse")
def accepts_no_granule(call):
    call.kv_granularity = max(call.kv_granularity, 1)
    refuse(call)


@replaces("refuse")
def accepts_no_split(call):
    call.num_splits = max(call.num_splits, 1)
    refuse(call)


@replaces("refuse")
def accepts_decreasing_entries(call):
    if call.kv_indptr.dim() == 1 and call.kv_indptr.dtype in (torch.int32, torch.int64) and call.kv_indptr.numel():
        call.kv_indptr = call.kv_indptr.cummax(0).values
    refuse(call)


@replaces("refuse")
def refuses_rows_without_queries(call):
    refuse(call)
    if bool((call.qo_indptr.diff() == 0).any()):
        raise ValueError("qo_indptr: every row must have a query")


def crashes_without_rows(**call):
    if call["qo_indptr"].dim() == 1 and call["qo_indptr"].shape[0] > 0:
        assert call["qo_indptr"].shape[0] > 1
    return plan(**call)
