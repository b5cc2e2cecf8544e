"""``causal_conv1d_metadata`` by hand-written examples and refusals, on the specification and the optimized function."""

import itertools

import numpy as np
import pytest
import torch

from optimized.causal_conv1d_metadata import causal_conv1d_metadata as optimized
from optimized.errors import ContractError as OptimizedContractError
from reference.chunk_metadata import causal_conv1d_metadata as reference
from reference.errors import ContractError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def call_optimized(starts, block_m):
    return optimized(query_start_loc=torch.from_numpy(np.array(starts, order="C")), block_m=block_m)


def both(starts, block_m, dtype="int64"):
    """The programs as pairs of request and block, and the outputs' length; both functions give the same."""
    starts = np.array(starts, dtype=dtype)
    wanted, found = reference(starts, block_m), call_optimized(starts, block_m)
    assert {column.dtype for column in wanted[:2]} == {np.dtype("int32")}
    assert {column.dtype for column in found[:2]} == {torch.int32}
    assert type(wanted[2]) is type(found[2]) is int
    batch, blocks = wanted[0].tolist(), wanted[1].tolist()
    assert (found[0].tolist(), found[1].tolist(), found[2]) == (batch, blocks, wanted[2])
    total = wanted[2]
    assert len(batch) == len(blocks)
    assert set(batch[total:]) == set(blocks[total:]) == {-1}
    return list(zip(batch[:total], blocks[:total], strict=True)), len(batch)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("starts", "block_m", "programs"),
    [
        pytest.param([0], 8, [], id="no request"),
        pytest.param([7], 64, [], id="no request, start not 0"),
        pytest.param([0, 0], 8, [], id="all empty"),
        pytest.param([0, 17, 17, 20], 8, [(0, 0), (0, 1), (0, 2), (2, 0)], id="empty in the middle"),
        pytest.param([0, 3, 3, 20], 8, [(0, 0), (2, 0), (2, 1), (2, 2)], id="empty, then several blocks"),
        pytest.param([0, 0, 8], 8, [(1, 0)], id="empty first, a whole block"),
        pytest.param([0, 9, 9, 9], 8, [(0, 0), (0, 1)], id="empty last, twice"),
        pytest.param([5, 13, 22], 8, [(0, 0), (1, 0), (1, 1)], id="first start not 0"),
        pytest.param([-9, -1, 0], 8, [(0, 0), (1, 0)], id="negative starts"),
        pytest.param([0, 65, 129], 64, [(0, 0), (0, 1), (1, 0)], id="blocks of 64"),
        pytest.param([0, 17, 33], 16, [(0, 0), (0, 1), (1, 0)], id="blocks of 16"),
        pytest.param([0, 17, 49], 32, [(0, 0), (1, 0)], id="blocks of 32"),
    ],
)
def test_example(starts, block_m, programs, dtype) -> None:
    assert both(starts, block_m, dtype) == (programs, 2048)


@pytest.mark.parametrize(("total", "length"), [(1023, 2048), (1024, 2048), (1025, 2050), (3000, 6000)])
def test_the_outputs_grow_from_1024_blocks_on(total, length) -> None:
    programs, found = both([3, 3 + 8 * total], 8)
    assert (programs, found) == ([(0, block) for block in range(total)], length)


def test_both_agree_on_small_batches() -> None:
    for lengths in itertools.product((0, 1, 7, 8, 9, 16, 17), repeat=3):
        both(np.cumsum([-3, *lengths]), 8)
        both(np.cumsum([2**31 - 100, *lengths]), 16)


def test_an_int32_length_may_need_33_bits_and_an_int64_length_65() -> None:
    with pytest.raises(
        ContractError, match=f"query_start_loc: {2**58 - 1} breaks the rule: block numbers must fit int32"
    ):
        reference(np.array([INT64_MIN, INT64_MAX]), 64)
    with pytest.raises(OptimizedContractError, match=f"query_start_loc: {2**58 - 1} breaks the rule"):
        call_optimized([INT64_MIN, INT64_MAX], 64)
    assert both([INT64_MAX - 9, INT64_MAX], 8)[0] == both([-(2**31), 9 - 2**31], 8, "int32")[0] == [(0, 0), (0, 1)]


def test_strides_do_not_matter_and_outputs_are_new() -> None:
    wide = torch.tensor([0, -1, 17, -1, 17, -1, 20], dtype=torch.int32)
    before = wide.clone()
    batch, blocks, total = optimized(query_start_loc=wide[::2], block_m=8)
    assert (batch[:5].tolist(), blocks[:5].tolist(), total) == ([0, 0, 0, 2, -1], [0, 1, 2, 0, -1], 4)
    batch.fill_(-5)
    blocks.fill_(-5)
    assert torch.equal(wide, before)
    assert optimized(query_start_loc=wide[::2], block_m=8)[0][:5].tolist() == [0, 0, 0, 2, -1]


GOOD = np.array([0, 4, 8])
SIZES = "it must be one of the ints (8, 16, 32, 64)"


@pytest.mark.parametrize(
    ("starts", "block_m", "message"),
    [
        (np.int64(3), 8, "query_start_loc: () breaks the rule: the shape must have one dimension"),
        (GOOD[None], 8, "query_start_loc: (1, 3) breaks the rule: the shape must have one dimension"),
        (GOOD[:0], 8, "query_start_loc: (0,) breaks the rule: there must be at least one element"),
        (GOOD.astype("int16"), 8, "query_start_loc: 'int16' breaks the rule: the dtype must be int32 or int64"),
        (GOOD.astype("float32"), 8, "query_start_loc: 'float32' breaks the rule: the dtype must be int32 or int64"),
        (GOOD, 0, f"block_m: 0 breaks the rule: {SIZES}"),
        (GOOD, 24, f"block_m: 24 breaks the rule: {SIZES}"),
        (GOOD, 128, f"block_m: 128 breaks the rule: {SIZES}"),
        (GOOD, -8, f"block_m: -8 breaks the rule: {SIZES}"),
        (GOOD, 8.0, f"block_m: 8.0 breaks the rule: {SIZES}"),
        (GOOD, None, f"block_m: None breaks the rule: {SIZES}"),
        (GOOD[::-1], 8, "query_start_loc: -4 breaks the rule: the length of request 0 must not be negative"),
        (
            np.array([0, INT64_MAX, INT64_MIN]),
            8,
            f"query_start_loc: {1 - 2**64} breaks the rule: the length of request 1",
        ),
        (np.array([0, 2**34 + 1]), 8, f"query_start_loc: {2**31} breaks the rule: block numbers must fit int32"),
    ],
)
def test_refusal(starts, block_m, message) -> None:
    with pytest.raises(ContractError) as caught:
        reference(starts, block_m)
    assert str(caught.value).startswith(message)
    with pytest.raises(OptimizedContractError) as optimized_caught:
        call_optimized(starts, block_m)
    assert str(optimized_caught.value) == str(caught.value)


def test_more_requests_than_int32_numbers_are_refused_before_anything_is_read() -> None:
    count = 2**31 + 1
    message = f"query_start_loc: {count - 1} breaks the rule: request numbers must fit int32"
    with pytest.raises(ContractError) as caught:
        reference(np.broadcast_to(np.int32(0), count + 1), 8)
    assert str(caught.value) == message
    with pytest.raises(OptimizedContractError) as optimized_caught:
        optimized(query_start_loc=torch.zeros(1, dtype=torch.int32).expand(count + 1), block_m=8)
    assert str(optimized_caught.value) == message


def test_refusals_come_in_a_fixed_order() -> None:
    for starts, block_m, rule in (
        (GOOD[None].astype("int16"), 0, "one dimension"),
        (GOOD[:0].astype("int16"), 0, "at least one element"),
        (GOOD.astype("int16"), 0, "dtype"),
        (GOOD[::-1], 0, "one of the ints"),
        (np.array([0, 2**40, 0]), 8, "must not be negative"),
    ):
        for function in (reference, call_optimized):
            with pytest.raises(ValueError, match=rule):
                function(starts, block_m)


def test_the_optimized_function_refuses_starts_that_are_not_on_the_host() -> None:
    with pytest.raises(OptimizedContractError, match="query_start_loc: 'meta' breaks the rule: it must be on the CPU"):
        optimized(query_start_loc=torch.zeros(2, dtype=torch.int32, device="meta"), block_m=8)
