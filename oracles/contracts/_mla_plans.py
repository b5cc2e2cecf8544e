"""Contract 2.5, mla_split_plan: the inputs it is tried on, what is special about them, and which plans are right."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, cast

import numpy as np

from oracles.arrays import Array, Inputs, Outputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._garbage import draw_dtype, draw_flavour
from oracles.contracts._reference import answer
from oracles.domain import Source
from reference.mla_split_plan import check, mla_split_plan

OUTPUTS = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
GRANULARITIES = (16, 1, 2, 64, 128, 48, 3)
SPLITS = (1, 2, 3, 8, 80, 304)
"""The last two are the compute units of gfx942 chips."""

LONGEST = 1 << 18
"""KV entries of a row: a context of 262,144 tokens."""


def domain(source: Source) -> Inputs:
    """Rows of queries and KV entries; or an input that must be refused."""
    # The planner works on the host, where starts that mean nothing are seen and refused.
    if draw_flavour(source) != "engine":
        return _refused(source)
    granularity = source.choose(GRANULARITIES, weights=(4, 3, 3, 3, 3, 2, 2), small=1)
    tile = source.choose((1, 2, 16, 128, 3, 12), weights=(3, 3, 4, 3, 1, 1), small=2)
    splits = source.choose(SPLITS, weights=(1, 3, 2, 2, 1, 1), small=2)
    near = (1, granularity, granularity + 1, 17 * granularity, 40 * granularity, LONGEST)
    rows = source.items(lambda own: _row(own, near, tile, granularity), max_count=70)
    queries = list(accumulate((q for q, _ in rows), initial=0))
    entries = list(accumulate((kv for _, kv in rows), initial=0))
    types = [draw_dtype(source), draw_dtype(source)]
    return {
        "qo_indptr": source.view(queries, types[0], small=1),
        "kv_indptr": source.view(entries, types[1], small=1),
        "kv_granularity": granularity,
        "q_tile": tile,
        "num_splits": splits,
    }


def _row(source: Source, near: tuple[int, ...], tile: int, granularity: int) -> tuple[int, int]:
    """Queries and KV entries of a row: no entry, one, a giant, and what lies between."""
    queries = source.integer(0, 3 * tile + 1, near=(1, tile, tile + 1), small=2)
    # In small scopes a row is so long that several splits share it.
    unit = source.choose((1, 40 * granularity), weights=(3, 1), small=2)
    units = source.integer(0, LONGEST // unit, near=[n for n in near if n * unit <= LONGEST])
    return queries, units * unit


def _refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "qo_indptr": array([0, 1, 2], "int32"),
        "kv_indptr": array([0, 40, 57], "int32"),
        "kv_granularity": 16,
        "q_tile": 1,
        "num_splits": 2,
    }
    wrong: dict[str, dict[str, Value]] = {
        "granularity 0": {"kv_granularity": 0},
        "tile 0": {"q_tile": 0},
        "no splits": {"num_splits": 0},
        "negative splits": {"num_splits": -1},
        "other rows": {"kv_indptr": array([0, 40], "int32")},
        "no element": {"qo_indptr": array([], "int32"), "kv_indptr": array([], "int32")},
        "first query": {"qo_indptr": array([1, 1, 2], "int32")},
        "first entry": {"kv_indptr": array([-1, 40, 57], "int32")},
        "decreasing queries": {"qo_indptr": array([0, 2, 1], "int32")},
        "decreasing entries": {"kv_indptr": array([0, 57, 40], "int64")},
        "entries past int32": {"kv_indptr": array([0, 40, 1 << 31], "int64")},
        "float starts": {"kv_indptr": array([0, 40, 57], "float32")},
        "two dimensions": {"qo_indptr": array([[0, 1, 2]], "int32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """One right plan, the plain one."""
    return answer(mla_split_plan, OUTPUTS, inputs)


def accepts(inputs: Inputs, outputs: Outputs) -> str | None:
    """What is wrong with a plan; any plan that the invariants allow is right."""
    plan: list[Any] = []
    for name in OUTPUTS:
        tensor = outputs.get(name)
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.int32:
            return f"{name} is no int32 tensor"
        plan.append(tensor)
    queries, entries = (cast(Array, inputs[name]).data for name in ("qo_indptr", "kv_indptr"))
    granularity, tile, splits = (cast(int, inputs[name]) for name in ("kv_granularity", "q_tile", "num_splits"))
    return check(queries, entries, granularity, tile, splits, *plan)


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The rows the other way round, and rows without KV entries; each where that is another input."""
    if not isinstance(expected(inputs), Values):
        return ()
    turned = {}
    for name in ("qo_indptr", "kv_indptr"):
        starts = cast(Array, inputs[name])
        turned[name] = starts.with_values(list(accumulate(np.diff(starts.data)[::-1].tolist(), initial=0)))
    entries = cast(Array, inputs["kv_indptr"])
    others = (turned, {"kv_indptr": entries.with_values(np.zeros_like(entries.data))})
    return tuple({**inputs, **other} for other in others if any(other[name] != inputs[name] for name in other))


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    queries, entries = cast(Array, inputs["qo_indptr"]), cast(Array, inputs["kv_indptr"])
    if queries.data.ndim != 1 or entries.data.ndim != 1 or not queries.data.size:
        return frozenset()
    lengths, rows = np.diff(entries.data.astype(np.int64)), np.diff(queries.data.astype(np.int64))
    found = {
        "no_rows": not lengths.size,
        "no_entries": bool((lengths == 0).any()),
        "no_queries": bool((rows == 0).any()),
        "several_tiles": bool((rows > cast(int, inputs["q_tile"])).any()),
        "several_rows": lengths.size > 1,
        "several_splits": cast(int, inputs["num_splits"]) > 1,
        "split_rows": bool((lengths > cast(int, inputs["kv_granularity"])).any()),
        "decreasing": bool((lengths < 0).any() or (rows < 0).any()),
        "strided": any(item.strides is not None for item in (queries, entries)),
        "sliced": any(item.offset for item in (queries, entries)),
    }
    return frozenset(name for name, there in found.items() if there)
