"""The chunk layout of a prefill batch for Mamba's scan, computed on the host with a loop over requests, not chunks.

Between a request's first token, its checkpoint and its end, a chunk ends at every multiple of the chunk size, which is
a ``range``. A server's step has few prefill requests, often one; there NumPy's calls would cost more than all the work.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import torch

from optimized.errors import PAD_SLOT_ID, ContractError

_INT32_MAX = 2**31 - 1


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
    starts, computed = query_start_loc.tolist(), num_computed_tokens.tolist()
    checkpoints = [0] * len(computed) if checkpoint_offsets is None else checkpoint_offsets.tolist()
    _refuse_bad_starts(starts)
    _refuse_bad_counts(starts, computed, checkpoints)
    columns = _layout(starts, computed, chunk_size, checkpoints)
    return tuple(torch.from_numpy(np.asarray(column)) for column in columns)  # type: ignore[return-value]


def _layout(
    starts: list[int], computed: list[int], chunk_size: int, checkpoints: list[int]
) -> tuple[array[int], array[int], array[int], array[int]]:
    cu, owners = array("i", [0]), array("i")
    last, at_checkpoint = array("i", [PAD_SLOT_ID]) * len(computed), array("i", [PAD_SLOT_ID]) * len(computed)
    for request, (begin, end) in enumerate(pairwise(starts)):
        if begin == end:
            continue
        multiple = begin - computed[request] % chunk_size + chunk_size
        if checkpoints[request]:
            cut = begin + checkpoints[request]
            cu.extend(range(multiple, cut, chunk_size))
            cu.append(cut)
            at_checkpoint[request] = len(cu) - 2
            multiple = cut - (cut - multiple) % chunk_size + chunk_size
            begin = cut
        if begin < end:
            cu.extend(range(multiple, end, chunk_size))
            cu.append(end)
        last[request] = len(cu) - 2
        owners.extend([request] * (len(cu) - 1 - len(owners)))
    return cu, owners, last, at_checkpoint


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


def _refuse_bad_starts(starts: list[int]) -> None:
    if starts[0] != 0:
        raise ContractError("query_start_loc", starts[0], "the first start must be 0")
    for request, (begin, end) in enumerate(pairwise(starts)):
        if end < begin:
            raise ContractError("query_start_loc", end - begin, f"the length of request {request} must not be negative")


def _refuse_bad_counts(starts: list[int], computed: list[int], checkpoints: list[int]) -> None:
    for request, count in enumerate(computed):
        if count < 0:
            rule = f"the computed tokens of request {request} must not be negative"
            raise ContractError("num_computed_tokens", count, rule)
    for request, checkpoint in enumerate(checkpoints):
        length = starts[request + 1] - starts[request]
        if not 0 <= checkpoint <= length:
            rule = f"the checkpoint of request {request} must lie in 0..{length}, its tokens"
            raise ContractError("checkpoint_offsets", checkpoint, rule)
    if starts[-1] > _INT32_MAX:
        raise ContractError("query_start_loc", starts[-1], "the ends of chunks must fit int32")
