"""The checker of ``mla_split_plan``'s plans: what is right although it differs, and every fault by its invariant."""

import itertools

import numpy as np
import pytest

from reference.mla_split_plan import check, mla_split_plan

STALE = -77
NAMES = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
SHAPES = ((-1,), (-1, 8), (-1,), (-1, 2), (-1,))


def batch(queries, entries, granularity=1, tile=1, splits=2):
    return {
        "qo_indptr": np.array([0, *itertools.accumulate(queries)]),
        "kv_indptr": np.array([0, *itertools.accumulate(entries)]),
        "kv_granularity": granularity,
        "q_tile": tile,
        "num_splits": splits,
    }


def plan_of(*tensors):
    named = zip(NAMES, tensors, SHAPES, strict=True)
    return {name: np.array(values, dtype=np.int32).reshape(shape) for name, values, shape in named}


ROW = batch([3], [40], tile=2, splits=3)
PLAN = plan_of(
    [0, 1, 3, 4],
    [
        [0, 0, 0, 2, 0, 38, 2, 0],
        [0, 2, 0, 2, 38, 40, 0, 0],
        [0, 4, 2, 3, 0, 20, 20, 0],
        [0, 6, 2, 3, 20, 40, 0, 0],
        [STALE] * 8,
    ],
    [0, 2, 4],
    [[0, 2], [2, 3]],
    [0, 2, 4, 6],
)


def changed(plan, *changes):
    plan = {name: tensor.copy() for name, tensor in plan.items()}
    for name, place, value in changes:
        plan[name][place] = value
    return plan


def test_many_plans_are_right() -> None:
    assert check(**ROW, **PLAN) is None
    # Nobody reads a work's last column, nor what is past the works.
    assert check(**ROW, **changed(PLAN, ("work_info_set", (slice(None), 7), 9))) is None
    # Works in any order, and in any split.
    assert check(**ROW, **PLAN | {"work_info_set": PLAN["work_info_set"][[0, 3, 1, 2]]}) is None
    # Reductions in any order, and with reductions of nothing between them.
    turned = {
        "reduce_indptr": np.array([0, 0, 2, 2, 4, 4], np.int32),
        "reduce_final_map": np.array([[STALE] * 2, [2, 3], [STALE] * 2, [0, 2], [9, 9]], np.int32),
        "reduce_partial_map": np.array([4, 6, 0, 2], np.int32),
    }
    assert check(**ROW, **PLAN | turned) is None
    # Tiles of other queries, cuts elsewhere, and places that another tile leaves free.
    others = plan_of(
        [0, 1, 3, 4],
        [
            [0, 0, 0, 1, 0, 36, 4, 0],
            [0, 1, 0, 1, 36, 40, 0, 0],
            [0, 5, 1, 3, 0, 18, 22, 0],
            [0, 7, 1, 3, 18, 40, 0, 0],
        ],
        [0, 2, 4],
        [[0, 1], [1, 3]],
        [0, 1, 5, 7, STALE],
    )
    assert check(**ROW, **others) is None


def test_a_causal_plan_leaves_out_what_no_query_of_a_tile_sees() -> None:
    rows = batch([3, 2], [5, 1], splits=1)
    # The first tile of the second row ends where the row begins: its query would see entry -1.
    works = [[0, -1, 0, 1, 0, 3, 2, 0], [0, -1, 1, 2, 0, 4, 1, 0], [0, -1, 2, 3, 0, 5, 0, 0]]
    works += [[1, -1, 3, 4, 5, 5, 1, 0], [1, -1, 4, 5, 5, 6, 0, 0]]
    causal = plan_of([0, 5], works, [0] * 6, [[STALE] * 2] * 5, [])
    assert check(**rows, **causal) is None
    mixed = changed(causal, ("work_info_set", (1, slice(5, 7)), [5, 0]))
    assert check(**rows, **mixed) == "I2: the pieces of row 0, tile 1 end at KV entry 5, and not at 4"
    mixed = changed(causal, ("work_info_set", (0, slice(5, 7)), [5, 0]))
    assert check(**rows, **mixed) == "I2: the pieces of row 0, tile 1 end at KV entry 4, and not at 5"


def test_an_empty_piece_is_none() -> None:
    rows = batch([1], [0], splits=4)
    works = [[0, 0, 0, 1, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0]]
    twice = plan_of([0, 1, 2, 2, 2], works, [0, 2], [[0, 1]], [0, 1])
    assert check(**rows, **twice) == "I2: row 0, tile 0 has an empty piece of KV entries (0, 0)"


FAULTS = [
    pytest.param([("work_indptr", 0, 1)], "I1: work_indptr does not begin with 0", id="I1, first"),
    pytest.param(
        [("work_indptr", 2, 0)], "I1: work_indptr does not begin with 0, or it decreases", id="I1, decreasing"
    ),
    pytest.param([("work_indptr", 3, 6)], "I1: 6 works, and 5 rows in work_info_set", id="I1, too many"),
    pytest.param(
        [("work_indptr", 3, 3)], "I2: the pieces of row 0, tile 1 end at KV entry 20, and not at 40", id="I1, few"
    ),
    pytest.param([("work_indptr", 3, 5)], "I2: work 4 is of row -77, and there are 1 rows", id="I2, garbage"),
    pytest.param([("work_info_set", (0, 0), 1)], "I2: work 0 is of row 1, and there are 1 rows", id="I2, no such row"),
    pytest.param([("work_info_set", (0, 3), 1)], "I2: row 0 has 3 tiles, and not 2", id="I2, tiles"),
    pytest.param(
        [("work_info_set", (slice(0, 2), 3), 1)],
        "I2: row 0, tile 1 has queries (2, 3); 1 to 2 from 1 on are allowed",
        id="I2, a query left out",
    ),
    pytest.param(
        [("work_info_set", (slice(0, 2), 3), 3), ("work_info_set", (slice(2, 4), 2), 3)],
        "I2: row 0, tile 0 has queries (0, 3); 1 to 2 from 0 on are allowed",
        id="I2, a tile too large",
    ),
    pytest.param(
        [("work_info_set", (slice(2, 4), 3), 2)],
        "I2: row 0, tile 1 has queries (2, 2); 1 to 2 from 2 on are allowed",
        id="I2, a tile without queries",
    ),
    pytest.param(
        [("work_info_set", (slice(0, 2), 3), 1), ("work_info_set", (slice(2, 4), slice(2, 4)), [1, 2])],
        "I2: row 0, tile 1 ends at query 2, and the row at 3",
        id="I2, the last query left out",
    ),
    pytest.param(
        [("work_info_set", (1, 4), 37)],
        "I2: row 0, tile 0 has a piece of KV entries (37, 40), and 38 comes next",
        id="I2, twice",
    ),
    pytest.param(
        [("work_info_set", (1, 4), 39)],
        "I2: row 0, tile 0 has a piece of KV entries (39, 40), and 38 comes next",
        id="I2, left out",
    ),
    pytest.param(
        [("work_info_set", (0, slice(5, 7)), [0, 40]), ("work_info_set", (1, 4), 0)],
        "I2: row 0, tile 0 has an empty piece of KV entries (0, 0)",
        id="I2, empty",
    ),
    pytest.param(
        [("work_info_set", (0, 6), 3)],
        "I2: row 0, tile 0 says 3 behind KV entry 38, where 2 are",
        id="I2, behind",
    ),
    pytest.param(
        [("work_info_set", (1, slice(5, 7)), [41, -1])],
        "I2: the pieces of row 0, tile 0 end at KV entry 41, and not at 40",
        id="I2, past the row",
    ),
    pytest.param(
        [("work_info_set", (1, 1), 0)],
        "I3: row 0, tile 0 has places (0, 0); they must rise by a fixed number of 2 to 2",
        id="I3, one place twice",
    ),
    pytest.param(
        [("work_info_set", (3, 1), 7)],
        "I3: row 0, tile 1 has places (4, 7); they must rise by a fixed number of 1 to 2",
        id="I3, too far",
    ),
    pytest.param(
        [("work_info_set", (2, 1), 3), ("work_info_set", (3, 1), 5), ("reduce_partial_map", slice(2, 4), [3, 5])],
        "I3: row 0, tile 1 has place 3; it must lie from 4 on, and end by 8",
        id="I3, overlap",
    ),
    pytest.param(
        [("work_info_set", (0, 1), -2), ("work_info_set", (1, 1), 0)],
        "I3: row 0, tile 0 has place -2; it must lie from 0 on, and end by 8",
        id="I3, negative",
    ),
    pytest.param(
        [("work_info_set", (2, 1), 6), ("work_info_set", (3, 1), 8)],
        "I3: row 0, tile 1 has place 8; it must lie from 7 on, and end by 8",
        id="I3, past the buffer",
    ),
    pytest.param([("reduce_indptr", 0, 1)], "I4: reduce_indptr does not begin with 0", id="I4, first"),
    pytest.param(
        [("reduce_indptr", 1, 5)], "I4: reduce_indptr does not begin with 0, or it decreases", id="I4, decreasing"
    ),
    pytest.param([("reduce_indptr", 2, 3)], "I4: reduce_indptr ends with 3 of 4 for 4 partial results", id="I4, last"),
    pytest.param(
        [("reduce_indptr", 1, 1)],
        "I4: reduction 0 has places [0], and row 0, tile 0 has not just these",
        id="I4, one partial result",
    ),
    pytest.param(
        [("reduce_partial_map", slice(2, 4), [0, 2])],
        "I4: reduction 1 has places [0, 2], and no tile left has not just these",
        id="I4, twice",
    ),
    pytest.param(
        [("reduce_partial_map", slice(0, 2), [2, 0])],
        "I4: reduction 0 has places [2, 0], and no tile left has not just these",
        id="I4, order",
    ),
    pytest.param(
        [("reduce_final_map", 0, [0, 3])],
        "I4: reduction 0 has queries [0, 3], and row 0, tile 0 (0, 2)",
        id="I4, queries",
    ),
]


@pytest.mark.parametrize(("changes", "complaint"), FAULTS)
def test_fault(changes, complaint) -> None:
    found = check(**ROW, **changed(PLAN, *changes))
    assert found is not None
    assert found.startswith(complaint)


def test_I3_a_tile_of_one_piece_has_no_place() -> None:
    rows = batch([1], [5])
    plan = plan_of([0, 1, 1], [[0, 0, 0, 1, 0, 5, 0, 0]], [0, 0], [[0, 1]], [0])
    assert check(**rows, **plan) == "I3: row 0, tile 0 is one piece and has place 0"


def test_I5_no_more_works_than_one_cut_between_splits_makes() -> None:
    works = [[0, 0, 0, 1, 0, 2, 2, 0], [0, 1, 0, 1, 2, 4, 0, 0]]
    plan = plan_of([0, 2], works, [0, 2], [[0, 1]], [0, 1])
    assert check(**batch([1], [4], splits=1), **plan) == "I5: 2 works, and at most 1 are allowed"
    works = [[0, 0, 0, 2, 0, 1, 2, 0], [0, 2, 0, 2, 1, 2, 1, 0], [0, 4, 0, 2, 2, 3, 0, 0]]
    plan = plan_of([0, 2, 3], works, [0, 3], [[0, 2]], [0, 2, 4])
    assert check(**batch([2], [3], tile=2), **plan) == "I5: 3 works, and at most 2 are allowed"


def test_I7_pieces_end_at_granules() -> None:
    rows = batch([1, 1], [3, 20], granularity=4)
    works = [[0, -1, 0, 1, 0, 3, 0, 0], [1, 0, 1, 2, 3, 11, 12, 0], [1, 1, 1, 2, 11, 23, 0, 0]]
    plan = plan_of([0, 2, 3], works, [0, 2], [[1, 2]], [0, 1])
    assert check(**rows, **plan) is None
    elsewhere = changed(plan, ("work_info_set", (1, slice(5, 7)), [12, 11]), ("work_info_set", (2, 4), 12))
    assert check(**rows, **elsewhere) == "I7: row 1, tile 0 is cut 9 KV entries from the row's first"


def test_I8_no_split_costs_more_than_its_share_a_cut_and_a_granule() -> None:
    # 40 granules and 16 cost 56: of two splits, each may cost 28 + 16 + 1.
    rows = batch([1], [40])
    works = [[0, 0, 0, 1, 0, 29, 11, 0], [0, 1, 0, 1, 29, 40, 0, 0]]
    plan = plan_of([0, 1, 2], works, [0, 2], [[0, 1]], [0, 1])
    assert check(**rows, **plan) is None
    later = changed(plan, ("work_info_set", (0, slice(5, 7)), [30, 10]), ("work_info_set", (1, 4), 30))
    assert check(**rows, **later) == "I8: split 0 costs more than 45, with row 0, tile 0"


@pytest.mark.parametrize("entries", [[40, 0], [0, 40]])
def test_I9_a_row_without_entries_must_not_be_left_out(entries) -> None:
    rows, empty = batch([1, 1], entries), entries.index(0)
    plan = dict(zip(NAMES, mla_split_plan(**rows), strict=True))
    kept = plan["work_info_set"][plan["work_info_set"][:, 0] == 1 - empty]
    without = plan | {"work_info_set": kept, "work_indptr": np.array([0, 1, len(kept)], np.int32)}
    assert check(**rows, **without) == f"I9: row {empty} has no work"


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("work_indptr", np.zeros(4, "int64"), "work_indptr: int64 (4,) is not int32 of 1 dimensions"),
        ("work_indptr", np.zeros(3, "int32"), "work_indptr has 3 elements for 3 splits"),
        ("work_info_set", np.zeros(8, "int32"), "work_info_set: int32 (8,) is not int32 of 2 dimensions"),
        ("work_info_set", np.zeros((5, 7), "int32"), "work_info_set has 7 columns, and not 8"),
        ("reduce_indptr", np.zeros(0, "int32"), "reduce_final_map is (2, 2) beside 0 elements of reduce_indptr"),
        (
            "reduce_final_map",
            np.zeros((1, 2), "int32"),
            "reduce_final_map is (1, 2) beside 3 elements of reduce_indptr",
        ),
        ("reduce_partial_map", np.zeros(3, "float32"), "reduce_partial_map: float32 (3,) is not int32 of 1 dimensions"),
    ],
)
def test_tensors_of_another_form(name, tensor, complaint) -> None:
    assert check(**ROW, **PLAN | {name: tensor}) == complaint


def test_places_that_do_not_fit_their_list() -> None:
    rows = batch([1], [20], tile=2)
    plan = plan_of([0, 1, 2], [[0, 0, 0, 1, 0, 18, 2, 0], [0, 1, 0, 1, 18, 20, 0, 0]], [0, 2], [[0, 1]], [0, 1])
    assert check(**rows, **plan) is None
    short = plan | {"reduce_partial_map": plan["reduce_partial_map"][:1]}
    assert check(**rows, **short) == "I4: reduce_indptr ends with 2 of 1 for 2 partial results"
