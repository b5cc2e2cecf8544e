"""Every field of vLLM's metadata records stands in this project's record of the family, or its absence has a reason."""

import ast
import dataclasses
import zipfile

import pytest

from reference.metadata_reuse import Batch, LinearMetadata, MlaConfig, MlaMetadata, MlaSpec

pytestmark = pytest.mark.upstream

GDN = "vllm/v1/attention/backends/gdn_attn.py"
AITER = "vllm/v1/attention/backends/mla/rocm_aiter_mla.py"
COMMON = "vllm/model_executor/layers/attention/mla_attention.py"

CHECKPOINTS = "prefix-cache checkpoints of prefills are no part of the contract"
PLAN = "the plan of the persistent kernel follows from the indptrs alone: contract 2.5 judges it"
PREFILL = "the contract covers decodes of MLA: prefills are another kernel's"
IN_BATCH = "a fact of the batch, or follows from it: every group is given the batch"
IN_KEY = "a fact of the spec or of the config, which the key of reuse holds"
ROUTE = "which kernel runs is decided from the key, and is no metadata of a step"
DCP = "the verification under context parallelism has one row a token, and is no part of the contract"

LINEAR_NAMES = {"nums_dict": "num_conv_blocks"}
LINEAR_LEFT_OUT = {
    "checkpoint": CHECKPOINTS,
    "flashinfer_checkpoint_plan": CHECKPOINTS,
    "aiter_prefill_metadata": "AITER's own object, which it makes from the starts of the prefills",
}
MLA_NAMES = {"num_reqs": "num_decodes", "num_actual_tokens": "num_decode_tokens"}
MLA_LEFT_OUT = {
    **dict.fromkeys(("query_start_loc", "max_query_len", "max_seq_len"), IN_BATCH),
    **dict.fromkeys(("causal", "cp_world_size", "cp_rank", "attn_out_dtype"), IN_KEY),
    "head_dim": "upstream only checks that there is a kernel for it",
    **dict.fromkeys(("prefill", "num_prefills", "dcp_context_row_indices"), PREFILL),
    "decode": "one record holds what upstream nests",
    **dict.fromkeys(("dcp_tot_seq_lens", "dcp_verify", "g_kv_indptr"), DCP),
    **dict.fromkeys(("dcp_route", "use_gluon_decode", "use_gluon_verify", "asm_decode_num_heads"), ROUTE),
    **dict.fromkeys(("mla_num_kv_splits", "has_persistent_metadata", "work_meta_data"), PLAN),
    **dict.fromkeys(("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map"), PLAN),
    **dict.fromkeys(("varlen_q_rows", "varlen_o_rows"), "they follow from the starts of the queries and the width"),
}
PREFILL_PLAN = "fp8_prefill_"
"""how the fields begin that plan the FP8 prefill"""


def fields_of(wheel, member, name):
    """The annotated fields of a class's body, methods and class variables apart."""
    with zipfile.ZipFile(wheel) as file:
        if member not in file.namelist():
            pytest.skip(f"{wheel.name} has no {member}")
        tree = ast.parse(file.read(member))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if not found:
        pytest.skip(f"{member} of {wheel.name} has no {name}")
    return [node.target.id for node in found[0].body if isinstance(node, ast.AnnAssign)]


def assert_complete(released, upstream, ours):
    """Nothing of ours is an invention. Releases before 0.33.0 may not yet have all that stands here."""
    if released.name.split("-")[1] == "0.33.0":
        assert ours <= set(upstream)


def names_of(record):
    return {field.name for field in dataclasses.fields(record)}


def test_fields_of_linear_attention(released) -> None:
    upstream = fields_of(released, GDN, "GDNAttentionMetadata")
    ours = names_of(LinearMetadata)
    assert {"non_spec_state_indices_tensor", "num_prefills"} <= set(upstream)
    assert [name for name in upstream if LINEAR_NAMES.get(name, name) not in ours and name not in LINEAR_LEFT_OUT] == []
    assert_complete(released, [LINEAR_NAMES.get(name, name) for name in upstream], ours)


def test_fields_of_mla(released) -> None:
    upstream = [
        *fields_of(released, COMMON, "MLACommonDecodeMetadata"),
        *fields_of(released, COMMON, "MLACommonMetadata"),
        *fields_of(released, AITER, "AiterMLADecodeMetadata"),
        *fields_of(released, AITER, "AiterMLAMetadata"),
    ]
    ours = names_of(MlaMetadata)
    assert {"paged_kv_indices", "block_table", "slot_mapping", "work_indptr"} <= set(upstream)
    left = [name for name in upstream if MLA_NAMES.get(name, name) not in ours and name not in MLA_LEFT_OUT]
    assert [name for name in left if not name.startswith(PREFILL_PLAN)] == []
    assert_complete(released, [MLA_NAMES.get(name, name) for name in upstream], ours)


@pytest.mark.parametrize(
    ("record", "names", "left_out"),
    [(LinearMetadata, LINEAR_NAMES, LINEAR_LEFT_OUT), (MlaMetadata, MLA_NAMES, MLA_LEFT_OUT)],
    ids=["linear", "mla"],
)
def test_nothing_that_is_left_out_is_there(record, names, left_out) -> None:
    ours = names_of(record)
    assert ours.isdisjoint(left_out)
    assert set(names.values()) <= ours
    assert ours.isdisjoint(names)
    assert set(names).isdisjoint(left_out)


def test_what_is_said_to_be_elsewhere_is_there() -> None:
    assert "query_start_loc" in names_of(Batch)
    assert "causal" in names_of(MlaSpec) & names_of(Batch)
    assert {"dcp_size", "dcp_rank"} <= names_of(MlaConfig)
