"""MLA decode layout: the rows of queries and of KV entries that a paged MLA decode kernel works on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from optimized.errors import ContractError
from optimized.launching import device_of, step_of
from optimized.query_starts import refuse_other_size, starts_from_zero
from optimized.refusals import refuse_bad_index, refuse_bad_int, refuse_other_devices

_INT32_MAX = 2**31 - 1

_LEAST_LENGTH = 1
"""``min_kv_seq_len``: what is known of the kernel lengths without a look at the device."""

# Of the kernel.
_TILE = tl.constexpr(256)

# Every runtime argument: a count, a stride, an address or its alignment never makes Triton compile again.
_ARGUMENTS = ["query_start_loc", "start_stride", "seq_lens", "length_stride", "kernel_seq_lens", "paged_kv_indptr"]
_ARGUMENTS += ["qo_indptr", "num_rows", "width", "adaptive"]


def mla_decode_layout(
    *,
    query_start_loc: torch.Tensor,
    query_start_loc_cpu: torch.Tensor,
    seq_lens: torch.Tensor,
    num_decode_tokens: int,
    varlen_width: int,
    full_graph: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
    """Return ``(kernel_seq_lens, paged_kv_indptr, qo_indptr, max_qo_len, min_kv_seq_len)`` of ``R`` decode rows.

    One launch makes the tensors, on the device of ``seq_lens``. There are three layouts of rows with ``q`` queries:

    *adaptive varlen* (``varlen_width`` ``W > 0``): a row is given ``W`` queries, and ``seq_lens[r] + (W - q)`` entries.

    *padded uniform* (``W = 0``; a CUDA graph's rows of ``u > 1`` queries): a row is given ``u`` queries, one without
    queries of its own ``u`` entries. Chosen where ``u = num_decode_tokens / R`` is an integer, there are more tokens
    than queries, the rows without queries are the last ones, at least one, and all others have ``u``.

    *plain* (else): rows are what they are.

    ``query_start_loc``, ``seq_lens``
        int32 or int64 ``[R + 1]`` and ``[R]``, in tokens, any strides; never read on the host.
    ``query_start_loc_cpu``
        int32 or int64 ``[R + 1]`` on the CPU, any stride: the same starts. The layout follows from it.
    ``num_decode_tokens``
        an ``int`` of at least ``query_start_loc_cpu[R]``: tokens with the padding of a CUDA graph.
    ``varlen_width``
        ``W``, an ``int`` of at least 0, and 0 or at least every row's queries.
    ``full_graph``
        a ``bool``. No result depends on it: without a graph too, padding rows of the plain layout have no query.
    ``kernel_seq_lens``
        int32 ``[R]``, in tokens.
    ``paged_kv_indptr``
        int32 ``[R + 1]``, in tokens: 0, then the running sum of ``kernel_seq_lens``.
    ``qo_indptr``
        int32 ``[R + 1]``, in queries: multiples of ``W`` or ``u``; in the plain layout ``query_start_loc``.
    ``max_qo_len``
        ``W``, ``u``, or the most queries of a row (0 without rows).
    ``min_kv_seq_len``
        1, the bound that needs no look at the device. The lengths are there, and the host does not wait for them.

    Refused (:class:`ContractError`) before anything is allocated: a tensor that is not one-dimensional, or neither
    int32 nor int64; ints below 0 (a ``bool`` is no ``int``), a ``full_graph`` that is no ``bool``; sizes that disagree;
    a twin that is not on the CPU, a first host start other than 0, host starts that decrease; fewer tokens than the
    last of them; a row of more than ``W > 0`` queries; more queries of all rows than int32 counts; tensors on several
    devices. Any device values are memory-safe.

    Source of the definition: contracts.md, section 2.6, and vLLM's `AiterMLAMetadataBuilder`.
    """
    starts = ("query_start_loc", query_start_loc), ("query_start_loc_cpu", query_start_loc_cpu)
    for name, tensor in (*starts, ("seq_lens", seq_lens)):
        refuse_bad_index(name, tensor)
    refuse_bad_int("num_decode_tokens", num_decode_tokens, 0)
    refuse_bad_int("varlen_width", varlen_width, 0)
    if not isinstance(full_graph, bool):
        raise ContractError("full_graph", full_graph, "it must be a bool")
    refuse_other_size("query_start_loc", query_start_loc, seq_lens.numel() + 1, "one more than that of seq_lens")
    refuse_other_size("query_start_loc_cpu", query_start_loc_cpu, query_start_loc.numel(), "that of query_start_loc")
    queries = np.diff(starts_from_zero("query_start_loc_cpu", query_start_loc_cpu))
    longest, width = _widths(queries, num_decode_tokens, varlen_width)
    refuse_other_devices(seq_lens.device, starts[:1])
    tensors = _launch(query_start_loc, seq_lens, width, adaptive=varlen_width > 0)
    return (*tensors, width or longest, _LEAST_LENGTH)


def _widths(queries: npt.NDArray[np.int64], num_decode_tokens: int, varlen_width: int) -> tuple[int, int]:
    """The most queries of a row, and what every row is given (0: what it has), or a refusal."""
    num_queries, longest = int(queries.sum()), int(queries.max(initial=0))
    if num_decode_tokens < num_queries:
        rule = f"it must be at least the last start of query_start_loc_cpu, {num_queries}"
        raise ContractError("num_decode_tokens", num_decode_tokens, rule)
    if 0 < varlen_width < longest:
        rule = f"it must be 0 or at least the queries of row {int(queries.argmax())}, {longest}"
        raise ContractError("varlen_width", varlen_width, rule)
    width = varlen_width or _uniform_width(queries, num_queries, num_decode_tokens)
    rows_queries = queries.size * width if width else num_queries
    if rows_queries > _INT32_MAX:
        name = "query_start_loc_cpu" if not width else "varlen_width" if varlen_width else "num_decode_tokens"
        raise ContractError(name, rows_queries, "the queries of all rows must fit int32")
    return longest, width


def _uniform_width(queries: npt.NDArray[np.int64], num_queries: int, num_decode_tokens: int) -> int:
    """``u`` of the padded uniform layout; 0 where the plain one is right."""
    num_rows = queries.size
    if num_rows == 0 or num_decode_tokens % num_rows != 0 or num_decode_tokens == num_queries:
        return 0
    width = num_decode_tokens // num_rows
    num_live = np.count_nonzero(queries)
    if width > 1 and num_queries == num_live * width and bool((queries[:num_live] == width).all()):
        return width
    return 0


def _launch(
    query_start_loc: torch.Tensor, seq_lens: torch.Tensor, width: int, adaptive: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_rows = seq_lens.numel()
    kernel_seq_lens = seq_lens.new_empty((num_rows,), dtype=torch.int32)
    paged_kv_indptr = seq_lens.new_empty((num_rows + 1,), dtype=torch.int32)
    qo_indptr = seq_lens.new_empty((num_rows + 1,), dtype=torch.int32)
    with device_of(seq_lens):
        _layout_kernel[(1,)](
            query_start_loc,
            step_of(query_start_loc, 0),
            seq_lens,
            step_of(seq_lens, 0),
            kernel_seq_lens,
            paged_kv_indptr,
            qo_indptr,
            num_rows,
            min(width, _INT32_MAX),  # More is legal only without rows.
            int(adaptive),
            num_warps=1,
        )
    return kernel_seq_lens, paged_kv_indptr, qo_indptr


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def _layout_kernel(
    query_start_loc,
    start_stride: tl.int64,
    seq_lens,
    length_stride: tl.int64,
    kernel_seq_lens,
    paged_kv_indptr,
    qo_indptr,
    num_rows: tl.int64,
    width: tl.int64,
    adaptive: tl.int64,
):
    """One program does all rows: a batch of decodes is one tile, or a few, and a running sum needs them in order."""
    places = tl.arange(0, _TILE)
    row, entries = tl.zeros((), tl.int64), tl.zeros((), tl.int32)
    tl.store(paged_kv_indptr, entries)
    tl.store(qo_indptr, tl.where(width > 0, 0, tl.load(query_start_loc).to(tl.int32)))
    while row < num_rows:
        rows = row + places
        exists = rows < num_rows
        start = tl.load(query_start_loc + rows * start_stride, mask=exists, other=0).to(tl.int64)
        end = tl.load(query_start_loc + (rows + 1) * start_stride, mask=exists, other=0).to(tl.int64)
        lengths = tl.load(seq_lens + rows * length_stride, mask=exists, other=0).to(tl.int64)
        if adaptive != 0:
            lengths += width - (end - start)
        elif width > 0:
            lengths = tl.where(end > start, lengths, width)
        lengths = tl.where(exists, lengths, 0).to(tl.int32)
        tl.store(kernel_seq_lens + rows, lengths, mask=exists)
        tl.store(paged_kv_indptr + 1 + rows, entries + tl.cumsum(lengths), mask=exists)
        tl.store(qo_indptr + 1 + rows, tl.where(width > 0, (rows + 1) * width, end).to(tl.int32), mask=exists)
        entries += tl.sum(lengths)
        row += _TILE
