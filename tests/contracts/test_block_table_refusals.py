"""What the implementations of block tables and slots refuse: the same as the specification, and other devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reference import block_table as gathers
from reference import slot_mapping as slots
from reference.errors import ContractError

pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import block_table, block_tables, slot_mapping  # not without Triton
from optimized.errors import ContractError as Refused

FUNCTIONS = {
    "gather_block_tables": (block_table, gathers),
    "gather_block_tables_windowed": (block_table, gathers),
    "kernel_block_table": (block_table, gathers),
    "slot_mapping": (slot_mapping, slots),
    "slot_mapping_hybrid": (slot_mapping, slots),
}

BAD_GATHERS = [
    {"block_tables": torch.zeros(2, 3)},
    {"block_tables": [torch.zeros(2, 3)]},
    {"block_tables": [torch.zeros(2, dtype=torch.int32)]},
    {"block_tables": []},
    {"out": [torch.zeros(3, 4, dtype=torch.int32)]},
    {"out": [torch.zeros(1, 3, dtype=torch.int32)]},
    {"num_blocks": torch.zeros(1, 3, dtype=torch.int32)},
    {"num_blocks": torch.zeros(2, dtype=torch.int32)},
    {"num_blocks": torch.zeros(1, 2)},
    {"idx_mapping": torch.zeros(2, 1, dtype=torch.int32)},
    {"idx_mapping": torch.zeros(2, dtype=torch.int16)},
]
BAD_WINDOWS = [
    {"num_computed_tokens": torch.zeros(3, dtype=torch.int32)},
    {"window_reach": [-1]},
    {"window_reach": [True]},
    {"window_reach": [1, 1]},
    {"window_reach": 3},
    {"block_sizes": [0]},
]
BAD_SLOTS = [
    {"block_table": torch.zeros(2, 3, dtype=torch.int64)},
    {"query_start_loc": torch.zeros(2, dtype=torch.int32)},
    {"positions": torch.zeros(9, dtype=torch.int32)},
    {"positions": torch.zeros(2, dtype=torch.uint8)},
    {"slot_mapping": torch.zeros(8, dtype=torch.int32)},
    {"block_size": 0},
    {"cp_size": 0},
    {"cp_rank": 2},
    {"cp_rank": -1},
    {"cp_interleave": True},
    {"cp_interleave": 3},
]
BAD_HYBRIDS = [{"kernel_block_size": 0}, {"enabled": 1}]
BAD_EXPANSIONS = [
    {"block_table": torch.zeros(2, dtype=torch.int32)},
    {"blocks_per_kernel_block": 0},
    {"blocks_per_kernel_block": 2**31 + 1, "stride": 2**40},
    {"stride": 1},
]


def good(name):
    ints = {"dtype": torch.int32}
    gathered = {
        "block_tables": [torch.zeros(2, 3, **ints)],
        "num_blocks": torch.zeros(1, 2, **ints),
        "idx_mapping": torch.zeros(2, **ints),
        "out": [torch.full((2, 3), 9, **ints)],
    }
    window = {"num_computed_tokens": torch.zeros(2, **ints), "window_reach": [0], "block_sizes": [1]}
    tokens = {
        "block_table": torch.zeros(2, 3, **ints),
        "idx_mapping": torch.zeros(2, **ints),
        "query_start_loc": torch.zeros(3, **ints),
        "positions": torch.zeros(2, **ints),
        **{"block_size": 4, "cp_size": 2, "cp_rank": 0, "cp_interleave": 2},
        "slot_mapping": torch.full((8,), 9),
    }
    return {
        "gather_block_tables": gathered,
        "gather_block_tables_windowed": gathered | window,
        "slot_mapping": tokens,
        "slot_mapping_hybrid": tokens | {"kernel_block_size": 2, "enabled": False},
        "kernel_block_table": {"block_table": tokens["block_table"], "blocks_per_kernel_block": 2, "stride": 2},
    }[name]


def as_arrays(value):
    if isinstance(value, list):
        return [as_arrays(item) for item in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("gather_block_tables", bad) for bad in BAD_GATHERS),
        *(("gather_block_tables_windowed", bad) for bad in BAD_WINDOWS),
        *(("slot_mapping", bad) for bad in BAD_SLOTS),
        *(("slot_mapping_hybrid", bad) for bad in BAD_HYBRIDS),
        *(("kernel_block_table", bad) for bad in BAD_EXPANSIONS),
    ],
)
def test_the_same_is_refused_as_by_the_specification(name, bad) -> None:
    inputs = {**good(name), **bad}
    with pytest.raises(ContractError) as wanted:
        getattr(FUNCTIONS[name][1], name)(**{key: as_arrays(value) for key, value in inputs.items()})
    with pytest.raises(Refused) as found:
        getattr(FUNCTIONS[name][0], name)(**inputs)
    assert (found.value.argument, found.value.rule) == (wanted.value.argument, wanted.value.rule)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("gather_block_tables", "block_tables"),
        ("gather_block_tables", "out"),
        ("gather_block_tables", "idx_mapping"),
        ("gather_block_tables_windowed", "num_computed_tokens"),
        ("slot_mapping", "positions"),
        ("slot_mapping", "slot_mapping"),
    ],
)
def test_tensors_on_another_device_are_refused(name, argument) -> None:
    inputs = good(name)
    value = inputs[argument]
    inputs[argument] = [item.to("meta") for item in value] if isinstance(value, list) else value.to("meta")
    with pytest.raises(Refused, match=f"{argument}: 'meta' breaks the rule: it must be on the device"):
        getattr(FUNCTIONS[name][0], name)(**inputs)


def test_windows_are_numbers_of_the_host() -> None:
    inputs = good("gather_block_tables_windowed") | {"window_reach": torch.zeros(1, dtype=torch.int64, device="meta")}
    with pytest.raises(Refused, match="window_reach: 'meta' breaks the rule: it must be on the CPU"):
        block_table.gather_block_tables_windowed(**inputs)


def bad_constructions():
    yield ([16], 0, [3]), "max_num_reqs"
    yield ([0], 1, [3]), "block_sizes"
    yield ([16], 1, [-1]), "max_num_blocks_per_group"
    yield ([16], 1, [3, 3]), "max_num_blocks_per_group"
    yield (16, 1, [3]), "block_sizes"


def test_bad_constructions_are_refused() -> None:
    for arguments, name in bad_constructions():
        with pytest.raises(Refused) as found:
            block_tables.BlockTables(*arguments, "cpu")
        with pytest.raises(ContractError) as wanted:
            gathers.BlockTables(*arguments)
        assert (found.value.argument, str(found.value)) == (name, str(wanted.value))


BAD_OPERATIONS = [
    ("append", 2, [[1], []], False),
    ("append", True, [[1], []], False),
    ("append", 0, [[1]], False),
    ("append", 0, [[2**31], []], False),
    ("append", 0, [[True], []], False),
    ("append", 0, [[1.0], []], False),
    ("append", 0, [(-1,), ()], False),
    ("append", 0, [[1], 5], False),
    ("append", 0, [[1], []], 1),
    ("append", 0, [[1, 2, 3, 4], []], False),
    ("clear", -1),
    ("move", 0, 2),
    ("move", "0", 1),
    ("swap", 0, 2),
    ("gather", [0, 1], 1),
    ("gather", [0], 3),
    ("gather", [[0]], 1),
    ("gather", [0.0], 1),
]


@pytest.mark.parametrize(("name", "arguments"), [(name, arguments) for name, *arguments in BAD_OPERATIONS])
def test_bad_operations_are_refused_as_by_the_specification(name, arguments) -> None:
    messages = []
    for tables, refusal, made in (
        (block_tables.BlockTables([16, 4], 2, [3, 0], "cpu"), Refused, torch.tensor),
        (gathers.BlockTables([16, 4], 2, [3, 0]), ContractError, np.array),
    ):
        given = [made(arguments[0]), *arguments[1:]] if name == "gather" else arguments
        with pytest.raises(refusal) as found:
            getattr(tables, name)(*given)
        messages.append((found.value.argument, found.value.rule))
    assert messages[0] == messages[1]
