"""MLA decode layout: the rows of queries and of KV entries that a paged MLA decode kernel works on."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError, OnlyMemorySafety
from reference.query_starts import no_values_where_twins_differ, query_lengths, refuse_other_size, starts_from_zero
from reference.refusals import refuse_bad_index, refuse_bad_int

_INT32_MAX = 2**31 - 1
_LEAST_LENGTH = 1


def mla_decode_layout(
    query_start_loc: npt.NDArray[np.signedinteger],
    query_start_loc_cpu: npt.NDArray[np.signedinteger],
    seq_lens: npt.NDArray[np.signedinteger],
    num_decode_tokens: int,
    varlen_width: int,
    full_graph: bool,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], int, int]:
    """Return ``(kernel_seq_lens, paged_kv_indptr, qo_indptr, max_qo_len, min_kv_seq_len)`` of ``R`` decode rows.

    Row ``r`` has ``q`` queries, ``query_start_loc[r]`` to ``query_start_loc[r + 1]``. There are three layouts:

    *adaptive varlen* (``varlen_width`` ``W > 0``): each row is given ``W`` queries, and the kernel length
    ``seq_lens[r] + (W - q)``, so that the ones that exist see what they would see alone.

    *padded uniform* (``W = 0``; a CUDA graph's rows of ``u > 1`` queries): each row is given ``u`` queries; rows
    without any get the kernel length ``u``, the others keep ``seq_lens[r]``. It is chosen where
    ``u = num_decode_tokens / R`` is an integer, there are more tokens than queries, the rows without queries are the
    last ones, at least one, and all others have ``u``.

    *plain* (else): rows keep their queries, padding rows have none, and the kernel length is ``seq_lens[r]``.

    ``query_start_loc``, ``query_start_loc_cpu``
        int32 or int64 ``[R + 1]``, in tokens; the host's twin holds the same. The first start is 0.
    ``seq_lens``
        int32 or int64 ``[R]``, in tokens, the queries included; this rank's share under context parallelism.
    ``num_decode_tokens``
        an ``int`` of at least ``query_start_loc_cpu[R]``: tokens with the padding of a CUDA graph.
    ``varlen_width``
        ``W``, an ``int`` of at least 0, and 0 or at least every row's queries.
    ``full_graph``
        a ``bool``, whether the results go into the buffers of a CUDA graph. The values are the same: without a graph
        too, padding rows of the plain layout have no query.
    ``kernel_seq_lens``
        int32 ``[R]``, in tokens.
    ``paged_kv_indptr``
        int32 ``[R + 1]``, in tokens (a page is one token): 0, then the running sum of ``kernel_seq_lens``.
    ``qo_indptr``
        int32 ``[R + 1]``, in queries: multiples of ``W`` or ``u``; in the plain layout ``query_start_loc``.
    ``max_qo_len``
        ``W``, ``u``, or the most queries of a row (0 without rows).
    ``min_kv_seq_len``
        1: the lower bound of a sequence's length that is known without waiting for the device, which alone holds the
        lengths. Rows of length 0 may be there all the same.

    Refused (:class:`ContractError`), in this order: a tensor that is not one-dimensional, or neither int32 nor int64;
    an ``int`` that is none or below 0 (a ``bool`` is no ``int``), a ``full_graph`` that is no ``bool``; sizes that
    disagree; a first host start other than 0; host starts that decrease; fewer tokens than the last host start; a row
    of more than ``W > 0`` queries; more queries of all rows, as the layout has them, than int32 counts.

    No values are promised (:class:`OnlyMemorySafety`) where the device's starts are not the host's, for a negative
    length, and where the running sum is more than int32 holds.

    Source of the definition: contracts.md, section 2.6, and vLLM's `AiterMLAMetadataBuilder`.

    >>> starts = np.array([0, 2, 4, 4])
    >>> lengths, kv, qo, most, least = mla_decode_layout(starts, starts, np.array([9, 5, 0]), 6, 0, True)
    >>> lengths.tolist(), kv.tolist(), qo.tolist(), most, least
    ([9, 5, 2], [0, 9, 14, 16], [0, 2, 4, 6], 2, 1)
    """
    refuse_bad_index("query_start_loc", query_start_loc)
    refuse_bad_index("query_start_loc_cpu", query_start_loc_cpu)
    refuse_bad_index("seq_lens", seq_lens)
    refuse_bad_int("num_decode_tokens", num_decode_tokens, 0)
    refuse_bad_int("varlen_width", varlen_width, 0)
    if not isinstance(full_graph, bool):
        raise ContractError("full_graph", full_graph, "it must be a bool")
    refuse_other_size("query_start_loc", query_start_loc, seq_lens.size + 1, "one more than that of seq_lens")
    refuse_other_size("query_start_loc_cpu", query_start_loc_cpu, query_start_loc.size, "that of query_start_loc")
    starts = starts_from_zero("query_start_loc_cpu", query_start_loc_cpu)
    queries = query_lengths(starts)
    _refuse_bad_counts(starts[-1], queries, num_decode_tokens, varlen_width)
    uniform = 0 if varlen_width else _padded_uniform_width(queries, num_decode_tokens)
    qo_starts = _query_rows(starts, varlen_width or uniform, "varlen_width" if varlen_width else "num_decode_tokens")
    no_values_where_twins_differ("query_start_loc", query_start_loc, starts)

    lengths = []
    for row, length in enumerate(seq_lens.tolist()):
        if length < 0:
            raise OnlyMemorySafety(f"the length of row {row} is {length}")
        lengths.append(_kernel_length(length, queries[row], varlen_width, uniform))
    if sum(lengths) > _INT32_MAX:
        raise OnlyMemorySafety(f"the kernel lengths sum to {sum(lengths)}, more than int32 holds")
    return (
        np.array(lengths, dtype=np.int32),
        np.array(list(accumulate(lengths, initial=0)), dtype=np.int32),
        np.array(qo_starts, dtype=np.int32),
        varlen_width or uniform or max(queries, default=0),
        _LEAST_LENGTH,
    )


def _kernel_length(length: int, num_queries: int, varlen_width: int, uniform: int) -> int:
    if varlen_width:
        return length + varlen_width - num_queries
    if uniform and num_queries == 0:
        return uniform
    return length


def _padded_uniform_width(queries: list[int], num_decode_tokens: int) -> int:
    """``u`` of the padded uniform layout; 0 where the plain one is right."""
    if not queries or num_decode_tokens % len(queries) != 0:
        return 0
    width = num_decode_tokens // len(queries)
    with_queries = [number for number in queries if number > 0]
    padding_trails = queries[: len(with_queries)] == with_queries
    all_uniform = all(number == width for number in with_queries)
    if width > 1 and num_decode_tokens > sum(queries) and padding_trails and all_uniform:
        return width
    return 0


def _query_rows(starts: list[int], width: int, given_by: str) -> list[int]:
    """``qo_indptr``: rows of ``width`` queries, or, where that is 0, the rows as they are."""
    rows = [row * width for row in range(len(starts))] if width else starts
    if rows[-1] > _INT32_MAX:
        name = given_by if width else "query_start_loc_cpu"
        raise ContractError(name, rows[-1], "the queries of all rows must fit int32")
    return rows


def _refuse_bad_counts(num_queries: int, queries: list[int], num_decode_tokens: int, varlen_width: int) -> None:
    if num_decode_tokens < num_queries:
        rule = f"it must be at least the last start of query_start_loc_cpu, {num_queries}"
        raise ContractError("num_decode_tokens", num_decode_tokens, rule)
    for row, number in enumerate(queries):
        if 0 < varlen_width < number:
            rule = f"it must be 0 or at least the queries of row {row}, {number}"
            raise ContractError("varlen_width", varlen_width, rule)
