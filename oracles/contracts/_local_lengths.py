"""Contract 2.4, dcp_local_seq_lens: the inputs it is tried on, and what is special about them."""

from __future__ import annotations

from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, Values
from oracles.contracts._batch_domain import Wanted, draw_batch
from oracles.contracts._garbage import MORE_FLAVOURS, draw_dtype, draw_flavour, spoil
from oracles.contracts._reference import answer
from oracles.contracts._ruled_steps import RULED, draw_ruled, placed
from oracles.contracts._table_layouts import draw_views
from oracles.domain import Source
from reference.sparse_indptr import dcp_local_seq_lens

OUTPUTS = ("local_seq_lens",)
SIZES = (1, 2, 3, 4, 8)
INTERLEAVES = (1, 2, 3, 16, 64)
SHAPES = ("vector", "matrix", "number", "cube")


def domain(source: Source) -> Inputs:
    """A step's lengths in one of several shapes; lengths that mean nothing; or an input that must be refused."""
    flavour = draw_flavour(source, MORE_FLAVOURS)
    if flavour == "refused":
        return _refused(source)
    if flavour in RULED:
        return _ruled(source, flavour)
    lengths = draw_batch(source, Wanted(kinds=1)).seq_lens
    dtype, size = draw_dtype(source), source.choose(SIZES, small=2)
    interleave = source.choose(INTERLEAVES, small=2 if flavour == "engine" else 1)
    if flavour == "garbage" and lengths:
        spoil(source, lengths, dtype, near=(-1, -interleave, -size * interleave - 1))
    shape = source.choose(SHAPES, weights=(8, 2, 2, 1), small=3 if flavour == "engine" else 1)
    source.event(f"shape: {shape}")
    values = np.array(lengths, np.int64)
    values = {
        "vector": values,
        "matrix": values.reshape(len(lengths), 1) + np.arange(2 if flavour == "engine" else 1),
        "number": np.array(lengths[0] if lengths else 0, np.int64),
        "cube": values.reshape(1, len(lengths), 1),
    }[shape]
    matrix = values.ndim == 2 and values.size
    return {
        "seq_lens": draw_views(source)(values, dtype) if matrix else source.view(values, dtype, small=1),
        "dcp_size": size,
        "dcp_rank": source.choose((None, *range(size)), small=2),
        "interleave": interleave,
    }


def _ruled(source: Source, flavour: str) -> Inputs:
    """Lengths by a rule, as a vector or in rows of three; a size and an interleave are drawn last."""
    lengths = np.array(draw_ruled(source, flavour, Wanted()).seq_lens, np.int64)
    in_rows = source.choose((False, True))
    inputs: Inputs = {
        "seq_lens": array(lengths[:, None] + np.arange(3) if in_rows else lengths, draw_dtype(source)),
        "dcp_size": source.choose((2, 3, 8), small=1),
        "dcp_rank": source.choose((None, 0, 1), small=1),
        "interleave": source.choose((1, 3, 16), small=1),
    }
    return placed(source, flavour, inputs, "seq_lens")


def _refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {"seq_lens": array([5, 3], "int32"), "dcp_size": 2, "dcp_rank": 0, "interleave": 1}
    wrong: dict[str, dict[str, Value]] = {
        "no ranks": {"dcp_size": 0},
        "rank past the ranks": {"dcp_rank": 2},
        "negative rank": {"dcp_rank": -1},
        "interleave 0": {"interleave": 0},
        "negative interleave": {"interleave": -1},
        "float lengths": {"seq_lens": array([5, 3], "float32")},
        "int16 lengths": {"seq_lens": array([5, 3], "int16")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(dcp_local_seq_lens, OUTPUTS, inputs)


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """Every length three longer, and all zero; each where that is another answer."""
    lengths, first = cast(Array, inputs["seq_lens"]), expected(inputs)
    if not isinstance(first, Values):
        return ()
    grown = np.minimum(lengths.data, np.iinfo(lengths.data.dtype).max - 3) + 3
    others = [{**inputs, "seq_lens": lengths.with_values(v)} for v in (grown, np.zeros_like(lengths.data))]
    return tuple(other for other in others if _local(expected(other)) != _local(first))


def _local(expected: Expected) -> list[int] | None:
    if not isinstance(expected, Values):
        return None
    return cast(list[int], np.asarray(expected.outputs["local_seq_lens"]).ravel().tolist())


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    lengths = cast(Array, inputs["seq_lens"])
    found = {
        "no_lengths": not lengths.data.size,
        "number": lengths.data.ndim == 0,
        "several_dimensions": lengths.data.ndim > 1,
        "negative_length": bool((lengths.data < 0).any()),
        "zero_length": bool((lengths.data == 0).any()),
        "all_ranks": inputs["dcp_rank"] is None,
        "ranks": cast(int, inputs["dcp_size"]) > 1,
        "interleave": cast(int, inputs["interleave"]) > 1,
        "huge_stride": lengths.reach > 1 << 31,
        "strided": lengths.strides is not None and lengths.reach <= 1 << 31,
        "sliced": bool(lengths.offset),
    }
    return frozenset(name for name, there in found.items() if there)
