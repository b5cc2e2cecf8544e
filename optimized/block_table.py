"""Block tables of a batch, and tables of the smaller blocks of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from optimized.errors import ContractError
from optimized.gathering import gather
from optimized.launching import device_of, programs_each, step_of
from optimized.refusals import (
    is_int,
    refuse_bad_index,
    refuse_bad_int,
    refuse_bad_ints,
    refuse_bad_sequence,
    refuse_bad_tensor,
    refuse_other_devices,
)

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

# Of the kernel.
_TILE = tl.constexpr(512)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_EXPAND_ARGUMENTS = ["block_table", "row_stride", "column_stride", "kernel_table", "num_columns", "num_parts", "stride"]


def gather_block_tables(
    *,
    block_tables: Sequence[torch.Tensor],
    num_blocks: torch.Tensor,
    idx_mapping: torch.Tensor,
    out: Sequence[torch.Tensor],
) -> tuple[Sequence[torch.Tensor]]:
    """Write the block tables of a batch of ``R`` rows, for ``G`` groups in one launch, and return ``(out,)``.

    Row ``b`` of ``out[g]`` becomes the first ``n`` blocks of request ``idx_mapping[b]`` in group ``g``, where
    ``n = num_blocks[g, idx_mapping[b]]`` clipped to ``[0, M_g]``. All other elements of ``out`` become NULL (0): behind
    those blocks, in the rows past ``R``, and in the rows of requests outside the table (also -1).

    ``block_tables``
        list or tuple of ``G`` int32 tensors ``[max_reqs, M_g]``, any strides.
    ``num_blocks``
        int32 or int64 ``[G, max_reqs]``, any strides.
    ``idx_mapping``
        int32 or int64 ``[R]``, any stride.
    ``out``
        list or tuple of ``G`` int32 tensors ``[padded, M_g]``, any strides, ``padded >= R``.

    Nothing is read on the host, and nothing but the caller's tensors is used, so a captured call can be replayed. More
    than 32 groups take a launch for each 32. Compiled once for up to 8 groups and once for more, for each pair of
    dtypes. Any values on the device are memory-safe.

    Refused (:class:`ContractError`) before anything is launched: lists that are none, tensors of another number of
    dimensions or dtype, numbers of groups, requests, columns or padded rows that disagree, fewer padded rows than
    ``R``, tensors on several devices. ``G = 0`` is legal, and every other count may be 0 too.

    Source of the definition: contracts.md, section 4.2.
    """
    _refuse_bad_gather(block_tables, num_blocks, idx_mapping, out)
    gather(block_tables, num_blocks, idx_mapping, out)
    return (out,)


def gather_block_tables_windowed(
    *,
    block_tables: Sequence[torch.Tensor],
    num_blocks: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    window_reach: Sequence[int] | torch.Tensor,
    block_sizes: Sequence[int] | torch.Tensor,
    out: Sequence[torch.Tensor],
) -> tuple[Sequence[torch.Tensor]]:
    """:func:`gather_block_tables` without the blocks that a sliding window has left behind; returns ``(out,)``.

    In group ``g`` with ``window_reach[g] > 0``, columns below
    ``max(num_computed_tokens[idx_mapping[b]] - window_reach[g], 0) // block_sizes[g]`` become NULL too.

    ``num_computed_tokens``
        int32 or int64 ``[max_reqs]``, in tokens, by request; any stride.
    ``window_reach``, ``block_sizes``
        ``G`` ints each, on the host: tokens, at least 0 (0: no window), and tokens a block, at least 1. Lists, tuples,
        or int32 or int64 tensors on the CPU.

    Refused besides what :func:`gather_block_tables` refuses: ``num_computed_tokens`` of another number of dimensions,
    dtype or size, and for ``window_reach`` and ``block_sizes`` another type, numbers out of range, another size, and
    tensors that are not on the CPU.

    Source of the definition: contracts.md, section 4.6.
    """
    _refuse_bad_gather(block_tables, num_blocks, idx_mapping, out)
    refuse_bad_index("num_computed_tokens", num_computed_tokens)
    if num_computed_tokens.numel() != num_blocks.shape[1]:
        rule = f"the size must be the number of requests in num_blocks, {num_blocks.shape[1]}"
        raise ContractError("num_computed_tokens", num_computed_tokens.numel(), rule)
    refuse_other_devices(num_blocks.device, [("num_computed_tokens", num_computed_tokens)])
    reaches = _one_int_a_group("window_reach", window_reach, 0, len(block_tables))
    sizes = _one_int_a_group("block_sizes", block_sizes, 1, len(block_tables))
    gather(block_tables, num_blocks, idx_mapping, out, num_computed_tokens, list(zip(reaches, sizes, strict=True)))
    return (out,)


def kernel_block_table(*, block_table: torch.Tensor, blocks_per_kernel_block: int, stride: int) -> tuple[torch.Tensor]:
    """Return ``(kernel_table,)``: each block of a table as the ``k`` smaller blocks that a kernel works on.

    Column ``c * k + j`` is ``block_table[r, c] * stride + j`` for ``0 <= j < k``. Every column is expanded: the NULL
    block becomes ``0..k - 1``, and negative ids follow the formula too. Numbers that int32 cannot hold wrap around.

    ``block_table``
        int32 ``[R, M]``, any strides.
    ``blocks_per_kernel_block``
        ``k``, an ``int`` in ``1..2**31``. Like the stride, it is no compile-time size.
    ``stride``
        an ``int`` of at least ``k``, in kernel blocks: from one block of the table to the next.
    ``kernel_table``
        int32 ``[R, M * k]``, a new contiguous tensor on the device of ``block_table``.

    Refused (:class:`ContractError`) before anything is allocated: a table of another number of dimensions or dtype,
    ints out of range (a ``bool`` is no ``int``).

    Source of the definition: contracts.md, section 4.4.
    """
    refuse_bad_tensor("block_table", block_table, 2, torch.int32)
    refuse_bad_int("blocks_per_kernel_block", blocks_per_kernel_block, 1)
    if blocks_per_kernel_block > _INT32_MAX + 1:
        # Not even the NULL block's last kernel block would fit.
        raise ContractError("blocks_per_kernel_block", blocks_per_kernel_block, "it must be at most 2**31")
    if not is_int(stride) or stride < blocks_per_kernel_block:
        rule = f"it must be an int of at least blocks_per_kernel_block, {blocks_per_kernel_block}"
        raise ContractError("stride", stride, rule)
    num_rows, num_columns = block_table.shape
    width = num_columns * blocks_per_kernel_block
    kernel_table = block_table.new_empty((num_rows, width))
    if kernel_table.numel():
        strides = step_of(block_table, 0), step_of(block_table, 1)
        # With a longer stride, only the NULL block has kernel blocks that fit int32, and no use for the stride.
        numbers = width, blocks_per_kernel_block, min(stride, _INT64_MAX)
        with device_of(block_table):
            _expand_kernel[(num_rows, programs_each(num_rows, width, _TILE.value))](
                block_table, *strides, kernel_table, *numbers, num_warps=1
            )
    return (kernel_table,)


def _refuse_bad_gather(
    block_tables: Sequence[torch.Tensor],
    num_blocks: torch.Tensor,
    idx_mapping: torch.Tensor,
    out: Sequence[torch.Tensor],
) -> None:
    for name, tables in (("block_tables", block_tables), ("out", out)):
        refuse_bad_sequence(name, tables)
        for table in tables:
            refuse_bad_tensor(name, table, 2, torch.int32)
    refuse_bad_index("num_blocks", num_blocks, dimensions=2)
    refuse_bad_index("idx_mapping", idx_mapping)
    num_groups, num_requests = num_blocks.shape
    for name, tables in (("block_tables", block_tables), ("out", out)):
        if len(tables) != num_groups:
            raise ContractError(name, len(tables), f"the groups must be those of num_blocks, {num_groups}")
        refuse_other_devices(num_blocks.device, ((name, table) for table in tables))
    refuse_other_devices(num_blocks.device, [("idx_mapping", idx_mapping)])
    num_rows = idx_mapping.numel()
    for table, rows in zip(block_tables, out, strict=True):
        shape = tuple(rows.shape)
        if table.shape[0] != num_requests:
            rule = f"the rows must be those of num_blocks, {num_requests}"
            raise ContractError("block_tables", tuple(table.shape), rule)
        if shape[1] != table.shape[1]:
            raise ContractError("out", shape, f"the columns must be those of the group's table, {table.shape[1]}")
        if shape[0] != out[0].shape[0]:
            raise ContractError("out", shape, f"the rows must be those of the first group, {out[0].shape[0]}")
        if shape[0] < num_rows:
            raise ContractError("out", shape, f"the rows must be at least those of idx_mapping, {num_rows}")


def _one_int_a_group(name: str, values: Sequence[int] | torch.Tensor, least: int, num_groups: int) -> Sequence[int]:
    if isinstance(values, torch.Tensor):
        refuse_bad_index(name, values)
        if not values.is_cpu:
            raise ContractError(name, str(values.device), "it must be on the CPU")
        values = values.tolist()
    refuse_bad_ints(name, values, least)
    if len(values) != num_groups:
        raise ContractError(name, len(values), f"there must be one a group, {num_groups}")
    return values


@triton.jit(do_not_specialize=_EXPAND_ARGUMENTS, do_not_specialize_on_alignment=_EXPAND_ARGUMENTS)
def _expand_kernel(
    block_table,
    row_stride: tl.int64,
    column_stride: tl.int64,
    kernel_table,
    num_columns: tl.int64,
    num_parts: tl.int64,
    stride: tl.int64,
):
    """One row a program, which writes ``num_columns``, ``num_parts`` for each block; programs of axis 1 share them."""
    row = tl.program_id(0).to(tl.int64)
    num_parts, stride = tl.cast(num_parts, tl.int64), tl.cast(stride, tl.int64)
    places = tl.arange(0, _TILE)
    column = tl.program_id(1).to(tl.int64) * _TILE
    while column < num_columns:
        inside = column + places < num_columns
        block = column // num_parts
        # From that block's first column on, 32 bits do: a block has at most 2**31 columns.
        offsets = (column - block * num_parts + places).to(tl.uint32)
        steps = offsets // num_parts.to(tl.uint32)
        parts = (offsets - steps * num_parts.to(tl.uint32)).to(tl.int64)
        source = block_table + row * row_stride + (block + steps.to(tl.int64)) * column_stride
        blocks = tl.load(source, mask=inside, other=0).to(tl.int64)
        values = (blocks * stride + parts).to(tl.int32)
        tl.store(kernel_table + row * num_columns + column + places, values, mask=inside)
        column += tl.num_programs(1).to(tl.int64) * _TILE
