"""Predicates of known findings for contracts 3.1 to 3.5: which inputs show a fault that upstream still has.

An input has what a fault needs, and upstream's arithmetic, followed step by step, goes astray or ends elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import Expected, Refused, Values
from oracles.contracts import _batch_classes, _state_rows
from oracles.contracts import _state_upstream as upstream
from oracles.contracts._sparse_upstream import number, tensor
from oracles.contracts._state_upstream import MOST, Kernel
from oracles.contracts.block_table_known import Seen
from oracles.contracts.sparse_known import Follow, Predicate, bound, look, named

_FOLLOWED: Mapping[Kernel, Follow] = {
    "align": partial(upstream.columns, kernel="align"),
    "kimi": partial(upstream.columns, kernel="kimi"),
    "groups": partial(upstream.columns, kernel="groups"),
}


def _allowed(ask: Callable[[Inputs], Expected], inputs: Inputs) -> bool:
    return not isinstance(ask(inputs), Refused)


# 3.1: mamba_get_block_table_tensor and its kernels


def gathers_past_the_row(inputs: Inputs) -> bool:
    """A state's column that the table does not have, gathered by torch."""
    aligned = inputs["mamba_cache_mode"] != "none" and _allowed(_state_rows.columns_expected, inputs)
    return aligned and _past_the_row(inputs)


def _columns(inputs: Inputs, kernel: Kernel) -> Seen | None:
    if kernel == "groups" and inputs["mamba_cache_mode"] == "none":
        return None
    return look(inputs, _FOLLOWED[kernel], _state_rows.columns_expected, "state_indices")


def _past_the_row(inputs: Inputs) -> bool:
    found = upstream.gathered_columns(inputs)
    return bool(((found < 0) | (found >= tensor(inputs, "block_table").shape[1])).any())


def stride_that_does_not_compile(inputs: Inputs, kernel: Kernel) -> bool:
    """A stride of 2^31 or more that is a compile-time constant."""
    if _columns(inputs, kernel) is None or inputs["mamba_cache_mode"] == "none":
        return False
    return any(stride > MOST for stride in upstream.constants(inputs, kernel))


def columns_elsewhere(inputs: Inputs, kernel: Kernel) -> bool:
    """A state's column that the table does not have, or that a product in 32 bits does not reach.

    Of the kernel for all groups also a table whose columns do not lie side by side.
    """
    seen = _columns(inputs, kernel)
    return seen is not None and seen.shows and not stride_that_does_not_compile(inputs, kernel)


def columns_far_away(inputs: Inputs, kernel: Kernel) -> bool:
    """A state's column so far from the table that hardware may look for it elsewhere."""
    seen = _columns(inputs, kernel)
    if seen is None or stride_that_does_not_compile(inputs, kernel):
        return False
    return isinstance(seen.expected, Values) and upstream.far_columns(inputs, kernel)


# 3.2: stage_spec_decode_metadata


def _staged(inputs: Inputs) -> Seen | None:
    return look(inputs, upstream.staged, _state_rows.staging_expected, *upstream.STAGED)


def staged_stride_that_does_not_compile(inputs: Inputs) -> bool:
    """A stride of a state tensor of 2^31 or more, a compile-time constant."""
    seen = _staged(inputs)
    return seen is not None and any(stride > MOST for stride in upstream.staging_constants(inputs))


def staged_vectors_apart(inputs: Inputs) -> bool:
    """Starts, accepted tokens, or their buffers, whose elements do not lie side by side; or states far apart."""
    seen = _staged(inputs)
    return seen is not None and seen.shows and not staged_stride_that_does_not_compile(inputs)


def rows_to_stage(inputs: Inputs) -> bool:
    """A step with speculative rows."""
    return _allowed(_state_rows.staging_expected, inputs) and tensor(inputs, "state_indices").shape[0] > 0


# 3.3: split_decodes_and_prefills


def _queries(inputs: Inputs, name: str, ask: Callable[[Inputs], Expected]) -> np.ndarray | None:
    """Queries of each request; ``None`` for an input that promises no values."""
    return np.diff(tensor(inputs, name).data) if isinstance(ask(inputs), Values) else None


def no_requests_to_split(inputs: Inputs) -> bool:
    """A step without requests, of which the first is looked at."""
    queries = _queries(inputs, "query_start_loc", _batch_classes.split_expected)
    if queries is None or queries.size:
        return False
    uniform = inputs["require_uniform"] and number(inputs, "decode_threshold") > 1
    return bool(uniform or not inputs["treat_short_extends_as_decodes"])


def _split_until(inputs: Inputs, release: str) -> list[int] | None:
    """What releases until one gave: until 0.30 padding broke uniformity, until 0.24 ``is_prefilling`` did not count."""
    queries = _queries(inputs, "query_start_loc", _batch_classes.split_expected)
    if queries is None or not queries.size:
        return None
    threshold, short = number(inputs, "decode_threshold"), inputs["treat_short_extends_as_decodes"] is True
    uniform, starts = inputs["require_uniform"] is True, tensor(inputs, "query_start_loc").data
    tokens = int(starts[-1])
    if queries.max() <= threshold and short and not (uniform and threshold > 1):
        return [queries.size, 0, tokens, 0]
    if queries[0] > threshold:
        return [0, queries.size, 0, tokens]
    prefills = queries != queries[0] if uniform else queries > threshold
    if uniform and (short or release == "0.24") and ((queries == queries[0]) | (queries == 0)).all():
        return [queries.size, 0, tokens, 0]
    if not short:
        prefills = prefills | (cast(Array, inputs["is_prefilling"]).data != 0)
    if not prefills.any():
        return [queries.size, 0, tokens, 0]
    first = int(np.argmax(prefills))
    return [first, queries.size - first, int(starts[first]), tokens - int(starts[first])]


def _split_wrongly(inputs: Inputs, release: str) -> bool:
    given, expected = _split_until(inputs, release), _batch_classes.split_expected(inputs)
    if given is None or not isinstance(expected, Values):
        return False
    return given != [expected.outputs[name] for name in _batch_classes.SPLIT]


def padding_is_no_uniform_decode(inputs: Inputs) -> bool:
    """Padding among requests that have to be uniform: until 0.30 it was a prefill."""
    return _split_wrongly(inputs, "0.30")


def uniform_prefills_are_decodes(inputs: Inputs) -> bool:
    """The same, and until 0.24 uniform requests were decodes though some had a prompt left."""
    return _split_wrongly(inputs, "0.24")


# 3.4: build, its token indices


def _partition(inputs: Inputs) -> tuple[np.ndarray, np.ndarray] | None:
    """Queries and mask of a step in which a request speculates; ``None`` of any other."""
    if not _allowed(_batch_classes.partition_expected, inputs):
        return None
    mask = tensor(inputs, "spec_mask_cpu").data != 0
    return (np.diff(tensor(inputs, "query_start_loc_cpu").data), mask) if mask.any() else None


def _agreeing(inputs: Inputs) -> bool:
    return isinstance(_batch_classes.partition_expected(inputs), Values)


def no_requests_to_part(inputs: Inputs) -> bool:
    """A step without requests, of which the first is looked at."""
    return _agreeing(inputs) and not tensor(inputs, "spec_mask_cpu").data.size


def others_have_tokens(inputs: Inputs) -> bool:
    """Tokens of requests that speculate, and of others."""
    seen = _partition(inputs)
    return seen is not None and _agreeing(inputs) and bool(seen[0][~seen[1]].any())


def somebody_speculates(inputs: Inputs) -> bool:
    """A step in which a request speculates."""
    return _partition(inputs) is not None and _agreeing(inputs)


def padding_before_speculation(inputs: Inputs) -> bool:
    """Requests without tokens in front of others, all of which speculate."""
    seen = _partition(inputs)
    if seen is None or not _agreeing(inputs) or others_have_tokens(inputs):
        return False
    queries, mask = seen
    starts = np.concatenate([[0], np.cumsum(queries)])[: mask.sum() + 1]
    return not np.array_equal(starts, np.concatenate([[0], np.cumsum(queries[mask])]))


def device_start_past_all_tokens(inputs: Inputs) -> bool:
    """A start on the device behind the last one, in a step with tokens of both kinds."""
    seen = _partition(inputs)
    if seen is None or _agreeing(inputs) or not seen[0][~seen[1]].any():
        return False
    # torch compares how many tokens the rows sum up to with the host's number, and then writes row after row.
    ends = np.cumsum(np.diff(tensor(inputs, "query_start_loc").data), dtype=np.int64)
    total = seen[0].sum()
    return bool(ends[-1] == total and ends.max() > total)


# 3.5: build, its classes


def _classes(inputs: Inputs) -> tuple[np.ndarray, np.ndarray] | None:
    """Queries, and drafts of requests that speculate; ``None`` for an input that the contract refuses."""
    queries = _queries(inputs, "query_start_loc_cpu", _batch_classes.classes_expected)
    if queries is None:
        return None
    drafts = inputs["num_decode_draft_tokens_cpu"]
    if not isinstance(drafts, Array) or not inputs["num_speculative_tokens"]:
        return queries, np.zeros(0, np.int64)
    return queries, drafts.data[drafts.data >= 0]


def no_requests_to_class(inputs: Inputs) -> bool:
    """A step without requests, of which the first is looked at."""
    seen = _classes(inputs)
    return seen is not None and not seen[0].size


def speculation_without_drafts(inputs: Inputs) -> bool:
    """Requests that speculate, none of which has drafted anything: until 0.31 that was no speculation."""
    seen = _classes(inputs)
    return seen is not None and bool(seen[1].size) and not seen[1].sum()


def classes_without_state(inputs: Inputs) -> bool:
    """Requests that do not speculate, classed until 0.30 by their queries alone, without a look at their state."""
    seen = _classes(inputs)
    expected = _batch_classes.classes_expected(inputs)
    if seen is None or seen[1].size or not isinstance(expected, Values):
        return False
    given = _classed_by_queries(seen[0])
    return given != [expected.outputs[name] for name in _batch_classes.CLASSES[:6]]


def _classed_by_queries(queries: np.ndarray) -> list[int]:
    long = np.flatnonzero(queries > 1)
    first = int(long[0]) if long.size else queries.size
    tokens = int(queries[:first].sum())
    return [first, queries.size - first, 0, tokens, int(queries.sum()) - tokens, 0]


STATE_COLUMNS: dict[str, Predicate] = {
    **named(gathers_past_the_row),
    **bound("align", "align", columns_elsewhere, columns_far_away),
    **bound("kimi", "kimi", columns_elsewhere, columns_far_away, stride_that_does_not_compile),
    **bound("groups", "groups", columns_elsewhere, stride_that_does_not_compile),
    "every_case": partial(_allowed, _state_rows.columns_expected),
}
STAGE_DECODE_STATE: dict[str, Predicate] = {
    **named(staged_stride_that_does_not_compile, staged_vectors_apart, rows_to_stage),
    "every_case": partial(_allowed, _state_rows.staging_expected),
}
SPLIT_DECODES_AND_PREFILLS = named(no_requests_to_split, padding_is_no_uniform_decode, uniform_prefills_are_decodes)
SPEC_TOKEN_PARTITION = named(
    no_requests_to_part,
    others_have_tokens,
    somebody_speculates,
    padding_before_speculation,
    device_start_past_all_tokens,
)
CLASSIFY = named(no_requests_to_class, speculation_without_drafts, classes_without_state)
