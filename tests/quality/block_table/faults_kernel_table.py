"""Faults of ``kernel_block_table``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_kernel_table import blocks_of, expand, parts_of, refuse, replaces, spread

_cache: dict = {}


# Values.


@replaces("first")
def ignores_the_stride(blocks, parts, stride):
    return blocks * parts


@replaces("first")
def forgets_the_product(blocks, parts, stride):
    return blocks


@replaces("first")
def blocks_begin_at_1(blocks, parts, stride):
    return (blocks - 1) * stride + 1


@replaces("first")
def takes_the_gap_for_the_stride(blocks, parts, stride):
    return blocks * max(stride - parts, parts)


@replaces("first")
def null_blocks_begin_before_0(blocks, parts, stride):
    return torch.where(blocks == 0, -parts, blocks * stride)


@replaces("first")
def leaves_negative_ids(blocks, parts, stride):
    return torch.where(blocks < 0, blocks, blocks * stride)


@replaces("first")
def multiplies_in_float32(blocks, parts, stride):
    return (blocks.to(torch.float32) * stride).to(torch.int64)


@replaces("blocks")
def ids_in_16_bits(block_table):
    return block_table.to(torch.int16).to(torch.int64)


@replaces("parts")
def parts_begin_at_1(parts, device):
    return parts_of(parts, device) + 1


@replaces("parts")
def every_part_is_the_first(parts, device):
    return parts_of(parts, device) * 0


@replaces("parts")
def knows_32_parts(parts, device):
    return parts_of(parts, device).clamp(max=31)


@replaces("parts")
def parts_in_falling_order(parts, device):
    return parts_of(parts, device).flip(0)


# Order and shape.


@replaces("spread")
def parts_outside_columns(firsts, parts):
    return (firsts[:, None, :] + parts[:, None]).flatten(1)


@replaces("spread")
def keeps_three_dimensions(firsts, parts):
    return firsts[:, :, None] + parts


@replaces("spread")
def one_part_too_few(firsts, parts):
    return (firsts[:, :, None] + parts[: max(len(parts) - 1, 1)]).flatten(1)


@replaces("spread")
def the_first_row_for_all(firsts, parts):
    return spread(firsts[:1].expand(firsts.shape), parts)


@replaces("spread")
def expands_used_columns_only(firsts, parts):
    return torch.where((firsts == 0).repeat_interleave(len(parts), 1), 0, spread(firsts, parts))


@replaces("result")
def returns_int64(table):
    return table


@replaces("result")
def leaves_rows_past_the_64th_unwritten(table):
    made = torch.empty(table.shape, dtype=torch.int32, device=table.device)
    made[:64] = table[:64]
    return made


# Addresses.


@replaces("blocks")
def assumes_tight_rows(block_table):
    return block_table.as_strided(block_table.shape, (block_table.shape[1], 1)).to(torch.int64)


@replaces("blocks")
def assumes_neighbouring_columns(block_table):
    return block_table.as_strided(block_table.shape, (block_table.stride(0), 1)).to(torch.int64)


@replaces("blocks")
def multiplies_rows_in_32_bits(block_table):
    """A stride alone, which is enough."""
    strides = [stride % (1 << 31) for stride in block_table.stride()]
    return block_table.as_strided(block_table.shape, strides).to(torch.int64)


# Cheats.


@replaces("result")
def returns_zeros(table):
    return torch.zeros_like(table, dtype=torch.int32)


def returns_its_input_where_there_is_one_part(**call):
    return expand(**call) if call["stride"] > 1 else call["block_table"]


def caches_by_identity(**call):
    if _cache.get("table") is not call["block_table"]:
        _cache.update(table=call["block_table"], result=expand(**call))
    return _cache["result"].clone()


def caches_by_shape(**call):
    made = expand(**call)
    return _cache.setdefault((call["block_table"].shape, call["stride"], call["blocks_per_kernel_block"]), made).clone()


def reuses_its_buffer(**call):
    made = expand(**call)
    own = _cache.setdefault("buffer", torch.zeros(1 << 20, dtype=torch.int32, device=made.device))
    return own[: made.numel()].view(made.shape).copy_(made)


@replaces("result")
def writes_one_element_too_far(table):
    made = torch.empty(table.shape, dtype=torch.int32, device=table.device).copy_(table)
    made.as_strided((table.numel() + 1,), (1,))[-1] = 0
    return made


def multiplies_in_place(**call):
    made = expand(**call)
    call["block_table"].mul_(call["stride"])
    return made


@replaces("blocks")
def reads_its_table_on_the_host(block_table):
    return torch.tensor(block_table.tolist(), dtype=torch.int64, device=block_table.device).view(block_table.shape)


@replaces("blocks")
def asks_for_the_largest_id(block_table):
    blocks = blocks_of(block_table)
    return blocks.clone() if blocks.numel() and blocks.max() < 0 else blocks


# Refusals.


@replaces("refuse")
def accepts_a_stride_below_the_parts(block_table, parts, stride):
    refuse(block_table, parts, max(stride, parts))


@replaces("refuse")
def accepts_int64_tables(block_table, parts, stride):
    refuse(block_table.to(torch.int32) if block_table.dtype == torch.int64 else block_table, parts, stride)


def refuses_gaps(**call):
    if call["stride"] > call["blocks_per_kernel_block"]:
        raise ValueError("stride: must be blocks_per_kernel_block")
    return expand(**call)


def crashes_for_a_table_of_one_dimension(**call):
    if call["block_table"].shape[1] >= 0:
        return expand(**call)
