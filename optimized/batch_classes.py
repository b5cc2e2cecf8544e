"""Batch classes, computed on the host: which requests of a step are decodes, prefills, or speculative decodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import ContractError
from optimized.query_starts import refuse_not_on_cpu, refuse_other_size, starts_from_zero
from optimized.refusals import refuse_bad_index, refuse_bad_int, refuse_bad_tensor

_INT64_MAX = 2**63 - 1

_Counts = tuple[int, int, int, int, int, int]
_Flags = npt.NDArray[np.bool_]
_Lengths = npt.NDArray[np.int64]


def split_decodes_and_prefills(
    *,
    query_start_loc: torch.Tensor,
    is_prefilling: torch.Tensor | None,
    decode_threshold: int,
    require_uniform: bool,
    treat_short_extends_as_decodes: bool,
) -> tuple[int, int, int, int]:
    """Return ``(num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens)`` of ``R`` requests, Python ints.

    Decodes come first: all requests from the first prefill on count as prefills, whatever they are.

    ``query_start_loc``
        int32 or int64 ``[R + 1]`` on the CPU, any stride, in tokens; the first start is 0.
    ``is_prefilling``
        bool ``[R]`` on the CPU, any stride: whether prompt tokens are left before the step. ``None`` for not known.
    ``decode_threshold``
        the most queries of a decode, an ``int`` of at least 1.
    ``require_uniform``
        a ``bool``: whether decodes need one number of queries (those without any, padding, apart).
    ``treat_short_extends_as_decodes``
        a ``bool``: whether a prompt's rest of at most ``decode_threshold`` tokens is a decode.

    Refused (:class:`ContractError`): a tensor that is not one-dimensional, of another dtype, or not on the CPU; a
    threshold that is no ``int`` of at least 1 (a ``bool`` is no ``int``); a flag that is no ``bool``; starts without an
    element, with a first one other than 0, or that decrease; an ``is_prefilling`` that has not ``R`` elements, or is
    ``None`` where short extends are not decodes.

    Source of the definition: contracts.md, section 3.3.
    """
    refuse_bad_index("query_start_loc", query_start_loc)
    if is_prefilling is not None:
        refuse_bad_tensor("is_prefilling", is_prefilling, 1, torch.bool)
    refuse_bad_int("decode_threshold", decode_threshold, 1)
    flags = {"require_uniform": require_uniform, "treat_short_extends_as_decodes": treat_short_extends_as_decodes}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ContractError(name, flag, "it must be a bool")
    starts = starts_from_zero("query_start_loc", query_start_loc)
    if is_prefilling is not None:
        _refuse_bad_request_tensor("is_prefilling", is_prefilling, starts.size - 1, "query_start_loc")
    elif not treat_short_extends_as_decodes:
        raise ContractError("is_prefilling", None, "it is needed where short extends are not decodes")
    first_chunks = None if is_prefilling is None or treat_short_extends_as_decodes else is_prefilling.numpy()
    return _split(starts, first_chunks, min(decode_threshold, _INT64_MAX), require_uniform)


def classify_linear_attention_batch(
    *,
    query_start_loc_cpu: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    is_prefilling: torch.Tensor | None,
    num_decode_draft_tokens_cpu: torch.Tensor | None,
    num_speculative_tokens: int,
) -> tuple[int, int, int, int, int, int, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return six counts, then ``(spec_mask, has_initial_state, prefill_query_start_loc)``, of ``R`` requests.

    The counts are ``num_decodes, num_prefills, num_spec_decodes, num_decode_tokens, num_prefill_tokens,
    num_spec_decode_tokens``, Python ints. All tensors are on the CPU.

    A request speculates if it has a draft count of at least 0, and ``num_speculative_tokens > 0``. If one does, all
    others that have queries are prefills, and those without are counted nowhere. If none does,
    :func:`split_decodes_and_prefills` decides, with threshold 1 and with the first chunks of prompts as what is
    prefilling: a one-token first chunk is a prefill, a later one a decode.

    ``query_start_loc_cpu``
        int32 or int64 ``[R + 1]``, any stride, in tokens; the first start is 0.
    ``seq_lens_cpu``
        int32 or int64 ``[R]``, any stride, in tokens, the queries included.
    ``is_prefilling``
        bool ``[R]``, any stride: whether prompt tokens are left before the step. ``None``: of no request.
    ``num_decode_draft_tokens_cpu``
        int32 or int64 ``[R]``, any stride, in tokens, -1 for a request that does not speculate. ``None``: none does.
    ``num_speculative_tokens``
        an ``int`` of at least 0: the most drafts of a request.
    ``spec_mask``
        bool ``[R]``: whether a request speculates.
    ``has_initial_state``
        bool, an element for each request that does not speculate: whether it has more tokens than queries. Without
        prefills ``[0]``.
    ``prefill_query_start_loc``
        the dtype of ``query_start_loc_cpu``: the packed starts of the requests that do not speculate, from the first
        prefill on, less the decodes' tokens. Without prefills ``[0]``, with the one element 0.

    Refused (:class:`ContractError`): a tensor that is not one-dimensional, of another dtype, or not on the CPU; a
    ``num_speculative_tokens`` that is no ``int`` of at least 0 (a ``bool`` is no ``int``); starts without an element,
    with a first one other than 0, or that decrease; sizes that disagree; a negative length.

    Source of the definition: contracts.md, section 3.5, and vLLM's `GDNAttentionMetadataBuilder.build`.
    """
    refuse_bad_index("query_start_loc_cpu", query_start_loc_cpu)
    refuse_bad_index("seq_lens_cpu", seq_lens_cpu)
    if is_prefilling is not None:
        refuse_bad_tensor("is_prefilling", is_prefilling, 1, torch.bool)
    if num_decode_draft_tokens_cpu is not None:
        refuse_bad_index("num_decode_draft_tokens_cpu", num_decode_draft_tokens_cpu)
    refuse_bad_int("num_speculative_tokens", num_speculative_tokens, 0)
    starts = starts_from_zero("query_start_loc_cpu", query_start_loc_cpu)
    lengths = _lengths_of("seq_lens_cpu", seq_lens_cpu, starts.size - 1)
    prefilling, drafts = np.zeros(lengths.size, np.bool_), None
    if is_prefilling is not None:
        _refuse_bad_request_tensor("is_prefilling", is_prefilling, lengths.size, "query_start_loc_cpu")
        prefilling = is_prefilling.numpy()
    if num_decode_draft_tokens_cpu is not None:
        name = "num_decode_draft_tokens_cpu"
        _refuse_bad_request_tensor(name, num_decode_draft_tokens_cpu, lengths.size, "query_start_loc_cpu")
        drafts = num_decode_draft_tokens_cpu.numpy() if num_speculative_tokens else None
    spec_mask = np.zeros(lengths.size, np.bool_) if drafts is None else drafts >= 0
    return _classify(starts, lengths, prefilling, spec_mask, query_start_loc_cpu.dtype)


def _classify(
    starts: _Lengths, lengths: _Lengths, prefilling: _Flags, spec_mask: _Flags, dtype: torch.dtype
) -> tuple[int, int, int, int, int, int, torch.Tensor, torch.Tensor, torch.Tensor]:
    queries, others = np.diff(starts), ~spec_mask
    with_state = lengths > queries
    if spec_mask.any():
        counts = _counts_with_speculation(queries, spec_mask)
    else:
        counts = _counts_without_speculation(starts, queries, prefilling & (queries > 0) & ~with_state)
    num_decodes, num_prefills, _, num_decode_tokens, _, _ = counts
    if num_prefills:
        has_initial_state = with_state[others]
        packed = np.concatenate(([0], np.cumsum(queries[others])))
        prefill_starts = packed[num_decodes:] - num_decode_tokens
    else:
        has_initial_state, prefill_starts = np.empty(0, np.bool_), np.zeros(1, np.int64)
    tensors = spec_mask.copy(), has_initial_state, prefill_starts
    mask, state, rebased = (torch.from_numpy(tensor) for tensor in tensors)
    return (*counts, mask, state, rebased.to(dtype))


def _split(
    starts: _Lengths, prefilling: _Flags | None, decode_threshold: int, require_uniform: bool
) -> tuple[int, int, int, int]:
    """``prefilling`` says which short requests are no decodes; ``None``: all are decodes."""
    queries = np.diff(starts)
    num_requests = queries.size
    any_width = prefilling is None and (not require_uniform or decode_threshold == 1)
    if queries.max(initial=0) <= decode_threshold and any_width:
        first_prefill = num_requests
    elif num_requests and queries[0] > decode_threshold:
        first_prefill = 0
    else:
        prefills = queries > decode_threshold
        if require_uniform:
            prefills = (queries != queries[:1]) & (queries != 0)
        if prefilling is not None:
            prefills = prefills | prefilling
        first_prefill = int(prefills.argmax()) if prefills.any() else num_requests
    tokens = int(starts[first_prefill])
    return first_prefill, num_requests - first_prefill, tokens, int(starts[-1]) - tokens


def _counts_with_speculation(queries: _Lengths, spec_mask: _Flags) -> _Counts:
    of_others = queries[~spec_mask]
    num_prefill_tokens = int(of_others.sum())
    num_prefills, num_spec_decodes = np.count_nonzero(of_others), np.count_nonzero(spec_mask)
    return 0, int(num_prefills), int(num_spec_decodes), 0, num_prefill_tokens, int(queries.sum()) - num_prefill_tokens


def _counts_without_speculation(starts: _Lengths, queries: _Lengths, first_chunks: _Flags) -> _Counts:
    num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens = _split(starts, first_chunks, 1, False)
    if num_prefills:
        num_prefills = int(np.count_nonzero(queries[num_decodes:]))
        num_prefill_tokens = int(starts[num_decodes + num_prefills]) - num_decode_tokens
    return num_decodes, num_prefills, 0, num_decode_tokens, num_prefill_tokens, 0


def _lengths_of(name: str, lengths: torch.Tensor, num_requests: int) -> _Lengths:
    _refuse_bad_request_tensor(name, lengths, num_requests, "query_start_loc_cpu")
    values: _Lengths = lengths.numpy().astype(np.int64)
    negative = values < 0
    if negative.any():
        request = int(negative.argmax())
        raise ContractError(name, int(values[request]), f"the length of request {request} must not be negative")
    return values


def _refuse_bad_request_tensor(name: str, tensor: torch.Tensor, num_requests: int, starts: str) -> None:
    refuse_not_on_cpu(name, tensor)
    refuse_other_size(name, tensor, num_requests, f"one less than that of {starts}")
