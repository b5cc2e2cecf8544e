"""Released wheels: every binding binds and is judged, what they show is known, and every known finding shows."""

import os

import pytest

from oracles import known
from oracles.contracts import all_contracts
from oracles.examine import Examination
from oracles.results import PROFILES, Profile, Settings
from oracles.run import plan

FEWEST = 200
"""Cases of a ci-profile check that a binding has to judge: one that is narrowed to less says little."""

EXAMPLES = 200 if os.environ.get("ORACLES_NIGHTLY") == "1" else 60
"""Behind the small scope and the kept cases, which alone show every known finding."""

BINDINGS = [(contract, binding) for contract in all_contracts() for binding in contract.bindings]
OTHERS = ("0.24.0", "0.28.0", "0.30.0", "0.31.0", "0.32.0")
"""Releases that need not have everything that is bound; the newest one has to."""

GONE = ("common.triton_convert_req_index_to_global_index+fetch_id_to_ragged_triton",)
"""Bindings of what the newest release no longer has."""

EVERY_RUN = "chunk_metadata"
"""The family whose bindings are judged in every run: a binding takes a minute or two, and there are dozens."""

OF_VLLM = [
    pytest.param(
        contract, binding, id=binding.name, marks=[pytest.mark.nightly] if contract.family != EVERY_RUN else []
    )
    for contract, binding in BINDINGS
    if binding.project == "vllm"
]


@pytest.mark.upstream
@pytest.mark.slow
@pytest.mark.parametrize(("contract", "binding"), OF_VLLM)
def test_a_binding_judges_enough_and_shows_exactly_what_is_known(tmp_path, request, released, contract, binding):
    planned = plan([contract.full_name], [f"vllm:{released}"], [])
    refused = {result.task.implementation.name: result.refused for result in planned.missing}
    may_miss = released.name.split("-")[1] in OTHERS or binding.name in GONE
    if may_miss and "not in this release" in refused.get(binding.name, ""):
        pytest.skip(refused[binding.name])
    assert binding.name not in refused, refused
    [task] = [task for task in planned.tasks if task.implementation.name == binding.name]
    corpus = request.config.rootpath / "corpus"
    profile = Profile(PROFILES["ci"].scope, EXAMPLES)
    result = Examination(task, Settings(profile, state=tmp_path, corpus=corpus)).run()
    if may_miss and "is not what the binding knows" in (result.refused or ""):
        pytest.skip(result.refused)
    assert result.refused is None, result.notes
    assert ([finding.bucket for finding in result.findings], result.unexpected) == ([], {})
    expected = known.applicable(contract, task.implementation, task.backend.name)
    # Cases of known crashes are not launched, and say as much as those that are.
    avoided = sum(result.known[item.entry.id] for item in expected if item.deadly)
    assert result.judged + avoided >= FEWEST, dict(result.unsupported)
    assert set(result.known) == {item.entry.id for item in expected}
    assert (result.bound.version, result.bound.how) == (task.implementation.provider, "lifted")
    sets = (binding.symbols, *binding.other_symbols)
    assert len(result.bound.functions) in {sum(map(len, symbols.values())) for symbols in sets}
