"""The registry, and what every contract in it promises to the harness."""

import ast
import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import oracles.contracts as registry
from oracles.arrays import Array, array, arrays_of
from oracles.case import Case
from oracles.contract import Contract, OnlyMemorySafety, Refused, Values
from oracles.contracts import UnknownContract, all_contracts, by_name, select
from oracles.contracts._reference import answer
from oracles.domain import Replay, Sampler, Scope, walk
from reference import errors

CONTRACTS = all_contracts()
SMALL = Scope(2, 2)
SAMPLES = 300 if os.environ.get("ORACLES_NIGHTLY") == "1" else 120
LONGEST_RECORD = 60  # lines, about: what adding a contract costs beside its functions

every_contract = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.full_name)
# A protocol's case is a whole life, which calls again and again on the same objects with other values.
every_call = pytest.mark.parametrize(
    "contract",
    [contract for contract in CONTRACTS if contract.kind != "protocol"],
    ids=lambda contract: contract.full_name,
)


def sampled(contract: Contract, count: int = SAMPLES) -> list:
    return [contract.domain(Sampler(17, index)) for index in range(count)]


def inputs_of(contract: Contract) -> list:
    """Sampled inputs and the whole small scope."""
    return sampled(contract) + [inputs for inputs, _ in walk(contract.domain, SMALL)]


def layout(value) -> object:
    if isinstance(value, Array):
        return value.dtype, value.shape, value.strides, value.offset
    return tuple(map(layout, value)) if isinstance(value, tuple) else type(value)


def same_outputs(one: Values, other: Values) -> bool:
    return repr(plain(one.outputs)) == repr(plain(other.outputs))


def plain(value) -> object:
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else np.asarray(value).tolist()


def test_there_are_contracts_with_names_of_their_own():
    assert CONTRACTS
    # Section 5 is one protocol for two families of builders, and for both in one batch.
    sections = [c.section for c in CONTRACTS if c.section != "5"]
    for names in ([c.full_name for c in CONTRACTS], sections, [c.optimized for c in CONTRACTS]):
        assert len(set(names)) == len(names)
    assert not {c.family for c in CONTRACTS} & {c.full_name for c in CONTRACTS}


def test_contracts_come_in_the_order_of_their_sections():
    sections = [[int(part) for part in contract.section.split(".")] for contract in CONTRACTS]
    assert sections == sorted(sections)


@every_contract
def test_a_contract_is_found_by_each_of_its_names(contract):
    assert by_name(contract.full_name) is contract
    assert select(contract.full_name) == (contract,)
    assert contract in select(contract.family)
    assert all(item.family == contract.family for item in select(contract.family))


def toys(monkeypatch, *names: tuple[str, str]) -> None:
    found = tuple(
        Contract(
            family=family,
            name=name,
            section="1.1",
            summary="",
            inputs=(),
            outputs=(),
            domain=lambda source: {},
            resample=lambda inputs: (),
            expected=lambda inputs: Values({}),
            traits=lambda inputs: frozenset(),
            optimized="",
            runs="host",
        )
        for family, name in names
    )
    monkeypatch.setattr(registry, "all_contracts", lambda: found)


def test_select_prefers_full_names_and_families_to_short_names(monkeypatch):
    toys(monkeypatch, ("a", "x"), ("a", "y"), ("b", "x"), ("b", "a"), ("c", "z"))
    names = lambda text: [contract.full_name for contract in select(text)]  # noqa: E731
    assert names("a") == ["a.x", "a.y"]
    assert names("b.a") == ["b.a"]
    assert names("z") == ["c.z"]
    assert names("y") == ["a.y"]
    with pytest.raises(UnknownContract, match=r"'x' is ambiguous: a\.x, b\.x"):
        select("x")


@pytest.mark.parametrize("name", ["", "nothing", "a.nothing", "nothing.x", "A", "a.", "a.x.y"])
def test_an_unknown_name_is_refused_with_what_is_known(monkeypatch, name):
    toys(monkeypatch, ("a", "x"), ("a", "y"))
    with pytest.raises(UnknownContract, match=r"known: a, a\.x, a\.y"):
        select(name)
    with pytest.raises(UnknownContract, match="no contract"):
        by_name(name)


@every_contract
def test_inputs_are_the_declared_ones_with_the_declared_roles(contract):
    declared = {item.name: item for item in contract.inputs}
    assert len(declared) == len(contract.inputs)
    assert len({item.name for item in contract.outputs}) == len(contract.outputs)
    assert {contract.input(name).name for name in declared} == set(declared)
    for inputs in inputs_of(contract):
        assert list(inputs) == list(declared)
        for name, value in inputs.items():
            holds_arrays = any(True for _ in arrays_of({name: value}))
            assert declared[name].role != "scalar" or not holds_arrays
    assert all(item.role == "device" for item in contract.inputs if item.inout)


@every_contract
def test_inputs_of_another_shape_are_complained_about(contract):
    inputs = contract.domain(Sampler(17, 0))
    assert all(contract.complaint(item) is None for item in sampled(contract))
    first = contract.inputs[0]
    swapped = 5 if first.role != "scalar" else array([1], "int32")
    assert "is no input of" in contract.complaint(inputs | {"another": 1})
    assert f"{first.name} is missing" in contract.complaint({n: v for n, v in inputs.items() if n != first.name})
    assert contract.complaint(inputs | {first.name: swapped}).startswith(f"{first.name}: ")


@every_contract
def test_the_specification_answers_every_input(contract):
    wanted = {item.name for item in contract.outputs} | {item.name for item in contract.inputs if item.inout}
    kinds = set()
    for inputs in inputs_of(contract):
        before = Case(contract=contract.full_name, inputs=inputs).id
        answer = contract.expected(inputs)
        kinds.add(type(answer))
        assert Case(contract=contract.full_name, inputs=inputs).id == before, "the answer changed its input"
        if isinstance(answer, Values):
            assert set(answer.outputs) == wanted
            assert same_outputs(answer, contract.expected(inputs))
        elif isinstance(answer, Refused):
            assert answer.argument in {item.name for item in contract.inputs}
            assert answer.reason
        else:
            assert answer.reason
    assert Values in kinds
    assert kinds <= {Values, Refused, OnlyMemorySafety}


@every_call
def test_resampled_inputs_keep_the_layout_and_change_the_answer(contract):
    resampled = 0
    for inputs in inputs_of(contract):
        answer = contract.expected(inputs)
        if not isinstance(answer, Values):
            continue
        for other in contract.resample(inputs):
            resampled += 1
            assert list(other) == list(inputs)
            assert {name: layout(value) for name, value in other.items()} == {
                name: layout(value) for name, value in inputs.items()
            }
            changed = contract.expected(other)
            assert isinstance(changed, Values)
            assert not same_outputs(changed, answer), inputs
    assert resampled > 50


@every_call
def test_most_inputs_with_values_can_be_resampled(contract):
    valued = [inputs for inputs in sampled(contract) if isinstance(contract.expected(inputs), Values)]
    assert sum(bool(contract.resample(inputs)) for inputs in valued) > len(valued) // 2


@every_contract
def test_traits_and_sketch_work_on_every_input(contract):
    seen = {}
    for inputs in inputs_of(contract):
        traits = contract.traits(inputs)
        assert isinstance(traits, frozenset)
        assert traits == contract.traits(inputs)
        assert all(isinstance(name, str) and name.isidentifier() for name in traits)
        for name in traits:
            seen[name] = seen.get(name, 0) + 1
        if contract.sketch is not None:
            assert isinstance(contract.sketch(inputs), str)
    assert seen
    assert contract.traits(contract.domain(Replay())) <= set(seen)


@every_contract
def test_an_input_survives_a_case_file(contract, tmp_path):
    for inputs in sampled(contract, 40):
        case = Case(contract=contract.full_name, inputs=inputs)
        assert Case.load(case.save(tmp_path / "case.json")).inputs == inputs


@every_contract
def test_narrowings_leave_at_least_half_of_the_inputs(contract):
    inputs = sampled(contract)
    for binding in contract.bindings:
        left = [item for item in inputs if not any(rule.excludes(item) for rule in binding.narrowings)]
        assert len(left) >= len(inputs) // 2
        assert all(rule.clause and rule.source for rule in binding.narrowings)


@every_contract
def test_relations_have_a_name_and_hold_for_the_specification(contract):
    names = [relation.name for relation in contract.relations]
    assert len(set(names)) == len(names)
    for inputs in sampled(contract, 60):
        if isinstance(contract.expected(inputs), Values):
            for relation in contract.relations:
                assert relation.law.endswith(".")
                assert relation.holds(lambda item: contract.expected(item).outputs, inputs) is None


def test_a_reference_gets_arrays_and_lists_of_its_own_and_its_exceptions_are_answers():
    def reference(tables, size):
        if size < 0:
            raise errors.ContractError("size", size, "must not be negative")
        if size > 9:
            raise errors.OnlyMemorySafety("too large")
        tables[0][0] = 7
        return tables[1], size

    tables = (array([1], "int32"), array([2], "int32"))
    answers = [answer(reference, ("table", "size"), {"tables": tables, "size": size}) for size in (1, -1, 10)]
    assert same_outputs(answers[0], Values({"table": np.array([2]), "size": 1}))
    assert tables[0].data[0] == 1
    assert (answers[1].argument, answers[2].reason) == ("size", "too large")
    assert "must not be negative" in answers[1].reason
    with pytest.raises(ValueError, match="zip"):
        answer(reference, ("table",), {"tables": tables, "size": 1})


def records() -> list:
    found = []
    for path in sorted(Path(inspect.getfile(registry)).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Contract":
                found.append(pytest.param(node, id=f"{path.stem}:{node.lineno}"))
    return found


@pytest.mark.parametrize("node", records())
def test_a_record_is_short(node):
    assert node.end_lineno - node.lineno < LONGEST_RECORD


def test_every_record_is_counted():
    # Contracts of one section have one record.
    assert len(records()) == len({contract.section for contract in CONTRACTS})
