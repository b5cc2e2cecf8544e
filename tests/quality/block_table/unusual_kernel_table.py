"""Correct kernel block tables of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_kernel_table import expand, refuse, replaces

_cache: dict = {}


def returns_a_mapping(**call):
    return {"kernel_table": expand(**call), "stride": call["stride"]}


def returns_a_list(**call):
    return [expand(**call)]


@replaces("spread")
def repeats_columns(firsts, parts):
    count = parts.shape[0]
    return firsts.repeat_interleave(count, 1) + parts.repeat(firsts.shape[1])


@replaces("spread")
def goes_part_by_part(firsts, parts):
    """The last part first, each into every so many columns."""
    table = torch.empty((firsts.shape[0], firsts.shape[1] * parts.shape[0]), dtype=torch.int64, device=firsts.device)
    for part in reversed(range(parts.shape[0])):
        table[:, part :: parts.shape[0]] = firsts + part
    return table


@replaces("result")
def returns_rows_of_a_wider_buffer(table):
    rows, columns = table.shape
    buffer = torch.empty((rows, columns + 5), dtype=torch.int32, device=table.device)
    return buffer[:, 2 : columns + 2].copy_(table)


@replaces("result")
def returns_a_transposed_buffer(table):
    buffer = torch.empty((table.shape[1], table.shape[0]), dtype=torch.int32, device=table.device)
    return buffer.copy_(table.T).T


def wraps_in_32_bits(*, block_table, blocks_per_kernel_block, stride):
    """Every product of int32 that fits is right in int32 too."""
    refuse(block_table, blocks_per_kernel_block, stride)
    parts = torch.arange(blocks_per_kernel_block, dtype=torch.int32, device=block_table.device)
    return (block_table[:, :, None] * stride + parts).flatten(1)


def keeps_a_workspace(**call):
    """A buffer that lives on between calls; what is returned is a copy."""
    made = expand(**call)
    own = _cache.setdefault(made.shape, torch.empty(made.shape, dtype=torch.int32, device=made.device))
    return own.copy_(made).clone()
