"""``mamba_chunk_layout`` by hand-written examples and refusals, on the specification and on the optimized function."""

import itertools

import numpy as np
import pytest
import torch

from optimized.errors import ContractError as OptimizedContractError
from optimized.mamba_chunk_layout import mamba_chunk_layout as optimized
from reference.chunk_metadata import mamba_chunk_layout as reference
from reference.errors import ContractError

INT64_MAX = 2**63 - 1


def tensor(array):
    return None if array is None else torch.from_numpy(np.array(array, order="C"))


def both(lengths, computed, chunk_size, checkpoints=None, dtype="int64"):
    """The answer as four lists, which both functions give in int32."""
    starts = np.cumsum([0, *lengths]).astype(dtype)
    computed = np.array(computed, dtype=dtype)
    offsets = None if checkpoints is None else np.array(checkpoints, dtype=dtype)
    wanted = reference(starts, computed, chunk_size, offsets)
    found = optimized(
        query_start_loc=tensor(starts),
        num_computed_tokens=tensor(computed),
        chunk_size=chunk_size,
        checkpoint_offsets=tensor(offsets),
    )
    assert {column.dtype for column in wanted} == {np.dtype("int32")}
    assert {column.dtype for column in found} == {torch.int32}
    lists = tuple(column.tolist() for column in wanted)
    assert tuple(column.tolist() for column in found) == lists
    return lists


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("lengths", "computed", "checkpoints", "cu", "owners", "last", "at_checkpoint"),
    [
        pytest.param([], [], None, [0], [], [], [], id="no request"),
        pytest.param([], [], [], [0], [], [], [], id="no request, no checkpoint"),
        pytest.param([6], [3], None, [0, 1, 5, 6], [0, 0, 0], [2], [-1], id="absolute multiples"),
        pytest.param([10], [0], [6], [0, 4, 6, 8, 10], [0] * 4, [3], [1], id="multiples go on behind a checkpoint"),
        pytest.param([8], [0], [8], [0, 4, 8], [0, 0], [1], [1], id="checkpoint at the end, on a multiple"),
        pytest.param([6], [0], [6], [0, 4, 6], [0, 0], [1], [1], id="checkpoint at the end, inside a chunk"),
        pytest.param([8], [1], [2], [0, 2, 3, 7, 8], [0] * 4, [3], [0], id="checkpoint before the first multiple"),
        pytest.param([8], [1], [3], [0, 3, 7, 8], [0] * 3, [2], [0], id="checkpoint on the first multiple"),
        pytest.param([8], [1], [7], [0, 3, 7, 8], [0] * 3, [2], [1], id="checkpoint on a later multiple"),
        pytest.param([4, 0, 4], [0, 0, 0], None, [0, 4, 8], [0, 2], [0, -1, 1], [-1] * 3, id="empty in the middle"),
        pytest.param([0, 4], [0, 0], None, [0, 4], [1], [-1, 0], [-1, -1], id="empty first"),
        pytest.param([0, 4], [2, 0], [0, 1], [0, 1, 4], [1, 1], [-1, 1], [-1, 0], id="empty first, inside a chunk"),
        pytest.param([4, 0, 0], [3, 3, 4], None, [0, 1, 4], [0, 0], [1, -1, -1], [-1] * 3, id="empty last, twice"),
        pytest.param([0, 0], [1, 4], [0, 0], [0], [], [-1, -1], [-1, -1], id="all empty"),
        pytest.param([1, 1], [3, 4], [1, 0], [0, 1, 2], [0, 1], [0, 1], [0, -1], id="requests never share a chunk"),
    ],
)
def test_example(lengths, computed, checkpoints, cu, owners, last, at_checkpoint, dtype) -> None:
    assert both(lengths, computed, 4, checkpoints, dtype) == (cu, owners, last, at_checkpoint)


def test_chunks_of_one_token() -> None:
    assert both([3], [5], 1, [2]) == ([0, 1, 2, 3], [0, 0, 0], [2], [1])


@pytest.mark.parametrize(
    ("computed", "chunk_size", "cu"),
    [
        (2**31 - 1, 2**31, [0, 1, 5]),
        (INT64_MAX, 2**63, [0, 1, 5]),
        (INT64_MAX - 1, 2**63 + 2, [0, 4, 5]),
        (INT64_MAX, 2**70, [0, 5]),
        (0, 2**70, [0, 5]),
        (2**62 + 1, 2**61, [0, 5]),
    ],
)
def test_positions_past_any_dtype(computed, chunk_size, cu) -> None:
    assert both([5], [computed], chunk_size)[0] == cu


def test_the_most_tokens_that_int32_counts() -> None:
    most = 2**31 - 1
    assert both([most], [1], 2**30)[0] == [0, 2**30 - 1, most]
    assert both([most], [1], 2**40, [most])[3] == [0]


def test_both_agree_on_every_small_request() -> None:
    requests = [(n, done, cut) for n in range(6) for done in range(4) for cut in range(n + 1)]
    for chunk_size in (1, 2, 3, 4, 7):
        lengths, computed, checkpoints = zip(*requests, strict=True)
        both(lengths, computed, chunk_size, checkpoints)
        both(lengths[::-1], computed[::-1], chunk_size)
        for length, done, cut in requests:
            both([length], [done], chunk_size, [cut])


def test_strides_and_widths_do_not_matter_and_outputs_are_new() -> None:
    wide = torch.tensor([[0, 9], [6, 9], [6, 9], [8, 9]], dtype=torch.int32)
    inputs = {
        "query_start_loc": wide[:, 0],
        "num_computed_tokens": torch.tensor([9, 3, 9, 1, 9, 0], dtype=torch.int64)[1::2],
        "chunk_size": 4,
        "checkpoint_offsets": torch.tensor([7, 7, 2, 0, 1], dtype=torch.int32)[2:],
    }
    before = wide.clone()
    found = optimized(**inputs)
    assert [column.tolist() for column in found] == [[0, 1, 2, 5, 6, 7, 8], [0] * 4 + [2] * 2, [3, -1, 5], [1, -1, 4]]
    assert torch.equal(wide, before)
    found[0].fill_(-5)
    assert torch.equal(wide, before)
    assert optimized(**inputs)[0].tolist() == [0, 1, 2, 5, 6, 7, 8]


def call_optimized(starts, computed, chunk_size, offsets):
    return optimized(
        query_start_loc=tensor(starts),
        num_computed_tokens=tensor(computed),
        chunk_size=chunk_size,
        checkpoint_offsets=tensor(offsets),
    )


STARTS, COMPUTED, OFFSETS = np.array([0, 4, 8]), np.array([1, 2]), np.array([0, 4])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.int64(3)}, "query_start_loc: () breaks the rule: the shape must have one dimension"),
        ({1: COMPUTED[None]}, "num_computed_tokens: (1, 2) breaks the rule: the shape must have one dimension"),
        ({2: OFFSETS[:, None]}, "checkpoint_offsets: (2, 1) breaks the rule: the shape must have one dimension"),
        ({0: STARTS[:0]}, "query_start_loc: (0,) breaks the rule: there must be at least one element"),
        (
            {1: STARTS},
            "num_computed_tokens: 3 breaks the rule: the size must be one less than that of query_start_loc, 2",
        ),
        (
            {2: OFFSETS[:0]},
            "checkpoint_offsets: 0 breaks the rule: the size must be one less than that of query_start_loc, 2",
        ),
        ({0: STARTS.astype("int16")}, "query_start_loc: 'int16' breaks the rule: the dtype must be int32 or int64"),
        (
            {1: COMPUTED.astype("float64")},
            "num_computed_tokens: 'float64' breaks the rule: the dtype must be int32 or int64",
        ),
        ({2: OFFSETS.astype("bool")}, "checkpoint_offsets: 'bool' breaks the rule: the dtype must be int32 or int64"),
        ({3: 0}, "chunk_size: 0 breaks the rule: it must be an int of at least 1"),
        ({3: -4}, "chunk_size: -4 breaks the rule: it must be an int of at least 1"),
        ({3: True}, "chunk_size: True breaks the rule: it must be an int of at least 1"),
        ({3: 4.0}, "chunk_size: 4.0 breaks the rule: it must be an int of at least 1"),
        ({0: STARTS + 1}, "query_start_loc: 1 breaks the rule: the first start must be 0"),
        ({0: STARTS - 4}, "query_start_loc: -4 breaks the rule: the first start must be 0"),
        ({0: np.array([0, 9, 8])}, "query_start_loc: -1 breaks the rule: the length of request 1 must not be negative"),
        (
            {0: np.array([0, INT64_MAX, -(2**63)])},
            f"query_start_loc: {1 - 2**64} breaks the rule: the length of request 1 must not be negative",
        ),
        (
            {1: -COMPUTED},
            "num_computed_tokens: -1 breaks the rule: the computed tokens of request 0 must not be negative",
        ),
        (
            {2: OFFSETS - 1},
            "checkpoint_offsets: -1 breaks the rule: the checkpoint of request 0 must lie in 0..4, its tokens",
        ),
        (
            {2: OFFSETS + 1},
            "checkpoint_offsets: 5 breaks the rule: the checkpoint of request 1 must lie in 0..4, its tokens",
        ),
        ({0: np.array([0, 4, 2**31])}, f"query_start_loc: {2**31} breaks the rule: the ends of chunks must fit int32"),
    ],
)
def test_refusal(change, message) -> None:
    starts, computed, offsets, chunk_size = (
        change.get(at, good) for at, good in enumerate((STARTS, COMPUTED, OFFSETS, 4))
    )
    with pytest.raises(ContractError) as caught:
        reference(starts, computed, chunk_size, offsets)
    assert str(caught.value) == message
    with pytest.raises(OptimizedContractError) as optimized_caught:
        call_optimized(starts, computed, chunk_size, offsets)
    assert str(optimized_caught.value) == message


def test_more_requests_than_int32_numbers_are_refused_before_anything_is_read() -> None:
    count = 2**31 + 1
    message = f"query_start_loc: {count - 1} breaks the rule: request numbers must fit int32"
    zeros = np.broadcast_to(np.int32(0), count + 1), np.broadcast_to(np.int32(0), count)
    with pytest.raises(ContractError) as caught:
        reference(*zeros, 4, None)
    assert str(caught.value) == message
    starts, computed = (torch.zeros(1, dtype=torch.int32).expand(n) for n in (count + 1, count))
    with pytest.raises(OptimizedContractError) as optimized_caught:
        optimized(query_start_loc=starts, num_computed_tokens=computed, chunk_size=4, checkpoint_offsets=None)
    assert str(optimized_caught.value) == message


def test_refusals_come_in_a_fixed_order() -> None:
    faults = [
        ("one dimension", {2: OFFSETS[None]}),
        ("at least one element", {0: STARTS[:0]}),
        ("size", {1: COMPUTED[:1]}),
        ("dtype", {2: OFFSETS.astype("float32")}),
        ("int of at least 1", {3: 0}),
        ("first start", {0: STARTS + 1}),
        ("length of request", {0: np.array([0, 9, 8])}),
        ("computed tokens", {1: -COMPUTED}),
        ("checkpoint of request", {2: OFFSETS - 1}),
        ("fit int32", {0: np.array([0, 4, 2**31])}),
    ]
    for (rule, first), (_, second) in itertools.combinations(faults, 2):
        if set(first) & set(second):
            continue
        change = second | first
        values = [change.get(at, good) for at, good in enumerate((STARTS, COMPUTED, OFFSETS, 4))]
        for function in (reference, call_optimized):
            with pytest.raises(ValueError, match=rule):
                function(values[0], values[1], values[3], values[2])


def test_the_optimized_function_refuses_tensors_that_are_not_on_the_host() -> None:
    with pytest.raises(
        OptimizedContractError, match="num_computed_tokens: 'meta' breaks the rule: it must be on the CPU"
    ):
        optimized(
            query_start_loc=torch.zeros(2, dtype=torch.int32),
            num_computed_tokens=torch.zeros(1, dtype=torch.int32, device="meta"),
            chunk_size=1,
            checkpoint_offsets=None,
        )
