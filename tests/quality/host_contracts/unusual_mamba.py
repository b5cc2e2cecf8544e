"""Correct implementations of ``mamba_chunk_layout`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import correct_mamba
import torch
from correct_mamba import mamba_chunk_layout, requests_of, tensors_of

_cache: dict = {}


def returns_a_mapping(**inputs):
    names = ("cu_chunk_seqlens", "seq_idx", "last_chunk_indices", "checkpoint_chunk_indices")
    return dict(zip(names, mamba_chunk_layout(**inputs), strict=True)) | {"num_chunks": 0}


def returns_views_of_one_buffer(**inputs):
    """One allocation for all outputs, which lie in every third element of it."""
    outputs = mamba_chunk_layout(**inputs)
    sizes = [output.numel() for output in outputs]
    parts = torch.full((sum(sizes), 3), -7, dtype=torch.int32)[:, 1].split(sizes)
    for part, output in zip(parts, outputs, strict=True):
        part.copy_(output)
    return parts


def caches_by_content(**inputs):
    requests = tuple(requests_of(**inputs))
    key = (requests, inputs["chunk_size"])
    if key not in _cache:
        _cache[key] = correct_mamba.lists_of(requests, inputs["chunk_size"])
    return tensors_of(_cache[key])


def goes_backwards(**inputs):
    """From the last token of the last request to the first; indices are turned round at the end."""
    total, size = int(sum(length for length, _, _ in requests_of(**inputs))), inputs["chunk_size"]
    begins, owners, last, at_checkpoint = [], [], [], []
    stop = total
    for request, (length, computed, checkpoint) in reversed(list(enumerate(requests_of(**inputs)))):
        ends = correct_mamba.ends_of(length, computed, checkpoint, size)[::-1]
        last.append(len(owners) if ends else None)
        at_checkpoint.append(len(owners) + ends.index(checkpoint) if checkpoint else None)
        begins += [stop - length + end for end in ends]
        owners += [request] * len(ends)
        stop -= length
    turned = [
        [-1 if index is None else len(owners) - 1 - index for index in column[::-1]] for column in (last, at_checkpoint)
    ]
    return tensors_of(([0, *begins[::-1]], owners[::-1], *turned))


class Layout:
    """A callable object."""

    def __call__(self, **inputs):
        return list(mamba_chunk_layout(**inputs))


layout = Layout()
