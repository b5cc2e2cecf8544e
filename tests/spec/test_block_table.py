"""``gather_block_tables``, its windowed form and ``kernel_block_table``: examples, public bugs, refusals and laws."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.block_table import gather_block_tables, gather_block_tables_windowed, kernel_block_table
from reference.errors import ContractError, OnlyMemorySafety

STALE = 99
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def int32(rows, columns=None):
    array = np.array(rows, dtype=np.int32)
    return array if columns is None else array.reshape(-1, columns)


def inputs(tables, counts, requests, padded, *, dtype="int64"):
    tables = [table if isinstance(table, np.ndarray) else int32(table) for table in tables]
    return {
        "block_tables": tables,
        "num_blocks": np.array(counts, dtype=dtype),
        "idx_mapping": np.array(requests, dtype=dtype),
        "out": [np.full((padded, table.shape[1]), STALE, dtype=np.int32) for table in tables],
    }


def result(function, arguments):
    tensors = [*arguments["block_tables"], *arguments["out"], arguments["num_blocks"], arguments["idx_mapping"]]
    before = [tensor.copy() for tensor in tensors]
    (found,) = function(**arguments)
    assert all(np.array_equal(old, new) for old, new in zip(before, tensors, strict=True)), "an input was changed"
    assert not any(np.shares_memory(rows, tensor) for rows in found for tensor in tensors)
    assert [rows.shape for rows in found] == [rows.shape for rows in arguments["out"]]
    assert all(rows.dtype == np.int32 for rows in found)
    return [rows.tolist() for rows in found]


def gather(*arguments, **more):
    return result(gather_block_tables, inputs(*arguments, **more))


def windowed(*arguments, computed, reach, sizes, dtype="int64"):
    more = {
        "num_computed_tokens": np.array(computed, dtype=dtype),
        "window_reach": reach,
        "block_sizes": sizes,
    }
    return result(gather_block_tables_windowed, inputs(*arguments, dtype=dtype) | more)


TABLE = [[7, 8, 9, 10], [3, 4, 5, 6], [11, 12, 13, 14]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("counts", "requests", "padded", "wanted"),
    [
        pytest.param([4, 2, 1], [1, 0], 2, [[3, 4, 0, 0], [7, 8, 9, 10]], id="rows are requests, tails are NULL"),
        pytest.param([4, 2, 1], [2], 3, [[11, 0, 0, 0], [0] * 4, [0] * 4], id="padding rows are NULL"),
        pytest.param([4, 2, 1], [1, 1], 2, [[3, 4, 0, 0], [3, 4, 0, 0]], id="one request in two rows"),
        pytest.param([0, 2, 0], [0, 1, 2], 3, [[0] * 4, [3, 4, 0, 0], [0] * 4], id="requests without blocks"),
        pytest.param([5, 2**31 - 1, 4], [0, 1], 2, [[7, 8, 9, 10], [3, 4, 5, 6]], id="counts past the row"),
        pytest.param([-1, -(2**31), 1], [0, 1, 2], 3, [[0] * 4, [0] * 4, [11, 0, 0, 0]], id="negative counts"),
        pytest.param([4, 4, 4], [-1, 3, -3, 2], 4, [[0] * 4, [0] * 4, [0] * 4, TABLE[2]], id="outside the table"),
        pytest.param([4, 4, 4], [2**31 - 1, -(2**31)], 2, [[0] * 4, [0] * 4], id="absurd requests"),
        pytest.param([4, 4, 4], [], 2, [[0] * 4, [0] * 4], id="no row"),
        pytest.param([4, 4, 4], [], 0, [], id="nothing"),
    ],
)
def test_gather_example(counts, requests, padded, wanted, dtype) -> None:
    assert gather([TABLE], [counts], requests, padded, dtype=dtype) == [wanted]


def test_gather_of_several_groups() -> None:
    tables = [[[1, 2], [3, 4]], np.zeros((2, 0), np.int32), [[5, 6, 7], [8, 9, -1]]]
    found = gather(tables, [[2, 1], [3, 0], [1, 3]], [1, 0], 3)
    assert found == [[[3, 0], [1, 2], [0, 0]], [[], [], []], [[8, 9, -1], [5, 0, 0], [0, 0, 0]]]


def test_gather_without_groups_or_requests() -> None:
    assert gather([], np.zeros((0, 5)), [1, 2], 2) == []
    assert gather([int32([], 3)], [[]], [0, -1], 2) == [[[0, 0, 0], [0, 0, 0]]]


def test_strides_do_not_matter_and_tuples_are_lists() -> None:
    arguments = inputs([TABLE], [[4, 2, 1]], [1, 0], 3)
    arguments["block_tables"] = tuple(np.repeat(table, 3, 1)[:, ::3] for table in arguments["block_tables"])
    arguments["out"] = tuple(rows.T.copy().T for rows in arguments["out"])
    arguments["num_blocks"] = np.repeat(arguments["num_blocks"], 2, 1)[:, ::2]
    assert result(gather_block_tables, arguments) == [[[3, 4, 0, 0], [7, 8, 9, 10], [0, 0, 0, 0]]]


def test_public_bug_D03_a_shorter_request_leaves_no_tail_of_the_row_before() -> None:
    arguments = inputs([[[7, 8, 9, 10], [3, 4, 0, 0]]], [[4, 2]], [0], 1)
    (arguments["out"],) = gather_block_tables(**arguments)
    assert arguments["out"][0].tolist() == [[7, 8, 9, 10]]
    assert result(gather_block_tables, arguments | {"idx_mapping": np.array([1])}) == [[[3, 4, 0, 0]]]


def test_public_bug_D12_a_shorter_row_hides_what_the_table_still_holds() -> None:
    assert gather([[[5, 8, 9]]], [[1]], [0], 1) == [[[5, 0, 0]]]
    assert gather([[[0, 8, 9]]], [[0]], [0], 1) == [[[0, 0, 0]]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("computed", "reach", "wanted"),
    [
        pytest.param(9, 6, [7, 8, 9, 0], id="less than a block is left behind"),
        pytest.param(11, 7, [0, 8, 9, 0], id="a block is left behind"),
        pytest.param(14, 7, [0, 8, 9, 0], id="a token short of the second block"),
        pytest.param(15, 7, [0, 0, 9, 0], id="the second block is left behind"),
        pytest.param(19, 7, [0, 0, 0, 0], id="all blocks are left behind"),
        pytest.param(2**31 - 1, 1, [0, 0, 0, 0], id="columns past the row"),
        pytest.param(3, 7, [7, 8, 9, 0], id="less computed than the window reaches"),
        pytest.param(-(2**31), 7, [7, 8, 9, 0], id="negative count"),
        pytest.param(2**31 - 1, 0, [7, 8, 9, 0], id="no window"),
        pytest.param(4, 2**70, [7, 8, 9, 0], id="reach past any dtype"),
    ],
)
def test_windowed_example(computed, reach, wanted, dtype) -> None:
    found = windowed([TABLE], [[3, 0, 0]], [0], 2, computed=[computed, 0, 0], reach=[reach], sizes=[4], dtype=dtype)
    assert found == [[wanted, [0, 0, 0, 0]]]


def test_windowed_counts_belong_to_requests_and_windows_to_groups() -> None:
    tables = [TABLE, TABLE, TABLE]
    arguments = [tables, [[4, 4, 4]] * 3, [2, 0, 5, -1], 5]
    found = windowed(*arguments, computed=[12, 99, 4], reach=[0, 4, 2], sizes=[4, 4, 2])
    empty = [[0, 0, 0, 0]] * 3
    assert found == [
        [[11, 12, 13, 14], [7, 8, 9, 10], *empty],
        [[11, 12, 13, 14], [0, 0, 9, 10], *empty],
        [[0, 12, 13, 14], [0, 0, 0, 0], *empty],
    ]
    as_arrays = {"reach": np.array([0, 4, 2], dtype=np.int32), "sizes": np.array([4, 4, 2])}
    assert windowed(*arguments, computed=[12, 99, 4], **as_arrays) == found
    assert windowed(*arguments, computed=[12, 99, 4], reach=(0, 4, 2), sizes=(4, 4, 2)) == found


def test_windowed_differences_need_65_bits() -> None:
    arguments = [[TABLE], [[4, 4, 4]], [0, 1], 2]
    found = windowed(*arguments, computed=[INT64_MIN, INT64_MAX, 0], reach=[INT64_MAX - 4], sizes=[4])
    assert found == [[[7, 8, 9, 10], [0, 4, 5, 6]]]


def test_windowed_without_groups() -> None:
    assert windowed([], np.zeros((0, 3)), [0], 1, computed=[1, 2, 3], reach=[], sizes=[]) == []


def test_without_windows_it_is_the_plain_gather() -> None:
    tables = [[[*range(row, row + 4)] for row in range(1, 9, 4)], [[9, 8, 7], [6, 5, 4]]]
    for counts in itertools.product(range(-1, 6), repeat=2):
        arguments = [tables, [counts, counts[::-1]], [1, -1, 0], 4]
        assert windowed(*arguments, computed=[50, 60], reach=[0, 0], sizes=[1, 2]) == gather(*arguments)


@given(
    counts=st.lists(st.integers(-1, 5), min_size=3, max_size=3),
    requests=st.lists(st.integers(-2, 4), max_size=4),
    computed=st.lists(st.integers(-2, 20), min_size=3, max_size=3),
    reach=st.integers(0, 9),
    size=st.integers(1, 4),
)
def test_windowed_keeps_each_block_that_a_later_token_can_see(counts, requests, computed, reach, size) -> None:
    arguments = [[TABLE], [counts], requests, 4]
    (plain,) = gather(*arguments)
    (found,) = windowed(*arguments, computed=computed, reach=[reach], sizes=[size])
    for row, column in itertools.product(range(4), range(4)):
        inside = row < len(requests) and 0 <= requests[row] < 3
        last_token = (column + 1) * size - 1
        left_behind = inside and reach > 0 and last_token < computed[requests[row]] - reach
        assert found[row][column] == (0 if left_behind else plain[row][column])


@pytest.mark.parametrize(
    ("table", "parts", "stride", "wanted"),
    [
        pytest.param([[5, 0], [2, 1]], 1, 1, [[5, 0], [2, 1]], id="blocks of one size"),
        pytest.param([[5, 0], [2, 1]], 2, 2, [[10, 11, 0, 1], [4, 5, 2, 3]], id="NULL blocks follow the formula"),
        pytest.param([[5, 0]], 2, 3, [[15, 16, 0, 1]], id="something between the blocks"),
        pytest.param([[5, 0]], 1, 7, [[35, 0]], id="one part, far apart"),
        pytest.param([[-1, -3]], 2, 2, [[-2, -1, -6, -5]], id="negative blocks follow the formula"),
        pytest.param([[0, 0]], 2, 2**70, [[0, 1, 0, 1]], id="stride past any dtype, NULL blocks"),
        pytest.param([[2**30 - 1, -(2**30)]], 2, 2, [[2**31 - 2, 2**31 - 1, -(2**31), 1 - 2**31]], id="ends of int32"),
        pytest.param([[], []], 3, 3, [[], []], id="no column"),
    ],
)
def test_kernel_block_table_example(table, parts, stride, wanted) -> None:
    table = int32(table)
    before = table.copy()
    (found,) = kernel_block_table(table, parts, stride)
    assert (found.dtype, found.tolist()) == (np.int32, wanted)
    assert np.array_equal(table, before)
    assert not np.shares_memory(found, table)
    wide = np.repeat(table, 2, 0)[::2]
    assert kernel_block_table(wide, parts, stride)[0].tolist() == wanted


def test_kernel_block_table_without_rows() -> None:
    assert kernel_block_table(int32([], 3), 4, 4)[0].shape == (0, 12)
    assert kernel_block_table(np.zeros((0, 2), np.int32), 2**31, 2**31)[0].shape == (0, 2**32)


def test_public_bug_B03_pages_of_four_tokens_hold_sixteen_tokens_not_four() -> None:
    # Pages in, tokens out: with one kernel block a token, two requests of two pages of 4 tokens.
    (tokens,) = kernel_block_table(int32([[1, 2], [3, 4]]), 4, 4)
    assert tokens.size == 16
    assert tokens.tolist() == [[4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18, 19]]


def test_public_bug_D09_a_page_stride_larger_than_the_page() -> None:
    # Four rows a page, six from page to page: token 9 is the second of page 2.
    (rows,) = kernel_block_table(int32([[0, 1, 2]]), 4, 6)
    assert rows[0, 9] == 2 * 6 + 1


@pytest.mark.parametrize(
    ("block", "parts", "stride", "number"),
    [
        (2**30, 1, 2, 2**31),
        (715827882, 3, 3, 2**31),
        (2**30 - 1, 2, 3, 3 * (2**30 - 1)),
        (-(2**30) - 1, 2, 2, -(2**31) - 2),
        (INT32_MAX, 1, 2**40, INT32_MAX * 2**40),
        (INT32_MIN, 1, 2, -(2**32)),
    ],
)
def test_kernel_blocks_that_int32_cannot_hold(block, parts, stride, number) -> None:
    with pytest.raises(OnlyMemorySafety, match=f"kernel block {number} of row 1 does not fit int32"):
        kernel_block_table(int32([[0], [block]]), parts, stride)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": int32([1])}, "block_table: (1,) breaks the rule: the shape must have two dimensions"),
        ({"block_table": np.zeros((1, 1), "int64")}, "block_table: 'int64' breaks the rule: the dtype must be int32"),
        ({"blocks_per_kernel_block": 0}, "blocks_per_kernel_block: 0 breaks the rule: it must be an int of at least 1"),
        (
            {"blocks_per_kernel_block": True},
            "blocks_per_kernel_block: True breaks the rule: it must be an int of at least 1",
        ),
        (
            {"blocks_per_kernel_block": 2**31 + 1, "stride": 2**40},
            f"blocks_per_kernel_block: {2**31 + 1} breaks the rule: it must be at most 2**31",
        ),
        ({"stride": 1}, "stride: 1 breaks the rule: it must be an int of at least blocks_per_kernel_block, 2"),
        ({"stride": -2}, "stride: -2 breaks the rule: it must be an int of at least blocks_per_kernel_block, 2"),
        ({"stride": 2.0}, "stride: 2.0 breaks the rule: it must be an int of at least blocks_per_kernel_block, 2"),
        (
            {"stride": True, "blocks_per_kernel_block": 1},
            "stride: True breaks the rule: it must be an int of at least blocks_per_kernel_block, 1",
        ),
    ],
)
def test_kernel_block_table_refusal(change, message) -> None:
    good = {"block_table": int32([[1]]), "blocks_per_kernel_block": 2, "stride": 2}
    with pytest.raises(ContractError) as caught:
        kernel_block_table(**good | change)
    assert str(caught.value) == message


GOOD = inputs([TABLE, TABLE], [[4, 2, 1]] * 2, [1, 0], 2) | {
    "num_computed_tokens": np.array([1, 2, 3]),
    "window_reach": [0, 4],
    "block_sizes": [4, 4],
}
ONE, OUT = int32(TABLE), int32([[0] * 4] * 2)
COUNTS = GOOD["num_blocks"]
GATHER_REFUSED = [
    ("block_tables", ONE, "'ndarray'", "it must be a list or a tuple"),
    ("block_tables", [ONE, ONE[0]], "(4,)", "the shape must have two dimensions"),
    ("block_tables", [ONE.astype("int64"), ONE], "'int64'", "the dtype must be int32"),
    ("out", None, "'NoneType'", "it must be a list or a tuple"),
    ("out", [OUT[None], OUT], "(1, 2, 4)", "the shape must have two dimensions"),
    ("out", [OUT, OUT.astype("uint32")], "'uint32'", "the dtype must be int32"),
    ("num_blocks", COUNTS[0], "(3,)", "the shape must have two dimensions"),
    ("num_blocks", COUNTS.astype("int16"), "'int16'", "the dtype must be int32 or int64"),
    ("idx_mapping", np.int64(0), "()", "the shape must have one dimension"),
    ("idx_mapping", np.array([0.0]), "'float64'", "the dtype must be int32 or int64"),
    ("block_tables", [ONE], "1", "the groups must be those of num_blocks, 2"),
    ("out", [OUT, OUT, OUT], "3", "the groups must be those of num_blocks, 2"),
    ("block_tables", [ONE, ONE[:2]], "(2, 4)", "the rows must be those of num_blocks, 3"),
    ("out", [OUT, OUT[:, :3]], "(2, 3)", "the columns must be those of the group's table, 4"),
    ("out", [OUT, int32([[0] * 4] * 3)], "(3, 4)", "the rows must be those of the first group, 2"),
    ("out", [OUT[:1], OUT[:1]], "(1, 4)", "the rows must be at least those of idx_mapping, 2"),
]
WINDOW_REFUSED = [
    ("num_computed_tokens", np.array([[1, 2, 3]]), "(1, 3)", "the shape must have one dimension"),
    ("num_computed_tokens", np.array([True] * 3), "'bool'", "the dtype must be int32 or int64"),
    ("num_computed_tokens", np.array([1, 2]), "2", "the size must be the number of requests in num_blocks, 3"),
    ("window_reach", 4, "'int'", "it must be a list or a tuple"),
    ("window_reach", np.array([[0, 4]]), "(1, 2)", "the shape must have one dimension"),
    ("window_reach", np.array([0.0, 4.0]), "'float64'", "the dtype must be int32 or int64"),
    ("window_reach", [0, -1], "-1", "each must be an int of at least 0"),
    ("window_reach", [False, 0], "False", "each must be an int of at least 0"),
    ("window_reach", [0], "1", "there must be one a group, 2"),
    ("block_sizes", None, "'NoneType'", "it must be a list or a tuple"),
    ("block_sizes", np.array([4, 0], np.int32), "0", "each must be an int of at least 1"),
    ("block_sizes", (4, 4.0), "4.0", "each must be an int of at least 1"),
    ("block_sizes", [4, 4, 4], "3", "there must be one a group, 2"),
]


@pytest.mark.parametrize(("name", "value", "shown", "rule"), [*GATHER_REFUSED, *WINDOW_REFUSED])
def test_gather_refusal(name, value, shown, rule) -> None:
    message = f"{name}: {shown} breaks the rule: {rule}"
    with pytest.raises(ContractError) as caught:
        gather_block_tables_windowed(**GOOD | {name: value})
    assert str(caught.value) == message
    if name in ("block_tables", "num_blocks", "idx_mapping", "out"):
        plain = {key: item for key, item in GOOD.items() if key in ("block_tables", "num_blocks", "idx_mapping", "out")}
        with pytest.raises(ContractError) as caught:
            gather_block_tables(**plain | {name: value})
        assert str(caught.value) == message


def test_gather_refusals_come_in_a_fixed_order() -> None:
    for first, second in itertools.combinations([*GATHER_REFUSED, *WINDOW_REFUSED], 2):
        if first[0] != second[0]:
            with pytest.raises(ContractError) as caught:
                gather_block_tables_windowed(**GOOD | {second[0]: second[1]} | {first[0]: first[1]})
            assert (caught.value.argument, caught.value.rule) == (first[0], first[3])
