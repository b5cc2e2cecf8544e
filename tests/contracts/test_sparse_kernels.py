"""The kernels of sparse indptr where the domain's batches are too small: many sequences, long rows, shared programs.

They are executed as gfx942 machine code, in this process.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles.arrays import array
from reference import mla_decode_layout as layouts
from reference import mla_split_plan as plans
from reference import sparse_indptr as lengths

pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import mla_decode_layout, mla_split_plan, sparse_indptr  # not without Triton
from optimized.errors import ContractError

HOST = ("query_start_loc_cpu",)
PAGES = ("paged_kv_indices",)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture(params=[4, 4096])
def programs(request, monkeypatch):
    """How many rows, and how many parts of rows, have programs of their own."""
    monkeypatch.setattr("optimized.row_groups._MOST_GROUPS", request.param)
    monkeypatch.setattr("optimized.launching._MOST_PROGRAMS", 2 * request.param)


def starts_of(counts, dtype):
    return array(np.cumsum([0, *counts]), dtype)


def batch(seq_lens, queries, topk, num_tokens, dtypes=("int32", "int64")):
    return {
        "seq_lens": array(seq_lens, dtypes[0]),
        "query_start_loc": starts_of(queries, dtypes[1]),
        "query_start_loc_cpu": starts_of(queries, dtypes[0]),
        "topk": topk,
        "num_tokens": num_tokens,
    }


@pytest.mark.usefixtures("programs")
def test_programs_share_sequences_long_ones_and_the_padding(chip, rng) -> None:
    queries = [0, 3, 600, 1, 0, 1, 270, 2, 0]
    inputs = batch(rng.integers(-3, 900, 9), queries, 64, sum(queries) + 600)
    for order in ("forward", "reverse"):
        assert chip.agrees(sparse_indptr.sparse_indptr, lengths.sparse_indptr, inputs, host=HOST, order=order) == 1


def test_more_sequences_than_are_added_up_at_once(chip, rng, monkeypatch) -> None:
    monkeypatch.setattr("optimized.row_groups._MOST_GROUPS", 3)
    queries = rng.integers(0, 3, 520)
    inputs = batch(rng.integers(0, 9, 520), queries, 4, int(queries.sum()) + 1, ("int64", "int32"))
    assert chip.agrees(sparse_indptr.sparse_indptr, lengths.sparse_indptr, inputs, host=HOST) == 1


@pytest.mark.parametrize(("num_queries", "topk"), [(1, 2**31 - 1), (2, 2**30 - 1), (5, 429_496_729), (700, 3_067_833)])
def test_sums_up_to_the_last_that_int32_holds(chip, num_queries, topk) -> None:
    for length in (2**63 - 1, topk + num_queries - 1, topk, topk // 2):
        inputs = batch([7, length], [0, num_queries], topk, num_queries, ("int64", "int32"))
        chip.agrees(sparse_indptr.sparse_indptr, lengths.sparse_indptr, inputs, host=HOST)


@pytest.mark.usefixtures("programs")
def test_programs_share_the_choices_of_a_query(chip, rng) -> None:
    counts = [700, 0, 1300, 5]
    inputs = {
        "req_id_per_token": array([1, 0, 2, -1], "int64"),
        "block_table": array(rng.integers(0, 1000, (3, 90)), "int32"),
        "topk_indices": array(rng.integers(-1, 1500, (4, 1100)), "int32"),
        "paged_kv_indptr": array(3 + np.cumsum([0, *counts]), "int64"),
        "block_size": 16,
        "block_stride": 48,
        "paged_kv_indices": array(np.full(2007, 77), "int32"),
    }
    for cut in (0, 9):
        shorter = array(np.full(2011 - cut, 77), "int32")
        several = {**inputs, "paged_kv_indices": shorter}
        assert chip.agrees(sparse_indptr.sparse_page_indices, lengths.sparse_page_indices, several, buffers=PAGES) == 1


@pytest.mark.parametrize("block_size", [1, 3, 2**31, 2**32 + 5, 2**63, 2**70])
def test_blocks_of_any_size(chip, block_size) -> None:
    inputs = {
        "req_id_per_token": array([0], "int32"),
        "block_table": array([[0, 2, 9]], "int32"),
        "topk_indices": array([[5, 0, 8, 2**31 - 1, -1]], "int64"),
        "paged_kv_indptr": array([0, 5], "int32"),
        "block_size": block_size,
        "block_stride": block_size,
        "paged_kv_indices": array([7] * 5, "int32"),
    }
    for dtype in ("int32", "int64"):
        several = {**inputs, "topk_indices": array(inputs["topk_indices"].data, dtype)}
        chip.agrees(sparse_indptr.sparse_page_indices, lengths.sparse_page_indices, several, buffers=PAGES)


@pytest.mark.parametrize(
    ("rows", "columns", "block_size", "programs"),
    [(9, 30, 3, 4), (9, 30, 3, 4096), (530, 1, 2, 4), (2, 3, 500, 4), (2, 3, 500, 4096), (0, 4, 2, 4)],
    indirect=["programs"],
)
@pytest.mark.usefixtures("programs")
def test_programs_share_requests_their_tokens_and_the_padding(chip, rng, rows, columns, block_size) -> None:
    most = columns * block_size
    inputs = {
        "block_table": array(rng.integers(0, 1000, (rows, columns)), "int32"),
        "seq_lens": array(rng.integers(-2, most + 5, rows), "int64"),
        "kernel_block_size": block_size,
        "paged_kv_indices": array(np.full(rows * most + 4000, 77), "int32"),
    }
    assert chip.agrees(sparse_indptr.dense_page_indices, lengths.dense_page_indices, inputs, buffers=PAGES) == 1


@pytest.mark.parametrize("rank", [None, 0, 3])
def test_lengths_in_any_number_of_dimensions(chip, rng, rank) -> None:
    for shape, strides in (((), ()), ((300,), (2,)), ((2, 300), (700, 2)), ((2, 3, 4), (1, 40, 9)), ((3, 1, 2), None)):
        inputs = {
            "seq_lens": array(rng.integers(-3, 900, shape), "int64", strides),
            "dcp_size": 4,
            "dcp_rank": rank,
            "interleave": 5,
        }
        assert chip.agrees(sparse_indptr.dcp_local_seq_lens, lengths.dcp_local_seq_lens, inputs) == 1


@pytest.mark.parametrize(("size", "interleave"), [(3, 2**31), (2**40, 1), (2**70, 2**63), (2, 2**62), (2**63, 1)])
def test_turns_and_ranks_of_any_size(chip, size, interleave) -> None:
    for dtype in ("int32", "int64"):
        for rank in (0, 1, size - 1):
            inputs = {"seq_lens": array([0, 5, 2**31 - 1], dtype), "dcp_size": size, "dcp_rank": rank}
            inputs["interleave"] = interleave
            chip.agrees(sparse_indptr.dcp_local_seq_lens, lengths.dcp_local_seq_lens, inputs)


def decode(rng, queries, num_decode_tokens, width):
    return {
        "query_start_loc": starts_of(queries, "int64"),
        "query_start_loc_cpu": starts_of(queries, "int32"),
        "seq_lens": array(rng.integers(0, 900, len(queries)), "int32"),
        "num_decode_tokens": num_decode_tokens,
        "varlen_width": width,
        "full_graph": False,
    }


@pytest.mark.parametrize("layout", ["plain", "uniform", "varlen"])
def test_decode_rows_in_several_tiles(chip, rng, layout) -> None:
    queries = [3] * 1030 + [0] * 70
    tokens, width = {"plain": (3090, 0), "uniform": (3300, 0), "varlen": (3090, 5)}[layout]
    inputs = decode(rng, queries, tokens, width)
    assert chip.agrees(mla_decode_layout.mla_decode_layout, layouts.mla_decode_layout, inputs, host=HOST) == 1


def test_plans_of_many_rows_keep_all_invariants(rng) -> None:
    for number in range(60):
        rows = int(rng.integers(0, 70))
        queries, entries = rng.integers(0, 40, rows), rng.integers(0, 3000, rows) * (rng.random(rows) < 0.7)
        indptrs = [np.cumsum([0, *counts]).astype(np.int32) for counts in (queries, entries)]
        sizes = [(1, 16, 64)[number % 3], (1, 2, 16, 2**70)[number % 4], (1, 2, 3, 80, 304)[number % 5]]
        names = ("qo_indptr", "kv_indptr", "kv_granularity", "q_tile", "num_splits")
        given = dict(zip(names, [*map(torch.from_numpy, indptrs), *sizes], strict=True))
        plan = mla_split_plan.mla_split_plan(**given)
        assert plans.check(*indptrs, *sizes, *(part.numpy() for part in plan)) is None


def test_absurd_values_are_memory_safe_and_end(chip, rng, absurd) -> None:
    for dtype in ("int32", "int64", "int32", "int64"):
        own = {**batch([5] * 6, [1, 0, 300, 2, 0, 4], 64, 330), "query_start_loc": absurd(7, dtype)}
        own["seq_lens"] = absurd(6, dtype)
        chip.run(sparse_indptr.sparse_indptr, own, host=HOST, races=True)
        rows = {**decode(rng, [1, 3, 0], 9, 3), "query_start_loc": absurd(4, dtype), "seq_lens": absurd(3, dtype)}
        chip.run(mla_decode_layout.mla_decode_layout, rows, host=HOST)
        sparse = {
            "req_id_per_token": absurd(3, dtype),
            "block_table": absurd((3, 4), "int32"),
            "topk_indices": absurd((3, 9), dtype),
            "paged_kv_indptr": absurd(4, dtype),
            "block_size": 3,
            "block_stride": 2**31,
            "paged_kv_indices": array(np.full(800, 77), "int32"),
        }
        chip.run(sparse_indptr.sparse_page_indices, sparse, buffers=PAGES, races=True)
        dense = {"block_table": absurd((3, 4), "int32"), "seq_lens": absurd(3, dtype), "kernel_block_size": 3}
        dense["paged_kv_indices"] = sparse["paged_kv_indices"]
        chip.run(sparse_indptr.dense_page_indices, dense, buffers=PAGES)


def test_layouts_and_counts_never_compile_again(chip, rng, laid_out) -> None:
    calls = chip.compilations
    chip.compilations = {}
    for number in range(30):
        count = (0, 1, 2, 3, 15, 16, 17)[number % 7]
        queries = rng.integers(0, 3, count)
        tokens = int(queries.sum())
        given = batch(rng.integers(0, 9, count), queries, 1 + number, tokens + number)
        chip.agrees(
            sparse_indptr.sparse_indptr, lengths.sparse_indptr, laid_out(given, number), host=HOST, order="reverse"
        )
        rows = laid_out(decode(rng, queries, tokens, number % 2 * 16), number)
        chip.agrees(mla_decode_layout.mla_decode_layout, layouts.mla_decode_layout, rows, host=HOST)
        dense = {
            "block_table": array(rng.integers(0, 99, (count, number % 4)), "int32"),
            "seq_lens": array(rng.integers(0, 30, count), "int32"),
            "kernel_block_size": 4,
            "paged_kv_indices": array(np.zeros(count * (number % 4) * 4 + number), "int32"),
        }
        dense = laid_out(dense, number)
        chip.agrees(sparse_indptr.dense_page_indices, lengths.dense_page_indices, dense, buffers=PAGES)
        sparse = {
            "req_id_per_token": array(rng.integers(0, 3, count), "int32"),
            "block_table": array(rng.integers(0, 99, (2, number)), "int32"),
            "topk_indices": array(rng.integers(-1, 70, (count, number)), "int32"),
            "paged_kv_indptr": starts_of(queries, "int32"),
            "block_size": 4,
            "block_stride": 4 + number,
            "paged_kv_indices": array(np.zeros(tokens + number), "int32"),
        }
        sparse = laid_out(sparse, number)
        chip.agrees(sparse_indptr.sparse_page_indices, lengths.sparse_page_indices, sparse, buffers=PAGES)
        local = {"seq_lens": array(rng.integers(0, 99, (count, 1 + number % 2)), "int32"), "dcp_size": 8}
        local |= {"dcp_rank": number % 8, "interleave": 2}
        chip.agrees(sparse_indptr.dcp_local_seq_lens, lengths.dcp_local_seq_lens, laid_out(local, number))
    counted, chip.compilations = chip.compilations, calls
    assert {name: len(keys) for name, keys in counted.items()} == dict.fromkeys(counted, 1)
    assert len(counted) == 5


def test_tensors_of_another_device_are_refused() -> None:
    here = {"dtype": torch.int32}
    there = {**here, "device": "meta"}
    starts, elsewhere = torch.zeros(2, **here), torch.zeros(2, **there)
    with pytest.raises(ContractError, match="query_start_loc: 'meta'"):
        sparse_indptr.sparse_indptr(
            seq_lens=starts[1:], query_start_loc=elsewhere, query_start_loc_cpu=starts, topk=1, num_tokens=0
        )
    with pytest.raises(ContractError, match="query_start_loc_cpu: 'meta'"):
        mla_decode_layout.mla_decode_layout(
            query_start_loc=starts,
            query_start_loc_cpu=elsewhere,
            seq_lens=starts[1:],
            num_decode_tokens=0,
            varlen_width=0,
            full_graph=True,
        )
    with pytest.raises(ContractError, match="paged_kv_indices: 'meta'"):
        sparse_indptr.dense_page_indices(
            block_table=torch.zeros(1, 1, **here),
            seq_lens=starts[1:],
            kernel_block_size=1,
            paged_kv_indices=elsewhere,
        )
    with pytest.raises(ContractError, match="kv_indptr: 'meta'"):
        mla_split_plan.mla_split_plan(qo_indptr=starts, kv_indptr=elsewhere, kv_granularity=1, q_tile=1, num_splits=1)
