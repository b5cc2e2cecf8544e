"""``mla_decode_layout`` by hand-written examples of its three layouts, refusals and laws."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.mla_decode_layout
from reference.errors import ContractError, OnlyMemorySafety
from reference.mla_decode_layout import mla_decode_layout

INT32_MAX = 2**31 - 1


def inputs(queries, lengths, tokens=None, width=0, *, full_graph=True, dtype="int64"):
    starts = [0, *itertools.accumulate(queries)]
    return {
        "query_start_loc": np.array(starts, dtype=dtype),
        "query_start_loc_cpu": np.array(starts, dtype="int64"),
        "seq_lens": np.array(lengths, dtype=dtype),
        "num_decode_tokens": starts[-1] if tokens is None else tokens,
        "varlen_width": width,
        "full_graph": full_graph,
    }


def result(arguments):
    before = {name: np.copy(value) for name, value in arguments.items()}
    *arrays, most, least = mla_decode_layout(**arguments)
    for name, value in arguments.items():
        assert np.array_equal(before[name], value), f"{name} was changed"
        assert not any(np.shares_memory(array, value) for array in arrays)
    assert all(array.dtype == np.int32 for array in arrays)
    # Nothing else is known without waiting for the device.
    assert (type(most), type(least), least) == (int, int, 1)
    lengths, kv_indptr, qo_indptr = (array.tolist() for array in arrays)
    assert kv_indptr == [0, *itertools.accumulate(lengths)]
    return lengths, qo_indptr, most


def layout(*arguments, **more):
    in_graph, eager = (result(inputs(*arguments, **more, full_graph=full_graph)) for full_graph in (True, False))
    assert in_graph == eager
    return in_graph


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "lengths", "tokens", "qo_indptr", "most"),
    [
        pytest.param([1, 1], [7, 5], 2, [0, 1, 2], 1, id="one query a row"),
        pytest.param([1, 1, 0], [7, 5, 0], 3, [0, 1, 2, 2], 1, id="padding rows get no query"),
        pytest.param([1, 1, 0, 0], [7, 5, 3, 0], 4, [0, 1, 2, 2, 2], 1, id="padding rows keep their length"),
        pytest.param([3, 3], [7, 5], 6, [0, 3, 6], 3, id="uniform rows without padding"),
        pytest.param([2, 3], [7, 5], 5, [0, 2, 5], 3, id="rows of two lengths"),
        pytest.param([0, 0], [0, 0], 0, [0, 0, 0], 0, id="rows without queries"),
        pytest.param([], [], 0, [0], 0, id="no row"),
        pytest.param([], [], 6, [0], 0, id="no row, and tokens of padding"),
    ],
)
def test_plain_example(queries, lengths, tokens, qo_indptr, most, dtype) -> None:
    assert layout(queries, lengths, tokens, dtype=dtype) == (lengths, qo_indptr, most)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "lengths", "tokens", "kernel_lengths", "width"),
    [
        pytest.param([3, 3, 0], [9, 7, 0], 9, [9, 7, 3], 3, id="a padding row sees its own queries"),
        pytest.param([3, 3, 0], [9, 7, 100], 9, [9, 7, 3], 3, id="what a padding row had does not matter"),
        pytest.param([2, 0, 0], [1, 0, 0], 6, [1, 2, 2], 2, id="two padding rows"),
        pytest.param([0, 0], [0, 0], 6, [3, 3], 3, id="all rows are padding"),
    ],
)
def test_padded_uniform_example(queries, lengths, tokens, kernel_lengths, width, dtype) -> None:
    qo_indptr = [row * width for row in range(len(queries) + 1)]
    assert layout(queries, lengths, tokens, dtype=dtype) == (kernel_lengths, qo_indptr, width)


@pytest.mark.parametrize(
    ("queries", "tokens"),
    [
        pytest.param([3, 0, 3], 9, id="a row without queries in the middle"),
        pytest.param([3, 3], 6, id="no padding"),
        pytest.param([2, 3, 0], 9, id="rows of two lengths"),
        pytest.param([1, 1, 0], 3, id="one query a row"),
        pytest.param([3, 3, 0, 0], 8, id="rows of more queries than that"),
        pytest.param([2, 2, 0], 9, id="rows of fewer queries than that"),
        pytest.param([3, 3, 0], 8, id="tokens that the rows cannot share"),
        pytest.param([3, 3, 0], 6, id="no token of padding"),
    ],
)
def test_other_batches_are_plain(queries, tokens) -> None:
    lengths = [9] * len(queries)
    found = layout(queries, lengths, tokens)
    assert found == (lengths, [0, *itertools.accumulate(queries)], max(queries))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "lengths", "width", "kernel_lengths"),
    [
        pytest.param([2, 1, 0], [9, 4, 0], 3, [10, 6, 3], id="each row of the width"),
        pytest.param([2, 1, 0], [9, 4, 7], 3, [10, 6, 10], id="a padding row's own length counts"),
        pytest.param([3, 3], [9, 4], 3, [9, 4], id="full rows"),
        pytest.param([2, 2, 0], [9, 4, 0], 2, [9, 4, 2], id="what would be padded uniform"),
        pytest.param([0, 0], [0, 0], 3, [3, 3], id="rows without queries"),
        pytest.param([], [], 4, [], id="no row"),
    ],
)
def test_varlen_example(queries, lengths, width, kernel_lengths, dtype) -> None:
    qo_indptr = [row * width for row in range(len(queries) + 1)]
    found = layout(queries, lengths, len(queries) * width, width, dtype=dtype)
    assert found == (kernel_lengths, qo_indptr, width)


def test_strides_do_not_matter() -> None:
    plain = inputs([3, 3, 0], [9, 7, 0], 9)
    wide = {name: np.repeat(value, 2)[::2] for name, value in plain.items() if isinstance(value, np.ndarray)}
    assert result(plain | wide) == result(plain)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_start_loc": np.array([0, 1, 2])}, r"query_start_loc\[1\] is 1 on the device and 2 on the host"),
        ({"query_start_loc": np.array([0, 2, -(2**40)])}, r"query_start_loc\[2\] is -1099511627776 on the device"),
        ({"seq_lens": np.array([5, -1])}, "the length of row 1 is -1"),
        ({"seq_lens": np.array([1, INT32_MAX])}, f"sum to {2**31}, more than int32 holds"),
    ],
)
def test_no_values_are_promised(change, reason) -> None:
    with pytest.raises(OnlyMemorySafety, match=reason):
        mla_decode_layout(**inputs([2, 1], [5, 5]) | change)


GOOD = inputs([2, 1], [5, 5])
HOST = GOOD["query_start_loc_cpu"]
REFUSED = [
    ("query_start_loc", HOST[None], "(1, 3)", "the shape must have one dimension"),
    ("query_start_loc", HOST.astype("int16"), "'int16'", "the dtype must be int32 or int64"),
    ("query_start_loc_cpu", np.int64(0), "()", "the shape must have one dimension"),
    ("query_start_loc_cpu", HOST.astype("float32"), "'float32'", "the dtype must be int32 or int64"),
    ("seq_lens", np.array([[5, 5]]), "(1, 2)", "the shape must have one dimension"),
    ("seq_lens", np.array([5, 5], "uint64"), "'uint64'", "the dtype must be int32 or int64"),
    ("num_decode_tokens", -1, "-1", "it must be an int of at least 0"),
    ("num_decode_tokens", 3.0, "3.0", "it must be an int of at least 0"),
    ("varlen_width", -1, "-1", "it must be an int of at least 0"),
    ("varlen_width", False, "False", "it must be an int of at least 0"),
    ("full_graph", 1, "1", "it must be a bool"),
    ("query_start_loc", HOST[:2], "2", "the size must be one more than that of seq_lens, 3"),
    ("query_start_loc_cpu", HOST[:2], "2", "the size must be that of query_start_loc, 3"),
    ("query_start_loc_cpu", HOST + 1, "1", "the first start must be 0"),
    ("query_start_loc_cpu", np.array([0, 2, 1]), "-1", "the length of request 1 must not be negative"),
    ("num_decode_tokens", 2, "2", "it must be at least the last start of query_start_loc_cpu, 3"),
    ("varlen_width", 1, "1", "it must be 0 or at least the queries of row 0, 2"),
    ("varlen_width", 2**30, str(2**31), "the queries of all rows must fit int32"),
    ("query_start_loc_cpu", np.array([0, 2, 2**31]), str(2**31), "the queries of all rows must fit int32"),
]


def refusal(arguments):
    with pytest.raises(ContractError) as caught:
        mla_decode_layout(**arguments)
    return str(caught.value)


@pytest.mark.parametrize(("name", "value", "shown", "rule"), REFUSED)
def test_refusal(name, value, shown, rule) -> None:
    good = GOOD | ({"num_decode_tokens": 2**40} if shown == str(2**31) else {})
    assert refusal(good | {name: value}) == f"{name}: {shown} breaks the rule: {rule}"


def test_refusals_come_in_a_fixed_order() -> None:
    for first, second in itertools.combinations(REFUSED[:-2], 2):
        if first[0] != second[0]:
            found = refusal(GOOD | {second[0]: second[1], first[0]: first[1]})
            assert found == f"{first[0]}: {first[2]} breaks the rule: {first[3]}"


def test_padded_rows_have_to_fit_int32_too() -> None:
    message = f"num_decode_tokens: {2**31} breaks the rule: the queries of all rows must fit int32"
    assert refusal(inputs([0, 0], [0, 0], 2**31)) == message
    assert layout([0, 0], [0, 0], 2**30)[1] == [0, 2**29, 2**30]


QUERIES = st.lists(st.integers(0, 3), max_size=5)


@given(queries=QUERIES, padding=st.integers(0, 4), width=st.sampled_from([0, 3, 4]), seed=st.integers(0, 30))
def test_each_row_has_at_least_its_queries_and_sees_no_less(queries, padding, width, seed) -> None:
    lengths = [number + (seed * row) % 5 if number else 0 for row, number in enumerate(queries)]
    kernel_lengths, qo_indptr, most = layout(queries, lengths, sum(queries) + padding, width)
    rows = [end - start for start, end in itertools.pairwise(qo_indptr)]
    for row, number in enumerate(queries):
        assert number <= rows[row] <= most
        # The last of a row's own queries still has its whole context before it.
        assert kernel_lengths[row] - lengths[row] == rows[row] - number


@given(real=st.integers(1, 4), dummies=st.integers(1, 3), width=st.integers(2, 4))
def test_padding_of_a_graph_changes_nothing_for_the_rows_before_it(real, dummies, width) -> None:
    lengths = [7 + row for row in range(real)]
    alone = layout([width] * real, lengths)
    padded = layout([width] * real + [0] * dummies, lengths + [0] * dummies, (real + dummies) * width)
    assert padded[0] == alone[0] + [width] * dummies
    assert padded[1][: real + 1] == alone[1]
    assert padded[2] == alone[2]


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.mla_decode_layout) == doctest.TestResults(failed=0, attempted=3)
