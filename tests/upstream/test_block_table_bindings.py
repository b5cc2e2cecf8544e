"""vLLM's block tables: the adapters call the classes as a server does, and known findings name exactly their cases."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from packaging.version import Version

from oracles import known
from oracles.arrays import array
from oracles.case import Case
from oracles.contracts import block_table_bindings as bindings
from oracles.contracts import block_tables_bindings as class_bindings
from oracles.contracts import by_name
from oracles.contracts._block_table_upstream import Cells, gathered, slots
from oracles.verdict import Unsupported

FAMILY = "block_table."
ENTRIES = [entry for entry in known.entries() if entry.contract.startswith(FAMILY)]


# What the adapters do, with stand-ins for upstream's classes


class FakeTables:
    """The constructor of the newer class, of a release with kernel blocks or without."""

    def __init__(self, sizes, max_num_reqs, max_num_batched_tokens, columns, device, **options):
        self.made = (sizes, max_num_reqs, columns, options)
        self.block_tables = [SimpleNamespace(gpu=None) for _ in sizes]
        self.num_kv_cache_groups = len(sizes)
        self.calls = []

    def init_block_table_layout_tensors(self):
        self.calls.append([own.gpu for own in self.block_tables])

    def append_block_ids(self, request, ids, overwrite):
        if request == 1:
            raise RuntimeError("Block table write for request 1, group 0 exceeds row capacity (4 > 3)")
        if request == 2:
            raise RuntimeError("something else")
        self.calls.append((request, ids, overwrite))


class FakeTablesOfKernelBlocks(FakeTables):
    def __init__(self, sizes, max_num_reqs, max_num_batched_tokens, columns, device, kernel_block_sizes, **options):
        super().__init__(sizes, max_num_reqs, max_num_batched_tokens, columns, device, kernel=kernel_block_sizes)


CPU = SimpleNamespace(type="cpu")


def test_the_newer_class_is_pointed_at_the_given_tables_before_it_makes_its_pointers():
    made = bindings.newer_tables(FakeTables, ["first", "second"], (16, 4), CPU)
    assert made.calls == [["first", "second"]]
    assert made.made == ([16, 4], 0, [0, 0], {})
    assert bindings.PLATFORM.device_type is CPU


def test_kernel_blocks_are_passed_on_where_a_release_has_them_and_unsupported_elsewhere():
    made = bindings.newer_tables(FakeTablesOfKernelBlocks, ["table"], [32], CPU, kernel_block_sizes=[16])
    assert made.made[-1] == {"kernel": [16]}
    with pytest.raises(Unsupported, match="no kernel blocks in block tables"):
        bindings.newer_tables(FakeTables, ["table"], [32], CPU, kernel_block_sizes=[16])


def test_a_full_row_is_a_refusal_and_another_runtime_error_is_not():
    [newer, _] = class_bindings.CLASSES
    tables = newer.adapt({"BlockTables": FakeTables})([16], 3, [3], CPU)
    tables.append(0, ((5, 6),), overwrite=True)
    tables.clear(0)
    assert tables._tables.calls == [(0, ([5, 6],), True), (0, ([],), True)]
    with pytest.raises(ValueError, match="exceeds row capacity"):
        tables.append(1, ((5,),), overwrite=False)
    with pytest.raises(RuntimeError, match="something else"):
        tables.append(2, ((5,),), overwrite=False)


def test_the_newer_class_is_not_judged_where_it_needs_unified_memory():
    [newer, _] = class_bindings.CLASSES
    with pytest.raises(Unsupported, match="unified memory"):
        newer.adapt({"BlockTables": FakeTables})([16], 3, [3], SimpleNamespace(type="cuda"))


# What upstream's arithmetic is followed with


@pytest.mark.parametrize(
    ("strides", "distances", "values"),
    [
        (None, [0, 2, 3, 5, 6, -1], [1, 3, 4, 6, 0, 0]),
        ((5, 1), [2, 3, 5, 7], [3, 0, 4, 6]),
        ((9, 2), [0, 1, 4, 13, 15], [1, 0, 3, 6, 0]),
        ((1, 2), [0, 1, 2, 5, 6], [1, 4, 2, 6, 0]),
    ],
)
def test_elements_are_found_by_their_distance_and_what_lies_between_them_is_nothing(strides, distances, values):
    cells = Cells(array([[1, 2, 3], [4, 5, 6]], "int32", strides))
    loaded, inside = cells.read(np.array(distances))
    assert loaded.tolist() == values
    assert inside == all(values)
    assert [cells.one(distance) for distance in distances] == [(value, value != 0) for value in values]


def test_the_newer_gather_copies_counts_leaves_tails_and_clears_padding():
    inputs = {
        "block_tables": (array([[1, 2, 3], [4, 5, 6]], "int32"),),
        "num_blocks": array([[3, 1]], "int32"),
        "idx_mapping": array([1], "int32"),
        "out": (array([[7, 8, 9], [7, 8, 9]], "int32"),),
    }
    effect = gathered(inputs)
    assert effect.results[0].tolist() == [[4, 8, 9], [0, 0, 0]]
    assert effect.untouched[0].tolist() == [[False, True, True], [False, False, False]]
    assert [effect.stray, effect.clash, effect.endless] == [False] * 3


def step(**changes):
    """One row of two tokens: blocks 20 and 36 of request 0, the next request's behind them."""
    inputs = {
        "block_table": array([[20, 36], [37, 38]], "int32"),
        "idx_mapping": array([0], "int32"),
        "query_start_loc": array([0, 2], "int32"),
        "positions": array([0, 5], "int64"),
        "block_size": 4,
        "cp_size": 1,
        "cp_rank": 0,
        "cp_interleave": 1,
        "slot_mapping": array([7, 7, 7], "int64"),
    }
    return inputs | changes


@pytest.mark.parametrize(
    ("runner", "changes", "slots_then"),
    [
        ("newer", {}, [80, 145, -1]),
        ("older", {}, [80, 145, -1]),
        ("newer", {"positions": array([0, 8], "int64")}, [80, 148, -1]),
        # Towards zero, -1 is in block 0, one before its first slot.
        ("newer", {"positions": array([-1, 0], "int64")}, [79, 80, -1]),
        (
            "newer",
            {"block_table": array([[1 << 29, 0]], "int32"), "positions": array([0, 1], "int64")},
            [-(1 << 31), 1 - (1 << 31), -1],
        ),
        (
            "older",
            {"block_table": array([[1 << 29, 0]], "int32"), "positions": array([0, 1], "int64")},
            [1 << 31, (1 << 31) + 1, -1],
        ),
        ("newer", {"idx_mapping": array([-1], "int32")}, [-1, -1, -1]),
        # The older runner pads behind the positions, the newer one behind the tokens.
        ("newer", {"query_start_loc": array([0, 1], "int32")}, [80, -1, -1]),
        ("older", {"query_start_loc": array([0, 1], "int32")}, [80, 7, -1]),
        ("newer", {"enabled": False, "kernel_block_size": 4, "query_start_loc": array([1, 2], "int32")}, [7, -1, -1]),
        ("older", {"enabled": False, "kernel_block_size": 4}, [7, 7, 7]),
        # Of two ranks the second one has every second token, and this is its third one.
        ("older", {"cp_size": 2, "cp_rank": 1}, [-1, 82, -1]),
    ],
)
def test_slots_are_followed_as_each_runner_computes_them(runner, changes, slots_then):
    effect = slots(step(**changes), runner)
    assert effect.results[0].tolist() == slots_then
    assert [effect.stray, effect.clash, effect.endless] == [False] * 3


@pytest.mark.parametrize(
    ("runner", "changes", "what"),
    [
        ("newer", {"idx_mapping": array([2], "int32")}, "stray"),
        ("newer until 0.30", {"idx_mapping": array([-1], "int32")}, "stray"),
        ("newer", {"positions": array([0, 5], "int64", (2,))}, "stray"),
        ("newer", {"query_start_loc": array([0, 3], "int32")}, "stray"),
        ("newer", {"query_start_loc": array([0, (1 << 31) - 1], "int32")}, "endless"),
        (
            "newer",
            {"idx_mapping": array([0, 0], "int32", (2,)), "query_start_loc": array([0, 0, 0], "int32")},
            "idle",
        ),
    ],
)
def test_what_a_call_does_beside_its_results(runner, changes, what):
    effect = slots(step(**changes), runner)
    assert getattr(effect, what)


# Known findings


def test_a_kept_case_is_a_known_finding_of_each_implementation_for_one_reason(request):
    folder = request.config.rootpath
    seen = {}
    for entry in ENTRIES:
        matching = by_name(entry.contract).known[entry.predicate](Case.load(folder / entry.case).inputs)
        seen.setdefault((entry.contract, entry.implementation, entry.case), []).append(matching)
    assert all(all(answers) for answers in seen.values())


@pytest.mark.parametrize("version", ["0.30.0", "0.33.0"])
def test_a_known_finding_s_case_shows_no_other_one_of_the_same_release(request, version):
    for entry in ENTRIES:
        if version not in entry.versions or entry.predicate.startswith("every_"):
            continue  # compilations are counted over cases, whatever else these show
        inputs = Case.load(request.config.rootpath / entry.case).inputs
        implementation = SimpleNamespace(provider=f"vllm {version} (wheel)", name=entry.implementation)
        contract = by_name(entry.contract)
        backend = entry.backends[0] if entry.backends else "interpreter"
        matching = [
            item.entry.id for item in known.applicable(contract, implementation, backend) if item.matches(inputs)
        ]
        assert matching == [entry.id]


# The released code itself

FIRST = Version("0.30.0")
SINCE = {
    "gather_block_tables_windowed": Version("0.33.0"),
    "kernel_block_table": Version("0.32.0"),
    # The older runner's classes; 0.24.0 has them with other parameters.
    bindings.OLDER_SLOTS_METHOD: Version("0.28.0"),
    "MultiGroupBlockTable": Version("0.28.0"),
}

CODE = """
import json, sys
import torch
from oracles.contracts import by_name
from oracles.providers import resolve
from oracles.verdict import Unsupported

def ints(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)

def step(**more):
    buffer = ints([7] * 4, torch.int64)
    given = dict(block_table=ints([[20, 36], [37, 38]]), idx_mapping=ints([1, 0]), query_start_loc=ints([0, 2, 3]),
                 positions=ints([0, 7, 5], torch.int64), block_size=4, cp_size=1, cp_rank=0, cp_interleave=1)
    return {**given, **more, "slot_mapping": buffer}

def life(made):
    tables = made(block_sizes=(16, 4), max_num_reqs=2, max_num_blocks_per_group=(2, 1), device=torch.device("cpu"))
    tables.append(1, ([5, 6], [8]), False)
    tables.apply()
    return [table.tolist() for table in tables.gather(ints([1]), 2)]

def tables(**more):
    out = [ints([[9, 9], [9, 9]])]
    return {"block_tables": [ints([[5, 6], [7, 8]])], "num_blocks": ints([[2, 2]]), "idx_mapping": ints([1]), **more,
            "out": out}

CALLS = {
    "gather_block_tables": tables,
    "gather_block_tables_windowed": lambda: tables(num_computed_tokens=ints([0, 9]), window_reach=[2], block_sizes=[4]),
    "slot_mapping": step,
    "slot_mapping_hybrid": lambda: step(kernel_block_size=4, enabled=True),
    "kernel_block_table": lambda: dict(block_table=ints([[1, 0]]), blocks_per_kernel_block=2, stride=3),
}
contracts = [by_name("block_table." + name) for name in (*CALLS, "BlockTables")]
for item in resolve("vllm:" + sys.argv[1], contracts, named=True):
    name = item.contract.split(".")[1]
    try:
        function = item.load()
    except (LookupError, Unsupported):
        continue
    if name == "BlockTables":
        answer = life(function)
    else:
        given = CALLS[name]()
        result = function(**given)
        answer = [tensor.tolist() for tensor in given.get("out", [given.get("slot_mapping", result[0])])]
    print(json.dumps([name, item.name, answer]))
"""


@pytest.mark.upstream
def test_every_adapter_gives_what_the_contract_gives_where_upstream_is_right(released, tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(released)],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version = Version(released.name.split("-")[1])
    answers = {(name, of): answer for name, of, answer in map(json.loads, done.stdout.splitlines())}
    slots_then = [[148, 155, 145, -1]]
    expected = {
        ("gather_block_tables", bindings.GATHER_METHOD): [[[7, 8], [0, 0]]],
        ("gather_block_tables_windowed", bindings.GATHER_METHOD): [[[0, 8], [0, 0]]],
        ("slot_mapping", bindings.SLOTS_METHOD): slots_then,
        ("slot_mapping", bindings.OLDER_SLOTS_METHOD): slots_then,
        ("slot_mapping_hybrid", bindings.SLOTS_METHOD): slots_then,
        ("slot_mapping_hybrid", bindings.OLDER_SLOTS_METHOD): slots_then,
        ("kernel_block_table", bindings.KERNEL_TABLE_METHOD): [[[3, 4, 0, 1]]],
        ("BlockTables", "BlockTables"): [[[5, 6], [0, 0]], [[8], [0]]],
        ("BlockTables", "MultiGroupBlockTable"): [[[5, 6], [0, 0]], [[8], [0]]],
    }
    known_of = {key: SINCE.get(key[0], SINCE.get(key[1], FIRST)) for key in expected}
    assert answers == {key: answer for key, answer in expected.items() if version >= known_of[key]}
