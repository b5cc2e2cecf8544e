"""Lives of contracts 4.1, 5 and 6.2 from edited case files: what is none is refused, in one sentence."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from oracles.arrays import Array, array
from oracles.case import Case
from oracles.contract import OnlyMemorySafety, Refused, Values
from oracles.contracts import by_name
from oracles.domain import Sampler

LINEAR, MLA, MIXED = (f"metadata_reuse.{family}_metadata_reuse" for family in ("linear", "mla", "mixed"))
DISPATCH = "rope_kv_cache.mla_cache_write_dispatch"
TABLES = "block_table.BlockTables"
LARGE = 1 << 40
ROOT = Path(__file__).resolve().parents[2]


def drawn(name, holds):
    """The first drawn life of which something holds."""
    contract = by_name(name)
    for index in range(400):
        inputs = contract.domain(Sampler(5, index))
        if isinstance(contract.expected(inputs), Values) and holds(inputs):
            return contract, dict(inputs)
    raise AssertionError("no such life is drawn")


def put(value, place, item):
    """The value with this item at a place: ``(1, 0)`` is the first one of the second."""
    if not place:
        return item
    return (*value[: place[0]], put(value[place[0]], place[1:], item), *value[place[0] + 1 :])


BUILDERS = [
    (("steps", 0, 0, "updat"), r"steps\[0\]\[0\]: 'updat' .*one of reuse, all, build"),
    (("steps", 1, 0, 3), r"steps\[1\]\[0\]: 3 .*one of reuse"),
    (("steps", 1, 1, ("copy", "same build")), r"steps\[1\]\[1\]\[1\]: 'same build' .*last step, same builder, copy"),
    (("steps", 0, 1, "copy"), r"steps\[0\]\[1\]: 'copy' .*must be a list"),
    (("steps", 0, ("all",)), r"steps\[0\]: \('all',\) .*list of two"),
    (("steps", 0, ("all", (), 1)), r"steps\[0\]: .*list of two"),
    (("steps", 0, "all"), r"steps\[0\]: 'all' .*list of two"),
    (("steps", ()), r"steps: \(\) .*one at least"),
    (("steps", None), "steps: None .*list"),
    (("steps", (("all", ()),)), "query_start_loc: 2 .*one for each step, 1"),
    (("joins", 2), "joins: 2 .*number of a step"),
    (("joins", -1), "joins: -1 .*int of at least 0"),
    (("joins", True), "joins: True .*int of at least 0"),
    (("shared", 1), "shared: 1 .*must be a bool"),
    (("refilled", None), "refilled: None .*must be a bool"),
    (("max_num_reqs", 0), "max_num_reqs: 0 .*at least 1"),
    (("num_speculative_tokens", 0.5), "num_speculative_tokens: 0.5 .*int"),
    (("max_graph_rows", LARGE), r"step 0, group 0: groups and sizes: \d+ .*more than 16,777,216 elements"),
    (("groups", 0, 0, "linnear"), r"groups\[0\]\[0\]: 'linnear' .*one of linear"),
    (("groups", 1, 1, 0), r"groups\[1\]: block_size: 0 .*at least 1"),
    (("groups", 1, 2, -1), r"groups\[1\]: num_speculative_blocks: -1 .*at least 0"),
    (("groups", 1, 3, "some"), r"groups\[1\]: mamba_cache_mode: 'some' .*none, align, all"),
    (("groups", 0, 4, "bfloat61"), r"groups\[0\]\[4\]: 'bfloat61' .*one of bfloat16"),
    (("groups", 0, ("linear", 16)), r"groups\[0\]: .*list of six"),
    (("groups", ()), "groups: .*one at least of the family linear"),
    (("num_actual_tokens", 0, "many"), r"num_actual_tokens\[0\]: 'many' .*int"),
    (("full_graph", 1, 0), r"full_graph\[1\]: 0 .*must be a bool"),
    (("seq_lens", 0, None), r"seq_lens\[0\]: None .*must be a tensor"),
    (("num_accepted_tokens", 0, 1), r"num_accepted_tokens\[0\]: 1 .*a tensor or None"),
    (("is_prefilling", ()), "is_prefilling: 0 .*one for each step, 2"),
    (("block_tables", 0, "table"), r"block_tables\[0\]: 'table' .*must be a tensor"),
    (("slot_mappings", ()), "slot_mappings: 0 .*one for each step and group, 2 times 2"),
    (("seq_lens", 1, array([[5]], "int32")), r"step 1, group 0: seq_lens: \(1, 1\) .*one dimension"),
    (("seq_lens_cpu", 0, array([70] * 9, "int32")), "step 0, group 0: seq_lens_cpu: 9"),
]


@pytest.mark.parametrize(("edit", "wanted"), BUILDERS)
def test_an_edited_life_of_builders_is_refused(edit, wanted) -> None:
    contract, inputs = drawn(LINEAR, lambda life: len(life["steps"]) == len(life["groups"]) == 2 + life["joins"])
    assert contract.complaint(inputs) is None
    name, *place, item = edit
    said = contract.complaint(inputs | {name: put(inputs[name], place, item)})
    assert said is not None
    assert re.match(wanted, said), said


def test_families_and_words_of_other_contracts_are_refused() -> None:
    contract, inputs = drawn(MLA, lambda life: True)
    cache = inputs | {"groups": put(inputs["groups"], (0, 3), "fp9")}
    assert re.match(r"groups\[0\]\[3\]: 'fp9' .*one of auto, fp8", contract.complaint(cache))
    linear = by_name(LINEAR).complaint(inputs)
    assert re.match(r"groups\[0\]\[0\]: 'mla' .*one of linear", linear)
    contract, inputs = drawn(MIXED, lambda life: len(life["groups"]) == 2)
    linear = inputs | {"groups": (inputs["groups"][0], inputs["groups"][0])}
    assert re.match("groups: .*at least of the family mla", contract.complaint(linear))


def test_a_life_for_which_nothing_is_specified_is_refused() -> None:
    """Edited on the device alone, or with tables of other sizes in one buffer."""
    contract, inputs = drawn(LINEAR, lambda life: life["refilled"] and len(life["steps"]) == 2)
    longer = inputs["seq_lens"][1].with_values(inputs["seq_lens"][1].data + 1)
    said = contract.complaint(inputs | {"seq_lens": put(inputs["seq_lens"], (1,), longer)})
    assert re.match("step 1, group 0: nothing is promised for it: ", said)
    slots = array(inputs["slot_mappings"][-1].data, "int32")
    said = contract.complaint(inputs | {"slot_mappings": (*inputs["slot_mappings"][:-1], slots)})
    assert re.match(r"slot_mappings\[\d\]: 'int32' .*refilled before each step has one dtype", said)


OPERATIONS = [
    (("operations", 0, 0, "__init__"), r"operations\[0\]\[0\]: '__init__' .*one of append, clear, move, swap, apply"),
    (("operations", 0, 0, 7), r"operations\[0\]\[0\]: 7 .*one of append"),
    (("operations", 0, ()), r"operations\[0\]: \(\) .*begins with the name"),
    (("operations", 0, "apply"), r"operations\[0\]: 'apply' .*a list"),
    (("operations", 0, ("append", 0, ((1.5,),), False)), r"operations\[0\]: .*'append' must be a row, a list"),
    (("operations", 0, ("append", 0, ((1,),))), r"operations\[0\]: .*and a bool"),
    (("operations", 0, ("clear", True)), r"operations\[0\]: .*'clear' must be a row"),
    (("operations", 0, ("apply", 1)), r"operations\[0\]: .*'apply' must be nothing"),
    (("operations", 0, ("gather", 9, 1)), r"operations\[0\]\[1\]: 9 .*number of one of \d+ idx_mappings"),
    (("refilled", 1), "refilled: 1 .*a bool"),
    (("idx_mappings", 0, array([[0]], "int32")), r"idx_mappings\[0\]: .*one dimension"),
    (("idx_mappings", 0, array([0], "uint8")), r"idx_mappings\[0\]: 'uint8' .*int32 or int64"),
    (("idx_buffer", array([], "int32")), r"idx_mappings\[\d\]: .*idx_buffer.* has 0"),
]


@pytest.mark.parametrize(("edit", "wanted"), OPERATIONS)
def test_an_edited_life_of_block_tables_is_refused(edit, wanted) -> None:
    contract, inputs = drawn(
        TABLES, lambda life: life["refilled"] and life["operations"] and life["idx_buffer"].dtype == "int32"
    )
    assert contract.complaint(inputs) is None
    name, *place, item = edit
    said = contract.complaint(inputs | {name: put(inputs[name], place, item)})
    assert said is not None
    assert re.match(wanted, said), said


def test_a_life_with_mistakes_that_the_class_must_refuse_is_a_case() -> None:
    contract = by_name(TABLES)
    for index in range(300):
        assert contract.complaint(contract.domain(Sampler(7, index))) is None


DISPATCHED = [
    (("kind", 0, "reel"), r"step 0: kind: 'reel' .*one of real, dummy, profiling; .*has to be the only one"),
    (("kind", 1, None), r"kind\[1\]: None .*a word"),
    (("kind", ()), r"kind: \(\) .*one step at least"),
    (("kind", "real"), "kind: .real. .*must be a list"),
    (("decode_rows", 0, (0, 1, 1)), r"decode_rows\[0\]: \(0, 1, 1\) .*list of two ints"),
    (("decode_rows", 0, (0, True)), r"decode_rows\[0\]: \(0, True\) .*list of two ints"),
    (("prefill_rows", 1, "all"), r"prefill_rows\[1\]: 'all' .*list of two ints"),
    (("decode_rows", 1, (0, 99)), r"step 1: decode_rows: range\(0, 99\) .*within .*the only one"),
    (("prefill_rows", ((0, 0),)), "prefill_rows: 1 .*one for each step, as of kind, 2"),
    (("positions", 0, None), r"positions\[0\]: None .*must be a tensor"),
    (("q_pe", 1, array([[[1]]], "int32")), r"q_pe\[1\]: 'int32' .*dtype must be one of"),
    (("slot_mapping", 0, -1), r"slot_mapping\[0\]: -1 .*must be a tensor"),
    (("k_scale", "half"), "k_scale: 'half' .*a number or None"),
    (("is_neox", 1), "is_neox: 1 .*a bool"),
    (("cache_dtype", None), "cache_dtype: None .*a str"),
    (("refilled", "no"), "refilled: 'no' .*a bool"),
    (("cos", None), "cos: None .*must be a tensor"),
    (("kv_cache", array(1, "uint8")), r"kv_cache: \(\) .*have a dimension"),
]


@pytest.mark.parametrize(("edit", "wanted"), DISPATCHED)
def test_an_edited_life_of_a_dispatcher_is_refused(edit, wanted) -> None:
    contract, inputs = drawn(DISPATCH, lambda life: life["kind"] == ("real", "real"))
    assert contract.complaint(inputs) is None
    name, *place, item = edit
    said = contract.complaint(inputs | {name: put(inputs[name], place, item)})
    assert said is not None
    assert re.match(wanted, said), said


def test_slots_of_another_dtype_do_not_fit_the_buffer_that_is_refilled() -> None:
    contract, inputs = drawn(DISPATCH, lambda life: life["refilled"] and life["kind"][:2] == ("real", "real"))
    other = {"int32": "int64", "int64": "int32"}[inputs["slot_mapping"][1].dtype]
    slots = array(inputs["slot_mapping"][1].data, other)
    said = contract.complaint(inputs | {"slot_mapping": put(inputs["slot_mapping"], (1,), slots)})
    assert re.match(rf"slot_mapping\[1\]: '{other}' .*has one dtype", said)


def test_an_unknown_kind_alone_is_for_the_dispatcher_to_refuse() -> None:
    contract, inputs = drawn(DISPATCH, lambda life: life["kind"] == ("real",))
    edited = inputs | {"kind": ("reel",)}
    assert contract.complaint(edited) is None
    assert isinstance(contract.expected(edited), Refused)


def test_kept_lives_are_lives() -> None:
    kept = [Case.load(path) for path in sorted((ROOT / "corpus" / "metadata_reuse").glob("*.json"))]
    assert kept
    assert [case.id for case in kept if by_name(case.contract).complaint(case.inputs) is not None] == []


ODD = (
    None, True, -1, 0, 7, LARGE, 0.5, "odd", (), (1,), ("reuse", ()), ("odd", ()), (0, 1), (1, 0), (0, 1, 2),
    array([1], "int64"), array([[1, 2]], "int32"), array([], "bool"), array(3, "int32"), array([[[1]]], "bfloat16"),
)  # fmt: skip


def edited(rng: random.Random, value):
    """The value with something else in it, left out, or there twice; of a tensor, with another number."""
    if isinstance(value, tuple) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        middle = rng.choice(((), (value[at],) * 2, *[(edited(rng, value[at]),)] * 8))
        return (*value[:at], *middle, *value[at + 1 :])
    if isinstance(value, Array) and value.data.size and rng.random() < 0.5:
        data = value.data.ravel().copy()
        data[rng.randrange(data.size)] = rng.choice((0, 1, 3, 100))
        return value.with_values(data)
    return rng.choice(ODD)


@pytest.mark.parametrize("name", [LINEAR, MLA, MIXED, DISPATCH])
def test_whatever_is_edited_a_life_is_refused_or_specified(name) -> None:
    """And drawn, too: no error but a complaint comes of it."""
    contract, rng, complaints, edits = by_name(name), random.Random(1), 0, 400
    lives = [contract.domain(Sampler(6, index)) for index in range(40)]
    for number in range(edits):
        life = dict(lives[number % len(lives)])
        argument = rng.choice(list(life))
        life[argument] = edited(rng, life[argument])
        said = contract.complaint(life)
        if said is None:
            assert isinstance(contract.expected(life), Values | Refused | OnlyMemorySafety)
            assert contract.traits(life) is not None
            assert contract.sketch(life) is not None
        else:
            complaints += 1
            assert re.search("breaks the rule: |nothing is promised for it: ", said), said
    assert edits // 2 < complaints < edits
