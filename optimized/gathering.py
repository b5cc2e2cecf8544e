"""The launch that gathers the block tables of a batch for all KV-cache groups.

Where the tables of the groups lie is part of the arguments of a launch, so that nothing is copied to the device first,
and a captured graph depends on no memory but the caller's. Their addresses are arguments of their own, because Triton
would compile again for another alignment of one in a tuple; their other numbers travel in tuples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from optimized.launching import device_of, programs_each, step_of
from optimized.tuple_arguments import even, filled, odd

_INT64_MAX = 2**63 - 1
_FEW, _MANY = 8, 32  # groups of a launch

# Of the kernels.
_ROWS = tl.constexpr(4)  # of a tile
_COLUMNS = tl.constexpr(32)
_HALF = tl.constexpr(32)  # bits of the lower part of a number that travels in two

# Every runtime argument but the tuples: a count, a stride, an address, its alignment never make Triton compile again.
_ARGUMENTS = ["num_blocks", "group_stride", "count_stride", "idx_mapping", "idx_stride", "num_computed_tokens"]
_ARGUMENTS += ["computed_stride", "num_rows", "num_out_rows", "num_requests"]
_FEW_ARGUMENTS = [f"{name}{group}" for name in ("table", "out") for group in range(_FEW)] + _ARGUMENTS
_MANY_ARGUMENTS = [f"{name}{group}" for name in "to" for group in range(_MANY)] + _ARGUMENTS


class _Layouts(NamedTuple):
    """What a launch is told of its groups besides where their tables are: a number for each in every field."""

    table_row_strides: tuple[int, ...]
    table_column_strides: tuple[int, ...]
    out_row_strides: tuple[int, ...]
    out_column_strides: tuple[int, ...]
    num_columns: tuple[int, ...]


class _Windows(NamedTuple):
    """Their sliding windows. Any 63 bits are legal in a reach and a block size, so each travels in two parts."""

    high_reaches: tuple[int, ...]
    low_reaches: tuple[int, ...]
    high_sizes: tuple[int, ...]
    low_sizes: tuple[int, ...]


def gather(
    block_tables: Sequence[torch.Tensor],
    num_blocks: torch.Tensor,
    idx_mapping: torch.Tensor,
    out: Sequence[torch.Tensor],
    num_computed_tokens: torch.Tensor | None = None,
    windows: Sequence[tuple[int, int]] = (),
) -> None:
    """Launch it, with sliding windows (reach and tokens a block) if there are any.

    Nothing is checked here. ``G = 0`` and no rows are legal.
    """
    if not any(rows.numel() for rows in out):
        return
    num_rows, num_groups = out[0].shape[0], len(out)
    bands = -(-num_rows // _ROWS.value)
    kernel, size = (_gather_few_kernel, _FEW) if num_groups <= _FEW else (_gather_many_kernel, _MANY)
    requests = idx_mapping, step_of(idx_mapping, 0)
    computed = (None, 0) if num_computed_tokens is None else (num_computed_tokens, step_of(num_computed_tokens, 0))
    counts = step_of(num_blocks, 0), step_of(num_blocks, 1)
    for first in range(0, num_groups, size):
        some = slice(first, first + size)
        layouts = [_layout(table, rows) for table, rows in zip(block_tables[some], out[some], strict=True)]
        widest = max(rows.shape[1] for rows in out[some])
        grid = bands, programs_each(bands * len(layouts), widest, _COLUMNS.value), len(layouts)
        with device_of(num_blocks):
            kernel[grid](
                *filled(block_tables[some], size),
                *filled(out[some], size),
                _Layouts(*_by_field(layouts, size)),
                _Windows(*_by_field([_halves(*window) for window in windows[some]], size)) if windows else None,
                num_blocks[some],
                *counts,
                *requests,
                *computed,
                idx_mapping.numel(),
                num_rows,
                num_blocks.shape[1],
                num_warps=1,
            )


def _layout(table: torch.Tensor, rows: torch.Tensor) -> tuple[int, ...]:
    return step_of(table, 0), step_of(table, 1), step_of(rows, 0), step_of(rows, 1), rows.shape[1]


def _halves(*window: int) -> tuple[int, ...]:
    # No count of tokens is larger, so with less nothing is left behind either.
    return tuple(half for number in window for half in divmod(min(number, _INT64_MAX), 1 << _HALF.value))


def _by_field(records: Sequence[tuple[int, ...]], size: int) -> Iterator[tuple[int, ...]]:
    for field in zip(*records, strict=True):
        yield filled([odd(number) for number in field], size)


# fmt: off
@triton.jit(do_not_specialize=_FEW_ARGUMENTS, do_not_specialize_on_alignment=_FEW_ARGUMENTS)
def _gather_few_kernel(
    table0, table1, table2, table3, table4, table5, table6, table7,
    out0, out1, out2, out3, out4, out5, out6, out7,
    layouts, windows,
    num_blocks, group_stride: tl.int64, count_stride: tl.int64,
    idx_mapping, idx_stride: tl.int64,
    num_computed_tokens, computed_stride: tl.int64,
    num_rows: tl.int64, num_out_rows: tl.int64, num_requests: tl.int64,
):
    tables = table0, table1, table2, table3, table4, table5, table6, table7
    outs = out0, out1, out2, out3, out4, out5, out6, out7
    counts = num_blocks, group_stride, count_stride
    requests = idx_mapping, idx_stride, num_rows, num_requests
    computed = num_computed_tokens, computed_stride
    _gather_rows(tables, outs, layouts, windows, counts, requests, computed, num_out_rows)


@triton.jit(do_not_specialize=_MANY_ARGUMENTS, do_not_specialize_on_alignment=_MANY_ARGUMENTS)
def _gather_many_kernel(
    t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
    t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31,
    o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,
    o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,
    layouts, windows,
    num_blocks, group_stride: tl.int64, count_stride: tl.int64,
    idx_mapping, idx_stride: tl.int64,
    num_computed_tokens, computed_stride: tl.int64,
    num_rows: tl.int64, num_out_rows: tl.int64, num_requests: tl.int64,
):
    tables = (
        t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
        t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31,
    )
    outs = (
        o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,
        o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,
    )
    counts = num_blocks, group_stride, count_stride
    requests = idx_mapping, idx_stride, num_rows, num_requests
    computed = num_computed_tokens, computed_stride
    _gather_rows(tables, outs, layouts, windows, counts, requests, computed, num_out_rows)
# fmt: on


@triton.jit
def _gather_rows(tables, outs, layouts, windows, counts, requests, computed, num_out_rows):
    """Some rows of one group a program; programs of axis 1 share their columns."""
    idx_mapping, idx_stride, num_rows, num_requests = requests
    group = tl.program_id(2)
    rows = tl.program_id(0).to(tl.int64) * _ROWS + tl.arange(0, _ROWS)
    owners = tl.load(idx_mapping + rows * idx_stride, mask=rows < num_rows, other=-1).to(tl.int64)
    known = (owners >= 0) & (owners < num_requests)
    owners = tl.where(known, owners, 0)
    num_blocks, group_stride, count_stride = counts
    places = group.to(tl.int64) * group_stride + owners * count_stride
    stops = tl.load(num_blocks + places, mask=known, other=0).to(tl.int64)
    tokens = tl.zeros((_ROWS,), tl.int64)
    if windows is not None:
        num_computed_tokens, computed_stride = computed
        tokens = tl.load(num_computed_tokens + owners * computed_stride, mask=known, other=0).to(tl.int64)
    exist = rows < num_out_rows
    _copy_of_group(tables, outs, layouts, windows, group, rows, exist, owners, stops, tokens, 0, len(tables))


@triton.jit
def _copy_of_group(
    tables, outs, layouts, windows, group, rows, exist, owners, stops, tokens, FIRST: tl.constexpr, COUNT: tl.constexpr
):
    """Copy the rows, of a group among ``COUNT`` (a power of two) from ``FIRST`` on.

    Every group has its own code, because to choose among the arguments of all takes more registers than there are: the
    compiler loads them all at the beginning, unless they are used in a loop that only one group runs through.
    """
    HALF: tl.constexpr = COUNT // 2
    if COUNT > 1:
        if group < FIRST + HALF:
            _copy_of_group(tables, outs, layouts, windows, group, rows, exist, owners, stops, tokens, FIRST, HALF)
        else:
            LAST: tl.constexpr = FIRST + HALF
            _copy_of_group(tables, outs, layouts, windows, group, rows, exist, owners, stops, tokens, LAST, HALF)
    else:
        strides = layouts.table_row_strides[FIRST], layouts.table_column_strides[FIRST]
        out_strides = layouts.out_row_strides[FIRST], layouts.out_column_strides[FIRST]
        num_columns = layouts.num_columns[FIRST]
        if windows is None:
            window = None
        else:
            reach, size = windows.high_reaches[FIRST], windows.high_sizes[FIRST]
            window = reach, windows.low_reaches[FIRST], size, windows.low_sizes[FIRST]
        # Nothing there depends on the group but arguments, so that the function is translated once.
        _copy(tables[FIRST], strides, outs[FIRST], out_strides, num_columns, window, rows, exist, owners, stops, tokens)


@triton.jit
def _copy(table, strides, out, out_strides, num_columns, window, rows, exist, owners, stops, tokens):
    """Copy columns up to ``stops`` of rows ``owners`` to those of ``rows`` that exist; the rest is NULL."""
    num_columns, stride, out_stride = even(num_columns), even(strides[1]), even(out_strides[1])
    column, step = tl.program_id(1).to(tl.int64) * _COLUMNS, tl.num_programs(1).to(tl.int64) * _COLUMNS
    columns = column + tl.arange(0, _COLUMNS)[None, :]
    table += (owners * even(strides[0]))[:, None] + columns * stride
    out += (rows * even(out_strides[0]))[:, None] + columns * out_stride
    while column < num_columns:
        inside = columns < num_columns
        owned = inside & (columns < stops[:, None])
        if window is not None:
            owned &= _in_sight(window, columns, tokens)
        tl.store(out, tl.load(table, mask=owned, other=0), mask=inside & exist[:, None])
        table += step * stride
        out += step * out_stride
        columns += step
        column += step


@triton.jit
def _in_sight(window, columns, tokens):
    """Which columns the window has not left behind, in rows with so many computed tokens."""
    reach = (even(window[0]) << _HALF) | even(window[1])
    size = ((even(window[2]) << _HALF) | even(window[3])).to(tl.uint64)
    left = tl.where(reach > 0, tl.maximum(tl.maximum(tokens, 0) - reach, 0), 0).to(tl.uint64)
    # A column is behind if the tokens up to its end are: one product a column, where a row would take a division.
    stops = (columns + 1).to(tl.uint64)
    return (tl.umulhi(stops, size) > 0) | (stops * size > left[:, None])
