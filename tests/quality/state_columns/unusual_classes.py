"""Correct ``classify_linear_attention_batch`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import numpy as np
import torch
from correct_classes import classify, replaces

_cache: dict = {}
NAMES = (
    "num_decodes",
    "num_prefills",
    "num_spec_decodes",
    "num_decode_tokens",
    "num_prefill_tokens",
    "num_spec_decode_tokens",
    "spec_mask",
    "has_initial_state",
    "prefill_query_start_loc",
)


def returns_a_mapping(**inputs):
    return dict(zip(NAMES, classify(**inputs), strict=True))


def returns_numpy_memory(**inputs):
    *counts, mask, states, starts = classify(**inputs)
    return [*counts, *(torch.from_numpy(np.array(item.numpy())) for item in (mask, states, starts))]


@replaces("first")
def goes_backwards(call, queries, first_chunks):
    first = len(queries)
    for request in reversed(range(first)):
        first = request if queries[request] > 1 or first_chunks[request] else first
    return first


@replaces("states")
def compares_positions_of_first_queries(call, queries):
    """A request has a state if its first query is not at position 0."""
    first = call.seq_lens_cpu.numpy().astype(np.int64) - np.array(queries, np.int64)
    return (first > 0).tolist()


def drafts_none_where_nobody_drafts(**inputs):
    """Takes another path to the same classes."""
    drafts = inputs["num_decode_draft_tokens_cpu"]
    if drafts is not None and drafts.dtype in (torch.int32, torch.int64) and not (drafts >= 0).any():
        classify(**inputs)
        return classify(**inputs | {"num_decode_draft_tokens_cpu": None})
    return classify(**inputs)


def returns_parts_of_larger_tensors(**inputs):
    *counts, mask, states, starts = classify(**inputs)
    both = torch.cat([states, mask, states])
    wide = torch.stack([starts, starts + 1], 1)
    return *counts, both[len(states) : len(states) + len(mask)], both[: len(states)], wide[:, 0]


class Classifier:
    """A callable object that keeps what it has seen, by content."""

    def __call__(self, **inputs):
        key = tuple(self.content(value) for value in inputs.values())
        if key not in _cache:
            _cache[key] = classify(**inputs)
        *counts, mask, states, starts = _cache[key]
        return *counts, mask.clone(), states.clone(), starts.clone()

    def content(self, value):
        return (value.dtype, str(value.tolist())) if isinstance(value, torch.Tensor) else value


classifier = Classifier()
