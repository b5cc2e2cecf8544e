"""``slot_mapping`` and ``slot_mapping_hybrid`` by hand-written examples, public bugs, refusals and laws."""

import doctest
import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.slot_mapping
from reference.block_table import kernel_block_table
from reference.errors import ContractError, OnlyMemorySafety
from reference.slot_mapping import slot_mapping, slot_mapping_hybrid

KEPT = 77
INT64_MAX = 2**63 - 1


def inputs(
    table, requests, starts, positions, block_size, *, capacity=None, ranks=1, rank=0, interleave=1, dtype="int64"
):
    table = np.array(table, dtype=np.int32)
    return {
        "block_table": table.reshape(0, 2) if table.ndim == 1 else table,
        "idx_mapping": np.array(requests, dtype=dtype),
        "query_start_loc": np.array(starts, dtype=dtype),
        "positions": np.array(positions, dtype=dtype),
        "block_size": block_size,
        "cp_size": ranks,
        "cp_rank": rank,
        "cp_interleave": interleave,
        "slot_mapping": np.full(len(positions) if capacity is None else capacity, KEPT, dtype=np.int64),
    }


def result(function, arguments):
    before = {name: np.copy(value) for name, value in arguments.items()}
    (found,) = function(**arguments)
    assert (found.dtype, found.shape) == (np.int64, arguments["slot_mapping"].shape)
    for name, value in arguments.items():
        assert np.array_equal(before[name], value), f"{name} was changed"
        assert not np.shares_memory(found, value)
    return found.tolist()


def slots(*arguments, **more):
    return result(slot_mapping, inputs(*arguments, **more))


def hybrid(*arguments, kernel, enabled=True, **more):
    more_inputs = {"kernel_block_size": kernel, "enabled": enabled}
    return result(slot_mapping_hybrid, inputs(*arguments, **more) | more_inputs)


TABLE = [[5, 6], [9, 0], [3, -4]]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("requests", "starts", "positions", "capacity", "wanted"),
    [
        pytest.param([1, 0], [0, 1, 3], [2, 3, 4], 3, [38, 23, 24], id="rows are requests, not batch rows"),
        pytest.param([0], [0, 4], [7, 0, 7, 4], 4, [27, 20, 27, 24], id="positions in any order, repeated"),
        pytest.param([0, 2, 1], [0, 1, 1, 2], [1, 1], 2, [21, 37], id="empty row in the middle"),
        pytest.param([2, 0, 1], [0, 0, 1, 1], [1], 1, [21], id="empty rows first and last"),
        pytest.param([0, 0], [0, 1, 2], [0, 1], 2, [20, 21], id="one request in two rows"),
        pytest.param([1], [0, 2], [4, 7], 2, [0, 3], id="NULL block follows the formula"),
        pytest.param([2], [0, 2], [4, 7], 2, [-16, -13], id="negative block follows the formula"),
        pytest.param([0], [0, 2], [8, 2**31 - 1], 2, [-1, -1], id="column past the row"),
        pytest.param([0], [0, 2], [-1, -(2**31)], 2, [-1, -1], id="negative position"),
        pytest.param([-1, 3, 0], [0, 1, 2, 3], [0, 0, 0], 3, [-1, -1, 20], id="request outside the table"),
        pytest.param([0], [2, 4], [0, 1, 2, 3], 6, [KEPT, KEPT, 22, 23, -1, -1], id="tokens before the first start"),
        pytest.param([0], [0, 2], [0, 1, 2, 3], 6, [20, 21, -1, -1, -1, -1], id="padding to the end of the buffer"),
        pytest.param([0, 1], [0, 1, 9], [1, 1], 4, [21, 37, -1, -1], id="last start past the tokens"),
        pytest.param([0, 1], [1, 7, 9], [1, 1], 4, [KEPT, 21, -1, -1], id="a row starts past the tokens"),
        pytest.param([0], [5, 9], [1, 1], 7, [KEPT, KEPT, -1, -1, -1, -1, -1], id="all rows start past the tokens"),
        pytest.param([], [0], [1, 1], 3, [-1, -1, -1], id="no row"),
        pytest.param([], [1], [1, 1], 3, [KEPT, -1, -1], id="no row, first start 1"),
        pytest.param([0], [0, 0], [], 2, [-1, -1], id="no token"),
        pytest.param([], [0], [], 0, [], id="nothing"),
    ],
)
def test_example(requests, starts, positions, capacity, wanted, dtype) -> None:
    assert slots(TABLE, requests, starts, positions, 4, capacity=capacity, dtype=dtype) == wanted


def test_a_table_without_rows_or_columns_owns_no_slot() -> None:
    assert slots([], [0], [0, 1], [0], 4) == [-1]
    assert slots([[], []], [0, 1], [0, 1, 2], [0, 0], 4) == [-1, -1]


def test_arithmetic_is_wider_than_32_and_64_bits() -> None:
    block = 2**31 - 1
    assert slots([[block]], [0], [0, 1], [63], 64) == [block * 64 + 63]
    assert slots([[block]], [0], [0, 1], [2**32 - 1], 2**32) == [2**63 - 1]
    assert slots([[0]], [0], [0, 1], [INT64_MAX], 2**70) == [INT64_MAX]
    assert slots([[3, 0]], [0], [0, 1], [2**40], 2**40, ranks=2**31, rank=1, interleave=2**40) == [3 * 2**40]


@pytest.mark.parametrize(
    ("rank", "wanted"),
    [
        (0, [20, 21, -1, -1, 22, 23, -1, -1, 24, 25, -1, -1]),
        (1, [-1, -1, 20, 21, -1, -1, 22, 23, -1, -1, 24, -1]),
    ],
)
def test_two_ranks_take_turns_of_two_tokens(rank, wanted) -> None:
    # Position 16 is in the third virtual block: rank 0's, but past the row.
    positions = [*range(11), 16]
    assert slots([[5, 6]], [0], [0, 12], positions, 4, ranks=2, rank=rank, interleave=2) == wanted


def test_an_interleave_of_a_whole_block_gives_whole_blocks_to_the_ranks() -> None:
    found = [slots([[5, 6]], [0], [0, 12], range(12), 2, ranks=3, rank=rank, interleave=2) for rank in range(3)]
    assert found[0] == [10, 11, -1, -1, -1, -1, 12, 13, -1, -1, -1, -1]
    assert found[2] == [-1, -1, -1, -1, 10, 11, -1, -1, -1, -1, 12, 13]


def test_without_context_parallelism_the_interleave_changes_nothing() -> None:
    for interleave in (1, 3, 4, 100):
        assert slots(TABLE, [0], [0, 3], [0, 3, 6], 4, interleave=interleave) == [20, 23, 26]


@pytest.mark.parametrize(
    ("block_size", "kernel", "positions", "wanted"),
    [
        pytest.param(8, 4, [0, 3, 4, 8, 12], [24, 27, 28, 36, -1], id="kernel block divides the block"),
        pytest.param(6, 4, [5, 6, 11], [29, 30, 39], id="kernel block does not divide the block"),
        pytest.param(2, 4, [2, 3, 4], [26, 27, 28], id="kernel block larger than the block"),
        pytest.param(4, 4, [0, 5, 11], [24, 29, 39], id="one size"),
    ],
)
def test_the_look_up_uses_the_kernel_block_size(block_size, kernel, positions, wanted) -> None:
    assert hybrid([[6, 7, 9]], [0], [0, len(positions)], positions, block_size, kernel=kernel) == wanted


def test_a_kernel_block_larger_than_the_block_under_context_parallelism() -> None:
    found = hybrid([[5]], [0], [0, 6], range(6), 2, ranks=2, interleave=2, kernel=4)
    assert found == [20, 21, -1, -1, 22, 23]


@pytest.mark.parametrize("starts", [[0, 1, 3], [2, 3, 3], [9, 9, 9], [3, 1, 0], [-4, 0, 3]])
def test_a_group_that_is_switched_off_pads_the_whole_buffer(starts) -> None:
    found = hybrid(TABLE, [0, 1], starts, [0, 1, 2], 4, kernel=4, capacity=5, enabled=False)
    assert found == [-1] * 5


def test_strides_do_not_matter_and_a_second_call_remembers_nothing() -> None:
    plain = inputs(TABLE, [2, 0], [0, 1, 3], [1, 6, 0], 4, capacity=4)
    wide = {name: np.repeat(value, 2, -1)[..., ::2] for name, value in plain.items() if isinstance(value, np.ndarray)}
    assert result(slot_mapping, plain | wide) == [13, 26, 20, -1]
    wide["positions"][:] = [0, 7, 1]
    assert result(slot_mapping, plain | wide) == [12, 27, 21, -1]


def test_public_bug_B03_a_buffer_that_counts_pages_cannot_hold_tokens() -> None:
    # Two requests of 7 and 6 tokens, pages of 4 tokens, two pages each: 4 elements where 13 are needed.
    arguments = [[[1, 2], [3, 4]], [0, 1], [0, 7, 13], [*range(7), *range(6)], 4]
    with pytest.raises(
        ContractError, match="slot_mapping: 4 breaks the rule: the size must be at least that of positions, 13"
    ):
        slots(*arguments, capacity=4)
    assert slots(*arguments, capacity=16)[-5:] == [16, 17, -1, -1, -1]


def test_public_bug_B13_ownership_by_the_block_and_look_up_by_the_kernel_block() -> None:
    of_rank = [hybrid([[6, 7]], [0], [0, 1], [12], 8, kernel=4, ranks=2, rank=r, interleave=8) for r in (0, 1)]
    assert of_rank == [[-1], [28]]


def test_public_bug_D01_minus_one_is_no_slot_of_the_last_block() -> None:
    # Indexing from the end would make it block 4, offset 15: slot 79, which somebody owns.
    table = [[0, 1, 2, 3, 4]]
    assert slots(table, [0], [0, 2], [78, -1], 16, capacity=4) == [78, -1, -1, -1]
    assert slots(table, [-1], [0, 1], [79], 16) == [-1]


def test_public_bug_D05_a_column_past_the_row_is_not_the_next_requests() -> None:
    wide = np.arange(64).reshape(2, 32)
    assert slots(wide, [0], [0, 3], [127, 130, 8192], 4) == [127, -1, -1]
    assert slots([[20, 36], [37, 38]], [0], [0, 2], [0, 8], 4) == [80, -1]


def test_public_bug_D06_a_dummy_batch_writes_nothing_through_stale_rows() -> None:
    # Slots 37 and 38 are those of the stale row's block 9.
    assert slots([[9]], [0], [0, 2], [1, 2], 4) == [37, 38]
    assert slots([[9]], [-1], [0, 3], [1, 2, 3], 4) == [-1, -1, -1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_start_loc": np.array([-1, 0, 2])}, "first start is -1"),
        ({"query_start_loc": np.array([0, 2, 1])}, "length of row 1 is -1"),
        ({"query_start_loc": np.array([9, 8, 8])}, "length of row 0 is -1"),
        ({"query_start_loc": np.array([0, INT64_MAX, -INT64_MAX - 1])}, f"length of row 1 is {-(2**64) + 1}"),
        ({"idx_mapping": np.array([], np.int64), "query_start_loc": np.array([-3])}, "first start is -3"),
        ({"block_size": 2**61, "positions": np.array([1, 0])}, f"slot {5 * 2**61 + 1} of request 0"),
        ({"block_table": np.array([[-5]], np.int32), "block_size": 2**61}, f"slot {-5 * 2**61 + 1} of request 0"),
    ],
)
def test_no_values_are_promised(change, reason) -> None:
    arguments = inputs(TABLE, [0, 1], [0, 1, 2], [1, 0], 4) | change
    with pytest.raises(OnlyMemorySafety, match=reason):
        slot_mapping(**arguments)


GOOD = inputs(TABLE, [0, 1], [0, 1, 2], [0, 0], 4) | {"kernel_block_size": 4, "enabled": True}
REFUSED = [
    ("block_table", GOOD["block_table"][0], "(2,)", "the shape must have two dimensions"),
    ("block_table", GOOD["block_table"].astype("int64"), "'int64'", "the dtype must be int32"),
    ("idx_mapping", GOOD["idx_mapping"][None], "(1, 2)", "the shape must have one dimension"),
    ("idx_mapping", GOOD["idx_mapping"].astype("int16"), "'int16'", "the dtype must be int32 or int64"),
    ("query_start_loc", np.int64(0), "()", "the shape must have one dimension"),
    ("query_start_loc", GOOD["query_start_loc"].astype("uint32"), "'uint32'", "the dtype must be int32 or int64"),
    ("positions", GOOD["positions"][:, None], "(2, 1)", "the shape must have one dimension"),
    ("positions", GOOD["positions"].astype("float32"), "'float32'", "the dtype must be int32 or int64"),
    ("slot_mapping", GOOD["slot_mapping"][None], "(1, 2)", "the shape must have one dimension"),
    ("slot_mapping", GOOD["slot_mapping"].astype("int32"), "'int32'", "the dtype must be int64"),
    ("block_size", 0, "0", "it must be an int of at least 1"),
    ("block_size", 4.0, "4.0", "it must be an int of at least 1"),
    ("cp_size", 0, "0", "it must be an int of at least 1"),
    ("cp_size", True, "True", "it must be an int of at least 1"),
    ("cp_rank", -1, "-1", "it must be an int of at least 0"),
    ("cp_rank", False, "False", "it must be an int of at least 0"),
    ("cp_interleave", 0, "0", "it must be an int of at least 1"),
    ("cp_interleave", None, "None", "it must be an int of at least 1"),
    ("cp_rank", 1, "1", "it must be below cp_size, 1"),
    ("kernel_block_size", 0, "0", "it must be an int of at least 1"),
    ("kernel_block_size", True, "True", "it must be an int of at least 1"),
    ("enabled", 1, "1", "it must be a bool"),
    ("query_start_loc", np.array([0, 2]), "2", "the size must be one more than that of idx_mapping, 2"),
    ("query_start_loc", np.array([], np.int64), "0", "the size must be one more than that of idx_mapping, 2"),
    ("slot_mapping", GOOD["slot_mapping"][:1], "1", "the size must be at least that of positions, 2"),
]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(("name", "value", "shown", "rule"), REFUSED)
def test_refusal(name, value, shown, rule, enabled) -> None:
    with pytest.raises(ContractError) as caught:
        slot_mapping_hybrid(**GOOD | {"enabled": enabled} | {name: value})
    assert str(caught.value) == f"{name}: {shown} breaks the rule: {rule}"
    if name not in ("kernel_block_size", "enabled"):
        plain = {key: item for key, item in GOOD.items() if key not in ("kernel_block_size", "enabled")}
        with pytest.raises(ContractError, match=re.escape(str(caught.value))):
            slot_mapping(**plain | {name: value})


def test_the_interleave_divides_the_block_only_where_there_are_ranks() -> None:
    message = "block_size: 4 breaks the rule: it must be a multiple of cp_interleave, 3, where cp_size is above 1"
    with pytest.raises(ContractError) as caught:
        slots(TABLE, [0], [0, 1], [0], 4, ranks=2, interleave=3)
    assert str(caught.value) == message
    assert slots(TABLE, [0], [0, 1], [0], 4, interleave=3) == [20]
    with pytest.raises(ContractError, match="it must be below cp_size, 2"):
        slots(TABLE, [0], [0, 1], [0], 4, ranks=2, rank=2, interleave=3)


def test_refusals_come_in_a_fixed_order() -> None:
    for first, second in itertools.combinations(REFUSED, 2):
        if first[0] != second[0]:
            with pytest.raises(ContractError) as caught:
                slot_mapping_hybrid(**GOOD | {second[0]: second[1]} | {first[0]: first[1]})
            assert (caught.value.argument, caught.value.rule) == (first[0], first[3])


REQUEST_TABLES = st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=3)
POSITIONS = st.lists(st.integers(-2, 50), max_size=8)


@given(table=REQUEST_TABLES, positions=POSITIONS, block_size=st.integers(1, 9), before=st.integers(0, 3))
def test_a_slot_names_its_block_and_its_place_in_it(table, positions, block_size, before) -> None:
    before = min(before, len(positions))
    found = slots(table, [0], [before, len(positions)], positions, block_size, capacity=len(positions) + 2)
    assert found[:before] == [KEPT] * before
    assert found[-2:] == [-1, -1]
    for position, slot in list(zip(positions, found, strict=False))[before:]:
        if 0 <= position < 3 * block_size:
            assert divmod(slot, block_size) == (table[0][position // block_size], position % block_size)
        else:
            assert slot == -1


@given(ranks=st.integers(1, 5), interleave=st.integers(1, 4), times=st.integers(1, 3))
def test_each_token_has_one_rank_and_each_rank_fills_its_blocks(ranks, interleave, times) -> None:
    block_size = interleave * times
    num_tokens = 2 * block_size * ranks
    found = [
        slots(
            [[1, 2]], [0], [0, num_tokens], range(num_tokens), block_size, ranks=ranks, rank=rank, interleave=interleave
        )
        for rank in range(ranks)
    ]
    for of_token in zip(*found, strict=True):
        assert sum(slot != -1 for slot in of_token) == 1
    for of_rank in found:
        assert [slot for slot in of_rank if slot != -1] == list(range(block_size, 3 * block_size))


@given(
    table=REQUEST_TABLES,
    positions=POSITIONS,
    kernel=st.integers(1, 4),
    parts=st.integers(1, 3),
    ranks=st.integers(1, 3),
)
def test_an_expanded_table_gives_the_same_slots(table, positions, kernel, parts, ranks) -> None:
    block_size = kernel * parts
    batch = [[0], [0, len(positions)], positions, block_size]
    (expanded,) = kernel_block_table(np.array(table, dtype=np.int32), parts, parts)
    for rank in range(ranks):
        of_kernel_blocks = hybrid(expanded, *batch, kernel=kernel, ranks=ranks, rank=rank)
        assert of_kernel_blocks == slots(table, *batch, ranks=ranks, rank=rank)


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.slot_mapping) == doctest.TestResults(failed=0, attempted=3)
