"""Chunk metadata: which pieces a batch of packed sequences is cut into for chunked linear attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from reference.errors import PAD_SLOT_ID, ContractError, OnlyMemorySafety

_INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_BLOCK_SIZES = (8, 16, 32, 64)
_LEAST_PROGRAMS = 1024


def chunk_metadata(
    cu_seqlens: npt.NDArray[np.signedinteger],
    cu_seqlens_cpu: npt.NDArray[np.signedinteger],
    chunk_size: int,
) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.int64]]:
    """Return ``(chunk_indices, chunk_offsets)`` of ``N`` packed sequences.

    Sequence ``i`` holds tokens ``cu_seqlens[i]`` to ``cu_seqlens[i + 1]`` (the first start need not be 0) and is cut
    into ``ceil(length / chunk_size)`` chunks, the last one perhaps short.

    ``cu_seqlens``
        int32 or int64 ``[N + 1]``, in tokens: what the device holds. The values come from here.
    ``cu_seqlens_cpu``
        int32 or int64 ``[N + 1]``, in tokens: the host's twin. ``T``, the number of rows, comes from here.
    ``chunk_size``
        tokens a chunk, an ``int`` of at least 1.
    ``chunk_indices``
        ``[T, 2]``, dtype of ``cu_seqlens``. Row ``chunk_offsets[i] + t`` is ``(i, t)``: chunk ``t`` of sequence ``i``.
        ``i`` is the sequence's own number, empty sequences are counted.
    ``chunk_offsets``
        int64 ``[N + 1]``, in chunks: 0, then the running sum of the sequences' chunk counts.

    Where device and host lengths disagree, ``chunk_offsets`` follow the device, also past ``T``; rows past the
    device's total are ``(-1, -1)``; there is no row past ``T``.

    Refused (:class:`ContractError`), in this order: an array that is not one-dimensional; one without an element;
    sizes that differ; a dtype other than int32 and int64; a chunk size that is not an ``int`` of at least 1; a
    negative host length; host lengths that sum to more than 2**63 - 1; a sequence or chunk number of the host's batch
    that the dtype of ``cu_seqlens`` cannot hold.

    No values are promised (:class:`OnlyMemorySafety`) for a negative device length, one past 2**63 - 1, or a
    device total past that. A chunk number is smaller than ``T``, so where only the device's lengths are huge every
    row still fits.

    Source of the definition: contracts.md, section 1.1.

    >>> indices, offsets = chunk_metadata(np.array([0, 128, 128, 200]), np.array([0, 128, 128, 200]), 64)
    >>> indices.tolist(), offsets.tolist()
    ([[0, 0], [0, 1], [2, 0], [2, 1]], [0, 2, 2, 4])
    """
    _refuse_bad_arrays(cu_seqlens, cu_seqlens_cpu)
    _refuse_bad_chunk_size(chunk_size)
    host_counts = _host_chunk_counts(cu_seqlens_cpu, chunk_size)
    _refuse_numbers_that_do_not_fit(host_counts, cu_seqlens.dtype)
    num_rows = sum(host_counts)

    offsets = [0]
    rows: list[tuple[int, int]] = []
    for sequence, count in enumerate(_device_chunk_counts(cu_seqlens, chunk_size)):
        offsets.append(offsets[-1] + count)
        room = num_rows - len(rows)
        rows.extend((sequence, chunk) for chunk in range(min(count, room)))
    if offsets[-1] > _INT64_MAX:
        raise OnlyMemorySafety(f"the device's lengths make {offsets[-1]} chunks, more than int64 counts")
    rows.extend((PAD_SLOT_ID, PAD_SLOT_ID) for _ in range(num_rows - len(rows)))

    indices = np.array(rows, dtype=cu_seqlens.dtype).reshape(num_rows, 2)
    return indices, np.array(offsets, dtype=np.int64)


def mamba_chunk_layout(
    query_start_loc: npt.NDArray[np.signedinteger],
    num_computed_tokens: npt.NDArray[np.signedinteger],
    chunk_size: int,
    checkpoint_offsets: npt.NDArray[np.signedinteger] | None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``(cu_chunk_seqlens, seq_idx, last_chunk_indices, checkpoint_chunk_indices)`` of ``P`` requests.

    A host function. Token ``t`` of request ``i`` (``0 <= t < n``, ``n`` the request's tokens in this batch) has the
    absolute position ``num_computed_tokens[i] + t``. A chunk of request ``i`` ends before each absolute multiple of
    ``chunk_size``, at the request's end and at its checkpoint, and nowhere else. Chunks never mix requests and none is
    empty, so a request without tokens owns no chunk.

    ``query_start_loc``
        int32 or int64 ``[P + 1]``, in tokens: where the requests start in the packed batch; the first start is 0.
    ``num_computed_tokens``
        int32 or int64 ``[P]``, in tokens: how many tokens of each request earlier steps have computed.
    ``chunk_size``
        tokens a chunk, an ``int`` of at least 1.
    ``checkpoint_offsets``
        int32 or int64 ``[P]``, in tokens from the request's first token in this batch: a chunk must end there; 0 for
        none. ``None``: no request has a checkpoint.
    ``cu_chunk_seqlens``
        int32 ``[K + 1]``, in tokens of the packed batch: 0, then the end of each chunk.
    ``seq_idx``
        int32 ``[K]``: the request that owns each chunk, by its own number (requests without tokens are counted).
    ``last_chunk_indices``
        int32 ``[P]``: each request's last chunk; -1 for a request without tokens.
    ``checkpoint_chunk_indices``
        int32 ``[P]``: the chunk that ends at the request's checkpoint, which is the last one if the checkpoint is the
        request's end; -1 without a checkpoint.

    Refused (:class:`ContractError`), in this order: an array that is not one-dimensional; starts without an element;
    more requests than int32 numbers; sizes that disagree; a dtype other than int32 and int64; a chunk size that is not
    an ``int`` of at least 1; a first start other than 0; a negative length; a negative computed count; a checkpoint
    below 0 or past the request's tokens; more than 2**31 - 1 tokens, whose ends int32 cannot hold. Computed counts are
    only ever used modulo the chunk size, so no count is too large.

    Source of the definition: contracts.md, section 1.2.
    """
    named = [("query_start_loc", query_start_loc), ("num_computed_tokens", num_computed_tokens)]
    if checkpoint_offsets is not None:
        named.append(("checkpoint_offsets", checkpoint_offsets))
    _refuse_bad_requests(named)
    _refuse_bad_chunk_size(chunk_size)
    lengths = _lengths_from_zero(query_start_loc)
    computed = num_computed_tokens.tolist()
    checkpoints = [0] * len(lengths) if checkpoint_offsets is None else checkpoint_offsets.tolist()
    _refuse_bad_counts(lengths, computed, checkpoints)

    ends, owners, last, at_checkpoint = [0], [], [], []
    for request, length in enumerate(lengths):
        start, checkpoint_chunk = ends[-1], PAD_SLOT_ID
        for end in _chunk_ends(computed[request], length, chunk_size, checkpoints[request]):
            ends.append(start + end)
            owners.append(request)
            if end == checkpoints[request]:
                checkpoint_chunk = len(owners) - 1
        last.append(len(owners) - 1 if length else PAD_SLOT_ID)
        at_checkpoint.append(checkpoint_chunk)
    as_int32 = [np.array(column, dtype=np.int32) for column in (ends, owners, last, at_checkpoint)]
    return as_int32[0], as_int32[1], as_int32[2], as_int32[3]


def causal_conv1d_metadata(
    query_start_loc: npt.NDArray[np.signedinteger], block_m: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Return ``(batch_ptr, token_chunk_offset_ptr, total)``: which program of a causal convolution does what.

    A host function. Request ``i`` of ``P`` holds ``query_start_loc[i + 1] - query_start_loc[i]`` tokens and is cut
    into blocks of ``block_m`` tokens, the last one perhaps short. Each block gets one program, in order.

    ``query_start_loc``
        int32 or int64 ``[P + 1]``, in tokens; the first start need not be 0.
    ``block_m``
        tokens a block: 8, 16, 32 or 64, an ``int``.
    ``batch_ptr``
        int32 ``[M]``, ``M = 2 * max(1024, total)``: the request of program ``k < total``, by its own number; -1 from
        ``total`` on.
    ``token_chunk_offset_ptr``
        int32 ``[M]``: the number of program ``k``'s block within its request; -1 from ``total`` on.
    ``total``
        the number of blocks, a Python ``int``.

    Refused (:class:`ContractError`), in this order: starts that are not one-dimensional; starts without an element;
    more requests than int32 numbers; a dtype other than int32 and int64; a block size that is not one of the four;
    decreasing starts; a request with more than 2**31 blocks, which int32 cannot number.

    Source of the definition: contracts.md, section 1.3.
    """
    _refuse_bad_requests([("query_start_loc", query_start_loc)])
    if not isinstance(block_m, int) or block_m not in _BLOCK_SIZES:
        raise ContractError("block_m", block_m, f"it must be one of the ints {_BLOCK_SIZES}")
    counts = [_ceil(length, block_m) for length in _lengths_not_negative(query_start_loc)]
    if max(counts, default=0) - 1 > _INT32_MAX:
        raise ContractError("query_start_loc", max(counts) - 1, "block numbers must fit int32")

    requests, blocks = [], []
    for request, count in enumerate(counts):
        for block in range(count):
            requests.append(request)
            blocks.append(block)
    total = len(requests)
    padding = [PAD_SLOT_ID] * (2 * max(_LEAST_PROGRAMS, total) - total)
    return np.array(requests + padding, dtype=np.int32), np.array(blocks + padding, dtype=np.int32), total


def _chunk_ends(computed: int, length: int, chunk_size: int, checkpoint: int) -> list[int]:
    """Where the chunks of one request end, in tokens from its first one."""
    ends, position = [], 0
    while position < length:
        to_multiple = chunk_size - (computed + position) % chunk_size
        end = min(position + to_multiple, length)
        if position < checkpoint < end:
            end = checkpoint
        ends.append(end)
        position = end
    return ends


def _refuse_bad_requests(named: list[tuple[str, npt.NDArray[np.signedinteger]]]) -> None:
    """``named``: ``query_start_loc`` ``[P + 1]`` first, then what has one element a request."""
    for name, array in named:
        if array.ndim != 1:
            raise ContractError(name, array.shape, "the shape must have one dimension")
    starts = named[0][1]
    if starts.size == 0:
        raise ContractError("query_start_loc", starts.shape, "there must be at least one element")
    if starts.size - 2 > _INT32_MAX:
        raise ContractError("query_start_loc", starts.size - 2, "request numbers must fit int32")
    for name, array in named[1:]:
        if array.size != starts.size - 1:
            rule = f"the size must be one less than that of query_start_loc, {starts.size - 1}"
            raise ContractError(name, array.size, rule)
    for name, array in named:
        if array.dtype not in _INDEX_DTYPES:
            raise ContractError(name, str(array.dtype), "the dtype must be int32 or int64")


def _lengths_from_zero(query_start_loc: npt.NDArray[np.signedinteger]) -> list[int]:
    if query_start_loc[0] != 0:
        raise ContractError("query_start_loc", int(query_start_loc[0]), "the first start must be 0")
    return _lengths_not_negative(query_start_loc)


def _lengths_not_negative(query_start_loc: npt.NDArray[np.signedinteger]) -> list[int]:
    lengths = _lengths(query_start_loc)
    for request, length in enumerate(lengths):
        if length < 0:
            raise ContractError("query_start_loc", length, f"the length of request {request} must not be negative")
    return lengths


def _refuse_bad_counts(lengths: list[int], computed: list[int], checkpoints: list[int]) -> None:
    for request, count in enumerate(computed):
        if count < 0:
            rule = f"the computed tokens of request {request} must not be negative"
            raise ContractError("num_computed_tokens", count, rule)
    for request, checkpoint in enumerate(checkpoints):
        if not 0 <= checkpoint <= lengths[request]:
            rule = f"the checkpoint of request {request} must lie in 0..{lengths[request]}, its tokens"
            raise ContractError("checkpoint_offsets", checkpoint, rule)
    if sum(lengths) > _INT32_MAX:
        raise ContractError("query_start_loc", sum(lengths), "the ends of chunks must fit int32")


def _refuse_bad_arrays(cu_seqlens: npt.NDArray[np.generic], cu_seqlens_cpu: npt.NDArray[np.generic]) -> None:
    named = (("cu_seqlens", cu_seqlens), ("cu_seqlens_cpu", cu_seqlens_cpu))
    for name, array in named:
        if array.ndim != 1:
            raise ContractError(name, array.shape, "the shape must have one dimension")
    for name, array in named:
        if array.size == 0:
            raise ContractError(name, array.shape, "there must be at least one element")
    if cu_seqlens_cpu.size != cu_seqlens.size:
        raise ContractError(
            "cu_seqlens_cpu", cu_seqlens_cpu.size, f"the size must be that of cu_seqlens, {cu_seqlens.size}"
        )
    for name, array in named:
        if array.dtype not in _INDEX_DTYPES:
            raise ContractError(name, str(array.dtype), "the dtype must be int32 or int64")


def _refuse_bad_chunk_size(chunk_size: object) -> None:
    if not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1:
        raise ContractError("chunk_size", chunk_size, "it must be an int of at least 1")


def _host_chunk_counts(cu_seqlens_cpu: npt.NDArray[np.signedinteger], chunk_size: int) -> list[int]:
    lengths = _lengths(cu_seqlens_cpu)
    for sequence, length in enumerate(lengths):
        if length < 0:
            raise ContractError("cu_seqlens_cpu", length, f"the length of sequence {sequence} must not be negative")
    if sum(lengths) > _INT64_MAX:
        raise ContractError("cu_seqlens_cpu", sum(lengths), "the lengths must sum to at most 2**63 - 1")
    return [_ceil(length, chunk_size) for length in lengths]


def _refuse_numbers_that_do_not_fit(host_counts: list[int], dtype: np.dtype[np.signedinteger]) -> None:
    largest = max([len(host_counts) - 1] + [count - 1 for count in host_counts])
    if largest > np.iinfo(dtype).max:
        raise ContractError("cu_seqlens_cpu", largest, f"sequence and chunk numbers must fit {dtype}")


def _device_chunk_counts(cu_seqlens: npt.NDArray[np.signedinteger], chunk_size: int) -> list[int]:
    counts = []
    for sequence, length in enumerate(_lengths(cu_seqlens)):
        if not 0 <= length <= _INT64_MAX:
            raise OnlyMemorySafety(f"the device's length of sequence {sequence} is {length}")
        counts.append(_ceil(length, chunk_size))
    return counts


def _lengths(starts: npt.NDArray[np.signedinteger]) -> list[int]:
    # Python integers: the difference of two int32 needs 33 bits, that of two int64 needs 65.
    return [end - begin for begin, end in pairwise(starts.tolist())]


def _ceil(length: int, chunk_size: int) -> int:
    return (length + chunk_size - 1) // chunk_size
