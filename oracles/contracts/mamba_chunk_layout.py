"""Contract 1.2, mamba_chunk_layout: its inputs, what is special about them, and who claims to satisfy it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Binding, Contract, Expected, Input, Output, Values
from oracles.contracts._reference import answer
from oracles.contracts.mamba_chunk_layout_known import KNOWN
from oracles.contracts.mamba_chunk_layout_relations import RELATIONS
from oracles.domain import COUNTS, FEW, Source, note_lengths, windows
from oracles.verdict import Unsupported
from reference.chunk_metadata import mamba_chunk_layout as reference

LONGEST = 1 << 20
"""Most tokens of a request in one step."""

MOST_CHUNKS = (200, 1_500, 6_000)
"""Bounds on the whole chunks of a case, mostly the first."""

MOST_REQUESTS = 300
CHUNK_SIZES = (1, 2, 16, 64, 64, 64, 128, 256)
DTYPES = ("int32", "int64")
NAMES = ("query_start_loc", "num_computed_tokens", "checkpoint_offsets")
OUTPUTS = ("cu_chunk_seqlens", "seq_idx", "last_chunk_indices", "checkpoint_chunk_indices")


class Request(NamedTuple):
    """One request of a batch, in tokens."""

    length: int
    computed: int
    checkpoint: int = 0


class Batch(NamedTuple):
    """What is drawn once a batch: the chunk size, the largest computed count, and whether there are checkpoints."""

    chunk_size: int
    most_computed: int
    checkpoints: bool


def domain(source: Source) -> Inputs:
    """A prefill batch, or an input that must be refused."""
    chunk_size = source.integer(1, 1 << 16, near=CHUNK_SIZES)
    flavour = source.choose((prefills, refused), weights=(14, 3))
    source.event(f"flavour: {flavour.__name__}")
    return flavour(source, chunk_size)


def prefills(source: Source, chunk_size: int) -> Inputs:
    """A batch as an engine builds it; each tensor has a width and a layout of its own."""
    checkpoints = source.choose((False, True), weights=(2, 3))
    dtypes = [source.choose(DTYPES, small=1) for _ in NAMES]
    batch = Batch(chunk_size, (1 << 31) - 1 if dtypes[1] == "int32" else 1 << 62, checkpoints)
    requests = drawn(source, batch)
    note_lengths(source, [request.length for request in requests])
    # Views multiply the small scope by what its batches are few enough for.
    small = 2 if len(requests) <= 1 else 1
    make = source.view if source.choose((False, True), weights=(3, 2), small=small) else array
    starts, computed, offsets = columns(requests)
    return {
        "query_start_loc": make(starts, dtypes[0]),
        "num_computed_tokens": make(computed, dtypes[1]),
        "chunk_size": chunk_size,
        "checkpoint_offsets": make(offsets, dtypes[2]) if checkpoints else None,
    }


def drawn(source: Source, batch: Batch) -> list[Request]:
    """Few requests drawn one by one; among them, at times, a crowd that follows a rule."""
    begin = len(source.choices)
    few: list[Request] = []
    while len(few) < FEW and source.more(len(few)):
        few.append(request(source, batch))
    crowd, at = [], 0
    if source.choose((False, True), weights=(3, 1), small=1):
        at = source.integer(0, len(few))
        crowd = ruled(source, batch, max(source.integer(0, MOST_REQUESTS, near=COUNTS) - len(few), 0))
    requests = [*few[:at], *crowd, *few[at:]]
    if crowd:
        source.followed_rule(begin, 1, _one_by_one, requests, batch)
    left = source.choose(MOST_CHUNKS, weights=(30, 8, 1), small=1) * batch.chunk_size
    for place, each in enumerate(requests):
        length = min(each.length, left)
        requests[place] = Request(length, each.computed, min(each.checkpoint, length))
        left -= length
    return requests


def _one_by_one(requests: Sequence[Request], batch: Batch) -> Iterator[list[int]]:
    """Choices that draw every request, or some neighbours, without a crowd."""
    for some in windows(requests):
        drawn = [(1, *each[: 3 if batch.checkpoints else 2]) for each in some]
        yield [*chain.from_iterable(drawn), *[0] * (len(some) < FEW), 0]


def request(source: Source, batch: Batch) -> Request:
    """One request."""
    size = batch.chunk_size
    # Three lengths in every small scope: with fewer no request has two chunks, or a token between chunk ends.
    length = source.integer(0, LONGEST, near=(0, 0, 0, *lengths_near(size)), small=3)
    computed = source.integer(0, batch.most_computed, near=(0, *computed_near(size, batch.most_computed)))
    if not batch.checkpoints:
        return Request(length, computed)
    multiple = size - computed % size
    near = (0, 0, length, length - 1, 1, multiple, multiple - 1, multiple + 1, multiple + size)
    return Request(length, computed, source.integer(0, length, near=near))


def ruled(source: Source, batch: Batch, count: int) -> list[Request]:
    """All the same, or a seeded mixture of interesting requests."""
    if not source.choose((False, True)):
        return [request(source, batch)] * count
    rng = np.random.Generator(np.random.Philox(key=source.pick(1 << 16)))
    size = batch.chunk_size
    lengths: list[int] = rng.choice([0, 0, 0, *lengths_near(size)], size=count).tolist()
    computed: list[int] = rng.choice([0, 0, *computed_near(size, batch.most_computed)], size=count).tolist()
    wishes: list[int] = rng.integers(0, 2 * size, size=count).tolist()
    found = []
    for length, done, wish in zip(lengths, computed, wishes, strict=True):
        offset = {0: 0, 1: length, 2: size - done % size}.get(wish % 4, wish) if batch.checkpoints else 0
        found.append(Request(length, done, min(offset, length)))
    return found


def lengths_near(size: int) -> tuple[int, ...]:
    """Lengths around one, two and some hundred chunks."""
    return (1, size, size + 1, 2 * size, size - 1, 3 * size + 1, *(n * size for n in (32, 64, 255, 256, 257)))


def computed_near(size: int, most: int) -> tuple[int, ...]:
    """Computed counts around multiples of the chunk size, and the largest."""
    last = most // size * size
    return (0, 1, size - 1, size, size + 1, 2 * size, 2 * size + 1, 17 * size, last - 1, last, most)


def columns(requests: list[Request]) -> tuple[list[int], list[int], list[int]]:
    """The three tensors' values."""
    starts = list(accumulate((request.length for request in requests), initial=0))
    return starts, [request.computed for request in requests], [request.checkpoint for request in requests]


def refused(source: Source, chunk_size: int) -> Inputs:
    """An input that host-visible facts show to be wrong; its batch ends with a request of one token."""
    lengths = [*source.lengths(4 * chunk_size, near=(1, chunk_size)), 1]
    starts = list(accumulate(lengths, initial=0))
    computed = [chunk_size * (at % 3) for at in range(len(lengths))]
    offsets = [min(length, at % 2) for at, length in enumerate(lengths)]
    dtype = source.choose(DTYPES, small=1)
    inputs: dict[str, Value] = {
        "query_start_loc": array(starts, dtype),
        "num_computed_tokens": array(computed, dtype),
        "chunk_size": chunk_size,
        "checkpoint_offsets": array(offsets, dtype),
    }
    wrong: dict[str, dict[str, Value]] = {
        "chunk_size 0": {"chunk_size": 0},
        "chunk_size negative": {"chunk_size": -chunk_size},
        "no element": {name: array([], dtype) for name in NAMES},
        "starts longer": {"query_start_loc": array([*starts, starts[-1]], dtype)},
        "computed longer": {"num_computed_tokens": array([*computed, 0], dtype)},
        "checkpoints longer": {"checkpoint_offsets": array([*offsets, 0], dtype)},
        "checkpoints empty": {"checkpoint_offsets": array([], dtype)},
        "first start not 0": {"query_start_loc": array([start + 1 for start in starts], dtype)},
        "decreasing": {"query_start_loc": array([*starts[:-1], starts[-2] - 1], dtype)},
        "too many tokens": {"query_start_loc": array([*starts[:-1], 1 << 31], "int64")},
        "computed negative": {"num_computed_tokens": array([*computed[:-1], -1], dtype)},
        "checkpoint negative": {"checkpoint_offsets": array([*offsets[:-1], -1], dtype)},
        "checkpoint past the end": {"checkpoint_offsets": array([*offsets[:-1], 2], dtype)},
        "two dimensions": {"query_start_loc": array([starts], dtype)},
        "computed in a column": {"num_computed_tokens": array([[count] for count in computed], dtype)},
        "starts int16": {"query_start_loc": array([0] * len(starts), "int16")},
        "computed float": {"num_computed_tokens": array(computed, "float64")},
        "checkpoints bool": {"checkpoint_offsets": array([0] * len(lengths), "bool")},
    }
    fault = source.choose(tuple(wrong), weights=(1,) * len(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def requests_of(inputs: Inputs) -> list[Request] | None:
    """The requests of an input that is one-dimensional and of fitting sizes; else ``None``."""
    starts, computed, offsets = (inputs[name] for name in NAMES)
    if not isinstance(starts, Array) or not isinstance(computed, Array) or starts.data.ndim != 1:
        return None
    if computed.shape != (starts.data.size - 1,) or (isinstance(offsets, Array) and offsets.shape != computed.shape):
        return None
    lengths = [end - begin for begin, end in pairwise(starts.data.tolist())]
    checkpoints = offsets.data.tolist() if isinstance(offsets, Array) else [0] * len(lengths)
    return [Request(*each) for each in zip(lengths, computed.data.tolist(), checkpoints, strict=True)]


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """The requests rotated; all computed counts one lower or higher; and the last request one chunk longer."""
    requests, known = requests_of(inputs), expected(inputs)
    if not requests or not isinstance(known, Values):
        return ()
    size, last = cast(int, inputs["chunk_size"]), requests[-1]
    moved = [each._replace(computed=each.computed + (1 if each.computed == 0 else -1)) for each in requests]
    longer = [*requests[:-1], last._replace(length=last.length + size)]
    made = [_refilled(inputs, other) for other in ([*requests[1:], requests[0]], moved, longer)]
    return tuple(other for other in made if differs(known, expected(other)))


def differs(known: Values, other: Expected) -> bool:
    """Whether another input has another answer, and one with values."""
    if not isinstance(other, Values):
        return False
    return any(not np.array_equal(np.asarray(known.outputs[name]), np.asarray(other.outputs[name])) for name in OUTPUTS)


def _refilled(inputs: Inputs, requests: list[Request]) -> Inputs:
    values = dict(zip(NAMES, columns(requests), strict=True))
    changed = {name: cast(Array, inputs[name]).with_values(values[name]) for name in NAMES if inputs[name] is not None}
    return {**inputs, **changed}


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    requests, size = requests_of(inputs), inputs["chunk_size"]
    if requests is None or not isinstance(size, int) or size < 1:
        return frozenset()
    arrays = [value for name in NAMES if isinstance(value := inputs[name], Array)]
    at_end = [each for each in requests if 0 < each.checkpoint == each.length]
    found = {
        "no_requests": not requests,
        "empty_at_multiple": any(not each.length and each.computed % size == 0 for each in requests),
        "empty_inside_chunk": any(not each.length and each.computed % size for each in requests),
        "starts_inside_chunk": any(each.length and each.computed % size for each in requests),
        "checkpoint_inside": any(0 < each.checkpoint < each.length for each in requests),
        # A checkpoint at the request's end; off a multiple, what is left behind it is an empty piece inside a chunk.
        "end_checkpoint_at_multiple": any((each.computed + each.length) % size == 0 for each in at_end),
        "end_checkpoint_inside_chunk": any((each.computed + each.length) % size for each in at_end),
        "checkpoints_all_0": inputs["checkpoint_offsets"] is not None and not any(each.checkpoint for each in requests),
        "computed_past_int32": any(each.computed >= 1 << 31 for each in requests),
        "strided": any(item.layout != (1,) and item.data.size > 1 for item in arrays),
        "huge_stride": any(item.reach > 1 << 31 for item in arrays),
        "sliced": any(item.offset > 0 for item in arrays),
        "int64": any(item.dtype == "int64" for item in arrays),
    }
    return frozenset(name for name, there in found.items() if there)


CELL = 8
"""Characters of a drawing between two absolute multiples; fewer for smaller chunks."""


def sketch(inputs: Inputs) -> str:
    """One line a request: its tokens (``#``; ``c`` before the checkpoint) between absolute multiples (``|``)."""
    known, requests = expected(inputs), requests_of(inputs)
    if not isinstance(known, Values) or requests is None:
        return ""
    size, owners = cast(int, inputs["chunk_size"]), np.asarray(known.outputs["seq_idx"])
    lines = []
    for number, each in enumerate(requests[:24]):
        own = np.flatnonzero(owners == number)
        chunks = f"chunks {own[0]}..{own[-1]}" if own.size else "no chunk"
        tokens = f"tokens {each.computed}..{each.computed + each.length - 1}" if each.length else "no tokens"
        lines.append(f"request {number:>3}  {tokens:<24}{chunks:<16}{_drawing(each, size)}".rstrip())
    return "\n".join(lines) or "no requests"


def _drawing(request: Request, size: int) -> str:
    """At most six cells from the multiple at or before the first token; ``.`` for what is not in this step."""
    if not request.length:
        return ""
    width, first = min(size, CELL), request.computed // size
    cells = (request.computed + request.length - 1) // size - first + 1
    text = "|"
    for place in range(min(cells, 6) * width):
        begin, end = (size * (first * width + at) // width for at in (place, place + 1))
        low, high = max(begin, request.computed), min(end, request.computed + request.length)
        marked = request.checkpoint and low < request.computed + request.checkpoint <= high
        text += ("c" if marked else "#") if low < high else "."
        text += "|" if (place + 1) % width == 0 else ""
    return text + (f" ... {cells - 6} more" if cells > 6 else "")


def expected(inputs: Inputs) -> Expected:
    """The specification's answer."""
    return answer(reference, OUTPUTS, inputs)


VLLM_METHOD = "BaseMambaAttentionMetadataBuilder._compute_chunk_metadata"
VLLM_ARGUMENTS = ("chunk_size", "num_prefills", "num_computed_tokens_p_cpu", "query_start_loc_p_cpu")
CHECKPOINTS = "checkpoint_offsets_p"


def _of_vllm(names: Mapping[str, Any]) -> Callable[..., Any]:
    """The static method with checkpoints, or the method of earlier releases without them, which returns three lists."""
    upstream = names[VLLM_METHOD]
    known = {"self", *VLLM_ARGUMENTS, CHECKPOINTS}
    parameters = [name for name in inspect.signature(upstream).parameters if name in known]

    def mamba_chunk_layout(
        query_start_loc: Any, num_computed_tokens: Any, chunk_size: int, checkpoint_offsets: Any
    ) -> tuple[Any, ...]:
        import torch

        offsets = None if checkpoint_offsets is None else checkpoint_offsets.tolist()
        if offsets and any(offsets) and CHECKPOINTS not in parameters:
            raise Unsupported(f"no checkpoints: this release's _compute_chunk_metadata has no {CHECKPOINTS}")
        count = int(num_computed_tokens.shape[0])
        given = {
            "self": SimpleNamespace(chunk_size=chunk_size),
            "chunk_size": chunk_size,
            "num_prefills": count,
            "num_computed_tokens_p_cpu": num_computed_tokens,
            "query_start_loc_p_cpu": query_start_loc,
            CHECKPOINTS: offsets,
        }
        lists = list(upstream(**{name: given[name] for name in parameters}))
        if len(lists) == 3:
            lists.append([-1] * count)
        return tuple(torch.tensor(values, dtype=torch.int32) for values in lists)

    return mamba_chunk_layout


BINDINGS = (
    Binding(
        project="vllm",
        name="_compute_chunk_metadata",
        symbols={"vllm/v1/attention/backends/mamba_attn.py": (VLLM_METHOD,)},
        signatures={VLLM_METHOD: ((*VLLM_ARGUMENTS, CHECKPOINTS), ("self", *VLLM_ARGUMENTS))},
        adapt=_of_vllm,
        runs="host",
    ),
)

CONTRACTS = (
    Contract(
        family="chunk_metadata",
        name="mamba_chunk_layout",
        section="1.2",
        summary="chunks of a prefill batch on absolute multiples, for Mamba's scan",
        inputs=(
            Input(name="query_start_loc", role="host", doc="int32 or int64 [P+1], starts in tokens; the first is 0"),
            Input(name="num_computed_tokens", role="host", doc="int32 or int64 [P], tokens computed by earlier steps"),
            Input(name="chunk_size", role="scalar", compiled=True, doc="int >= 1, tokens"),
            Input(
                name="checkpoint_offsets",
                role="host",
                optional=True,
                doc="int32 or int64 [P], tokens from the request's first one (0 = none), or None",
            ),
        ),
        outputs=(
            Output(name="cu_chunk_seqlens", doc="int32 [K+1]: 0, then the chunks' cumulative ends"),
            Output(name="seq_idx", doc="int32 [K]: the request of each chunk"),
            Output(name="last_chunk_indices", doc="int32 [P]: each request's last chunk, -1 without tokens"),
            Output(name="checkpoint_chunk_indices", doc="int32 [P]: the chunk that ends at the checkpoint, or -1"),
        ),
        domain=domain,
        resample=resample,
        expected=expected,
        traits=traits,
        optimized="optimized.mamba_chunk_layout:mamba_chunk_layout",
        runs="host",
        relations=RELATIONS,
        bindings=BINDINGS,
        known=KNOWN,
        sketch=sketch,
    ),
)
