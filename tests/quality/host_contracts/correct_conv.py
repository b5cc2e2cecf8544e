"""A correct ``causal_conv1d_metadata`` in small steps. Each planted fault replaces one step or wraps the whole."""

from __future__ import annotations

from itertools import pairwise

import torch

INTEGERS = (torch.int32, torch.int64)
SIZES = (8, 16, 32, 64)


def refuse(query_start_loc, block_m):
    """Everything that is wrong by the text."""
    if block_m not in SIZES:
        raise ValueError(f"block_m: {block_m} is none of {SIZES}")
    if query_start_loc.dim() != 1 or not query_start_loc.numel() or query_start_loc.dtype not in INTEGERS:
        raise ValueError("query_start_loc: must be [P+1], int32 or int64")
    if bool((query_start_loc[1:] < query_start_loc[:-1]).any()):
        raise ValueError("query_start_loc: must not fall")
    if max(counts_of(query_start_loc, block_m), default=0) > 1 << 31:
        raise ValueError("query_start_loc: a request has more blocks than int32 can number")


def counts_of(query_start_loc, block_m):
    """Blocks of each request, as Python ints: a difference of starts can need one bit more than they have."""
    starts = query_start_loc.tolist()
    return [-((begin - end) // block_m) for begin, end in pairwise(starts)]


def programs_of(counts):
    """Request and block of each program."""
    return [(request, block) for request, count in enumerate(counts) for block in range(count)]


def padded(programs, padding=-1, least=1024):
    """The two columns and the total."""
    total = len(programs)
    columns = torch.full((2, 2 * max(least, total)), padding, dtype=torch.int32)
    if programs:
        columns[:, :total] = torch.tensor(programs, dtype=torch.int32).T
    return columns[0].clone(), columns[1].clone(), total


def causal_conv1d_metadata(*, query_start_loc, block_m):
    """All steps together."""
    refuse(query_start_loc, block_m)
    return padded(programs_of(counts_of(query_start_loc, block_m)))
