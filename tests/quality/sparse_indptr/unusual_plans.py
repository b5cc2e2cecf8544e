"""Correct split plans of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_plans import COST, Tile, filled, int32, plan, reduced, replaces, rows_of, tiles_of


def returns_a_mapping(**call):
    names = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
    return {"num_splits": call["num_splits"]} | dict(zip(names, plan(**call), strict=True))


def leaves_room_behind(**call):
    """What is past the last work and the last place is what was there."""
    starts, works, ends, final, places = plan(**call)
    rest = torch.full((3, 8), 77, dtype=torch.int32)
    more = torch.cat([ends, ends[-1:]])
    return starts, torch.cat([works, rest]), more, torch.cat([final, rest[:1, :2]]), torch.cat([places, rest[0]])


@replaces("entries")
def plans_for_causal_attention(call, row, queries):
    """Earlier tiles read fewer entries, one for each tile behind them."""
    begin, end = row.entries
    behind = -(-(row.queries[1] - queries[1]) // call.q_tile)
    return begin, max(end - behind, begin)


@replaces("reduced")
def reduces_the_last_tile_first(call, tiles, places):
    return reduced(call, tiles, places)[::-1]


@replaces("places")
def places_are_whole_tiles_apart(call, tiles):
    """Each partial result has room for ``q_tile`` queries."""
    number, places = 0, []
    for tile in tiles:
        count = len(tile.pieces) if len(tile.pieces) > 1 else 0
        places.append([(number + n) * call.q_tile for n in range(count)])
        number += count
    return places


def splits_in_falling_order(**call):
    """The first rows are the last split's."""
    starts, works, *reductions = plan(**call)
    counts = starts.diff().tolist()
    parts = works.split(counts)
    order = int32([0, *torch.tensor(counts[::-1]).cumsum(0).tolist()])
    return (order, torch.cat(parts[::-1]), *reductions)


@replaces("filled")
def keeps_rows_whole_where_it_can(steps, call):
    """Whole tiles to splits that have room; the plain plan where one of them has to be cut."""
    tiles = [(row, queries) for row in rows_of(call) for queries in tiles_of(call, row)]
    costs = [-(-(row.entries[1] - row.entries[0]) // call.kv_granularity) + COST for row, _ in tiles]
    share, loads, made = -(-sum(costs) // call.num_splits), [0] * call.num_splits, {}
    for number in sorted(range(len(tiles)), key=lambda n: -costs[n]):
        split = loads.index(min(loads))
        loads[split] += costs[number]
        made[number] = Tile(*tiles[number], [(split, *tiles[number][0].entries)])
    if max(loads) > share + COST:
        return filled(steps, call)
    return [made[number] for number in range(len(tiles))]


def works_of_a_split_in_falling_order(**call):
    starts, works, *reductions = plan(**call)
    return (starts, torch.cat([part.flip(0) for part in works.split(starts.diff().tolist())]), *reductions)
