"""Faults of ``classify_linear_attention_batch``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

from itertools import accumulate

import torch
from correct_classes import (
    begins,
    classify,
    first_prefill,
    flags_of,
    mask_of,
    mixed_counts,
    plain_counts,
    queries_of,
    rebased,
    refuse,
    replaces,
    states_kept,
    states_of,
)

_cache: dict = {}


# First chunks.


@replaces("first")
def one_token_is_a_decode(call, queries, first_chunks):
    return first_prefill(call, queries, [False] * len(queries))


@replaces("begins")
def prompts_are_prefills_to_their_end(number, flagged, has_state):
    return flagged and number > 0


@replaces("begins")
def idle_requests_begin(number, flagged, has_state):
    return flagged and not has_state


@replaces("begins")
def whoever_has_no_state_begins(number, flagged, has_state):
    return number > 0 and not has_state


@replaces("flags")
def everybody_prefills_if_nobody_knows(call, queries):
    return [True] * len(queries) if call.is_prefilling is None else flags_of(call, queries)


@replaces("flags")
def flags_of_the_next_request(call, queries):
    flags = flags_of(call, queries)
    return [*flags[1:], *flags[:1]]


@replaces("states")
def whole_prompts_are_states(call, queries):
    return [length >= number for length, number in zip(call.seq_lens_cpu.tolist(), queries, strict=True)]


@replaces("states")
def any_length_is_a_state(call, queries):
    return [length > 0 for length in call.seq_lens_cpu.tolist()]


@replaces("states")
def two_tokens_make_a_state(call, queries):
    return [length > max(number, 1) + 1 for length, number in zip(call.seq_lens_cpu.tolist(), queries, strict=True)]


# Decodes and prefills.


@replaces("first")
def the_first_prefill_is_a_decode(call, queries, first_chunks):
    return min(first_prefill(call, queries, first_chunks) + 1, len(queries))


@replaces("first")
def the_last_decode_is_a_prefill(call, queries, first_chunks):
    first = first_prefill(call, queries, first_chunks)
    return first - (0 < first < len(queries))


@replaces("first")
def two_tokens_are_a_decode(call, queries, first_chunks):
    return first_prefill(call, [number - (number == 2) for number in queries], first_chunks)


@replaces("first")
def idle_requests_are_no_decodes(call, queries, first_chunks):
    first = first_prefill(call, queries, first_chunks)
    return min(first, queries.index(0)) if 0 in queries else first


@replaces("plain")
def idle_requests_are_prefills(call, queries, first):
    return first, len(queries) - first, sum(queries[:first]), sum(queries[first:])


@replaces("plain")
def idle_requests_are_decodes_nowhere(call, queries, first):
    _, *others = plain_counts(call, queries, first)
    return sum(number > 0 for number in queries[:first]), *others


@replaces("plain")
def all_tokens_behind_the_decodes_count(call, queries, first):
    *counts, _ = plain_counts(call, queries, first)
    return *counts, sum(queries[first:])


@replaces("plain")
def decode_tokens_are_decodes(call, queries, first):
    decodes, prefills, _, prefill_tokens = plain_counts(call, queries, first)
    return decodes, prefills, decodes, prefill_tokens


# Speculation.


@replaces("mask")
def requests_without_drafts_speculate_not(call, queries):
    mask, drafts = mask_of(call, queries), call.num_decode_draft_tokens_cpu
    return [own and count > 0 for own, count in zip(mask, drafts.tolist(), strict=True)] if any(mask) else mask


@replaces("mask")
def drafts_count_without_a_model(call, queries):
    call.num_speculative_tokens = 1
    return mask_of(call, queries)


@replaces("mask")
def the_mask_belongs_to_the_next_request(call, queries):
    mask = mask_of(call, queries)
    return [*mask[1:], *mask[:1]]


@replaces("mask")
def whoever_has_several_queries_speculates(call, queries):
    mask = mask_of(call, queries)
    return [own and number > 1 for own, number in zip(mask, queries, strict=True)] if any(mask) else mask


@replaces("mixed")
def decodes_stay_beside_drafts(call, queries, mask):
    others = [number for number, own in zip(queries, mask, strict=True) if not own]
    _, prefills, *counts, tokens, drafted = mixed_counts(call, queries, mask)
    single = others.count(1)
    return single, prefills - single, counts[0], single, tokens - single, drafted


@replaces("mixed")
def idle_requests_beside_drafts_are_prefills(call, queries, mask):
    _, _, *counts = mixed_counts(call, queries, mask)
    return 0, mask.count(False), *counts


@replaces("mixed")
def idle_requests_do_not_speculate(call, queries, mask):
    decodes, prefills, _, *tokens = mixed_counts(call, queries, mask)
    return decodes, prefills, sum(own and number > 0 for own, number in zip(mask, queries, strict=True)), *tokens


@replaces("mixed")
def counts_drafts_for_tokens(call, queries, mask):
    *counts, _ = mixed_counts(call, queries, mask)
    return *counts, sum(max(count, 0) for count in call.num_decode_draft_tokens_cpu.tolist())


@replaces("mixed")
def requests_that_speculate_have_all_their_drafts(call, queries, mask):
    *counts, _ = mixed_counts(call, queries, mask)
    return *counts, sum(mask) * (1 + call.num_speculative_tokens)


@replaces("mixed")
def prefill_tokens_are_all_tokens(call, queries, mask):
    *counts, _, drafted = mixed_counts(call, queries, mask)
    return *counts, sum(queries), drafted


# States and starts.


@replaces("kept")
def states_of_all_requests(call, states, mask):
    return states


@replaces("kept")
def states_of_the_first_requests(call, states, mask):
    return states[: mask.count(False)]


@replaces("kept")
def states_of_prefills_only(call, states, mask):
    return [state for state, number in zip(states_kept(call, states, mask), queries_of(call), strict=False) if number]


@replaces("kept")
def nobody_has_a_state(call, states, mask):
    return [False] * mask.count(False)


@replaces("rebased")
def starts_are_not_rebased(call, others, counts):
    return list(accumulate(others, initial=0))[counts[0] :]


@replaces("rebased")
def starts_hold_tokens_that_speculate(call, others, counts):
    starts = call.query_start_loc_cpu.tolist()[counts[0] : len(others) + 1]
    return [start - counts[3] for start in starts]


@replaces("rebased")
def starts_are_less_by_the_decodes(call, others, counts):
    return [max(start - counts[0], 0) for start in list(accumulate(others, initial=0))[counts[0] :]]


@replaces("rebased")
def starts_begin_at_the_first_request(call, others, counts):
    return [max(start - counts[3], 0) for start in accumulate(others, initial=0)]


@replaces("rebased")
def idle_requests_have_no_start(call, others, counts):
    return list(accumulate([number for number in others[counts[0] :] if number], initial=0))


@replaces("rebased")
def forgets_the_total(call, others, counts):
    return rebased(call, others, counts)[:-1]


def has_starts_and_states_without_prefills(**inputs):
    *results, states, starts = classify(**inputs)
    if not results[1]:
        starts = inputs["query_start_loc_cpu"].new_zeros(inputs["query_start_loc_cpu"].shape)
    return *results, states, starts


def starts_are_int32(**inputs):
    *results, starts = classify(**inputs)
    return *results, starts.to(torch.int32)


# Addresses.


@replaces("queries")
def ignores_the_stride_of_starts(call):
    return call.query_start_loc_cpu.as_strided(call.query_start_loc_cpu.shape, (1,)).diff().tolist()


@replaces("states")
def ignores_the_stride_of_lengths(call, queries):
    call.seq_lens_cpu = call.seq_lens_cpu.as_strided(call.seq_lens_cpu.shape, (1,))
    return states_of(call, queries)


@replaces("states")
def reads_int64_as_pairs_of_int32(call, queries):
    lengths = call.seq_lens_cpu.contiguous()
    call.seq_lens_cpu = (lengths.view(torch.int32) if queries else lengths)[: len(queries)]
    return states_of(call, queries)


# Cheats.


def returns_zeros(**inputs):
    *counts, mask, states, starts = classify(**inputs)
    return *(0 for _ in counts), torch.zeros_like(mask), torch.zeros_like(states), torch.zeros_like(starts)


def caches_by_identity(**inputs):
    if _cache.get("starts") is not inputs["query_start_loc_cpu"]:
        _cache.update(starts=inputs["query_start_loc_cpu"], classes=classify(**inputs))
    return _cache["classes"]


def caches_by_shape(**inputs):
    found = classify(**inputs)
    return _cache.setdefault(tuple(item.shape for item in found[6:]), found)


def returns_its_starts_where_all_prefill(**inputs):
    *results, starts = classify(**inputs)
    given = inputs["query_start_loc_cpu"]
    return *results, given if torch.equal(given, starts) else starts


def reuses_one_output_buffer(**inputs):
    *results, starts = classify(**inputs)
    room = _cache.setdefault(("buffer", starts.dtype), torch.zeros(1 << 10, dtype=starts.dtype))
    return *results, room[: starts.shape[0]].copy_(starts)


def writes_one_start_too_far(**inputs):
    *results, starts = classify(**inputs)
    made = torch.empty(starts.shape, dtype=starts.dtype)
    made.as_strided((starts.shape[0] + 1,), (1,)).zero_()
    return *results, made.copy_(starts)


def subtracts_queries_from_lengths_in_place(**inputs):
    found = classify(**inputs)
    inputs["seq_lens_cpu"].sub_(inputs["query_start_loc_cpu"].diff())
    return found


def returns_tensors_for_counts(**inputs):
    *counts, mask, states, starts = classify(**inputs)
    return *torch.tensor(counts).unbind(), mask, states, starts


# Refusals.


@replaces("refuse")
def accepts_negative_lengths(call):
    call.seq_lens_cpu = call.seq_lens_cpu.clamp(min=0)
    refuse(call)


@replaces("refuse")
def accepts_negative_drafts(call):
    call.num_speculative_tokens = max(call.num_speculative_tokens, 0)
    refuse(call)


@replaces("refuse")
def refuses_drafts_without_a_model(call):
    refuse(call)
    drafts = call.num_decode_draft_tokens_cpu
    if drafts is not None and not call.num_speculative_tokens and (drafts >= 0).any():
        raise ValueError("num_speculative_tokens: must be above 0 where requests have drafts")


@replaces("refuse")
def needs_to_know_who_is_prefilling(call):
    refuse(call)
    if call.is_prefilling is None:
        raise ValueError("is_prefilling: must be a tensor")


@replaces("mixed")
def asserts_that_drafts_come_alone(call, queries, mask):
    counts = mixed_counts(call, queries, mask)
    assert not counts[1]
    return counts


@replaces("begins")
def begins_without_a_prompt(number, flagged, has_state):
    return begins(number, not flagged, has_state)
