"""Chunk metadata: which pieces a batch of packed sequences is cut into for chunked linear attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from reference.errors import PAD_SLOT_ID, ContractError, OnlyMemorySafety

_INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
_INT64_MAX = 2**63 - 1


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
