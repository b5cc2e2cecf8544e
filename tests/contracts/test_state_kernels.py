"""The kernels of state columns where the domain's batches are too small: many requests, several tables, wide rows.

They are executed as gfx942 machine code, in this process.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles.arrays import array
from oracles.backends.base import Variation
from reference import state_columns as specification

pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import column_launches, state_columns  # not without Triton
from optimized.errors import ContractError

HOST = ("query_start_loc_cpu", "spec_mask_cpu")
BUFFERS = ("state_buffer", "query_start_loc_buffer", "num_accepted_buffer")


@pytest.fixture
def rng():
    return np.random.default_rng(6)


def columns(rng, rows, width, block_size, blocks=2, dtype="int32"):
    return {
        "block_table": array(rng.integers(-9, 2**31 - 1, (rows, width)), "int32"),
        "seq_lens": array(rng.integers(-2, block_size * (width + 2), rows), dtype),
        "mamba_cache_mode": "align",
        "block_size": block_size,
        "num_speculative_blocks": blocks,
    }


def staging(rng, rows, width, batch_size, capacity, dtypes=("int32", "int64")):
    return {
        "state_indices": array(rng.integers(-9, 2**31 - 1, (rows, width)), "int32"),
        "query_start_loc": array(rng.integers(0, 900, rows + 1), dtypes[0]),
        "num_accepted_tokens": array(rng.integers(0, 9, rows), dtypes[1]),
        "batch_size": batch_size,
        "state_buffer": array(np.full((capacity, width), 77), "int32"),
        "query_start_loc_buffer": array(np.full(capacity + 1, 78), "int32"),
        "num_accepted_buffer": array(np.full(capacity, 79), "int32"),
    }


def partition(lengths, mask, dtype="int32"):
    starts = np.cumsum([0, *lengths])
    return {
        "query_start_loc": array(starts, dtype),
        "query_start_loc_cpu": array(starts, "int64"),
        "spec_mask_cpu": array(mask, "bool", (2,)),
    }


@pytest.mark.parametrize("blocks", [0, 2, 300])
def test_columns_of_many_requests(chip, rng, blocks) -> None:
    inputs = columns(rng, 290 if blocks < 300 else 2, 7, 16, blocks, "int64")
    assert chip.agrees(state_columns.state_columns, specification.state_columns, inputs) == 1


@pytest.mark.parametrize("block_size", [1, 3, 2**31 - 1, 2**31, 2**32 + 5, 2**63, 2**70])
def test_blocks_of_any_size(chip, block_size) -> None:
    for dtype in ("int32", "int64"):
        limits = np.iinfo(dtype)
        inputs = {
            "block_table": array(np.arange(24).reshape(4, 6), "int32"),
            "seq_lens": array([limits.min, 1, 5, limits.max], dtype),
            "mamba_cache_mode": "all",
            "block_size": block_size,
            "num_speculative_blocks": 1,
        }
        chip.agrees(state_columns.state_columns, specification.state_columns, inputs)


@pytest.mark.parametrize(("num_tables", "launches"), [(0, 0), (1, 1), (8, 1), (9, 1), (32, 1), (33, 2)])
def test_columns_of_several_tables_in_one_launch(chip, rng, num_tables, launches) -> None:
    widths = [(0, 1, 4, 300)[number % 4] for number in range(num_tables)]
    tables = [torch.from_numpy(rng.integers(-9, 99, (5, 2 * width)).astype(np.int32))[:, ::2] for width in widths]
    lengths = torch.tensor([0, 9, 17, 40, 5000], dtype=torch.int64)
    named = {"seq_lens": lengths, "mamba_cache_mode": "align", "block_size": 16, "num_speculative_blocks": 2}
    with chip.backend.watch(chip.backend.memory(Variation()), Variation()) as seen:
        found = state_columns.state_columns_many(block_tables=tables, **named)
    assert (seen.launches, seen.failures) == (launches, [])
    for table, one in zip(tables, found, strict=True):
        (wanted,) = specification.state_columns(table.numpy(), lengths.numpy(), "align", 16, 2)
        assert (one.numpy().dtype, one.tolist()) == (np.dtype(np.int32), wanted.tolist())


def test_tables_without_rows_or_modes_that_need_no_launch(chip) -> None:
    table, none = torch.arange(12, dtype=torch.int32).view(3, 4), torch.zeros(0, dtype=torch.int32)
    named = {"block_size": 16, "num_speculative_blocks": 2}
    with chip.backend.watch(chip.backend.memory(Variation()), Variation()) as seen:
        views = state_columns.state_columns_many(
            block_tables=(table, table[:, :3]), seq_lens=none.new_zeros(3), mamba_cache_mode="none", **named
        )
        empty = state_columns.state_columns_many(
            block_tables=[table[:0]], seq_lens=none, mamba_cache_mode="all", **named
        )
    assert seen.launches == 0
    assert [(view.tolist(), view.data_ptr()) for view in views] == [(table[:, :3].tolist(), table.data_ptr())] * 2
    assert [tuple(one.shape) for one in empty] == [(0, 3)]


@pytest.mark.parametrize(("rows", "width", "batch_size"), [(260, 3, 300), (255, 2, 255), (0, 70, 3), (3, 0, 256)])
def test_staging_of_many_rows_and_columns(chip, rng, rows, width, batch_size) -> None:
    inputs = staging(rng, rows, width, batch_size, batch_size + 9)
    found = chip.agrees(
        state_columns.stage_decode_state, specification.stage_decode_state, inputs, buffers=BUFFERS, order="reverse"
    )
    assert found == 1


@pytest.mark.parametrize("programs", [3, 4096])
def test_programs_share_requests_and_long_ones(chip, rng, programs, monkeypatch) -> None:
    monkeypatch.setattr("optimized.row_groups._MOST_GROUPS", programs)
    monkeypatch.setattr("optimized.launching._MOST_PROGRAMS", 2 * programs)
    lengths = [0, 3, 600, 1, 0, 1, 270, 2, 0]
    for mask in (rng.random(9) < 0.5, np.arange(9) % 2 == 0, np.ones(9), np.zeros(9)):
        inputs = partition(lengths, np.asarray(mask, dtype=bool), "int64")
        found = chip.agrees(
            state_columns.spec_token_partition, specification.spec_token_partition, inputs, host=HOST, order="reverse"
        )
        assert found == 1


def test_more_requests_than_are_added_up_at_once(chip, rng, monkeypatch) -> None:
    monkeypatch.setattr("optimized.row_groups._MOST_GROUPS", 3)
    inputs = partition(rng.integers(0, 3, 520), rng.random(520) < 0.4)
    assert chip.agrees(state_columns.spec_token_partition, specification.spec_token_partition, inputs, host=HOST) == 1


def test_absurd_values_are_memory_safe_and_end(chip, rng, absurd) -> None:
    for dtype in ("int32", "int64", "int32", "int64"):
        own = {**columns(rng, 9, 4, 3), "seq_lens": absurd(9, dtype), "block_table": absurd((9, 4), "int32")}
        assert chip.agrees(state_columns.state_columns, specification.state_columns, own) == 1
        stage = {**staging(rng, 6, 2, 9, 9), "query_start_loc": absurd(7, dtype)}
        stage["num_accepted_tokens"] = absurd(6, dtype)
        chip.run(state_columns.stage_decode_state, stage, buffers=BUFFERS)
        parts = {**partition([5, 0, 300, 7, 1, 0], rng.random(6) < 0.5), "query_start_loc": absurd(7, dtype)}
        chip.run(state_columns.spec_token_partition, parts, host=HOST, races=True)
    falling = {**partition([300, 2, 7], [True, False, False]), "query_start_loc": array([0, 300, 2, 9], "int32")}
    chip.run(state_columns.spec_token_partition, falling, host=HOST, races=True)


def test_layouts_and_counts_never_compile_again(chip, rng, laid_out) -> None:
    calls, chip.compilations = chip.compilations, {}
    for number in range(30):
        count = (0, 1, 2, 3, 15, 16, 17)[number % 7]
        own = laid_out(columns(rng, count, number, 16), number)
        chip.agrees(state_columns.state_columns, specification.state_columns, own)
        stage = laid_out(staging(rng, count, 1 + number % 3, count + number % 4, count + 16, ("int32",) * 2), number)
        chip.agrees(state_columns.stage_decode_state, specification.stage_decode_state, stage, buffers=BUFFERS)
        parts = laid_out(partition(rng.integers(0, 3, count), rng.random(count) < 0.5), number)
        chip.agrees(state_columns.spec_token_partition, specification.spec_token_partition, parts, host=HOST)
    counted, chip.compilations = chip.compilations, calls
    names = "state_columns", "stage_decode_state", "spec_token_partition"
    assert {name: len(keys) for name, keys in counted.items()} == dict.fromkeys(names, 1)


def test_any_number_of_tables_compiles_twice_and_spills_nothing(chip, rng) -> None:
    from oracles.backends.cdna.code_object import read

    keys = set()
    for number in range(1, 31):
        tables = [
            torch.zeros(3, 2 * (number * table % 17), dtype=torch.int32)[:, :: 1 + table % 2]
            for table in range(number % 14)
        ]
        with chip.backend.watch(chip.backend.memory(Variation()), Variation()) as seen:
            state_columns.state_columns_many(
                block_tables=tables,
                seq_lens=torch.zeros(3 * number, dtype=torch.int32)[::number],
                mamba_cache_mode="all",
                block_size=16,
                num_speculative_blocks=1,
            )
        keys.update(seen.compilations)
    assert len(keys) == 2
    for kernel in (column_launches._few_kernel, column_launches._many_kernel):
        codes = [
            read(compiled.asm["hsaco"]) for cache in kernel.device_caches.values() for compiled in cache[0].values()
        ]
        assert codes
        for code in codes:
            assert (code.scratch, code.spilled_vgprs, code.spilled_sgprs, code.agprs) == (0, 0, 0, 0), code.name


def test_tensors_of_another_device_and_lists_that_are_none_are_refused() -> None:
    table, lengths = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    named = {"mamba_cache_mode": "align", "block_size": 16, "num_speculative_blocks": 0}
    with pytest.raises(ContractError, match="block_table: 'cpu'"):
        state_columns.state_columns(block_table=table, seq_lens=lengths.to("meta"), **named)
    with pytest.raises(ContractError, match="block_tables: 'Tensor'"):
        state_columns.state_columns_many(block_tables=table, seq_lens=lengths, **named)
    with pytest.raises(ContractError, match="block_tables: \\(2, 0\\)"):
        state_columns.state_columns_many(
            block_tables=[table, table[:, :0]], seq_lens=lengths, **{**named, "mamba_cache_mode": "none"}
        )
    with pytest.raises(ContractError, match="spec_mask_cpu: 'meta'"):
        state_columns.spec_token_partition(
            query_start_loc=torch.tensor([0, 1]),
            query_start_loc_cpu=torch.tensor([0, 1]),
            spec_mask_cpu=torch.zeros(1, dtype=torch.bool, device="meta"),
        )
    with pytest.raises(ContractError, match="num_accepted_buffer: 'meta'"):
        state_columns.stage_decode_state(
            state_indices=table,
            query_start_loc=lengths.new_zeros(3),
            num_accepted_tokens=lengths,
            batch_size=2,
            state_buffer=table.clone(),
            query_start_loc_buffer=lengths.new_zeros(3),
            num_accepted_buffer=lengths.to("meta"),
        )
