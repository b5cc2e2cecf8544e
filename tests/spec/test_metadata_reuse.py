"""Metadata of linear attention worked out by hand, class by class, and the buffers of a graph."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import ContractError
from reference.metadata_reuse import (
    Batch,
    LinearConfig,
    LinearMetadata,
    LinearSpec,
    buffers,
    build_linear,
    is_staged,
    staged_buffers,
    updated,
)

MODES = ("none", "align", "all")
SLOTS = np.zeros(4, np.int64)
CONFIG = LinearConfig(num_speculative_tokens=2, max_num_reqs=8, max_graph_rows=6, chunk_size=8)
FLAGS = pytest.mark.parametrize("full_graph", [False, True], ids=["eager", "graph"])
HELD = 77


def spec_of(mode="align", **more):
    kept = {"block_size": 16, "num_speculative_blocks": 2, "dtype": "float32", "page_size_bytes": 4096}
    return LinearSpec(**kept | {"mamba_cache_mode": mode} | more)


def table_of(rows, columns=4, first=11):
    """Row ``r`` holds ``first + 10 * r`` and the ids after it."""
    ids = [first + 10 * row + column for row in range(rows) for column in range(columns)]
    return np.array(ids, np.int32).reshape(rows, columns)


def batch_of(queries, lengths, *, prefilling=None, drafts=None, accepted=None, full_graph=False, **more):
    starts = np.array([0, *itertools.accumulate(queries)], np.int32)
    ints = {"num_decode_draft_tokens_cpu": drafts, "num_accepted_tokens": accepted}
    fields = {
        "step": 3, "full_graph": full_graph, "num_actual_tokens": int(starts[-1]),
        "query_start_loc": starts, "query_start_loc_cpu": starts.copy(),
        "seq_lens": np.array(lengths, np.int32), "seq_lens_cpu": np.array(lengths, np.int32),
        "is_prefilling": None if prefilling is None else np.array(prefilling, np.bool_),
        **{name: None if values is None else np.array(values, np.int32) for name, values in ints.items()},
    }  # fmt: skip
    return Batch(**fields | more)


def shown(metadata):
    """The fields that are not ``None``, tensors as lists; every integer tensor but the chunk offsets is int32."""
    fields = {}
    for field in dataclasses.fields(metadata):
        value = getattr(metadata, field.name)
        if isinstance(value, np.ndarray):
            wide = field.name == "chunk_offsets"
            assert value.dtype == (np.bool_ if value.dtype == np.bool_ else np.int64 if wide else np.int32), field.name
            value = value.tolist()
        if value is not None:
            fields[field.name] = value
    return fields


def counts(**given):
    names = ("num_prefills", "num_prefill_tokens", "num_decodes", "num_decode_tokens", "num_spec_decodes")
    return dict.fromkeys((*names, "num_spec_decode_tokens", "num_actual_tokens"), 0) | given


def conv(requests, blocks):
    """The programs of a causal convolution: 2,048 entries, -1 where there is no work."""
    padding = [-1] * (2048 - len(requests))
    return {"batch_ptr": requests + padding, "token_chunk_offset_ptr": blocks + padding}


def built(batch, mode="align", *, config=CONFIG, table=None, **more):
    table = table_of(batch.seq_lens.size) if table is None else table
    before = {name: np.copy(value) for name, value in dataclasses.asdict(batch).items()}
    metadata = build_linear(batch, spec_of(mode, **more), config, table, SLOTS)
    assert all(np.array_equal(before[name], value) for name, value in dataclasses.asdict(batch).items())
    return metadata


def by_mode(mode, none, align):
    return none if mode == "none" else align


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_decodes(mode, full_graph) -> None:
    found = built(batch_of([1, 1, 1], [5, 17, 33], full_graph=full_graph), mode)
    assert shown(found) == counts(num_decodes=3, num_decode_tokens=3, num_actual_tokens=3) | {
        "non_spec_query_start_loc": [0, 1, 2, 3],
        "non_spec_state_indices_tensor": by_mode(mode, [11, 21, 31], [11, 22, 33]),
    }


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_padded_decodes_have_the_null_block_in_a_graph(mode, full_graph) -> None:
    # public-bugs.md C08: rows of a graph's padding keep live ids in the table.
    found = built(batch_of([1, 1, 0, 0], [40, 9, 0, 0], full_graph=full_graph, num_actual_tokens=4), mode)
    padding = [0, 0] if full_graph else [31, 41]
    assert shown(found) == counts(num_decodes=4, num_decode_tokens=2, num_actual_tokens=4) | {
        "non_spec_query_start_loc": [0, 1, 2, 2, 2],
        "non_spec_state_indices_tensor": [by_mode(mode, 11, 13), 21, *padding],
    }


@FLAGS
def test_a_row_without_queries_before_one_with_is_no_padding(full_graph) -> None:
    found = built(batch_of([1, 0, 1, 0], [9, 9, 9, 0], full_graph=full_graph))
    assert found.non_spec_state_indices_tensor.tolist() == [11, 21, 31, 0 if full_graph else 41]


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_all_padding(mode, full_graph) -> None:
    found = built(batch_of([0, 0], [0, 0], full_graph=full_graph, drafts=[-1, -1], num_actual_tokens=2), mode)
    assert shown(found) == counts(num_decodes=2, num_actual_tokens=2) | {
        "non_spec_query_start_loc": [0, 0, 0],
        "non_spec_state_indices_tensor": [0, 0] if full_graph else [11, 21],
    }


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_no_requests(mode, full_graph) -> None:
    found = built(batch_of([], [], full_graph=full_graph), mode)
    assert shown(found) == counts() | {"non_spec_query_start_loc": [0], "non_spec_state_indices_tensor": []}


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_prefills(mode, full_graph) -> None:
    found = built(batch_of([20, 3], [20, 3], prefilling=[True, True], full_graph=full_graph), mode)
    states = by_mode(mode, [11, 21], [12, 21])
    assert shown(found) == counts(num_prefills=2, num_prefill_tokens=23, num_actual_tokens=23) | {
        "has_initial_state": [False, False],
        "prefill_has_initial_state": [False, False],
        "non_spec_query_start_loc": [0, 20, 23],
        "prefill_query_start_loc": [0, 20, 23],
        "non_spec_state_indices_tensor": states,
        "prefill_state_indices": states,
        "chunk_indices": [[0, 0], [0, 1], [0, 2], [1, 0]],
        "chunk_offsets": [0, 3, 4],
        "num_conv_blocks": 4,
    } | conv([0, 0, 0, 1], [0, 1, 2, 0])


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_decodes_before_prefills(mode, full_graph) -> None:
    prefilling = [False, False, True, True, False]
    batch = batch_of([1, 1, 5, 9, 0], [40, 9, 5, 30, 0], prefilling=prefilling, full_graph=full_graph)
    numbers = {"num_decodes": 2, "num_decode_tokens": 2, "num_prefills": 2, "num_prefill_tokens": 14}
    states = by_mode(mode, [11, 21, 31, 41, 51], [13, 21, 31, 42, 51])
    assert shown(built(batch, mode)) == counts(**numbers, num_actual_tokens=16) | {
        "has_initial_state": [True, True, False, True, False],
        "prefill_has_initial_state": [False, True, False],
        "non_spec_query_start_loc": [0, 1, 2, 7, 16, 16],
        "prefill_query_start_loc": [0, 5, 14, 14],
        "non_spec_state_indices_tensor": states,
        "prefill_state_indices": states[2:],
        "chunk_indices": [[0, 0], [1, 0], [1, 1]],
        "chunk_offsets": [0, 1, 3, 3],
        "num_conv_blocks": 5,
    } | conv([0, 1, 2, 3, 3], [0, 0, 0, 0, 1])


def test_a_first_chunk_of_one_token_is_a_prefill() -> None:
    found = built(batch_of([1, 1], [9, 1], prefilling=[True, True]))
    assert (found.num_decodes, found.num_prefills) == (1, 1)
    assert found.prefill_query_start_loc.tolist() == [0, 1]
    assert found.prefill_state_indices.tolist() == [21]


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_speculation_alone(mode, full_graph) -> None:
    batch = batch_of([3, 3], [40, 10], drafts=[2, 2], accepted=[2, 1], full_graph=full_graph)
    assert shown(built(batch, mode)) == counts(num_spec_decodes=2, num_spec_decode_tokens=6, num_actual_tokens=6) | {
        "uniform_spec_sequence_length": 3,
        "spec_query_start_loc": [0, 3, 6],
        "spec_sequence_masks": [True, True],
        "spec_sequence_masks_cpu": [True, True],
        "spec_token_indx": [0, 1, 2, 3, 4, 5],
        "non_spec_token_indx": [],
        "num_accepted_tokens": [2, 1],
        # In "align" the third block of row 0 is past the four columns of the table.
        "spec_state_indices_tensor": [by_mode(mode, [11, 12, 13], [13, 14, 0]), [21, 22, 23]],
    }


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_padded_speculation(mode, full_graph) -> None:
    drafts, accepted = [2, 1, -1], [2, 1, 7]
    batch = batch_of([3, 2, 0], [40, 10, 0], drafts=drafts, accepted=accepted, full_graph=full_graph)
    padding = slice(None) if full_graph else slice(-1)
    states = [by_mode(mode, [11, 12, 13], [13, 14, 0]), [21, 22, 23], [0, 0, 0]]
    assert shown(built(batch, mode)) == counts(num_spec_decodes=2, num_spec_decode_tokens=5, num_actual_tokens=5) | {
        "spec_query_start_loc": [0, 3, 5, 5][padding],
        "spec_sequence_masks": [True, True, False],
        "spec_sequence_masks_cpu": [True, True, False],
        "spec_token_indx": [0, 1, 2, 3, 4],
        "non_spec_token_indx": [],
        "num_accepted_tokens": [2, 1, 1][padding],
        "spec_state_indices_tensor": states[padding],
    }


@FLAGS
@pytest.mark.parametrize("mode", MODES)
def test_speculation_beside_others(mode, full_graph) -> None:
    drafts, accepted = [2, -1, 1, -1, -1], [2, 9, 1, 9, 9]
    batch = batch_of([3, 1, 2, 0, 4], [40, 10, 20, 0, 4], drafts=drafts, accepted=accepted, full_graph=full_graph)
    numbers = {"num_prefills": 2, "num_prefill_tokens": 5, "num_spec_decodes": 2, "num_spec_decode_tokens": 5}
    assert shown(built(batch, mode)) == counts(**numbers, num_actual_tokens=10) | {
        "has_initial_state": [True, False, False],
        "prefill_has_initial_state": [True, False, False],
        "spec_query_start_loc": [0, 3, 5],
        "non_spec_query_start_loc": [0, 1, 1, 5],
        "prefill_query_start_loc": [0, 1, 1, 5],
        "spec_sequence_masks": [True, False, True, False, False],
        "spec_sequence_masks_cpu": [True, False, True, False, False],
        "spec_token_indx": [0, 1, 2, 4, 5],
        "non_spec_token_indx": [3, 6, 7, 8, 9],
        "num_accepted_tokens": [2, 1],
        "spec_state_indices_tensor": by_mode(mode, [[11, 12, 13], [31, 32, 33]], [[13, 14, 0], [32, 33, 34]]),
        "non_spec_state_indices_tensor": [21, 41, 51],
        "prefill_state_indices": [21, 41, 51],
        "chunk_indices": [[0, 0], [2, 0]],
        "chunk_offsets": [0, 1, 1, 2],
        "num_conv_blocks": 2,
    } | conv([0, 2], [0, 0])


def test_drafts_of_a_model_that_does_not_draft_are_no_speculation() -> None:
    config = dataclasses.replace(CONFIG, num_speculative_tokens=0)
    assert built(batch_of([1, 1], [9, 9], drafts=[0, 0]), config=config).num_decodes == 2


def test_tokens_of_speculation_end_at_the_most_that_it_can_have() -> None:
    found = built(batch_of([5], [9], drafts=[2], accepted=[1]))
    assert (found.spec_token_indx.tolist(), found.num_spec_decode_tokens) == ([0, 1, 2], 5)


def test_speculation_without_queries_has_no_uniform_length() -> None:
    found = built(batch_of([0], [9], drafts=[0], accepted=[1], full_graph=True))
    assert (found.uniform_spec_sequence_length, found.spec_state_indices_tensor.tolist()) == (None, [[11, 12, 13]])


def test_the_state_columns_are_those_of_the_group_that_updates() -> None:
    # vLLM's update gives [111, 121] in mode "all", and fails in "align".
    batch, table = batch_of([1, 1], [40, 9]), table_of(2, first=111)
    for mode, states in (("none", [111, 121]), ("align", [113, 121]), ("all", [113, 121])):
        found = updated(batch, spec_of(mode), CONFIG, table, SLOTS)
        assert found.non_spec_state_indices_tensor.tolist() == states
    found = updated(batch, spec_of(block_size=8), CONFIG, table_of(2, columns=6), SLOTS)
    assert found.non_spec_state_indices_tensor.tolist() == [15, 22]


def test_slices_of_an_updated_table_are_new_ones() -> None:
    # public-bugs.md E12, derived fields: the decodes' slice of the old table must not stay.
    batch = batch_of([1, 1, 2], [5, 5, 2], prefilling=[False, False, True])
    rows = [np.array([[one], [two], [three]], np.int32) for one, two, three in ((1, 2, 3), (4, 5, 6))]
    spec = spec_of(num_speculative_blocks=0)
    old, new = (updated(batch, spec, CONFIG, table, SLOTS) for table in rows)
    assert old.non_spec_state_indices_tensor.tolist() == [1, 2, 3]
    assert new.non_spec_state_indices_tensor.tolist() == [4, 5, 6]
    assert new.prefill_state_indices.tolist() == [6]


def test_metadata_that_does_not_fit_the_buffers_is_not_staged() -> None:
    batch = batch_of([1, 0], [9, 0], full_graph=True)
    for rows, states in ((2, [11, 0]), (1, [11, 21])):
        config = dataclasses.replace(CONFIG, max_graph_rows=rows)
        assert is_staged(batch, spec_of(), config) == (rows == 2)
        assert built(batch, config=config).non_spec_state_indices_tensor.tolist() == states


@pytest.mark.parametrize(
    ("batch", "staged"),
    [
        (batch_of([1], [9], full_graph=True), True),
        (batch_of([1], [9]), False),
        (batch_of([2], [2], full_graph=True), False),
        (batch_of([3], [9], drafts=[2], accepted=[1], full_graph=True), True),
        (batch_of([3, 1], [9, 9], drafts=[2, -1], accepted=[1, 1], full_graph=True), False),
        (batch_of([], [], full_graph=True), True),
    ],
    ids=["decode", "eager", "prefill", "speculation", "speculation and a decode", "no request"],
)
def test_staged(batch, staged) -> None:
    assert is_staged(batch, spec_of(), CONFIG) == staged


def held(spec=None, config=CONFIG):
    return {name: np.full(shape, HELD, dtype) for name, (shape, dtype) in buffers(spec or spec_of(), config).items()}


def test_buffers_of_a_graph() -> None:
    config = dataclasses.replace(CONFIG, max_graph_rows=2)
    assert {name: shape for name, (shape, _) in buffers(spec_of(), config).items()} == {
        "spec_state_indices_tensor": (2, 3),
        "non_spec_state_indices_tensor": (2,),
        "spec_token_indx": (6,),
        "non_spec_token_indx": (6,),
        "spec_query_start_loc": (3,),
        "non_spec_query_start_loc": (3,),
        "num_accepted_tokens": (2,),
        "spec_sequence_masks": (2,),
    }


def test_behind_the_rows_of_a_step_the_buffers_keep_their_bytes() -> None:
    config = dataclasses.replace(CONFIG, max_graph_rows=3)
    batch = batch_of([3, 0], [40, 0], drafts=[2, -1], accepted=[2, 5], full_graph=True)
    before = held(config=config)
    after = staged_buffers(batch, spec_of(), config, table_of(2), SLOTS, before)
    assert {name: values.tolist() for name, values in after.items()} == {
        "spec_state_indices_tensor": [[13, 14, 0], [0, 0, 0], [HELD] * 3],
        "non_spec_state_indices_tensor": [HELD] * 3,
        "spec_token_indx": [0, 1, 2, *[HELD] * 6],
        "non_spec_token_indx": [HELD] * 9,
        "spec_query_start_loc": [0, 3, 3, HELD],
        "non_spec_query_start_loc": [HELD] * 4,
        "num_accepted_tokens": [2, 1, HELD],
        "spec_sequence_masks": [True, False, True],
    }
    assert all((values == (values.dtype == np.bool_ or HELD)).all() for values in before.values())


def test_a_step_that_is_not_staged_leaves_the_buffers() -> None:
    for batch in (batch_of([1], [9]), batch_of([4], [4], full_graph=True)):
        before = held()
        after = staged_buffers(batch, spec_of(), CONFIG, table_of(1), SLOTS, before)
        assert all(np.array_equal(before[name], values) for name, values in after.items())
        assert after.keys() == before.keys()


def test_other_buffers_are_refused() -> None:
    batch = batch_of([1], [9], full_graph=True)
    for wrong in (None, np.zeros(3, np.int32), np.zeros(6, np.int64)):
        before = held() | {"num_accepted_tokens": wrong}
        if wrong is None:
            del before["num_accepted_tokens"]
        with pytest.raises(ContractError, match=r"before\[num_accepted_tokens\].*it must be a tensor \(6,\) of int32"):
            staged_buffers(batch, spec_of(), CONFIG, table_of(1), SLOTS, before)


@st.composite
def batches(draw):
    """Batches of up to five requests, then padding; those that speculate are anywhere if others have queries."""
    queries = draw(st.lists(st.integers(0, 4), max_size=5))
    drafts = [draw(st.integers(-1, 2)) for _ in queries]
    if not any(number for number, kind in zip(queries, drafts, strict=True) if kind < 0):
        drafts.sort(reverse=True)
    padding = draw(st.integers(0, 1))
    queries, drafts = [*queries, *[0] * padding], [*drafts, *[-1] * padding]
    lengths = [number + draw(st.integers(0, 40)) for number in queries]
    prefilling = [draw(st.booleans()) for _ in queries]
    accepted = [draw(st.integers(1, 3)) for _ in queries]
    graph = draw(st.booleans())
    return batch_of(queries, lengths, prefilling=prefilling, drafts=drafts, accepted=accepted, full_graph=graph)


@given(batches(), st.sampled_from(MODES))
def test_laws(batch, mode) -> None:
    one, two = (built(batch, mode, table=table_of(batch.seq_lens.size, first=first)) for first in (100, 500))
    for name in LinearMetadata.BATCH_FIELDS:
        assert np.array_equal(getattr(one, name), getattr(two, name))
    for name in LinearMetadata.TABLE_FIELDS:
        first, second = getattr(one, name), getattr(two, name)
        assert (first is None) == (second is None)
        assert first is None or np.array_equal(np.where(first == 0, 0, first + 400), second)
    tokens, queries = int(batch.query_start_loc_cpu[-1]), np.diff(batch.query_start_loc_cpu)
    if one.num_spec_decodes and one.num_prefills:
        assert sorted([*one.spec_token_indx, *one.non_spec_token_indx]) == list(range(tokens))
        assert one.spec_query_start_loc[-1] == one.spec_token_indx.size == one.num_spec_decode_tokens
    if is_staged(batch, spec_of(mode), CONFIG):
        states = one.spec_state_indices_tensor if one.num_spec_decodes else one.non_spec_state_indices_tensor[:, None]
        real = one.num_spec_decodes or max(np.flatnonzero(queries), default=-1) + 1
        assert states.shape[0] == queries.size
        assert (states[:real, 0] > 0).all()
        assert not states[real:].any()


def test_the_fields_are_those_of_the_batch_and_those_of_the_table() -> None:
    fields = [field.name for field in dataclasses.fields(LinearMetadata)]
    assert sorted(fields) == sorted(LinearMetadata.BATCH_FIELDS + LinearMetadata.TABLE_FIELDS)
