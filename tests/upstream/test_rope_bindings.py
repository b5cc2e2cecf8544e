"""Adapters of upstream code for contract 6.1, on steps worked out by hand, and kept cases against known findings."""

from pathlib import Path

import pytest

from oracles import known
from oracles.case import Case
from oracles.contracts import by_name, rope_bindings, rope_hip_bindings, rope_torch_bindings
from oracles.providers.archives import ArchiveTree
from oracles.providers.binding import LiftedBinding, chosen
from oracles.providers.standins import MissingImport
from oracles.providers.trees import TextTree

ROOT = Path(__file__).parents[2]
NAME = "rope_kv_cache.rope_and_cache_mla"
KEPT = sorted((ROOT / "corpus/rope_kv_cache").glob("*.json"))
ENTRIES = [entry for entry in known.entries() if entry.contract == NAME]

QUARTER_TURN = {"cos": [[1.0, 1.0], [0.0, 1.0]], "sin": [[0.0, 0.0], [1.0, 0.0]]}


def step(torch, *, neox, cache_dtype="auto", k_scale=None, dtype=None):
    """Two tokens, the second without a slot: the first pair of lanes turns by a right angle, the other stays."""
    dtype = dtype or torch.bfloat16
    lanes = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]] * 2, dtype=dtype)
    stored = torch.full((1, 2, 6), 9.0, dtype=dtype) if cache_dtype == "auto" else torch.zeros(1, 2, 6).to(torch.uint8)
    return {
        "q_nope": torch.tensor([[[5.0, 6.0]]] * 2, dtype=dtype),
        "q_pe": lanes,
        "kv_c": torch.tensor([[7.0, 8.0]] * 2, dtype=dtype),
        "k_pe": -lanes[:, 0],
        **{name: torch.tensor(table, dtype=dtype) for name, table in QUARTER_TURN.items()},
        "positions": torch.tensor([1, 0]),
        "slot_mapping": torch.tensor([1, -1]),
        "k_scale": k_scale,
        "q_scale": None,
        "is_neox": neox,
        "cache_dtype": cache_dtype,
        "kv_cache": stored,
    }


@pytest.fixture(params=rope_torch_bindings.VLLM_UNFUSED, ids=lambda binding: binding.name)
def unfused(request, released):
    pytest.importorskip("torch")
    tree = ArchiveTree(released)
    choice = chosen(tree, request.param, {})
    if choice.lacking:
        pytest.skip(choice.lacking)
    return LiftedBinding(lambda: tree, request.param, choice)()


@pytest.mark.upstream
@pytest.mark.parametrize(("neox", "turned"), [(True, [-3, 2, 1, 4]), (False, [-2, 1, 3, 4])])
def test_vllm_rotates_all_and_writes_what_has_a_slot(unfused, neox, turned):
    torch = pytest.importorskip("torch")
    given = step(torch, neox=neox)
    queries, keys = unfused(**given)
    assert queries.tolist() == [[[5, 6, *turned]], [[5, 6, 1, 2, 3, 4]]]
    assert keys.tolist() == [[-lane for lane in turned], [-1, -2, -3, -4]]
    assert given["kv_cache"].tolist() == [[[9] * 6, [7, 8, *(-lane for lane in turned)]]]


@pytest.mark.upstream
def test_the_torch_form_of_the_write_divides_and_saturates(unfused):
    torch = pytest.importorskip("torch")
    given = step(torch, neox=True, cache_dtype="float8_e4m3fn", k_scale=0.5)
    given["kv_c"][0, 1] = float("inf")
    unfused(**given)
    numbers = given["kv_cache"].view(torch.float8_e4m3fn).float()
    assert numbers.tolist() == [[[0] * 6, [14, 448, 6, -4, -2, -8]]]


@pytest.mark.upstream
def test_the_rounding_of_a_float32_table_is_told_apart(released):
    pytest.importorskip("torch")
    tree = ArchiveTree(released)
    orders = []
    for binding in rope_torch_bindings.VLLM_UNFUSED:
        choice = chosen(tree, binding, {})
        orders.append(None if choice.lacking else LiftedBinding(lambda: tree, binding, choice)().rounding)
    assert [order in (wanted, None) for order, wanted in zip(orders, ("torch", "promote"), strict=True)] == [True, True]


@pytest.mark.upstream
def test_hip_code_cannot_be_lifted_and_the_report_says_why():
    text = (
        "from ..jit.core import compile_ops\n\n\n"
        '@compile_ops("module_cache")\ndef fused_qk_rope_concat_and_cache_mla(q_nope): ...\n'
    )
    tree = TextTree({rope_hip_bindings.FILE: text}, "aiter 1 (text)")
    binding = rope_hip_bindings.AITER_HIP[0]
    with pytest.raises(MissingImport, match=r"aiter\.jit\.core:compile_ops was used"):
        LiftedBinding(lambda: tree, binding, chosen(tree, binding, {}))()


def recorded(calls):
    """An op with the fused one's parameters, which notes what it was given."""
    import torch

    def op(q_nope, q_pe, k_nope, k_pe, kv_cache, slot_mapping, pos, cos, sin, k_scale, is_neox, **options):
        rows = {"queries": q_nope.shape[0], "keys": k_nope.shape[0], "slots": slot_mapping.tolist()}
        calls.append({**rows, "cache": tuple(kv_cache.shape), "scale": k_scale, **options})
        return torch.cat((q_nope, q_pe), dim=-1), None, k_pe.clone(), None

    return op


def adapted(name, calls):
    torch = pytest.importorskip("torch")
    [binding] = [item for item in rope_bindings.AITER_TRITON if item.name == name]
    names = {"fused_qk_rope_cat_and_cache_mla": recorded(calls), "e4m3_dtype": torch.float8_e4m3fnuz}
    return torch, binding.adapt(names)


def test_aiter_gets_rows_of_one_head_and_a_scale_where_one_is_used():
    calls = []
    torch, function = adapted("fused_qk_rope_cat_and_cache_mla", calls)
    function(**step(torch, neox=True, k_scale=0.5))
    function(**step(torch, neox=True, cache_dtype="float8_e4m3fnuz", k_scale=0.5))
    assert [call["cache"] for call in calls] == [(2, 1, 6)] * 2
    assert calls[0]["scale"] is None
    assert calls[1]["scale"].tolist() == [0.5]


def test_a_dtype_that_aiter_asserts_against_is_left_out_with_the_reason():
    torch, function = adapted("fused_qk_rope_cat_and_cache_mla", [])
    with pytest.raises(Exception, match="on this chip, float8_e4m3fnuz"):
        function(**step(torch, neox=True, cache_dtype="float8_e4m3fn"))


def test_variants_of_aiter_give_the_parameter_that_they_are_named_with():
    calls = []
    for name in ("num_decode_toks_for_zeros", "upcast_operand", "decode queries"):
        torch, function = adapted(f"fused_qk_rope_cat_and_cache_mla({name})", calls)
        queries, _ = function(**step(torch, neox=True))
        assert queries.shape == (2, 1, 6)
    zeros, upcast, decodes, others = calls
    assert (zeros["num_decode_toks_for_zeros"], upcast["upcast_operand"]) == (1, True)
    assert (decodes["queries"], decodes["keys"], decodes["slots"]) == (1, 2, [1, -1])
    assert (others["queries"], others["keys"], others["slots"]) == (1, 1, [-1])


def test_a_cache_whose_blocks_lie_apart_is_narrowed():
    [narrowing] = rope_bindings.AITER_TRITON[0].narrowings
    apart = [path.stem for path in KEPT if narrowing.excludes(Case.load(path).inputs)]
    assert apart == ["pages-of-other-layers-between"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_a_predicate_keeps_to_the_cases_of_its_fault(entry):
    if entry.cumulative:
        pytest.skip("says nothing of a single case")
    predicate = by_name(NAME).known[entry.predicate]
    matched = {path.stem for path in KEPT if predicate(Case.load(path).inputs)}
    assert matched == MATCHED[entry.predicate]


MATCHED = {
    "no_tokens": {"no-tokens"},
    "position_is_no_row": {
        "position-before-the-table",
        "position-behind-the-table",
        "position-far-behind-the-table",
        "query-without-a-slot",
    },
    "position_is_no_index": {
        "position-behind-the-table",
        "position-far-behind-the-table",
        "query-without-a-slot",
    },
    "position_counts_from_the_end": {"position-before-the-table"},
    "no_power_of_two": {"sizes-no-powers-of-two"},
    "token_without_a_slot": {"no-slot-is-not-the-last", "query-without-a-slot"},
    "slot_past_the_cache": {"slot-past-the-cache"},
    "position_past_the_table": {
        "position-before-the-table",
        "position-behind-the-table",
        "query-without-a-slot",
    },
    "tokens_that_wrap": {"tokens-far-apart"},
    "slots_apart": {"slots-apart"},
    "fewer_slots_than_tokens": {"fewer-slots-than-queries"},
    "sine_of_another_layout": {"sines-of-another-layout"},
    "infinity_in_float8_e4m3fnuz": {"infinity-saturates-fnuz"},
    "infinity_in_float8_e4m3fn": {"infinity-saturates"},
}
