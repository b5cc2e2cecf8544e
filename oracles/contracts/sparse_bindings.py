"""Upstream code for contracts 2.1 to 2.6: vLLM's metadata of sparse and dense MLA on ROCm, and AITER's planner.

The two of dense MLA, 2.3 and 2.6, are in :mod:`oracles.contracts.mla_decode_bindings`.

vLLM's ``fit_kpool_indices_to_aiter`` has no binding: it narrows rows of top-k tokens to AITER's width and answers to
none of these contracts. A relation of 2.2 can hold it: what it drops is no token that the shorter row has room for.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from oracles.contract import Binding
from oracles.contracts.block_table_bindings import setting_up
from oracles.contracts.mla_decode_bindings import DENSE_PAGE_INDICES, MLA_DECODE_LAYOUT
from oracles.verdict import Unsupported

__all__ = (
    "DCP_LOCAL_SEQ_LENS",
    "DENSE_PAGE_INDICES",
    "MLA_DECODE_LAYOUT",
    "MLA_SPLIT_PLAN",
    "SPARSE_INDPTR",
    "SPARSE_PAGE_INDICES",
)

ROCM = "vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py"
COMMON = "vllm/v1/attention/backends/mla/sparse_utils.py"
UTILS = "vllm/v1/attention/backends/utils.py"
CP_UTILS = "vllm/v1/worker/gpu/cp_utils.py"
AITER = "aiter/ops/attention.py"

SEQLEN = "generate_sparse_seqlen_triton"
CONVERT = "triton_convert_req_index_to_global_index"
RAGGED = "fetch_id_to_ragged_triton"
STRIDE = "BLOCK_STRIDE_ROWS"
"""A parameter of both conversions since pages of other layers may lie between blocks."""

LOCAL = "get_dcp_local_seq_lens"
LOCAL_KERNEL = "_dcp_local_seq_lens_kernel"
PLAN = "get_mla_metadata_v1"
PLAN_INFO = "get_mla_metadata_info_v1"

TILE = 128
"""Columns of a tile of both conversions, unless the rows are shorter; lengths of a tile of local lengths."""

HEADS = 16
"""Query heads for which AITER plans as they are; other numbers are folded into these."""

ROWS_OF_A_TILE = 128
"""Rows, a query's heads each, of AITER's query tile for that number of heads."""

INT32 = -(1 << 31), (1 << 31) - 1


def _sparse_indptr(names: Mapping[str, Any]) -> Callable[..., Any]:
    upstream = names[SEQLEN]
    wants_lengths = "query_lens" in inspect.signature(upstream).parameters

    def sparse_indptr(
        seq_lens: Any, query_start_loc: Any, query_start_loc_cpu: Any, topk: int, num_tokens: int
    ) -> tuple[Any, Any]:
        """The lengths, and their running sum as ROCMAiterMLASparseMetadataBuilder.build makes it."""
        import torch

        queries = query_start_loc_cpu.diff()
        longest = int(queries.max()) if queries.numel() else 0
        given = [query_start_loc.diff()] if wants_lengths else []
        lengths = upstream(*given, seq_lens, query_start_loc, topk, num_tokens, longest)
        indptr = torch.zeros(num_tokens + 1, dtype=torch.int32, device=query_start_loc.device)
        torch.cumsum(lengths, dim=0, out=indptr[1:])
        return lengths, indptr

    return sparse_indptr


def _as_int32(tensor: Any) -> Any:
    """What upstream asserts; a number that int32 does not have becomes one that means as little."""
    import torch

    return tensor if tensor.dtype == torch.int32 else tensor.clamp(*INT32).to(torch.int32)


def _conversion(upstream: Callable[..., Any], width: int, block_size: int, block_stride: int) -> dict[str, int]:
    """Keyword arguments of both conversions. Refused with ``Unsupported``: a stride in a release without one."""
    # A tile is a power of two, and divides the width: upstream asserts it.
    given = {"BLOCK_SIZE": block_size, "NUM_TOPK_TOKENS": width, "BLOCK_N": math.gcd(width, TILE)}
    if STRIDE in inspect.signature(upstream).parameters:
        return {**given, STRIDE: block_stride}
    if block_stride != block_size:
        raise Unsupported(f"nothing lies between blocks: this release's {CONVERT} has no {STRIDE}")
    return given


def _ragged_conversion(names: Mapping[str, Any]) -> Callable[..., Any]:
    upstream = names[CONVERT]

    def sparse_page_indices(
        req_id_per_token: Any,
        block_table: Any,
        topk_indices: Any,
        paged_kv_indptr: Any,
        block_size: int,
        block_stride: int,
        paged_kv_indices: Any,
    ) -> tuple[Any, ...]:
        """The ROCm backend's, which writes ragged rows itself."""
        options = _conversion(upstream, topk_indices.shape[1], block_size, block_stride)
        rows, tokens = _as_int32(req_id_per_token), _as_int32(topk_indices)
        upstream(rows, block_table, tokens, paged_kv_indptr, paged_kv_indices, **options)
        return (paged_kv_indices,)

    return sparse_page_indices


def _dense_conversion(names: Mapping[str, Any]) -> Callable[..., Any]:
    upstream = names[CONVERT]

    def sparse_page_indices(
        req_id_per_token: Any,
        block_table: Any,
        topk_indices: Any,
        paged_kv_indptr: Any,
        block_size: int,
        block_stride: int,
        paged_kv_indices: Any,
    ) -> tuple[Any, ...]:
        """The one of all other backends, whose rows stay as wide as they were; here they are packed."""
        options = _conversion(upstream, topk_indices.shape[1], block_size, block_stride)
        dense = upstream(_as_int32(req_id_per_token), block_table, _as_int32(topk_indices), **options)
        _pack(dense, paged_kv_indptr, paged_kv_indices)
        return (paged_kv_indices,)

    return sparse_page_indices


def _pack(dense: Any, indptr: Any, buffer: Any) -> None:
    """Write the beginning of each row where its start says, and -1 behind its last column; safe for any starts."""
    import torch

    if not dense.shape[0]:
        return
    element = torch.arange(buffer.shape[0], device=indptr.device, dtype=indptr.dtype)
    row = (torch.searchsorted(indptr.contiguous(), element, right=True) - 1).clamp(0, dense.shape[0] - 1)
    column = (element - indptr[row]).clamp(0, dense.shape[1])
    wider = torch.cat([dense, dense.new_full((dense.shape[0], 1), -1)], dim=1)
    owned = (element >= indptr[0]) & (element < indptr[-1])
    buffer.copy_(torch.where(owned, wider[row, column], buffer))


def _fetched_conversion(names: Mapping[str, Any]) -> Callable[..., Any]:
    convert, fetch = names[CONVERT], names[RAGGED]

    def sparse_page_indices(
        req_id_per_token: Any,
        block_table: Any,
        topk_indices: Any,
        paged_kv_indptr: Any,
        block_size: int,
        block_stride: int,
        paged_kv_indices: Any,
    ) -> tuple[Any, ...]:
        """The two steps of older releases: the common conversion, then the ROCm backend's packing."""
        options = _conversion(convert, topk_indices.shape[1], block_size, block_stride)
        dense = convert(_as_int32(req_id_per_token), block_table, _as_int32(topk_indices), **options)
        fetch(dense, paged_kv_indptr, paged_kv_indices, topk_indices.shape[1])
        return (paged_kv_indices,)

    return sparse_page_indices


def _local_lengths(names: Mapping[str, Any]) -> Callable[..., Any]:
    upstream = names[LOCAL]

    def dcp_local_seq_lens(seq_lens: Any, dcp_size: int, dcp_rank: int | None, interleave: int) -> tuple[Any, ...]:
        """The torch operations of both runners."""
        return (upstream(seq_lens, dcp_size, dcp_rank, interleave),)

    return dcp_local_seq_lens


def _local_lengths_kernel(names: Mapping[str, Any]) -> Callable[..., Any]:
    def dcp_local_seq_lens(seq_lens: Any, dcp_size: int, dcp_rank: int | None, interleave: int) -> tuple[Any, ...]:
        """The newer runner's kernel, one launch a rank, into a buffer that has an element for each length.

        It is launched as its only caller does, which returns or asserts where there is one rank.
        """
        import torch

        lengths = seq_lens.reshape(-1)
        count = lengths.shape[0]

        def of_rank(rank: int) -> Any:
            buffer = torch.empty(count, dtype=torch.int32, device=seq_lens.device)
            grid = (-(-count // TILE),)
            names[LOCAL_KERNEL][grid](buffer, lengths, dcp_size, rank, interleave, count, count, TILE)
            return buffer.view(seq_lens.shape)

        if dcp_rank is not None:
            return (of_rank(dcp_rank),)
        return (torch.stack([of_rank(rank) for rank in range(dcp_size)], dim=-1),)

    return dcp_local_seq_lens


def _split_plan(names: Mapping[str, Any]) -> Callable[..., Any]:
    plan, info = names[PLAN], names[PLAN_INFO]

    def mla_split_plan(
        qo_indptr: Any, kv_indptr: Any, kv_granularity: int, q_tile: int, num_splits: int
    ) -> tuple[Any, ...]:
        """AITER's plan for attention that is not causal, with the number of heads whose query tile is known.

        Refused with ``Unsupported``: another tile, splits that are no multiple of the rows or more than the device has,
        a granularity that is no power of two.
        """
        import torch

        rows = qo_indptr.shape[0] - 1
        if q_tile != ROWS_OF_A_TILE // HEADS:
            raise Unsupported(f"{PLAN} with {HEADS} heads has query tiles of {ROWS_OF_A_TILE // HEADS}")
        if not rows or num_splits % rows:
            raise Unsupported(f"{PLAN} is told how many splits a row has, of at least one row")
        if kv_granularity & (kv_granularity - 1):
            raise Unsupported(f"{PLAN} asserts that kv_granularity is a power of two")
        per_row, dtypes = num_splits // rows, (torch.bfloat16, torch.bfloat16)
        shapes = info(rows, q_tile, HEADS, *dtypes, is_sparse=False, max_split_per_batch=per_row)
        # The plan is made on the device, of what the contract has on the host; that the host waits is the adapter's.
        device = torch.device("cuda")
        with setting_up(device):
            given = [_as_int32(item).contiguous().to(device) for item in (qo_indptr, kv_indptr)]
            given.append(torch.ones(rows, dtype=torch.int32, device=device))
            pointers, *made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
            work_indptr, works, *reductions = made
            if num_splits >= work_indptr.shape[0]:
                raise Unsupported(f"the device has {work_indptr.shape[0] - 1} splits")
            options = {"page_size": 1, "kv_granularity": kv_granularity, "max_split_per_batch": per_row}
            plan(*given, HEADS, 1, False, pointers, works, work_indptr, *reductions, **options)
            return tuple(item.cpu() for item in (work_indptr[: num_splits + 1], works, *reductions))

    return mla_split_plan


CONVERT_COMMON = ("req_id", "block_table", "token_indices", "BLOCK_SIZE")
CONVERT_ROCM = ("req_id", "block_table", "token_indices", "cu_seqlens", "paged_kv_indices")
SEQLEN_ARGUMENTS = ("seq_lens", "cu_query_lens", "topk_token", "num_tokens", "max_query_len")
LOCAL_ARGUMENTS = ("seq_lens", "dcp_size", "dcp_rank", "cp_kv_cache_interleave_size")
COMMON_FOLLOW = (
    "vllm.model_executor.warmup.jit_warmup",
    "vllm.model_executor.warmup.jit_warmup_triton_helper",
)

SPARSE_INDPTR = (
    Binding(
        project="vllm",
        name=SEQLEN,
        symbols={ROCM: (SEQLEN,)},
        signatures={SEQLEN: (SEQLEN_ARGUMENTS, ("query_lens", *SEQLEN_ARGUMENTS))},
        adapt=_sparse_indptr,
        runs="triton",
    ),
)
SPARSE_PAGE_INDICES = (
    Binding(
        project="vllm",
        name=f"rocm.{CONVERT}",
        symbols={ROCM: (CONVERT,)},
        signatures={CONVERT: ((*CONVERT_ROCM, STRIDE, "BLOCK_SIZE"), (*CONVERT_ROCM, "BLOCK_SIZE"))},
        adapt=_ragged_conversion,
        runs="triton",
    ),
    Binding(
        project="vllm",
        name=f"common.{CONVERT}",
        symbols={COMMON: (CONVERT,)},
        signatures={CONVERT: (CONVERT_COMMON,)},
        adapt=_dense_conversion,
        runs="triton",
        follow=COMMON_FOLLOW,
    ),
    Binding(
        project="vllm",
        name=f"common.{CONVERT}+{RAGGED}",
        symbols={COMMON: (CONVERT,), ROCM: (RAGGED,)},
        signatures={CONVERT: (CONVERT_COMMON,), RAGGED: (("in_tensor", "cumsum", "out_tensor", "topk"),)},
        adapt=_fetched_conversion,
        runs="triton",
        follow=COMMON_FOLLOW,
    ),
)
DCP_LOCAL_SEQ_LENS = (
    Binding(
        project="vllm",
        name=LOCAL,
        symbols={UTILS: (LOCAL,)},
        signatures={LOCAL: (LOCAL_ARGUMENTS,)},
        adapt=_local_lengths,
        runs="host",
    ),
    Binding(
        project="vllm",
        name=LOCAL_KERNEL,
        symbols={CP_UTILS: (LOCAL_KERNEL,)},
        adapt=_local_lengths_kernel,
        runs="triton",
    ),
)
MLA_SPLIT_PLAN = (
    # HIP code: where the package is not installed for ROCm, nothing can be lifted, and the report says which import.
    Binding(
        project="aiter",
        name=PLAN,
        symbols={AITER: (PLAN, PLAN_INFO)},
        adapt=_split_plan,
        runs="triton",
    ),
)
