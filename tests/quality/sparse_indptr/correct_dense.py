"""Correct ``dense_page_indices`` in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)
PAD = -1


def refuse(call):
    """Everything that is wrong by the text."""
    if call.block_table.dim() != 2 or call.block_table.dtype != torch.int32:
        raise ValueError("block_table: must be int32 [R, M]")
    if call.seq_lens.dim() != 1 or call.seq_lens.dtype not in INTEGERS:
        raise ValueError("seq_lens: must be int32 or int64 [R]")
    if call.seq_lens.shape[0] != call.block_table.shape[0]:
        raise ValueError("seq_lens: must have an element for each row of block_table")
    refuse_buffer(call)


def refuse_buffer(call):
    if call.kernel_block_size < 1:
        raise ValueError("kernel_block_size: must be at least 1")
    if call.paged_kv_indices.dim() != 1 or call.paged_kv_indices.dtype != torch.int32:
        raise ValueError("paged_kv_indices: must be int32 [capacity]")
    if call.paged_kv_indices.shape[0] < call.block_table.numel() * call.kernel_block_size:
        raise ValueError("paged_kv_indices: must have an element for each token of each row")


def lengths_of(call):
    """Tokens of each request."""
    return call.seq_lens.to(torch.int64)


def clipped(call, lengths):
    """Not less than nothing, not more than the row holds."""
    return lengths.clamp(0, call.block_table.shape[1] * call.kernel_block_size)


def starts_of(call, lengths):
    """First element of each request."""
    starts = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=lengths.device)
    starts[1:] = lengths.cumsum(0)
    return starts


def elements_of(call):
    return torch.arange(call.paged_kv_indices.shape[0], device=call.paged_kv_indices.device)


def requests_of(call, starts):
    """The request that owns each element; any behind the last one."""
    owners = torch.searchsorted(starts[1:].contiguous(), elements_of(call), right=True)
    return owners.clamp(max=call.block_table.shape[0] - 1)


def tokens_of(call, starts, requests):
    """Which of its request's tokens each element is."""
    return elements_of(call) - starts[requests]


def table_of(call):
    return call.block_table


def columns_of(call, tokens):
    """The column of the table in which each token's block stands."""
    return tokens // call.kernel_block_size


def slots_of(call, blocks, tokens):
    """Where tokens lie in the cache."""
    return blocks.to(torch.int64) * call.kernel_block_size + tokens % call.kernel_block_size


def padded(call, starts, slots):
    """Nothing behind the last request."""
    return torch.where(elements_of(call) < starts[-1], slots, PAD)


def write(call, slots):
    call.paged_kv_indices.copy_(slots.to(torch.int32))


def result(call, starts):
    """The starts and the last pages' lengths."""
    return starts.to(torch.int32), torch.ones(starts.shape[0] - 1, dtype=torch.int32, device=starts.device)


@dataclass(frozen=True)
class Steps:
    """How slots are found."""

    refuse: Callable[..., Any] = refuse
    lengths: Callable[..., Any] = lengths_of
    clipped: Callable[..., Any] = clipped
    starts: Callable[..., Any] = starts_of
    requests: Callable[..., Any] = requests_of
    tokens: Callable[..., Any] = tokens_of
    table: Callable[..., Any] = table_of
    columns: Callable[..., Any] = columns_of
    slots: Callable[..., Any] = slots_of
    padded: Callable[..., Any] = padded
    write: Callable[..., Any] = write
    result: Callable[..., Any] = result


def expand(steps=Steps(), /, **call):  # frozen
    """All steps together."""
    call = SimpleNamespace(**call)
    steps.refuse(call)
    starts = steps.starts(call, steps.clipped(call, steps.lengths(call)))
    if call.block_table.numel():
        requests = steps.requests(call, starts)
        tokens = steps.tokens(call, starts, requests)
        # What stands behind the last request is looked up somewhere in the table, and replaced.
        columns = steps.columns(call, tokens).clamp(0, call.block_table.shape[1] - 1)
        slots = steps.slots(call, steps.table(call)[requests, columns], tokens)
    else:
        slots = torch.full_like(elements_of(call), PAD)
    steps.write(call, steps.padded(call, starts, slots))
    return steps.result(call, starts)


def replaces(step):
    """Makes a function that takes a step's place the expansion that has it."""
    return lambda function: partial(expand, Steps(**{step: function}))


def dense_page_indices(*, block_table, seq_lens, kernel_block_size, paged_kv_indices):
    return expand(**locals())
