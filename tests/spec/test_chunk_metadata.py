"""``chunk_metadata`` by hand-written examples: values, refusals, disagreement, and inputs without promised values."""

import doctest
import itertools

import numpy as np
import pytest

import reference.chunk_metadata
from reference.chunk_metadata import chunk_metadata
from reference.errors import ContractError, OnlyMemorySafety

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def of(device, host=None, *, chunk_size, dtype="int64"):
    device = np.array(device, dtype=dtype)
    host = device if host is None else np.array(host, dtype=np.int64)
    indices, offsets = chunk_metadata(device, host, chunk_size)
    assert (indices.dtype, offsets.dtype) == (device.dtype, np.int64)
    assert indices.shape == (len(indices), 2)
    return [tuple(row) for row in indices.tolist()], offsets.tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("starts", "chunk_size", "rows", "offsets"),
    [
        pytest.param([0, 128, 128, 256], 64, [(0, 0), (0, 1), (2, 0), (2, 1)], [0, 2, 2, 4], id="empty in the middle"),
        pytest.param([0, 0, 64], 64, [(1, 0)], [0, 0, 1], id="empty first"),
        pytest.param([0, 0, 65], 64, [(1, 0), (1, 1)], [0, 0, 2], id="empty first, short last chunk"),
        pytest.param([0, 4, 4, 8], 4, [(0, 0), (2, 0)], [0, 1, 1, 2], id="repeated start"),
        pytest.param([0, 64, 64, 128], 64, [(0, 0), (2, 0)], [0, 1, 1, 2], id="repeated start, chunk 64"),
        pytest.param([0, 64, 64], 64, [(0, 0)], [0, 1, 1], id="empty last"),
        pytest.param([5, 5, 5, 5], 64, [], [0, 0, 0, 0], id="all empty"),
        pytest.param([0], 64, [], [0], id="no sequence"),
        pytest.param([7], 1, [], [0], id="no sequence, start not 0"),
        pytest.param([-9, -6, 1], 3, [(0, 0), (1, 0), (1, 1), (1, 2)], [0, 1, 4], id="negative starts"),
        pytest.param([0, 3], 1, [(0, 0), (0, 1), (0, 2)], [0, 3], id="chunk of one token"),
        pytest.param([0, 3, 6], 2**70, [(0, 0), (1, 0)], [0, 1, 2], id="chunk longer than any sequence"),
    ],
)
def test_example(starts, chunk_size, rows, offsets, dtype) -> None:
    assert of(starts, chunk_size=chunk_size, dtype=dtype) == (rows, offsets)


def test_no_answer_is_remembered_when_the_array_is_filled_again() -> None:
    starts = np.array([0, 64, 128], dtype=np.int32)
    assert chunk_metadata(starts, starts, 64)[0].tolist() == [[0, 0], [1, 0]]
    starts[:] = [0, 128, 192]
    assert chunk_metadata(starts, starts, 64)[0].tolist() == [[0, 0], [0, 1], [1, 0]]


def test_strides_and_widths_do_not_matter() -> None:
    device = np.array([0, -1, 70, -1, 70, -1, 71], dtype=np.int32)[::2]
    host = np.array([0, 70, 70, 71], dtype=np.int64)
    indices, offsets = chunk_metadata(device, host, 64)
    assert indices.dtype == np.int32
    assert (indices.tolist(), offsets.tolist()) == ([[0, 0], [0, 1], [2, 0]], [0, 2, 2, 3])


def test_inputs_keep_their_values_and_outputs_are_new() -> None:
    starts = np.array([0, 3, 5])
    indices, offsets = chunk_metadata(starts, starts, 2)
    assert starts.tolist() == [0, 3, 5]
    assert not any(np.shares_memory(starts, output) for output in (indices, offsets))


def test_an_int32_length_may_need_33_bits() -> None:
    rows, offsets = of([INT32_MIN, INT32_MAX], chunk_size=2**31, dtype="int32")
    assert (rows, offsets) == ([(0, 0), (0, 1)], [0, 2])


def test_the_longest_int64_length() -> None:
    assert of([0, INT64_MAX], chunk_size=2**62) == ([(0, 0), (0, 1)], [0, 2])
    assert of([INT64_MIN, -1], chunk_size=INT64_MAX) == ([(0, 0)], [0, 1])


@pytest.mark.parametrize(
    ("device", "host", "rows", "offsets"),
    [
        pytest.param([0, 64, 128], [0, 65, 193], [(0, 0), (1, 0), (-1, -1), (-1, -1)], [0, 1, 2], id="fewer chunks"),
        pytest.param([0, 65, 193], [0, 64, 128], [(0, 0), (0, 1)], [0, 2, 4], id="more chunks"),
        pytest.param([0, 64, 128], [0, 0, 128], [(0, 0), (1, 0)], [0, 1, 2], id="same total, other sequences"),
        pytest.param([3, 3, 3], [0, 1, 2], [(-1, -1), (-1, -1)], [0, 0, 0], id="nothing on the device"),
        pytest.param([0, 1, 2], [3, 3, 3], [], [0, 1, 2], id="nothing on the host"),
        pytest.param([0, 0, 2**40], [0, 64, 64], [(1, 0)], [0, 0, 2**34], id="absurd length"),
        pytest.param([8, 72, 136], [0, 64, 128], [(0, 0), (1, 0)], [0, 1, 2], id="same lengths, other start"),
    ],
)
def test_values_come_from_the_device_and_the_row_count_from_the_host(device, host, rows, offsets) -> None:
    assert of(device, host, chunk_size=64) == (rows, offsets)


@pytest.mark.parametrize(
    ("device", "chunk_size", "reason"),
    [
        ([0, 5, 4], 64, "length of sequence 1 is -1"),
        ([5, 0], 64, "length of sequence 0 is -5"),
        ([INT64_MIN, 0], 64, f"length of sequence 0 is {2**63}"),
        ([INT64_MIN, 0 - 1, INT64_MAX - 1], 1, f"make {2**64 - 2} chunks"),
    ],
)
def test_no_values_are_promised(device, chunk_size, reason) -> None:
    with pytest.raises(OnlyMemorySafety, match=reason):
        of(device, [0] * len(device), chunk_size=chunk_size)


def test_two_lengths_may_sum_to_more_than_int64_holds_where_their_chunks_do_not() -> None:
    device = [INT64_MIN, -1, INT64_MAX - 1]
    assert of(device, [0, 0, 0], chunk_size=4) == ([], [0, 2**61, 2**62])
    with pytest.raises(OnlyMemorySafety, match=f"make {2**63} chunks"):
        of(device, [0, 0, 0], chunk_size=2)


GOOD = np.array([0, 4, 8])


@pytest.mark.parametrize(
    ("device", "host", "chunk_size", "message"),
    [
        (np.int64(3), GOOD, 4, "cu_seqlens: () breaks the rule: the shape must have one dimension"),
        (GOOD, GOOD[None], 4, "cu_seqlens_cpu: (1, 3) breaks the rule: the shape must have one dimension"),
        (GOOD[:0], GOOD, 4, "cu_seqlens: (0,) breaks the rule: there must be at least one element"),
        (GOOD, GOOD[:0], 4, "cu_seqlens_cpu: (0,) breaks the rule: there must be at least one element"),
        (GOOD, GOOD[:2], 4, "cu_seqlens_cpu: 2 breaks the rule: the size must be that of cu_seqlens, 3"),
        (GOOD.astype("float32"), GOOD, 4, "cu_seqlens: 'float32' breaks the rule: the dtype must be int32 or int64"),
        (GOOD.astype("bool"), GOOD, 4, "cu_seqlens: 'bool' breaks the rule: the dtype must be int32 or int64"),
        (GOOD, GOOD.astype("uint64"), 4, "cu_seqlens_cpu: 'uint64' breaks the rule: the dtype must be int32 or int64"),
        (GOOD, GOOD.astype("int16"), 4, "cu_seqlens_cpu: 'int16' breaks the rule: the dtype must be int32 or int64"),
        (GOOD, GOOD, 0, "chunk_size: 0 breaks the rule: it must be an int of at least 1"),
        (GOOD, GOOD, -64, "chunk_size: -64 breaks the rule: it must be an int of at least 1"),
        (GOOD, GOOD, True, "chunk_size: True breaks the rule: it must be an int of at least 1"),
        (GOOD, GOOD, 4.0, "chunk_size: 4.0 breaks the rule: it must be an int of at least 1"),
        (GOOD, GOOD, None, "chunk_size: None breaks the rule: it must be an int of at least 1"),
        (GOOD, GOOD[::-1], 4, "cu_seqlens_cpu: -4 breaks the rule: the length of sequence 0 must not be negative"),
        (
            np.array([0, 0, 0]),
            np.array([0, INT64_MAX, INT64_MIN]),
            4,
            f"cu_seqlens_cpu: {-(2**64) + 1} breaks the rule: the length of sequence 1 must not be negative",
        ),
        (
            np.array([0, 0, 0]),
            np.array([INT64_MIN, 0, 1]),
            2**62,
            f"cu_seqlens_cpu: {2**63 + 1} breaks the rule: the lengths must sum to at most 2**63 - 1",
        ),
        (
            np.array([0, 0], dtype="int32"),
            np.array([0, 2**31 + 1]),
            1,
            f"cu_seqlens_cpu: {2**31} breaks the rule: sequence and chunk numbers must fit int32",
        ),
    ],
)
def test_refusal(device, host, chunk_size, message) -> None:
    with pytest.raises(ContractError) as caught:
        chunk_metadata(device, host, chunk_size)
    assert str(caught.value) == message
    assert message.startswith(f"{caught.value.argument}: {caught.value.value!r}")
    assert optimized_refusal(device, host, chunk_size) == message


def optimized_refusal(device, host, chunk_size) -> str:
    import torch

    from optimized.chunk_metadata import chunk_metadata as optimized
    from optimized.errors import ContractError as OptimizedContractError

    tensors = [torch.from_numpy(np.array(item, order="C")) for item in (device, host)]
    with pytest.raises(OptimizedContractError) as caught:
        optimized(cu_seqlens=tensors[0], cu_seqlens_cpu=tensors[1], chunk_size=chunk_size)
    return str(caught.value)


def test_the_optimized_wrapper_refuses_a_twin_that_is_not_on_the_host() -> None:
    import torch

    from optimized.chunk_metadata import chunk_metadata as optimized
    from optimized.errors import ContractError as OptimizedContractError

    with pytest.raises(OptimizedContractError, match="cu_seqlens_cpu: 'meta' breaks the rule: it must be on the CPU"):
        optimized(
            cu_seqlens=torch.zeros(2, dtype=torch.int32),
            cu_seqlens_cpu=torch.zeros(2, dtype=torch.int32, device="meta"),
            chunk_size=1,
        )


def test_refusals_come_in_a_fixed_order() -> None:
    faults = [
        ("dimension", {"device": GOOD[None]}),
        ("at least one element", {"host": GOOD[:0]}),
        ("size", {"host": GOOD[:2]}),
        ("dtype", {"device": GOOD.astype("float64")}),
        ("int of at least 1", {"chunk_size": 0}),
        ("negative", {"host": GOOD[::-1]}),
    ]
    for (rule, first), (_, second) in itertools.combinations(faults, 2):
        if set(first) & set(second):
            continue
        values = {"device": GOOD, "host": GOOD, "chunk_size": 4, **second, **first}
        with pytest.raises(ContractError, match=rule):
            chunk_metadata(values["device"], values["host"], values["chunk_size"])


def test_the_docstring_example_is_true() -> None:
    assert doctest.testmod(reference.chunk_metadata) == doctest.TestResults(failed=0, attempted=2)
