"""Correct ``spec_token_partition`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from correct_partition import part, refuse, replaces, speculates, tokens_in


def returns_a_mapping(**inputs):
    names = ("spec_token_indices", "non_spec_token_indices", "spec_query_start_loc", "non_spec_query_start_loc")
    return dict(zip(names, part(**inputs), strict=True))


class Host:
    """Everything is made of the host's twin and uploaded: the device's starts are never read."""

    def __call__(self, **inputs):
        call = type("Call", (), inputs)
        refuse(call)
        ranges = list(pairwise(call.query_start_loc_cpu.tolist()))
        mask, found = call.spec_mask_cpu.tolist(), []
        for own in (True, False):
            picked = [pair for pair, drafted in zip(ranges, mask, strict=True) if drafted is own]
            found.append([token for begin, end in picked for token in range(begin, end)])
            found.append(list(accumulate((end - begin for begin, end in picked), initial=0)))
        tensors = [torch.tensor(item, dtype=torch.int32, device=call.query_start_loc.device) for item in found]
        return tensors[0], tensors[2], tensors[1], tensors[3]


host = Host()


@replaces("speculates")
def repeats_flags(call, mask):
    """A repetition of known size does not make the host wait; garbage starts are clamped to it."""
    count = tokens_in(call)
    starts = call.query_start_loc.to(torch.int64).clamp(0, count).cummax(0).values
    starts = torch.cat([starts[:-1], starts.new_full((1,), count)])
    lengths = torch.cat([starts[1:2], starts[1:].diff()]) if mask.shape[0] else starts[:0]
    return mask.repeat_interleave(lengths, output_size=count)


@replaces("speculates")
def counts_begun_requests(call, mask):
    """Compares every token with every start."""
    tokens = torch.arange(tokens_in(call), device=mask.device)
    begun = (tokens[:, None] >= call.query_start_loc[1:]).sum(1)
    return mask[begun.clamp(max=max(mask.shape[0] - 1, 0))]


@replaces("order")
def scatters_to_ranks(call, drafted):
    """The place of each token is the number of tokens before it in its part."""
    own, count = drafted.to(torch.int64), drafted.shape[0]
    places = torch.where(drafted, own.cumsum(0) - 1, own.sum() + (1 - own).cumsum(0) - 1)
    tokens = torch.arange(count, dtype=torch.int32, device=drafted.device)
    return torch.empty_like(tokens).scatter_(0, places, tokens)


@replaces("speculates")
def works_in_int32(call, mask):
    call.query_start_loc = call.query_start_loc.to(torch.int32)
    return speculates(call, mask)


def returns_parts_of_one_tensor(**inputs):
    found = part(**inputs)
    return torch.cat(found).split([item.shape[0] for item in found])
