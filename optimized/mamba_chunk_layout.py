"""The chunk layout of a prefill batch for Mamba's scan, computed on the host without a loop over chunks or requests.

A checkpoint cuts its request into two segments; without one a request is a single segment. All chunks of a segment hold
``chunk_size`` tokens except the first, which reaches to an absolute multiple, and the last, which ends the segment.
So the ends are the running sum of a constant array in which two elements a segment are replaced.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import PAD_SLOT_ID, ContractError

_INT32_MAX = 2**31 - 1
# Positions reach 2**63 - 1 + 2**31 - 1, so no multiple of a larger chunk size but 0 is ever met.
_MOST_CHUNK_SIZE = 2**63 + 2**31
# A request has fewer tokens than this: a multiple so far away, or further, is not in it.
_FAR = 2**31

_Ints = npt.NDArray[np.signedinteger]


def mamba_chunk_layout(
    *,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    chunk_size: int,
    checkpoint_offsets: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``(cu_chunk_seqlens, seq_idx, last_chunk_indices, checkpoint_chunk_indices)`` on the CPU.

    A chunk ends before each absolute multiple of ``chunk_size`` (computed tokens + place in the request), at its
    request's end and at its checkpoint, and nowhere else.

    ``query_start_loc``
        int32 or int64 ``[P + 1]`` on the CPU, any stride, in tokens: where requests start; the first start is 0.
    ``num_computed_tokens``
        int32 or int64 ``[P]`` on the CPU, any stride, in tokens: what earlier steps have computed of each request.
    ``chunk_size``
        tokens a chunk, an ``int`` of at least 1.
    ``checkpoint_offsets``
        int32 or int64 ``[P]`` on the CPU, any stride, in tokens from the request's first one: a chunk ends there; 0 for
        none. ``None``: no request has one.
    ``cu_chunk_seqlens``
        int32 ``[K + 1]``, in tokens: 0, then the end of each chunk.
    ``seq_idx``
        int32 ``[K]``: the request of each chunk.
    ``last_chunk_indices``
        int32 ``[P]``: each request's last chunk, -1 without tokens.
    ``checkpoint_chunk_indices``
        int32 ``[P]``: the chunk that ends at the checkpoint, -1 without one.

    Refused (:class:`ContractError`) before anything is allocated: a tensor that is not one-dimensional; starts
    without an element; more requests than int32 numbers; sizes that disagree; a dtype other than int32 and int64; a
    tensor that is not on the CPU; a chunk size that is not an ``int`` of at least 1; a first start other than 0; a
    negative length or computed count; a checkpoint outside its request; more than 2**31 - 1 tokens.

    Source of the definition: contracts.md, section 1.2.
    """
    named = [("query_start_loc", query_start_loc), ("num_computed_tokens", num_computed_tokens)]
    if checkpoint_offsets is not None:
        named.append(("checkpoint_offsets", checkpoint_offsets))
    _refuse_bad_tensors(named)
    if not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1:
        raise ContractError("chunk_size", chunk_size, "it must be an int of at least 1")
    starts, computed = query_start_loc.numpy(), num_computed_tokens.numpy()
    checkpoints = None if checkpoint_offsets is None else checkpoint_offsets.numpy()
    _refuse_bad_starts(starts)
    _refuse_bad_counts(starts, computed, checkpoints)
    return _layout(starts, computed, chunk_size, checkpoints)


def _layout(
    starts: _Ints, computed: _Ints, chunk_size: int, checkpoints: _Ints | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = np.diff(starts).astype(np.int64)
    step, to_multiple = min(chunk_size, _FAR), _to_first_multiple(computed, chunk_size)
    if checkpoints is None:
        cu, bounds = _chunks(lengths, to_multiple, step)
        at_checkpoint = np.full(lengths.size, PAD_SLOT_ID, np.int32)
    else:
        cuts = checkpoints.astype(np.int64)
        past = cuts - to_multiple
        behind = np.where(past < 0, -past, step - (past - past // step * step))
        cu, bounds = _chunks(_interleaved(cuts, lengths - cuts), _interleaved(to_multiple, behind), step)
        at_checkpoint = np.where(cuts > 0, bounds[1::2] - 1, PAD_SLOT_ID).astype(np.int32)
        bounds = bounds[::2]
    occupied = np.flatnonzero(lengths)
    last = np.full(lengths.size, PAD_SLOT_ID, np.int32)
    last[occupied] = bounds[1:][occupied] - 1
    columns = (cu, _owners(occupied, bounds), last, at_checkpoint)
    return tuple(map(torch.from_numpy, columns))  # type: ignore[return-value]


def _chunks(
    lengths: npt.NDArray[np.int64], to_multiple: npt.NDArray[np.int64], step: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The ends of all chunks of all segments behind a 0, and the number of chunks before each segment and in total."""
    # One chunk for each multiple strictly inside and one for the end. As 1 <= to_multiple <= step, the quotient is -1
    # where no multiple is inside; an empty segment would still get a chunk if its own multiple were that near.
    counts = np.where(lengths > 0, (lengths - 1 - to_multiple) // step + 2, 0)
    bounds = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    occupied = np.flatnonzero(counts)
    counts, lengths, to_multiple = counts[occupied], lengths[occupied], to_multiple[occupied]
    # The lengths of the chunks: whole ones, but the first of a segment reaches to a multiple and the last ends it.
    # A running sum is several times faster than repeating each segment's numbers.
    sizes = np.full(int(bounds[-1]) + 1, step, np.int64)
    sizes[0] = 0
    sizes[1 + bounds[occupied]] = to_multiple
    sizes[bounds[occupied + 1]] = lengths - np.where(counts > 1, to_multiple + (counts - 2) * step, 0)
    return np.cumsum(sizes, dtype=np.int32), bounds


def _owners(occupied: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The request of each chunk: the running sum of what the number grows by at a request's first chunk."""
    growth = np.zeros(int(bounds[-1]), np.int32)
    growth[bounds[occupied]] = np.diff(occupied, prepend=0)
    return np.cumsum(growth, dtype=np.int32)


def _to_first_multiple(computed: _Ints, chunk_size: int) -> npt.NDArray[np.int64]:
    """Tokens from each request's first one to the next multiple, at least 1 and at most ``_FAR``."""
    size = np.uint64(min(chunk_size, _MOST_CHUNK_SIZE))
    return np.minimum(size - computed.astype(np.uint64) % size, np.uint64(_FAR)).astype(np.int64)


def _interleaved(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.stack((first, second), axis=1).reshape(-1)


def _refuse_bad_tensors(named: list[tuple[str, torch.Tensor]]) -> None:
    for name, tensor in named:
        if tensor.dim() != 1:
            raise ContractError(name, tuple(tensor.shape), "the shape must have one dimension")
    size = named[0][1].shape[0]
    if size == 0:
        raise ContractError("query_start_loc", (0,), "there must be at least one element")
    if size - 2 > _INT32_MAX:
        raise ContractError("query_start_loc", size - 2, "request numbers must fit int32")
    for name, tensor in named[1:]:
        if tensor.shape[0] != size - 1:
            rule = f"the size must be one less than that of query_start_loc, {size - 1}"
            raise ContractError(name, tensor.shape[0], rule)
    for name, tensor in named:
        if tensor.dtype is not torch.int32 and tensor.dtype is not torch.int64:
            raise ContractError(name, str(tensor.dtype).removeprefix("torch."), "the dtype must be int32 or int64")
    for name, tensor in named:
        if not tensor.is_cpu:
            raise ContractError(name, str(tensor.device), "it must be on the CPU")


def _refuse_bad_starts(starts: _Ints) -> None:
    if starts[0] != 0:
        raise ContractError("query_start_loc", int(starts[0]), "the first start must be 0")
    # Compared, not subtracted: the difference of two int64 can wrap to the wrong sign.
    falls = starts[1:] < starts[:-1]
    if falls.any():
        request = int(falls.argmax())
        length = int(starts[request + 1]) - int(starts[request])
        raise ContractError("query_start_loc", length, f"the length of request {request} must not be negative")


def _refuse_bad_counts(starts: _Ints, computed: _Ints, checkpoints: _Ints | None) -> None:
    negative = computed < 0
    if negative.any():
        request = int(negative.argmax())
        rule = f"the computed tokens of request {request} must not be negative"
        raise ContractError("num_computed_tokens", int(computed[request]), rule)
    if checkpoints is not None:
        lengths = np.diff(starts)
        outside = (checkpoints < 0) | (checkpoints > lengths)
        if outside.any():
            request = int(outside.argmax())
            rule = f"the checkpoint of request {request} must lie in 0..{int(lengths[request])}, its tokens"
            raise ContractError("checkpoint_offsets", int(checkpoints[request]), rule)
    if starts[-1] > _INT32_MAX:
        raise ContractError("query_start_loc", int(starts[-1]), "the ends of chunks must fit int32")
