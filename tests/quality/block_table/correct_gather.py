"""Correct ``gather_block_tables``, windowed or not, in small steps. Planted faults replace a step or wrap the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)
FLAT = "idx_mapping: must be [R], num_blocks [G, max_reqs], int32 or int64"


@dataclass
class Group:
    """What the steps look at: the arguments of a call, of which the tables of one group."""

    number: int
    table: torch.Tensor
    buffer: torch.Tensor
    call: dict[str, Any]

    @property
    def width(self) -> int:
        return self.table.shape[1]


def refuse(block_tables, num_blocks, idx_mapping, out):
    """Everything that is wrong by the text of 4.2."""
    if any(table.dim() != 2 or table.dtype != torch.int32 for table in (*block_tables, *out)):
        raise ValueError("block_tables, out: must be int32, and have two dimensions each")
    if idx_mapping.dim() != 1 or num_blocks.dim() != 2 or not {idx_mapping.dtype, num_blocks.dtype} <= set(INTEGERS):
        raise ValueError(FLAT)
    if not len(block_tables) == len(out) == num_blocks.shape[0]:
        raise ValueError("out: must have as many groups as block_tables and num_blocks")
    for table, buffer in zip(block_tables, out, strict=True):
        if table.shape[0] != num_blocks.shape[1] or buffer.shape[1] != table.shape[1]:
            raise ValueError("block_tables: must have the requests of num_blocks and the columns of out")
        if buffer.shape[0] != out[0].shape[0] or buffer.shape[0] < idx_mapping.shape[0]:
            raise ValueError("out: must have one number of rows, and one for each of idx_mapping")


def refuse_windows(num_blocks, num_computed_tokens, window_reach, block_sizes):
    """What else is wrong by the text of 4.6."""
    if num_computed_tokens.dtype not in INTEGERS or num_computed_tokens.shape != num_blocks.shape[1:]:
        raise ValueError("num_computed_tokens: must be [max_reqs], int32 or int64")
    if not len(window_reach) == len(block_sizes) == num_blocks.shape[0]:
        raise ValueError("window_reach, block_sizes: must have one number a group")
    if min(window_reach, default=0) < 0 or min(block_sizes, default=1) < 1:
        raise ValueError("window_reach: must be at least 0, and block_sizes at least 1")


def refuse_call(call):
    refuse(*(call[name] for name in ("block_tables", "num_blocks", "idx_mapping", "out")))
    if "window_reach" in call:
        refuse_windows(*(call[name] for name in ("num_blocks", "num_computed_tokens", "window_reach", "block_sizes")))


def requests_of(group):
    """The request of each row of the batch."""
    return group.call["idx_mapping"].to(torch.int64)


def known(group, requests):
    """Which of them there are."""
    return (requests >= 0) & (requests < group.table.shape[0])


def counts_of(group, requests):
    """Blocks of each row; its request is known."""
    return group.call["num_blocks"][group.number][requests]


def first_of(group, requests):
    """The first column that a window has not left behind."""
    reach = group.call.get("window_reach", (0,) * (group.number + 1))[group.number]
    if reach == 0:
        return requests.new_zeros(requests.shape)
    computed = group.call["num_computed_tokens"][requests].to(torch.int64).clamp(min=0)
    return (computed - reach).clamp(min=0) // group.call["block_sizes"][group.number]


def owned(columns, first, counts):
    """Which columns show a block."""
    return (columns >= first) & (columns < counts)


def blocks_of(group, requests):
    """Whole rows of the group's table; the requests are known."""
    return group.table[requests]


def select(group, shown, blocks):
    """Rows of the batch."""
    return torch.where(shown, blocks, 0)


def write(group, rows):
    """The batch's rows, and NULL behind them."""
    group.buffer.zero_()
    group.buffer[: rows.shape[0]] = rows


@dataclass(frozen=True)
class Steps:
    """How a group is gathered."""

    refuse: Callable[..., Any] = refuse_call
    requests: Callable[..., Any] = requests_of
    known: Callable[..., Any] = known
    counts: Callable[..., Any] = counts_of
    first: Callable[..., Any] = first_of
    owned: Callable[..., Any] = owned
    blocks: Callable[..., Any] = blocks_of
    select: Callable[..., Any] = select
    write: Callable[..., Any] = write
    order: Callable[..., Any] = field(default=list)


def gather(steps=Steps(), /, **call):  # frozen
    """All steps together, for both contracts."""
    steps.refuse(call)
    for number in steps.order(range(len(call["out"]))):
        gather_group(steps, Group(number, call["block_tables"][number], call["out"][number], call))


def gather_group(steps, group):
    if not group.table.shape[0]:
        group.buffer.zero_()
        return
    requests = steps.requests(group)
    there = steps.known(group, requests)
    requests = torch.where(there, requests, 0)
    columns = torch.arange(group.width, device=group.table.device)
    shown = steps.owned(columns, steps.first(group, requests)[:, None], steps.counts(group, requests)[:, None])
    steps.write(group, steps.select(group, shown & there[:, None], steps.blocks(group, requests)))


def replaces(step):
    """Makes a function that takes a step's place the gather that has it."""
    return lambda function: partial(gather, Steps(**{step: function}))


def gather_block_tables(*, block_tables, num_blocks, idx_mapping, out):
    gather(block_tables=block_tables, num_blocks=num_blocks, idx_mapping=idx_mapping, out=out)


def gather_block_tables_windowed(**call):
    gather(**call)
