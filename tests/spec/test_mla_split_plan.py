"""The plain planner of ``mla_split_plan``: examples, refusals, and laws of its plans and of the checker."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.mla_split_plan
from reference.errors import ContractError, OnlyMemorySafety
from reference.mla_split_plan import check, mla_split_plan

PAD_WORK = [-1] * 8
NAMES = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


def batch(queries, entries, granularity=1, tile=1, splits=2, dtype="int64"):
    return {
        "qo_indptr": np.array([0, *itertools.accumulate(queries)], dtype=dtype),
        "kv_indptr": np.array([0, *itertools.accumulate(entries)], dtype=dtype),
        "kv_granularity": granularity,
        "q_tile": tile,
        "num_splits": splits,
    }


def planned(inputs):
    before = {name: np.copy(value) for name, value in inputs.items()}
    tensors = mla_split_plan(**inputs)
    assert all(np.array_equal(before[name], value) for name, value in inputs.items())
    assert all(tensor.dtype == np.int32 for tensor in tensors)
    plan = dict(zip(NAMES, tensors, strict=True))
    assert check(**inputs, **plan) is None
    return plan


def as_lists(plan):
    return [plan[name].tolist() for name in NAMES]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_row_that_one_split_can_do_is_not_cut(dtype) -> None:
    # 3 granules and 16 cost 19; of two splits each may cost 10 + 16.
    found = as_lists(planned(batch([1], [40], granularity=16, dtype=dtype)))
    assert found == [[0, 1, 1], [[0, -1, 0, 1, 0, 40, 0, 0], PAD_WORK], [0, 0], [[-1, -1]], [-1, -1]]


def test_a_row_that_is_too_long_goes_on_in_the_next_split() -> None:
    # 20 granules and 16 cost 36; of two splits each may cost 18 + 16.
    found = as_lists(planned(batch([1], [20])))
    works = [[0, 0, 0, 1, 0, 18, 2, 0], [0, 1, 0, 1, 18, 20, 0, 0]]
    assert found == [[0, 1, 2], works, [0, 2], [[0, 1]], [0, 1]]


def test_cuts_are_multiples_of_the_granularity_from_the_first_entry() -> None:
    # 1 and 20 granules: 53 of cost, of which a split may have 27 + 16. The first row leaves 26 of it, 10 granules.
    found = planned(batch([1, 1], [3, 79], granularity=4))
    assert found["work_info_set"][:3].tolist() == [
        [0, -1, 0, 1, 0, 3, 0, 0],
        [1, 0, 1, 2, 3, 43, 39, 0],
        [1, 1, 1, 2, 43, 82, 0, 0],
    ]
    assert found["reduce_indptr"].tolist() == [0, 0, 2]
    assert found["reduce_final_map"].tolist() == [[-1, -1], [1, 2]]


def test_what_is_left_of_a_split_is_skipped_where_a_cut_would_cost_more() -> None:
    found = planned(batch([1, 1], [20, 4]))
    assert found["work_indptr"].tolist() == [0, 1, 2]
    assert found["work_info_set"].tolist() == [[0, -1, 0, 1, 0, 20, 0, 0], [1, -1, 1, 2, 20, 24, 0, 0], PAD_WORK]


def test_a_row_of_several_tiles() -> None:
    # Two tiles of cost 56, and 38 + 16 a split.
    found = as_lists(planned(batch([3], [40], tile=2, splits=3)))
    works = [[0, 0, 0, 2, 0, 38, 2, 0], [0, 2, 0, 2, 38, 40, 0, 0], [0, 4, 2, 3, 0, 20, 20, 0]]
    works += [[0, 6, 2, 3, 20, 40, 0, 0], PAD_WORK, PAD_WORK]
    assert found == [[0, 1, 3, 4], works, [0, 2, 4], [[0, 2], [2, 3]], [0, 2, 4, 6, -1, -1]]


def test_rows_without_entries_and_rows_without_queries_have_work() -> None:
    found = as_lists(planned(batch([1, 0, 0, 2], [0, 7, 0, 3], tile=9, splits=1)))
    works = [[0, -1, 0, 1, 0, 0, 0, 0], [1, -1, 1, 1, 0, 7, 0, 0]]
    works += [[2, -1, 1, 1, 7, 7, 0, 0], [3, -1, 1, 3, 7, 10, 0, 0]]
    assert found == [[0, 4], works, [0] * 5, [[-1, -1]] * 4, []]


def test_a_row_without_queries_can_be_cut_too() -> None:
    found = planned(batch([0], [20], tile=3))
    assert found["work_info_set"][:, 1].tolist() == [0, 1]


def test_no_row() -> None:
    found = as_lists(planned(batch([], [], splits=3)))
    assert found == [[0, 0, 0, 0], [PAD_WORK] * 2, [0], [], [-1, -1]]


GOOD = batch([1, 2], [40, 17])
PLAN = planned(GOOD)
REFUSED = [
    ("qo_indptr", np.array([[0, 1, 3]]), "(1, 3)", "the shape must have one dimension"),
    ("qo_indptr", np.array([0, 1, 3], "int16"), "'int16'", "the dtype must be int32 or int64"),
    ("kv_indptr", np.int64(0), "()", "the shape must have one dimension"),
    ("kv_indptr", np.array([0.0, 40.0, 57.0]), "'float64'", "the dtype must be int32 or int64"),
    ("kv_granularity", 0, "0", "it must be an int of at least 1"),
    ("q_tile", True, "True", "it must be an int of at least 1"),
    ("num_splits", 0, "0", "it must be an int of at least 1"),
    ("qo_indptr", np.array([], "int32"), "(0,)", "there must be at least one element"),
    ("kv_indptr", np.array([0, 40]), "2", "the size must be that of qo_indptr, 3"),
]


def test_refusals_and_their_order() -> None:
    for function in (mla_split_plan, lambda **inputs: check(**inputs, **PLAN)):
        for name, value, shown, rule in REFUSED:
            with pytest.raises(ContractError) as caught:
                function(**GOOD | {name: value})
            assert str(caught.value) == f"{name}: {shown} breaks the rule: {rule}"
        for first, second in itertools.combinations(REFUSED, 2):
            if first[0] != second[0]:
                with pytest.raises(ContractError) as caught:
                    function(**GOOD | {second[0]: second[1], first[0]: first[1]})
                assert (caught.value.argument, caught.value.rule) == (first[0], first[3])


@pytest.mark.parametrize(
    ("name", "starts"), [("qo_indptr", [1, 2, 3]), ("kv_indptr", [0, 2, 1]), ("kv_indptr", [0, 2, 2**31])]
)
def test_starts_that_mean_nothing_are_refused(name, starts) -> None:
    for function in (mla_split_plan, lambda **inputs: check(**inputs, **PLAN)):
        with pytest.raises(ContractError, match=f"{name}: .* must begin with 0, not decrease, and fit int32"):
            function(**GOOD | {name: np.array(starts)})


def test_no_plan_is_promised_for_more_tiles_than_any_batch_has() -> None:
    for function in (mla_split_plan, lambda **inputs: check(**inputs, **PLAN)):
        with pytest.raises(OnlyMemorySafety, match=f"the rows have {2**16 + 1} tiles, more than any batch"):
            function(**GOOD | {"qo_indptr": np.array([0, 1, 2**16 + 1])})


def test_places_that_int32_cannot_hold_are_not_promised() -> None:
    with pytest.raises(OnlyMemorySafety, match=f"a partial result has place {2**31}, which int32 cannot hold"):
        mla_split_plan(**batch([2**30], [90], tile=2**30, splits=3))


ROWS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2, 17, 40, 90])), max_size=4)
SETTINGS = {"granularity": st.sampled_from([1, 3, 16]), "tile": st.integers(1, 3), "splits": st.integers(1, 5)}


@given(rows=ROWS, **SETTINGS)
def test_each_query_meets_each_entry_of_its_row_once(rows, granularity, tile, splits) -> None:
    plan = planned(batch([q for q, _ in rows], [kv for _, kv in rows], granularity, tile, splits))
    met = []
    for row, _, first_query, last_query, first, last, *_ in plan["work_info_set"][: plan["work_indptr"][-1]].tolist():
        met += [(row, query, entry) for query in range(first_query, last_query) for entry in range(first, last)]
    wanted, query, entry = [], 0, 0
    for row, (queries, entries) in enumerate(rows):
        wanted += [(row, query + q, entry + kv) for q in range(queries) for kv in range(entries)]
        query, entry = query + queries, entry + entries
    assert sorted(met) == wanted


@given(rows=ROWS.filter(bool), off=st.sampled_from([-1, 1]), pick=st.integers(0, 10**6), **SETTINGS)
def test_no_number_of_a_work_may_be_off_by_one(rows, off, pick, granularity, tile, splits) -> None:
    inputs = batch([q for q, _ in rows], [kv for _, kv in rows], granularity, tile, splits)
    plan = planned(inputs)
    work, column = divmod(pick % (7 * int(plan["work_indptr"][-1])), 7)
    plan["work_info_set"][work, column] += off
    assert check(**inputs, **plan) is not None


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.mla_split_plan) == doctest.TestResults(failed=0, attempted=1)
