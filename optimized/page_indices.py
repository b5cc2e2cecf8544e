"""The launches that write cache rows, one for each KV entry that a query reads: selected ones, or all of a request."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from optimized.dividing import divided, spread
from optimized.errors import PAD_SLOT_ID
from optimized.launching import device_of, programs_each, step_of
from optimized.row_groups import row_groups

_INT64_MAX = 2**63 - 1
_BEYOND = 2**63  # a count of tokens that no index reaches

# Of the kernels.
_ROW_TILE = tl.constexpr(512)
_TILE = tl.constexpr(512)
_PAD = tl.constexpr(PAD_SLOT_ID)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_TABLE_ARGUMENTS = ["block_table", "row_stride", "column_stride", "num_requests", "num_columns", "pages", "page_stride"]
_SPARSE_ARGUMENTS = [*_TABLE_ARGUMENTS, "requests", "request_stride", "topk_indices", "query_stride", "choice_stride"]
_SPARSE_ARGUMENTS += ["num_choices", "indptr", "indptr_stride", "capacity", "block_stride"]
_DENSE_ARGUMENTS = [*_TABLE_ARGUMENTS, "seq_lens", "length_stride", "indptr", "last_page_len", "capacity", "rows_each"]


def write_sparse(
    req_id_per_token: torch.Tensor,
    block_table: torch.Tensor,
    topk_indices: torch.Tensor,
    paged_kv_indptr: torch.Tensor,
    block_size: int,
    block_stride: int,
    paged_kv_indices: torch.Tensor,
) -> None:
    """Launch what :func:`optimized.sparse_indptr.sparse_page_indices` describes. Nothing is checked here."""
    num_queries, num_choices = topk_indices.shape
    if num_queries == 0 or paged_kv_indices.numel() == 0:
        return
    with device_of(block_table):
        _sparse_kernel[(num_queries, programs_each(num_queries, num_choices, _TILE.value))](
            block_table,
            step_of(block_table, 0),
            step_of(block_table, 1),
            *block_table.shape,
            paged_kv_indices,
            step_of(paged_kv_indices, 0),
            req_id_per_token,
            step_of(req_id_per_token, 0),
            topk_indices,
            step_of(topk_indices, 0),
            step_of(topk_indices, 1),
            num_choices,
            paged_kv_indptr,
            step_of(paged_kv_indptr, 0),
            paged_kv_indices.numel(),
            block_stride % 2**32,  # Cache rows are numbers modulo 2**32 in the kernel.
            min(block_size, _BEYOND),
            num_warps=1,
        )


def write_dense(
    block_table: torch.Tensor, seq_lens: torch.Tensor, kernel_block_size: int, paged_kv_indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch what :func:`optimized.sparse_indptr.dense_page_indices` describes; ``(indptr, last_page_len)``.

    Nothing is checked here.
    """
    num_requests, num_columns = block_table.shape
    indptr = block_table.new_empty((num_requests + 1,))
    last_page_len = block_table.new_empty((num_requests,))
    num_groups, rows_each = row_groups(num_requests)
    with device_of(block_table):
        _dense_kernel[(num_groups, programs_each(num_groups, paged_kv_indices.numel(), _TILE.value))](
            block_table,
            step_of(block_table, 0),
            step_of(block_table, 1),
            num_requests,
            num_columns,
            paged_kv_indices,
            step_of(paged_kv_indices, 0),
            seq_lens,
            step_of(seq_lens, 0),
            indptr,
            last_page_len,
            paged_kv_indices.numel(),
            rows_each,
            min(kernel_block_size, _INT64_MAX),  # More is legal only without blocks.
            num_warps=1,
        )
    return indptr, last_page_len


@triton.jit(do_not_specialize=_SPARSE_ARGUMENTS, do_not_specialize_on_alignment=_SPARSE_ARGUMENTS)
def _sparse_kernel(
    block_table,
    row_stride: tl.int64,
    column_stride: tl.int64,
    num_requests: tl.int64,
    num_columns: tl.int64,
    pages,
    page_stride: tl.int64,
    requests,
    request_stride: tl.int64,
    topk_indices,
    query_stride: tl.int64,
    choice_stride: tl.int64,
    num_choices: tl.int64,
    indptr,
    indptr_stride: tl.int64,
    capacity: tl.int64,
    block_stride: tl.int64,
    BLOCK_SIZE: tl.constexpr,
):
    """One query a program; programs of axis 1 share its elements."""
    query = tl.program_id(0).to(tl.int64)
    request = tl.load(requests + query * request_stride).to(tl.int64)
    first = tl.load(indptr + query * indptr_stride).to(tl.int64)
    stop = tl.load(indptr + (query + 1) * indptr_stride).to(tl.int64)
    # A negative first element is garbage, and nothing is written.
    count = tl.where(first >= 0, tl.minimum(tl.maximum(stop, 0), capacity) - first, 0)
    known = (request >= 0) & (request < num_requests)
    blocks = block_table + tl.where(known, request, 0) * row_stride
    num_columns = tl.where(known, num_columns, 0)
    choices = topk_indices + query * query_stride
    done = tl.program_id(1).to(tl.int64) * _TILE
    while done < count:
        places = done + tl.arange(0, _TILE)
        inside = places < count
        tokens = tl.load(choices + places * choice_stride, mask=inside & (places < num_choices), other=-1)
        columns, rest = divided(tokens, BLOCK_SIZE)
        found = (tokens >= 0) & (columns < num_columns)
        block = tl.load(blocks + columns * column_stride, mask=found, other=0)
        rows = tl.where(found, block * block_stride.to(tl.int32) + rest, _PAD)
        tl.store(pages + (first + places) * page_stride, rows, mask=inside)
        done += tl.num_programs(1).to(tl.int64) * _TILE


@triton.jit(do_not_specialize=_DENSE_ARGUMENTS, do_not_specialize_on_alignment=_DENSE_ARGUMENTS)
def _dense_kernel(
    block_table,
    row_stride: tl.int64,
    column_stride: tl.int64,
    num_requests: tl.int64,
    num_columns: tl.int64,
    pages,
    page_stride: tl.int64,
    seq_lens,
    length_stride: tl.int64,
    indptr,
    last_page_len,
    capacity: tl.int64,
    rows_each: tl.int64,
    BLOCK_SIZE: tl.constexpr,
):
    """Some requests a program; programs of axis 1 share their tokens, and all programs share the padding."""
    part, num_parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * rows_each
    stop = tl.minimum(row + rows_each, num_requests)
    longest = num_columns * BLOCK_SIZE
    before, all_tokens = tl.zeros((_ROW_TILE,), tl.int64), tl.zeros((_ROW_TILE,), tl.int64)
    done = tl.zeros((), tl.int64)
    while done < num_requests:
        rows = done + tl.arange(0, _ROW_TILE)
        lengths = tl.load(seq_lens + rows * length_stride, mask=rows < num_requests, other=0).to(tl.int64)
        lengths = tl.minimum(tl.maximum(lengths, 0), longest)
        before += tl.where(rows < row, lengths, 0)
        all_tokens += lengths
        done += _ROW_TILE
    first, padding = tl.sum(before), tl.sum(all_tokens)
    if (row == 0) & (part == 0):
        tl.store(indptr, 0)
    places = tl.arange(0, _TILE)
    while row < stop:
        length = tl.load(seq_lens + row * length_stride).to(tl.int64)
        length = tl.minimum(tl.maximum(length, 0), longest)
        if part == 0:
            tl.store(indptr + row + 1, (first + length).to(tl.int32))
            tl.store(last_page_len + row, 1)
        token = part * _TILE
        while token < length:
            inside = token + places < length
            columns, rest = spread(token, places, BLOCK_SIZE)
            block = tl.load(block_table + row * row_stride + columns * column_stride, mask=inside, other=0)
            rows = (block.to(tl.int64) * BLOCK_SIZE + rest).to(tl.int32)
            tl.store(pages + (first + token + places) * page_stride, rows, mask=inside)
            token += num_parts * _TILE
        first += length
        row += 1
    padding += (tl.program_id(0).to(tl.int64) * num_parts + part) * _TILE
    while padding < capacity:
        tl.store(pages + (padding + places) * page_stride, _PAD, mask=padding + places < capacity)
        padding += tl.num_programs(0).to(tl.int64) * num_parts * _TILE
