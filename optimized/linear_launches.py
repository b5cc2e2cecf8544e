"""The launches of linear-attention metadata: a step's, with all that its rows need, and the states of further groups.

Every number of a launch travels in one tuple (:mod:`optimized.tuple_arguments`), which takes the host a fraction of the
time that an argument for each takes. Addresses are arguments of their own, because Triton would compile again for
another alignment of one in a tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from optimized.dividing import divided
from optimized.errors import NULL_BLOCK_ID
from optimized.launching import device_of
from optimized.tuple_arguments import even, filled, odd

_ENDLESS = 2**63
"""Tokens of a block whose end no length reaches: with it, the columns are always those from 0 on."""

_FEW, _MANY = 16, 32  # tables of a launch

# Of the kernels.
_TILE = tl.constexpr(64)
_NULL = tl.constexpr(NULL_BLOCK_ID)
_SHARED = tl.constexpr(6)  # numbers that stand before those of each table

# Every runtime argument but the tuple: an address or its alignment never makes Triton compile again.
_STEP_ARGUMENTS = ["table", "states", "seq_lens", "places", "starts", "starts_out", "accepted", "accepted_out"]
_STEP_ARGUMENTS += ["masks_out", "flags_out", "tokens_out"]
_FEW_ARGUMENTS = [f"{name}{number}" for name in "to" for number in range(_FEW)] + ["seq_lens", "places"]
_MANY_ARGUMENTS = [f"{name}{number}" for name in "to" for number in range(_MANY)] + ["seq_lens", "places"]


class StateRows(NamedTuple):
    """Which columns of a table go where, for every group of a step.

    The first ``num_live`` of ``num_rows`` rows get ``width`` columns each, the others NULL. With ``places`` (int32, for
    each row), a row is the one of that number; where the number is negative, ``~number`` is that of an element instead,
    ``others_at`` elements on, which gets the first column.
    """

    num_live: int
    num_rows: int
    width: int
    others_at: int = 0
    places: torch.Tensor | None = None

    def numbers(self, length_stride: int) -> list[int]:
        num_places = 0 if self.places is None else self.num_rows
        return [length_stride, num_places, self.num_live, self.num_rows, self.width, self.others_at]


class StepRows(NamedTuple):
    """What a launch writes for the rows of a step besides states. Each has a count; with 0 nothing is written.

    ``starts_out[i]`` becomes ``starts[min(first + i, last)] - base``; ``accepted_out`` the accepted counts, 1 past the
    live rows (with places: at those of rows that speculate); ``masks_out`` whether a row is live (with places: whether
    it speculates); ``flags_out`` whether a row (with places: of those that do not speculate) has more tokens than
    queries; ``tokens_out`` the numbers of tokens.
    """

    starts_out: torch.Tensor | None = None
    num_starts: int = 0
    first_start: int = 0
    last_start: int = 0
    base: int = 0
    accepted: torch.Tensor | None = None
    accepted_out: torch.Tensor | None = None
    num_accepted: int = 0
    masks_out: torch.Tensor | None = None
    num_masks: int = 0
    flags_out: torch.Tensor | None = None
    num_flags: int = 0
    tokens_out: torch.Tensor | None = None
    num_tokens: int = 0


NO_ROWS = StepRows()


def write_step(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    block_size: int | None,
    states: torch.Tensor,
    state_rows: StateRows,
    rows: StepRows,
    no_flags: torch.Tensor,
) -> None:
    """Launch it for one table. Nothing is checked.

    ``block_size`` is ``None`` where the columns are those from 0 on; ``no_flags`` is a bool tensor of the device that
    stands where there are none.
    """
    most = max(state_rows.num_rows, rows.num_starts, rows.num_accepted, rows.num_masks, rows.num_flags)
    if most == 0 and rows.num_tokens == 0:
        return
    accepted = query_start_loc if rows.accepted is None else rows.accepted
    numbers = [*state_rows.numbers(seq_lens.stride(0)), *block_table.stride(), block_table.shape[1]]
    numbers += query_start_loc.stride(0), *rows[1:5], accepted.stride(0)
    numbers += rows.num_accepted, rows.num_masks, rows.num_flags, rows.num_tokens
    with device_of(block_table):
        _step_kernel[(max(-(-most // _TILE.value), 1),)](
            block_table,
            states,
            seq_lens,
            # Another tensor for each that there is not: it is never followed.
            states if state_rows.places is None else state_rows.places,
            query_start_loc,
            states if rows.starts_out is None else rows.starts_out,
            accepted,
            states if rows.accepted_out is None else rows.accepted_out,
            no_flags if rows.masks_out is None else rows.masks_out,
            no_flags if rows.flags_out is None else rows.flags_out,
            states if rows.tokens_out is None else rows.tokens_out,
            _odd_numbers(tuple(numbers)),
            _tokens_a_block(block_size),
            num_warps=1,
        )


def write_states(
    block_tables: Sequence[torch.Tensor],
    seq_lens: torch.Tensor,
    block_size: int | None,
    states: Sequence[torch.Tensor],
    state_rows: StateRows,
) -> None:
    """Launch the states of several tables, each into a contiguous tensor: a launch for each 32. Nothing is checked."""
    if state_rows.num_rows == 0:
        return
    num_tables = len(block_tables)
    kernel, size = (_few_kernel, _FEW) if num_tables <= _FEW else (_many_kernel, _MANY)
    shared = state_rows.numbers(seq_lens.stride(0))
    num_tiles, size_of_block = -(-state_rows.num_rows // _TILE.value), _tokens_a_block(block_size)
    for first in range(0, num_tables, size):
        tables = block_tables[first : first + size]
        numbers = shared.copy()
        for table in tables:
            numbers += table.stride()
            numbers.append(table.shape[1])
        numbers += numbers[_SHARED.value : _SHARED.value + 3] * (size - len(tables))
        with device_of(seq_lens):
            kernel[(num_tiles, len(tables))](
                *filled(tables, size),
                *filled(states[first : first + size], size),
                seq_lens,
                seq_lens if state_rows.places is None else state_rows.places,
                _odd_numbers(tuple(numbers)),
                size_of_block,
                num_warps=1,
            )


@lru_cache(maxsize=1024)  # Steps are alike, and to look the numbers up takes less time than to reckon with them.
def _odd_numbers(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(odd, numbers))


def _tokens_a_block(block_size: int | None) -> int:
    return _ENDLESS if block_size is None else min(block_size, _ENDLESS)


@triton.jit(do_not_specialize=_STEP_ARGUMENTS, do_not_specialize_on_alignment=_STEP_ARGUMENTS)
def _step_kernel(
    table,
    states,
    seq_lens,
    places,
    starts,
    starts_out,
    accepted,
    accepted_out,
    masks_out,
    flags_out,
    tokens_out,
    numbers,
    BLOCK_SIZE: tl.constexpr,
):
    """A tile of rows a program."""
    rows, own, speculates, columns = _rows_of(seq_lens, places, numbers, BLOCK_SIZE)
    strides = even(numbers[6]), even(numbers[7])
    _copy(table, strides[0], strides[1], even(numbers[8]), states, numbers, rows, own, speculates, columns)
    num_live = even(numbers[2])
    start_stride, num_starts, first, last = even(numbers[9]), even(numbers[10]), even(numbers[11]), even(numbers[12])
    start = tl.load(starts + tl.minimum(first + rows, last) * start_stride, mask=rows < num_starts, other=0)
    tl.store(starts_out + rows, start - even(numbers[13]).to(tl.int32), mask=rows < num_starts)
    accept = (rows < even(numbers[15])) & speculates
    count = tl.load(accepted + rows * even(numbers[14]), mask=accept & (rows < num_live), other=1)
    tl.store(accepted_out + own, count, mask=accept)
    tl.store(masks_out + rows, speculates & (rows < num_live), mask=rows < even(numbers[16]))
    flagged = rows < even(numbers[17])
    length = tl.load(seq_lens + rows * even(numbers[0]), mask=flagged, other=0)
    begin = tl.load(starts + rows * start_stride, mask=flagged, other=0)
    end = tl.load(starts + (rows + 1) * start_stride, mask=flagged, other=0)
    flagged &= (even(numbers[1]) == 0) | ~speculates
    # Both differ from the length by less than int32 holds only where they are no garbage: compared in 64 bits.
    more = length.to(tl.int64) > end.to(tl.int64) - begin.to(tl.int64)
    tl.store(flags_out + own, more, mask=flagged)
    token, num_tokens = tl.program_id(0).to(tl.int64) * _TILE, even(numbers[18])
    while token < num_tokens:
        tokens = token + tl.arange(0, _TILE)
        tl.store(tokens_out + tokens, tokens.to(tl.int32), mask=tokens < num_tokens)
        token += tl.num_programs(0).to(tl.int64) * _TILE


# fmt: off
@triton.jit(do_not_specialize=_FEW_ARGUMENTS, do_not_specialize_on_alignment=_FEW_ARGUMENTS)
def _few_kernel(
    t0, t1, t2, t3, t4, t5, t6, t7,
    t8, t9, t10, t11, t12, t13, t14, t15,
    o0, o1, o2, o3, o4, o5, o6, o7,
    o8, o9, o10, o11, o12, o13, o14, o15,
    seq_lens, places, numbers, BLOCK_SIZE: tl.constexpr,
):
    tables = t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15
    outs = o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15
    rows, own, speculates, columns = _rows_of(seq_lens, places, numbers, BLOCK_SIZE)
    _copy_of_one(tables, outs, numbers, tl.program_id(1), rows, own, speculates, columns, 0, len(tables))


@triton.jit(do_not_specialize=_MANY_ARGUMENTS, do_not_specialize_on_alignment=_MANY_ARGUMENTS)
def _many_kernel(
    t0, t1, t2, t3, t4, t5, t6, t7,
    t8, t9, t10, t11, t12, t13, t14, t15,
    t16, t17, t18, t19, t20, t21, t22, t23,
    t24, t25, t26, t27, t28, t29, t30, t31,
    o0, o1, o2, o3, o4, o5, o6, o7,
    o8, o9, o10, o11, o12, o13, o14, o15,
    o16, o17, o18, o19, o20, o21, o22, o23,
    o24, o25, o26, o27, o28, o29, o30, o31,
    seq_lens, places, numbers, BLOCK_SIZE: tl.constexpr,
):
    tables = (
        t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15,
        t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, t30, t31,
    )
    outs = (
        o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,
        o16, o17, o18, o19, o20, o21, o22, o23, o24, o25, o26, o27, o28, o29, o30, o31,
    )
    rows, own, speculates, columns = _rows_of(seq_lens, places, numbers, BLOCK_SIZE)
    _copy_of_one(tables, outs, numbers, tl.program_id(1), rows, own, speculates, columns, 0, len(tables))
# fmt: on


@triton.jit
def _rows_of(seq_lens, places, numbers, BLOCK_SIZE: tl.constexpr):
    """A tile of rows: their numbers, their places, whether those are of rows that speculate, their first columns."""
    rows = tl.program_id(0).to(tl.int64) * _TILE + tl.arange(0, _TILE)
    lengths = tl.load(seq_lens + rows * even(numbers[0]), mask=rows < even(numbers[2]), other=1)
    columns, _ = divided(tl.maximum(lengths, 1) - 1, BLOCK_SIZE)
    num_places = even(numbers[1])
    place = tl.load(places + rows, mask=rows < num_places, other=0).to(tl.int64)
    place = tl.where(num_places > 0, place, rows)
    speculates = place >= 0
    return rows, tl.where(speculates, place, -1 - place), speculates, columns


@triton.jit
def _copy_of_one(
    tables, outs, numbers, number, rows, own, speculates, columns, FIRST: tl.constexpr, COUNT: tl.constexpr
):
    """Copy the columns of one table, among ``COUNT`` (a power of two) from ``FIRST`` on.

    Every table has its own code, because to choose among the arguments of all takes more registers than there are.
    """
    HALF: tl.constexpr = COUNT // 2
    if COUNT > 1:
        if number < FIRST + HALF:
            _copy_of_one(tables, outs, numbers, number, rows, own, speculates, columns, FIRST, HALF)
        else:
            _copy_of_one(tables, outs, numbers, number, rows, own, speculates, columns, FIRST + HALF, HALF)
    else:
        AT: tl.constexpr = _SHARED + 3 * FIRST
        strides = even(numbers[AT]), even(numbers[AT + 1])
        num_columns = even(numbers[AT + 2])
        _copy(tables[FIRST], strides[0], strides[1], num_columns, outs[FIRST], numbers, rows, own, speculates, columns)


@triton.jit
def _copy(table, row_stride, column_stride, num_columns, states, numbers, rows, own, speculates, columns):
    """Write the states of a tile of rows; a column past the row, and all of those past the live ones, is NULL."""
    live, exists, width = rows < even(numbers[2]), rows < even(numbers[3]), even(numbers[4])
    blocks = table + rows * row_stride + columns * column_stride
    out = states + tl.where(speculates, own * width, even(numbers[5]) + own)
    step = tl.zeros((), tl.int64)
    while step < width:
        written = exists & (speculates | (step == 0))
        # Subtracted: the sum of a garbage length's column and a step can wrap around.
        found = written & live & (columns < num_columns - step)
        tl.store(out + step, tl.load(blocks + step * column_stride, mask=found, other=_NULL), mask=written)
        step += 1
