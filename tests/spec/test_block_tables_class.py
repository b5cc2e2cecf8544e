"""``BlockTables`` by hand-written sequences of operations, public bugs, refusals and laws."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.block_table
from reference.block_table import BlockTables, gather_block_tables
from reference.errors import ContractError


class OneGroup(BlockTables):
    """Request ``r`` of one group has the ``r``-th list of blocks, applied."""

    def __init__(self, *requests, capacity=4):
        super().__init__([16], len(requests), [capacity])
        self.num_reqs = len(requests)
        for request, ids in enumerate(requests):
            self.append(request, [ids], False)
        self.apply()

    def rows(self):
        (found,) = self.gather(np.arange(self.num_reqs), self.num_reqs)
        return found.tolist()

    def applied(self):
        self.apply()
        return self.rows()


def test_gather_shows_what_was_applied_last() -> None:
    made = BlockTables([16, 32], 3, [3, 2])
    made.append(2, [[7, 8], [5]], overwrite=False)
    assert [table.tolist() for table in made.gather(np.array([2]), 1)] == [[[0, 0, 0]], [[0, 0]]]
    made.apply()
    wanted = [[[7, 8, 0], [0, 0, 0]], [[5, 0], [0, 0]]]
    assert [table.tolist() for table in made.gather(np.array([2]), 2)] == wanted
    made.append(2, [[9], []], overwrite=False)
    made.swap(0, 2)
    made.clear(0)
    assert [table.tolist() for table in made.gather(np.array([2]), 2)] == wanted
    made.apply()
    made.apply()
    assert [table.tolist() for table in made.gather(np.array([2, 0]), 2)] == [[[0] * 3] * 2, [[0] * 2] * 2]


def test_operations_take_effect_in_order() -> None:
    made = OneGroup([], [], [])
    made.append(0, [[1]], False)
    made.append(0, [[2, 3]], False)
    made.append(1, [[4]], False)
    assert made.applied() == [[1, 2, 3, 0], [4, 0, 0, 0], [0] * 4]
    made.move(0, 2)
    made.append(0, [[5]], False)
    made.append(2, [[6]], False)
    made.swap(1, 2)
    made.append(2, [[7]], True)
    made.append(2, [[8]], False)
    assert made.applied() == [[5, 0, 0, 0], [1, 2, 3, 6], [7, 8, 0, 0]]
    made.clear(1)
    made.append(1, [[9]], False)
    made.append(0, [[]], False)
    made.append(2, [[]], True)
    assert made.applied() == [[5, 0, 0, 0], [9, 0, 0, 0], [0] * 4]


def test_a_moved_row_replaces_all_of_the_target_and_leaves_nothing() -> None:
    made = BlockTables([16, 16], 2, [3, 3])
    made.append(0, [[1], []], False)
    made.append(1, [[2, 3], [4]], False)
    made.move(0, 1)
    made.apply()
    assert [table.tolist() for table in made.gather(np.array([0, 1]), 2)] == [
        [[0, 0, 0], [1, 0, 0]],
        [[0, 0, 0], [0, 0, 0]],
    ]


def test_moved_and_swapped_rows_are_apart_afterwards() -> None:
    made = OneGroup([1], [2], [])
    made.move(0, 2)
    made.swap(1, 2)
    made.append(0, [[3]], False)
    made.append(1, [[4]], False)
    made.append(2, [[5]], False)
    assert made.applied() == [[3, 0, 0, 0], [1, 4, 0, 0], [2, 5, 0, 0]]


def test_rows_outside_and_padding_rows_are_null() -> None:
    made = OneGroup([7, 8], [3], [4], [5])
    for dtype in (np.int32, np.int64):
        (found,) = made.gather(np.array([1, -1, 4], dtype=dtype), 4)
        assert found.tolist() == [[3, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4]
        assert (found.dtype, found.shape) == (np.int32, (4, 4))
    (found,) = made.gather(np.array([2**40, -(2**63), 0, 0]), 4)
    assert found.tolist() == [[0] * 4, [0] * 4, [7, 8, 0, 0], [7, 8, 0, 0]]
    assert made.gather(np.array([], dtype=np.int64), 0)[0].shape == (0, 4)


def test_what_a_caller_does_with_lists_and_results_changes_nothing() -> None:
    ids, requests = [7, 8], np.array([0])
    made = OneGroup(ids)
    ids[:] = [1, 2]
    (found,) = made.gather(requests, 1)
    found[:] = 9
    assert made.rows() == [[7, 8, 0, 0]]
    assert requests.tolist() == [0]


def test_no_groups_and_no_columns() -> None:
    made = BlockTables([], 2, [])
    made.append(0, [], False)
    made.move(0, 1)
    made.apply()
    assert made.gather(np.array([0]), 2) == ()
    made = BlockTables((16,), 2, (0,), device="cpu")
    made.append(0, ((),), False)
    made.apply()
    assert made.gather(np.array([0]), 2)[0].shape == (2, 0)
    with pytest.raises(ContractError, match="at most 0 blocks of group 0"):
        made.append(0, [[0]], False)


def test_the_largest_and_the_smallest_block() -> None:
    assert OneGroup([2**31 - 1, 0], capacity=2).rows() == [[2**31 - 1, 0]]


def test_an_append_that_does_not_fit_changes_no_group() -> None:
    made = BlockTables([16, 16, 16], 2, [4, 2, 4])
    made.append(0, [[1], [2], [3]], False)
    with pytest.raises(ContractError) as caught:
        made.append(0, [[4], [5, 6], [7]], False)
    assert str(caught.value) == "ids_per_group: 3 breaks the rule: request 0 must own at most 2 blocks of group 1"
    with pytest.raises(ContractError, match="ids_per_group: 5 breaks the rule: request 0 must own at most 4 blocks"):
        made.append(0, [[4], [5, 6], [7] * 5], True)
    made.append(0, [[8], [9], []], False)
    made.apply()
    found = made.gather(np.array([0]), 1)
    assert [table.tolist() for table in found] == [[[1, 8, 0, 0]], [[2, 9]], [[3, 0, 0, 0]]]


def test_whether_it_fits_is_decided_on_what_is_staged() -> None:
    made = OneGroup([1, 2], [], capacity=2)
    made.append(1, [[3]], False)
    with pytest.raises(ContractError, match="request 1 must own at most 2"):
        made.append(1, [[4, 5]], False)
    made.clear(0)
    made.append(0, [[4, 5]], False)
    made.move(0, 1)
    made.append(0, [[6]], False)
    made.append(1, [[7, 8]], True)
    assert made.applied() == [[6, 0], [7, 8]]


def test_public_bug_D03_a_row_moved_onto_a_longer_one_leaves_no_tail() -> None:
    made = OneGroup([7, 8, 9, 10], [3, 4])
    made.move(1, 0)
    assert made.applied() == [[3, 4, 0, 0], [0, 0, 0, 0]]


def test_public_bug_D12_a_row_moved_onto_itself_stays() -> None:
    made = OneGroup([7, 8], [3])
    made.move(0, 0)
    made.swap(1, 1)
    assert made.applied() == [[7, 8, 0, 0], [3, 0, 0, 0]]


def test_public_bug_D12_a_shorter_row_leaves_no_tail_then_or_when_it_is_cleared() -> None:
    made = OneGroup([7, 8, 9], capacity=3)
    made.append(0, [[5]], overwrite=True)
    assert made.applied() == [[5, 0, 0]]
    made.clear(0)
    assert made.applied() == [[0, 0, 0]]
    made.append(0, [[6]], overwrite=False)
    assert made.applied() == [[6, 0, 0]]


def test_public_bug_D12_swapped_rows_of_two_lengths() -> None:
    made = OneGroup([7, 8], [3], capacity=2)
    made.swap(0, 1)
    assert made.applied() == [[3, 0], [7, 8]]
    made.append(0, [[4]], False)
    assert made.applied() == [[3, 4], [7, 8]]


def no_request(name, value):
    return f"{name}: {value!r} breaks the rule: it must be an int in 0..1"


NO_BLOCK = "breaks the rule: a block id must be an int in 0..2**31 - 1"
REFUSED = [
    *[("clear", (value,), no_request("req", value)) for value in (-1, 2, True, 0.0, None)],
    *[("append", (value, [[], []], False), no_request("req", value)) for value in (-1, 2, False, "0")],
    ("move", (2, 0), no_request("src", 2)),
    ("move", (0, -1), no_request("dst", -1)),
    ("move", (True, True), no_request("src", True)),
    ("swap", (-1, 0), no_request("a", -1)),
    ("swap", (0, 2), no_request("b", 2)),
    ("swap", (5, 5), no_request("a", 5)),
    ("append", (0, None, False), "ids_per_group: 'NoneType' breaks the rule: it must be a list or a tuple"),
    ("append", (0, [[1]], False), "ids_per_group: 1 breaks the rule: the length must be the number of groups, 2"),
    ("append", (0, [[]] * 3, False), "ids_per_group: 3 breaks the rule: the length must be the number of groups, 2"),
    ("append", (0, [[1], 2], False), "ids_per_group: 'int' breaks the rule: it must be a list or a tuple"),
    ("append", (0, [[1], [-1]], False), f"ids_per_group: -1 {NO_BLOCK}"),
    ("append", (0, [[1], [2**31]], False), f"ids_per_group: {2**31} {NO_BLOCK}"),
    ("append", (0, [[True], [1]], True), f"ids_per_group: True {NO_BLOCK}"),
    ("append", (0, [[1.0], [1]], True), f"ids_per_group: 1.0 {NO_BLOCK}"),
    ("append", (0, [[1], [1]], 1), "overwrite: 1 breaks the rule: it must be a bool"),
    (
        "append",
        (0, [[1], [1] * 4], True),
        "ids_per_group: 4 breaks the rule: request 0 must own at most 3 blocks of group 1",
    ),
    ("gather", (np.array([[0]]), 1), "idx_mapping: (1, 1) breaks the rule: the shape must have one dimension"),
    ("gather", (np.array([0.0]), 1), "idx_mapping: 'float64' breaks the rule: the dtype must be int32 or int64"),
    ("gather", (np.array([0]), True), "num_reqs_padded: True breaks the rule: it must be an int of at least 0"),
    ("gather", (np.array([], int), -1), "num_reqs_padded: -1 breaks the rule: it must be an int of at least 0"),
    (
        "gather",
        (np.array([0]), 0),
        "num_reqs_padded: 0 breaks the rule: it must be at least the size of idx_mapping, 1",
    ),
    ("gather", (np.array([0]), 3), "num_reqs_padded: 3 breaks the rule: it must be at most 2"),
    ("gather", (np.array([0, 0, 1]), 3), "num_reqs_padded: 3 breaks the rule: it must be at most 2"),
    (
        "gather",
        (np.zeros(3, int), 2),
        "num_reqs_padded: 2 breaks the rule: it must be at least the size of idx_mapping, 3",
    ),
]


@pytest.mark.parametrize(("operation", "arguments", "message"), REFUSED)
def test_a_refused_operation_changes_nothing(operation, arguments, message) -> None:
    made = BlockTables([16, 16], 2, [3, 3])
    made.append(0, [[1, 2], [3]], False)
    made.append(1, [[4], []], False)
    with pytest.raises(ContractError) as caught:
        getattr(made, operation)(*arguments)
    assert str(caught.value) == message
    assert [table.tolist() for table in made.gather(np.array([0, 1]), 2)] == [[[0] * 3] * 2] * 2
    made.apply()
    found = [table.tolist() for table in made.gather(np.array([0, 1]), 2)]
    assert found == [[[1, 2, 0], [4, 0, 0]], [[3, 0, 0], [0, 0, 0]]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16, 2, [3]), "block_sizes: 'int' breaks the rule: it must be a list or a tuple"),
        (([16, 0], 2, [3, 3]), "block_sizes: 0 breaks the rule: each must be an int of at least 1"),
        (([True], 2, [3]), "block_sizes: True breaks the rule: each must be an int of at least 1"),
        (([16], 0, [3]), "max_num_reqs: 0 breaks the rule: it must be an int of at least 1"),
        (([16], True, [3]), "max_num_reqs: True breaks the rule: it must be an int of at least 1"),
        (([16], 2.0, [3]), "max_num_reqs: 2.0 breaks the rule: it must be an int of at least 1"),
        (([16], 2, None), "max_num_blocks_per_group: 'NoneType' breaks the rule: it must be a list or a tuple"),
        (([16], 2, [-1]), "max_num_blocks_per_group: -1 breaks the rule: each must be an int of at least 0"),
        (([16], 2, [3, 3]), "max_num_blocks_per_group: 2 breaks the rule: the length must be that of block_sizes, 1"),
        (([], 2, [3]), "max_num_blocks_per_group: 1 breaks the rule: the length must be that of block_sizes, 0"),
    ],
)
def test_construction_refusal(arguments, message) -> None:
    with pytest.raises(ContractError) as caught:
        BlockTables(*arguments)
    assert str(caught.value) == message


IDS = st.lists(st.integers(1, 2**31 - 1), max_size=6)


@given(ids=IDS, cuts=st.lists(st.integers(0, 6), max_size=3), often=st.booleans())
def test_pieces_append_like_the_whole(ids, cuts, often) -> None:
    made = OneGroup([], capacity=6)
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    for begin, end in itertools.pairwise(bounds):
        made.append(0, [ids[begin:end]], False)
        if often:
            made.apply()
    assert made.applied() == [ids + [0] * (6 - len(ids))]


@given(rows_before=st.lists(IDS, min_size=3, max_size=3), a=st.integers(0, 2), b=st.integers(0, 2))
def test_swapping_twice_and_moving_there_and_back_restore(rows_before, a, b) -> None:
    made = OneGroup(*rows_before, capacity=6)
    before = made.rows()
    made.swap(a, b)
    once = made.applied()
    assert (once[a], once[b]) == (before[b], before[a])
    made.swap(b, a)
    assert made.applied() == before
    if a != b:
        made.clear(b)
    made.move(a, b)
    made.move(b, a)
    after = made.applied()
    assert after[a] == before[a]
    assert a == b or after[b] == [0] * 6


@given(rows_before=st.lists(IDS, min_size=3, max_size=3), requests=st.lists(st.integers(-2, 4), max_size=3))
def test_the_class_gathers_like_the_function(rows_before, requests) -> None:
    made = OneGroup(*rows_before, capacity=6)
    requests = np.array(requests, dtype=np.int64)
    stored = np.array([ids + [9] * (6 - len(ids)) for ids in rows_before], dtype=np.int32)
    counts = np.array([[len(ids) for ids in rows_before]])
    ((wanted,),) = gather_block_tables([stored], counts, requests, [np.ones((3, 6), dtype=np.int32)])
    assert made.gather(requests, 3)[0].tolist() == wanted.tolist()


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.block_table) == doctest.TestResults(failed=0, attempted=4)
