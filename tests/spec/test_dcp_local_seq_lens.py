"""``dcp_local_seq_lens`` by hand-written examples, a law, and its refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import ContractError, OnlyMemorySafety
from reference.sparse_indptr import dcp_local_seq_lens


def local(lengths, size, rank, interleave, dtype="int64"):
    lengths = np.array(lengths, dtype=dtype)
    before = lengths.copy()
    (found,) = dcp_local_seq_lens(lengths, size, rank, interleave)
    assert np.array_equal(lengths, before)
    assert not np.shares_memory(found, lengths)
    assert (found.dtype, found.shape) == (np.int32, (*lengths.shape, size) if rank is None else lengths.shape)
    return found.tolist()


def refusal(arguments):
    with pytest.raises(ContractError) as caught:
        dcp_local_seq_lens(**arguments)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_local_lengths_example(dtype) -> None:
    assert local([0, 1, 2, 5, 8], 4, 0, 1, dtype) == [0, 1, 1, 2, 2]
    assert local([0, 1, 2, 5, 8], 4, 1, 1, dtype) == [0, 0, 1, 1, 2]
    assert local([17, 16, 33], 2, None, 16, dtype) == [[16, 1], [16, 0], [17, 16]]
    assert local([7, -3], 1, 0, 5, dtype) == [7, 0]
    assert local([-3, -(2**31)], 4, None, 1, dtype) == [[0] * 4, [0] * 4]
    assert local(5, 2, 1, 1, dtype) == 2
    assert local(5, 2, None, 1, dtype) == [3, 2]
    assert local([[1, 2], [3, 4]], 2, 0, 1, dtype) == [[1, 1], [2, 2]]
    assert local([], 3, None, 1, dtype) == []
    assert local(2**31 - 1, 1, 0, 1, dtype) == 2**31 - 1


def test_local_lengths_of_no_sequence_still_have_their_ranks() -> None:
    assert dcp_local_seq_lens(np.zeros((2, 0), np.int32), 3, None, 1)[0].shape == (2, 0, 3)
    assert dcp_local_seq_lens(np.int64(4), 3, 2, 1)[0].shape == ()


def test_local_lengths_are_counted_in_64_bits() -> None:
    assert local([2**32], 4, None, 2**29) == [[2**30] * 4]
    with pytest.raises(OnlyMemorySafety, match=f"a rank owns {2**31} tokens"):
        dcp_local_seq_lens(np.array([0, 2**32]), 2, 1, 1)


@given(length=st.integers(-3, 60), size=st.integers(1, 5), interleave=st.integers(1, 4))
def test_each_token_belongs_to_one_rank(length, size, interleave) -> None:
    owners = [(token // interleave) % size for token in range(length)]
    counts = local(length, size, None, interleave)
    assert counts == [owners.count(rank) for rank in range(size)]
    assert [local(length, size, rank, interleave) for rank in range(size)] == counts


LOCAL = {"seq_lens": np.array([5, 3]), "dcp_size": 2, "dcp_rank": 0, "interleave": 1}
LOCAL_REFUSED = [
    ("seq_lens", np.array([5, 3], "int16"), "'int16'", "the dtype must be int32 or int64"),
    ("dcp_size", 0, "0", "it must be an int of at least 1"),
    ("dcp_size", True, "True", "it must be an int of at least 1"),
    ("dcp_rank", -1, "-1", "it must be an int of at least 0"),
    ("dcp_rank", 0.0, "0.0", "it must be an int of at least 0"),
    ("interleave", 0, "0", "it must be an int of at least 1"),
    ("interleave", None, "None", "it must be an int of at least 1"),
    ("dcp_rank", 2, "2", "it must be below dcp_size, 2"),
]


def test_local_refusals_and_their_order() -> None:
    for name, value, shown, rule in LOCAL_REFUSED:
        assert refusal(LOCAL | {name: value}) == f"{name}: {shown} breaks the rule: {rule}"
    for first, second in itertools.combinations(LOCAL_REFUSED, 2):
        if first[0] != second[0]:
            found = refusal(LOCAL | {second[0]: second[1], first[0]: first[1]})
            assert found.startswith(f"{first[0]}: ")
