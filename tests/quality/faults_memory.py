"""Caches, shared memory, stray writes, unwritten elements and chance: the right steps, and one too few or too many."""

from __future__ import annotations

import ctypes

import torch
from correct_host import chunk_counts, chunk_metadata, count_rows, offsets_of, refuse, rows_of

_by_identity: list = []
_by_address: dict = {}
_by_shape: dict = {}
_sums = torch.zeros(1 << 12, dtype=torch.int64)


def caches_by_identity(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """As a decorator does that compares its last arguments with ``is``."""
    arguments = (cu_seqlens, cu_seqlens_cpu, chunk_size)
    if not (_by_identity and all(one is other for one, other in zip(_by_identity[0], arguments, strict=True))):
        result = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
        _by_identity[:] = [arguments, result]
    return _by_identity[1]


def caches_by_address(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Keeps the tensors alive, so that an address is only met again when its buffer is refilled."""
    key = (cu_seqlens.data_ptr(), cu_seqlens.shape, chunk_size)
    if key not in _by_address:
        result = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
        _by_address[key] = (cu_seqlens, result)
    return _by_address[key][1]


def caches_by_shape(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    key = (cu_seqlens.shape, cu_seqlens.dtype, count_rows(cu_seqlens_cpu, chunk_size), chunk_size)
    if key not in _by_shape:
        _by_shape[key] = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return _by_shape[key]


def caches_by_host_values(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Looks at values, but at the host's: the device's may differ."""
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    key = (cu_seqlens.shape, cu_seqlens.dtype, cu_seqlens_cpu.dtype, *cu_seqlens_cpu.tolist(), chunk_size)
    if key not in _by_shape:
        _by_shape[key] = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return _by_shape[key]


def reuses_one_output_buffer(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    offsets = _sums[: cu_seqlens.shape[0]]
    torch.cumsum(chunk_counts(cu_seqlens, chunk_size), 0, out=offsets[1:])
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def returns_an_input_as_offsets(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """With chunks of one token and a first start of 0, the offsets are the input."""
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    same = chunk_size == 1 and cu_seqlens.dtype == torch.int64 and int(cu_seqlens_cpu[0]) == 0
    return indices, cu_seqlens if same else offsets


def rebases_its_input_in_place(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    cu_seqlens -= cu_seqlens[0].clone()
    return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def writes_one_past_the_end(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    ctypes.c_int64.from_address(offsets.data_ptr() + offsets.nbytes).value = 7
    return indices, offsets


def writes_between_the_rows_of_its_input(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    if cu_seqlens.stride(0) > 1 and cu_seqlens.shape[0] > 1:
        cu_seqlens.as_strided((1,), (1,), cu_seqlens.storage_offset() + 1).fill_(0)
    return indices, offsets


def ignores_the_stride(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    packed = cu_seqlens.as_strided(cu_seqlens.shape, (1,))
    offsets = offsets_of(chunk_counts(packed, chunk_size))
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def leaves_an_empty_batch_unwritten(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return indices, offsets if offsets.shape[0] > 1 else torch.empty_like(offsets)


def leaves_rows_past_the_total_unwritten(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    return torch.where(indices < 0, torch.empty_like(indices), indices), offsets


def sums_onto_unwritten_memory(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    refuse(cu_seqlens, cu_seqlens_cpu, chunk_size)
    counts = torch.empty(cu_seqlens.shape[0] - 1, dtype=torch.int64, device=cu_seqlens.device)
    counts += chunk_counts(cu_seqlens, chunk_size)
    offsets = offsets_of(counts)
    return rows_of(offsets, count_rows(cu_seqlens_cpu, chunk_size)).to(cu_seqlens.dtype), offsets


def pads_with_random_numbers(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    noise = torch.randint(0, 1 << 30, indices.shape).to(indices.dtype)
    return torch.where(indices < 0, noise, indices), offsets


def breaks_ties_at_random(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    """Orders the rows by sequence alone: chunks of one sequence come in any order."""
    indices, offsets = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    shuffled = torch.randperm(indices.shape[0])
    return indices[shuffled][torch.argsort(indices[shuffled][:, 0], stable=True)], offsets
