"""Which program of a causal convolution works on which block, computed on the host without a loop over requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import PAD_SLOT_ID, ContractError

_INT32_MAX = 2**31 - 1
_BLOCK_SIZES = (8, 16, 32, 64)
_LEAST_PROGRAMS = 1024


def causal_conv1d_metadata(*, query_start_loc: torch.Tensor, block_m: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return ``(batch_ptr, token_chunk_offset_ptr, total)``, the tensors on the CPU.

    Request ``i`` is cut into ``ceil(length / block_m)`` blocks, each of which gets one program, in order.

    ``query_start_loc``
        int32 or int64 ``[P + 1]`` on the CPU, any stride, in tokens; the first start need not be 0.
    ``block_m``
        tokens a block: the ``int`` 8, 16, 32 or 64.
    ``batch_ptr``
        int32 ``[2 * max(1024, total)]``: the request of each program below ``total``; -1 behind.
    ``token_chunk_offset_ptr``
        int32, as long: the number of that program's block within its request; -1 behind.
    ``total``
        the number of blocks, a Python ``int``.

    Refused (:class:`ContractError`) before anything is allocated: starts that are not one-dimensional, have no
    element, number more requests than int32 can or are neither int32 nor int64; starts that are not on the CPU; another
    block size; decreasing starts; a request with more than 2**31 blocks, which int32 cannot number.

    Source of the definition: contracts.md, section 1.3.
    """
    _refuse_bad_starts(query_start_loc)
    if not isinstance(block_m, int) or block_m not in _BLOCK_SIZES:
        raise ContractError("block_m", block_m, f"it must be one of the ints {_BLOCK_SIZES}")
    counts = _block_counts(query_start_loc.numpy(), block_m)

    occupied = np.flatnonzero(counts)
    counts = counts[occupied]
    total = int(counts.sum())
    firsts = np.cumsum(counts) - counts
    # What each column grows by from one program to the next, then the running sum, which is several times faster than
    # repeating each request's number: a request's first program starts from block 0 again.
    batch_ptr, token_chunk_offset_ptr = _padded(total, 0), _padded(total, 1)
    batch_ptr[firsts] = np.diff(occupied, prepend=0)
    token_chunk_offset_ptr[firsts] = 1 - np.concatenate(([1], counts))[:-1]
    for column in (batch_ptr, token_chunk_offset_ptr):
        np.cumsum(column[:total], dtype=np.int32, out=column[:total])
    return torch.from_numpy(batch_ptr), torch.from_numpy(token_chunk_offset_ptr), total


def _padded(total: int, growth: int) -> npt.NDArray[np.int32]:
    """Both halves of a column: what it grows by for each program, and padding."""
    column = np.full(2 * max(_LEAST_PROGRAMS, total), PAD_SLOT_ID, np.int32)
    column[:total] = growth
    return column


def _refuse_bad_starts(query_start_loc: torch.Tensor) -> None:
    if query_start_loc.dim() != 1:
        raise ContractError("query_start_loc", tuple(query_start_loc.shape), "the shape must have one dimension")
    size = query_start_loc.shape[0]
    if size == 0:
        raise ContractError("query_start_loc", (0,), "there must be at least one element")
    if size - 2 > _INT32_MAX:
        raise ContractError("query_start_loc", size - 2, "request numbers must fit int32")
    if query_start_loc.dtype is not torch.int32 and query_start_loc.dtype is not torch.int64:
        name = str(query_start_loc.dtype).removeprefix("torch.")
        raise ContractError("query_start_loc", name, "the dtype must be int32 or int64")
    if not query_start_loc.is_cpu:
        raise ContractError("query_start_loc", str(query_start_loc.device), "it must be on the CPU")


def _block_counts(starts: npt.NDArray[np.signedinteger], block_m: int) -> npt.NDArray[np.int64]:
    """Blocks of each request, or a refusal."""
    # Compared, not subtracted: the difference of two int64 can wrap to the wrong sign.
    falls = starts[1:] < starts[:-1]
    if falls.any():
        request = int(falls.argmax())
        length = int(starts[request + 1]) - int(starts[request])
        raise ContractError("query_start_loc", length, f"the length of request {request} must not be negative")
    # A length can need 64 bits without a sign: unsigned differences are exact, and nothing is added before the shift.
    ends = starts[1:].astype(np.uint64)
    lengths = ends - starts[:-1].astype(np.uint64)
    shift = np.uint64(block_m.bit_length() - 1)
    counts = ((lengths >> shift) + ((lengths & np.uint64(block_m - 1)) != 0)).astype(np.int64)
    if counts.size and counts.max() - 1 > _INT32_MAX:
        raise ContractError("query_start_loc", int(counts.max()) - 1, "block numbers must fit int32")
    return counts
