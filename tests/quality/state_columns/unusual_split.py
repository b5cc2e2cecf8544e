"""Correct ``split_decodes_and_prefills`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import numpy as np
from correct_split import refuse, replaces, split

_cache: dict = {}


def returns_a_mapping(**inputs):
    names = ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens", "batch")
    return dict(zip(names, (*split(**inputs), None), strict=True))


@replaces("first_prefill")
def goes_backwards(call, queries, flags, too_long):
    first = len(queries)
    for request in reversed(range(len(queries))):
        if too_long(call, queries, queries[request]) or flags[request]:
            first = request
    return first


@replaces("first_prefill")
def searches_with_numpy(call, queries, flags, too_long):
    long = np.array([too_long(call, queries, number) for number in queries], bool)
    found = np.flatnonzero(long | np.array(flags, bool))
    return int(found[0]) if found.size else len(queries)


@replaces("counts")
def takes_tokens_from_starts(call, queries, first):
    starts = call.query_start_loc.numpy()
    return first, len(queries) - first, int(starts[first]), int(starts[-1]) - int(starts[first])


def caches_by_content(**inputs):
    """A cache that may be kept: its key is everything the result depends on."""
    key = tuple(str(value.tolist() if hasattr(value, "tolist") else value) for value in inputs.values())
    return _cache.setdefault(key, split(**inputs))


@replaces("refuse")
def copies_its_inputs(call):
    call.query_start_loc = call.query_start_loc.clone()
    refuse(call)


class Splitter:
    """A callable object."""

    def __call__(self, **inputs):
        return list(split(**inputs))


splitter = Splitter()
