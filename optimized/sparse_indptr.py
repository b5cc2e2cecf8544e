"""Sparse indptr: how many KV entries each query of a sparse attention reads, and where they lie in the cache.

What a query sees, and what all queries of a sequence before it see, are formulas. So nothing is added up query by
query: a program adds up sequences, each of them in a few steps, and writes any of their queries at once.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from optimized.dividing import unsigned
from optimized.errors import ContractError
from optimized.launching import device_of, programs_each, step_of
from optimized.page_indices import write_dense, write_sparse
from optimized.query_starts import refuse_other_size, starts_from_zero
from optimized.refusals import is_int, refuse_bad_index, refuse_bad_int, refuse_bad_tensor, refuse_other_devices
from optimized.row_groups import row_groups

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_BEYOND = 2**63  # a count of tokens that no sequence reaches

# Of the kernels.
_SEQ_TILE = tl.constexpr(256)
_TILE = tl.constexpr(256)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_LENGTH_ARGUMENTS = ["seq_lens", "seq_stride", "query_start_loc", "start_stride", "sparse_seq_lens", "paged_kv_indptr"]
_LENGTH_ARGUMENTS += ["num_seqs", "num_tokens", "topk", "seqs_each"]
_LOCAL_ARGUMENTS = ["seq_lens", "row_stride", "column_stride", "local_seq_lens", "num_locals", "first_rank"]


def sparse_indptr(
    *,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    query_start_loc_cpu: torch.Tensor,
    topk: int,
    num_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(sparse_seq_lens, paged_kv_indptr)`` on the device of ``seq_lens``, made in one launch.

    Sequence ``s`` has ``q`` queries, its last ``q`` tokens. Query ``j`` sees
    ``min(max(seq_lens[s] - q + j + 1, 0), topk)`` entries.

    ``seq_lens``
        int32 or int64 ``[N]``, in tokens, any stride.
    ``query_start_loc``
        int32 or int64 ``[N + 1]``, in tokens, any stride: where the sequences' queries start; never read on the host.
    ``query_start_loc_cpu``
        int32 or int64 ``[N + 1]`` on the CPU, any stride: the same starts.
    ``topk``
        an ``int`` of at least 1, no compile-time size.
    ``num_tokens``
        an ``int`` of at least ``query_start_loc_cpu[N]``: queries with the padding of a CUDA graph, which sees nothing.
    ``sparse_seq_lens``
        int32 ``[num_tokens]``, in KV entries.
    ``paged_kv_indptr``
        int32 ``[num_tokens + 1]``: 0, then the running sum, flat over the padding.

    Refused (:class:`ContractError`) before anything is allocated: a tensor that is not one-dimensional, or neither
    int32 nor int64; ints out of range (a ``bool`` is no ``int``); sizes that disagree; a twin that is not on the CPU, a
    first host start other than 0, host starts that decrease; fewer tokens than the last of them; a product
    ``num_tokens * topk`` past int32; tensors on several devices. Any device values are memory-safe; where the starts
    are not the host's, some elements may be left unwritten.

    Source of the definition: contracts.md, section 2.1.
    """
    indices = ("seq_lens", seq_lens), ("query_start_loc", query_start_loc), ("query_start_loc_cpu", query_start_loc_cpu)
    for name, tensor in indices:
        refuse_bad_index(name, tensor)
    refuse_bad_int("topk", topk, 1)
    refuse_bad_int("num_tokens", num_tokens, 0)
    refuse_other_size("query_start_loc", query_start_loc, seq_lens.numel() + 1, "one more than that of seq_lens")
    refuse_other_size("query_start_loc_cpu", query_start_loc_cpu, query_start_loc.numel(), "that of query_start_loc")
    starts = starts_from_zero("query_start_loc_cpu", query_start_loc_cpu)
    last = int(starts[-1])
    if num_tokens < last:
        raise ContractError("num_tokens", num_tokens, f"it must be at least the last start on the host, {last}")
    if num_tokens * topk > _INT32_MAX:
        raise ContractError("num_tokens", num_tokens, f"num_tokens * topk must be below 2**31, with topk {topk}")
    refuse_other_devices(seq_lens.device, indices[1:2])
    longest = max(int(np.diff(starts).max(initial=0)), num_tokens - last)
    return _lengths(seq_lens, query_start_loc, topk, num_tokens, longest)


def sparse_page_indices(
    *,
    req_id_per_token: torch.Tensor,
    block_table: torch.Tensor,
    topk_indices: torch.Tensor,
    paged_kv_indptr: torch.Tensor,
    block_size: int,
    block_stride: int,
    paged_kv_indices: torch.Tensor,
) -> tuple[torch.Tensor]:
    """Write the cache rows that ``T`` queries read, in one launch, and return ``(paged_kv_indices,)``.

    Query ``t`` owns elements ``paged_kv_indptr[t]`` to ``paged_kv_indptr[t + 1]``. The one of its column ``c`` becomes
    ``block_table[req_id_per_token[t], i // block_size] * block_stride + i % block_size`` for
    ``i = topk_indices[t, c]``; -1 where ``i`` is negative, ``c`` is not below ``K``, the block is past the table's
    columns, or the request is outside the table.

    ``req_id_per_token``, ``paged_kv_indptr``
        int32 or int64 ``[T]`` and ``[T + 1]``, any strides. The first start need not be 0.
    ``block_table``
        int32 ``[R, M]``, any strides. The formula holds for any ids; numbers that int32 cannot hold wrap around.
    ``topk_indices``
        int32 or int64 ``[T, K]``, any strides: tokens of the request. Negative ones may be anywhere.
    ``block_size``
        tokens a block, an ``int`` of at least 1. A compile-time size.
    ``block_stride``
        an ``int`` of at least ``block_size``: cache rows from one block to the next. No compile-time size.
    ``paged_kv_indices``
        int32 ``[capacity]``, any stride. Elements before ``paged_kv_indptr[0]`` and from ``paged_kv_indptr[T]`` on keep
        their bytes; what is past the capacity is not written.

    Nothing is read on the host. Any values on the device are memory-safe; a query whose start is negative gets nothing.

    Refused (:class:`ContractError`) before anything is launched: tensors of another number of dimensions or dtype, ints
    out of range (a ``bool`` is no ``int``), rows or starts that are not those of ``T`` queries, tensors on several
    devices.

    Source of the definition: contracts.md, section 2.2.
    """
    refuse_bad_index("req_id_per_token", req_id_per_token)
    refuse_bad_tensor("block_table", block_table, 2, torch.int32)
    refuse_bad_index("topk_indices", topk_indices, dimensions=2)
    refuse_bad_index("paged_kv_indptr", paged_kv_indptr)
    refuse_bad_int("block_size", block_size, 1)
    if not is_int(block_stride) or block_stride < block_size:
        raise ContractError("block_stride", block_stride, f"it must be an int of at least block_size, {block_size}")
    refuse_bad_tensor("paged_kv_indices", paged_kv_indices, 1, torch.int32)
    num_queries = req_id_per_token.numel()
    if topk_indices.shape[0] != num_queries:
        rule = f"the rows must be as many as req_id_per_token has elements, {num_queries}"
        raise ContractError("topk_indices", tuple(topk_indices.shape), rule)
    refuse_other_size("paged_kv_indptr", paged_kv_indptr, num_queries + 1, "one more than that of req_id_per_token")
    others = (
        ("topk_indices", topk_indices),
        ("paged_kv_indptr", paged_kv_indptr),
        ("paged_kv_indices", paged_kv_indices),
    )
    refuse_other_devices(block_table.device, (("req_id_per_token", req_id_per_token), *others))
    write_sparse(
        req_id_per_token, block_table, topk_indices, paged_kv_indptr, block_size, block_stride, paged_kv_indices
    )
    return (paged_kv_indices,)


def dense_page_indices(
    *, block_table: torch.Tensor, seq_lens: torch.Tensor, kernel_block_size: int, paged_kv_indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``(paged_kv_indptr, paged_kv_last_page_len, paged_kv_indices)`` of ``R`` requests that read all tokens.

    A page is one token. Token ``i`` of request ``r`` is the cache row ``block_table[r, i // k] * k + i % k``, ``k`` the
    kernel's block size, and stands in the buffer at ``paged_kv_indptr[r] + i``. One launch makes all three.

    ``block_table``
        int32 ``[R, M]``, any strides. The formula holds for any ids; numbers that int32 cannot hold wrap around.
    ``seq_lens``
        int32 or int64 ``[R]``, in tokens, any stride; clipped to ``[0, M * k]``.
    ``kernel_block_size``
        ``k``, an ``int`` of at least 1: tokens a block. A compile-time size.
    ``paged_kv_indices``
        int32 ``[capacity]``, any stride, ``capacity >= R * M * k``; written whole: -1 behind the last token.
    ``paged_kv_indptr``
        int32 ``[R + 1]``, in tokens: 0, then the running sum of the clipped lengths.
    ``paged_kv_last_page_len``
        int32 ``[R]``, all 1.

    Nothing is read on the host. Any values on the device are memory-safe.

    Refused (:class:`ContractError`) before anything is allocated: tensors of another number of dimensions or dtype, a
    block size that is no ``int`` of at least 1 (a ``bool`` is none), lengths that are not ``R``, a capacity below
    ``R * M * k``, tensors on several devices.

    Source of the definition: contracts.md, section 2.3.
    """
    refuse_bad_tensor("block_table", block_table, 2, torch.int32)
    refuse_bad_index("seq_lens", seq_lens)
    refuse_bad_int("kernel_block_size", kernel_block_size, 1)
    refuse_bad_tensor("paged_kv_indices", paged_kv_indices, 1, torch.int32)
    num_requests, num_columns = block_table.shape
    refuse_other_size("seq_lens", seq_lens, num_requests, "the number of rows of block_table")
    all_tokens = num_requests * num_columns * kernel_block_size
    if paged_kv_indices.numel() < all_tokens:
        rule = f"the size must be at least that of all rows' tokens, {all_tokens}"
        raise ContractError("paged_kv_indices", paged_kv_indices.numel(), rule)
    others = ("seq_lens", seq_lens), ("paged_kv_indices", paged_kv_indices)
    refuse_other_devices(block_table.device, others)
    return (*write_dense(block_table, seq_lens, kernel_block_size, paged_kv_indices), paged_kv_indices)


def dcp_local_seq_lens(
    *, seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int | None, interleave: int
) -> tuple[torch.Tensor]:
    """Return ``(local_seq_lens,)``: how many of each sequence's tokens a rank of decode context parallelism owns.

    Token ``t`` of a sequence belongs to rank ``(t // interleave) % dcp_size``. A negative length counts as 0.

    ``seq_lens``
        int32 or int64 of any shape (also without dimensions) and any strides, in tokens. One launch does for up to two
        dimensions, and for more where all but the last can be viewed as one; else a copy is made first.
    ``dcp_size``, ``interleave``
        ints of at least 1: ranks, and consecutive tokens of one turn. Compile-time sizes.
    ``dcp_rank``
        an ``int`` in ``0..dcp_size - 1``; ``None`` for all ranks.
    ``local_seq_lens``
        int32, new and contiguous, of the shape of ``seq_lens``; with ``None``, one more dimension over the ranks
        follows. Counts that int32 cannot hold wrap around.

    Refused (:class:`ContractError`) before anything is allocated: lengths that are neither int32 nor int64, ints out of
    range (a ``bool`` is no ``int``), a rank past the last.

    Source of the definition: contracts.md, section 2.4.
    """
    if seq_lens.dtype is not torch.int32 and seq_lens.dtype is not torch.int64:
        name = str(seq_lens.dtype).removeprefix("torch.")
        raise ContractError("seq_lens", name, "the dtype must be int32 or int64")
    refuse_bad_int("dcp_size", dcp_size, 1)
    if dcp_rank is not None:
        refuse_bad_int("dcp_rank", dcp_rank, 0)
    refuse_bad_int("interleave", interleave, 1)
    if dcp_rank is not None and dcp_rank >= dcp_size:
        raise ContractError("dcp_rank", dcp_rank, f"it must be below dcp_size, {dcp_size}")
    return (_local_lengths(seq_lens, dcp_size, dcp_rank, interleave),)


def _lengths(
    seq_lens: torch.Tensor, query_start_loc: torch.Tensor, topk: int, num_tokens: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch it; ``longest`` is the most queries of a sequence, or of the padding."""
    sparse_seq_lens = seq_lens.new_empty((num_tokens,), dtype=torch.int32)
    paged_kv_indptr = seq_lens.new_empty((num_tokens + 1,), dtype=torch.int32)
    num_groups, seqs_each = row_groups(seq_lens.numel())
    with device_of(seq_lens):
        _lengths_kernel[(num_groups, programs_each(num_groups, longest, _TILE.value))](
            seq_lens,
            step_of(seq_lens, 0),
            query_start_loc,
            step_of(query_start_loc, 0),
            sparse_seq_lens,
            paged_kv_indptr,
            seq_lens.numel(),
            num_tokens,
            min(topk, _INT32_MAX),  # More is legal only without tokens.
            seqs_each,
            num_warps=1,
        )
    return sparse_seq_lens, paged_kv_indptr


def _local_lengths(seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int | None, interleave: int) -> torch.Tensor:
    num_ranks = dcp_size if dcp_rank is None else 1
    shape = (*seq_lens.shape, num_ranks) if dcp_rank is None else seq_lens.shape
    local_seq_lens = seq_lens.new_empty(shape, dtype=torch.int32)
    if local_seq_lens.numel() == 0:
        return local_seq_lens
    rows = seq_lens.flatten(0, -2) if seq_lens.dim() > 1 else seq_lens.reshape(1, -1)
    num_rows, num_locals = rows.shape[0], rows.shape[1] * num_ranks
    with device_of(seq_lens):
        _local_kernel[(num_rows, programs_each(num_rows, num_locals, _TILE.value))](
            rows,
            step_of(rows, 0),
            step_of(rows, 1),
            local_seq_lens,
            num_locals,
            min(dcp_rank or 0, _INT64_MAX),
            num_ranks,
            *(min(size, _BEYOND) for size in (interleave, interleave * dcp_size)),
            num_warps=1,
        )
    return local_seq_lens


@triton.jit(do_not_specialize=_LENGTH_ARGUMENTS, do_not_specialize_on_alignment=_LENGTH_ARGUMENTS)
def _lengths_kernel(
    seq_lens,
    seq_stride: tl.int64,
    query_start_loc,
    start_stride: tl.int64,
    sparse_seq_lens,
    paged_kv_indptr,
    num_seqs: tl.int64,
    num_tokens: tl.int64,
    topk: tl.int64,
    seqs_each: tl.int64,
):
    """Some sequences a program; programs of axis 1 share their queries, and those of the last ones the padding.

    All sums are below 2**31 where the starts are the host's. Else they wrap around, and so may parts of them.
    """
    part, num_parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    seq = tl.program_id(0).to(tl.int64) * seqs_each
    stop = tl.minimum(seq + seqs_each, num_seqs)
    most = topk.to(tl.int32)
    seqs = seq_lens, seq_stride, query_start_loc, start_stride, num_tokens, topk
    sums = tl.zeros((_SEQ_TILE,), tl.int32)
    done = tl.zeros((), tl.int64)
    while done < seq:
        numbers = done + tl.arange(0, _SEQ_TILE)
        _, num_queries, lag = _queries_of(seqs, numbers, numbers < seq)
        sums += _entries_before(num_queries.to(tl.int32), lag, most)
        done += _SEQ_TILE
    entries = tl.sum(sums)
    if (seq == 0) & (part == 0):
        tl.store(paged_kv_indptr, 0)
    places = tl.arange(0, _TILE)
    while seq < stop:
        first, num_queries, lag = _queries_of(seqs, seq, seq < stop)
        query = part * _TILE
        while query < num_queries:
            queries = query.to(tl.int32) + places
            inside = query + places < num_queries
            seen = tl.maximum(tl.minimum(lag + queries, 0) + most, 0)
            tl.store(sparse_seq_lens + first + query + places, seen, mask=inside)
            ends = entries + _entries_before(queries + 1, lag, most)
            tl.store(paged_kv_indptr + 1 + first + query + places, ends, mask=inside)
            query += num_parts * _TILE
        entries += _entries_before(num_queries.to(tl.int32), lag, most)
        seq += 1
    if stop == num_seqs:
        token = _existing(tl.load(query_start_loc + num_seqs * start_stride), num_tokens) + part * _TILE
        while token < num_tokens:
            tl.store(sparse_seq_lens + token + places, 0, mask=token + places < num_tokens)
            tl.store(paged_kv_indptr + 1 + token + places, entries, mask=token + places < num_tokens)
            token += num_parts * _TILE


@triton.jit
def _queries_of(seqs, number, exists):
    """A sequence's first query, number of queries, and how many entries short of ``topk`` the first sees, negated.

    That lag is at most 0: where the first query sees all it may, it does not matter how long the sequence is.
    """
    seq_lens, seq_stride, query_start_loc, start_stride, num_tokens, topk = seqs
    first = _existing(tl.load(query_start_loc + number * start_stride, mask=exists, other=0), num_tokens)
    end = _existing(tl.load(query_start_loc + (number + 1) * start_stride, mask=exists, other=0), num_tokens)
    num_queries = tl.maximum(end - first, 0)
    length = tl.load(seq_lens + number * seq_stride, mask=exists, other=0).to(tl.int64)
    length = tl.minimum(tl.maximum(length, 0), num_queries + topk - 1)
    return first, num_queries, (length - num_queries + 1 - topk).to(tl.int32)


@triton.jit
def _existing(start, num_tokens):
    """A start, with tokens that do not exist left out."""
    return tl.minimum(tl.maximum(start.to(tl.int64), 0), num_tokens)


@triton.jit
def _entries_before(query, lag, topk):
    """Entries that the queries of a sequence before this one see together, modulo 2**32."""
    return _below(lag + query, topk) - _below(lag, topk)


@triton.jit
def _below(lag, topk):
    """The sum of ``clip(n, 0, topk)`` over all ``n < topk + lag``."""
    rising = tl.maximum(tl.minimum(lag, 0) + topk, 0)
    # rising * (rising - 1) // 2, but halved first.
    return (rising >> 1) * ((rising - 1) | 1) + topk * tl.maximum(lag, 0)


@triton.jit(do_not_specialize=_LOCAL_ARGUMENTS, do_not_specialize_on_alignment=_LOCAL_ARGUMENTS)
def _local_kernel(
    seq_lens,
    row_stride: tl.int64,
    column_stride: tl.int64,
    local_seq_lens,
    num_locals: tl.int64,
    first_rank: tl.int64,
    NUM_RANKS: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    ROUND: tl.constexpr,
):
    """One row a program, which gets ``num_locals``, ``NUM_RANKS`` a length; programs of axis 1 share them."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1).to(tl.int64) * _TILE
    while place < num_locals:
        places = place + tl.arange(0, _TILE)
        inside = places < num_locals
        columns = places // NUM_RANKS
        lengths = tl.maximum(tl.load(seq_lens + row * row_stride + columns * column_stride, mask=inside, other=0), 0)
        round_size, turn_size = unsigned(ROUND, lengths.dtype), unsigned(INTERLEAVE, lengths.dtype)
        lengths = lengths.to(turn_size.dtype)
        rounds = lengths // round_size
        left = lengths - rounds * round_size
        turns = left // turn_size
        ranks = first_rank + places % NUM_RANKS
        own = tl.where(turns.to(tl.int64) == ranks, left - turns * turn_size, 0)
        own = tl.where(turns.to(tl.int64) > ranks, turn_size, own)
        local = (rounds * turn_size + own).to(tl.int32)
        tl.store(local_seq_lens + row * num_locals + places, local, mask=inside)
        place += tl.num_programs(1).to(tl.int64) * _TILE
