"""Case files of lives that somebody edited: `oracles replay` and `oracles explain` say what is wrong with them."""

import json
from pathlib import Path

import pytest

from oracles.case import Case
from oracles.contracts import by_name
from oracles.domain import Sampler

BUILDERS = Path(__file__).resolve().parents[1] / "quality" / "metadata_reuse"
REUSE = "metadata_reuse.linear_metadata_reuse"


@pytest.fixture
def edited(tmp_path):
    """A drawn life on disk, whose inputs are those of its document after an edit."""

    def write(contract, edit, number=0):
        path = tmp_path / "case.json"
        Case(contract=contract, inputs=by_name(contract).domain(Sampler(3, number))).save(path)
        document = json.loads(path.read_bytes())
        edit(document["inputs"])
        path.write_text(json.dumps(document))
        return str(path)

    return write


def unknown_probe(inputs):
    inputs["steps"][0][1] = ["same build"]


def another_mode(inputs):
    inputs["groups"][0][3] = "al"


def no_rows(inputs):
    inputs["decode_rows"][0] = [0]


@pytest.mark.parametrize("command", ["replay", "explain"])
@pytest.mark.parametrize(
    ("contract", "edit", "rule"),
    [
        (REUSE, unknown_probe, "steps[0][1][0]: 'same build' breaks the rule: it must be one of last step, same"),
        (REUSE, another_mode, "groups[0]: mamba_cache_mode: 'al' breaks the rule: it must be one of none, align, all"),
        ("rope_kv_cache.mla_cache_write_dispatch", no_rows, "decode_rows[0]: (0,) breaks the rule: it must be a list"),
    ],
)
def test_what_is_no_life_is_refused(command, contract, edit, rule, edited, in_process):
    path = edited(contract, edit)
    code, out, err = in_process(command, path, "--impl", "optimized")
    assert (code, out) == (2, "")
    assert f"Error: {path}: inputs: {rule}" in err


def test_a_replay_tells_that_no_reuse_was_judged(edited, in_process):
    def two_groups_update(inputs):
        groups, tables = inputs["groups"], len(inputs["groups"])
        inputs["groups"] = [groups[0]] * tables
        inputs["steps"] = [["all", []] for _ in inputs["steps"]]
        inputs["full_graph"] = [False for _ in inputs["steps"]]
        assert tables > 1

    path = edited(REUSE, two_groups_update, 1)
    spec = f"{BUILDERS / 'unusual_linear.py'}:NeverReuses"
    code, out, _ = in_process("replay", path, "--impl", spec, "--backend", "host")
    assert code == 0
    assert "| no reuse of linear metadata was judged, only builds: can_reuse_metadata was False all " in out
