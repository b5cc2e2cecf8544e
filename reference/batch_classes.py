"""Batch classes: which requests of a step are decodes, prefills, or speculative decodes."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError
from reference.query_starts import query_lengths, refuse_other_size, starts_from_zero
from reference.refusals import refuse_bad_array, refuse_bad_index, refuse_bad_int


def split_decodes_and_prefills(
    query_start_loc: npt.NDArray[np.signedinteger],
    is_prefilling: npt.NDArray[np.bool_] | None,
    decode_threshold: int,
    require_uniform: bool,
    treat_short_extends_as_decodes: bool,
) -> tuple[int, int, int, int]:
    """Return ``(num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens)`` of ``R`` requests.

    A host function. A batch is decodes first, so all requests from the first prefill on count as prefills, whatever
    they are, and their tokens too. With ``q`` a request's queries:

    - Without requests there is nothing. If no request has more than ``decode_threshold`` queries, and short extends are
      decodes, all are decodes, unless they have to be uniform and the threshold is above 1.
    - Else, if the first request has more than ``decode_threshold`` queries, all are prefills.
    - Else a request is a prefill if it has more than ``decode_threshold`` queries; where decodes have to be uniform, if
      it has queries, and other than the first one. If short extends are no decodes, one that is prefilling is too.

    ``query_start_loc``
        int32 or int64 ``[R + 1]``, in tokens. The first start is 0.
    ``is_prefilling``
        bool ``[R]``, whether prompt tokens are left before the step, or ``None`` for not known.
    ``decode_threshold``
        the most queries of a decode, an ``int`` of at least 1.
    ``require_uniform``
        a ``bool``: whether decodes need one number of queries (those without any, padding, apart).
    ``treat_short_extends_as_decodes``
        a ``bool``: whether a prompt's rest of at most ``decode_threshold`` tokens is a decode.

    The results are Python ints.

    Refused (:class:`ContractError`), in this order: starts that are not one-dimensional, or neither int32 nor int64;
    an ``is_prefilling`` that is not one-dimensional or not bool; a threshold that is no ``int`` of at least 1 (a
    ``bool`` is no ``int``); a flag that is no ``bool``; starts without an element; a first start other than 0; starts
    that decrease; an ``is_prefilling`` that has not ``R`` elements; ``None`` for it where it is needed.

    Source of the definition: contracts.md, section 3.3.

    >>> split_decodes_and_prefills(np.array([0, 2, 4, 7, 7]), None, 2, True, True)
    (2, 2, 4, 3)
    """
    refuse_bad_index("query_start_loc", query_start_loc)
    if is_prefilling is not None:
        refuse_bad_array("is_prefilling", is_prefilling, 1, np.bool_)
    refuse_bad_int("decode_threshold", decode_threshold, 1)
    flags = {"require_uniform": require_uniform, "treat_short_extends_as_decodes": treat_short_extends_as_decodes}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ContractError(name, flag, "it must be a bool")
    starts = starts_from_zero("query_start_loc", query_start_loc)
    if is_prefilling is not None:
        refuse_other_size("is_prefilling", is_prefilling, len(starts) - 1, "one less than that of query_start_loc")
    elif not treat_short_extends_as_decodes:
        raise ContractError("is_prefilling", None, "it is needed where short extends are not decodes")

    queries = query_lengths(starts)
    all_short = max(queries, default=0) <= decode_threshold
    if not queries or (all_short and treat_short_extends_as_decodes and not (require_uniform and decode_threshold > 1)):
        first_prefill = len(queries)
    elif queries[0] > decode_threshold:
        first_prefill = 0
    else:
        prefilling = None if treat_short_extends_as_decodes else is_prefilling
        first_prefill = _first_prefill(queries, prefilling, decode_threshold, require_uniform)
    tokens = starts[first_prefill]
    return first_prefill, len(queries) - first_prefill, tokens, starts[-1] - tokens


def classify_linear_attention_batch(
    query_start_loc_cpu: npt.NDArray[np.signedinteger],
    seq_lens_cpu: npt.NDArray[np.signedinteger],
    is_prefilling: npt.NDArray[np.bool_] | None,
    num_decode_draft_tokens_cpu: npt.NDArray[np.signedinteger] | None,
    num_speculative_tokens: int,
) -> tuple[int, int, int, int, int, int, npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.signedinteger]]:
    """Return six counts, then ``(spec_mask, has_initial_state, prefill_query_start_loc)`` of ``R`` requests.

    A host function. The counts are ``num_decodes, num_prefills, num_spec_decodes, num_decode_tokens,
    num_prefill_tokens, num_spec_decode_tokens``.

    A request *speculates* if it has a draft count of at least 0, and the model drafts at all
    (``num_speculative_tokens > 0``).

    If one does, all others that have queries are prefills, those of one query too: there are no plain decodes. Others
    without queries are counted nowhere.

    If none does, :func:`split_decodes_and_prefills` decides, with threshold 1, where a request is prefilling if it is
    in ``is_prefilling``, has queries, and no state from before (``seq_lens_cpu <= q``). So a one-token first chunk is
    a prefill, and a one-token later chunk is a decode. Without prefills, requests without queries are decodes. With
    prefills, those after the decodes are not counted, and ``num_prefill_tokens`` is
    ``query_start_loc_cpu[num_decodes + num_prefills] - num_decode_tokens``: all tokens of prefills only where the
    requests without queries are the last ones, as padding is.

    ``query_start_loc_cpu``
        int32 or int64 ``[R + 1]``, in tokens. The first start is 0.
    ``seq_lens_cpu``
        int32 or int64 ``[R]``, in tokens, the queries included.
    ``is_prefilling``
        bool ``[R]``, whether prompt tokens are left before the step; ``None``: of no request.
    ``num_decode_draft_tokens_cpu``
        int32 or int64 ``[R]``, in tokens, -1 for a request that does not speculate; ``None``: no request does.
    ``num_speculative_tokens``
        an ``int`` of at least 0: the most drafts of a request.
    ``spec_mask``
        bool ``[R]``, whether a request speculates.
    ``has_initial_state``
        bool, an element for each request that does not speculate, decodes and those without queries included: whether
        it has state from before, ``seq_lens_cpu > q``. Without prefills ``[0]``.
    ``prefill_query_start_loc``
        the dtype of ``query_start_loc_cpu``: with the starts of the requests that do not speculate, their tokens
        packed, it is ``starts[num_decodes:] - num_decode_tokens``. Without prefills it is ``[0]``, the starts of no
        request.

    Refused (:class:`ContractError`), in this order: a tensor that is not one-dimensional, or of another dtype; a
    ``num_speculative_tokens`` that is no ``int`` of at least 0 (a ``bool`` is no ``int``); starts without an element; a
    first start other than 0; starts that decrease; sizes that disagree; a negative length.

    Source of the definition: contracts.md, section 3.5, and vLLM's `GDNAttentionMetadataBuilder.build`.

    >>> *counts, mask, state, starts = classify_linear_attention_batch(
    ...     np.array([0, 1, 2, 7]), np.array([9, 1, 5]), np.array([False, True, True]), None, 0)
    >>> counts, state.tolist(), starts.tolist()
    ([1, 2, 0, 1, 6, 0], [True, False, False], [0, 1, 6])
    """
    refuse_bad_index("query_start_loc_cpu", query_start_loc_cpu)
    refuse_bad_index("seq_lens_cpu", seq_lens_cpu)
    if is_prefilling is not None:
        refuse_bad_array("is_prefilling", is_prefilling, 1, np.bool_)
    if num_decode_draft_tokens_cpu is not None:
        refuse_bad_index("num_decode_draft_tokens_cpu", num_decode_draft_tokens_cpu)
    refuse_bad_int("num_speculative_tokens", num_speculative_tokens, 0)
    queries = query_lengths(starts_from_zero("query_start_loc_cpu", query_start_loc_cpu))
    _refuse_bad_requests(len(queries), seq_lens_cpu, is_prefilling, num_decode_draft_tokens_cpu)

    spec_mask = [False] * len(queries)
    if num_speculative_tokens > 0 and num_decode_draft_tokens_cpu is not None:
        spec_mask = [drafts >= 0 for drafts in num_decode_draft_tokens_cpu.tolist()]
    with_state = [length > number for length, number in zip(seq_lens_cpu.tolist(), queries, strict=True)]
    if any(spec_mask):
        counts = _counts_with_speculation(queries, spec_mask)
    else:
        counts = _counts_without_speculation(query_start_loc_cpu, with_state, is_prefilling)

    num_decodes, num_prefills, _, num_decode_tokens, _, _ = counts
    others = [request for request, speculates in enumerate(spec_mask) if not speculates]
    starts = list(accumulate((queries[request] for request in others), initial=0))
    has_initial_state = [with_state[request] for request in others] if num_prefills else []
    prefill_starts = [start - num_decode_tokens for start in starts[num_decodes:]] if num_prefills else [0]
    return (
        *counts,
        np.array(spec_mask, dtype=np.bool_),
        np.array(has_initial_state, dtype=np.bool_),
        np.array(prefill_starts, dtype=query_start_loc_cpu.dtype),
    )


def _first_prefill(
    queries: list[int], is_prefilling: npt.NDArray[np.bool_] | None, decode_threshold: int, require_uniform: bool
) -> int:
    """The first request that is a prefill; the number of requests if none is."""
    for request, number in enumerate(queries):
        too_long = number not in (queries[0], 0) if require_uniform else number > decode_threshold
        if too_long or (is_prefilling is not None and is_prefilling[request]):
            return request
    return len(queries)


def _counts_with_speculation(queries: list[int], spec_mask: list[bool]) -> tuple[int, int, int, int, int, int]:
    num_prefills = num_prefill_tokens = 0
    for number, speculates in zip(queries, spec_mask, strict=True):
        if not speculates and number > 0:
            num_prefills += 1
            num_prefill_tokens += number
    return 0, num_prefills, sum(spec_mask), 0, num_prefill_tokens, sum(queries) - num_prefill_tokens


def _counts_without_speculation(
    query_start_loc: npt.NDArray[np.signedinteger], with_state: list[bool], is_prefilling: npt.NDArray[np.bool_] | None
) -> tuple[int, int, int, int, int, int]:
    starts = query_start_loc.tolist()
    queries = query_lengths(starts)
    first_chunks = np.zeros(len(queries), dtype=np.bool_)
    for request, number in enumerate(queries):
        prefilling = is_prefilling is not None and bool(is_prefilling[request])
        first_chunks[request] = prefilling and number > 0 and not with_state[request]
    num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens = split_decodes_and_prefills(
        query_start_loc, first_chunks, 1, False, False
    )
    if num_prefills:
        num_prefills -= queries[num_decodes:].count(0)
        num_prefill_tokens = starts[num_decodes + num_prefills] - num_decode_tokens
    return num_decodes, num_prefills, 0, num_decode_tokens, num_prefill_tokens, 0


def _refuse_bad_requests(
    num_requests: int,
    seq_lens: npt.NDArray[np.signedinteger],
    is_prefilling: npt.NDArray[np.bool_] | None,
    draft_tokens: npt.NDArray[np.signedinteger] | None,
) -> None:
    rule = "one less than that of query_start_loc_cpu"
    refuse_other_size("seq_lens_cpu", seq_lens, num_requests, rule)
    if is_prefilling is not None:
        refuse_other_size("is_prefilling", is_prefilling, num_requests, rule)
    if draft_tokens is not None:
        refuse_other_size("num_decode_draft_tokens_cpu", draft_tokens, num_requests, rule)
    for request, length in enumerate(seq_lens.tolist()):
        if length < 0:
            raise ContractError("seq_lens_cpu", length, f"the length of request {request} must not be negative")
