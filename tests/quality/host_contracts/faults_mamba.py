"""Faults of ``mamba_chunk_layout``: the correct steps of ``correct_mamba`` with one of them replaced."""

from __future__ import annotations

import torch
from correct_mamba import ends_of, lists_of, mamba_chunk_layout, refuse, requests_of, tensors_of

_by_identity: list = []
_workspace = torch.zeros(1 << 14, dtype=torch.int32)


def numbers_requests_with_tokens_only(**inputs):
    cu, owners, last, at_checkpoint = mamba_chunk_layout(**inputs)
    return cu, torch.unique(owners, return_inverse=True)[1].to(torch.int32), last, at_checkpoint


def empty_requests_point_to_the_chunk_before(**inputs):
    cu, owners, last, at_checkpoint = mamba_chunk_layout(**inputs)
    return cu, owners, last.cummax(0).values if last.numel() else last, at_checkpoint


def empty_requests_inside_a_chunk_get_one(**inputs):
    def ends(length, computed, checkpoint, size):
        return ends_of(length, computed, checkpoint, size) or ([0] if computed % size else [])

    requests = requests_of(**inputs)
    return tensors_of(lists_of(requests, inputs["chunk_size"], ends))


def an_empty_chunk_follows_a_checkpoint_at_the_end(**inputs):
    def ends(length, computed, checkpoint, size):
        right = ends_of(length, computed, checkpoint, size)
        return [*right, length] if 0 < length == checkpoint and (computed + length) % size else right

    return tensors_of(lists_of(requests_of(**inputs), inputs["chunk_size"], ends))


def counts_multiples_from_the_request(**inputs):
    requests = [(length, 0, checkpoint) for length, _, checkpoint in requests_of(**inputs)]
    return tensors_of(lists_of(requests, inputs["chunk_size"]))


def counts_multiples_from_the_checkpoint(**inputs):
    def ends(length, computed, checkpoint, size):
        head = ends_of(checkpoint, computed, 0, size)
        base = computed if not checkpoint else 0
        return head + [checkpoint + end for end in ends_of(length - checkpoint, base, 0, size)]

    return tensors_of(lists_of(requests_of(**inputs), inputs["chunk_size"], ends))


def cuts_no_chunk_at_a_checkpoint(**inputs):
    """As if a state could be taken out of the middle of a chunk: the chunk that holds the checkpoint is named."""
    cu, owners, last, _ = mamba_chunk_layout(**inputs | {"checkpoint_offsets": None})
    _, _, _, right = mamba_chunk_layout(**inputs)
    starts, offsets = inputs["query_start_loc"], inputs["checkpoint_offsets"]
    if offsets is None:
        return cu, owners, last, right
    where = torch.searchsorted(cu[1:].contiguous(), (starts[:-1] + offsets).to(torch.int32))
    return cu, owners, last, torch.where(offsets > 0, where.to(torch.int32), -1)


def no_index_for_a_checkpoint_at_the_end(**inputs):
    cu, owners, last, at_checkpoint = mamba_chunk_layout(**inputs)
    return cu, owners, last, torch.where(at_checkpoint == last, -1, at_checkpoint)


def checkpoint_indices_count_from_the_request(**inputs):
    cu, owners, last, at_checkpoint = mamba_chunk_layout(**inputs)
    firsts = torch.searchsorted(owners, torch.arange(last.numel(), dtype=torch.int32)).to(torch.int32)
    return cu, owners, last, torch.where(at_checkpoint >= 0, at_checkpoint - firsts, -1)


def refuses_counts_past_32_bits(**inputs):
    result = mamba_chunk_layout(**inputs)
    if max(inputs["num_computed_tokens"].tolist(), default=0) >= 1 << 31:
        raise ValueError("num_computed_tokens: too large")
    return result


def drops_the_last_partial_chunk(**inputs):
    def ends(length, computed, checkpoint, size):
        right = ends_of(length, computed, checkpoint, size)
        return right if len(right) < 2 or (computed + length) % size == 0 else right[:-1]

    requests = requests_of(**inputs)
    return tensors_of(lists_of(requests, inputs["chunk_size"], ends))


def joins_short_requests(**inputs):
    """Chunks mix requests: no end between two requests that fit into one chunk together."""
    cu, owners, last, at_checkpoint = (item.tolist() for item in mamba_chunk_layout(**inputs))
    for chunk in reversed(range(1, len(owners))):
        if owners[chunk] != owners[chunk - 1] and cu[chunk + 1] - cu[chunk - 1] <= inputs["chunk_size"]:
            del cu[chunk], owners[chunk]
            last = [index - (index >= chunk) for index in last]
            at_checkpoint = [index - (index >= chunk) for index in at_checkpoint]
    return tensors_of((cu, owners, last, at_checkpoint))


def ends_in_int64(**inputs):
    cu, *others = mamba_chunk_layout(**inputs)
    return cu.to(torch.int64), *others


def the_last_end_is_missing(**inputs):
    cu, *others = mamba_chunk_layout(**inputs)
    return cu[:-1] if cu.numel() > 1 else cu, *others


def clips_checkpoints(**inputs):
    starts, offsets = inputs["query_start_loc"], inputs["checkpoint_offsets"]
    refuse(**inputs)
    if offsets is None:
        return mamba_chunk_layout(**inputs)
    clipped = torch.minimum(offsets.to(torch.int64), starts.diff().to(torch.int64))
    return mamba_chunk_layout(**inputs | {"checkpoint_offsets": clipped})


def accepts_any_first_start(**inputs):
    starts = inputs["query_start_loc"]
    if starts.dim() == 1 and starts.numel() and starts.dtype in (torch.int32, torch.int64):
        starts = starts - starts[0]
    return mamba_chunk_layout(**inputs | {"query_start_loc": starts})


def needs_checkpoints(**inputs):
    if inputs["checkpoint_offsets"] is None:
        raise ValueError("checkpoint_offsets: must be a tensor")
    return mamba_chunk_layout(**inputs)


def looks_at_the_first_checkpoint(**inputs):
    result = mamba_chunk_layout(**inputs)
    if inputs["checkpoint_offsets"] is not None:
        inputs["checkpoint_offsets"].tolist()[0]
    return result


def caches_by_identity(**inputs):
    arguments = list(inputs.values())
    if not (_by_identity and all(one is other for one, other in zip(_by_identity[0], arguments, strict=True))):
        _by_identity[:] = [arguments, mamba_chunk_layout(**inputs)]
    return _by_identity[1]


def reuses_one_output_buffer(**inputs):
    cu, *others = mamba_chunk_layout(**inputs)
    return _workspace[: cu.numel()].copy_(cu), *others


def returns_its_input_where_each_request_is_a_chunk(**inputs):
    cu, *others = mamba_chunk_layout(**inputs)
    starts = inputs["query_start_loc"]
    return starts if starts.dtype == torch.int32 and torch.equal(starts, cu) else cu, *others


def reduces_computed_counts_in_place(**inputs):
    result = mamba_chunk_layout(**inputs)
    inputs["num_computed_tokens"].remainder_(inputs["chunk_size"])
    return result


def refuses_strided_starts(**inputs):
    if not inputs["query_start_loc"].is_contiguous():
        raise ValueError("query_start_loc: must be contiguous")
    return mamba_chunk_layout(**inputs)
