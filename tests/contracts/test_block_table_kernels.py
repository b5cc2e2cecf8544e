"""The kernels of block tables and slots where the domain's batches are too small: many groups, wide tables, long rows.

They are executed as gfx942 machine code, in this process.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from oracles.arrays import array, contiguous_strides
from oracles.backends.base import Variation
from oracles.backends.cdna.backend import CdnaBackend
from oracles.memory import values_of
from oracles.verdict import Race
from reference import block_table as gathers
from reference import slot_mapping as slots

triton = pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import block_table, block_tables, gathering, slot_mapping  # noqa: E402  # not without Triton
from optimized.errors import ContractError as Refused  # noqa: E402

FUNCTIONS = {
    "gather_block_tables": (block_table, gathers),
    "gather_block_tables_windowed": (block_table, gathers),
    "kernel_block_table": (block_table, gathers),
    "slot_mapping": (slot_mapping, slots),
    "slot_mapping_hybrid": (slot_mapping, slots),
}
KERNELS = (
    gathering._gather_few_kernel,
    gathering._gather_many_kernel,
    slot_mapping._slot_kernel,
    block_table._expand_kernel,
    block_tables._apply_kernel,
)
BUFFERS = ("out", "slot_mapping")
PAST_32_BITS = 2**31 + 16
MOST_WINDOWS = 40 if os.environ.get("ORACLES_NIGHTLY") == "1" else 8
"""Groups with windows. The kernel for more than 8 takes long to compile, and is that without windows in all else."""
ALONE = {"block_size": 4, "cp_size": 1, "cp_rank": 0, "cp_interleave": 1}
SHARED = {"block_size": 6, "cp_size": 2, "cp_rank": 1, "cp_interleave": 3}


class Machine:
    """Calls functions of ``optimized`` on guarded memory and compares with the reference."""

    def __init__(self):
        self.backend = CdnaBackend("gfx942")
        self.backend.prepare()
        self.compilations = {}

    def run(self, name, inputs, order="forward"):
        """One call: the number of launches, and the contents of the buffers or the outputs."""
        variation = Variation(order == "reverse", order)
        memory = self.backend.memory(variation)
        given = {
            key: values_of(value, memory, key, device=True, writable=key in BUFFERS) for key, value in inputs.items()
        }
        with self.backend.watch(memory, variation) as seen:
            results = getattr(FUNCTIONS[name][0], name)(**given)
        self.compilations.setdefault(name, set()).update(seen.compilations)
        assert [item for item in seen.failures if not isinstance(item, Race)] == []
        assert list(memory.faults()) == []
        self.races = [item for item in seen.failures if isinstance(item, Race)]
        return seen.launches, results[0]

    def agrees(self, name, inputs, order="forward"):
        """One call with defined values: right, without races, and in how many launches."""
        launches, found = self.run(name, inputs, order)
        (wanted,) = getattr(FUNCTIONS[name][1], name)(**{key: plain(value) for key, value in inputs.items()})
        several = isinstance(wanted, list)
        for one, other in zip(found if several else [found], wanted if several else [wanted], strict=True):
            assert (one.numpy().dtype, one.numpy().tolist()) == (other.dtype, other.tolist())
        assert self.races == []
        return launches


def plain(value):
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return getattr(value, "data", value)


@pytest.fixture(scope="module")
def machine(own_triton, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        own_triton(patch, tmp_path_factory.mktemp("triton"))
        yield Machine()


@pytest.fixture
def rng():
    return np.random.default_rng(4)


def tables(rng, shapes, dtype="int32"):
    return tuple(array(rng.integers(-9, 2**31 - 1, shape), dtype) for shape in shapes)


def gather_of(rng, columns, padded=3, requests=4):
    """A batch of two rows and a padding row, one of no request."""
    return {
        "block_tables": tables(rng, [(requests, width) for width in columns]),
        "num_blocks": array([[0, width + 9, width // 2, width] for width in columns], "int64"),
        "idx_mapping": array([3, -1, 2][: padded - 1], "int64"),
        "out": tables(rng, [(padded, width) for width in columns]),
    }


def windowed(inputs, reaches, sizes):
    out = inputs["out"]
    computed = array([0, -5, 40, 2**31 - 1], "int32")
    named = {"num_computed_tokens": computed, "window_reach": tuple(reaches), "block_sizes": tuple(sizes)}
    return {key: value for key, value in inputs.items() if key != "out"} | named | {"out": out}


@pytest.mark.parametrize(("num_groups", "launches"), [(1, 1), (8, 1), (9, 1), (32, 1), (33, 2)])
def test_groups_are_gathered_in_one_launch(machine, rng, num_groups, launches) -> None:
    inputs = gather_of(rng, [(group + 1) % 5 for group in range(num_groups)])
    assert machine.agrees("gather_block_tables", inputs) == launches
    sizes = [1 + group % 7 for group in range(num_groups)]
    sizes[-1] = 2**70
    reaches = [(0, 3, 30, 2**31 - 3, 2**63)[group % 5] for group in range(num_groups)]
    if num_groups <= MOST_WINDOWS:
        assert machine.agrees("gather_block_tables_windowed", windowed(inputs, reaches, sizes), "reverse") == launches


def test_programs_share_the_rows_and_columns_of_large_tables(machine, rng) -> None:
    inputs = gather_of(rng, [700, 511, 513], padded=19)
    for most in (8192, 12):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("optimized.launching._MOST_PROGRAMS", most)
            assert machine.agrees("gather_block_tables", inputs) == 1
            assert (
                machine.agrees(
                    "kernel_block_table",
                    {
                        "block_table": array(rng.integers(-9, 99, (5, 700)), "int32"),
                        "blocks_per_kernel_block": 3,
                        "stride": 5,
                    },
                )
                == 1
            )


def batch(rng, lengths, capacity, sizes, first=0, dtypes=("int32", "int64", "int64")):
    """Tokens of requests in a table of 8 columns; the second row is nobody's."""
    starts = first + np.cumsum([0, *lengths])
    rows = rng.integers(-1, 6, len(lengths))
    return {
        "block_table": tables(rng, [(5, 8)])[0],
        "idx_mapping": array(rows, dtypes[0]),
        "query_start_loc": array(starts, dtypes[1]),
        "positions": array(rng.integers(-1, 40, int(starts[-1])), dtypes[2]),
        **sizes,
        "slot_mapping": array(np.full(capacity, 77), "int64"),
    }


@pytest.mark.parametrize("most", [8192, 8])
@pytest.mark.parametrize("sizes", [ALONE, SHARED], ids=["alone", "shared"])
def test_programs_share_the_tokens_of_long_rows_and_the_padding(machine, rng, sizes, most, monkeypatch) -> None:
    monkeypatch.setattr("optimized.launching._MOST_PROGRAMS", most)
    inputs = batch(rng, [1, 900, 0, 257], 3000, sizes, first=5)
    assert machine.agrees("slot_mapping", inputs, "reverse") == 1
    cut = {**inputs, "query_start_loc": array([5, 6, 700, 4000, 2**40], "int64")}
    assert machine.agrees("slot_mapping", cut) == 1
    assert machine.agrees("slot_mapping", batch(rng, [], 1500, sizes, first=700)) == 1


def test_a_batch_of_many_short_rows(machine, rng) -> None:
    inputs = batch(rng, [1] * 40 + [0] * 30 + [3] * 20, 128, ALONE, dtypes=("int64", "int32", "int32"))
    assert machine.agrees("slot_mapping", inputs) == 1


def test_kernel_blocks_of_another_size_and_a_group_that_is_off(machine, rng) -> None:
    inputs = batch(rng, [3, 40], 50, SHARED)
    for size, enabled in ((3, True), (2**70, True), (3, False)):
        several = {**inputs, "kernel_block_size": size, "enabled": enabled}
        if size > 2**63:
            several["block_table"] = array(np.zeros((5, 8)), "int32")
        assert machine.agrees("slot_mapping_hybrid", several) == enabled


def test_absurd_values_are_memory_safe_and_end(machine, rng) -> None:
    for at in range(8):

        def absurd(value, always=False, at=at):
            limits = np.iinfo(value.dtype)
            values = [limits.min, -2, 0, 3, 4, 7, limits.max - 1, limits.max]
            return value.with_values(np.full(value.shape, values[at]) if always else rng.choice(values, value.shape))

        inputs = batch(rng, [40, 1, 0, 300, 2], 350, SHARED)
        indices = ("idx_mapping", "query_start_loc", "positions")
        inputs |= {name: absurd(inputs[name]) for name in indices}
        assert machine.run("slot_mapping", inputs)[0] == 1
        gathered = gather_of(rng, [5, 600])
        gathered["num_blocks"] = absurd(gathered["num_blocks"], always=True)
        assert machine.agrees("gather_block_tables", gathered) == 1
        gathered["idx_mapping"] = absurd(gathered["idx_mapping"])
        both = windowed(gathered, [3, 2**62], [2, 2**63 - 1])
        both["num_computed_tokens"] = absurd(both["num_computed_tokens"])
        assert machine.agrees("gather_block_tables_windowed", both) == 1


def laid_out(inputs, number):
    """The same values in another layout: steps between columns and rows, slice offsets, steps past 2**31."""

    def lay(value):
        if isinstance(value, tuple):
            return tuple(lay(item) for item in value)
        if not hasattr(value, "shape"):
            return value
        step, gap = (1, 2, 3, 16)[number % 4], (0, 1, 5)[number % 3]
        strides = [stride * step for stride in contiguous_strides(value.shape)]
        strides[0] += gap * (len(strides) - 1)
        if number % 10 == 9:
            strides[0] = PAST_32_BITS
        return array(value.data, value.dtype, tuple(strides), number % 5)

    return {key: lay(value) for key, value in inputs.items()}


def test_layouts_and_counts_never_compile_again(machine, rng) -> None:
    fresh = Machine()  # counts from 0, and finds the code that others have compiled
    for number in range(30):
        rows = 1 + number % 3
        num_groups = (1, 2, 7, 8, 9, 16, 20)[number % 7]
        gathered = gather_of(rng, [(number * group) % 17 for group in range(1, num_groups + 1)], rows + 1)
        reaches, sizes = [number % 5 * 16] * num_groups, [1 + number % 16] * num_groups
        calls = {
            "gather_block_tables": gathered,
            **(
                {"gather_block_tables_windowed": windowed(gathered, reaches, sizes)}
                if num_groups <= MOST_WINDOWS
                else {}
            ),
            "kernel_block_table": {
                "block_table": array(rng.integers(0, 99, (rows, number % 6)), "int32"),
                "blocks_per_kernel_block": 1 + number % 4,
                "stride": 16 + number,
            },
            "slot_mapping": batch(rng, [number % 4] * rows, number % 4 * rows + number % 16, SHARED, first=number % 2),
        }
        if num_groups <= MOST_WINDOWS:
            calls["gather_block_tables_windowed"] = windowed(gathered, reaches, sizes)
        calls["slot_mapping"]["slot_mapping"] = array(np.full(20 + number, 5), "int64")
        for name, inputs in calls.items():
            fresh.agrees(name, laid_out(inputs, number))
    assert {name: len(keys) for name, keys in fresh.compilations.items()} == {
        "gather_block_tables": 2,
        "gather_block_tables_windowed": 2 if MOST_WINDOWS > 8 else 1,
        "kernel_block_table": 1,
        "slot_mapping": 1,
    }


def test_the_machine_code_spills_nothing(machine, rng) -> None:
    from oracles.backends.cdna.code_object import read

    inputs = gather_of(rng, [3] * 9)
    machine.agrees("gather_block_tables", inputs)
    few = min(9, MOST_WINDOWS)
    machine.agrees("gather_block_tables_windowed", windowed(gather_of(rng, [3] * few), [1] * few, [2] * few))
    read_codes = [
        read(compiled.asm["hsaco"])
        for kernel in KERNELS
        for cache in kernel.device_caches.values()
        for compiled in cache[0].values()
    ]
    assert len(read_codes) >= 3
    for code in read_codes:
        assert (code.scratch, code.spilled_vgprs, code.spilled_sgprs, code.agprs) == (0, 0, 0, 0), code.name


def test_an_apply_is_one_launch_of_what_changed(machine, monkeypatch) -> None:
    copied = []
    original = torch.Tensor.copy_

    def noted(tensor, source, *args, **options):
        copied.append(source.numel())
        return original(tensor, source, *args, **options)

    rows = torch.tensor([1, 0, 2])
    with machine.backend.watch(machine.backend.memory(Variation()), Variation()) as seen:
        tables = block_tables.BlockTables([16, 16], 3, [1000, 2], "cpu")
        tables.append(1, [list(range(900)), [7]], False)
        tables.append(2, [[4], []], False)
        tables.apply()
        assert seen.launches == 1
        first = tables.gather(rows, 3)
        assert seen.launches == 2
        assert first[0][0, :901].tolist() == [*range(900), 0]
        assert (first[0][1:, :2].tolist(), first[1].tolist()) == ([[0, 0], [4, 0]], [[7, 0], [0, 0], [0, 0]])

        monkeypatch.setattr(torch.Tensor, "copy_", noted)
        tables.append(1, [[], [8]], False)
        tables.move(0, 0)
        tables.swap(2, 2)
        tables.clear(0)
        tables.append(2, [[], []], False)
        tables.apply()
        tables.apply()
        assert (seen.launches, copied) == (3, [6])  # one record of five numbers, and one block
        again = tables.gather(rows[:2], 2)
        assert [view.data_ptr() for view in again] == [view.data_ptr() for view in first]
        assert (again[1].tolist(), tuple(again[0].shape)) == ([[7, 8], [0, 0]], (2, 1000))
    assert seen.failures == []


def test_a_refused_append_changes_nothing(machine) -> None:
    with machine.backend.watch(machine.backend.memory(Variation()), Variation()) as seen:
        tables = block_tables.BlockTables([16, 16], 2, [4, 2], "cpu")
        tables.append(0, [[1], [2, 3]], False)
        with pytest.raises(Refused, match="request 0 must own at most 2 blocks of group 1"):
            tables.append(0, [[5], [6]], False)
        tables.append(0, [[5], []], False)
        tables.apply()
        gathered = tables.gather(torch.tensor([0]), 1)
    assert [view.tolist() for view in gathered] == [[[1, 5, 0, 0]], [[2, 3]]]
    assert seen.launches == 2
