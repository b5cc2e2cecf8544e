"""Slot mappings: where in the KV cache the entry of each token of a batch is written.

Every row of the batch has programs of its own, which share the row's tokens, and all programs share the padding behind
the last token. Of long rows and of padding the host knows only that they fit the buffer, so a row gets as many programs
as would divide the whole buffer among them, as long as the launch stays small.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from optimized.dividing import unsigned
from optimized.errors import PAD_SLOT_ID, ContractError
from optimized.launching import device_of, programs_each, step_of
from optimized.refusals import refuse_bad_index, refuse_bad_int, refuse_bad_tensor, refuse_other_devices

_INT64_MAX = 2**63 - 1
_BEYOND = 2**63  # a count of tokens that no position reaches

# Of the kernel.
_TILE = tl.constexpr(256)
_PAD = tl.constexpr(PAD_SLOT_ID)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_ARGUMENTS = ["block_table", "row_stride", "column_stride", "num_requests", "num_columns", "idx_mapping", "idx_stride"]
_ARGUMENTS += ["query_start_loc", "start_stride", "positions", "position_stride", "slots", "slot_stride", "num_rows"]
_ARGUMENTS += ["num_tokens", "capacity", "cp_rank"]


def slot_mapping(
    *,
    block_table: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    slot_mapping: torch.Tensor,
) -> tuple[torch.Tensor]:
    """Write the slots of the ``T`` tokens of ``R`` batch rows, in one launch, and return ``(slot_mapping,)``.

    Batch row ``b`` is request ``idx_mapping[b]`` and holds tokens ``query_start_loc[b]`` to ``query_start_loc[b + 1]``.
    Its token at position ``p`` gets slot ``block_table[idx_mapping[b], p // B] * B + p % B``, ``B`` the block size;
    with ``cp_size > 1`` the local position takes the place of ``p``.

    ``block_table``
        int32 ``[max_reqs, M]``, any strides, indexed by request. The formula holds for any id, NULL and negative ones
        included.
    ``idx_mapping``, ``query_start_loc``, ``positions``
        int32 or int64 ``[R]``, ``[R + 1]``, ``[T]``, any strides.
    ``block_size``, ``cp_size``, ``cp_interleave``
        ints of at least 1: tokens a block, ranks, consecutive tokens that one rank owns. Compile-time sizes.
    ``cp_rank``
        an ``int`` in ``0..cp_size - 1``.
    ``slot_mapping``
        int64 ``[capacity]``, any stride, ``capacity >= T``. Elements before ``query_start_loc[0]`` keep their bytes;
        elements from ``min(query_start_loc[R], T)`` to the end become -1, and so do tokens whose request is outside the
        table (also -1), whose position is negative or past the row's columns, or that another rank owns.

    Nothing is read on the host. Any values on the device are memory-safe; starts that decrease or are negative give
    some slots.

    Refused (:class:`ContractError`) before anything is launched: tensors of another number of dimensions or dtype, ints
    out of range (a ``bool`` is no ``int``), with ``cp_size > 1`` a block size that is no multiple of the interleave,
    starts that are not ``R + 1``, a capacity below ``T``, tensors on several devices.

    Source of the definition: contracts.md, section 4.3, and vLLM's `compute_slot_mappings`.
    """
    _refuse_bad_tensors(block_table, idx_mapping, query_start_loc, positions, slot_mapping)
    _refuse_bad_parallelism(block_size, cp_size, cp_rank, cp_interleave)
    _refuse_bad_sizes(idx_mapping, query_start_loc, positions, slot_mapping)
    sizes = block_size, cp_size, cp_rank, cp_interleave, block_size
    _launch(block_table, idx_mapping, query_start_loc, positions, slot_mapping, *sizes)
    return (slot_mapping,)


def slot_mapping_hybrid(
    *,
    block_table: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    kernel_block_size: int,
    enabled: bool,
    slot_mapping: torch.Tensor,
) -> tuple[torch.Tensor]:
    """:func:`slot_mapping` where the table holds blocks of another size than the KV-cache manager's.

    Which rank owns a token, and its local position ``l``, follow from ``block_size``; the look-up uses the kernel block
    size ``K``: ``block_table[idx_mapping[b], l // K] * K + l % K``. Returns ``(slot_mapping,)``.

    ``kernel_block_size``
        tokens a block of ``block_table``, an ``int`` of at least 1. A compile-time size.
    ``enabled``
        a ``bool``. ``False``: the whole buffer becomes -1, elements before the first start included.

    Refused besides what :func:`slot_mapping` refuses, also where ``enabled`` is ``False``: a kernel block size that is
    no ``int`` of at least 1, an ``enabled`` that is no ``bool``.

    Source of the definition: contracts.md, section 4.5, and vLLM's `compute_slot_mappings`.
    """
    _refuse_bad_tensors(block_table, idx_mapping, query_start_loc, positions, slot_mapping)
    _refuse_bad_parallelism(block_size, cp_size, cp_rank, cp_interleave)
    refuse_bad_int("kernel_block_size", kernel_block_size, 1)
    if not isinstance(enabled, bool):
        raise ContractError("enabled", enabled, "it must be a bool")
    _refuse_bad_sizes(idx_mapping, query_start_loc, positions, slot_mapping)
    if enabled:
        sizes = block_size, cp_size, cp_rank, cp_interleave, kernel_block_size
        _launch(block_table, idx_mapping, query_start_loc, positions, slot_mapping, *sizes)
    else:
        slot_mapping.fill_(PAD_SLOT_ID)
    return (slot_mapping,)


def _refuse_bad_tensors(
    block_table: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    indices = ("idx_mapping", idx_mapping), ("query_start_loc", query_start_loc), ("positions", positions)
    refuse_bad_tensor("block_table", block_table, 2, torch.int32)
    for name, tensor in indices:
        refuse_bad_index(name, tensor)
    refuse_bad_tensor("slot_mapping", slot_mapping, 1, torch.int64)
    refuse_other_devices(block_table.device, (*indices, ("slot_mapping", slot_mapping)))


def _refuse_bad_parallelism(block_size: int, cp_size: int, cp_rank: int, cp_interleave: int) -> None:
    refuse_bad_int("block_size", block_size, 1)
    refuse_bad_int("cp_size", cp_size, 1)
    refuse_bad_int("cp_rank", cp_rank, 0)
    refuse_bad_int("cp_interleave", cp_interleave, 1)
    if cp_rank >= cp_size:
        raise ContractError("cp_rank", cp_rank, f"it must be below cp_size, {cp_size}")
    if cp_size > 1 and block_size % cp_interleave != 0:
        rule = f"it must be a multiple of cp_interleave, {cp_interleave}, where cp_size is above 1"
        raise ContractError("block_size", block_size, rule)


def _refuse_bad_sizes(
    idx_mapping: torch.Tensor, query_start_loc: torch.Tensor, positions: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    if query_start_loc.numel() != idx_mapping.numel() + 1:
        rule = f"the size must be one more than that of idx_mapping, {idx_mapping.numel()}"
        raise ContractError("query_start_loc", query_start_loc.numel(), rule)
    if slot_mapping.numel() < positions.numel():
        rule = f"the size must be at least that of positions, {positions.numel()}"
        raise ContractError("slot_mapping", slot_mapping.numel(), rule)


def _launch(
    block_table: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    kernel_block_size: int,
) -> None:
    num_rows, capacity = idx_mapping.numel(), slot_mapping.numel()
    if capacity == 0:
        return
    if cp_size == 1:
        block_size = cp_interleave = 1  # Nothing is made of them, and so nothing is compiled for them.
    owners = max(num_rows, 1)
    with device_of(block_table):
        _slot_kernel[(owners, programs_each(owners, capacity, _TILE.value))](
            block_table,
            step_of(block_table, 0),
            step_of(block_table, 1),
            *block_table.shape,
            idx_mapping,
            step_of(idx_mapping, 0),
            query_start_loc,
            step_of(query_start_loc, 0),
            positions,
            step_of(positions, 0),
            slot_mapping,
            step_of(slot_mapping, 0),
            num_rows,
            positions.numel(),
            capacity,
            cp_rank if cp_rank <= _INT64_MAX else -1,  # Such a rank owns no token that int64 can number.
            *(min(size, _BEYOND) for size in (block_size, block_size * cp_size, cp_size)),
            *(min(size, _BEYOND) for size in (cp_interleave, cp_interleave * cp_size, kernel_block_size)),
            num_warps=1,
        )


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def _slot_kernel(
    block_table,
    row_stride: tl.int64,
    column_stride: tl.int64,
    num_requests: tl.int64,
    num_columns: tl.int64,
    idx_mapping,
    idx_stride: tl.int64,
    query_start_loc,
    start_stride: tl.int64,
    positions,
    position_stride: tl.int64,
    slots,
    slot_stride: tl.int64,
    num_rows: tl.int64,
    num_tokens: tl.int64,
    capacity: tl.int64,
    cp_rank: tl.int64,
    BLOCK_SIZE: tl.constexpr,
    VIRTUAL_BLOCK_SIZE: tl.constexpr,  # of all ranks together
    CP_SIZE: tl.constexpr,
    CP_INTERLEAVE: tl.constexpr,
    ROUND: tl.constexpr,  # tokens until it is the first rank's turn again
    KERNEL_BLOCK_SIZE: tl.constexpr,
):
    """One row of the batch a program; programs of axis 1 share its tokens, and all programs share the padding."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    num_parts = tl.num_programs(1).to(tl.int64)
    last = _existing(tl.load(query_start_loc + num_rows * start_stride), num_tokens)
    places = tl.arange(0, _TILE)
    if row < num_rows:
        request = tl.load(idx_mapping + row * idx_stride).to(tl.int64)
        token = _existing(tl.load(query_start_loc + row * start_stride), num_tokens)
        stop = _existing(tl.load(query_start_loc + (row + 1) * start_stride), num_tokens)
        known = (request >= 0) & (request < num_requests)
        blocks = block_table + tl.where(known, request, 0) * row_stride
        num_columns = tl.where(known, num_columns, 0)
        token += part * _TILE
        while token < stop:
            tokens = token + places
            exists = tokens < stop
            position = tl.load(positions + tokens * position_stride, mask=exists, other=-1)
            owned = position >= 0
            local = tl.maximum(position, 0).to(unsigned(1, position.dtype).dtype)
            if CP_SIZE > 1:
                interleave = unsigned(CP_INTERLEAVE, position.dtype)
                virtual = local // unsigned(VIRTUAL_BLOCK_SIZE, position.dtype)
                offset = local - virtual * unsigned(VIRTUAL_BLOCK_SIZE, position.dtype)
                owned &= (offset // interleave % unsigned(CP_SIZE, position.dtype)).to(tl.int64) == cp_rank
                local = virtual * unsigned(BLOCK_SIZE, position.dtype) + offset % interleave
                local += offset // unsigned(ROUND, position.dtype) * interleave
            column = local // unsigned(KERNEL_BLOCK_SIZE, position.dtype)
            place = (local - column * unsigned(KERNEL_BLOCK_SIZE, position.dtype)).to(tl.uint64)
            found = owned & (column.to(tl.int64) < num_columns)
            block = tl.load(blocks + column.to(tl.int64) * column_stride, mask=found, other=0).to(tl.int64)
            # Bit by bit the same as with signs, and the size may be 2**63.
            slot = block.to(tl.uint64) * unsigned(KERNEL_BLOCK_SIZE, tl.int64) + place
            tl.store(slots + tokens * slot_stride, tl.where(found, slot.to(tl.int64), _PAD), mask=exists)
            token += num_parts * _TILE
    padding = last + (row * num_parts + part) * _TILE
    while padding < capacity:
        tl.store(slots + (padding + places) * slot_stride, _PAD, mask=padding + places < capacity)
        padding += tl.num_programs(0).to(tl.int64) * num_parts * _TILE


@triton.jit
def _existing(start, num_tokens):
    """A start, with tokens that do not exist left out."""
    return tl.minimum(tl.maximum(start.to(tl.int64), 0), num_tokens)
