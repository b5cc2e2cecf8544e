"""Correct ``spec_token_partition`` in small steps of plain torch. Planted faults replace a step or wrap the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)


def refuse(call):
    """Everything that is wrong by the text of 3.4."""
    starts, host, mask = call.query_start_loc, call.query_start_loc_cpu, call.spec_mask_cpu
    if any(item.dim() != 1 for item in (starts, host, mask)) or mask.dtype != torch.bool:
        raise ValueError("query_start_loc: must have one dimension, as its twin, and spec_mask_cpu, which is bool")
    if not {starts.dtype, host.dtype} <= {*INTEGERS}:
        raise ValueError("query_start_loc: must be int32 or int64, and so must its twin")
    if not starts.shape[0] == host.shape[0] == mask.shape[0] + 1:
        raise ValueError("query_start_loc: must have one element more than spec_mask_cpu, and so must its twin")
    if int(host[0]) or bool((host.diff() < 0).any()) or int(host[-1]) >= 1 << 31:
        raise ValueError("query_start_loc_cpu: must start at 0, not fall, and fit int32")


def tokens_in(call):
    """How many tokens there are, from the host, which need not ask the device."""
    return int(call.query_start_loc_cpu[-1])


def mask_of(call):
    """Who speculates, on the device."""
    return torch.tensor(call.spec_mask_cpu.tolist(), dtype=torch.bool, device=call.query_start_loc.device)


def speculates(call, mask):
    """Who speculates, a token each."""
    count = tokens_in(call)
    tokens = torch.arange(count, device=mask.device)
    ends = call.query_start_loc[1:].to(torch.int64).contiguous()
    requests = torch.searchsorted(ends, tokens, right=True)
    return mask[requests.clamp(max=max(mask.shape[0] - 1, 0))]


def sizes_of(call):
    """Tokens of the part that speculates, and of the other one."""
    ranges = zip(pairwise(call.query_start_loc_cpu.tolist()), call.spec_mask_cpu.tolist(), strict=True)
    spec = sum(end - begin for (begin, end), own in ranges if own)
    return spec, tokens_in(call) - spec


def order_of(call, drafted):
    """All tokens, those first that speculate."""
    return torch.argsort(~drafted, stable=True).to(torch.int32)


def starts_of(call, own):
    """The packed starts of some requests: their lengths, summed up."""
    device = call.query_start_loc.device
    picked = torch.tensor([row for row, there in enumerate(own) if there], dtype=torch.int64, device=device)
    lengths = call.query_start_loc.diff().to(torch.int64)[picked]
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)


@dataclass(frozen=True)
class Steps:
    """How tokens are parted."""

    refuse: Callable[..., Any] = refuse
    mask: Callable[..., Any] = mask_of
    speculates: Callable[..., Any] = speculates
    sizes: Callable[..., Any] = sizes_of
    order: Callable[..., Any] = order_of
    starts: Callable[..., Any] = starts_of


def part(steps=Steps(), /, **inputs):  # frozen
    """All steps together."""
    call = SimpleNamespace(**inputs)
    steps.refuse(call)
    order = steps.order(call, steps.speculates(call, steps.mask(call)))
    spec, others = steps.sizes(call)
    mask = call.spec_mask_cpu.tolist()
    return (
        order[:spec].clone(),
        order[spec : spec + others].clone(),
        steps.starts(call, mask),
        steps.starts(call, [not own for own in mask]),
    )


def replaces(step):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: partial(part, Steps(**{step: function}))


def spec_token_partition(**inputs):
    return part(**inputs)
