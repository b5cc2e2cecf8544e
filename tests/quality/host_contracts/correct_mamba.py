"""A correct ``mamba_chunk_layout`` in small steps. Each planted fault replaces one step or wraps the whole."""

from __future__ import annotations

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(query_start_loc, num_computed_tokens, chunk_size, checkpoint_offsets):
    """Everything that is wrong by the text, without the values of checkpoints."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size: {chunk_size} must be at least 1")
    given = [query_start_loc, num_computed_tokens, *([] if checkpoint_offsets is None else [checkpoint_offsets])]
    if any(tensor.dim() != 1 or tensor.dtype not in INTEGERS for tensor in given) or not query_start_loc.numel():
        raise ValueError("all tensors must be one-dimensional, int32 or int64, and there is at least one start")
    if any(tensor.shape[0] != query_start_loc.shape[0] - 1 for tensor in given[1:]):
        raise ValueError("query_start_loc: must have one element more than there are requests")
    if int(query_start_loc[0]) != 0 or bool((query_start_loc.diff() < 0).any()):
        raise ValueError("query_start_loc: must start at 0 and not fall")
    if int(query_start_loc[-1]) >= 1 << 31 or bool((num_computed_tokens < 0).any()):
        raise ValueError("query_start_loc: too many tokens, or a computed count is negative")


def refuse_checkpoints(query_start_loc, checkpoint_offsets):
    """A checkpoint lies in its request, ends included."""
    if bool(((checkpoint_offsets < 0) | (checkpoint_offsets > query_start_loc.diff())).any()):
        raise ValueError("checkpoint_offsets: must lie in 0 .. the request's tokens")


def requests_of(query_start_loc, num_computed_tokens, chunk_size, checkpoint_offsets):
    """Length, computed tokens and checkpoint of each request, or a refusal."""
    refuse(query_start_loc, num_computed_tokens, chunk_size, checkpoint_offsets)
    if checkpoint_offsets is None:
        checkpoint_offsets = torch.zeros_like(num_computed_tokens)
    refuse_checkpoints(query_start_loc, checkpoint_offsets)
    lengths = query_start_loc.diff().tolist()
    return list(zip(lengths, num_computed_tokens.tolist(), checkpoint_offsets.tolist(), strict=True))


def ends_of(length, computed, checkpoint, chunk_size):
    """Where the chunks of one request end, from its first token."""
    multiples = range(chunk_size - computed % chunk_size, length, chunk_size)
    return sorted({*multiples, *([length] if length else []), *([checkpoint] if checkpoint else [])})


def lists_of(requests, chunk_size, ends_of=ends_of):
    """The four outputs as lists."""
    cu, owners, last, at_checkpoint = [0], [], [], []
    for request, (length, computed, checkpoint) in enumerate(requests):
        start, ends = cu[-1], ends_of(length, computed, checkpoint, chunk_size)
        at_checkpoint.append(len(owners) + ends.index(checkpoint) if checkpoint in ends else -1)
        cu += [start + end for end in ends]
        owners += [request] * len(ends)
        last.append(len(owners) - 1 if ends else -1)
    return cu, owners, last, at_checkpoint


def tensors_of(lists):
    """The four outputs as they are returned."""
    return tuple(torch.tensor(values, dtype=torch.int32) for values in lists)


def mamba_chunk_layout(**inputs):
    """All steps together."""
    return tensors_of(lists_of(requests_of(**inputs), inputs["chunk_size"]))
