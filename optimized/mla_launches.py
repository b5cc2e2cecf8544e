"""The launches of MLA decode metadata: a step's layout with one group's pages, and the pages of further groups.

As in :mod:`optimized.linear_launches`, numbers travel in one tuple and addresses are arguments of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from optimized.dividing import spread
from optimized.errors import PAD_SLOT_ID
from optimized.launching import device_of, programs_each
from optimized.row_groups import row_groups
from optimized.tuple_arguments import even, filled, odd

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_FEW, _MANY = 8, 32  # tables of a launch

# Of the kernels.
_TILE = tl.constexpr(256)
_ROW_TILE = tl.constexpr(128)
_PAD = tl.constexpr(PAD_SLOT_ID)
_SHARED = tl.constexpr(3)  # numbers that stand before those of each table
_EACH = tl.constexpr(4)

# Every runtime argument but the tuple: an address or its alignment never makes Triton compile again.
_STEP_ARGUMENTS = ["table", "pages", "seq_lens", "starts", "lengths_out", "indptr_out", "last_page_out", "qo_out"]
_FEW_ARGUMENTS = [f"{name}{number}" for name in "tp" for number in range(_FEW)] + ["seq_lens"]
_MANY_ARGUMENTS = [f"{name}{number}" for name in "tp" for number in range(_MANY)] + ["seq_lens"]


LAYOUT = "seq_lens", "paged_kv_indptr", "paged_kv_last_page_len", "qo_indptr"
"""What a layout consists of, in order: int32, contiguous."""


class Layout(NamedTuple):
    """Where a step's layout goes, and how wide its rows are.

    ``width`` 0: rows keep their queries; ``adaptive``: rows get the entries of the added queries too. There may be more
    slots than rows: those read and write nothing.
    """

    tensors: tuple[torch.Tensor, ...]
    width: int
    adaptive: bool


def write_layout(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    block_size: int,
    pages: torch.Tensor,
    layout: Layout,
) -> None:
    """Launch the layout of a step and one group's pages. Nothing is checked; no rows are legal."""
    num_rows = seq_lens.shape[0]
    num_groups, rows_each = row_groups(num_rows)
    numbers = [seq_lens.stride(0), num_rows, rows_each, *_numbers_of(block_table, pages)]
    numbers += [query_start_loc.stride(0), min(layout.width, _INT32_MAX), layout.adaptive, layout.tensors[0].shape[0]]
    with device_of(block_table):
        _layout_kernel[(1 + num_groups, programs_each(num_groups, pages.shape[0], _TILE.value))](
            block_table,
            pages,
            seq_lens,
            query_start_loc,
            *layout.tensors,
            tuple(map(odd, numbers)),
            min(block_size, _INT64_MAX),
            num_warps=1,
        )


def write_pages(
    block_tables: Sequence[torch.Tensor], seq_lens: torch.Tensor, block_size: int, pages: Sequence[torch.Tensor]
) -> None:
    """Launch the pages of several groups, for the kernel's lengths ``seq_lens``: a launch for each 32.

    Nothing is checked; no rows are legal.
    """
    num_tables, num_rows = len(block_tables), seq_lens.shape[0]
    kernel, size = (_few_kernel, _FEW) if num_tables <= _FEW else (_many_kernel, _MANY)
    num_groups, rows_each = row_groups(num_rows)
    for first in range(0, num_tables, size):
        tables, own = block_tables[first : first + size], pages[first : first + size]
        numbers = [odd(number) for pair in zip(tables, own, strict=True) for number in _numbers_of(*pair)]
        numbers += numbers[: _EACH.value] * (size - len(tables))
        shared = odd(seq_lens.stride(0)), odd(num_rows), odd(rows_each)
        most = max(buffer.shape[0] for buffer in own)
        with device_of(seq_lens):
            kernel[(num_groups, programs_each(num_groups * len(tables), most, _TILE.value), len(tables))](
                *filled(tables, size),
                *filled(own, size),
                seq_lens,
                (*shared, *numbers),
                min(block_size, _INT64_MAX),
                num_warps=1,
            )


def _numbers_of(table: torch.Tensor, pages: torch.Tensor) -> tuple[int, ...]:
    return *table.stride(), table.shape[1], pages.shape[0]


@triton.jit(do_not_specialize=_STEP_ARGUMENTS, do_not_specialize_on_alignment=_STEP_ARGUMENTS)
def _layout_kernel(
    table,
    pages,
    seq_lens,
    starts,
    lengths_out,
    indptr_out,
    last_page_out,
    qo_out,
    numbers,
    BLOCK_SIZE: tl.constexpr,
):
    """The first program of axis 0 writes the layout of all rows, each other one the pages of some."""
    widths = starts, even(numbers[7]), even(numbers[8]).to(tl.int32), even(numbers[9]).to(tl.int32)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        outs = lengths_out, indptr_out, last_page_out, qo_out
        _write_layout(seq_lens, widths, outs, even(numbers[0]), even(numbers[1]), even(numbers[10]))
    # No else: with it, both parts' numbers need registers at once.
    if tl.program_id(0) > 0:
        _write_pages(table, pages, seq_lens, widths, numbers, _SHARED, BLOCK_SIZE, True)


# fmt: off
@triton.jit(do_not_specialize=_FEW_ARGUMENTS, do_not_specialize_on_alignment=_FEW_ARGUMENTS)
def _few_kernel(
    t0, t1, t2, t3, t4, t5, t6, t7,
    p0, p1, p2, p3, p4, p5, p6, p7,
    seq_lens, numbers, BLOCK_SIZE: tl.constexpr,
):
    tables = t0, t1, t2, t3, t4, t5, t6, t7
    pages = p0, p1, p2, p3, p4, p5, p6, p7
    _pages_of_one(tables, pages, seq_lens, numbers, tl.program_id(2), BLOCK_SIZE, 0, len(tables))


@triton.jit(do_not_specialize=_MANY_ARGUMENTS, do_not_specialize_on_alignment=_MANY_ARGUMENTS)
def _many_kernel(
    t0, t1, t2, t3, t4, t5, t6, t7,
    t8, t9, t10, t11, t12, t13, t14, t15,
    t16, t17, t18, t19, t20, t21, t22, t23,
    t24, t25, t26, t27, t28, t29, t30, t31,
    p0, p1, p2, p3, p4, p5, p6, p7,
    p8, p9, p10, p11, p12, p13, p14, p15,
    p16, p17, p18, p19, p20, p21, p22, p23,
    p24, p25, p26, p27, p28, p29, p30, p31,
    seq_lens, numbers, BLOCK_SIZE: tl.constexpr,
):
    tables = (
        t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
        t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31,
    )
    pages = (
        p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15,
        p16, p17, p18, p19, p20, p21, p22, p23, p24, p25, p26, p27, p28, p29, p30, p31,
    )
    _pages_of_one(tables, pages, seq_lens, numbers, tl.program_id(2), BLOCK_SIZE, 0, len(tables))
# fmt: on


@triton.jit
def _pages_of_one(
    tables,
    pages,
    seq_lens,
    numbers,
    number,
    BLOCK_SIZE: tl.constexpr,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Write the pages of one group, among ``COUNT`` (a power of two) from ``FIRST`` on.

    Every group has its own code, because to choose among the arguments of all takes more registers than there are.
    """
    HALF: tl.constexpr = COUNT // 2
    if COUNT > 1:
        if number < FIRST + HALF:
            _pages_of_one(tables, pages, seq_lens, numbers, number, BLOCK_SIZE, FIRST, HALF)
        else:
            _pages_of_one(tables, pages, seq_lens, numbers, number, BLOCK_SIZE, FIRST + HALF, HALF)
    else:
        AT: tl.constexpr = _SHARED + _EACH * FIRST
        _write_pages(tables[FIRST], pages[FIRST], seq_lens, (), numbers, AT, BLOCK_SIZE, False)


@triton.jit
def _kernel_lengths(seq_lens, length_stride, widths, rows, exist, LAYS_OUT: tl.constexpr):
    """The kernel's lengths of rows, int32, and the last of their query starts; 0 where there is no row."""
    lengths = tl.load(seq_lens + rows * length_stride, mask=exist, other=0)
    if LAYS_OUT:
        starts, start_stride, width, adaptive = widths
        start = tl.load(starts + rows * start_stride, mask=exist, other=0)
        end = tl.load(starts + (rows + 1) * start_stride, mask=exist, other=0)
        added = lengths + (width - (end - start))
        lengths = tl.where(adaptive != 0, added, tl.where((width > 0) & (end <= start), width, lengths))
        lengths = tl.where(exist, lengths, 0)
    return lengths


@triton.jit
def _write_layout(seq_lens, widths, outs, length_stride, num_rows, num_slots):
    """The rows of a batch of decodes are one tile, or a few, and a running sum needs them in order."""
    starts, start_stride, width, _ = widths
    lengths_out, indptr_out, last_page_out, qo_out = outs
    tl.store(indptr_out, 0)
    tl.store(qo_out, tl.where(width > 0, 0, tl.load(starts)))
    row, entries = tl.zeros((), tl.int64), tl.zeros((), tl.int32)
    while row < num_slots:
        rows = row + tl.arange(0, _ROW_TILE)
        exist = rows < num_slots
        lengths = _kernel_lengths(seq_lens, length_stride, widths, rows, rows < num_rows, True)
        tl.store(lengths_out + rows, lengths, mask=exist)
        lengths = tl.maximum(lengths, 0)
        tl.store(indptr_out + 1 + rows, entries + tl.cumsum(lengths), mask=exist)
        tl.store(last_page_out + rows, 1, mask=exist)
        ends = tl.minimum(rows + 1, num_rows)
        queries = tl.load(starts + ends * start_stride, mask=exist, other=0)
        tl.store(qo_out + 1 + rows, tl.where(width > 0, (ends * width).to(tl.int32), queries), mask=exist)
        entries += tl.sum(lengths)
        row += _ROW_TILE


@triton.jit
def _places_of(seq_lens, widths, numbers, LAYS_OUT: tl.constexpr):
    """What programs do: their first row, the row they stop before, pages before the first one, and pages of all."""
    length_stride, num_rows, rows_each = even(numbers[0]), even(numbers[1]), even(numbers[2])
    row = (tl.program_id(0).to(tl.int64) - LAYS_OUT) * rows_each
    before, entries = tl.zeros((_ROW_TILE,), tl.int64), tl.zeros((_ROW_TILE,), tl.int64)
    done = tl.zeros((), tl.int64)
    while done < num_rows:
        rows = done + tl.arange(0, _ROW_TILE)
        lengths = _kernel_lengths(seq_lens, length_stride, widths, rows, rows < num_rows, LAYS_OUT)
        lengths = tl.maximum(lengths, 0).to(tl.int64)
        before += tl.where(rows < row, lengths, 0)
        entries += lengths
        done += _ROW_TILE
    return row, tl.minimum(row + rows_each, num_rows), tl.sum(before), tl.sum(entries)


@triton.jit
def _write_pages(
    table, pages, seq_lens, widths, numbers, AT: tl.constexpr, BLOCK_SIZE: tl.constexpr, LAYS_OUT: tl.constexpr
):
    """Some rows a program; programs of axis 1 share their tokens, and all programs share the padding."""
    # Before the numbers of the group, which the loop inside would keep in registers.
    row, stop, first, padding = _places_of(seq_lens, widths, numbers, LAYS_OUT)
    length_stride, num_columns, capacity = even(numbers[0]), even(numbers[AT + 2]), even(numbers[AT + 3])
    row_stride, column_stride = even(numbers[AT]), even(numbers[AT + 1])
    part, num_parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    tokens = tl.arange(0, _TILE)
    while row < stop:
        length = _kernel_lengths(seq_lens, length_stride, widths, row, row < stop, LAYS_OUT).to(tl.int64)
        room = tl.minimum(length, capacity - first)
        token = part * _TILE
        while token < room:
            inside = token + tokens < room
            columns, rest = spread(token, tokens, BLOCK_SIZE)
            columns = tl.where(columns < num_columns, columns, 0)
            found = inside & (num_columns > 0)
            block = tl.load(table + row * row_stride + columns * column_stride, mask=found, other=0)
            page = tl.where(found, (block.to(tl.int64) * BLOCK_SIZE + rest).to(tl.int32), _PAD)
            tl.store(pages + first + token + tokens, page, mask=inside)
            token += num_parts * _TILE
        first += tl.maximum(length, 0)
        row += 1
    padding += ((tl.program_id(0).to(tl.int64) - LAYS_OUT) * num_parts + part) * _TILE
    while padding < capacity:
        tl.store(pages + padding + tokens, _PAD, mask=padding + tokens < capacity)
        padding += (tl.num_programs(0).to(tl.int64) - LAYS_OUT) * num_parts * _TILE
