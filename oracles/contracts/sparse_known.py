"""Predicates of known findings for contracts 2.1 to 2.6: which inputs show a fault that upstream still has.

An input has what a fault needs, and upstream's arithmetic, followed step by step, goes astray or ends elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from oracles.arrays import Inputs
from oracles.contract import Expected, Refused, Values
from oracles.contracts import _local_lengths, _mla_layout, _page_indices, _sparse_lengths
from oracles.contracts import _sparse_upstream as upstream
from oracles.contracts._sparse_upstream import Expansion, Traced, apart, number, tensor
from oracles.contracts.block_table_known import Seen

Predicate = Callable[[Inputs], bool]
Follow = Callable[[Inputs], Traced]

_last: dict[Follow, tuple[Inputs, Seen | None]] = {}


def look(inputs: Inputs, follow: Follow, ask: Callable[[Inputs], Expected], *names: str) -> Seen | None:
    """What one call does, its results in the order of ``names``; ``None`` where the contract refuses.

    All predicates of a case ask about the same call, so the last one is kept.
    """
    if follow not in _last or _last[follow][0] is not inputs:
        expected = ask(inputs)
        seen = None
        if not isinstance(expected, Refused):
            wanted = [expected.outputs[name] for name in names] if isinstance(expected, Values) else []
            seen = Seen(follow(inputs), expected, tuple(np.asarray(item) for item in wanted))
        _last[follow] = (inputs, seen)
    return _last[follow][1]


def left(seen: Seen, *names: str) -> bool:
    """Whether the call leaves one of these tensors."""
    return isinstance(seen.effect, Traced) and not seen.effect.left.isdisjoint(names)


# 2.1: generate_sparse_seqlen_triton


def _lengths(inputs: Inputs) -> Seen | None:
    return look(inputs, upstream.sparse_lengths, _sparse_lengths.expected, *_sparse_lengths.OUTPUTS)


def _side_by_side(inputs: Inputs) -> bool:
    return not (apart(tensor(inputs, "seq_lens")) or apart(tensor(inputs, "query_start_loc")))


def lengths_or_starts_apart(inputs: Inputs) -> bool:
    """Lengths or starts that do not lie side by side."""
    seen = _lengths(inputs)
    return seen is not None and seen.shows and not _side_by_side(inputs)


def starts_of_the_device(inputs: Inputs) -> bool:
    """Device starts for which queries lie outside the tokens."""
    seen = _lengths(inputs)
    return seen is not None and left(seen, "sparse_seq_lens") and _side_by_side(inputs)


def fewer_tokens_than_queries(inputs: Inputs) -> bool:
    """A sequence shorter than its queries, or a negative length."""
    seen = _lengths(inputs)
    return seen is not None and seen.wrong and _side_by_side(inputs)


# 2.2: the conversions of top-k tokens


def _slots(inputs: Inputs, follow: Follow) -> Seen | None:
    return look(inputs, follow, _page_indices.sparse_expected, *_page_indices.SPARSE_OUTPUTS)


def no_slot_is_slot_0(inputs: Inputs) -> bool:
    """A top-k entry without a slot: none chosen, past the request's blocks, of no request."""
    seen = _slots(inputs, upstream.ragged)
    if seen is None or not seen.settled:
        return False
    written = np.logical_not(seen.effect.untouched[0])
    return bool((seen.differing[0] & written & (seen.results[0] == -1)).any())


def refilled_without_slots(inputs: Inputs) -> bool:
    """A right result that becomes wrong when the same tensors are filled with entries without a slot."""
    seen = _slots(inputs, upstream.ragged)
    if seen is None or not seen.settled or seen.wrong:
        return False
    return any(no_slot_is_slot_0(other) for other in _page_indices.sparse_resample(inputs))


def row_past_its_columns(inputs: Inputs, follow: Follow) -> bool:
    """A row that is longer than there are top-k columns."""
    seen = _slots(inputs, follow)
    return seen is not None and seen.left_over


def request_without_a_row(inputs: Inputs, follow: Follow) -> bool:
    """A request that is no row of the table, and a token to look up there."""
    seen = _slots(inputs, follow)
    return seen is not None and left(seen, "block_table")


def request_of_a_wrapped_row(inputs: Inputs, follow: Follow) -> bool:
    """A request whose row's place wraps in 32 bits into the table."""
    seen = _slots(inputs, follow)
    if seen is None or not seen.settled:
        return False
    written = np.logical_not(seen.effect.untouched[0])
    return bool((seen.differing[0] & written & (seen.results[0] == -1) & (seen.effect.results[0] >= 0)).any())


def elements_without_a_place(inputs: Inputs, follow: Follow) -> bool:
    """Starts that lead out of the buffer, or elements apart."""
    seen = _slots(inputs, follow)
    return seen is not None and seen.shows and left(seen, "paged_kv_indices")


def ragged_starts_apart(inputs: Inputs, follow: Follow) -> bool:
    """Starts that do not lie side by side."""
    seen = _slots(inputs, follow)
    return seen is not None and seen.shows and left(seen, "paged_kv_indptr")


# 2.3: _build_decode, its page indices


def _pages(inputs: Inputs, expansion: Expansion) -> Seen | None:
    # Upstream does not come that far without requests.
    names = ("paged_kv_indices", "paged_kv_indptr")
    return look(inputs, _FOLLOWED[expansion], _page_indices.dense_expected, *names)


_FOLLOWED: Mapping[Expansion, Follow] = {
    "chunks": partial(upstream.expanded, expansion="chunks"),
    "rows": partial(upstream.expanded, expansion="rows"),
    "rows by lengths": partial(upstream.expanded, expansion="rows by lengths"),
}


def _outside_the_row(inputs: Inputs) -> bool:
    most = tensor(inputs, "block_table").shape[1] * number(inputs, "kernel_block_size")
    lengths = tensor(inputs, "seq_lens").data
    return bool(((lengths < 0) | (lengths > most)).any())


def no_decode_rows(inputs: Inputs) -> bool:
    """A step without requests."""
    return not tensor(inputs, "seq_lens").data.size and not isinstance(_page_indices.dense_expected(inputs), Refused)


def more_tokens_than_a_run_can_write(inputs: Inputs, expansion: Expansion) -> bool:
    """A length so large that a program does not end in time."""
    seen = _pages(inputs, expansion)
    return seen is not None and seen.effect.endless


def length_outside_the_row(inputs: Inputs, expansion: Expansion) -> bool:
    """A length that is negative, or more tokens than the row has."""
    seen = _pages(inputs, expansion)
    if seen is None or not seen.shows or not _outside_the_row(inputs):
        return False
    # Where lengths are read elsewhere, starts show it, but for a length that is none in 32 bits.
    return not left(seen, "seq_lens") or bool(seen.differing[1].any())


def tables_or_pages_apart(inputs: Inputs, expansion: Expansion) -> bool:
    """A layout that upstream does not take: of the buffer any but a plain one; of the table what 32 bits do not reach.

    Until 0.31 also a table whose columns do not lie side by side.
    """
    seen = _pages(inputs, expansion)
    if seen is None or not seen.shows or left(seen, "seq_lens"):
        return False
    if seen.settled and not seen.differing[0].any():
        return False
    return apart(tensor(inputs, "paged_kv_indices")) or not _outside_the_row(inputs)


def decode_lengths_apart(inputs: Inputs) -> bool:
    """Lengths that do not lie side by side."""
    seen = _pages(inputs, "rows by lengths")
    return seen is not None and seen.shows and left(seen, "seq_lens")


# 2.4: lengths of a rank


def _local(inputs: Inputs, found: np.ndarray) -> bool:
    expected = _local_lengths.expected(inputs)
    if not isinstance(expected, Values):
        return False
    return not np.array_equal(np.asarray(expected.outputs["local_seq_lens"]), found)


def _lengths_are_narrow(inputs: Inputs) -> bool:
    lengths = tensor(inputs, "seq_lens").data
    return bool((lengths == lengths.astype(np.int32)).all())


def negative_local_length(inputs: Inputs) -> bool:
    """A negative length, which is divided downwards."""
    wrong = isinstance(_local_lengths.expected(inputs), Values) and _local(inputs, upstream.local_lengths(inputs))
    return wrong and _lengths_are_narrow(inputs)


def local_length_past_int32(inputs: Inputs) -> bool:
    """A length that int32 does not hold, though it holds a rank's share."""
    wrong = isinstance(_local_lengths.expected(inputs), Values) and _local(inputs, upstream.local_lengths(inputs))
    return wrong and not _lengths_are_narrow(inputs)


def _by_kernel(inputs: Inputs) -> tuple[bool, bool] | None:
    """Whether the kernel's lengths are wrong, and whether it reads nothing else."""
    if isinstance(_local_lengths.expected(inputs), Refused):
        return None
    found, inside = upstream.local_lengths_by_kernel(inputs)
    return _local(inputs, found), inside


def local_lengths_apart(inputs: Inputs) -> bool:
    """Lengths that do not lie side by side, for the kernel."""
    seen = _by_kernel(inputs)
    return seen is not None and not seen[1]


def negative_round_of_the_kernel(inputs: Inputs) -> bool:
    """A length so far below zero that the kernel counts a round of all ranks."""
    seen = _by_kernel(inputs)
    return seen is not None and seen == (True, True)


def no_vector(inputs: Inputs) -> bool:
    """Lengths of another number of dimensions than one, which releases until 0.24 did not take."""
    legal = isinstance(_local_lengths.expected(inputs), Values)
    return legal and tensor(inputs, "seq_lens").data.ndim != 1


def all_ranks_of_one(inputs: Inputs) -> bool:
    """All ranks of one: releases until 0.24 dropped that dimension."""
    legal = isinstance(_local_lengths.expected(inputs), Values)
    one = inputs["dcp_rank"] is None and inputs["dcp_size"] == 1
    return legal and one and tensor(inputs, "seq_lens").data.ndim == 1


# 2.6: _build_decode, its rows


def _queries(inputs: Inputs) -> np.ndarray | None:
    """Queries of each row, by the host; ``None`` for an input that promises no values."""
    if not isinstance(_mla_layout.expected(inputs), Values):
        return None
    return np.diff(tensor(inputs, "query_start_loc_cpu").data)


def no_rows_to_lay_out(inputs: Inputs) -> bool:
    """A step without rows, of which the most queries are asked."""
    legal = isinstance(_mla_layout.expected(inputs), Values)
    return legal and not tensor(inputs, "seq_lens").data.size and not inputs["varlen_width"]


def padding_gets_a_query(inputs: Inputs) -> bool:
    """Rows of at most one query, some of none, in a step without graphs."""
    queries = _queries(inputs)
    if queries is None or inputs["full_graph"] or inputs["varlen_width"] or not queries.size:
        return False
    layout = _mla_layout.expected(inputs)
    assert isinstance(layout, Values)
    starts = np.asarray(layout.outputs["qo_indptr"])
    return layout.outputs["max_qo_len"] == 1 and not np.array_equal(starts, np.arange(starts.size))


def rows_as_they_were(inputs: Inputs) -> bool:
    """Rows that need another layout than the plain one, or, without graphs, have not one query each: until 0.24."""
    queries, layout = _queries(inputs), _mla_layout.expected(inputs)
    if queries is None or inputs["varlen_width"] or not queries.size or not isinstance(layout, Values):
        return False
    starts = tensor(inputs, "query_start_loc").data if inputs["full_graph"] else np.arange(queries.size + 1)
    given = {"kernel_seq_lens": tensor(inputs, "seq_lens").data, "qo_indptr": starts, "max_qo_len": queries.max()}
    return any(not np.array_equal(np.asarray(layout.outputs[name]), value) for name, value in given.items())


def bound(suffix: str, argument: object, *predicates: Callable[..., bool]) -> dict[str, Predicate]:
    """The predicates of one of upstream's ways to do it."""
    return {f"{item.__name__}_{suffix}": partial(_with, item, argument) for item in predicates}


def _with(predicate: Callable[..., bool], argument: object, inputs: Inputs) -> bool:
    return predicate(inputs, argument)


def named(*predicates: Predicate) -> dict[str, Predicate]:
    """Predicates under the names of their functions."""
    return {predicate.__name__: predicate for predicate in predicates}


def _every_case(ask: Callable[[Inputs], Expected]) -> dict[str, Predicate]:
    """Every input that the contract allows."""
    return {"every_case": lambda inputs: not isinstance(ask(inputs), Refused)}


_RAGGED = (row_past_its_columns, request_without_a_row, elements_without_a_place, ragged_starts_apart)
_LOOPS: tuple[Expansion, ...] = ("rows", "rows by lengths")

SPARSE_INDPTR = {
    **named(lengths_or_starts_apart, starts_of_the_device, fewer_tokens_than_queries),
    **_every_case(_sparse_lengths.expected),
}
SPARSE_PAGE_INDICES: dict[str, Predicate] = {
    **named(no_slot_is_slot_0, refilled_without_slots),
    **bound("ragged", upstream.ragged, *_RAGGED),
    **bound("fetched", upstream.fetched, *_RAGGED, request_of_a_wrapped_row),
    **bound("packed", upstream.packed, request_without_a_row, request_of_a_wrapped_row),
    **_every_case(_page_indices.sparse_expected),
}
DENSE_PAGE_INDICES: dict[str, Predicate] = {
    **named(no_decode_rows, decode_lengths_apart),
    **bound("chunks", "chunks", length_outside_the_row, tables_or_pages_apart),
    **{
        name: predicate
        for loop in _LOOPS
        for name, predicate in bound(
            loop.replace(" ", "_"),
            loop,
            length_outside_the_row,
            tables_or_pages_apart,
            more_tokens_than_a_run_can_write,
        ).items()
    },
    **_every_case(_page_indices.dense_expected),
}
DCP_LOCAL_SEQ_LENS = {
    **named(
        negative_local_length,
        local_length_past_int32,
        local_lengths_apart,
        negative_round_of_the_kernel,
        no_vector,
        all_ranks_of_one,
    ),
    **_every_case(_local_lengths.expected),
}
MLA_DECODE_LAYOUT = named(no_rows_to_lay_out, padding_gets_a_query, rows_as_they_were)
