"""What the builders of both families refuse, what they promise nothing for, their keys, and the rules of reuse."""

import dataclasses

import numpy as np
import pytest

from reference.errors import ContractError, OnlyMemorySafety
from reference.metadata_reuse import (
    Batch,
    LinearConfig,
    LinearSpec,
    MlaConfig,
    MlaSpec,
    ReuseFacts,
    buffers,
    build,
    is_staged,
    reuse_key,
    updated,
    why_not_reused,
)

LINEAR_SPEC = LinearSpec(
    block_size=16, num_speculative_blocks=1, mamba_cache_mode="align", dtype="float32", page_size_bytes=64
)
LINEAR_CONFIG = LinearConfig(num_speculative_tokens=1, max_num_reqs=2, max_graph_rows=2)
MLA_SPEC = MlaSpec(block_size=4, num_heads=16, kv_cache_dtype="auto", dtype="bfloat16")
MLA_CONFIG = MlaConfig(max_num_reqs=2, max_model_len=8, max_graph_rows=2, dcp_size=2)
FAMILIES = pytest.mark.parametrize(
    ("spec", "config"), [(LINEAR_SPEC, LINEAR_CONFIG), (MLA_SPEC, MLA_CONFIG)], ids=["linear", "mla"]
)
TABLE = np.array([[3, 5], [7, 0]], np.int32)
SLOTS = np.array([13, 29], np.int64)
OTHER = {"mamba_cache_mode": "none", "dtype": "float16", "kv_cache_dtype": "fp8", "causal": False}
"""values of fields that are no numbers, other than those above"""


def ints(*values, dtype="int32"):
    return np.array(values, dtype)


def good(**more):
    fields = {
        "step": 1, "num_actual_tokens": 2, "full_graph": False,
        "query_start_loc": ints(0, 1, 2), "query_start_loc_cpu": ints(0, 1, 2),
        "seq_lens": ints(5, 2), "seq_lens_cpu": ints(5, 2),
    }  # fmt: skip
    return fields | more


def refused(spec, config, argument, message, *, table=TABLE, slots=SLOTS, **fields):
    for function in (build, updated):
        with pytest.raises(ContractError) as caught:
            function(Batch(**good(**fields)), spec, config, table, slots)
        assert str(caught.value) == f"{argument}: {message}"


@FAMILIES
@pytest.mark.parametrize(
    ("field", "value", "found", "rule"),
    [
        ("step", -1, "-1", "it must be an int of at least 0"),
        ("ubatch", True, "True", "it must be an int of at least 0"),
        ("num_actual_tokens", 2.0, "2.0", "it must be an int of at least 0"),
        ("num_actual_tokens", 1, "1", "it must be at least the last start of query_start_loc_cpu, 2"),
        ("causal", None, "None", "it must be a bool"),
        ("full_graph", 1, "1", "it must be a bool"),
        ("query_start_loc", ints(0, 1, 2, dtype="int64"), "'int64'", "the dtype must be int32"),
        ("query_start_loc", ints(0, 1), "2", "the size must be that of query_start_loc_cpu, 3"),
        ("query_start_loc_cpu", ints(1, 1, 2), "1", "the first start must be 0"),
        ("query_start_loc_cpu", ints(0, 3, 2), "-1", "the length of request 1 must not be negative"),
        ("query_start_loc_cpu", ints(), "(0,)", "there must be at least one element"),
        ("seq_lens", ints(5, 2).reshape(2, 1), "(2, 1)", "the shape must have one dimension"),
        ("seq_lens", ints(5), "1", "the size must be one less than that of query_start_loc_cpu, 2"),
        ("seq_lens_cpu", ints(5, 2, 1), "3", "the size must be one less than that of query_start_loc_cpu, 2"),
        ("seq_lens_cpu", ints(5, -2), "-2", "the length of request 1 must not be negative"),
        ("is_prefilling", ints(0, 1), "'int32'", "the dtype must be bool"),
        ("is_prefilling", ints(0, dtype="bool"), "1", "the size must be one less than that of query_start_loc_cpu, 2"),
        ("num_accepted_tokens", ints(1), "1", "the size must be one less than that of query_start_loc_cpu, 2"),
        ("num_decode_draft_tokens_cpu", ints(1, 1, dtype="int64"), "'int64'", "the dtype must be int32"),
    ],
)
def test_a_bad_batch(spec, config, field, value, found, rule) -> None:
    refused(spec, config, field, f"{found} breaks the rule: {rule}", **{field: value})


@FAMILIES
def test_a_bad_table_and_bad_slots(spec, config) -> None:
    rule = "the rows must be those of the batch, 2"
    refused(spec, config, "block_table", f"(1, 2) breaks the rule: {rule}", table=TABLE[:1])
    rule = "the dtype must be int32"
    refused(spec, config, "block_table", f"'int64' breaks the rule: {rule}", table=TABLE.astype(np.int64))
    rule = "the dtype must be int32 or int64"
    refused(spec, config, "slot_mapping", f"'int16' breaks the rule: {rule}", slots=SLOTS.astype(np.int16))
    rule = "the shape must have one dimension"
    refused(spec, config, "slot_mapping", f"(2, 1) breaks the rule: {rule}", slots=SLOTS.reshape(2, 1))


@FAMILIES
def test_more_requests_than_the_config_has(spec, config) -> None:
    config = dataclasses.replace(config, max_num_reqs=1)
    rule = "the requests must be at most config.max_num_reqs, 1"
    refused(spec, config, "query_start_loc_cpu", f"2 breaks the rule: {rule}")


def test_what_speculation_needs() -> None:
    drafts = {"num_decode_draft_tokens_cpu": ints(0, -1)}
    message = "None breaks the rule: it is needed where a request speculates"
    refused(LINEAR_SPEC, LINEAR_CONFIG, "num_accepted_tokens", message, **drafts)
    rule = "where no others have queries, requests that speculate come first: request 0 does not"
    fields = {"num_decode_draft_tokens_cpu": ints(-1, 0), "num_accepted_tokens": ints(1, 1)}
    starts = {"query_start_loc": ints(0, 0, 1), "query_start_loc_cpu": ints(0, 0, 1)}
    message = f"[-1, 0] breaks the rule: {rule}"
    refused(LINEAR_SPEC, LINEAR_CONFIG, "num_decode_draft_tokens_cpu", message, **fields, **starts)
    assert build(Batch(**good(**fields)), LINEAR_SPEC, LINEAR_CONFIG, TABLE, SLOTS).num_prefills == 1


def test_columns_of_the_state() -> None:
    spec = dataclasses.replace(LINEAR_SPEC, mamba_cache_mode="none")
    rule = "there must be at least 1 + num_speculative_blocks columns, 2"
    refused(spec, LINEAR_CONFIG, "block_table", f"(2, 1) breaks the rule: {rule}", table=TABLE[:, :1])
    updated(Batch(**good()), LINEAR_SPEC, LINEAR_CONFIG, TABLE[:, :1], SLOTS)


@FAMILIES
@pytest.mark.parametrize("field", ["query_start_loc", "seq_lens"])
def test_no_values_where_the_device_holds_something_else(spec, config, field) -> None:
    batch = Batch(**good(**{field: good()[field][::-1].copy()}))
    with pytest.raises(OnlyMemorySafety, match=field):
        build(batch, spec, config, TABLE, SLOTS)


@pytest.mark.parametrize(
    ("record", "name", "value", "rule"),
    [
        (LINEAR_SPEC, "block_size", 0, "it must be an int of at least 1"),
        (LINEAR_SPEC, "num_speculative_blocks", -1, "it must be an int of at least 0"),
        (LINEAR_SPEC, "mamba_cache_mode", "some", "it must be one of none, align, all"),
        (LINEAR_SPEC, "page_size_bytes", 0, "it must be an int of at least 1"),
        (LINEAR_CONFIG, "num_speculative_tokens", -1, "it must be an int of at least 0"),
        (LINEAR_CONFIG, "max_num_reqs", 0, "it must be an int of at least 1"),
        (LINEAR_CONFIG, "max_graph_rows", -1, "it must be an int of at least 0"),
        (LINEAR_CONFIG, "chunk_size", 0, "it must be an int of at least 1"),
        (MLA_SPEC, "block_size", 0, "it must be an int of at least 1"),
        (MLA_SPEC, "num_heads", 0, "it must be an int of at least 1"),
        (MLA_SPEC, "causal", 1, "it must be a bool"),
        (MLA_CONFIG, "max_model_len", 0, "it must be an int of at least 1"),
        (MLA_CONFIG, "varlen_width", -1, "it must be an int of at least 0"),
        (MLA_CONFIG, "dcp_rank", 2, "it must lie in 0..1, the ranks"),
        (MLA_CONFIG, "dcp_interleave", 0, "it must be an int of at least 1"),
    ],
)
def test_bad_specs_and_configs(record, name, value, rule) -> None:
    with pytest.raises(ContractError) as caught:
        dataclasses.replace(record, **{name: value})
    assert str(caught.value) == f"{name}: {value!r} breaks the rule: {rule}"


def test_a_spec_and_a_config_of_two_families_are_refused() -> None:
    batch = Batch(**good())
    for spec, config in ((LINEAR_SPEC, MLA_CONFIG), (MLA_SPEC, LINEAR_CONFIG)):
        for call in (
            lambda spec, config: build(batch, spec, config, TABLE, SLOTS),
            lambda spec, config: is_staged(batch, spec, config),
            buffers,
            reuse_key,
        ):
            with pytest.raises(ContractError, match=f"it must be of the family of the spec, {type(spec).__name__}"):
                call(spec, config)


@FAMILIES
def test_the_key_has_every_field_of_the_spec_and_the_config(spec, config) -> None:
    names = [field.name for record in (spec, config) for field in dataclasses.fields(record)]
    assert list(config.CONFIGURATION) == names
    key = reuse_key(spec, config)
    assert key == reuse_key(dataclasses.replace(spec), dataclasses.replace(config))
    for record in (spec, config):
        for name, value in dataclasses.asdict(record).items():
            other = dataclasses.replace(record, **{name: OTHER[name] if name in OTHER else value + 1})
            pair = (other, config) if record is spec else (spec, other)
            assert reuse_key(*pair) != key, name
            assert hash(reuse_key(*pair)) == hash(reuse_key(*pair))
    assert reuse_key(LINEAR_SPEC, LINEAR_CONFIG) != reuse_key(MLA_SPEC, MLA_CONFIG)


ALLOWED = ReuseFacts(source_key="K", key="K")
GRAPH = dataclasses.replace(ALLOWED, full_graph=True)
STAGED = dataclasses.replace(GRAPH, staged=True)


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (ALLOWED, None),
        (dataclasses.replace(STAGED, shared=True), None),
        (dataclasses.replace(GRAPH, has_prefills=True), None),
        (dataclasses.replace(ALLOWED, shared=True), None),
        (STAGED, "R4: the metadata lies in buffers that this builder's graph does not read"),
        (GRAPH, "R4: the step runs from a graph, and the metadata is not in its buffers"),
        (dataclasses.replace(GRAPH, shared=True), "R4: the step runs from a graph"),
        (dataclasses.replace(ALLOWED, original=False), "R8: the metadata is not the object"),
        (dataclasses.replace(ALLOWED, source_alive=False), "R9: the builder that made the metadata"),
        (dataclasses.replace(ALLOWED, own=True), "R9: the builder made the metadata itself"),
        (dataclasses.replace(ALLOWED, key=None, source_key=None), "R1: a builder without a key"),
        (dataclasses.replace(ALLOWED, key=None), "R1: a builder without a key"),
        (dataclasses.replace(ALLOWED, key="L"), "R1: the keys differ"),
        (dataclasses.replace(ALLOWED, same_device=False), "R7: the builders work on two devices"),
        (dataclasses.replace(ALLOWED, step=1), "R2: the metadata is of another step"),
        (dataclasses.replace(ALLOWED, ubatch=1), "R7: the metadata is of another micro-batch"),
        (dataclasses.replace(ALLOWED, same_batch=False), "R2: the metadata was built from another batch"),
        (dataclasses.replace(ALLOWED, unchanged=False), "R2: the batch or the metadata was changed"),
    ],
)
def test_rules_of_reuse(facts, rule) -> None:
    found = why_not_reused(facts)
    assert found is rule if rule is None else found.startswith(rule)


def test_no_other_fact_makes_up_for_a_broken_rule() -> None:
    broken = {"original": False, "source_alive": False, "own": True, "key": "L", "same_device": False, "step": 1}
    broken |= {"ubatch": 1, "same_batch": False, "unchanged": False, "staged": True}
    for name, value in broken.items():
        for graph in (False, True):
            facts = dataclasses.replace(ALLOWED, full_graph=graph, has_prefills=True, **{name: value})
            assert why_not_reused(facts) is not None
