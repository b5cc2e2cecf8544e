"""When metadata is reused and when not, what builders refuse, and what makes Triton compile.

Launches are executed as gfx942 machine code, in this process, on the tensors as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import gc

import numpy as np
import pytest
import torch

from oracles.backends.base import Variation
from reference import metadata_reuse as specification

pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import metadata_reuse as optimized  # not without Triton
from optimized.errors import ContractError

PAST_32_BITS = 2**31 + 16
BUILDERS = {"linear": optimized.LinearMetadataBuilder, "mla": optimized.MlaMetadataBuilder}


@pytest.fixture
def watched(chip):
    """Runs a call on the emulated chip: the launches, the compilations, and what it returned."""

    def run(function, *arguments):
        with chip.backend.watch(chip.backend.memory(Variation()), Variation()) as seen:
            result = function(*arguments)
        assert seen.failures == []
        return seen.launches, seen.compilations, result

    return run


def batch_of(queries=(1, 1), lengths=(40, 9), *, drafts=None, full_graph=False, step=1, **other):
    starts, lengths = torch.tensor([0, *queries]).cumsum(0).int(), torch.tensor(lengths).int()
    fields = {
        "step": step,
        "query_start_loc": starts.clone(),
        "query_start_loc_cpu": starts,
        "seq_lens": lengths.clone(),
        "seq_lens_cpu": lengths,
        "num_actual_tokens": int(starts[-1]),
        "num_accepted_tokens": None if drafts is None else torch.ones_like(lengths),
        "num_decode_draft_tokens_cpu": None if drafts is None else torch.tensor(drafts).int(),
        "full_graph": full_graph,
    }
    return optimized.Batch(**{**fields, **other})


def spec_of(family, **changes):
    if family == "linear":
        spec = {"block_size": 16, "num_speculative_blocks": 2, "mamba_cache_mode": "align", "dtype": "float32"}
        return optimized.LinearSpec(**{**spec, "page_size_bytes": 64, **changes})
    spec = {"block_size": 16, "num_heads": 16, "kv_cache_dtype": "fp8", "dtype": "bfloat16"}
    return optimized.MlaSpec(**{**spec, **changes})


def config_of(family, **changes):
    config = {"max_num_reqs": 6, "max_graph_rows": 4}
    if family == "linear":
        return optimized.LinearConfig(**{**config, "num_speculative_tokens": 2, **changes})
    return optimized.MlaConfig(**{**config, "max_model_len": 96, **changes})


def builder_of(family, spec=None, **config):
    return BUILDERS[family](spec or spec_of(family), config_of(family, **config), "cpu")


def group_of(seed, rows=2, columns=6):
    rng = np.random.default_rng(seed)
    table = torch.from_numpy(rng.integers(1, 99, (rows, columns)).astype(np.int32))
    return table, torch.from_numpy(rng.integers(0, 99, rows))


def values(record):
    def plain(value):
        return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value

    return {name: plain(getattr(record, name)) for name in (*record.BATCH_FIELDS, *record.TABLE_FIELDS)}


@pytest.mark.parametrize("family", BUILDERS)
def test_records_are_the_references(family) -> None:
    name = family.capitalize()
    for kind in ("Batch", f"{name}Spec", f"{name}Config", f"{name}Metadata"):
        ours, theirs = getattr(optimized, kind), getattr(specification, kind)
        fields = [field.name for field in dataclasses.fields(ours) if field.name != "origin"]
        assert fields == [field.name for field in dataclasses.fields(theirs)]
        for constant in ("BATCH_FIELDS", "TABLE_FIELDS", "CONFIGURATION"):
            assert getattr(ours, constant, None) == getattr(theirs, constant, None)
    record = getattr(optimized, f"{name}Metadata")
    every = {field.name for field in dataclasses.fields(record)}
    assert every == {*record.BATCH_FIELDS, *record.TABLE_FIELDS, "origin"}


def replaced(batch, metadata):
    return batch, dataclasses.replace(metadata)


def copied(batch, metadata):
    return batch, copy.copy(metadata)


def of_equal_batch(batch, metadata):
    return dataclasses.replace(batch), metadata


def refilled_on_host(batch, metadata):
    batch.seq_lens_cpu[0] += 1
    return batch, metadata


def refilled_on_device(batch, metadata):
    batch.seq_lens.add_(0)
    return batch, metadata


def other_drafts(batch, metadata):
    batch.num_decode_draft_tokens_cpu[0] = 0
    return batch, metadata


def changed_metadata(batch, metadata):
    getattr(metadata, "spec_query_start_loc" if hasattr(metadata, "num_prefills") else "qo_indptr").add_(0)
    return batch, metadata


STALE = replaced, copied, of_equal_batch, refilled_on_host, refilled_on_device, other_drafts, changed_metadata


@pytest.mark.parametrize("family", BUILDERS)
@pytest.mark.parametrize("change", STALE, ids=lambda change: change.__name__)
def test_what_is_stale_or_no_original_is_never_reused(watched, family, change) -> None:
    source, other = builder_of(family), builder_of(family)
    batch = batch_of((3, 3), drafts=(2, 2))
    _, _, metadata = watched(source.build, batch, *group_of(1))
    assert other.can_reuse_metadata(metadata, batch)
    asked, metadata = change(batch, metadata)
    assert not other.can_reuse_metadata(metadata, asked)
    if asked is batch:
        _, _, updated = watched(other.update_block_table, metadata, *group_of(2))
        _, _, built = watched(builder_of(family).build, batch, *group_of(2))
        assert values(updated) == values(built)
        assert updated.origin.step is not metadata.origin.step


@pytest.mark.parametrize("family", BUILDERS)
def test_builders_that_can_not_reuse_build(watched, family) -> None:
    source, batch = builder_of(family), batch_of(full_graph=True)
    larger = {"block_size": 32}
    others = [
        builder_of(family),
        builder_of(family, spec_of(family, **larger)),
        builder_of(family, max_num_reqs=7),
        BUILDERS["mla" if family == "linear" else "linear"](
            *((spec_of(name), config_of(name)) for name in BUILDERS if name != family).__next__(), "cpu"
        ),
    ]
    _, _, metadata = watched(source.build, batch, *group_of(1))
    tables, slots = zip(*map(group_of, range(2, 6)), strict=True)
    assert [builder.can_reuse_metadata(metadata, batch) for builder in (source, *others)] == [False] * 5
    launches, _, updated = watched(source.update_block_tables, metadata, others, tables, slots)
    assert launches == 4
    for builder, record, table, slot in zip(others, updated, tables, slots, strict=True):
        assert values(record) == values(watched(builder.build, batch, table, slot)[2])


@pytest.mark.parametrize("family", BUILDERS)
def test_a_source_that_is_gone_or_filled_for_another_step(watched, family) -> None:
    builders = [builder_of(family) for _ in range(3)]
    builders[0].share_reusable_metadata_buffers(builders)
    batch = batch_of(full_graph=True)
    _, _, metadata = watched(builders[0].build, batch, *group_of(1))
    assert builders[1].can_reuse_metadata(metadata, batch)
    _, _, again = watched(builders[1].build, batch, *group_of(2))
    assert builders[2].can_reuse_metadata(metadata, batch)
    assert builders[2].can_reuse_metadata(again, batch)
    watched(builders[1].build, batch_of((1, 1), (8, 8), full_graph=True, step=2), *group_of(2))
    assert not builders[2].can_reuse_metadata(metadata, batch)
    lasting = batch_of()
    _, _, metadata = watched(builders[0].build, lasting, *group_of(1))
    assert builders[1].can_reuse_metadata(metadata, lasting)
    other = builders.pop()
    builders.clear()
    gc.collect()
    assert not other.can_reuse_metadata(metadata, lasting)


def test_numbers_of_a_step_may_be_of_an_enumeration(watched) -> None:
    step = enum.IntEnum("Step", {"FIRST": 1}).FIRST
    builder, batch = builder_of("linear"), batch_of(step=step)
    assert watched(builder.build, batch, *group_of(1))[2].num_decodes == 2


def test_steps_that_no_graph_replays_are_reused_without_shared_buffers(watched) -> None:
    prefilling = torch.tensor([True, True])
    for batch, reused in (
        (batch_of((30, 9), is_prefilling=prefilling, full_graph=True), True),
        (batch_of(full_graph=True), False),
        (batch_of(), True),
    ):
        builders = [builder_of("linear", max_graph_rows=1) for _ in range(2)]
        _, _, metadata = watched(builders[0].build, batch, *group_of(1))
        assert builders[1].can_reuse_metadata(metadata, batch) is reused


@pytest.mark.parametrize("family", BUILDERS)
def test_updates_and_sharing_that_are_refused(watched, family) -> None:
    one, two = builder_of(family), builder_of(family)
    (table, slots), batch = group_of(1), batch_of(full_graph=True)
    staged = builder_of(family)
    watched(staged.build, batch, table, slots)
    lists = {
        "no list": one,
        "all must be of one type": [one, optimized.MetadataBuilder(spec_of(family), config_of(family), "cpu")],
        "key": [one, builder_of(family, max_graph_rows=3)],
        "twice": [one, two, one],
        "before there is metadata": [one, staged],
    }
    before = one.buffers, two.buffers, staged.buffers
    for rule, builders in lists.items():
        with pytest.raises(ContractError, match=rule.replace("no list", "list or a tuple")):
            one.share_reusable_metadata_buffers(builders)
    assert (one.buffers, two.buffers, staged.buffers) == before
    one.share_reusable_metadata_buffers([])
    _, _, metadata = watched(one.build, batch, table, slots)
    held = values(metadata)
    for builders, tables, rule in (
        ([one], [table], "made the metadata"),
        ([two, two], [table, table], "twice"),
        ([two], [table, table], "one for each builder"),
        ([two], [table[:1]], "the rows must be those of the batch"),
        ([two], [table.long()], "the dtype must be int32"),
        ([two], [table.to("meta")], "on the device"),
    ):
        with pytest.raises(ContractError, match=rule):
            one.update_block_tables(metadata, builders, tables, [slots] * len(tables))
    with pytest.raises(ContractError, match="metadata: 'object'"):
        two.update_block_table(object(), table, slots)
    assert values(metadata) == held
    assert not two.can_reuse_metadata(object(), batch)


REFUSED_BATCHES = {
    "step: True": {"step": True},
    "ubatch: -1": {"ubatch": -1},
    "full_graph: 1": {"full_graph": 1},
    "query_start_loc: 'int64'": {"query_start_loc": torch.tensor([0, 1, 2])},
    "query_start_loc_cpu: 1": {"query_start_loc_cpu": torch.tensor([1, 1, 2]).int()},
    "query_start_loc_cpu: -1": {"query_start_loc_cpu": torch.tensor([0, 2, 1]).int()},
    "seq_lens: 3": {"seq_lens": torch.zeros(3).int()},
    "seq_lens_cpu: -4": {"seq_lens_cpu": torch.tensor([3, -4]).int()},
    "num_actual_tokens: 1": {"num_actual_tokens": 1},
    "is_prefilling: 'int32'": {"is_prefilling": torch.zeros(2).int()},
    "num_decode_draft_tokens_cpu: 'meta'": {"num_decode_draft_tokens_cpu": torch.zeros(2).int().to("meta")},
    "seq_lens: 'meta'": {"seq_lens": torch.zeros(2).int().to("meta")},
}


@pytest.mark.parametrize("family", BUILDERS)
@pytest.mark.parametrize("message", REFUSED_BATCHES)
def test_batches_that_are_refused(watched, family, message) -> None:
    builder, batch = builder_of(family), dataclasses.replace(batch_of(full_graph=True), **REFUSED_BATCHES[message])
    with pytest.raises(ContractError, match=message):
        watched(builder.build, batch, *group_of(1))
    assert builder.buffers.step is None


@pytest.mark.parametrize(
    ("family", "batch", "group", "message"),
    [
        ("linear", {}, (1, 2, 2), r"block_table: \(2, 2\).*1 \+ num_speculative_blocks"),
        ("linear", {"drafts": (2, 2), "num_accepted_tokens": None}, (1,), "num_accepted_tokens: None"),
        ("linear", {"queries": (0, 1), "drafts": (-1, 2)}, (1,), "num_decode_draft_tokens_cpu: .*come first"),
        ("mla", {"lengths": (40, 97)}, (1,), r"block_table: \(2, 6\).*97 tokens"),
        ("mla", {"queries": (1, 5)}, (1,), "varlen_width: 3"),
        ("mla", {"queries": (1,) * 7, "lengths": (9,) * 7}, (1, 7), "query_start_loc_cpu: 7.*max_num_reqs"),
        ("mla", {"lengths": (200, 200), "full_graph": True}, (1, 2, 30), "seq_lens_cpu: 404.*places"),
    ],
)
def test_groups_that_are_refused(watched, family, batch, group, message) -> None:
    changes = {"linear": {}, "mla": {"varlen_width": 3, "max_model_len": 60}}[family]
    spec = spec_of(family, **({"mamba_cache_mode": "none"} if family == "linear" else {}))
    builder = builder_of(family, spec, **changes)
    with pytest.raises(ContractError, match=message):
        watched(builder.build, batch_of(**batch), *group_of(*group))


def test_specs_and_configs_that_are_refused() -> None:
    for make, message in (
        (lambda: spec_of("linear", block_size=0), "block_size: 0"),
        (lambda: spec_of("linear", mamba_cache_mode="some"), "mamba_cache_mode: 'some'"),
        (lambda: spec_of("mla", causal=1), "causal: 1"),
        (lambda: config_of("mla", dcp_rank=1), "dcp_rank: 1"),
        (lambda: BUILDERS["mla"](spec_of("mla"), config_of("linear"), "cpu"), "max_model_len"),
        (lambda: optimized.builder_of("dense"), "family: 'dense'"),
    ):
        with pytest.raises(ContractError, match=message):
            make()


def test_a_builder_that_reuses_nothing_builds(watched) -> None:
    class Plain(optimized.MetadataBuilder):
        def build(self, batch, block_table, slot_mapping):
            return batch, block_table, slot_mapping

    plain, source, batch = Plain(spec_of("linear"), config_of("linear"), "cpu"), builder_of("linear"), batch_of()
    _, _, metadata = watched(source.build, batch, *group_of(1))
    assert plain.get_metadata_reuse_key() is None
    assert plain.can_reuse_metadata(metadata, batch) is False
    assert plain.share_reusable_metadata_buffers([plain, plain]) is None
    table, slots = group_of(2)
    assert plain.update_block_table(metadata, table, slots) == (batch, table, slots)
    assert source.update_block_tables(metadata, [plain], [table], [slots]) == [(batch, table, slots)]
    assert plain.update_block_tables(metadata, [plain], [table], [slots]) == [(batch, table, slots)]


@pytest.mark.parametrize("family", BUILDERS)
def test_counts_layouts_and_addresses_compile_once_a_kernel(watched, family) -> None:
    # Compiling the pages of more than 8 groups takes seconds, and is counted as well where they are judged.
    most, kernels = {"linear": (31, 2), "mla": (8, 1)}[family]
    built, updated = set(), set()
    for number in range(18):
        rows, groups = number % 5, 2 + (number * 5) % most
        builders = [builder_of(family) for _ in range(groups)]
        builders[0].share_reusable_metadata_buffers(builders)
        drafts = (2,) * rows if number % 2 else None
        queries = (3,) * rows if number % 2 else (1,) * rows
        batch = batch_of(queries, (9,) * rows, drafts=drafts, full_graph=number % 3 == 0)
        batch = dataclasses.replace(batch, seq_lens=batch.seq_lens.repeat_interleave(1 + number % 3)[:: 1 + number % 3])
        wide = [torch.ones(rows * 40 + 3, 17 * 2, dtype=torch.int32) for _ in range(groups)]
        tables = [table[3 : 3 + rows, number % 3 :: 1 + group % 2] for group, table in enumerate(wide)]
        if rows == 1:
            tables[1] = torch.ones(1, 34, dtype=torch.int32).as_strided((1, 34), (PAST_32_BITS, 1))
        slots = [torch.zeros(0, dtype=torch.int64)] * groups
        _, compilations, metadata = watched(builders[0].build, batch, tables[0], slots[0])
        built |= set(compilations)
        compilations = watched(builders[0].update_block_tables, metadata, builders[1:], tables[1:], slots[1:])[1]
        updated |= set(compilations)
    assert (len(built), len(updated)) == (1, kernels)
