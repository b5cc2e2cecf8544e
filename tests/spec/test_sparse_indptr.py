"""``sparse_indptr`` and the two page indices: hand-written examples, public bugs, refusals and laws."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.sparse_indptr
from reference.errors import ContractError, OnlyMemorySafety
from reference.sparse_indptr import dense_page_indices, sparse_indptr, sparse_page_indices

KEPT = 77
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def int32(values, columns=None):
    array = np.array(values, dtype=np.int32)
    return array if columns is None else array.reshape(-1, columns)


def result(function, arguments):
    before = {name: np.copy(value) for name, value in arguments.items()}
    found = function(**arguments)
    for name, value in arguments.items():
        assert np.array_equal(before[name], value), f"{name} was changed"
    for output in found:
        assert output.dtype == np.int32
        assert not any(np.shares_memory(output, value) for value in arguments.values() if isinstance(value, np.ndarray))
    return [output.tolist() for output in found]


def refusal(function, arguments):
    with pytest.raises(ContractError) as caught:
        function(**arguments)
    return str(caught.value)


def lengths_inputs(seq_lens, starts, topk, num_tokens, *, device_starts=None, dtype="int64"):
    return {
        "seq_lens": np.array(seq_lens, dtype=dtype),
        "query_start_loc": np.array(starts if device_starts is None else device_starts, dtype=dtype),
        "query_start_loc_cpu": np.array(starts, dtype="int32"),
        "topk": topk,
        "num_tokens": num_tokens,
    }


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("seq_lens", "starts", "topk", "num_tokens", "wanted"),
    [
        pytest.param([5, 3, 10, 0], [0, 1, 4, 6, 6], 4, 8, [4, 1, 2, 3, 4, 4, 0, 0], id="topk cuts, padding sees 0"),
        pytest.param([0, 4], [0, 2, 4], 4, 4, [0, 0, 3, 4], id="length 0 with queries"),
        pytest.param([-5, 2], [0, 2, 3], 4, 3, [0, 0, 2], id="negative length"),
        pytest.param([2], [0, 5], 9, 5, [0, 0, 0, 1, 2], id="shorter than its queries"),
        pytest.param([2**31 - 1], [0, 2], 3, 2, [3, 3], id="huge length"),
        pytest.param([7, 7], [0, 0, 1], 2, 1, [2], id="sequence without queries"),
        pytest.param([4], [0, 4], 1, 4, [1, 1, 1, 1], id="topk 1"),
        pytest.param([], [0], 4, 3, [0, 0, 0], id="no sequence"),
        pytest.param([], [0], 2**40, 0, [], id="nothing, and any topk fits"),
    ],
)
def test_lengths_example(seq_lens, starts, topk, num_tokens, wanted, dtype) -> None:
    found = result(sparse_indptr, lengths_inputs(seq_lens, starts, topk, num_tokens, dtype=dtype))
    assert found == [wanted, [0, *itertools.accumulate(wanted)]]


def test_lengths_are_wider_than_64_bits_and_strides_do_not_matter() -> None:
    arguments = lengths_inputs([INT64_MAX, -INT64_MAX - 1, 3], [0, 1, 3, 4], 5, 4)
    wide = {name: np.repeat(value, 2)[::2] for name, value in arguments.items() if isinstance(value, np.ndarray)}
    assert result(sparse_indptr, arguments | wide) == [[5, 0, 0, 3], [0, 5, 5, 5, 8]]


def test_public_bug_B05_a_chunk_that_saturates_topk_is_no_ramp() -> None:
    # Both chunks have the key min(length, topk) = 4, and the second one needs other pages.
    first = result(sparse_indptr, lengths_inputs([4], [0, 4], 4, 4))
    second = result(sparse_indptr, lengths_inputs([8], [0, 4], 4, 4))
    assert (first[1], second[1]) == ([0, 1, 3, 6, 10], [0, 4, 8, 12, 16])


@pytest.mark.parametrize("device_starts", [[0, 2, 3], [1, 1, 3], [0, 1, 2**40], [0, -1, 3]])
def test_lengths_are_not_promised_where_the_twins_differ(device_starts) -> None:
    with pytest.raises(OnlyMemorySafety, match="on the device and"):
        sparse_indptr(**lengths_inputs([5, 3], [0, 1, 3], 4, 4, device_starts=device_starts))


LENGTHS = lengths_inputs([5, 3], [0, 1, 3], 4, 4)
LENGTHS_REFUSED = [
    ("seq_lens", np.array([[5, 3]]), "(1, 2)", "the shape must have one dimension"),
    ("seq_lens", np.array([5.0, 3.0]), "'float64'", "the dtype must be int32 or int64"),
    ("query_start_loc", np.int64(0), "()", "the shape must have one dimension"),
    ("query_start_loc", np.array([0, 1, 3], "int16"), "'int16'", "the dtype must be int32 or int64"),
    ("query_start_loc_cpu", np.array([[0, 1, 3]]), "(1, 3)", "the shape must have one dimension"),
    ("query_start_loc_cpu", np.array([0, 1, 3], "uint32"), "'uint32'", "the dtype must be int32 or int64"),
    ("topk", 0, "0", "it must be an int of at least 1"),
    ("topk", 4.0, "4.0", "it must be an int of at least 1"),
    ("num_tokens", -1, "-1", "it must be an int of at least 0"),
    ("num_tokens", True, "True", "it must be an int of at least 0"),
    ("query_start_loc", np.array([0, 3]), "2", "the size must be one more than that of seq_lens, 3"),
    ("query_start_loc_cpu", np.array([0, 1, 3, 3]), "4", "the size must be that of query_start_loc, 3"),
    ("query_start_loc_cpu", np.array([1, 1, 3]), "1", "the first start must be 0"),
    ("query_start_loc_cpu", np.array([0, 3, 1]), "-2", "the length of request 1 must not be negative"),
    ("num_tokens", 2, "2", "it must be at least the last start of query_start_loc_cpu, 3"),
    ("num_tokens", 2**29, str(2**29), "num_tokens * topk must be below 2**31, with topk 4"),
]


def test_lengths_refusals_and_their_order() -> None:
    for name, value, shown, rule in LENGTHS_REFUSED:
        assert refusal(sparse_indptr, LENGTHS | {name: value}) == f"{name}: {shown} breaks the rule: {rule}"
    for first, second in itertools.combinations(LENGTHS_REFUSED, 2):
        if first[0] != second[0]:
            found = refusal(sparse_indptr, LENGTHS | {second[0]: second[1], first[0]: first[1]})
            assert found.startswith(f"{first[0]}: ")


def test_lengths_that_fit_int32_in_the_end_only_by_luck_are_refused_too() -> None:
    message = refusal(sparse_indptr, lengths_inputs([1], [0, 1], 2**31, 1))
    assert message == f"num_tokens: 1 breaks the rule: num_tokens * topk must be below 2**31, with topk {2**31}"
    assert result(sparse_indptr, lengths_inputs([1], [0, 1], INT32_MAX, 1)) == [[1], [0, 1]]


def page_inputs(requests, table, tokens, indptr, block_size=4, stride=None, *, capacity, dtype="int64"):
    return {
        "req_id_per_token": np.array(requests, dtype=dtype),
        "block_table": int32(table),
        "topk_indices": np.array(tokens, dtype=dtype).reshape(len(requests), -1 if len(requests) else 2),
        "paged_kv_indptr": np.array(indptr, dtype=dtype),
        "block_size": block_size,
        "block_stride": block_size if stride is None else stride,
        "paged_kv_indices": np.full(capacity, KEPT, dtype=np.int32),
    }


def pages(*arguments, **more):
    (found,) = result(sparse_page_indices, page_inputs(*arguments, **more))
    return found


TABLE = [[5, 6], [9, 0]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("requests", "tokens", "indptr", "capacity", "wanted"),
    [
        pytest.param([1, 0], [[0, 3], [4, 7]], [0, 2, 4], 4, [36, 39, 24, 27], id="rows are requests"),
        pytest.param([0], [[0, 3, -1, 5]], [0, 4], 4, [20, 23, -1, 25], id="a hole is kept"),
        pytest.param([0], [[0, 3, 1, 5]], [0, 2], 4, [20, 23, KEPT, KEPT], id="columns past the length are dropped"),
        pytest.param([0], [[4]], [0, 3], 3, [24, -1, -1], id="length past the columns"),
        pytest.param([0], [[8, 100, 2**31 - 1]], [0, 3], 3, [-1, -1, -1], id="block past the row"),
        pytest.param([0], [[-1, -(2**31), 0]], [0, 3], 3, [-1, -1, 20], id="negative tokens"),
        pytest.param([-1, 2, 0], [[0], [0], [0]], [0, 1, 2, 3], 3, [-1, -1, 20], id="request outside the table"),
        pytest.param([1], [[4, 7]], [0, 2], 2, [0, 3], id="the NULL block follows the formula"),
        pytest.param([0, 0], [[0], [1]], [2, 3, 4], 6, [KEPT, KEPT, 20, 21, KEPT, KEPT], id="first start 2"),
        pytest.param([0, 0], [[0, 1], [2, 3]], [0, 2, 4], 3, [20, 21, 22], id="a row past the capacity"),
        pytest.param([0, 0], [[0, 1], [2, 3]], [5, 7, 9], 3, [KEPT] * 3, id="all past the capacity"),
        pytest.param([0], [[0]], [0, 2**31 - 1], 2, [20, -1], id="huge length"),
        pytest.param([0, 1, 0], [[0], [0], [1]], [0, 1, 1, 2], 2, [20, 21], id="query that sees nothing"),
        pytest.param([], [], [3], 2, [KEPT, KEPT], id="no query"),
        pytest.param([0], [[]], [0, 2], 2, [-1, -1], id="no column"),
    ],
)
def test_pages_example(requests, tokens, indptr, capacity, wanted, dtype) -> None:
    assert pages(requests, TABLE, tokens, indptr, capacity=capacity, dtype=dtype) == wanted


def test_pages_with_rows_of_other_layers_between_the_blocks() -> None:
    assert pages([0], TABLE, [[0, 3, 4]], [0, 3], 4, 10, capacity=3) == [50, 53, 60]


def test_pages_of_a_table_without_rows_or_columns() -> None:
    arguments = page_inputs([0, 0], np.zeros((0, 2)), [[0], [1]], [0, 1, 2], capacity=2)
    assert result(sparse_page_indices, arguments) == [[-1, -1]]
    assert result(sparse_page_indices, arguments | {"block_table": np.zeros((2, 0), np.int32)}) == [[-1, -1]]


def test_pages_strides_do_not_matter() -> None:
    plain = page_inputs([1, 0], TABLE, [[0, 3], [4, 7]], [0, 2, 4], capacity=5)
    wide = {name: np.repeat(value, 2, -1)[..., ::2] for name, value in plain.items() if isinstance(value, np.ndarray)}
    assert result(sparse_page_indices, plain | wide) == [[36, 39, 24, 27, KEPT]]


def test_public_bug_B01_a_token_that_is_none_is_not_slot_0() -> None:
    assert pages([0], [[5, 9]], [[6, -1, 1, -1]], [0, 4], capacity=4) == [38, -1, 21, -1]
    assert pages([0], [[5, 9]], [[100]], [0, 1], capacity=1) == [-1]


def test_public_bug_B08_a_block_past_the_row_is_not_the_next_requests() -> None:
    assert pages([0], [[7, 8, 9], [1, 2, 3]], [[1, 14, 5]], [0, 3], capacity=3) == [29, -1, 33]
    wide = np.repeat(int32([[7, 8, 9], [1, 2, 3]]), 2, 1)[:, :3]
    assert pages([0], wide, [[14, 1, 11]], [0, 3], capacity=3) == [-1, 29, 35]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"paged_kv_indptr": np.array([-1, 1, 2])}, "first start is -1"),
        ({"paged_kv_indptr": np.array([0, 2, 1])}, "query 1 owns -1 elements"),
        ({"paged_kv_indptr": np.array([9, INT64_MAX, 0])}, f"query 1 owns {-INT64_MAX} elements"),
        ({"block_table": int32([[5, -6], [9, 0]])}, "block -6 in column 1 of request 0 is negative"),
        ({"block_size": 2**29, "block_stride": 2**29, "block_table": int32([[4], [0]])}, f"cache row {2**31} of"),
    ],
)
def test_pages_are_not_promised(change, reason) -> None:
    arguments = page_inputs([1, 0], TABLE, [[0, 3], [0, 7]], [0, 2, 4], capacity=4)
    with pytest.raises(OnlyMemorySafety, match=reason):
        sparse_page_indices(**arguments | change)


def test_a_negative_block_that_is_not_looked_up_changes_nothing() -> None:
    assert pages([0], [[5, -1], [-7, -7]], [[3, -1]], [0, 2], capacity=2) == [23, -1]


def test_the_largest_cache_row_that_fits_is_promised() -> None:
    block_size = 2**15
    assert pages([0], [[2**16 - 1]], [[block_size - 1]], [0, 1], block_size, capacity=1) == [INT32_MAX]


PAGES = page_inputs([1, 0], TABLE, [[0, 3], [4, 7]], [0, 2, 4], capacity=4)
PAGES_REFUSED = [
    ("req_id_per_token", np.array([[1, 0]]), "(1, 2)", "the shape must have one dimension"),
    ("req_id_per_token", np.array([1, 0], "int8"), "'int8'", "the dtype must be int32 or int64"),
    ("block_table", int32([5, 6]), "(2,)", "the shape must have two dimensions"),
    ("block_table", np.array(TABLE, "int64"), "'int64'", "the dtype must be int32"),
    ("topk_indices", np.array([0, 3]), "(2,)", "the shape must have two dimensions"),
    ("topk_indices", np.array([[0.0], [1.0]]), "'float64'", "the dtype must be int32 or int64"),
    ("paged_kv_indptr", np.int64(0), "()", "the shape must have one dimension"),
    ("paged_kv_indptr", np.array([0, 2, 4], "uint8"), "'uint8'", "the dtype must be int32 or int64"),
    ("block_size", 0, "0", "it must be an int of at least 1"),
    ("block_size", True, "True", "it must be an int of at least 1"),
    ("block_stride", 3, "3", "it must be an int of at least block_size, 4"),
    ("block_stride", 4.0, "4.0", "it must be an int of at least block_size, 4"),
    ("paged_kv_indices", int32([[0]]), "(1, 1)", "the shape must have one dimension"),
    ("paged_kv_indices", np.zeros(4, "int64"), "'int64'", "the dtype must be int32"),
    ("topk_indices", np.array([[0, 3]]), "(1, 2)", "the rows must be as many as req_id_per_token has elements, 2"),
    ("paged_kv_indptr", np.array([0, 4]), "2", "the size must be one more than that of req_id_per_token, 3"),
]


def test_pages_refusals_and_their_order() -> None:
    for name, value, shown, rule in PAGES_REFUSED:
        assert refusal(sparse_page_indices, PAGES | {name: value}) == f"{name}: {shown} breaks the rule: {rule}"
    for first, second in itertools.combinations(PAGES_REFUSED, 2):
        if {first[0], second[0]} not in ({"block_size", "block_stride"}, {first[0]}):
            found = refusal(sparse_page_indices, PAGES | {second[0]: second[1], first[0]: first[1]})
            assert found.startswith(f"{first[0]}: ")


@given(
    table=st.lists(st.lists(st.integers(0, 40), min_size=2, max_size=2), min_size=1, max_size=3),
    queries=st.lists(st.tuples(st.integers(-1, 3), st.lists(st.integers(-2, 9), min_size=3, max_size=3)), max_size=4),
    lengths=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    gap=st.integers(0, 3),
    before=st.integers(0, 2),
)
def test_a_page_names_its_block_and_its_place_in_it(table, queries, lengths, gap, before) -> None:
    indptr = [before, *itertools.accumulate(lengths[: len(queries)], initial=before)][1:]
    requests, tokens = [request for request, _ in queries], [row for _, row in queries]
    found = pages(requests, table, tokens, indptr, 4, 4 + gap, capacity=indptr[-1] + 1)
    assert found[:before] == [KEPT] * before
    assert found[-1] == KEPT
    for query, (request, row) in enumerate(queries):
        for column, page in enumerate(found[indptr[query] : indptr[query + 1]]):
            token = row[column] if column < 3 else -1
            if 0 <= token < 8 and 0 <= request < len(table):
                assert divmod(page, 4 + gap) == (table[request][token // 4], token % 4)
            else:
                assert page == -1


def dense_inputs(table, lengths, block_size, *, capacity, dtype="int64"):
    return {
        "block_table": table if isinstance(table, np.ndarray) else int32(table),
        "seq_lens": np.array(lengths, dtype=dtype),
        "kernel_block_size": block_size,
        "paged_kv_indices": np.full(capacity, KEPT, dtype=np.int32),
    }


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("table", "lengths", "block_size", "indptr", "wanted"),
    [
        pytest.param(
            [[3, 5], [7, 0]], [6, 2], 4, [0, 6, 8], [12, 13, 14, 15, 20, 21, 28, 29], id="the rest of the buffer is -1"
        ),
        pytest.param([[3, 5], [7, 0]], [1, 2], 1, [0, 1, 3], [3, 7, 0], id="blocks of one token"),
        pytest.param([[3], [2]], [0, 2], 2, [0, 0, 2], [4, 5], id="request without tokens"),
        pytest.param([[3], [2]], [-9, 2**31 - 1], 2, [0, 0, 2], [4, 5], id="clipped at both ends"),
        pytest.param([[3, -8]], [2], 2, [0, 2], [6, 7], id="a block that is not looked up may be anything"),
        pytest.param(np.zeros((2, 0), np.int32), [5, 5], 4, [0, 0, 0], [], id="no column"),
        pytest.param(np.zeros((0, 3), np.int32), [], 4, [0], [], id="no request"),
    ],
)
def test_dense_example(table, lengths, block_size, indptr, wanted, dtype) -> None:
    capacity = int32(table).size * block_size + 2
    found = result(dense_page_indices, dense_inputs(table, lengths, block_size, capacity=capacity, dtype=dtype))
    assert found == [indptr, [1] * len(lengths), wanted + [-1] * (capacity - len(wanted))]


def test_public_bug_B03_the_capacity_counts_tokens_not_pages() -> None:
    # Two requests of 7 and 6 tokens in two pages of 4 tokens each: 4 elements where 13 are used, and 16 may be.
    arguments = dense_inputs([[1, 2], [3, 4]], [7, 6], 4, capacity=4)
    message = "paged_kv_indices: 4 breaks the rule: the size must be at least that of all rows' tokens, 16"
    assert refusal(dense_page_indices, arguments) == message
    found = result(dense_page_indices, dense_inputs([[1, 2], [3, 4]], [7, 6], 4, capacity=16))
    assert (found[0], found[2][5:]) == ([0, 7, 13], [9, 10, 12, 13, 14, 15, 16, 17, -1, -1, -1])


@pytest.mark.parametrize(
    ("table", "lengths", "block_size", "capacity", "reason"),
    [
        ([[2, -3]], [3], 2, 4, "block -3 in column 1 of request 0 is negative"),
        ([[2**30]], [1], 2, 2, f"cache row {2**31} of request 0 does not fit int32"),
        ([[0], [0]], [2**31 - 1, 1], 2**31, 2**32, f"sum to {2**31}, more than int32 counts"),
    ],
)
def test_dense_pages_are_not_promised(table, lengths, block_size, capacity, reason) -> None:
    arguments = dense_inputs(table, lengths, block_size, capacity=0)
    # One element stands for the whole buffer, which would be of gigabytes.
    arguments["paged_kv_indices"] = np.broadcast_to(int32([KEPT]), (capacity,))
    with pytest.raises(OnlyMemorySafety, match=reason):
        dense_page_indices(**arguments)


DENSE = dense_inputs([[3, 5], [7, 0]], [6, 2], 4, capacity=16)
DENSE_REFUSED = [
    ("block_table", int32([[[3]]]), "(1, 1, 1)", "the shape must have two dimensions"),
    ("block_table", np.array([[3]], "uint32"), "'uint32'", "the dtype must be int32"),
    ("seq_lens", np.int64(3), "()", "the shape must have one dimension"),
    ("seq_lens", np.array([True, False]), "'bool'", "the dtype must be int32 or int64"),
    ("kernel_block_size", 0, "0", "it must be an int of at least 1"),
    ("kernel_block_size", None, "None", "it must be an int of at least 1"),
    ("paged_kv_indices", int32([[0] * 16]), "(1, 16)", "the shape must have one dimension"),
    ("paged_kv_indices", np.zeros(16), "'float64'", "the dtype must be int32"),
    ("seq_lens", np.array([6]), "1", "the size must be the number of rows of block_table, 2"),
    ("paged_kv_indices", int32([0] * 15), "15", "the size must be at least that of all rows' tokens, 16"),
]


def test_dense_refusals_and_their_order() -> None:
    for name, value, shown, rule in DENSE_REFUSED:
        assert refusal(dense_page_indices, DENSE | {name: value}) == f"{name}: {shown} breaks the rule: {rule}"
    for first, second in itertools.combinations(DENSE_REFUSED, 2):
        if first[0] != second[0]:
            found = refusal(dense_page_indices, DENSE | {second[0]: second[1], first[0]: first[1]})
            assert found.startswith(f"{first[0]}: ")


@given(
    table=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=3),
    length=st.integers(0, 6),
    block_size=st.integers(1, 3),
)
def test_dense_pages_are_the_sparse_pages_of_all_tokens(table, length, block_size) -> None:
    length = min(length, 2 * block_size)
    capacity = len(table) * 2 * block_size
    indptr, _, found = result(
        dense_page_indices, dense_inputs(table, [length] * len(table), block_size, capacity=capacity)
    )
    tokens = [list(range(6))] * len(table)
    picked = pages(range(len(table)), table, tokens, indptr, block_size, capacity=capacity)
    assert [page for page in picked if page != KEPT] == found[: indptr[-1]]
    assert found[indptr[-1] :] == [-1] * (capacity - indptr[-1])


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.sparse_indptr) == doctest.TestResults(failed=0, attempted=3)
