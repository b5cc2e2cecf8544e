"""A correct ``kernel_block_table`` in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch


def refuse(block_table, parts, stride):
    """Everything that is wrong by the text."""
    if block_table.dim() != 2 or block_table.dtype != torch.int32:
        raise ValueError("block_table: must be int32 [R, M]")
    if not 1 <= parts <= 1 << 31 or stride < parts:
        raise ValueError("stride: must be at least blocks_per_kernel_block, and that at least 1")


def blocks_of(block_table):
    """The table's ids, wide enough for a product."""
    return block_table.to(torch.int64)


def first_of(blocks, parts, stride):
    """The first kernel block of each block."""
    return blocks * stride


def parts_of(parts, device):
    """Kernel blocks of one block, from its first one on."""
    return torch.arange(parts, device=device)


def spread(firsts, parts):
    """Kernel blocks side by side."""
    return (firsts[:, :, None] + parts).flatten(1)


def result(table):
    """The kernel table as it is returned."""
    return table.to(torch.int32)


@dataclass(frozen=True)
class Steps:
    """How a table is expanded."""

    refuse: Callable[..., Any] = refuse
    blocks: Callable[..., Any] = blocks_of
    first: Callable[..., Any] = first_of
    parts: Callable[..., Any] = parts_of
    spread: Callable[..., Any] = spread
    result: Callable[..., Any] = result


def expand(steps=Steps(), /, *, block_table, blocks_per_kernel_block, stride):  # frozen
    """All steps together."""
    steps.refuse(block_table, blocks_per_kernel_block, stride)
    firsts = steps.first(steps.blocks(block_table), blocks_per_kernel_block, stride)
    parts = steps.parts(blocks_per_kernel_block, block_table.device)
    return steps.result(steps.spread(firsts, parts))


def replaces(step):
    """Makes a function that takes a step's place the expansion that has it."""
    return lambda function: partial(expand, Steps(**{step: function}))


def kernel_block_table(*, block_table, blocks_per_kernel_block, stride):
    return expand(block_table=block_table, blocks_per_kernel_block=blocks_per_kernel_block, stride=stride)
