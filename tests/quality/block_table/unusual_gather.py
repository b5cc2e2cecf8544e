"""Correct gathers of unusual build, windowed or not: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_gather import blocks_of, gather, refuse_call, replaces

_cache: dict = {}


def returns_a_mapping(**call):
    gather(**call)
    return {"out": call["out"], "debug": None}


def returns_its_buffers(**call):
    gather(**call)
    return [call["out"]]


@replaces("order")
def takes_the_last_group_first(groups):
    return groups[::-1]


@replaces("blocks")
def copies_row_by_row(group, requests):
    """Each row selected by a tensor of one element, which no host has to read."""
    rows = [group.table.index_select(0, requests[row : row + 1]) for row in range(requests.shape[0])]
    return torch.cat([group.table[:0], *rows])


@replaces("blocks")
def compares_with_all_requests(group, requests):
    """A matrix of batch rows against requests; sums of one element each, in int64."""
    there = requests[:, None] == torch.arange(group.table.shape[0], device=requests.device)
    columns = [torch.where(there, column, 0).sum(1) for column in group.table.unbind(1)]
    return torch.stack(columns, 1) if columns else blocks_of(group, requests)


@replaces("blocks")
def gathers_from_a_flat_copy(group, requests):
    places = requests[:, None] * group.width + torch.arange(group.width, device=requests.device)
    return torch.take(group.table.contiguous(), places)


def writes_twice(**call):
    """First the rows of other requests, in buffers full of something else."""
    refuse_call(call)
    for buffer in call["out"]:
        buffer.fill_(-7)
    gather(**call | {"idx_mapping": call["idx_mapping"].flip(0)})
    gather(**call)


def keeps_a_workspace(**call):
    """Tables that live on between calls and hold what was gathered before; ``out`` gets a copy."""
    refuse_call(call)
    key = tuple(tuple(buffer.shape) for buffer in call["out"])
    if key not in _cache:
        _cache[key] = [buffer.new_empty(buffer.shape) for buffer in call["out"]]
    gather(**call | {"out": _cache[key]})
    for buffer, own in zip(call["out"], _cache[key], strict=True):
        buffer.copy_(own)


class Gatherer:
    """A callable object that gathers into one wide table of all groups."""

    def __call__(self, **call):
        refuse_call(call)
        buffers = call["out"]
        if buffers:
            wide = torch.empty_like(torch.cat(list(buffers), 1))
            parts = wide.split([buffer.shape[1] for buffer in buffers], 1)
            gather(**call | {"out": parts})
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part)


gatherer = Gatherer()
