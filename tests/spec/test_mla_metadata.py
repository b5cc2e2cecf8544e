"""Metadata of an MLA decode worked out by hand: plain, padded uniform and adaptive varlen rows."""

import dataclasses
import itertools

import numpy as np
import pytest

from reference.errors import ContractError, OnlyMemorySafety
from reference.metadata_reuse import (
    Batch,
    MlaConfig,
    MlaMetadata,
    MlaSpec,
    buffers,
    build_mla,
    is_staged,
    staged_buffers,
    updated,
)
from reference.sparse_indptr import dense_page_indices

SPEC = MlaSpec(block_size=4, num_heads=16, kv_cache_dtype="fp8", dtype="bfloat16")
CONFIG = MlaConfig(max_num_reqs=4, max_model_len=8, max_graph_rows=4)
VARLEN = dataclasses.replace(CONFIG, varlen_width=2)
TABLE = np.array([[3, 5], [7, 0], [9, 9]], np.int32)
SLOTS = np.array([16, 29], np.int64)
FLAGS = pytest.mark.parametrize("full_graph", [False, True], ids=["eager", "graph"])
HELD = 77


def batch_of(queries, lengths, *, tokens=None, full_graph=False, **more):
    starts, sizes = np.array([0, *itertools.accumulate(queries)], np.int32), np.array(lengths, np.int32)
    fields = {
        "step": 3, "full_graph": full_graph, "num_actual_tokens": int(starts[-1]) if tokens is None else tokens,
        "query_start_loc": starts, "query_start_loc_cpu": starts.copy(),
        "seq_lens": sizes, "seq_lens_cpu": sizes.copy(),
    }  # fmt: skip
    return Batch(**fields | more)


def shown(metadata):
    """The fields as lists; the pages without the -1 at their end, and how many entries there are."""
    fields = {}
    for field in dataclasses.fields(metadata):
        value = getattr(metadata, field.name)
        if isinstance(value, np.ndarray):
            assert value.dtype == (np.int64 if field.name == "slot_mapping" else np.int32), field.name
            value = value.tolist()
        fields[field.name] = value
    pages, used = fields.pop("paged_kv_indices"), fields["paged_kv_indptr"][-1]
    assert set(pages[used:]) <= {-1}
    return fields | {"pages": pages[:used], "entries": len(pages)}


PLAIN = {
    "num_decodes": 3, "num_decode_tokens": 3, "seq_lens": [6, 2, 0], "paged_kv_indptr": [0, 6, 8, 8],
    "paged_kv_last_page_len": [1, 1, 1], "qo_indptr": [0, 1, 2, 2], "max_qo_len": 1, "min_kv_seq_len": 1,
    "pages": [12, 13, 14, 15, 20, 21, 28, 29], "block_table": TABLE.tolist(), "slot_mapping": [16, 29],
}  # fmt: skip


@FLAGS
def test_plain_rows(full_graph) -> None:
    batch = batch_of([1, 1, 0], [6, 2, 0], tokens=3, full_graph=full_graph)
    found = build_mla(batch, SPEC, CONFIG, TABLE, SLOTS)
    assert shown(found) == PLAIN | {"entries": 32 if full_graph else 24}
    wanted = dense_page_indices(TABLE, batch.seq_lens, 4, np.zeros(found.paged_kv_indices.size, np.int32))
    given = (found.paged_kv_indptr, found.paged_kv_last_page_len, found.paged_kv_indices)
    assert all(np.array_equal(one, other) for one, other in zip(given, wanted, strict=True))


@FLAGS
def test_padded_uniform_rows(full_graph) -> None:
    batch = batch_of([2, 2, 0], [6, 2, 0], tokens=6, full_graph=full_graph)
    assert shown(build_mla(batch, SPEC, CONFIG, TABLE, SLOTS)) == PLAIN | {
        "num_decode_tokens": 6,
        "seq_lens": [6, 2, 2],
        "paged_kv_indptr": [0, 6, 8, 10],
        "qo_indptr": [0, 2, 4, 6],
        "max_qo_len": 2,
        "pages": [*PLAIN["pages"], 36, 37],
        "entries": 32 if full_graph else 24,
    }


@FLAGS
def test_varlen_rows_look_past_the_row_up_in_its_first_block(full_graph) -> None:
    # Row 0 fills its two columns, and the query that is added to it sees a ninth token.
    batch = batch_of([1, 2, 0], [8, 2, 0], tokens=6, full_graph=full_graph)
    assert shown(build_mla(batch, SPEC, VARLEN, TABLE, SLOTS)) == PLAIN | {
        "num_decode_tokens": 6,
        "seq_lens": [9, 2, 2],
        "paged_kv_indptr": [0, 9, 11, 13],
        "qo_indptr": [0, 2, 4, 6],
        "max_qo_len": 2,
        "pages": [12, 13, 14, 15, 20, 21, 22, 23, 12, 28, 29, 36, 37],
        "entries": 40 if full_graph else 30,
    }


def test_varlen_rows_without_columns_have_no_page() -> None:
    found = build_mla(batch_of([0], [0]), SPEC, VARLEN, np.zeros((1, 0), np.int32), SLOTS)
    assert (found.seq_lens.tolist(), found.paged_kv_indices.tolist()) == ([2], [-1, -1])


@pytest.mark.parametrize(("of_batch", "of_spec"), [(False, True), (True, False)])
def test_rows_are_not_widened_without_a_causal_mask(of_batch, of_spec) -> None:
    spec = dataclasses.replace(SPEC, causal=of_spec)
    found = build_mla(batch_of([1, 2], [8, 2], causal=of_batch), spec, VARLEN, TABLE[:2], SLOTS)
    assert (found.seq_lens.tolist(), found.qo_indptr.tolist(), found.max_qo_len) == ([8, 2], [0, 1, 3], 2)


@FLAGS
def test_all_padding_and_no_requests(full_graph) -> None:
    found = build_mla(batch_of([0, 0], [0, 0], tokens=2, full_graph=full_graph), SPEC, CONFIG, TABLE[:2], SLOTS)
    assert (found.num_decodes, found.paged_kv_indptr.tolist(), found.max_qo_len) == (2, [0, 0, 0], 0)
    assert set(found.paged_kv_indices.tolist()) == {-1}
    found = build_mla(batch_of([], [], full_graph=full_graph), SPEC, CONFIG, TABLE[:0], SLOTS)
    assert (found.num_decodes, found.paged_kv_indptr.tolist(), found.qo_indptr.tolist()) == (0, [0], [0])
    assert found.paged_kv_indices.tolist() == ([-1] * 32 if full_graph else [])


def test_each_group_has_the_pages_of_its_own_table() -> None:
    # public-bugs.md E12: group B must not be given group A's pages.
    batch = batch_of([1], [2])
    for row, pages in ((3, [12, 13]), (8, [32, 33])):
        found = updated(batch, SPEC, CONFIG, np.array([[row]], np.int32), SLOTS)
        assert found.paged_kv_indices.tolist() == [*pages, -1, -1]
        assert found.block_table.tolist() == [[row]]


@pytest.mark.parametrize("uniform", [False, True])
def test_the_tails_of_the_buffers_read_and_write_nothing(uniform) -> None:
    config = dataclasses.replace(CONFIG, max_graph_rows=5)
    batch = batch_of([2, 0], [6, 0], tokens=4 if uniform else 3, full_graph=True)
    before = {name: np.full(shape, HELD, dtype) for name, (shape, dtype) in buffers(SPEC, config).items()}
    after = staged_buffers(batch, SPEC, config, TABLE[:2], SLOTS, before)
    end, last = (8, 4) if uniform else (6, 2)
    pages = [12, 13, 14, 15, 20, 21, *[28, 29][: end - 6]]
    assert {name: values.tolist() for name, values in after.items()} == {
        "seq_lens": [6, 2 if uniform else 0, 0, 0, 0],
        "paged_kv_indptr": [0, 6, end, end, end, end],
        "paged_kv_last_page_len": [1] * 5,
        "qo_indptr": [0, 2, last, last, last, last],
        "paged_kv_indices": pages + [-1] * (32 - end),
    }
    assert all((values == HELD).all() for values in before.values())


def test_a_batch_larger_than_the_buffers_is_not_staged() -> None:
    batch = batch_of([1, 1], [6, 2], full_graph=True)
    for rows, entries in ((2, 32), (1, 16)):
        config = dataclasses.replace(CONFIG, max_graph_rows=rows)
        assert is_staged(batch, SPEC, config) == (rows == 2)
        assert build_mla(batch, SPEC, config, TABLE[:2], SLOTS).paged_kv_indices.size == entries


def test_lengths_past_the_table_and_the_buffer_are_refused() -> None:
    with pytest.raises(ContractError) as caught:
        build_mla(batch_of([1, 1], [9, 2]), SPEC, CONFIG, TABLE[:2], SLOTS)
    rule = "the columns must hold the 9 tokens of request 0, 4 a column"
    assert str(caught.value) == f"block_table: (2, 2) breaks the rule: {rule}"
    config = dataclasses.replace(CONFIG, max_num_reqs=2, max_model_len=3)
    with pytest.raises(ContractError) as caught:
        build_mla(batch_of([1, 1], [5, 2], full_graph=True), SPEC, config, TABLE[:2], SLOTS)
    rule = "the kernel lengths must sum to at most the entries of paged_kv_indices, 6"
    assert str(caught.value) == f"seq_lens_cpu: 7 breaks the rule: {rule}"
    with pytest.raises(ContractError, match=r"varlen_width: 2 breaks the rule"):
        build_mla(batch_of([3], [3]), SPEC, VARLEN, TABLE[:1], SLOTS)


def test_no_values_for_blocks_that_no_cache_has() -> None:
    with pytest.raises(OnlyMemorySafety, match="the block of token 4 of request 0 is -1"):
        build_mla(batch_of([1], [5]), SPEC, CONFIG, np.array([[3, -1]], np.int32), SLOTS)
    with pytest.raises(OnlyMemorySafety, match="is 2147483648, which int32 cannot hold"):
        build_mla(batch_of([1], [5]), SPEC, CONFIG, np.array([[3, 2**29]], np.int32), SLOTS)


def test_the_fields_are_those_of_the_batch_and_those_of_the_table() -> None:
    fields = [field.name for field in dataclasses.fields(MlaMetadata)]
    assert sorted(fields) == sorted(MlaMetadata.BATCH_FIELDS + MlaMetadata.TABLE_FIELDS)
