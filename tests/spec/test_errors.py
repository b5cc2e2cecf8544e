"""The two small error modules stay equal, and their exceptions say what they have to say."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import optimized.errors
import reference.errors

MODULES = (reference.errors, optimized.errors)


def test_the_padding_values_are_those_of_the_contracts() -> None:
    for module in MODULES:
        assert (module.PAD_SLOT_ID, module.NULL_BLOCK_ID) == (-1, 0)


@pytest.mark.parametrize("module", MODULES)
def test_a_refusal_names_argument_value_and_rule(module) -> None:
    error = module.ContractError("chunk_size", 0, "it must be an int of at least 1")
    assert isinstance(error, ValueError)
    assert (error.argument, error.value, error.rule) == ("chunk_size", 0, "it must be an int of at least 1")
    assert str(error) == "chunk_size: 0 breaks the rule: it must be an int of at least 1"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_memory_safety_only_is_no_refusal() -> None:
    assert not issubclass(reference.errors.OnlyMemorySafety, ValueError)


def test_the_refusals_have_the_same_code() -> None:
    def body(module) -> str:
        tree = ast.parse(Path(module.__file__).read_text())
        found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ContractError")
        return "\n".join(ast.dump(n) for n in found.body if isinstance(n, ast.FunctionDef))

    assert body(reference.errors) == body(optimized.errors)


def test_importing_the_packages_imports_nothing_heavy() -> None:
    code = (
        "import sys, optimized.errors, reference.chunk_metadata, oracles.contracts.chunk_metadata_relations\n"
        "assert not {'torch', 'triton'} & set(sys.modules), 'torch or triton was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
