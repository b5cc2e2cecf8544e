"""What a binding is bound to: symbol sets, signatures, revisions; and how the report says so."""

import io
import os
import subprocess
import zipfile
from types import SimpleNamespace

import pytest
from rich.console import Console

from oracles.cli import exit_code
from oracles.contract import Binding
from oracles.contracts import by_name, select
from oracles.domain import Scope
from oracles.providers import binding as bindings
from oracles.providers.standins import MissingImport
from oracles.providers.trees import TextTree
from oracles.report import text
from oracles.report.document import document
from oracles.results import Profile, Settings
from oracles.run import Execution, plan

OLD, NEW = "pkg/old.py", "pkg/new.py"


def bind(files, **options):
    """The loaded binding of ``f`` in a tree of these files, or why there is none."""
    given = {
        "symbols": {NEW: ("f",)},
        "other_symbols": ({OLD: ("g",)},),
        "adapt": lambda names: next(iter(names.values())),
    }
    made = Binding(project="pkg", name="b", runs="host", **(given | options))
    tree = TextTree(files, "pkg 1.0 (text)")
    choice = bindings.chosen(tree, made, {})
    if choice.lacking is not None:
        return choice.lacking
    lifted = bindings.LiftedBinding(lambda: tree, made, choice)
    return SimpleNamespace(function=lifted(), bound=lifted.bound)


def test_the_first_symbol_set_that_is_complete_is_taken_and_said():
    both = {NEW: "def f(a): return 'new'", OLD: "def g(a): return 'old'"}
    for files, answer, number, function in (
        (both, "new", 1, f"{NEW}:f(a)"),
        ({OLD: both[OLD]}, "old", 2, f"{OLD}:g(a)"),
    ):
        made = bind(files)
        assert made.function(0) == answer
        assert (made.bound.number, made.bound.sets, made.bound.functions) == (number, 2, (function,))
        assert (made.bound.version, made.bound.how) == ("pkg 1.0 (text)", "lifted")


def test_what_no_symbol_set_has_is_told_of_each():
    assert bind({OLD: "h = 1"}) == f"not in this release: there is no {NEW} (f); {OLD} has no g"


@pytest.mark.parametrize(
    ("parameters", "known"),
    [
        ("a, b", True),
        ("a, *, b", True),
        ("a, b, c=1", True),
        ("a, b, **more", True),
        ("x", True),
        ("a", False),
        ("b, a", False),
        ("a, b, c", False),
        ("", False),
    ],
)
def test_a_signature_is_one_of_those_that_the_binding_knows(parameters, known):
    made = {"files": {NEW: f"def f({parameters}): pass"}, "signatures": {"f": (("a", "b"), ("x",))}}
    if known:
        assert bind(**made).bound.functions[0].startswith(f"{NEW}:f({parameters[:1]}")
        return
    with pytest.raises(LookupError, match=r"f\(.*\) is not what the binding knows, f\(a, b\) or \(x\)"):
        bind(**made)


def test_a_stand_in_that_a_library_refuses_is_a_missing_import_and_no_fault():
    function = bind({NEW: "from pkg.gone import SIZE\ndef f(a): return ' '.join([a, SIZE]) if a else len(0)"}).function
    with pytest.raises(MissingImport, match=r"a library was handed a stand-in for one of pkg\.gone:SIZE"):
        function("x")
    with pytest.raises(TypeError, match="has no len"):
        function("")


def test_what_a_release_of_aiter_lacks_is_unsupported(tmp_path):
    """The layout of the release on PyPI: flat Triton operators, none for gated delta nets."""
    path = tmp_path / "amd_aiter-0.1.7.post2.dev18-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("__init__", "ops/triton/rope", "ops/triton/fused_kv_cache", "ops/triton/_triton_kernels/rope"):
            file.writestr(f"aiter/{name}.py", "raise SystemError('read, never imported')\n")
        metadata = "Name: amd-aiter\nVersion: 0.1.7.post2.dev18\n"
        file.writestr("amd_aiter-0.1.7.post2.dev18.dist-info/METADATA", metadata)
    planned = plan(["chunk_metadata.chunk_metadata"], [f"aiter:{path}"], [])
    kernels = "aiter/ops/triton/_triton_kernels"
    gated = f"there is no {kernels}/gated_delta_rule/utils/index.py"
    assert planned.tasks == []
    assert [result.refused for result in planned.missing] == [
        f"not in this release: {gated} (prepare_chunk_indices, prepare_chunk_offsets)",
        f"not in this release: there is no {kernels}/chunk_delta_attn/utils/index.py (prepare_chunk_indices); "
        f"{gated} (prepare_chunk_offsets)",
    ]
    made = document(planned.missing)
    assert {(entry["verdict"], entry["provider"]) for entry in made["results"]} == {
        ("unsupported", "amd-aiter 0.1.7.post2.dev18 (wheel)")
    }
    assert [entry["detail"] for entry in made["results"]] == [result.refused for result in planned.missing]
    assert exit_code(planned.missing, require=False) == 3


BUILDER = """
import torch
def compute_causal_conv1d_metadata(query_start_loc_p_cpu, *, device):
    lengths = query_start_loc_p_cpu.diff().tolist()
    blocks = [{blocks} for length in lengths]
    programs = [(row, block) for row, count in enumerate(blocks) for block in range(count)]
    made = torch.full((2, 2 * max(1024, len(programs))), -1, dtype=torch.int32, device=device)
    if programs:
        made[:, : len(programs)] = torch.tensor(programs, dtype=torch.int32).T
    return {{8: {{"tot": len(programs)}}}}, made[0].clone(), made[1].clone()
"""
FILE = "vllm/v1/attention/backends/utils.py"


@pytest.fixture
def repository(tmp_path):
    """Two commits: the first, tagged ``faulty``, drops a request's last, short block. Returned with their names."""
    folder = tmp_path / "clone"
    (folder / FILE).parent.mkdir(parents=True)
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)}

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    for number, blocks in enumerate(("length // 8", "-(-length // 8)")):
        (folder / FILE).write_text(BUILDER.format(blocks=blocks))
        git("add", ".")
        git("commit", "-q", "-m", str(number))
    git("tag", "faulty", "HEAD~1")
    return folder, git("rev-parse", "faulty"), git("rev-parse", "HEAD")


def test_two_revisions_of_a_repository_are_judged_and_named_by_their_commits(repository, tmp_path):
    folder, faulty, sound = repository
    contract = by_name("chunk_metadata.causal_conv1d_metadata")
    specs = [f"vllm:git+{folder}@{revision}" for revision in ("HEAD~1", "HEAD")]
    planned = plan([contract.full_name], specs, [])
    results = Execution(planned, Settings(Profile(Scope(1, 2), 20), state=tmp_path / "state"), jobs=1).run()
    made = document(results)
    assert [task["provider"] for task in made["tasks"]] == [
        f"vllm at {commit[:10]} (git)" for commit in (faulty, sound)
    ]
    assert [bool(result.findings) for result in results] == [True, False]
    # What HEAD~1 means changes with the next commit; the replay names the commit that was judged.
    assert f"vllm:git+{folder}@{faulty} " in results[0].findings[0].replay
    [narrowing] = planned.tasks[0].implementation.narrowings
    for task in made["tasks"]:
        assert list(task["bound"]["functions"]) == [
            f"{FILE}:compute_causal_conv1d_metadata(query_start_loc_p_cpu, device)"
        ]
        assert task["bound"]["version"] == task["provider"]
        assert task["judged"] > 20
        assert list(task["narrowed"]) == [narrowing.reason]
        assert all("refusals are not judged" in reason for reason in task["unsupported"])
        assert task["narrowed"][narrowing.reason] > 0
    shown = io.StringIO()
    text.show(Console(file=shown), results)
    for commit in (faulty, sound):
        assert (
            f"  bound: vllm at {commit[:10]} (git), lifted: {FILE}:compute_causal_conv1d_metadata(" in shown.getvalue()
        )
    assert f"cases narrowed: {narrowing.reason}" in shown.getvalue()


def test_a_tag_is_resolved_to_its_commit(repository):
    folder, faulty, _ = repository
    contracts = [contract.full_name for contract in select("chunk_metadata")]
    planned = plan(contracts, [f"vllm:git+{folder}@faulty"], [])
    assert {task.implementation.provider for task in planned.tasks} == {f"vllm at {faulty[:10]} (git)"}
    assert all("not in this release" in result.refused for result in planned.missing)
    assert len(planned.missing) == 3
