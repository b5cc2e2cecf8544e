"""Contract 1.3, causal_conv1d_metadata: its inputs, what is special about them, and who claims to satisfy it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Binding, Contract, Expected, Input, Narrowing, Output, Values
from oracles.contracts._reference import answer
from oracles.contracts.causal_conv1d_metadata_relations import RELATIONS
from oracles.domain import Source, note_lengths
from reference.chunk_metadata import causal_conv1d_metadata as reference

LONGEST = 1 << 20
"""Most tokens of a request."""

MOST_BLOCKS = (200, 1_023, 1_500, 6_000)
"""Bounds on the blocks of a case. From 1,024 blocks on the outputs are longer than 2,048."""

BLOCK_SIZES = (8, 16, 32, 64)
DTYPES = ("int32", "int64")
OUTPUTS = ("batch_ptr", "token_chunk_offset_ptr", "total")


def domain(source: Source) -> Inputs:
    """A batch, or an input that must be refused."""
    # 8 is the only size that vLLM builds the lists for, so half of all inputs, refused ones included, must have it.
    block_m = source.choose(BLOCK_SIZES, weights=(9, 1, 1, 1), small=1)
    dtype = source.choose(DTYPES)
    flavour = source.choose((batch, refused), weights=(14, 3))
    source.event(f"flavour: {flavour.__name__}")
    return flavour(source, block_m, dtype)


def batch(source: Source, block_m: int, dtype: str) -> Inputs:
    """A batch as an engine builds it; the first start may be anything."""
    # In small scopes lengths are small too: counted in other units, they still make more than one block.
    unit = source.choose((1, block_m, block_m // 2 + 1), weights=(8, 1, 1))
    lengths = [unit * length for length in source.lengths(LONGEST // unit, near=lengths_near(block_m // unit or 1))]
    left = source.choose(MOST_BLOCKS, weights=(30, 6, 6, 1), small=1)
    for at, length in enumerate(lengths):
        lengths[at] = min(length, left * block_m)
        left -= -(-lengths[at] // block_m)
    note_lengths(source, lengths)
    limits = np.iinfo(dtype)
    most = int(limits.max) - sum(lengths)
    start = source.integer(int(limits.min), most, near=(0, 0, 0, 0, 1, 7, block_m, -5, int(limits.min), most), small=2)
    return {
        "query_start_loc": source.view(list(accumulate(lengths, initial=start)), dtype),
        "block_m": block_m,
    }


def lengths_near(block: int) -> tuple[int, ...]:
    """Lengths around whole blocks, and so many blocks as make the outputs grow."""
    return (1, block, block + 1, max(block - 1, 0), 2 * block, *(n * block for n in (127, 128, 1023, 1024, 1025)))


def refused(source: Source, block_m: int, dtype: str) -> Inputs:
    """An input that host-visible facts show to be wrong."""
    lengths = [*source.lengths(4 * block_m, near=(1, block_m)), 1]
    starts = list(accumulate(lengths, initial=0))
    inputs: dict[str, Value] = {"query_start_loc": array(starts, dtype), "block_m": block_m}
    wrong: dict[str, dict[str, Value]] = {
        "decreasing": {"query_start_loc": array([*starts[:-1], starts[-2] - 1], dtype)},
        "first two fall": {"query_start_loc": array([1, *starts], dtype)},
        "no element": {"query_start_loc": array([], dtype)},
        "block_m 0": {"block_m": 0},
        "block_m negative": {"block_m": -block_m},
        "block_m 4": {"block_m": 4},
        "block_m 24": {"block_m": 24},
        "block_m 128": {"block_m": 128},
        "two dimensions": {"query_start_loc": array([starts], dtype)},
        "int16": {"query_start_loc": array([0] * len(starts), "int16")},
        "float": {"query_start_loc": array(starts, "float64")},
        "too many blocks": {"query_start_loc": array([*starts[:-1], 1 << 50], "int64")},
    }
    fault = source.choose(tuple(wrong), weights=(1,) * len(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def lengths_of(inputs: Inputs) -> list[int] | None:
    """The requests' lengths; ``None`` for starts that are not one-dimensional or have no element."""
    starts = inputs["query_start_loc"]
    if not isinstance(starts, Array) or starts.data.ndim != 1 or not starts.data.size:
        return None
    return [end - begin for begin, end in pairwise(starts.data.tolist())]


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The lengths rotated; the last one a block longer; and nothing left of the first one. Each with other blocks."""
    lengths, starts = lengths_of(inputs), cast(Array, inputs["query_start_loc"])
    if not lengths or not isinstance(expected(inputs), Values):
        return ()
    first, size = int(starts.data[0]), cast(int, inputs["block_m"])

    def blocks(some: list[int]) -> list[int]:
        return [-(-length // size) for length in some]

    others = [[*lengths[1:], lengths[0]], [*lengths[:-1], lengths[-1] + size], [0, *lengths[1:]]]
    made = [list(accumulate(other, initial=first)) for other in others if blocks(other) != blocks(lengths)]
    highest = np.iinfo(starts.data.dtype).max
    return tuple({**inputs, "query_start_loc": starts.with_values(m)} for m in made if m[-1] <= highest)


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    lengths, starts, size = lengths_of(inputs), cast(Array, inputs["query_start_loc"]), inputs["block_m"]
    if lengths is None or not isinstance(size, int) or size < 1:
        return frozenset()
    blocks = sum(-(-length // size) for length in lengths)
    found = {
        "no_requests": not lengths,
        "empty_request": 0 in lengths,
        "short_block": any(length % size for length in lengths),
        "several_blocks": any(length > size for length in lengths),
        "over_1024_blocks": blocks > 1024,
        "first_not_zero": bool(starts.data[0]),
        "strided": starts.layout != (1,) and len(lengths) > 0,
        "huge_stride": starts.reach > 1 << 31,
        "sliced": starts.offset > 0,
        "int64": starts.dtype == "int64",
        "block_m_not_8": size != 8,
    }
    return frozenset(name for name, there in found.items() if there)


def sketch(inputs: Inputs) -> str:
    """One line a request: its tokens, its programs, and its blocks, the last of which may be short."""
    known, lengths = expected(inputs), lengths_of(inputs)
    if not isinstance(known, Values) or lengths is None:
        return ""
    size, program = cast(int, inputs["block_m"]), 0
    lines = []
    for number, length in enumerate(lengths[:24]):
        blocks = -(-length // size)
        programs = f"programs {program}..{program + blocks - 1}" if blocks else "no program"
        cells = ["#" * 8] * min(length // size, 6)
        if length % size and len(cells) < 6:
            cells.append(("#" * max(1, 8 * (length % size) // size)).ljust(8, "."))
        drawing = "".join(f"|{cell}" for cell in cells) + "|" * bool(cells)
        drawing += f" ... {blocks - len(cells)} more" if blocks > len(cells) else ""
        lines.append(f"request {number:>3}  {length:>7} tokens  {programs:<20}{drawing}".rstrip())
        program += blocks
    return "\n".join(lines) or "no requests"


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(reference, OUTPUTS, inputs)


VLLM_FUNCTION = "compute_causal_conv1d_metadata"


def _of_vllm(names: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of the release, which returns a triple or a record, and may take no device."""
    upstream = names[VLLM_FUNCTION]
    parameters = inspect.signature(upstream).parameters

    def causal_conv1d_metadata(query_start_loc: Any, block_m: int) -> tuple[Any, Any, Any]:
        options = {"device": query_start_loc.device} if "device" in parameters else {}
        found = upstream(query_start_loc, **options)
        if not isinstance(found, tuple):
            found = (found.nums_dict, found.batch_ptr, found.token_chunk_offset_ptr)
        lists, batch_ptr, token_chunk_offset_ptr = found
        return batch_ptr, token_chunk_offset_ptr, lists[block_m]["tot"]

    return causal_conv1d_metadata


ONLY_8 = Narrowing(
    clause="blocks of 8 tokens",
    source="compute_causal_conv1d_metadata takes no block size: its loop over all BLOCK_M values covers 8 alone",
    excludes=lambda inputs: inputs["block_m"] != 8,
)

BINDINGS = (
    Binding(
        project="vllm",
        name=VLLM_FUNCTION,
        symbols={"vllm/v1/attention/backends/utils.py": (VLLM_FUNCTION,)},
        signatures={VLLM_FUNCTION: (("query_start_loc_p_cpu", "device"), ("query_start_loc_p",))},
        adapt=_of_vllm,
        runs="host",
        narrowings=(ONLY_8,),
    ),
)

CONTRACTS = (
    Contract(
        family="chunk_metadata",
        name="causal_conv1d_metadata",
        section="1.3",
        summary="which program of a causal convolution works on which block",
        inputs=(
            Input(name="query_start_loc", role="host", doc="int32 or int64 [P+1], starts in tokens"),
            Input(name="block_m", role="scalar", compiled=True, doc="8, 16, 32 or 64 tokens"),
        ),
        outputs=(
            Output(name="batch_ptr", doc="int32 [2 * max(1024, total)]: the request of each program, then -1"),
            Output(name="token_chunk_offset_ptr", doc="int32, as long: the program's block in its request, then -1"),
            Output(name="total", doc="int: the number of blocks"),
        ),
        domain=domain,
        resample=resample,
        expected=expected,
        traits=traits,
        optimized="optimized.causal_conv1d_metadata:causal_conv1d_metadata",
        runs="host",
        relations=RELATIONS,
        bindings=BINDINGS,
        sketch=sketch,
    ),
)
