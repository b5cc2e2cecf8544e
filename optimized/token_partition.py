"""The launch that parts the tokens of a step into those of the requests that speculate and those of all others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from optimized.launching import device_of, programs_each, step_of
from optimized.row_groups import row_groups

# Of the kernel.
_ROW_TILE = tl.constexpr(256)
_TILE = tl.constexpr(256)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_ARGUMENTS = ["query_start_loc", "start_stride", "spec_mask", "spec_tokens", "other_tokens", "spec_starts"]
_ARGUMENTS += ["other_starts", "num_spec_tokens", "num_other_tokens", "num_requests", "rows_each"]


def partition(
    query_start_loc: torch.Tensor, starts: npt.NDArray[np.int64], spec_mask_cpu: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch what :func:`optimized.state_columns.spec_token_partition` describes; ``starts`` are the host's.

    Nothing is checked here.
    """
    lengths, mask = np.diff(starts), spec_mask_cpu.numpy()
    num_requests, num_spec = mask.size, int(np.count_nonzero(mask))
    num_spec_tokens = int(lengths[mask].sum())
    sizes = num_spec_tokens, int(starts[-1]) - num_spec_tokens, num_spec + 1, num_requests - num_spec + 1
    results = tuple(query_start_loc.new_empty((size,), dtype=torch.int32) for size in sizes)
    num_groups, rows_each = row_groups(num_requests)
    with device_of(query_start_loc):
        _partition_kernel[(num_groups, programs_each(num_groups, int(lengths.max(initial=0)), _TILE.value))](
            query_start_loc,
            step_of(query_start_loc, 0),
            _on_device(spec_mask_cpu, query_start_loc.device),
            *results,
            *sizes[:2],
            num_requests,
            rows_each,
            num_warps=1,
        )
    return results  # type: ignore[return-value]  # there are four


def _on_device(mask: torch.Tensor, device: torch.device) -> torch.Tensor:
    # A new buffer each time: the copy out of the last one may not have begun. Torch reuses those that are done.
    staged = torch.empty(mask.numel(), dtype=torch.uint8, pin_memory=device.type == "cuda")
    staged.copy_(mask)
    return torch.empty_like(staged, device=device, pin_memory=False).copy_(staged, non_blocking=True)


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def _partition_kernel(
    query_start_loc,
    start_stride: tl.int64,
    spec_mask,
    spec_tokens,
    other_tokens,
    spec_starts,
    other_starts,
    num_spec_tokens: tl.int64,
    num_other_tokens: tl.int64,
    num_requests: tl.int64,
    rows_each: tl.int64,
):
    """Some requests a program; programs of axis 1 share their tokens."""
    part, num_parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * rows_each
    stop = tl.minimum(row + rows_each, num_requests)
    num_tokens = num_spec_tokens + num_other_tokens
    spec, num_spec = tl.zeros((_ROW_TILE,), tl.int32), tl.zeros((_ROW_TILE,), tl.int32)
    done = tl.zeros((), tl.int64)
    while done < row:
        rows = done + tl.arange(0, _ROW_TILE)
        _, lengths = _tokens_of(query_start_loc, start_stride, rows, rows < row, num_tokens)
        speculates = tl.load(spec_mask + rows, mask=rows < row, other=0) != 0
        spec += tl.where(speculates, lengths.to(tl.int32), 0)
        num_spec += speculates.to(tl.int32)
        done += _ROW_TILE
    # Sums of garbage wrap around, and are negative then or too large.
    spec_before, number = tl.sum(spec).to(tl.int64), tl.sum(num_spec).to(tl.int64)
    if (row == 0) & (part == 0):
        tl.store(spec_starts, 0)
        tl.store(other_starts, 0)
    while row < stop:
        first, length = _tokens_of(query_start_loc, start_stride, row, row < stop, num_tokens)
        others_before = first - spec_before
        if tl.load(spec_mask + row) != 0:
            if part == 0:
                tl.store(spec_starts + number + 1, (spec_before + length).to(tl.int32))
            _write(spec_tokens, spec_before, num_spec_tokens, first, length, part, num_parts)
            spec_before += length
            number += 1
        else:
            if part == 0:
                tl.store(other_starts + row - number + 1, (others_before + length).to(tl.int32))
            _write(other_tokens, others_before, num_other_tokens, first, length, part, num_parts)
        row += 1


@triton.jit
def _tokens_of(query_start_loc, start_stride, rows, exist, num_tokens):
    """First tokens of requests, and how many they have; what does not exist is left out."""
    first = tl.load(query_start_loc + rows * start_stride, mask=exist, other=0).to(tl.int64)
    end = tl.load(query_start_loc + (rows + 1) * start_stride, mask=exist, other=0).to(tl.int64)
    first, end = tl.minimum(tl.maximum(first, 0), num_tokens), tl.minimum(tl.maximum(end, 0), num_tokens)
    return first, tl.maximum(end - first, 0)


@triton.jit
def _write(tokens, start, size, first, length, part, num_parts):
    """The numbers of a request's tokens from ``start`` on, as far as there is room."""
    length = tl.where(start >= 0, tl.minimum(length, size - start), 0)
    places = tl.arange(0, _TILE)
    done = part * _TILE
    while done < length:
        values = (first + done + places).to(tl.int32)
        tl.store(tokens + start + done + places, values, mask=done + places < length)
        done += num_parts * _TILE
