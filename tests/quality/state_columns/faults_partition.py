"""Faults of ``spec_token_partition``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_partition import mask_of, order_of, part, refuse, replaces, sizes_of, speculates, starts_of, tokens_in

_cache: dict = {}


# Tokens.


@replaces("speculates")
def ends_belong_to_the_request_before(call, mask):
    tokens = torch.arange(tokens_in(call), device=mask.device)
    ends = call.query_start_loc[1:].to(torch.int64).contiguous()
    return mask[torch.searchsorted(ends, tokens).clamp(max=max(mask.shape[0] - 1, 0))]


@replaces("speculates")
def takes_tokens_for_requests(call, mask):
    tokens = torch.arange(tokens_in(call), device=mask.device)
    return mask[tokens % max(mask.shape[0], 1)]


@replaces("speculates")
def forgets_the_last_token(call, mask):
    drafted = speculates(call, mask).clone()
    drafted[-1:] = False
    return drafted


@replaces("speculates")
def requests_that_speculate_come_first(call, mask):
    """As if the batch were in order."""
    return torch.arange(tokens_in(call), device=mask.device) < sizes_of(call)[0]


@replaces("speculates")
def only_drafts_speculate(call, mask):
    """A request's first token is no draft."""
    drafted, tokens = speculates(call, mask), torch.arange(tokens_in(call), device=mask.device)
    starts = call.query_start_loc[:-1].to(torch.int64)
    return drafted & ~torch.isin(tokens, starts)


@replaces("mask")
def the_mask_is_inverted(call):
    return ~mask_of(call)


@replaces("mask")
def the_mask_belongs_to_the_next_request(call):
    return mask_of(call).roll(1)


@replaces("mask")
def the_mask_is_taken_without_idle_requests(call):
    mask, queries = mask_of(call), call.query_start_loc_cpu.diff().tolist()
    kept = sorted(range(len(queries)), key=lambda row: not queries[row])
    return mask[torch.tensor(kept, dtype=torch.int64, device=mask.device)]


@replaces("order")
def turns_tokens_that_speculate_round(call, drafted):
    order, spec = order_of(call, drafted), sizes_of(call)[0]
    return torch.cat([order[:spec].flip(0), order[spec:]])


@replaces("order")
def numbers_each_part_from_zero(call, drafted):
    order = order_of(call, drafted)
    return torch.where(drafted[order], order, order - sizes_of(call)[0])


@replaces("order")
def puts_others_first(call, drafted):
    return order_of(call, ~drafted)


@replaces("order")
def knows_64_tokens(call, drafted):
    order = order_of(call, drafted)
    return torch.where(order < 64, order, 0)


@replaces("order")
def counts_from_one(call, drafted):
    return order_of(call, drafted) + 1


@replaces("order")
def has_int64_indices(call, drafted):
    return order_of(call, drafted).to(torch.int64)


@replaces("sizes")
def counts_requests_that_speculate(call):
    spec = sum(call.spec_mask_cpu.tolist())
    return min(spec, tokens_in(call)), max(tokens_in(call) - spec, 0)


@replaces("sizes")
def drops_the_last_other_token(call):
    spec, others = sizes_of(call)
    return spec, max(others - 1, 0)


# Starts.


@replaces("starts")
def starts_are_not_rebased(call, own):
    picked = torch.tensor([row for row, there in enumerate([*own, True]) if there], device=call.query_start_loc.device)
    return call.query_start_loc[picked].to(torch.int32)


@replaces("starts")
def starts_are_rebased_to_the_first(call, own):
    picked = torch.tensor([row for row, there in enumerate([*own, True]) if there], device=call.query_start_loc.device)
    starts = call.query_start_loc[picked].to(torch.int32)
    return starts - starts[:1]


@replaces("starts")
def idle_requests_have_no_start(call, own):
    queries = call.query_start_loc_cpu.diff().tolist()
    return starts_of(call, [there and number > 0 for there, number in zip(own, queries, strict=True)])


@replaces("starts")
def starts_begin_with_the_first_length(call, own):
    return starts_of(call, own).roll(-1)


@replaces("starts")
def forgets_the_total(call, own):
    starts = starts_of(call, own)
    return torch.cat([starts[:-1], starts[-2:-1] if starts.shape[0] > 1 else starts])


@replaces("starts")
def counts_requests(call, own):
    return torch.arange(sum(own) + 1, dtype=torch.int32, device=call.query_start_loc.device)


@replaces("starts")
def an_empty_part_has_no_start(call, own):
    return starts_of(call, own)[: sum(own) + any(own)]


# Addresses.


@replaces("starts")
def ignores_the_stride_of_starts(call, own):
    call.query_start_loc = call.query_start_loc.as_strided(call.query_start_loc.shape, (1,))
    return starts_of(call, own)


@replaces("starts")
def reads_int64_as_pairs_of_int32(call, own):
    count = call.query_start_loc.shape[0]
    call.query_start_loc = call.query_start_loc.contiguous().view(torch.int32)[:count]
    return starts_of(call, own)


# Cheats.


def returns_zeros(**inputs):
    return tuple(torch.zeros_like(item) for item in part(**inputs))


@replaces("order")
def returns_tokens_in_order(call, drafted):
    return torch.arange(tokens_in(call), dtype=torch.int32, device=drafted.device)


def caches_by_identity(**inputs):
    if _cache.get("mask") is not inputs["spec_mask_cpu"]:
        _cache.update(mask=inputs["spec_mask_cpu"], parts=part(**inputs))
    return tuple(item.clone() for item in _cache["parts"])


def caches_by_shape(**inputs):
    found = part(**inputs)
    key = tuple(item.shape for item in found)
    return tuple(item.clone() for item in _cache.setdefault(key, found))


def returns_its_starts_where_all_speculate(**inputs):
    spec, others, starts, other_starts = part(**inputs)
    given = inputs["query_start_loc"]
    whole = inputs["spec_mask_cpu"].all() and given.dtype == torch.int32
    return spec, others, given if whole else starts, other_starts


def reuses_one_output_buffer(**inputs):
    spec, *others = part(**inputs)
    return _cache.setdefault(spec.shape[0], spec.clone()).copy_(spec), *others


def writes_one_token_too_far(**inputs):
    spec, *others = part(**inputs)
    made = torch.empty(spec.shape, dtype=spec.dtype, device=inputs["query_start_loc"].device)
    made.as_strided((spec.shape[0] + 1,), (1,)).zero_()
    return made.copy_(spec), *others


def inverts_the_mask_in_place(**inputs):
    found = part(**inputs)
    inputs["spec_mask_cpu"].logical_not_()
    return found


@replaces("speculates")
def reads_starts_on_the_host(call, mask):
    counts = torch.tensor(call.query_start_loc.tolist(), dtype=torch.int64, device=mask.device).diff()
    return mask.repeat_interleave(counts.clamp(0, 1 << 12), output_size=tokens_in(call))


@replaces("speculates")
def repeats_without_a_size(call, mask):
    return mask.repeat_interleave(call.query_start_loc.diff().clamp(0, 1 << 12))


def looks_for_tokens_by_nonzero(**inputs):
    spec, others, *starts = part(**inputs)
    drafted = torch.zeros(spec.shape[0] + others.shape[0], dtype=torch.bool, device=spec.device)
    drafted[spec.to(torch.int64)] = True
    return drafted.nonzero().view(-1).to(torch.int32), others, *starts


# Refusals.


@replaces("refuse")
def accepts_a_longer_mask(call):
    call.spec_mask_cpu = call.spec_mask_cpu[: max(call.query_start_loc_cpu.shape[0] - 1, 0)]
    refuse(call)


@replaces("refuse")
def accepts_any_first_start(call):
    call.query_start_loc_cpu = call.query_start_loc_cpu - call.query_start_loc_cpu[:1]
    refuse(call)


@replaces("refuse")
def accepts_flags_of_int32(call):
    call.spec_mask_cpu = call.spec_mask_cpu.to(torch.bool)
    refuse(call)


@replaces("refuse")
def refuses_batches_without_drafts(call):
    refuse(call)
    if not call.spec_mask_cpu.any():
        raise ValueError("spec_mask_cpu: must have a request that speculates")


@replaces("refuse")
def asserts_that_requests_have_tokens(call):
    refuse(call)
    assert (call.query_start_loc_cpu.diff() > 0).all()


@replaces("refuse")
def looks_at_the_first_request(call):
    refuse(call)
    call.spec_mask_cpu.tolist()[0]
