"""Correct ``dcp_local_seq_lens`` in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(call):
    """Everything that is wrong by the text."""
    if call.seq_lens.dtype not in INTEGERS:
        raise ValueError("seq_lens: must be int32 or int64")
    if call.dcp_size < 1 or call.interleave < 1:
        raise ValueError("dcp_size, interleave: must be at least 1")
    if call.dcp_rank is not None and not 0 <= call.dcp_rank < call.dcp_size:
        raise ValueError("dcp_rank: must be in 0..dcp_size-1")


def lengths_of(call):
    """Tokens of each sequence."""
    return call.seq_lens.to(torch.int64)


def counted(call, lengths):
    """Negative lengths count as none."""
    return lengths.clamp(min=0)


def ranks_of(call):
    """The ranks that are asked for: one, or all."""
    if call.dcp_rank is None:
        return torch.arange(call.dcp_size, device=call.seq_lens.device)
    return torch.full((1,), call.dcp_rank, device=call.seq_lens.device)


def whole(call, lengths):
    """Tokens of a rank in rounds in which all had their turn."""
    return lengths // (call.dcp_size * call.interleave) * call.interleave


def left(call, lengths):
    """Tokens of the last round."""
    return lengths % (call.dcp_size * call.interleave)


def turn(call, rest, ranks):
    """Tokens of each rank in the last round."""
    return (rest - ranks * call.interleave).clamp(0, call.interleave)


def result(call, shares):
    """``[..., ranks]`` as it is returned."""
    return (shares if call.dcp_rank is None else shares[..., 0]).to(torch.int32)


@dataclass(frozen=True)
class Steps:
    """How shares are counted."""

    refuse: Callable[..., Any] = refuse
    lengths: Callable[..., Any] = lengths_of
    counted: Callable[..., Any] = counted
    ranks: Callable[..., Any] = ranks_of
    whole: Callable[..., Any] = whole
    left: Callable[..., Any] = left
    turn: Callable[..., Any] = turn
    result: Callable[..., Any] = result


def share(steps=Steps(), /, **call):  # frozen
    """All steps together."""
    call = SimpleNamespace(**call)
    steps.refuse(call)
    lengths = steps.counted(call, steps.lengths(call))[..., None]
    shares = steps.whole(call, lengths) + steps.turn(call, steps.left(call, lengths), steps.ranks(call))
    return (steps.result(call, shares),)


def replaces(step):
    """Makes a function that takes a step's place the count that has it."""
    return lambda function: partial(share, Steps(**{step: function}))


def dcp_local_seq_lens(*, seq_lens, dcp_size, dcp_rank, interleave):
    return share(**locals())
