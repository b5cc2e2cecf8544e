"""Sparse indptr: how many KV entries each query of a sparse attention reads, and where they lie in the cache."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from reference.errors import PAD_SLOT_ID, ContractError, OnlyMemorySafety
from reference.query_starts import no_values_where_twins_differ, query_lengths, refuse_other_size, starts_from_zero
from reference.refusals import is_int, refuse_bad_array, refuse_bad_index, refuse_bad_int

_INT32_MAX = 2**31 - 1
_INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


def sparse_indptr(
    seq_lens: npt.NDArray[np.signedinteger],
    query_start_loc: npt.NDArray[np.signedinteger],
    query_start_loc_cpu: npt.NDArray[np.signedinteger],
    topk: int,
    num_tokens: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``(sparse_seq_lens, paged_kv_indptr)`` of ``N`` sequences, an element for each query token.

    Sequence ``s`` has ``q`` queries, its last ``q`` tokens. Query ``j`` sees the tokens up to its own, of which the
    attention reads at most ``topk``: ``min(max(seq_lens[s] - q + j + 1, 0), topk)`` entries. That is 0 for a sequence
    of length 0 or less, and for the first queries of a sequence that is shorter than its queries.

    ``seq_lens``
        int32 or int64 ``[N]``, in tokens, the queries included. Any values.
    ``query_start_loc``, ``query_start_loc_cpu``
        int32 or int64 ``[N + 1]``, in tokens: where the sequences' queries start; the host's twin holds the same.
    ``topk``
        an ``int`` of at least 1.
    ``num_tokens``
        an ``int`` of at least ``query_start_loc_cpu[N]``: tokens with the padding of a CUDA graph, which sees nothing.
    ``sparse_seq_lens``
        int32 ``[num_tokens]``, in KV entries.
    ``paged_kv_indptr``
        int32 ``[num_tokens + 1]``, in KV entries: 0, then the running sum, flat over the padding.

    Refused (:class:`ContractError`), in this order: a tensor that is not one-dimensional, or neither int32 nor int64;
    an ``int`` that is none or too small (a ``bool`` is no ``int``); starts that are not ``N + 1``, then a twin of
    another size; a first host start other than 0; host starts that decrease; fewer tokens than the last host start;
    ``num_tokens * topk`` above 2**31 - 1, which int32 need not hold.

    No values are promised (:class:`OnlyMemorySafety`) where the device's starts are not the host's.

    Source of the definition: contracts.md, section 2.1.

    >>> starts = np.array([0, 1, 4, 6, 6])
    >>> lengths, indptr = sparse_indptr(np.array([5, 3, 10, 0]), starts, starts, 4, 8)
    >>> lengths.tolist(), indptr.tolist()
    ([4, 1, 2, 3, 4, 4, 0, 0], [0, 4, 5, 7, 10, 14, 18, 18, 18])
    """
    refuse_bad_index("seq_lens", seq_lens)
    refuse_bad_index("query_start_loc", query_start_loc)
    refuse_bad_index("query_start_loc_cpu", query_start_loc_cpu)
    refuse_bad_int("topk", topk, 1)
    refuse_bad_int("num_tokens", num_tokens, 0)
    refuse_other_size("query_start_loc", query_start_loc, seq_lens.size + 1, "one more than that of seq_lens")
    refuse_other_size("query_start_loc_cpu", query_start_loc_cpu, query_start_loc.size, "that of query_start_loc")
    starts = starts_from_zero("query_start_loc_cpu", query_start_loc_cpu)
    if num_tokens < starts[-1]:
        rule = f"it must be at least the last start of query_start_loc_cpu, {starts[-1]}"
        raise ContractError("num_tokens", num_tokens, rule)
    if num_tokens * topk > _INT32_MAX:
        raise ContractError("num_tokens", num_tokens, f"num_tokens * topk must be below 2**31, with topk {topk}")
    no_values_where_twins_differ("query_start_loc", query_start_loc, starts)

    lengths = [0] * num_tokens
    for sequence, num_queries in enumerate(query_lengths(starts)):
        for query in range(num_queries):
            seen = int(seq_lens[sequence]) - num_queries + query + 1
            lengths[starts[sequence] + query] = min(max(seen, 0), topk)
    indptr = list(accumulate(lengths, initial=0))
    return np.array(lengths, dtype=np.int32), np.array(indptr, dtype=np.int32)


def sparse_page_indices(
    req_id_per_token: npt.NDArray[np.signedinteger],
    block_table: npt.NDArray[np.int32],
    topk_indices: npt.NDArray[np.signedinteger],
    paged_kv_indptr: npt.NDArray[np.signedinteger],
    block_size: int,
    block_stride: int,
    paged_kv_indices: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32]]:
    """Return ``(paged_kv_indices,)``: the new contents of the buffer, the cache rows that ``T`` queries read.

    Query ``t`` owns elements ``paged_kv_indptr[t]`` to ``paged_kv_indptr[t + 1]``. The one of its column ``c`` is the
    cache row of token ``i = topk_indices[t, c]`` of its request:
    ``block_table[req_id_per_token[t], i // block_size] * block_stride + i % block_size``. It is -1 where there is no
    such row: a negative ``i``, ``c`` past the ``K`` columns, a block past the table's row, a request outside the table.

    ``req_id_per_token``
        int32 or int64 ``[T]``: the row of ``block_table`` for each query.
    ``block_table``
        int32 ``[R, M]``, in blocks; ids are at least 0. Where nothing is looked up any values may stand.
    ``topk_indices``
        int32 or int64 ``[T, K]``, in tokens from the request's first one. Values that stand for none may be anywhere.
    ``paged_kv_indptr``
        int32 or int64 ``[T + 1]``, in elements of the buffer. The first need not be 0.
    ``block_size``
        tokens a block, an ``int`` of at least 1.
    ``block_stride``
        cache rows from one block to the next, an ``int`` of at least ``block_size``: above it where other layers' rows
        lie between the blocks.
    ``paged_kv_indices`` (in)
        int32 ``[capacity]``: not changed by this function.
    ``paged_kv_indices`` (out)
        int32 ``[capacity]``, in cache rows. Elements before ``paged_kv_indptr[0]`` and from ``paged_kv_indptr[T]`` on
        are those of the buffer; what a query owns past the capacity does not exist.

    Refused (:class:`ContractError`), in this order: a tensor of another number of dimensions or another dtype; an
    ``int`` that is none or too small; numbers of rows or starts that are not those of ``T`` queries.

    No values are promised (:class:`OnlyMemorySafety`) for a first start below 0, starts that decrease anywhere, a
    looked-up block below 0, and a cache row that int32 cannot hold.

    Source of the definition: contracts.md, section 2.2.
    """
    refuse_bad_index("req_id_per_token", req_id_per_token)
    refuse_bad_array("block_table", block_table, 2, np.int32)
    refuse_bad_index("topk_indices", topk_indices, dimensions=2)
    refuse_bad_index("paged_kv_indptr", paged_kv_indptr)
    refuse_bad_int("block_size", block_size, 1)
    if not is_int(block_stride) or block_stride < block_size:
        raise ContractError("block_stride", block_stride, f"it must be an int of at least block_size, {block_size}")
    refuse_bad_array("paged_kv_indices", paged_kv_indices, 1, np.int32)
    num_tokens, num_columns = req_id_per_token.size, topk_indices.shape[1]
    if topk_indices.shape[0] != num_tokens:
        rule = f"the rows must be as many as req_id_per_token has elements, {num_tokens}"
        raise ContractError("topk_indices", topk_indices.shape, rule)
    refuse_other_size("paged_kv_indptr", paged_kv_indptr, num_tokens + 1, "one more than that of req_id_per_token")
    starts = _starts_not_decreasing(paged_kv_indptr)

    pages = paged_kv_indices.tolist()
    for query, request in enumerate(req_id_per_token.tolist()):
        for element in range(starts[query], min(starts[query + 1], len(pages))):
            column = element - starts[query]
            token = int(topk_indices[query, column]) if column < num_columns else PAD_SLOT_ID
            pages[element] = _cache_row(block_table, request, token, block_size, block_stride)
    return (np.array(pages, dtype=np.int32),)


def dense_page_indices(
    block_table: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.signedinteger],
    kernel_block_size: int,
    paged_kv_indices: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``(paged_kv_indptr, paged_kv_last_page_len, paged_kv_indices)`` of ``R`` requests that read all tokens.

    A page is one token. Token ``i`` of request ``r`` is the cache row
    ``block_table[r, i // k] * k + i % k``, ``k`` the kernel's block size, and stands in the buffer at
    ``paged_kv_indptr[r] + i``.

    ``block_table``
        int32 ``[R, M]``, in blocks; ids are at least 0. Where nothing is looked up any values may stand.
    ``seq_lens``
        int32 or int64 ``[R]``, in tokens, clipped to ``[0, M * k]``.
    ``kernel_block_size``
        ``k``, an ``int`` of at least 1: tokens a block.
    ``paged_kv_indices`` (in)
        int32 ``[capacity]``, ``capacity >= R * M * k``: not changed by this function, and none of its values remain.
    ``paged_kv_indptr``
        int32 ``[R + 1]``, in tokens: 0, then the running sum of the clipped lengths.
    ``paged_kv_last_page_len``
        int32 ``[R]``, all 1.
    ``paged_kv_indices`` (out)
        int32 ``[capacity]``, in cache rows; -1 from ``paged_kv_indptr[R]`` on (without requests: everywhere).

    Refused (:class:`ContractError`), in this order: a tensor of another number of dimensions or another dtype; a block
    size that is no ``int`` of at least 1; lengths that are not ``R``; a capacity below ``R * M * k``.

    No values are promised (:class:`OnlyMemorySafety`) for a looked-up block below 0, and for a running sum or a cache
    row that int32 cannot hold.

    Source of the definition: contracts.md, section 2.3.
    """
    refuse_bad_array("block_table", block_table, 2, np.int32)
    refuse_bad_index("seq_lens", seq_lens)
    refuse_bad_int("kernel_block_size", kernel_block_size, 1)
    refuse_bad_array("paged_kv_indices", paged_kv_indices, 1, np.int32)
    num_requests, num_columns = block_table.shape
    refuse_other_size("seq_lens", seq_lens, num_requests, "the number of rows of block_table")
    most = num_columns * kernel_block_size
    if paged_kv_indices.size < num_requests * most:
        rule = f"the size must be at least that of all rows' tokens, {num_requests * most}"
        raise ContractError("paged_kv_indices", paged_kv_indices.size, rule)

    lengths = [min(max(length, 0), most) for length in seq_lens.tolist()]
    if sum(lengths) > _INT32_MAX:
        raise OnlyMemorySafety(f"the clipped lengths sum to {sum(lengths)}, more than int32 counts")
    pages = []
    for request, length in enumerate(lengths):
        for token in range(length):
            pages.append(_cache_row(block_table, request, token, kernel_block_size, kernel_block_size))
    pages.extend([PAD_SLOT_ID] * (paged_kv_indices.size - len(pages)))
    indptr = list(accumulate(lengths, initial=0))
    return np.array(indptr, np.int32), np.ones(num_requests, np.int32), np.array(pages, np.int32)


def dcp_local_seq_lens(
    seq_lens: npt.NDArray[np.signedinteger], dcp_size: int, dcp_rank: int | None, interleave: int
) -> tuple[npt.NDArray[np.int32]]:
    """Return ``(local_seq_lens,)``: how many of each sequence's tokens a rank of decode context parallelism owns.

    Token ``t`` of a sequence belongs to rank ``(t // interleave) % dcp_size``: the ranks take turns of ``interleave``
    tokens. A negative length counts as 0.

    ``seq_lens``
        int32 or int64 of any shape, also without dimensions; in tokens.
    ``dcp_size``, ``interleave``
        ints of at least 1: ranks, and consecutive tokens of one turn.
    ``dcp_rank``
        an ``int`` in ``0..dcp_size - 1``; ``None`` for all ranks.
    ``local_seq_lens``
        int32, in tokens, of the shape of ``seq_lens``; with ``None``, followed by one more dimension over the ranks.

    Refused (:class:`ContractError`), in this order: lengths that are neither int32 nor int64; an ``int`` that is none
    or too small (a ``bool`` is no ``int``); a rank past the last.

    No values are promised (:class:`OnlyMemorySafety`) for a count that int32 cannot hold.

    Source of the definition: contracts.md, section 2.4.
    """
    if seq_lens.dtype not in _INDEX_DTYPES:
        raise ContractError("seq_lens", str(seq_lens.dtype), "the dtype must be int32 or int64")
    refuse_bad_int("dcp_size", dcp_size, 1)
    if dcp_rank is not None:
        refuse_bad_int("dcp_rank", dcp_rank, 0)
    refuse_bad_int("interleave", interleave, 1)
    if dcp_rank is not None and dcp_rank >= dcp_size:
        raise ContractError("dcp_rank", dcp_rank, f"it must be below dcp_size, {dcp_size}")

    ranks = range(dcp_size) if dcp_rank is None else (dcp_rank,)
    counts = []
    for length in seq_lens.reshape(-1).tolist():
        for rank in ranks:
            counts.append(_tokens_of_rank(max(length, 0), dcp_size, rank, interleave))
    if max(counts, default=0) > _INT32_MAX:
        raise OnlyMemorySafety(f"a rank owns {max(counts)} tokens, more than int32 counts")
    shape = (*seq_lens.shape, dcp_size) if dcp_rank is None else seq_lens.shape
    return (np.array(counts, dtype=np.int32).reshape(shape),)


def _tokens_of_rank(length: int, dcp_size: int, rank: int, interleave: int) -> int:
    full_rounds, left = divmod(length, dcp_size * interleave)
    of_last_round = min(max(left - rank * interleave, 0), interleave)
    return full_rounds * interleave + of_last_round


def _cache_row(block_table: npt.NDArray[np.int32], request: int, token: int, block_size: int, stride: int) -> int:
    """The cache row of a token; -1 without one."""
    num_requests, num_columns = block_table.shape
    column = token // block_size
    if token < 0 or not 0 <= request < num_requests or column >= num_columns:
        return PAD_SLOT_ID
    block = int(block_table[request, column])
    if block < 0:
        raise OnlyMemorySafety(f"block {block} in column {column} of request {request} is negative")
    # Python integers: a block number times a stride passes 2^31 in real caches.
    row = block * stride + token % block_size
    if row > _INT32_MAX:
        raise OnlyMemorySafety(f"cache row {row} of request {request} does not fit int32")
    return row


def _starts_not_decreasing(indptr: npt.NDArray[np.signedinteger]) -> list[int]:
    starts: list[int] = indptr.tolist()
    if starts[0] < 0:
        raise OnlyMemorySafety(f"the first start is {starts[0]}")
    for query, length in enumerate(query_lengths(starts)):
        if length < 0:
            raise OnlyMemorySafety(f"query {query} owns {length} elements")
    return starts
