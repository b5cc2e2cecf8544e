"""The corpus: every kept case can be read, belongs to its contract, and has the right answer that stands in it."""

from pathlib import Path

import numpy as np
import pytest

from oracles.arrays import flat, plain_value
from oracles.case import Case
from oracles.contract import Values
from oracles.contracts import by_name

CORPUS = Path(__file__).parents[2] / "corpus"
PATHS = sorted(CORPUS.rglob("*.json"))


def test_there_is_a_corpus() -> None:
    assert len(PATHS) >= 18


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_kept_case_says_what_is_right_and_which_fault_it_shows(path: Path) -> None:
    case = Case.load(path)
    contract = by_name(case.contract)
    assert contract.complaint(case.inputs) is None
    assert path.parent.name == contract.family
    assert case.origin["fault"]
    assert isinstance(case.origin["bugs"], list)
    expected = contract.expected(case.inputs)
    if "expected" not in case.origin:
        # Garbage lengths promise memory safety, and no values that could stand here.
        assert path.stem == "device-garbage"
        return
    assert isinstance(expected, Values)
    outputs = flat(expected.outputs)
    assert case.origin["expected"].keys() == outputs.keys()
    for name, wanted in case.origin["expected"].items():
        right = np.asarray(plain_value(outputs[name])).tolist()
        padded = isinstance(right, list) and len(right) > 64
        # The padding of a causal-convolution table is 2,000 elements long: what is kept ends with its first -1.
        assert (right[: len(wanted)] if padded else right) == wanted
        assert not padded or set(right[len(wanted) - 1 :]) == {-1}


def test_no_case_is_kept_twice() -> None:
    ids = [Case.load(path).id for path in PATHS]
    assert len(ids) == len(set(ids))
