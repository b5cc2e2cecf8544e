"""Correct implementations of ``causal_conv1d_metadata`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

from itertools import chain, repeat

import torch
from correct_conv import causal_conv1d_metadata, counts_of, refuse

_cache: dict = {}


def returns_a_mapping(**inputs):
    names = ("batch_ptr", "token_chunk_offset_ptr", "total")
    return dict(zip(names, causal_conv1d_metadata(**inputs), strict=True)) | {"nums": None}


def returns_columns_of_one_table(**inputs):
    """Both columns share one allocation, with a row stride of 3."""
    batch, blocks, total = causal_conv1d_metadata(**inputs)
    table = torch.empty((batch.numel(), 3), dtype=torch.int32)
    return table[:, 0].copy_(batch), table[:, 2].copy_(blocks), total


def grows_its_columns(*, query_start_loc, block_m):
    """Starts from 2,048 programs, and appends where these are not enough."""
    refuse(query_start_loc, block_m)
    counts = counts_of(query_start_loc, block_m)
    total = sum(counts)
    columns = torch.full((2, 2048), -1, dtype=torch.int32)
    if 2 * total > 2048:
        columns = torch.cat([columns, columns.new_full((2, 2 * total - 2048), -1)], 1)
    columns[0, :total] = torch.tensor(list(chain.from_iterable(map(repeat, range(len(counts)), counts)))).to(
        torch.int32
    )
    columns[1, :total] = torch.tensor(list(chain.from_iterable(map(range, counts)))).to(torch.int32)
    return (*columns.unbind(), total)


def caches_by_content(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    key = (tuple(counts_of(query_start_loc, block_m)), block_m)
    if key not in _cache:
        _cache[key] = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    batch, blocks, total = _cache[key]
    return batch.clone(), blocks.clone(), total


class Planner:
    """A callable object."""

    def __call__(self, **inputs):
        return list(causal_conv1d_metadata(**inputs))


planner = Planner()
