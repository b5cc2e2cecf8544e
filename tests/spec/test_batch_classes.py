"""``split_decodes_and_prefills`` and ``classify_linear_attention_batch``: examples, public bugs, refusals and laws."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.batch_classes
from reference.batch_classes import classify_linear_attention_batch, split_decodes_and_prefills
from reference.errors import ContractError


def starts_of(queries, dtype="int64"):
    return np.array([0, *itertools.accumulate(queries)], dtype=dtype)


def flags(values):
    return None if values is None else np.array(values, dtype=np.bool_)


def result(function, arguments):
    before = {name: np.copy(value) for name, value in arguments.items()}
    found = function(**arguments)
    assert all(np.array_equal(before[name], value) for name, value in arguments.items())
    return found


def refuses(function, good, wrong):
    """Each of the wrong arguments is refused with its message; of two, the one that stands first."""
    for name, value, shown, rule in wrong:
        with pytest.raises(ContractError) as caught:
            function(**good | {name: value})
        assert str(caught.value) == f"{name}: {shown} breaks the rule: {rule}"
    for first, second in itertools.combinations(wrong, 2):
        if first[0] != second[0]:
            with pytest.raises(ContractError) as caught:
                function(**good | {second[0]: second[1], first[0]: first[1]})
            assert caught.value.argument == first[0]


def split(queries, prefilling=None, threshold=1, *, uniform=False, short=True, dtype="int64"):
    found = result(
        split_decodes_and_prefills,
        {
            "query_start_loc": starts_of(queries, dtype),
            "is_prefilling": flags(prefilling),
            "decode_threshold": threshold,
            "require_uniform": uniform,
            "treat_short_extends_as_decodes": short,
        },
    )
    assert all(type(count) is int for count in found)
    return found


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "threshold", "wanted"),
    [
        pytest.param([], 1, (0, 0, 0, 0), id="no request"),
        pytest.param([1, 1, 0], 1, (3, 0, 2, 0), id="padding is a decode"),
        pytest.param([0, 0], 1, (2, 0, 0, 0), id="padding alone"),
        pytest.param([1, 2, 5, 1], 1, (1, 3, 1, 8), id="all from the first prefill on"),
        pytest.param([1, 2, 5, 1], 2, (2, 2, 3, 6), id="threshold 2"),
        pytest.param([1, 0, 5, 0], 1, (2, 2, 1, 5), id="padding before and after the first prefill"),
        pytest.param([5, 1], 1, (0, 2, 0, 6), id="prefill first"),
        pytest.param([5, 1], 5, (2, 0, 6, 0), id="as many queries as the threshold"),
        pytest.param([0, 7], 1, (1, 1, 0, 7), id="padding first"),
    ],
)
def test_split_example(queries, threshold, wanted, dtype) -> None:
    assert split(queries, threshold=threshold, dtype=dtype) == wanted


@pytest.mark.parametrize(
    ("queries", "threshold", "wanted"),
    [
        pytest.param([2, 2, 3, 0], 2, (2, 2, 4, 3), id="another length"),
        pytest.param([2, 2, 1, 2], 2, (2, 2, 4, 3), id="a shorter one, although all are short"),
        pytest.param([2, 0, 2, 0], 2, (4, 0, 4, 0), id="padding has no length"),
        pytest.param([0, 1, 0], 2, (1, 2, 0, 1), id="padding first, and then another length"),
        pytest.param([0, 0], 2, (2, 0, 0, 0), id="padding alone"),
        pytest.param([3, 3], 2, (0, 2, 0, 6), id="uniform, and too long"),
        pytest.param([1, 1, 0], 1, (3, 0, 2, 0), id="threshold 1"),
        pytest.param([1, 3, 1], 1, (1, 2, 1, 4), id="threshold 1, and a prefill"),
        pytest.param([0, 1, 1], 1, (3, 0, 2, 0), id="threshold 1, padding first"),
    ],
)
def test_split_into_uniform_decodes(queries, threshold, wanted) -> None:
    assert split(queries, threshold=threshold, uniform=True) == wanted


@pytest.mark.parametrize(
    ("queries", "prefilling", "uniform", "wanted"),
    [
        pytest.param([1, 1, 1], [0, 1, 0], False, (1, 2, 1, 2), id="a short extend"),
        pytest.param([1, 2, 0], [0, 0, 0], False, (3, 0, 3, 0), id="none is prefilling"),
        pytest.param([1, 0, 1], [0, 1, 0], False, (1, 2, 1, 1), id="one without queries"),
        pytest.param([2, 2, 2], [0, 0, 1], True, (2, 1, 4, 2), id="uniform, and one is prefilling"),
        pytest.param([2, 1, 2], [0, 0, 1], True, (1, 2, 2, 3), id="another length before it"),
        pytest.param([1, 1], [1, 0], False, (0, 2, 0, 2), id="the first one"),
        pytest.param([], [], False, (0, 0, 0, 0), id="no request"),
    ],
)
def test_split_where_short_extends_are_prefills(queries, prefilling, uniform, wanted) -> None:
    assert split(queries, prefilling, 2, uniform=uniform, short=False) == wanted
    all_decodes = (len(queries), 0, sum(queries), 0)
    assert split(queries, prefilling, 2) == split(queries, None, 2) == all_decodes


def test_public_bug_C16_tokens_of_decodes_are_the_first_ones() -> None:
    # Two decodes and a prefill of five tokens: rows 0 and 1 are the decodes', not rows 5 and 6.
    num_decodes, _, num_decode_tokens, _ = split([1, 1, 5])
    assert (num_decodes, num_decode_tokens) == (2, 2)


SPLIT = {
    "query_start_loc": starts_of([1, 2]),
    "is_prefilling": flags([False, True]),
    "decode_threshold": 1,
    "require_uniform": False,
    "treat_short_extends_as_decodes": False,
}
SPLIT_REFUSED = [
    ("query_start_loc", starts_of([1, 2])[None], "(1, 3)", "the shape must have one dimension"),
    ("query_start_loc", starts_of([1, 2], "int16"), "'int16'", "the dtype must be int32 or int64"),
    ("is_prefilling", flags([[False, True]]), "(1, 2)", "the shape must have one dimension"),
    ("is_prefilling", np.array([0, 1]), "'int64'", "the dtype must be bool"),
    ("decode_threshold", 0, "0", "it must be an int of at least 1"),
    ("decode_threshold", True, "True", "it must be an int of at least 1"),
    ("require_uniform", 1, "1", "it must be a bool"),
    ("treat_short_extends_as_decodes", None, "None", "it must be a bool"),
    ("query_start_loc", np.array([], "int32"), "(0,)", "there must be at least one element"),
    ("query_start_loc", np.array([1, 2, 4]), "1", "the first start must be 0"),
    ("query_start_loc", np.array([0, 2, 1]), "-1", "the length of request 1 must not be negative"),
    ("is_prefilling", flags([True]), "1", "the size must be one less than that of query_start_loc, 2"),
    ("is_prefilling", None, "None", "it is needed where short extends are not decodes"),
]


def test_split_refusals_and_their_order() -> None:
    refuses(split_decodes_and_prefills, SPLIT, SPLIT_REFUSED)


@given(
    requests=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6),
    threshold=st.integers(1, 3),
    uniform=st.booleans(),
    short=st.booleans(),
)
def test_the_split_parts_a_batch_in_two_at_its_first_prefill(requests, threshold, uniform, short) -> None:
    queries, prefilling = [number for number, _ in requests], [flag for _, flag in requests]
    decodes, prefills, decode_tokens, prefill_tokens = split(
        queries, prefilling, threshold, uniform=uniform, short=short
    )
    assert decodes + prefills == len(queries)
    assert decode_tokens == sum(queries[:decodes])
    assert prefill_tokens == sum(queries[decodes:])
    assert all(number <= threshold for number in queries[:decodes])
    assert short or not any(prefilling[:decodes])
    if prefills and uniform and not any(prefilling) and queries[0] <= threshold:
        assert queries[decodes] not in (0, queries[0])


def classify(queries, lengths, prefilling=None, drafts=None, spec_tokens=2, dtype="int64"):
    arguments = {
        "query_start_loc_cpu": starts_of(queries, dtype),
        "seq_lens_cpu": np.array(lengths, dtype=dtype),
        "is_prefilling": flags(prefilling),
        "num_decode_draft_tokens_cpu": None if drafts is None else np.array(drafts, dtype=dtype),
        "num_speculative_tokens": spec_tokens,
    }
    *counts, spec_mask, has_initial_state, starts = result(classify_linear_attention_batch, arguments)
    assert all(type(count) is int for count in counts)
    assert (spec_mask.dtype, has_initial_state.dtype, starts.dtype) == (np.bool_, np.bool_, np.dtype(dtype))
    return counts, spec_mask.tolist(), has_initial_state.tolist(), starts.tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "lengths", "prefilling", "counts", "state", "starts"),
    [
        pytest.param([1, 1], [9, 8], [0, 0], [2, 0, 0, 2, 0, 0], [], [0], id="decodes"),
        pytest.param([1, 1, 0], [9, 8, 0], [0, 0, 0], [3, 0, 0, 2, 0, 0], [], [0], id="padding is a decode"),
        pytest.param(
            [1, 5], [9, 5], [0, 1], [1, 1, 0, 1, 5, 0], [True, False], [0, 5], id="a decode and a first chunk"
        ),
        pytest.param([5, 3], [5, 9], [1, 1], [0, 2, 0, 0, 8, 0], [False, True], [0, 5, 8], id="two chunks"),
        pytest.param([1, 1], [9, 7], [0, 1], [2, 0, 0, 2, 0, 0], [], [0], id="a later chunk of one token is a decode"),
        pytest.param([1, 1], [9, 1], [0, 0], [2, 0, 0, 2, 0, 0], [], [0], id="a graph's capture is no prefill"),
        pytest.param([1, 1], [9, 1], None, [2, 0, 0, 2, 0, 0], [], [0], id="prefilling is not known"),
        pytest.param(
            [1, 5, 0, 0],
            [9, 5, 0, 4],
            [0, 1, 0, 0],
            [1, 1, 0, 1, 5, 0],
            [True, False, False, True],
            [0, 5, 5, 5],
            id="padding after a prefill is not counted",
        ),
        pytest.param(
            [0, 5], [0, 5], [0, 1], [1, 1, 0, 0, 5, 0], [False, False], [0, 5], id="padding first is a decode"
        ),
        pytest.param(
            [3, 0, 5],
            [3, 0, 5],
            [1, 0, 1],
            [0, 2, 0, 0, 3, 0],
            [False] * 3,
            [0, 3, 3, 8],
            id="padding between prefills",
        ),
        pytest.param([0, 0], [0, 0], [1, 1], [2, 0, 0, 0, 0, 0], [], [0], id="padding alone"),
        pytest.param([], [], [], [0] * 6, [], [0], id="no request"),
    ],
)
def test_classes_without_speculation(queries, lengths, prefilling, counts, state, starts, dtype) -> None:
    wanted = (counts, [False] * len(queries), state, starts)
    assert classify(queries, lengths, prefilling, dtype=dtype) == wanted
    assert classify(queries, lengths, prefilling, [-1] * len(queries), dtype=dtype) == wanted
    assert classify(queries, lengths, prefilling, [1] * len(queries), 0, dtype=dtype) == wanted


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("queries", "lengths", "drafts", "counts", "state", "starts"),
    [
        pytest.param([3, 3], [9, 8], [2, 2], [0, 0, 2, 0, 0, 6], [], [0], id="all speculate"),
        pytest.param([3, 1], [9, 8], [2, 0], [0, 0, 2, 0, 0, 4], [], [0], id="one drafted nothing"),
        pytest.param([3, 0], [9, 0], [2, -1], [0, 0, 1, 0, 0, 3], [], [0], id="padding"),
        pytest.param([2, 1], [9, 8], [1, -1], [0, 1, 1, 0, 1, 2], [True], [0, 1], id="one token is a prefill"),
        pytest.param(
            [2, 5, 2, 0],
            [9, 5, 8, 0],
            [1, -1, 1, -1],
            [0, 1, 2, 0, 5, 4],
            [False, False],
            [0, 5, 5],
            id="a first chunk between them, and padding",
        ),
        pytest.param(
            [0, 5, 2, 4],
            [3, 9, 8, 4],
            [-1, -1, 1, -1],
            [0, 2, 1, 0, 9, 2],
            [True, True, False],
            [0, 0, 5, 9],
            id="padding first",
        ),
        pytest.param([0, 2], [0, 7], [0, -7], [0, 1, 1, 0, 2, 0], [True], [0, 2], id="one without queries speculates"),
    ],
)
def test_classes_with_speculation(queries, lengths, drafts, counts, state, starts, dtype) -> None:
    wanted = (counts, [draft >= 0 for draft in drafts], state, starts)
    for prefilling in (None, [False] * len(queries), [True] * len(queries)):
        assert classify(queries, lengths, prefilling, drafts, dtype=dtype) == wanted


def test_public_bug_C04_a_first_chunk_of_one_token_is_a_prefill_without_state() -> None:
    counts, _, state, starts = classify([1], [1], [True])
    assert (counts, state, starts) == ([0, 1, 0, 0, 1, 0], [False], [0, 1])
    assert split([1], [True], short=False) == (0, 1, 0, 1)


CLASSES = {
    "query_start_loc_cpu": starts_of([1, 2]),
    "seq_lens_cpu": np.array([9, 2]),
    "is_prefilling": flags([False, True]),
    "num_decode_draft_tokens_cpu": np.array([-1, -1]),
    "num_speculative_tokens": 2,
}
SIZE = "the size must be one less than that of query_start_loc_cpu, 2"
CLASSES_REFUSED = [
    ("query_start_loc_cpu", np.int64(0), "()", "the shape must have one dimension"),
    ("query_start_loc_cpu", starts_of([1, 2], "uint8"), "'uint8'", "the dtype must be int32 or int64"),
    ("seq_lens_cpu", np.array([[9, 2]]), "(1, 2)", "the shape must have one dimension"),
    ("seq_lens_cpu", np.array([9.0, 2.0]), "'float64'", "the dtype must be int32 or int64"),
    ("is_prefilling", flags([[False, True]]), "(1, 2)", "the shape must have one dimension"),
    ("is_prefilling", np.array([0, 1], "uint8"), "'uint8'", "the dtype must be bool"),
    ("num_decode_draft_tokens_cpu", np.array([[-1, 1]]), "(1, 2)", "the shape must have one dimension"),
    ("num_decode_draft_tokens_cpu", flags([True, False]), "'bool'", "the dtype must be int32 or int64"),
    ("num_speculative_tokens", -1, "-1", "it must be an int of at least 0"),
    ("num_speculative_tokens", False, "False", "it must be an int of at least 0"),
    ("query_start_loc_cpu", np.array([], "int64"), "(0,)", "there must be at least one element"),
    ("query_start_loc_cpu", np.array([2, 2, 3]), "2", "the first start must be 0"),
    ("query_start_loc_cpu", np.array([0, 2, 1]), "-1", "the length of request 1 must not be negative"),
    ("seq_lens_cpu", np.array([9]), "1", SIZE),
    ("is_prefilling", flags([True]), "1", SIZE),
    ("num_decode_draft_tokens_cpu", np.array([-1]), "1", SIZE),
    ("seq_lens_cpu", np.array([9, -2]), "-2", "the length of request 1 must not be negative"),
]


def test_classes_refusals_and_their_order() -> None:
    refuses(classify_linear_attention_batch, CLASSES, CLASSES_REFUSED)


@given(
    requests=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans(), st.integers(-1, 1)), max_size=5),
    padding=st.integers(0, 2),
    spec_tokens=st.integers(0, 1),
)
def test_every_request_with_queries_has_one_class(requests, padding, spec_tokens) -> None:
    queries = [number for number, *_ in requests] + [0] * padding
    lengths = [number + computed for number, computed, *_ in requests] + [0] * padding
    prefilling = [flag for _, _, flag, _ in requests] + [False] * padding
    drafts = [draft for *_, draft in requests] + [-1] * padding
    counts, mask, state, starts = classify(queries, lengths, prefilling, drafts, spec_tokens)
    num_decodes, num_prefills, num_spec, *tokens = counts
    assert sum(tokens) == sum(queries)
    assert num_spec == sum(mask)
    assert not num_spec or not num_decodes
    counted = num_decodes + num_prefills + num_spec
    assert counted == len(requests) + (padding if not num_prefills and not num_spec else 0)
    assert starts[-1] == tokens[1]
    assert len(state) == (len(queries) - num_spec if num_prefills else 0)
    assert all(before <= after for before, after in itertools.pairwise(starts))


def test_the_docstring_examples_are_true() -> None:
    assert doctest.testmod(reference.batch_classes) == doctest.TestResults(failed=0, attempted=3)
