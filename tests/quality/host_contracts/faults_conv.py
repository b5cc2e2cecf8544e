"""Faults of ``causal_conv1d_metadata``: the correct steps of ``correct_conv`` with one of them replaced."""

from __future__ import annotations

from itertools import pairwise

import torch
from correct_conv import causal_conv1d_metadata, counts_of, padded, programs_of, refuse

_by_identity: list = []
_workspace = torch.zeros((2, 1 << 14), dtype=torch.int32)


def numbers_requests_with_tokens_only(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    return padded(programs_of([count for count in counts_of(query_start_loc, block_m) if count]))


def drops_the_last_partial_block(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    starts = query_start_loc.tolist()
    counts = [(end - begin) // block_m for begin, end in pairwise(starts)]
    return padded(programs_of(counts))


def one_block_for_an_empty_request(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    return padded(programs_of([max(count, 1) for count in counts_of(query_start_loc, block_m)]))


def one_block_too_many_for_whole_ones(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    starts = query_start_loc.tolist()
    counts = [(end - begin) // block_m + (end > begin) for begin, end in pairwise(starts)]
    return padded(programs_of(counts))


def block_numbers_run_through(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    programs = programs_of(counts_of(query_start_loc, block_m))
    return padded([(request, number) for number, (request, _) in enumerate(programs)])


def takes_the_first_start_for_0(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    starts = query_start_loc.clone()
    starts[0] = min(0, int(starts[0]))
    return padded(programs_of(counts_of(starts, block_m)))


def cuts_at_absolute_multiples(*, query_start_loc, block_m):
    """As a Mamba chunk would be cut, by where a request lies in the batch."""
    refuse(query_start_loc, block_m)
    starts = query_start_loc.tolist()
    pairs = pairwise(starts)
    return padded(programs_of([-(-end // block_m) - begin // block_m if end > begin else 0 for begin, end in pairs]))


def knows_blocks_of_8_only(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    return padded(programs_of(counts_of(query_start_loc, 8)))


def subtracts_in_float32(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    lengths = query_start_loc.to(torch.float32).diff().to(torch.int64)
    return padded(programs_of((-(-lengths // block_m)).tolist()))


def subtracts_in_32_bits(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    lengths = query_start_loc.clamp(-(1 << 31), (1 << 31) - 1).to(torch.int32).to(torch.int64).diff()
    return padded(programs_of((-(-lengths // block_m)).tolist()))


def pads_with_0(*, query_start_loc, block_m):
    refuse(query_start_loc, block_m)
    return padded(programs_of(counts_of(query_start_loc, block_m)), padding=0)


def has_2048_programs_at_most(*, query_start_loc, block_m):
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    return batch[:2048], blocks[:2048], total


def has_no_spare_programs(*, query_start_loc, block_m):
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    return batch[: max(1024, total)], blocks[: max(1024, total)], total


def total_counts_the_padding(*, query_start_loc, block_m):
    batch, blocks, _ = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    return batch, blocks, batch.numel()


def total_in_a_tensor(*, query_start_loc, block_m):
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    return batch, blocks, torch.tensor(total)


def requests_in_one_byte(*, query_start_loc, block_m):
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    return batch.to(torch.int8).to(torch.int32), blocks, total


def columns_in_int64(*, query_start_loc, block_m):
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    return batch.to(torch.int64), blocks.to(torch.int64), total


def leaves_the_padding_unwritten(*, query_start_loc, block_m):
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    column = torch.empty(batch.shape, dtype=torch.int32)
    column[:total] = batch[:total]
    return column, blocks, total


def accepts_falling_starts(*, query_start_loc, block_m):
    refuse(query_start_loc.cummax(0).values if query_start_loc.dim() == 1 else query_start_loc, block_m)
    return padded(programs_of([max(count, 0) for count in counts_of(query_start_loc, block_m)]))


def accepts_any_multiple_of_8(*, query_start_loc, block_m):
    refuse(query_start_loc, 8 if block_m > 0 and block_m % 8 == 0 else block_m)
    return padded(programs_of(counts_of(query_start_loc, block_m)))


def refuses_an_empty_batch(*, query_start_loc, block_m):
    if query_start_loc.shape == (1,):
        raise ValueError("query_start_loc: there must be a request")
    return causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)


def caches_by_identity(*, query_start_loc, block_m):
    if not (_by_identity and _by_identity[0] is query_start_loc and _by_identity[1] == block_m):
        result = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
        _by_identity[:] = [query_start_loc, block_m, result]
    return _by_identity[2]


def reuses_its_buffers(*, query_start_loc, block_m):
    """As a persistent buffer that grows and is filled again for every batch."""
    batch, blocks, total = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    size = batch.numel()
    return _workspace[0, :size].copy_(batch), _workspace[1, :size].copy_(blocks), total


def rebases_its_input_in_place(*, query_start_loc, block_m):
    result = causal_conv1d_metadata(query_start_loc=query_start_loc, block_m=block_m)
    query_start_loc -= query_start_loc[0].clone()
    return result
