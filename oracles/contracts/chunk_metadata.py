"""Contract 1.1, chunk_metadata: the inputs it is tried on, what is special about them, and who claims to satisfy it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Binding, Contract, Expected, Input, Narrowing, Output
from oracles.contracts._reference import answer
from oracles.contracts.chunk_metadata_known import KNOWN
from oracles.contracts.chunk_metadata_relations import RELATIONS
from oracles.domain import FEW, Source, far_stride, note_lengths
from reference.chunk_metadata import chunk_metadata as reference

LONGEST = 1 << 20
"""Longest sequence in tokens, unless chunks are longer."""

MOST_TOKENS = (1 << 31) - 1 - LONGEST
"""Tokens of a batch that fit int32 behind the largest first start."""

MOST_CHUNKS = (200, 1_500, 6_000)
"""Bounds on the chunks of a case, mostly the first: the slowest arm takes a millisecond for some dozen rows."""

CHUNK_SIZES = (1, 2, 16, 64, 64, 64, 128, 256, 1 << 30)
DTYPES = ("int32", "int64")


def domain(source: Source) -> Inputs:
    """A batch whose device and host lengths agree; one whose lengths differ; or an input that must be refused."""
    chunk_size, dtype, lengths = batch(source)
    flavour = source.choose((agreeing, disagreeing, refused), weights=(14, 3, 3))
    source.event(f"flavour: {flavour.__name__}")
    return flavour(source, chunk_size, dtype, lengths)


def agreeing(source: Source, chunk_size: int, dtype: str, lengths: list[int]) -> Inputs:
    """A batch as an engine builds it."""
    start = source.integer(0, LONGEST, near=(0, 0, 0, 1, 7), small=2)
    cu = list(accumulate(lengths, initial=start))
    device, host = source.view(cu, dtype), twin(source, cu)
    few, plainest = 2 <= len(lengths) < FEW, start == 0 and chunk_size == 1 and lengths == [1, 1]
    # Only where strides are drawn at all: a case that any stride shows is then reduced to a small one.
    strided = device.strides is not None and few
    if strided and source.choose((False, True), weights=(2, 1), small=2 if plainest else 1):
        source.event("layout: far apart within 32 bits")
        device = array(cu, dtype, (far_stride(len(cu)),))
    return {"cu_seqlens": device, "cu_seqlens_cpu": host, "chunk_size": chunk_size}


def disagreeing(source: Source, chunk_size: int, dtype: str, lengths: list[int]) -> Inputs:
    """The device's lengths are not the host's: one differs, is negative, is large, or all are garbage."""
    device = list(accumulate(lengths, initial=0))
    if lengths:
        fault = source.choose(("other", "negative", "large", "garbage"), weights=(6, 3, 2, 2), small=2)
        source.event(f"device lengths: {fault}")
        at = source.integer(0, len(lengths) - 1, near=(len(lengths) - 1,))
        if fault == "garbage":
            # The last start alone may be large without a negative length behind it: sums pass 2^31, values are due.
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            device[at + 1] = source.integer(low, high, near=(-1, low, high, 1 << 31, (1 << 33) + 5))
        else:
            changed = list(lengths)
            changed[at] = {
                "other": lambda: source.integer(0, 4 * chunk_size, near=(0, 1, chunk_size)),
                "negative": lambda: source.integer(-4 * chunk_size, -1, near=(-1, -chunk_size), small=1),
                "large": lambda: chunk_size * source.integer(256, 4096, near=(256, 257)),
            }[fault]()
            rest = sum(lengths) - lengths[at]
            changed[at] = max(-(1 << 31), min(changed[at], (1 << 31) - 1 - rest))
            device = list(accumulate(changed, initial=0))
    return {
        "cu_seqlens": source.view(device, dtype),
        "cu_seqlens_cpu": twin(source, list(accumulate(lengths, initial=0))),
        "chunk_size": chunk_size,
    }


def refused(source: Source, chunk_size: int, dtype: str, lengths: list[int]) -> Inputs:
    """An input that host-visible facts show to be wrong."""
    cu = list(accumulate(lengths, initial=0))
    longer = [*cu, cu[-1]]
    inputs: dict[str, Value] = {
        "cu_seqlens": array(cu, dtype),
        "cu_seqlens_cpu": array(cu, "int64"),
        "chunk_size": chunk_size,
    }
    wrong: dict[str, dict[str, Value]] = {
        "chunk_size 0": {"chunk_size": 0},
        "chunk_size negative": {"chunk_size": -chunk_size},
        "no element": {"cu_seqlens": array([], dtype), "cu_seqlens_cpu": array([], "int64")},
        "host longer": {"cu_seqlens_cpu": array(longer, "int64")},
        "device longer": {"cu_seqlens": array(longer, dtype)},
        "host decreasing": {
            "cu_seqlens": array(longer, dtype),
            "cu_seqlens_cpu": array([*cu, cu[-1] - 1], "int64"),
        },
        "two dimensions": {"cu_seqlens": array([cu], dtype), "cu_seqlens_cpu": array([cu], "int64")},
        "device int16": {"cu_seqlens": array([0] * len(cu), "int16")},
        "device float": {"cu_seqlens": array(cu, "float64")},
        "host float": {"cu_seqlens_cpu": array(cu, "float64")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def batch(source: Source) -> tuple[int, str, list[int]]:
    """Chunk size, dtype and lengths, with a bound on the number of chunks."""
    chunk_size = source.integer(1, 1 << 30, near=CHUNK_SIZES, small=2)
    dtype = source.choose(DTYPES)
    near = [1, chunk_size, chunk_size + 1, 2 * chunk_size, max(chunk_size - 1, 0)]
    # Few chunks as long as 2^30 tokens: a length plus a chunk passes 2^31, which 32-bit sums do not survive.
    longest = max(LONGEST, min(2 * chunk_size, MOST_TOKENS))
    lengths = source.lengths(longest, near=[*near, *(n * chunk_size for n in (255, 256, 257))])
    left = min(source.choose(MOST_CHUNKS, weights=(30, 8, 1), small=1) * chunk_size, MOST_TOKENS)
    behind = sum(length > 0 for length in lengths)
    for at, length in enumerate(lengths):
        # A chunk is left for each sequence behind this one, so that the last ones of many are not all empty.
        behind -= length > 0
        lengths[at] = min(length, left, max(left - behind * chunk_size, chunk_size))
        left -= lengths[at]
    note_lengths(source, lengths)
    return chunk_size, dtype, lengths


def twin(source: Source, cu: Sequence[int]) -> Array:
    """The host twin, whose width may differ from the device's."""
    dtype = source.choose(DTYPES, small=1)
    return array(cu, dtype, (2,)) if source.choose((False, True), weights=(5, 1), small=1) else array(cu, dtype)


def lengths_of(cu: Array) -> list[int]:
    """Differences of neighbouring elements, as Python ints."""
    values = cu.data.tolist()
    return [end - begin for begin, end in pairwise(values)]


def _chunks(lengths: Sequence[int], chunk_size: int) -> list[int]:
    return [-(-length // chunk_size) for length in lengths]


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The lengths rotated, once with the same total and once with one chunk more."""
    cu, host, chunk_size = inputs["cu_seqlens"], inputs["cu_seqlens_cpu"], inputs["chunk_size"]
    assert isinstance(cu, Array)
    assert isinstance(host, Array)
    assert isinstance(chunk_size, int)
    lengths = lengths_of(cu)
    if not lengths or lengths != lengths_of(host):
        return ()
    rotated = [*lengths[1:], lengths[0]]
    others = [rotated, [*rotated[:-1], rotated[-1] + chunk_size]]
    chunks = _chunks(lengths, chunk_size)
    different = [other for other in others if _chunks(other, chunk_size) != chunks]
    made = [list(accumulate(other, initial=int(cu.data[0]))) for other in different]
    return tuple(
        {**inputs, "cu_seqlens": cu.with_values(values), "cu_seqlens_cpu": host.with_values(values)}
        for values in made
        if values[-1] <= np.iinfo(np.int32).max
    )


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    cu, host = inputs["cu_seqlens"], inputs["cu_seqlens_cpu"]
    if not (isinstance(cu, Array) and isinstance(host, Array) and cu.data.ndim == host.data.ndim == 1 and cu.data.size):
        return frozenset()
    lengths, known = lengths_of(cu), lengths_of(host)
    found = {
        "no_sequences": not lengths,
        "empty_sequence": 0 in known,
        "lengths_disagree": lengths != known,
        "negative_length": min(lengths, default=0) < 0,
        "strided": cu.layout != (1,) and len(lengths) > 0,
        "huge_stride": cu.reach > 1 << 31,
        "sliced": cu.offset > 0,
        "int64": cu.dtype == "int64",
        "first_not_zero": bool(cu.data[0]),
        "host_strided": host.layout != (1,),
    }
    return frozenset(name for name, there in found.items() if there)


def sketch(inputs: Inputs) -> str:
    """The chunk layout, one line a sequence: its tokens, and which rows of chunk_indices are its chunks."""
    host, chunk_size = inputs["cu_seqlens_cpu"], inputs["chunk_size"]
    if not isinstance(host, Array) or not isinstance(chunk_size, int) or chunk_size < 1:
        return ""
    if host.data.ndim != 1 or host.data.dtype.kind != "i":
        return ""
    lines, row, begin = [], 0, int(host.data.ravel()[0]) if host.data.size else 0
    for number, length in enumerate(lengths_of(host)[:24]):
        chunks = max(-(-length // chunk_size), 0)
        full, rest = divmod(max(length, 0), chunk_size)
        cells = ["#" * 8] * min(full, 6) + (["#" * max(1, 8 * rest // chunk_size)] if rest else [])
        drawing = "|" + "|".join(cell.ljust(8, ".") for cell in cells[:6]) + "|" * bool(cells)
        drawing += f" ... {chunks - 6} more" if chunks > 6 else ""
        where = f"rows {row}..{row + chunks - 1}" if chunks else "no row"
        lines.append(
            f"sequence {number:>3}  tokens {begin}..{begin + length - 1}".ljust(38)
            if length > 0
            else f"sequence {number:>3}  no tokens".ljust(38)
        )
        lines[-1] += f"{where:<14}{drawing if cells else '(empty)'}"
        row, begin = row + chunks, begin + length
    return "\n".join(lines) or "no sequences"


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(reference, ("chunk_indices", "chunk_offsets"), inputs)


def _host_functions(names: Mapping[str, Any]) -> Callable[..., Any]:
    indices, offsets = names["prepare_chunk_indices"], names["prepare_chunk_offsets"]

    def chunk_metadata(cu_seqlens: Any, cu_seqlens_cpu: Any, chunk_size: int) -> tuple[Any, Any]:
        return indices(cu_seqlens, chunk_size), offsets(cu_seqlens, chunk_size)

    return chunk_metadata


ONE_LENGTH = Narrowing(
    clause="device and host lengths agree",
    source="prepare_chunk_indices(cu_seqlens, chunk_size) takes no host twin",
    excludes=lambda inputs: "lengths_disagree" in traits(inputs),
)

HOST_NAMES = ("prepare_chunk_indices", "prepare_chunk_offsets")
HOST_SIGNATURES = dict.fromkeys(HOST_NAMES, (("cu_seqlens", "chunk_size"),))

BINDINGS = (
    Binding(
        project="vllm",
        name="prepare_chunk_metadata_device",
        symbols={"vllm/models/kimi_k3/amd/kda_metadata.py": ("prepare_chunk_metadata_device",)},
        signatures={"prepare_chunk_metadata_device": (("cu_seqlens", "cu_seqlens_cpu", "chunk_size"),)},
        adapt=lambda names: names["prepare_chunk_metadata_device"],
        runs="triton",
    ),
    Binding(
        project="vllm",
        name="prepare_chunk_indices+prepare_chunk_offsets",
        symbols={"vllm/third_party/flash_linear_attention/ops/index.py": HOST_NAMES},
        other_symbols=({"vllm/model_executor/layers/fla/ops/index.py": HOST_NAMES},),
        signatures=HOST_SIGNATURES,
        adapt=_host_functions,
        runs="host",
        narrowings=(ONE_LENGTH,),
        follow=(
            "vllm.third_party.flash_linear_attention.ops.utils",
            "vllm.model_executor.layers.fla.ops.utils",
        ),
    ),
)

_AITER = "aiter/ops/triton/_triton_kernels"
_AITER_MODULES = _AITER.replace("/", ".")

# Both number the non-empty sequences, take no host twin and cache by identity. The second file has no offsets.
AITER_BINDINGS = (
    Binding(
        project="aiter",
        name="gated_delta_rule.prepare_chunk_indices+prepare_chunk_offsets",
        symbols={f"{_AITER}/gated_delta_rule/utils/index.py": HOST_NAMES},
        signatures=HOST_SIGNATURES,
        adapt=_host_functions,
        runs="host",
        narrowings=(ONE_LENGTH,),
        follow=(f"{_AITER_MODULES}.gated_delta_rule.gated_delta_rule_utils",),
    ),
    Binding(
        project="aiter",
        name="chunk_delta_attn.prepare_chunk_indices+gated_delta_rule.prepare_chunk_offsets",
        symbols={
            f"{_AITER}/chunk_delta_attn/utils/index.py": ("prepare_chunk_indices",),
            f"{_AITER}/gated_delta_rule/utils/index.py": ("prepare_chunk_offsets",),
        },
        signatures=HOST_SIGNATURES,
        adapt=_host_functions,
        runs="host",
        narrowings=(ONE_LENGTH,),
        follow=(
            f"{_AITER_MODULES}.chunk_delta_attn.chunk_delta_attn_utils",
            f"{_AITER_MODULES}.gated_delta_rule.gated_delta_rule_utils",
        ),
    ),
)

CONTRACTS = (
    Contract(
        family="chunk_metadata",
        name="chunk_metadata",
        section="1.1",
        summary="chunk indices and offsets for chunked linear attention",
        inputs=(
            Input(name="cu_seqlens", role="device", doc="int32 or int64 [N+1], cumulative lengths in tokens"),
            Input(name="cu_seqlens_cpu", role="host", doc="int32 or int64 [N+1], the same values on the host"),
            Input(name="chunk_size", role="scalar", compiled=True, doc="int >= 1, tokens"),
        ),
        outputs=(
            Output(name="chunk_indices", doc="[T, 2], dtype of cu_seqlens: (sequence, chunk in sequence)"),
            Output(name="chunk_offsets", doc="int64 [N+1]: rows before each sequence"),
        ),
        domain=domain,
        resample=resample,
        expected=expected,
        traits=traits,
        optimized="optimized.chunk_metadata:chunk_metadata",
        runs="triton",
        relations=RELATIONS,
        bindings=BINDINGS + AITER_BINDINGS,
        known=KNOWN,
        sketch=sketch,
    ),
)
