"""The launches that copy state columns: of one block table, or of several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from optimized.dividing import divided, spread
from optimized.errors import NULL_BLOCK_ID
from optimized.launching import device_of, step_of
from optimized.tuple_arguments import even, filled, odd

_BEYOND = 2**63  # a count of tokens that no length reaches
_FEW, _MANY = 8, 32  # tables of a launch

# Of the kernels.
_TILE = tl.constexpr(64)
_NULL = tl.constexpr(NULL_BLOCK_ID)

# Every runtime argument but the tuple: a count, a stride, an address or its alignment never makes Triton compile again.
_ARGUMENTS = ["seq_lens", "length_stride", "state_indices", "num_elements"]
_ONE_ARGUMENTS = ["block_table", "row_stride", "column_stride", "num_columns", *_ARGUMENTS]
_FEW_ARGUMENTS = [f"table{number}" for number in range(_FEW)] + _ARGUMENTS
_MANY_ARGUMENTS = [f"t{number}" for number in range(_MANY)] + _ARGUMENTS


class _Table(NamedTuple):
    """What a launch is told of one of several tables besides where it is."""

    row_stride: int
    column_stride: int
    num_columns: int


def copy_columns(
    block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, state_indices: torch.Tensor
) -> None:
    """Launch modes "align" and "all" for one table. Nothing is checked here; no rows are legal."""
    num_elements, width = state_indices.numel(), state_indices.shape[1]
    if num_elements == 0:
        return
    with device_of(block_table):
        _one_kernel[(-(-num_elements // _TILE.value),)](
            block_table,
            *_table_of(block_table),
            seq_lens,
            step_of(seq_lens, 0),
            state_indices,
            num_elements,
            width,
            min(block_size, _BEYOND),
            num_warps=1,
        )


def copy_columns_of_many(
    block_tables: Sequence[torch.Tensor], seq_lens: torch.Tensor, block_size: int, state_indices: torch.Tensor
) -> None:
    """The same for tables of the same rows, into ``state_indices`` ``[tables, R, 1 + S]``: a launch for each 32."""
    num_tables, num_rows, width = state_indices.shape
    num_elements = num_rows * width
    if num_elements == 0:
        return
    kernel, size = (_few_kernel, _FEW) if num_tables <= _FEW else (_many_kernel, _MANY)
    for first in range(0, num_tables, size):
        tables = block_tables[first : first + size]
        numbers = [_Table(*map(odd, _table_of(table))) for table in tables]
        with device_of(seq_lens):
            kernel[(-(-num_elements // _TILE.value), len(tables))](
                *filled(tables, size),
                filled(numbers, size),
                seq_lens,
                step_of(seq_lens, 0),
                state_indices[first:],
                num_elements,
                width,
                min(block_size, _BEYOND),
                num_warps=1,
            )


def _table_of(table: torch.Tensor) -> _Table:
    return _Table(step_of(table, 0), step_of(table, 1), table.shape[1])


@triton.jit(do_not_specialize=_ONE_ARGUMENTS, do_not_specialize_on_alignment=_ONE_ARGUMENTS)
def _one_kernel(
    block_table,
    row_stride: tl.int64,
    column_stride: tl.int64,
    num_columns: tl.int64,
    seq_lens,
    length_stride: tl.int64,
    state_indices,
    num_elements: tl.int64,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    wanted = _wanted(seq_lens, length_stride, num_elements, WIDTH, BLOCK_SIZE)
    _copy(block_table, row_stride, column_stride, num_columns, state_indices, wanted)


# fmt: off
@triton.jit(do_not_specialize=_FEW_ARGUMENTS, do_not_specialize_on_alignment=_FEW_ARGUMENTS)
def _few_kernel(
    table0, table1, table2, table3, table4, table5, table6, table7, numbers,
    seq_lens, length_stride: tl.int64, state_indices, num_elements: tl.int64,
    WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    tables = table0, table1, table2, table3, table4, table5, table6, table7
    wanted = _wanted(seq_lens, length_stride, num_elements, WIDTH, BLOCK_SIZE)
    state_indices += tl.program_id(1).to(tl.int64) * num_elements
    _copy_of_one(tables, numbers, tl.program_id(1), state_indices, wanted, 0, len(tables))


@triton.jit(do_not_specialize=_MANY_ARGUMENTS, do_not_specialize_on_alignment=_MANY_ARGUMENTS)
def _many_kernel(
    t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
    t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31, numbers,
    seq_lens, length_stride: tl.int64, state_indices, num_elements: tl.int64,
    WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    tables = (
        t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
        t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31,
    )
    wanted = _wanted(seq_lens, length_stride, num_elements, WIDTH, BLOCK_SIZE)
    state_indices += tl.program_id(1).to(tl.int64) * num_elements
    _copy_of_one(tables, numbers, tl.program_id(1), state_indices, wanted, 0, len(tables))
# fmt: on


@triton.jit
def _wanted(seq_lens, length_stride, num_elements, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """A tile of the result: its elements, which exist, and of each its row, first column, and steps from there."""
    first, places = tl.program_id(0).to(tl.int64) * _TILE, tl.arange(0, _TILE)
    elements = first + places
    exists = elements < num_elements
    rows, steps = spread(first, places, WIDTH)
    lengths = tl.load(seq_lens + rows * length_stride, mask=exists, other=1)
    columns, _ = divided(tl.maximum(lengths, 1) - 1, BLOCK_SIZE)
    return elements, exists, rows, columns, steps


@triton.jit
def _copy_of_one(tables, numbers, number, state_indices, wanted, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """Copy the columns of one table, among ``COUNT`` (a power of two) from ``FIRST`` on.

    Every table has its own code, because to choose among the arguments of all takes more registers than there are.
    """
    HALF: tl.constexpr = COUNT // 2
    if COUNT > 1:
        if number < FIRST + HALF:
            _copy_of_one(tables, numbers, number, state_indices, wanted, FIRST, HALF)
        else:
            _copy_of_one(tables, numbers, number, state_indices, wanted, FIRST + HALF, HALF)
    else:
        row_stride, column_stride = even(numbers[FIRST].row_stride), even(numbers[FIRST].column_stride)
        _copy(tables[FIRST], row_stride, column_stride, even(numbers[FIRST].num_columns), state_indices, wanted)


@triton.jit
def _copy(block_table, row_stride, column_stride, num_columns, state_indices, wanted):
    elements, exists, rows, columns, steps = wanted
    # Subtracted: the sum of a garbage length's column and a step can wrap around.
    found = exists & (columns < num_columns - steps)
    blocks = block_table + rows * row_stride + (columns + steps) * column_stride
    tl.store(state_indices + elements, tl.load(blocks, mask=found, other=_NULL), mask=exists)
