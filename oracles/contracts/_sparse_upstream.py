"""What vLLM's functions for contracts 2.1 to 2.4 do with an input, in their own arithmetic: known findings follow.

Each function gives the effect of one call. It is no second specification: a fault of upstream is in here as well, and
whoever asks compares with the specification.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contracts._block_table_upstream import MOST_ELEMENTS, Cells, Effect, Numbers, divided

Expansion = Literal["chunks", "rows", "rows by lengths"]
"""How page indices are expanded: since 0.32 in chunks, before in one loop a row, which lengths bound until 0.28."""

QUERY_TILE, RAGGED_TILE, CHUNK = 64, 64, 1024


@dataclass
class Traced(Effect):
    """An effect that says which tensors the call left."""

    left: set[str] = field(default_factory=set)

    def note(self, name: str, inside: bool) -> None:
        """An access to a tensor."""
        if not inside:
            self.left.add(name)
            self.stray = True

    def store(self, name: str, at: int, cells: Cells, where: Numbers, values: Numbers | int, program: int) -> None:
        """A write of one program."""
        if where.size:
            self.note(name, bool(cells.find(where)[1].all()))
            self.write(at, cells, where, values, program)


def tensor(inputs: Inputs, name: str) -> Array:
    """One tensor of an input."""
    return cast(Array, inputs[name])


def number(inputs: Inputs, name: str) -> int:
    """One int of an input."""
    return cast(int, inputs[name])


def apart(value: Array) -> bool:
    """Whether elements of a vector do not lie side by side."""
    return value.data.size > 1 and value.layout[-1] != 1


def sparse_lengths(inputs: Inputs) -> Traced:
    """``generate_sparse_seqlen_triton`` and the running sum."""
    host = tensor(inputs, "query_start_loc_cpu").data.astype(np.int64)
    longest = int(np.diff(host).max(initial=0))
    effect = Traced([np.zeros(number(inputs, "num_tokens"), np.int32)])
    for row in range(host.size - 1):
        for tile in range(-(-longest // QUERY_TILE)):
            _sparse_tile(inputs, effect, row, tile)
    with np.errstate(over="ignore"):
        indptr = np.cumsum(np.concatenate([np.zeros(1, np.int32), effect.results[0]]), dtype=np.int32)
    effect.results.append(indptr)
    effect.untouched.append(np.zeros(indptr.shape, bool))
    return effect


def _sparse_tile(inputs: Inputs, effect: Traced, row: int, tile: int) -> None:
    starts, lengths = Cells(tensor(inputs, "query_start_loc")), Cells(tensor(inputs, "seq_lens"))
    (begin, first), (end, second) = starts.read(row), starts.read(row + 1)
    effect.note("query_start_loc", first and second)
    with np.errstate(over="ignore"):
        if (begin + begin.dtype.type(tile * QUERY_TILE) > end)[0]:
            return
        length, there = lengths.read(row)
        effect.note("seq_lens", there)
        if not length[0]:
            return
        lanes = np.arange(QUERY_TILE, dtype=np.int32) + np.int32(tile * QUERY_TILE)
        real = lanes + begin < end
        seen = length - (end - begin) + lanes + np.int32(1)
        values = np.minimum(seen, number(inputs, "topk")).astype(np.int32)
    where = int(begin[0]) + lanes.astype(np.int64)
    out = Cells(Array("int32", effect.results[0]))
    effect.store("sparse_seq_lens", 0, out, where[real], values[real], row + 1)


def as_int32(values: Numbers) -> Numbers:
    """As the adapters narrow what upstream wants as int32."""
    limits = np.iinfo(np.int32)
    return np.clip(values, limits.min, limits.max).astype(np.int32)


def ragged(inputs: Inputs) -> Traced:
    """The ROCm backend's ``triton_convert_req_index_to_global_index``."""
    effect, width = _of_buffer(inputs), tensor(inputs, "topk_indices").shape[1]
    begin, end = _rows(inputs, effect)
    tile = math.gcd(width, 128)
    columns = np.arange(width, dtype=np.int32)
    with np.errstate(over="ignore"):
        runs = begin + (columns // np.int32(tile) * np.int32(tile)) < end
        real = runs & (columns + begin < end)
    values = _slots(inputs, effect, runs, 0)
    _put(inputs, effect, begin.astype(np.int64) + columns, values, real)
    return effect


def fetched(inputs: Inputs) -> Traced:
    """The common conversion, then ``fetch_id_to_ragged_triton``."""
    effect, width = _of_buffer(inputs), tensor(inputs, "topk_indices").shape[1]
    begin, end = _rows(inputs, effect)
    columns = np.arange(width, dtype=np.int32)
    with np.errstate(over="ignore"):
        runs = columns // np.int32(RAGGED_TILE) * np.int32(RAGGED_TILE) < end - begin
        where = begin + columns
        real = runs & (where < end)
    values = _slots(inputs, effect, np.ones(runs.shape, bool), -1)
    _put(inputs, effect, where.astype(np.int64), values, real)
    return effect


def packed(inputs: Inputs) -> Traced:
    """The common conversion alone, whose rows the adapter packs as the contract has them."""
    effect, tokens = _of_buffer(inputs), tensor(inputs, "topk_indices")
    starts = tensor(inputs, "paged_kv_indptr").data.astype(np.int64)
    values = _slots(inputs, effect, np.ones(tokens.shape, bool), -1)
    lengths = np.diff(starts)
    if starts.size and (starts[0] < 0 or (lengths < 0).any()):
        return effect
    columns = np.arange(tokens.shape[1])
    where = starts[:-1, None] + columns
    _put_plain(effect, where, values, columns < lengths[:, None])
    return effect


def _of_buffer(inputs: Inputs) -> Traced:
    return Traced([tensor(inputs, "paged_kv_indices").data.copy()])


def _rows(inputs: Inputs, effect: Traced) -> tuple[Numbers, Numbers]:
    """Begin and end of each row, as a column."""
    count = tensor(inputs, "req_id_per_token").data.size
    starts = tensor(inputs, "paged_kv_indptr")
    if not count:
        return np.zeros((0, 1), starts.data.dtype), np.zeros((0, 1), starts.data.dtype)
    read, inside = Cells(starts).read(np.arange(count + 1))
    effect.note("paged_kv_indptr", inside)
    return read[:-1, None], read[1:, None]


def _put(inputs: Inputs, effect: Traced, where: Numbers, values: Numbers, real: Numbers) -> None:
    cells = Cells(tensor(inputs, "paged_kv_indices"))
    for token in range(where.shape[0]):
        own = real[token]
        effect.store("paged_kv_indices", 0, cells, where[token, own], values[token, own], token + 1)


def _put_plain(effect: Traced, where: Numbers, values: Numbers, real: Numbers) -> None:
    real = real & (where < effect.results[0].size)
    effect.results[0][where[real]] = values[real]
    effect.untouched[0][where[real]] = False


def _slots(inputs: Inputs, effect: Traced, runs: Numbers, none: int) -> Numbers:
    """Slots of all columns. A load for a token of -1 looks up block 0, as division is towards zero."""
    # Both conversions copy a table whose rows are apart.
    table = Array("int32", tensor(inputs, "block_table").data)
    size, stride = number(inputs, "block_size"), number(inputs, "block_stride")
    requests = as_int32(tensor(inputs, "req_id_per_token").data)[:, None]
    tokens = as_int32(tensor(inputs, "topk_indices").data)
    with np.errstate(over="ignore"):
        blocks = divided(tokens, size)
        known = (blocks >= 0) & (blocks < table.shape[1])
        places = (requests * np.int32(table.layout[0])).astype(np.int64) + blocks
        found = np.zeros(tokens.shape, np.int32)
        looked_up = known & runs
        if looked_up.any():
            found[looked_up], inside = Cells(table).read(places[looked_up])
            effect.note("block_table", inside)
        slots = found * np.int32(stride) + (tokens - blocks * np.int32(size))
    return np.where((tokens < 0) | ~known, np.int32(none), slots)


def expanded(inputs: Inputs, expansion: Expansion) -> Traced:
    """``_build_decode`` for a step of one query a row: the running sum, ones, and the page indices."""
    lengths, table = tensor(inputs, "seq_lens"), tensor(inputs, "block_table")
    buffer, size = tensor(inputs, "paged_kv_indices"), number(inputs, "kernel_block_size")
    with np.errstate(over="ignore"):
        sums = np.cumsum(lengths.data.astype(np.int32), dtype=np.int32)
        indptr = np.concatenate([np.zeros(1, np.int32), sums])
        counts = np.diff(indptr)
    effect = Traced([np.full(buffer.shape, -1, np.int32)])
    most = max(1, -(-table.shape[1] * size // CHUNK)) * CHUNK if expansion == "chunks" else MOST_ELEMENTS
    for row in range(table.shape[0]):
        count = int(counts[row])
        if expansion == "rows by lengths":
            count, inside = Cells(lengths).one(row)
            effect.note("seq_lens", inside)
        effect.endless = effect.endless or (expansion != "chunks" and count > MOST_ELEMENTS)
        tokens = np.arange(max(min(count, most), 0), dtype=np.int32)
        if tokens.size:
            _expand(inputs, effect, row, int(indptr[row]), tokens, expansion)
    effect.results.append(indptr)
    effect.untouched.append(np.zeros(indptr.shape, bool))
    return effect


def _expand(inputs: Inputs, effect: Traced, row: int, begin: int, tokens: Numbers, expansion: Expansion) -> None:
    table, size = tensor(inputs, "block_table"), number(inputs, "kernel_block_size")
    columns = tokens // np.int32(size)
    across, along = table.layout[0], table.layout[1] if expansion == "chunks" else 1
    places = product(np.array(row, np.int32), across) + product(columns, along)
    blocks, inside = Cells(table).read(places)
    effect.note("block_table", inside)
    with np.errstate(over="ignore"):
        pages = blocks * np.int32(size) + tokens % np.int32(size)
    where = begin + tokens.astype(np.int64)
    effect.store("paged_kv_indices", 0, Cells(tensor(inputs, "paged_kv_indices")), where, pages, row + 1)


def product(index: Numbers, stride: int) -> Numbers:
    """An index times a stride as kernels multiply them: in the index's bits if those hold the stride."""
    with np.errstate(over="ignore"):
        if index.dtype == np.int32 and stride < 1 << 31:
            return (index * np.int32(stride)).astype(np.int64)
        return index.astype(np.int64) * stride


def local_lengths(inputs: Inputs) -> Numbers:
    """``get_dcp_local_seq_lens``, whose torch operations divide downwards."""
    lengths = tensor(inputs, "seq_lens").data.astype(np.int32)
    size, rank, interleave = number(inputs, "dcp_size"), inputs["dcp_rank"], number(inputs, "interleave")
    ranks = np.arange(size, dtype=np.int32) if rank is None else np.int32(cast(int, rank))
    with np.errstate(over="ignore"):
        lengths = lengths[..., None] if rank is None else lengths
        base = lengths // np.int32(interleave) // np.int32(size) * np.int32(interleave)
        rest = lengths - base * np.int32(size) - ranks * np.int32(interleave)
        return np.asarray(base + np.clip(rest, 0, interleave))


def local_lengths_by_kernel(inputs: Inputs) -> tuple[Numbers, bool]:
    """``_dcp_local_seq_lens_kernel``, and whether it reads lengths only."""
    value, size, interleave = tensor(inputs, "seq_lens"), number(inputs, "dcp_size"), number(inputs, "interleave")
    lengths, inside = Cells(flattened(value)).read(np.arange(value.data.size))
    rank = inputs["dcp_rank"]
    found = []
    for own in range(size) if rank is None else (cast(int, rank),):
        rounds = divided(lengths, size * interleave)
        rest = lengths - rounds * (size * interleave)
        found.append((rounds * interleave + np.clip(rest - own * interleave, 0, interleave)).astype(np.int32))
    shaped = [item.reshape(value.shape) for item in found]
    return (np.stack(shaped, axis=-1) if rank is None else shaped[0]), inside or not value.data.size


def flattened(value: Array) -> Array:
    """A tensor as ``reshape(-1)`` gives it: a view where one step leads through all elements, else a copy."""
    axes = [(count, step) for count, step in zip(value.shape, value.layout, strict=True) if count != 1]
    regular = all(step == inner * count for (_, step), (count, inner) in pairwise(axes))
    step = axes[-1][1] if axes and regular and value.data.size else 1
    return Array(value.dtype, value.data.reshape(-1), (step,))
