"""Correct ``state_columns`` in small steps of plain torch. Planted faults replace a step or wrap the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)
MODES = ("none", "align", "all")


def is_int(value, least):
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def refuse(call):
    """Everything that is wrong by the text of 3.1."""
    table, lengths = call.block_table, call.seq_lens
    if table.dim() != 2 or table.dtype != torch.int32 or lengths.dim() != 1 or lengths.dtype not in INTEGERS:
        raise ValueError("block_table: must be int32 [R, M], and seq_lens [R], int32 or int64")
    if call.mamba_cache_mode not in MODES:
        raise ValueError(f"mamba_cache_mode: {call.mamba_cache_mode} must be one of {MODES}")
    if not is_int(call.block_size, 1) or not is_int(call.num_speculative_blocks, 0):
        raise ValueError("block_size: must be an int of at least 1, num_speculative_blocks of at least 0")
    if lengths.shape[0] != table.shape[0]:
        raise ValueError(f"seq_lens: {lengths.shape[0]} must be the number of rows of block_table")
    if call.mamba_cache_mode == "none" and table.shape[1] <= call.num_speculative_blocks:
        raise ValueError(f"block_table: {table.shape[1]} columns are fewer than 1 + num_speculative_blocks")


def is_aligned(call):
    """Whether columns follow the lengths."""
    return call.mamba_cache_mode != "none"


def lengths_of(call):
    return call.seq_lens.to(torch.int64)


def first_of(call, lengths):
    """The block of the last token."""
    return (lengths.clamp(min=1) - 1) // call.block_size


def columns_of(call, first):
    """The columns of each row, those past it too."""
    return first[:, None] + torch.arange(1 + call.num_speculative_blocks, device=first.device)


def inside(call, columns):
    """Which columns the table has."""
    return columns < call.block_table.shape[1]


def blocks_of(call, columns):
    """Blocks in columns; those that there are not stand for any other one."""
    table = call.block_table
    if not table.shape[1]:
        return torch.zeros_like(columns, dtype=torch.int32)
    return table.gather(1, columns.clamp(0, table.shape[1] - 1))


def select(call, there, blocks):
    """NULL where there is no column."""
    return torch.where(there, blocks, 0)


@dataclass(frozen=True)
class Steps:
    """How columns are found."""

    refuse: Callable[..., Any] = refuse
    aligned: Callable[..., Any] = is_aligned
    lengths: Callable[..., Any] = lengths_of
    first: Callable[..., Any] = first_of
    columns: Callable[..., Any] = columns_of
    inside: Callable[..., Any] = inside
    blocks: Callable[..., Any] = blocks_of
    select: Callable[..., Any] = select


def find_columns(steps=Steps(), /, **inputs):  # frozen
    """All steps together."""
    call = SimpleNamespace(**inputs)
    steps.refuse(call)
    lengths = steps.lengths(call)
    first = steps.first(call, lengths) if steps.aligned(call) else torch.zeros_like(lengths)
    columns = steps.columns(call, first)
    return steps.select(call, steps.inside(call, columns), steps.blocks(call, columns))


def replaces(step):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: partial(find_columns, Steps(**{step: function}))


def state_columns(**inputs):
    return find_columns(**inputs)
