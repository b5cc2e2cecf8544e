"""State columns: which blocks of recurrent state a step reads and writes, and which of its tokens are speculative."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from optimized.column_launches import copy_columns, copy_columns_of_many
from optimized.errors import NULL_BLOCK_ID, ContractError
from optimized.launching import device_of, step_of
from optimized.query_starts import refuse_not_on_cpu, refuse_other_size, starts_from_zero
from optimized.refusals import (
    refuse_bad_index,
    refuse_bad_int,
    refuse_bad_sequence,
    refuse_bad_tensor,
    refuse_other_devices,
)
from optimized.token_partition import partition

_MODES = ("none", "align", "all")
_INT32_MAX = 2**31 - 1

_MOST_COLUMN_PROGRAMS = 64

# Of the kernel.
_TILE = tl.constexpr(256)
_NULL = tl.constexpr(NULL_BLOCK_ID)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_STAGE_ARGUMENTS = ["states", "row_stride", "column_stride", "starts", "start_stride", "accepted", "accepted_stride"]
_STAGE_ARGUMENTS += ["state_buffer", "buffer_row_stride", "buffer_column_stride", "start_buffer", "start_buffer_stride"]
_STAGE_ARGUMENTS += ["accepted_buffer", "accepted_buffer_stride", "num_rows", "num_columns", "batch_size"]


def state_columns(
    *,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    mamba_cache_mode: str,
    block_size: int,
    num_speculative_blocks: int,
) -> tuple[torch.Tensor]:
    """Return ``(state_indices,)``: the ``1 + S`` state blocks of ``R`` requests, consecutive columns of their rows.

    Mode "none": columns ``0..S``, as a view of the table. Modes "align" and "all": columns ``c..c + S`` with
    ``c = max((seq_lens[r] - 1) // block_size, 0)``, new and contiguous, made in one launch.

    ``block_table``
        int32 ``[R, M]``, any strides. Any ids: they are copied.
    ``seq_lens``
        int32 or int64 ``[R]``, in tokens, any stride; in mode "none" never read.
    ``block_size``
        tokens a block of state, an ``int`` of at least 1. A compile-time size.
    ``num_speculative_blocks``
        ``S``, an ``int`` of at least 0. A compile-time size.
    ``state_indices``
        int32 ``[R, 1 + S]``; NULL (0) where the column is past the row.

    Nothing is read on the host. Any values on the device are memory-safe.

    Refused (:class:`ContractError`) before anything is allocated: tensors of another number of dimensions or dtype, an
    unknown mode, ints out of range (a ``bool`` is no ``int``), lengths that are not ``R``, fewer than ``1 + S`` columns
    in mode "none", tensors on two devices.

    Source of the definition: contracts.md, section 3.1.
    """
    _refuse_bad_columns("block_table", [block_table], seq_lens, mamba_cache_mode, block_size, num_speculative_blocks)
    width = 1 + num_speculative_blocks
    if mamba_cache_mode == "none":
        return (block_table[:, :width],)
    state_indices = block_table.new_empty((block_table.shape[0], width))
    copy_columns(block_table, seq_lens, block_size, state_indices)
    return (state_indices,)


def state_columns_many(
    *,
    block_tables: Sequence[torch.Tensor],
    seq_lens: torch.Tensor,
    mamba_cache_mode: str,
    block_size: int,
    num_speculative_blocks: int,
) -> list[torch.Tensor]:
    """Return what :func:`state_columns` gives of each table of a list or tuple, made in one launch for all of them.

    The tables have the same rows, and any columns and strides. The results of modes "align" and "all" are parts of one
    new tensor. More than 32 tables take a launch for each 32. Compiled once for up to 8 tables and once for more.

    Refused besides what :func:`state_columns` refuses of a table: ``block_tables`` that are no list or tuple, tables on
    several devices.
    """
    refuse_bad_sequence("block_tables", block_tables)
    _refuse_bad_columns("block_tables", block_tables, seq_lens, mamba_cache_mode, block_size, num_speculative_blocks)
    width = 1 + num_speculative_blocks
    if mamba_cache_mode == "none":
        return [table[:, :width] for table in block_tables]
    state_indices = seq_lens.new_empty((len(block_tables), seq_lens.numel(), width), dtype=torch.int32)
    copy_columns_of_many(block_tables, seq_lens, block_size, state_indices)
    return list(state_indices.unbind())


def stage_decode_state(
    *,
    state_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    batch_size: int,
    state_buffer: torch.Tensor,
    query_start_loc_buffer: torch.Tensor,
    num_accepted_buffer: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy the ``D`` rows of a step into the buffers of a full CUDA graph, in one launch, and pad them.

    Rows ``D..batch_size - 1`` get the NULL block (0), the last query start (``query_start_loc[0]`` without rows) and 1
    accepted token; what the buffers hold past ``batch_size`` keeps its bytes. Returns the views
    ``state_buffer[:batch_size]``, ``query_start_loc_buffer[:batch_size + 1]`` and ``num_accepted_buffer[:batch_size]``.

    ``state_indices``
        int32 ``[D, 1 + S]``, any strides. Any ids.
    ``query_start_loc``, ``num_accepted_tokens``
        int32 or int64 ``[D + 1]`` and ``[D]``, any strides. Numbers that int32 cannot hold wrap around.
    ``batch_size``
        an ``int``, ``D <= batch_size <= cap``.
    ``state_buffer``, ``query_start_loc_buffer``, ``num_accepted_buffer``
        int32 ``[cap, 1 + S]``, ``[cap + 1]`` and ``[cap]``, any strides.

    Nothing is read on the host, and nothing but the caller's tensors is used, so a captured call can be replayed.

    Refused (:class:`ContractError`) before anything is launched: tensors of another number of dimensions or dtype; a
    batch size that is no ``int`` (a ``bool`` is none), below ``D`` or above ``cap``; sizes, columns and capacities that
    disagree; tensors on several devices.

    Source of the definition: contracts.md, section 3.2.
    """
    sources = state_indices, query_start_loc, num_accepted_tokens
    buffers = state_buffer, query_start_loc_buffer, num_accepted_buffer
    _refuse_bad_stage(*sources, batch_size, *buffers)
    num_rows, width = state_indices.shape
    with device_of(state_buffer):
        _stage_kernel[(batch_size // _TILE.value + 1, max(min(width, _MOST_COLUMN_PROGRAMS), 1))](
            *(item for tensor in (*sources, *buffers) for item in _with_steps(tensor)),
            num_rows,
            width,
            batch_size,
            num_warps=1,
        )
    return state_buffer[:batch_size], query_start_loc_buffer[: batch_size + 1], num_accepted_buffer[:batch_size]


def spec_token_partition(
    *, query_start_loc: torch.Tensor, query_start_loc_cpu: torch.Tensor, spec_mask_cpu: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``(spec_token_indices, non_spec_token_indices, spec_query_start_loc, non_spec_query_start_loc)``.

    The tokens of a step, parted into those of the ``A`` requests that speculate and those of all others, on the device
    of ``query_start_loc``. One copy, of the mask, and one launch; the host does not wait for either.

    ``query_start_loc``
        int32 or int64 ``[R + 1]``, in tokens, any stride; never read on the host.
    ``query_start_loc_cpu``
        int32 or int64 ``[R + 1]`` on the CPU, any stride: the same starts, the first of them 0.
    ``spec_mask_cpu``
        bool ``[R]`` on the CPU, any stride: whether a request speculates.
    ``spec_token_indices``, ``non_spec_token_indices``
        int32, increasing: numbers of the step's tokens. Together they have each token once.
    ``spec_query_start_loc``, ``non_spec_query_start_loc``
        int32 ``[A + 1]`` and ``[R - A + 1]``: the starts in each part alone. Requests without tokens are counted.

    Refused (:class:`ContractError`) before anything is allocated: a tensor that is not one-dimensional, or of another
    dtype; sizes that disagree; a twin or a mask that is not on the CPU; a first host start other than 0, host starts
    that decrease; more tokens than int32 counts. Any device values are memory-safe; where the starts are not the
    host's, some elements may be left unwritten.

    Source of the definition: contracts.md, section 3.4.
    """
    refuse_bad_index("query_start_loc", query_start_loc)
    refuse_bad_index("query_start_loc_cpu", query_start_loc_cpu)
    refuse_bad_tensor("spec_mask_cpu", spec_mask_cpu, 1, torch.bool)
    num_requests = spec_mask_cpu.numel()
    refuse_other_size("query_start_loc", query_start_loc, num_requests + 1, "one more than that of spec_mask_cpu")
    refuse_other_size("query_start_loc_cpu", query_start_loc_cpu, query_start_loc.numel(), "that of query_start_loc")
    starts = starts_from_zero("query_start_loc_cpu", query_start_loc_cpu)
    refuse_not_on_cpu("spec_mask_cpu", spec_mask_cpu)
    if starts[-1] > _INT32_MAX:
        raise ContractError("query_start_loc_cpu", int(starts[-1]), "the number of tokens must fit int32")
    return partition(query_start_loc, starts, spec_mask_cpu)


def _refuse_bad_columns(
    name: str,
    block_tables: Sequence[torch.Tensor],
    seq_lens: torch.Tensor,
    mamba_cache_mode: str,
    block_size: int,
    num_speculative_blocks: int,
) -> None:
    for table in block_tables:
        refuse_bad_tensor(name, table, 2, torch.int32)
    refuse_bad_index("seq_lens", seq_lens)
    if mamba_cache_mode not in _MODES:
        raise ContractError("mamba_cache_mode", mamba_cache_mode, f"it must be one of {', '.join(_MODES)}")
    refuse_bad_int("block_size", block_size, 1)
    refuse_bad_int("num_speculative_blocks", num_speculative_blocks, 0)
    width = 1 + num_speculative_blocks
    for table in block_tables:
        refuse_other_size("seq_lens", seq_lens, table.shape[0], f"the number of rows of {name}")
        if mamba_cache_mode == "none" and table.shape[1] < width:
            rule = f"there must be at least 1 + num_speculative_blocks columns, {width}"
            raise ContractError(name, tuple(table.shape), rule)
    refuse_other_devices(seq_lens.device, ((name, table) for table in block_tables))


def _refuse_bad_stage(
    state_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    batch_size: int,
    state_buffer: torch.Tensor,
    query_start_loc_buffer: torch.Tensor,
    num_accepted_buffer: torch.Tensor,
) -> None:
    starts, accepted = ("query_start_loc", query_start_loc), ("num_accepted_tokens", num_accepted_tokens)
    start_buffer = "query_start_loc_buffer", query_start_loc_buffer
    accepted_buffer = "num_accepted_buffer", num_accepted_buffer
    refuse_bad_tensor("state_indices", state_indices, 2, torch.int32)
    for name, tensor in (starts, accepted):
        refuse_bad_index(name, tensor)
    refuse_bad_int("batch_size", batch_size, 0)
    refuse_bad_tensor("state_buffer", state_buffer, 2, torch.int32)
    for name, tensor in (start_buffer, accepted_buffer):
        refuse_bad_tensor(name, tensor, 1, torch.int32)
    num_rows, capacity = state_indices.shape[0], state_buffer.shape[0]
    refuse_other_size(*starts, num_rows + 1, "one more than the rows of state_indices")
    refuse_other_size(*accepted, num_rows, "the number of rows of state_indices")
    if state_buffer.shape[1] != state_indices.shape[1]:
        rule = f"the columns must be those of state_indices, {state_indices.shape[1]}"
        raise ContractError("state_buffer", tuple(state_buffer.shape), rule)
    refuse_other_size(*start_buffer, capacity + 1, "one more than the rows of state_buffer")
    refuse_other_size(*accepted_buffer, capacity, "the number of rows of state_buffer")
    if not num_rows <= batch_size <= capacity:
        rule = f"it must lie in {num_rows}..{capacity}, the rows of state_indices and of state_buffer"
        raise ContractError("batch_size", batch_size, rule)
    others = ("state_indices", state_indices), starts, accepted, start_buffer, accepted_buffer
    refuse_other_devices(state_buffer.device, others)


def _with_steps(tensor: torch.Tensor) -> tuple[torch.Tensor | int, ...]:
    return tensor, *(step_of(tensor, dimension) for dimension in range(tensor.dim()))


@triton.jit(do_not_specialize=_STAGE_ARGUMENTS, do_not_specialize_on_alignment=_STAGE_ARGUMENTS)
def _stage_kernel(
    states,
    row_stride: tl.int64,
    column_stride: tl.int64,
    starts,
    start_stride: tl.int64,
    accepted,
    accepted_stride: tl.int64,
    state_buffer,
    buffer_row_stride: tl.int64,
    buffer_column_stride: tl.int64,
    start_buffer,
    start_buffer_stride: tl.int64,
    accepted_buffer,
    accepted_buffer_stride: tl.int64,
    num_rows: tl.int64,
    num_columns: tl.int64,
    batch_size: tl.int64,
):
    """A tile of rows a program; programs of axis 1 share their columns. The last tile has a row past the batch."""
    rows = tl.program_id(0).to(tl.int64) * _TILE + tl.arange(0, _TILE)
    live, exists = rows < num_rows, rows < batch_size
    column = tl.program_id(1).to(tl.int64)
    if column == 0:
        start = tl.load(starts + tl.minimum(rows, num_rows) * start_stride, mask=rows <= batch_size, other=0)
        tl.store(start_buffer + rows * start_buffer_stride, start.to(tl.int32), mask=rows <= batch_size)
        count = tl.load(accepted + rows * accepted_stride, mask=live, other=1)
        tl.store(accepted_buffer + rows * accepted_buffer_stride, count.to(tl.int32), mask=exists)
    while column < num_columns:
        blocks = tl.load(states + rows * row_stride + column * column_stride, mask=live, other=_NULL)
        tl.store(state_buffer + rows * buffer_row_stride + column * buffer_column_stride, blocks, mask=exists)
        column += tl.num_programs(1).to(tl.int64)
