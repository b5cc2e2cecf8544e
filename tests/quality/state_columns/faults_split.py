"""Faults of ``split_decodes_and_prefills``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_split import (
    all_decode,
    counts_of,
    first_prefill,
    flags_of,
    none_decodes,
    queries_of,
    refuse,
    replaces,
    split,
    too_long,
)

_cache: dict = {}


# Thresholds.


@replaces("too_long")
def a_decode_is_below_the_threshold(call, queries, number):
    return too_long(call, queries, number) or number >= call.decode_threshold > 1


@replaces("all_decode")
def the_longest_must_be_below_the_threshold(call, queries):
    return all_decode(call, queries) and max(queries, default=0) < call.decode_threshold


@replaces("none_decodes")
def the_first_must_be_below_the_threshold(call, queries):
    return bool(queries) and queries[0] >= call.decode_threshold


@replaces("too_long")
def takes_the_threshold_for_1(call, queries, number):
    return too_long(call, queries, number) or number > 1


@replaces("none_decodes")
def looks_at_the_first_request_like_at_any_other(call, queries):
    return False


# Uniform decodes.


@replaces("too_long")
def nothing_has_to_be_uniform(call, queries, number):
    return number > call.decode_threshold


@replaces("too_long")
def everything_has_to_be_uniform(call, queries, number):
    return number not in (queries[0], 0)


@replaces("too_long")
def padding_is_not_uniform(call, queries, number):
    return number != queries[0] if call.require_uniform else number > call.decode_threshold


@replaces("too_long")
def uniform_is_at_most_the_first(call, queries, number):
    return number > (queries[0] if call.require_uniform else call.decode_threshold)


@replaces("too_long")
def uniform_is_the_longest(call, queries, number):
    return number not in (max(queries), 0) if call.require_uniform else number > call.decode_threshold


@replaces("all_decode")
def short_batches_are_uniform(call, queries):
    return max(queries, default=0) <= call.decode_threshold and call.treat_short_extends_as_decodes


@replaces("all_decode")
def single_tokens_have_to_be_uniform(call, queries):
    return all_decode(call, queries) and not call.require_uniform


# Short extends.


@replaces("flags")
def short_extends_are_decodes(call, queries):
    return [False] * len(queries)


@replaces("flags")
def short_extends_are_prefills(call, queries):
    return [False] * len(queries) if call.is_prefilling is None else call.is_prefilling.tolist()


@replaces("all_decode")
def short_batches_are_decodes(call, queries):
    return max(queries, default=0) <= call.decode_threshold and not (call.require_uniform and call.decode_threshold > 1)


@replaces("flags")
def only_requests_with_queries_are_prefilling(call, queries):
    return [flagged and number > 1 for flagged, number in zip(flags_of(call, queries), queries, strict=True)]


@replaces("flags")
def flags_of_the_next_request(call, queries):
    flags = flags_of(call, queries)
    return [*flags[1:], *flags[:1]]


# The first prefill.


@replaces("first_prefill")
def the_first_prefill_is_a_decode(call, queries, flags, too_long):
    return min(first_prefill(call, queries, flags, too_long) + 1, len(queries))


@replaces("first_prefill")
def the_last_decode_is_a_prefill(call, queries, flags, too_long):
    first = first_prefill(call, queries, flags, too_long)
    return first - (0 < first < len(queries))


@replaces("first_prefill")
def takes_the_last_prefill(call, queries, flags, too_long):
    found = [n for n, number in enumerate(queries) if too_long(call, queries, number) or flags[n]]
    return found[-1] if found else len(queries)


@replaces("first_prefill")
def counts_decodes_wherever_they_are(call, queries, flags, too_long):
    return sum(not too_long(call, queries, number) and not flags[n] for n, number in enumerate(queries))


@replaces("first_prefill")
def takes_no_prefill_for_the_first(call, queries, flags, too_long):
    first = first_prefill(call, queries, flags, too_long)
    return 0 if first == len(queries) else first


@replaces("first_prefill")
def requests_without_queries_are_prefills(call, queries, flags, too_long):
    first = first_prefill(call, queries, flags, too_long)
    return min(first, queries.index(0)) if 0 in queries else first


@replaces("first_prefill")
def requests_without_queries_are_no_decodes_at_the_end(call, queries, flags, too_long):
    first = first_prefill(call, queries, flags, too_long)
    while first and not queries[first - 1]:
        first -= 1
    return first


@replaces("counts")
def padding_is_no_prefill(call, queries, first):
    decodes, _, *tokens = counts_of(call, queries, first)
    return decodes, sum(number > 0 for number in queries[first:]), *tokens


@replaces("counts")
def padding_is_no_decode(call, queries, first):
    _, prefills, *tokens = counts_of(call, queries, first)
    return sum(number > 0 for number in queries[:first]), prefills, *tokens


@replaces("counts")
def decode_tokens_are_decodes(call, queries, first):
    return first, len(queries) - first, first, sum(queries) - first


@replaces("counts")
def prefill_tokens_begin_behind_the_first(call, queries, first):
    return first, len(queries) - first, sum(queries[:first]), sum(queries[first + 1 :])


@replaces("counts")
def all_tokens_are_prefill_tokens(call, queries, first):
    return first, len(queries) - first, sum(queries[:first]), sum(queries) if first < len(queries) else 0


# Addresses.


@replaces("queries")
def ignores_the_stride_of_starts(call):
    return call.query_start_loc.as_strided(call.query_start_loc.shape, (1,)).diff().tolist()


@replaces("queries")
def ignores_the_offset_of_starts(call):
    return call.query_start_loc.as_strided(call.query_start_loc.shape, call.query_start_loc.stride(), 0).diff().tolist()


@replaces("queries")
def reads_int64_as_pairs_of_int32(call):
    pairs = call.query_start_loc.contiguous().view(torch.int32)
    return pairs[: call.query_start_loc.shape[0]].diff().tolist()


# Cheats.


def returns_zeros(**inputs):
    return tuple(0 for _ in split(**inputs))


def takes_all_for_prefills(**inputs):
    decodes, prefills, *tokens = split(**inputs)
    return 0, decodes + prefills, 0, sum(tokens)


def caches_by_identity(**inputs):
    if _cache.get("starts") is not inputs["query_start_loc"]:
        _cache.update(starts=inputs["query_start_loc"], counts=split(**inputs))
    return _cache["counts"]


def caches_by_shape(**inputs):
    key = (inputs["query_start_loc"].shape, *(str(value) for value in list(inputs.values())[1:]))
    return _cache.setdefault(key, split(**inputs))


def returns_tensors(**inputs):
    return torch.tensor(split(**inputs)).unbind()


def rebases_starts_in_place(**inputs):
    counts = split(**inputs)
    inputs["query_start_loc"].sub_(counts[2])
    return counts


def clears_flags_of_decodes_in_place(**inputs):
    counts = split(**inputs)
    if inputs["is_prefilling"] is not None:
        inputs["is_prefilling"][: counts[0]] = False
    return counts


# Refusals.


@replaces("refuse")
def takes_unknown_flags_for_none(call):
    if call.is_prefilling is None:
        call.is_prefilling = torch.zeros(max(call.query_start_loc.numel() - 1, 0), dtype=torch.bool)
    refuse(call)


@replaces("refuse")
def accepts_any_first_start(call):
    if call.query_start_loc.numel():
        call.query_start_loc = call.query_start_loc - call.query_start_loc[0]
    refuse(call)


@replaces("refuse")
def accepts_thresholds_of_nothing(call):
    call.decode_threshold = max(call.decode_threshold, 1)
    refuse(call)


@replaces("refuse")
def refuses_an_empty_batch(call):
    refuse(call)
    if call.query_start_loc.numel() == 1:
        raise ValueError("query_start_loc: there must be a request")


@replaces("queries")
def looks_at_the_first_request(call):
    queries = queries_of(call)
    return queries if queries[0] >= 0 else []


@replaces("refuse")
def asserts_tight_starts(call):
    refuse(call)
    assert call.query_start_loc.is_contiguous()


@replaces("none_decodes")
def a_first_request_without_queries_is_a_prefill(call, queries):
    return none_decodes(call, queries) or (bool(queries) and not queries[0])
