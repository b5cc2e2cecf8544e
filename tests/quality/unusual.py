"""Correct implementations of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import threading

import correct_host
import torch
from correct_host import chunk_counts, chunk_metadata, count_rows, offsets_of, refuse, rows_of

_cache: dict = {}


def returns_a_mapping(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return {"chunk_offsets": offsets, "debug": None, "chunk_indices": indices}


def returns_a_list(**inputs):
    return list(chunk_metadata(**inputs))


def returns_views_of_one_buffer(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """One allocation with room between the outputs; the indices have a row stride of 4."""
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    rows, sums = indices.shape[0], offsets.shape[0]
    buffer = torch.empty(4 * rows + sums + 8, dtype=torch.int64, device=cu_seqlens.device)
    table = buffer.view(cu_seqlens.dtype)[: 4 * rows].view(rows, 4)[:, :2]
    return table.copy_(indices), buffer[4 * rows : 4 * rows + sums].copy_(offsets)


def writes_with_out(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    offsets = cu_seqlens.new_empty(cu_seqlens.shape, dtype=torch.int64)
    offsets[0].zero_()
    torch.cumsum(chunk_counts(cu_seqlens, chunk_size), 0, out=offsets[1:])
    indices = torch.full((count_rows(cu_seqlens_cpu, chunk_size), 2), -1, dtype=torch.int64, device=cu_seqlens.device)
    torch.add(rows_of(offsets, indices.shape[0]), 0, out=indices)
    return indices.to(cu_seqlens.dtype), offsets


def caches_by_content(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Only what depends on the host's values is kept, under these values; the device's are always followed."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    key = (tuple(cu_seqlens_cpu.tolist()), chunk_size)
    if key not in _cache:
        _cache[key] = torch.arange(count_rows(cu_seqlens_cpu, chunk_size))
    offsets = offsets_of(chunk_counts(cu_seqlens, chunk_size))
    return rows_of(offsets, _cache[key].shape[0]).to(cu_seqlens.dtype), offsets


def uses_a_thread(**inputs):
    results: list = []

    def work():
        try:
            results.append(chunk_metadata(**inputs))
        except ValueError as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(results[0], ValueError):
        raise results[0]
    return results[0]


def prints(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    print("shape", list(cu_seqlens.shape), "on", cu_seqlens.device, flush=True)
    return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def changes_the_default_dtype(**inputs):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return chunk_metadata(**inputs)


def compares_rows_with_all_offsets(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """No search: a matrix of rows against offsets, and a scatter into an output that starts as padding."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    offsets = offsets_of(chunk_counts(cu_seqlens, chunk_size))
    rows = torch.arange(count_rows(cu_seqlens_cpu, chunk_size), device=cu_seqlens.device)
    numbers = (offsets[None, 1:] <= rows[:, None]).sum(1)
    pairs = torch.stack([numbers, rows - torch.index_select(offsets, 0, numbers)], 1)
    inside = (rows < offsets[-1])[:, None]
    return torch.where(inside, pairs, -1).to(cu_seqlens.dtype), offsets.clone(memory_format=torch.contiguous_format)


def keeps_a_workspace(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """A buffer that lives on between calls, and is filled anew in each; what is returned is a copy."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    key = (cu_seqlens.shape[0], "workspace")
    if key not in _cache:
        _cache[key] = torch.empty(key[0], dtype=torch.int64, device=cu_seqlens.device)
    workspace = _cache[key].copy_(cu_seqlens)
    offsets = offsets_of(chunk_counts(workspace, chunk_size))
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


class Planner:
    """A callable object with a method of its own as the entry."""

    def __call__(self, **inputs):
        return correct_host.chunk_metadata(**inputs)


planner = Planner()
