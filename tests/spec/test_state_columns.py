"""``state_columns``, ``stage_decode_state`` and ``spec_token_partition``: examples, public bugs, refusals and laws."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.state_columns
from reference.block_table import gather_block_tables
from reference.errors import ContractError, OnlyMemorySafety
from reference.state_columns import spec_token_partition, stage_decode_state, state_columns

KEPT = 77
INT64_MAX = 2**63 - 1


def int32(values):
    return np.array(values, dtype=np.int32)


def result(function, arguments):
    before = {name: np.copy(value) for name, value in arguments.items()}
    found = function(**arguments)
    for name, value in arguments.items():
        assert np.array_equal(before[name], value), f"{name} was changed"
        assert not any(np.shares_memory(output, value) for output in found)
    assert all(output.dtype == np.int32 for output in found)
    return [output.tolist() for output in found]


def refusal(function, arguments):
    with pytest.raises(ContractError) as caught:
        function(**arguments)
    return str(caught.value)


def refuses(function, good, wrong):
    """Each of the wrong arguments is refused with its message; of two, the one that stands first."""
    for name, value, shown, rule in wrong:
        assert refusal(function, good | {name: value}) == f"{name}: {shown} breaks the rule: {rule}"
    for first, second in itertools.combinations(wrong, 2):
        if first[0] != second[0]:
            found = refusal(function, good | {second[0]: second[1], first[0]: first[1]})
            assert found.startswith(f"{first[0]}: ")


def column_inputs(table, lengths, mode, block_size=16, spec=1, dtype="int64"):
    return {
        "block_table": table if isinstance(table, np.ndarray) else int32(table),
        "seq_lens": np.array(lengths, dtype=dtype),
        "mamba_cache_mode": mode,
        "block_size": block_size,
        "num_speculative_blocks": spec,
    }


def columns(*arguments, **more):
    (found,) = result(state_columns, column_inputs(*arguments, **more))
    return found


TABLE = [[11, 12, 13], [21, 22, 23]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("lengths", "spec", "in_none", "in_others"),
    [
        pytest.param([40, 9], 0, [[11], [21]], [[13], [21]], id="block of the last token"),
        pytest.param([17, 16], 0, [[11], [21]], [[12], [21]], id="a full block is the last token's"),
        pytest.param([1, 0], 1, [[11, 12], [21, 22]], [[11, 12], [21, 22]], id="length 0"),
        pytest.param([-1, -(2**31)], 0, [[11], [21]], [[11], [21]], id="negative length"),
        pytest.param([40, 17], 1, [[11, 12], [21, 22]], [[13, 0], [22, 23]], id="column past the row"),
        pytest.param([49, 2**31 - 1], 1, [[11, 12], [21, 22]], [[0, 0], [0, 0]], id="all columns past the row"),
        pytest.param([33, 1], 2, TABLE, [[13, 0, 0], TABLE[1]], id="all columns"),
    ],
)
def test_columns_example(lengths, spec, in_none, in_others, dtype) -> None:
    assert columns(TABLE, lengths, "none", spec=spec, dtype=dtype) == in_none
    for mode in ("align", "all"):
        assert columns(TABLE, lengths, mode, spec=spec, dtype=dtype) == in_others


def test_columns_of_few_and_of_none() -> None:
    assert columns(TABLE, [40, 40], "align", spec=4) == [[13, 0, 0, 0, 0], [23, 0, 0, 0, 0]]
    assert columns(np.zeros((2, 0), np.int32), [1, 40], "all", spec=1) == [[0, 0], [0, 0]]
    for mode in ("none", "align", "all"):
        assert columns(np.zeros((0, 3), np.int32), [], mode) == []
    assert state_columns(np.zeros((0, 3), np.int32), np.zeros(0, np.int64), "none", 1, 2)[0].shape == (0, 3)


def test_columns_are_computed_wider_than_64_bits_and_any_ids_are_copied() -> None:
    assert columns([[1, -5]], [-INT64_MAX - 1], "align", 1) == [[1, -5]]
    assert columns([[1, 2], [3, 4]], [INT64_MAX, 1], "align", 2**62) == [[2, 0], [3, 4]]
    wide = np.repeat(np.repeat(int32(TABLE), 2, 0), 2, 1)[::2, ::2]
    assert columns(wide, np.repeat([40, 17], 2)[::2], "align") == [[13, 0], [22, 23]]


def test_public_bug_C11_the_block_size_is_that_of_the_state() -> None:
    table = [[*range(1000, 1046)]]
    assert columns(table, [100096], "align", 2176, 0) == [[1045]]
    assert columns(table, [100096], "align", 128, 0) == [[0]]
    # Column 8399 of a row of 123 is nobody's, and above all not another request's.
    assert columns([[*range(1, 124)]] * 2, [134400, 1], "align", 16, 0) == [[0], [1]]


GOOD_COLUMNS = column_inputs(TABLE, [40, 17], "none")
COLUMNS_REFUSED = [
    ("block_table", int32([1, 2]), "(2,)", "the shape must have two dimensions"),
    ("block_table", np.array(TABLE), "'int64'", "the dtype must be int32"),
    ("seq_lens", np.array([[40, 17]]), "(1, 2)", "the shape must have one dimension"),
    ("seq_lens", np.array([40.0, 17.0]), "'float64'", "the dtype must be int32 or int64"),
    ("mamba_cache_mode", "aligned", "'aligned'", "it must be one of none, align, all"),
    ("mamba_cache_mode", None, "None", "it must be one of none, align, all"),
    ("block_size", 0, "0", "it must be an int of at least 1"),
    ("block_size", True, "True", "it must be an int of at least 1"),
    ("num_speculative_blocks", -1, "-1", "it must be an int of at least 0"),
    ("num_speculative_blocks", 1.0, "1.0", "it must be an int of at least 0"),
    ("seq_lens", np.array([40]), "1", "the size must be the number of rows of block_table, 2"),
    ("block_table", int32([[1], [2]]), "(2, 1)", "there must be at least 1 + num_speculative_blocks columns, 2"),
]


def test_columns_refusals_and_their_order() -> None:
    refuses(state_columns, GOOD_COLUMNS, COLUMNS_REFUSED)


@given(lengths=st.lists(st.integers(-3, 30), min_size=2, max_size=2), size=st.integers(1, 9), spec=st.integers(0, 2))
def test_modes_agree_on_first_blocks_and_columns_rise_by_one_a_block(lengths, size, spec) -> None:
    found = columns(TABLE, lengths, "align", size, spec)
    longer = columns(TABLE, [max(length, 1) + size for length in lengths], "align", size, spec)
    first_blocks = columns(TABLE, lengths, "none", size, spec)
    for row in range(2):
        assert longer[row][:spec] == found[row][1:]
        if lengths[row] <= size:
            assert found[row] == first_blocks[row]


def stage_inputs(states, starts, accepted, batch_size, *, capacity=4, columns=1, dtype="int64"):
    return {
        "state_indices": int32(states).reshape(-1, columns),
        "query_start_loc": np.array(starts, dtype=dtype),
        "num_accepted_tokens": np.array(accepted, dtype=dtype),
        "batch_size": batch_size,
        "state_buffer": np.full((capacity, columns), KEPT, np.int32),
        "query_start_loc_buffer": np.full(capacity + 1, KEPT, np.int32),
        "num_accepted_buffer": np.full(capacity, KEPT, np.int32),
    }


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("inputs", "states", "starts", "accepted"),
    [
        pytest.param(
            ([[3], [5]], [0, 2, 4], [2, 1], 3), [3, 5, 0, KEPT], [0, 2, 4, 4, KEPT], [2, 1, 1, KEPT], id="one"
        ),
        pytest.param(
            ([[3], [5]], [0, 2, 4], [2, 1], 2),
            [3, 5, KEPT, KEPT],
            [0, 2, 4, KEPT, KEPT],
            [2, 1, KEPT, KEPT],
            id="no padding",
        ),
        pytest.param(
            ([[3], [5]], [7, 9, 8], [0, -4], 4), [3, 5, 0, 0], [7, 9, 8, 8, 8], [0, -4, 1, 1], id="any values"
        ),
        pytest.param(([], [6], [], 2), [0, 0, KEPT, KEPT], [6, 6, 6, KEPT, KEPT], [1, 1, KEPT, KEPT], id="no row"),
        pytest.param(([], [6], [], 0), [KEPT] * 4, [6] + [KEPT] * 4, [KEPT] * 4, id="no row and no padding"),
    ],
)
def test_stage_example(inputs, states, starts, accepted, dtype) -> None:
    batch_size = inputs[-1]
    views = result(stage_decode_state, stage_inputs(*inputs, dtype=dtype))
    assert views[3:] == [[[state] for state in states], starts, accepted]
    assert views[:3] == [[[state] for state in states[:batch_size]], starts[: batch_size + 1], accepted[:batch_size]]


def test_stage_copies_all_speculative_columns_and_gives_views() -> None:
    arguments = stage_inputs([[3, 4, 5], [6, 7, 8]], [0, 3, 6], [1, 3], 3, columns=3)
    assert result(stage_decode_state, arguments)[0] == [[3, 4, 5], [6, 7, 8], [0, 0, 0]]
    found = stage_decode_state(**arguments)
    assert all(np.shares_memory(view, whole) for view, whole in zip(found[:3], found[3:], strict=True))
    wide = {
        name: np.repeat(value, 2, -1)[..., ::2] for name, value in arguments.items() if isinstance(value, np.ndarray)
    }
    assert result(stage_decode_state, arguments | wide) == [array.tolist() for array in found]


def test_stage_without_capacity_or_columns() -> None:
    assert result(stage_decode_state, stage_inputs([], [5], [], 0, capacity=0))[3:] == [[], [5], []]
    arguments = stage_inputs([], [5], [], 1)
    arguments |= {"state_indices": np.zeros((0, 0), np.int32), "state_buffer": np.zeros((4, 0), np.int32)}
    assert result(stage_decode_state, arguments)[0] == [[]]


def test_public_bug_C08_a_padded_row_has_no_state_although_its_slot_holds_one() -> None:
    # A dummy step of one request, padded to four rows of length 0: slots 1 to 3 still hold blocks of their last owners.
    tables, out = [int32([[7, 8], [9, 9], [9, 9], [9, 9]])], [np.full((4, 2), 9, np.int32)]
    (gathered,) = gather_block_tables(tables, np.array([[2, 2, 2, 2]]), np.array([0]), out)
    lengths = np.array([1, 0, 0, 0])
    for mode in ("none", "align", "all"):
        (state_indices,) = state_columns(gathered[0], lengths, mode, 16, 0)
        assert state_indices.tolist() == [[7], [0], [0], [0]]
        arguments = stage_inputs(state_indices[:1], [0, 1], [1], 4)
        assert result(stage_decode_state, arguments)[0] == [[7], [0], [0], [0]]


def test_public_bug_C16_padding_has_no_live_requests_state() -> None:
    arguments = stage_inputs([[3], [5]], [0, 1, 2], [1, 1], 4)
    arguments["state_buffer"] = int32([[3], [5], [3], [5]])
    assert result(stage_decode_state, arguments)[0] == [[3], [5], [0], [0]]


def test_public_bug_C01_padding_has_accepted_one_token_and_not_none() -> None:
    # The state's column is the accepted count minus one.
    accepted = result(stage_decode_state, stage_inputs([[3]], [0, 1], [3], 4))[2]
    assert [count - 1 for count in accepted] == [2, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_start_loc": np.array([2**31, 1, 2])}, r"query_start_loc\[0\] is 2147483648"),
        ({"query_start_loc": np.array([0, 1, -(2**31) - 1])}, r"query_start_loc\[2\] is -2147483649"),
        ({"num_accepted_tokens": np.array([1, 2**40])}, r"num_accepted_tokens\[1\] is 1099511627776"),
    ],
)
def test_stage_is_not_promised(change, reason) -> None:
    with pytest.raises(OnlyMemorySafety, match=reason):
        stage_decode_state(**stage_inputs([[3], [5]], [0, 1, 2], [1, 1], 3) | change)


STAGE = stage_inputs([[3], [5]], [0, 1, 2], [1, 1], 3)
STAGE_REFUSED = [
    ("state_indices", int32([3, 5]), "(2,)", "the shape must have two dimensions"),
    ("state_indices", np.array([[3], [5]]), "'int64'", "the dtype must be int32"),
    ("query_start_loc", np.int64(0), "()", "the shape must have one dimension"),
    ("query_start_loc", np.array([0, 1, 2], "uint32"), "'uint32'", "the dtype must be int32 or int64"),
    ("num_accepted_tokens", np.array([[1, 1]]), "(1, 2)", "the shape must have one dimension"),
    ("num_accepted_tokens", np.array([1, 1], "int8"), "'int8'", "the dtype must be int32 or int64"),
    ("batch_size", -1, "-1", "it must be an int of at least 0"),
    ("batch_size", 3.0, "3.0", "it must be an int of at least 0"),
    ("state_buffer", int32([0] * 4), "(4,)", "the shape must have two dimensions"),
    ("state_buffer", np.zeros((4, 1), "int64"), "'int64'", "the dtype must be int32"),
    ("query_start_loc_buffer", int32([[0] * 5]), "(1, 5)", "the shape must have one dimension"),
    ("query_start_loc_buffer", np.zeros(5), "'float64'", "the dtype must be int32"),
    ("num_accepted_buffer", int32([[0] * 4]), "(1, 4)", "the shape must have one dimension"),
    ("num_accepted_buffer", np.zeros(4, "int64"), "'int64'", "the dtype must be int32"),
    ("query_start_loc", np.array([0, 2]), "2", "the size must be one more than the rows of state_indices, 3"),
    ("num_accepted_tokens", np.array([1]), "1", "the size must be the number of rows of state_indices, 2"),
    ("state_buffer", int32([[0, 0]] * 4), "(4, 2)", "the columns must be those of state_indices, 1"),
    ("query_start_loc_buffer", int32([0] * 4), "4", "the size must be one more than the rows of state_buffer, 5"),
    ("num_accepted_buffer", int32([0] * 5), "5", "the size must be the number of rows of state_buffer, 4"),
    ("batch_size", 1, "1", "it must lie in 2..4, the rows of state_indices and of state_buffer"),
    ("batch_size", 5, "5", "it must lie in 2..4, the rows of state_indices and of state_buffer"),
]


def test_stage_refusals_and_their_order() -> None:
    refuses(stage_decode_state, STAGE, STAGE_REFUSED)


def partition_inputs(queries, mask, dtype="int64"):
    starts = [0, *itertools.accumulate(queries)]
    return {
        "query_start_loc": np.array(starts, dtype=dtype),
        "query_start_loc_cpu": np.array(starts, dtype="int32"),
        "spec_mask_cpu": np.array(mask, dtype=np.bool_),
    }


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "mask", "wanted"),
    [
        pytest.param([2, 3, 1], [1, 0, 1], [[0, 1, 5], [2, 3, 4], [0, 2, 3], [0, 3]], id="mixed"),
        pytest.param([2, 1], [1, 1], [[0, 1, 2], [], [0, 2, 3], [0]], id="all speculate"),
        pytest.param([2, 1], [0, 0], [[], [0, 1, 2], [0], [0, 2, 3]], id="none speculates"),
        pytest.param([2, 0, 0, 1], [1, 0, 1, 0], [[0, 1], [2], [0, 2, 2], [0, 0, 1]], id="requests without tokens"),
        pytest.param([0, 0], [1, 0], [[], [], [0, 0], [0, 0]], id="no token"),
        pytest.param([], [], [[], [], [0], [0]], id="no request"),
    ],
)
def test_partition_example(queries, mask, wanted, dtype) -> None:
    assert result(spec_token_partition, partition_inputs(queries, mask, dtype)) == wanted


@given(requests=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
def test_each_token_is_in_one_part_and_the_parts_are_packed_in_order(requests) -> None:
    queries, mask = [number for number, _ in requests], [part for _, part in requests]
    *indices, spec_starts, other_starts = result(spec_token_partition, partition_inputs(queries, mask))
    assert sorted(indices[0] + indices[1]) == list(range(sum(queries)))
    starts, next_place = [spec_starts, other_starts], [0, 0]
    token = 0
    for number, speculates in requests:
        part = 0 if speculates else 1
        begin, end = starts[part][next_place[part] : next_place[part] + 2]
        assert indices[part][begin:end] == list(range(token, token + number))
        next_place[part] += 1
        token += number


@pytest.mark.parametrize("device_starts", [[0, 1, 3], [0, 2, 4], [-1, 2, 3], [0, 2**40, 3]])
def test_partition_is_not_promised_where_the_twins_differ(device_starts) -> None:
    arguments = partition_inputs([2, 1], [1, 0]) | {"query_start_loc": np.array(device_starts)}
    with pytest.raises(OnlyMemorySafety, match="on the device and"):
        spec_token_partition(**arguments)


PARTITION = partition_inputs([2, 1], [1, 0])
PARTITION_REFUSED = [
    ("query_start_loc", np.array([[0, 2, 3]]), "(1, 3)", "the shape must have one dimension"),
    ("query_start_loc", np.array([0.0, 2.0, 3.0]), "'float64'", "the dtype must be int32 or int64"),
    ("query_start_loc_cpu", np.int64(0), "()", "the shape must have one dimension"),
    ("query_start_loc_cpu", np.array([0, 2, 3], "int16"), "'int16'", "the dtype must be int32 or int64"),
    ("spec_mask_cpu", np.array([[True, False]]), "(1, 2)", "the shape must have one dimension"),
    ("spec_mask_cpu", np.array([1, 0]), "'int64'", "the dtype must be bool"),
    ("query_start_loc", np.array([0, 2]), "2", "the size must be one more than that of spec_mask_cpu, 3"),
    ("query_start_loc_cpu", np.array([0, 2]), "2", "the size must be that of query_start_loc, 3"),
    ("query_start_loc_cpu", np.array([1, 2, 3]), "1", "the first start must be 0"),
    ("query_start_loc_cpu", np.array([0, 2, 1]), "-1", "the length of request 1 must not be negative"),
    ("query_start_loc_cpu", np.array([0, 2, 2**31]), str(2**31), "the number of tokens must fit int32"),
]


def test_partition_refusals_and_their_order() -> None:
    refuses(spec_token_partition, PARTITION, PARTITION_REFUSED)


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.state_columns) == doctest.TestResults(failed=0, attempted=2)
