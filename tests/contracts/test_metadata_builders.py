"""The builders of metadata against their reference: every class of batch, built and updated, staged and not.

Launches are executed as gfx942 machine code, in this process, on guarded memory, and host reads are seen.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from oracles.arrays import array, contiguous_strides
from reference import metadata_reuse as specification

pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import linear_launches, mla_launches  # not without Triton
from optimized import metadata_reuse as optimized

DEVICE = "cpu:0"
HOST = "query_start_loc_cpu", "seq_lens_cpu", "is_prefilling", "num_decode_draft_tokens_cpu"
FAMILIES = {
    "LinearSpec": (optimized.LinearMetadataBuilder, optimized.LinearSpec, optimized.LinearConfig),
    "MlaSpec": (optimized.MlaMetadataBuilder, optimized.MlaSpec, optimized.MlaConfig),
}
TABLE_COLUMNS = 6


class Emulation:
    """Runs what a test does with builders and tensors of the device, all of which live in one guarded memory."""

    def __init__(self, chip) -> None:
        from oracles.backends.base import Variation

        self.chip = chip
        self.variation = Variation()
        self.memory = chip.backend.memory(self.variation)

    def __call__(self, function, *arguments, races=False):
        """Call it: how many launches there were, and what it returned. Garbage may make programs race."""
        from oracles.interception import intercepted
        from oracles.verdict import Race

        device = [region.tensor for region in self.memory.regions if region.device]
        with self.chip.backend.watch(self.memory, self.variation) as seen, intercepted(self.memory, device) as read:
            result = function(*arguments)
        failures = [*read.failures, *seen.failures, *self.memory.faults()]
        assert [failure for failure in failures if not (races and isinstance(failure, Race))] == []
        return seen.launches, result

    def tensor(self, values, name, dtype="int32", number=0):
        """One of the device, in the layout of that number."""
        values = np.asarray(values)
        step, gap = (1, 2, 3)[number % 3], (0, 5)[number % 2]
        strides = [stride * step for stride in contiguous_strides(values.shape)]
        if len(strides) > 1:
            strides[0] += gap
        laid_out = dataclasses.replace(array(values, dtype), strides=tuple(strides), offset=number % 4)
        return self.memory.place(laid_out, name, device=True, writable=False)

    def batch(self, batch, number=0):
        """The optimized twin of a reference's batch."""
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(batch):
            value = getattr(batch, field.name)
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(value.copy()) if field.name in HOST else self.tensor(value, field.name)
            fields[field.name] = value
        return optimized.Batch(**fields)

    def builder(self, spec, config):
        """The optimized builder of a reference's spec and config."""
        kind, own_spec, own_config = FAMILIES[type(spec).__name__]
        values = dataclasses.asdict(spec), dataclasses.asdict(config)
        return self(kind, own_spec(**values[0]), own_config(**values[1]), DEVICE)[1]


@pytest.fixture
def emulation(chip):
    return Emulation(chip)


@pytest.fixture
def rng():
    return np.random.default_rng(12)


def batch_of(queries, lengths, *, drafts=None, prefilling=None, step=1, tokens=None, full_graph=False):
    starts, lengths = np.cumsum([0, *queries]).astype(np.int32), np.array(lengths, np.int32)
    return specification.Batch(
        step=step,
        query_start_loc=starts,
        query_start_loc_cpu=starts.copy(),
        seq_lens=lengths,
        seq_lens_cpu=lengths.copy(),
        num_actual_tokens=int(starts[-1]) if tokens is None else tokens,
        is_prefilling=None if prefilling is None else np.array(prefilling, np.bool_),
        num_accepted_tokens=None if drafts is None else (np.arange(len(queries)) % 3 + 1).astype(np.int32),
        num_decode_draft_tokens_cpu=None if drafts is None else np.array(drafts, np.int32),
        full_graph=full_graph,
    )


LINEAR_BATCHES = {
    "no requests": {"queries": [], "lengths": []},
    "decodes": {"queries": [1, 1, 1], "lengths": [40, 9, 1]},
    "padded decodes": {"queries": [1, 1, 0, 0], "lengths": [40, 9, 0, 0]},
    "all padding": {"queries": [0, 0], "lengths": [0, 0]},
    "prefills": {"queries": [70, 5], "lengths": [70, 40], "prefilling": [True, True]},
    "mixed": {"queries": [1, 1, 66, 0], "lengths": [40, 9, 66, 0], "prefilling": [False, False, True, False]},
    "one token first": {"queries": [1, 1], "lengths": [7, 1], "prefilling": [False, True]},
    "nobody drafts": {"queries": [1, 1], "lengths": [40, 9], "drafts": [-1, -1]},
    "speculation": {"queries": [3, 3, 3], "lengths": [40, 9, 3], "drafts": [2, 2, 2]},
    "ragged speculation": {"queries": [3, 1, 2], "lengths": [40, 9, 3], "drafts": [2, 0, 1]},
    "padded speculation": {"queries": [3, 3, 0, 0], "lengths": [40, 9, 0, 0], "drafts": [2, 2, -1, -1]},
    "mixed speculation": {"queries": [2, 5, 2, 0], "lengths": [40, 5, 33, 0], "drafts": [1, -1, 1, -1]},
    "decode besides speculation": {"queries": [1, 3, 1], "lengths": [12, 40, 1], "drafts": [-1, 2, -1]},
}


def linear(mode="align", block_size=16, rows=8):
    spec = {"block_size": block_size, "num_speculative_blocks": 2, "mamba_cache_mode": mode}
    return (
        specification.LinearSpec(**spec, dtype="bfloat16", page_size_bytes=4096),
        specification.LinearConfig(num_speculative_tokens=2, max_num_reqs=16, max_graph_rows=rows),
    )


def mla(varlen_width=0, rows=8, block_size=16):
    return (
        specification.MlaSpec(block_size=block_size, num_heads=16, kv_cache_dtype="fp8", dtype="bfloat16"),
        specification.MlaConfig(max_num_reqs=9, max_model_len=90, max_graph_rows=rows, varlen_width=varlen_width),
    )


def tables_of(rng, emulation, count, num_rows):
    """Tables and slots of groups, for the reference and on the device in various layouts."""
    tables = [rng.integers(1, 90, (num_rows, TABLE_COLUMNS + number % 3)).astype(np.int32) for number in range(count)]
    slots = [rng.integers(-1, 90, 12) for _ in range(count)]
    on_device = [emulation.tensor(table, f"table{number}", number=number) for number, table in enumerate(tables)]
    slots_there = [emulation.tensor(item, f"slots{number}", "int64", number) for number, item in enumerate(slots)]
    return tables, slots, on_device, slots_there


def values(record):
    """The fields of metadata, tensors as dtype, shape and values."""

    def plain(value):
        value = value.numpy() if isinstance(value, torch.Tensor) else value
        return (str(value.dtype), value.shape, value.tolist()) if isinstance(value, np.ndarray) else value

    names = [*record.BATCH_FIELDS, *record.TABLE_FIELDS]
    return {name: plain(getattr(record, name)) for name in names}


def check(emulation, batch, own, rng, launches=None):
    """Build for one group, update for two: all as the reference says, the source unchanged. The records."""
    spec, config = own
    tables, slots, there, slots_there = tables_of(rng, emulation, 3, batch.seq_lens.size)
    wanted = [values(specification.build(batch, spec, config, *pair)) for pair in zip(tables, slots, strict=True)]
    twin, builders = emulation.batch(batch), [emulation.builder(spec, config) for _ in tables]
    type(builders[0]).share_reusable_metadata_buffers(builders)
    count, source = emulation(builders[0].build, twin, there[0], slots_there[0])
    assert launches is None or count == launches
    assert values(source) == wanted[0]
    one, updated = emulation(builders[1].update_block_table, source, there[1], slots_there[1])
    assert one <= 1
    both, several = emulation(
        builders[0].update_block_tables, source, builders[:0:-1], there[:0:-1], slots_there[:0:-1]
    )
    assert both <= 1
    assert [values(record) for record in (source, updated, *several)] == [wanted[0], wanted[1], wanted[2], wanted[1]]
    assert emulation(builders[1].can_reuse_metadata, source, twin) == (0, True)
    for record in (updated, *several):
        assert all(getattr(record, name) is getattr(source, name) for name in record.BATCH_FIELDS)
    return builders, source, several


@pytest.mark.parametrize("full_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", LINEAR_BATCHES)
def test_linear_metadata_is_the_references(emulation, rng, kind, full_graph) -> None:
    batch = batch_of(**LINEAR_BATCHES[kind], full_graph=full_graph)
    mode = ("none", "align", "all")[list(LINEAR_BATCHES).index(kind) % 3]
    check(emulation, batch, linear(mode), rng)


@pytest.mark.parametrize("kind", ["decodes", "padded decodes", "speculation", "padded speculation"])
def test_a_step_that_a_graph_replays_is_one_launch(emulation, rng, kind) -> None:
    check(emulation, batch_of(**LINEAR_BATCHES[kind], full_graph=True), linear(), rng, launches=1)


def test_a_graph_too_small_for_a_step(emulation, rng) -> None:
    _, source, updated = check(emulation, batch_of([1, 1, 1], [40, 9, 1]), linear(rows=2), rng, launches=1)
    pointers = {record.non_spec_state_indices_tensor.data_ptr() for record in (source, *updated)}
    assert len(pointers) == 3


MLA_BATCHES = {
    "no requests": {"queries": [], "lengths": []},
    "decodes": {"queries": [1, 1, 1], "lengths": [40, 0, 89]},
    "padded decodes": {"queries": [1, 1, 0, 0], "lengths": [40, 9, 0, 0], "tokens": 4},
    "all padding": {"queries": [0, 0], "lengths": [0, 0], "tokens": 2},
    "verification": {"queries": [3, 3], "lengths": [40, 9], "drafts": [2, 2]},
    "padded verification": {"queries": [3, 3, 0], "lengths": [40, 9, 5], "drafts": [2, 2, -1], "tokens": 9},
    "ragged": {"queries": [3, 1, 2], "lengths": [40, 9, 3]},
}


@pytest.mark.parametrize("full_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", MLA_BATCHES)
@pytest.mark.parametrize("varlen_width", [0, 4])
def test_mla_metadata_is_the_references(emulation, rng, kind, varlen_width, full_graph) -> None:
    batch = batch_of(**MLA_BATCHES[kind], full_graph=full_graph)
    check(emulation, batch, mla(varlen_width, block_size=(16, 64)[full_graph]), rng, launches=1)


def test_added_queries_past_the_columns_and_batches_that_are_not_causal(emulation, rng) -> None:
    batch = batch_of([1, 2], [TABLE_COLUMNS * 16, TABLE_COLUMNS * 16 - 1])
    check(emulation, batch, mla(4), rng)
    check(emulation, dataclasses.replace(batch, causal=False), mla(4), rng)


@pytest.mark.parametrize("family", ["linear", "mla"])
def test_whole_buffers_of_a_graph_over_steps(emulation, rng, family) -> None:
    """Each group reads its own buffers, and those that it shares, at the same addresses in every step."""
    spec, config = own = linear() if family == "linear" else mla(0)
    steps = (LINEAR_BATCHES if family == "linear" else MLA_BATCHES).items()
    chosen = [
        batch for name, batch in steps if "prefilling" not in batch and name[:5] not in ("mixed", "decod", "ragge")
    ]
    builders = [emulation.builder(*own) for _ in range(2)]
    type(builders[0]).share_reusable_metadata_buffers(builders)
    own_names = {"spec_state_indices_tensor": "_spec_states", "non_spec_state_indices_tensor": "_non_spec_states"}
    own_names["paged_kv_indices"] = "_pages"

    def tensors(builder):
        owners = {name: builder if name in own_names else builder.buffers for name in specification.buffers(*own)}
        return {name: getattr(owner, own_names.get(name, name)) for name, owner in owners.items()}

    before = [{name: tensor.numpy().copy() for name, tensor in tensors(builder).items()} for builder in builders]
    addresses = [{name: tensor.data_ptr() for name, tensor in tensors(builder).items()} for builder in builders]
    for step, fields in enumerate(chosen + chosen[::-1]):
        batch = batch_of(**fields, step=step, full_graph=True)
        tables, slots, there, slots_there = tables_of(rng, emulation, 2, batch.seq_lens.size)
        _, source = emulation(builders[0].build, emulation.batch(batch), there[0], slots_there[0])
        _, updated = emulation(builders[1].update_block_table, source, there[1], slots_there[1])
        staged = specification.is_staged(batch, spec, config)
        for number, record in enumerate((source, updated)):
            before[number] = specification.staged_buffers(
                batch, spec, config, tables[number], slots[number], before[number]
            )
            for name, tensor in tensors(builders[number]).items():
                assert tensor.numpy().tolist() == before[number][name].tolist(), (step, name)
                assert tensor.data_ptr() == addresses[number][name]
                view = getattr(record, name)
                assert not staged or view is None or not view.numel() or view.data_ptr() == addresses[number][name]
    shared = {name for name in addresses[0] if addresses[0][name] == addresses[1][name]}
    assert shared == set(type(source).BATCH_FIELDS) & set(addresses[0])


@pytest.mark.parametrize("family", ["linear", "mla"])
@pytest.mark.parametrize(("groups", "launches"), [(0, 0), (7, 1), (32, 1), (33, 2)])
def test_any_number_of_groups_in_one_launch(emulation, rng, family, groups, launches) -> None:
    own = linear("all") if family == "linear" else mla()
    batch = batch_of([1, 1, 1], [40, 9, 1], full_graph=groups == 7)
    tables, slots, there, slots_there = tables_of(rng, emulation, groups + 1, 3)
    builders = [emulation.builder(*own) for _ in range(groups + 1)]
    type(builders[0]).share_reusable_metadata_buffers(builders)
    _, source = emulation(builders[0].build, emulation.batch(batch), there[0], slots_there[0])
    count, updated = emulation(builders[0].update_block_tables, source, builders[1:], there[1:], slots_there[1:])
    assert count == launches
    pairs = zip(tables[1:], slots[1:], strict=True)
    assert [values(record) for record in updated] == [values(specification.build(batch, *own, *pair)) for pair in pairs]
    assert values(source) == values(specification.build(batch, *own, tables[0], slots[0]))
    assert spilling() == []


def spilling():
    """Kernels in whose machine code registers are spilled, among those that were compiled so far."""
    from oracles.backends.cdna.code_object import read

    kernels = [value for module in (linear_launches, mla_launches) for value in vars(module).values()]
    caches = [cache for kernel in kernels for cache in getattr(kernel, "device_caches", {}).values()]
    codes = [read(compiled.asm["hsaco"]) for cache in caches for compiled in cache[0].values()]
    assert codes
    return [code.name for code in codes if any((code.scratch, code.spilled_vgprs, code.spilled_sgprs, code.agprs))]


def test_absurd_values_on_the_device_are_memory_safe(emulation, rng, absurd) -> None:
    for kind, own in (("mixed speculation", linear()), ("mixed", linear("all")), ("decodes", mla(3))):
        batch = batch_of(**LINEAR_BATCHES[kind], full_graph=kind == "decodes")
        rows = batch.seq_lens.size
        for _ in range(2):
            twin = emulation.batch(batch)
            lengths, starts = absurd(rows, "int32").data, absurd(rows + 1, "int32").data
            twin = dataclasses.replace(
                twin, seq_lens=emulation.tensor(lengths, "lengths"), query_start_loc=emulation.tensor(starts, "starts")
            )
            _, _, there, slots = tables_of(rng, emulation, 2, rows)
            builders = [emulation.builder(*own) for _ in there]
            builders[0].share_reusable_metadata_buffers(builders)
            _, source = emulation(builders[0].build, twin, there[0], slots[0], races=True)
            emulation(builders[1].update_block_table, source, there[1], slots[1], races=True)
