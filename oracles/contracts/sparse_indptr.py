"""Contracts 2.1 to 2.6: how many KV entries each query reads, where they lie, and how splits share them."""

from __future__ import annotations

from oracles.contract import Contract, Input, Output
from oracles.contracts import _local_lengths as local
from oracles.contracts import _mla_layout as layout
from oracles.contracts import _mla_plans as plans
from oracles.contracts import _page_indices as pages
from oracles.contracts import _sparse_lengths as lengths
from oracles.contracts import sparse_bindings, sparse_known
from oracles.contracts._dense_relations import RELATIONS as DENSE_RELATIONS
from oracles.contracts._page_relations import SPARSE_RELATIONS
from oracles.contracts._plan_relations import LAYOUT_RELATIONS, PLAN_RELATIONS
from oracles.contracts._sparse_relations import LENGTH_RELATIONS, SHARE_RELATIONS

INDEX = "int32 or int64"
TABLE = Input(name="block_table", role="device", doc="int32 [R, M], block ids, none negative")
PAGES = Input(name="paged_kv_indices", role="device", inout=True, doc="int32 [capacity], slots of KV entries")
STARTS = Input(name="query_start_loc", role="device", doc=f"{INDEX} [R+1], first query of each request")
HOST_STARTS = Input(name="query_start_loc_cpu", role="host", doc=f"{INDEX} [R+1], the same values on the host")

CONTRACTS = (
    Contract(
        family="sparse_indptr",
        name="sparse_indptr",
        section="2.1",
        summary="KV entries that each query of sparse attention reads, and their running sum",
        inputs=(
            Input(name="seq_lens", role="device", doc=f"{INDEX} [N], tokens, the queries included"),
            STARTS,
            HOST_STARTS,
            Input(name="topk", role="scalar", compiled=True, doc="int >= 1, the most entries of a query"),
            Input(name="num_tokens", role="scalar", doc="int, tokens with a graph's padding"),
        ),
        outputs=(
            Output(name="sparse_seq_lens", doc="int32 [num_tokens], entries of each query"),
            Output(name="paged_kv_indptr", doc="int32 [num_tokens+1], their running sum, flat over padding"),
        ),
        domain=lengths.domain,
        resample=lengths.resample,
        expected=lengths.expected,
        traits=lengths.traits,
        relations=LENGTH_RELATIONS,
        optimized="optimized.sparse_indptr:sparse_indptr",
        runs="triton",
        bindings=sparse_bindings.SPARSE_INDPTR,
        known=sparse_known.SPARSE_INDPTR,
    ),
    Contract(
        family="sparse_indptr",
        name="sparse_page_indices",
        section="2.2",
        summary="slots of the tokens that each query of sparse attention picked",
        inputs=(
            Input(name="req_id_per_token", role="device", doc=f"{INDEX} [T], the request of each query"),
            TABLE,
            Input(
                name="topk_indices",
                role="device",
                compiled_axes=(1,),
                doc=f"{INDEX} [T, K], tokens that a query picked; -1: none",
            ),
            Input(name="paged_kv_indptr", role="device", doc=f"{INDEX} [T+1], where each query's entries begin"),
            Input(name="block_size", role="scalar", compiled=True, doc="int >= 1, tokens a block"),
            Input(
                name="block_stride",
                role="scalar",
                compiled=True,
                doc="int >= block_size, slots from one block to the next",
            ),
            PAGES,
        ),
        outputs=(),
        domain=pages.sparse_domain,
        resample=pages.sparse_resample,
        expected=pages.sparse_expected,
        traits=pages.sparse_traits,
        relations=SPARSE_RELATIONS,
        optimized="optimized.sparse_indptr:sparse_page_indices",
        runs="triton",
        bindings=sparse_bindings.SPARSE_PAGE_INDICES,
        known=sparse_known.SPARSE_PAGE_INDICES,
    ),
    Contract(
        family="sparse_indptr",
        name="dense_page_indices",
        section="2.3",
        summary="slots of all tokens of each request, pages of one token",
        inputs=(
            TABLE,
            Input(name="seq_lens", role="device", doc=f"{INDEX} [R], tokens; clipped to what the row holds"),
            Input(name="kernel_block_size", role="scalar", compiled=True, doc="int k >= 1, tokens a block"),
            PAGES,
        ),
        outputs=(
            Output(name="paged_kv_indptr", doc="int32 [R+1], running sum of the clipped lengths"),
            Output(name="paged_kv_last_page_len", doc="int32 [R], all 1"),
        ),
        domain=pages.dense_domain,
        resample=pages.dense_resample,
        expected=pages.dense_expected,
        traits=pages.dense_traits,
        relations=DENSE_RELATIONS,
        optimized="optimized.sparse_indptr:dense_page_indices",
        runs="triton",
        bindings=sparse_bindings.DENSE_PAGE_INDICES,
        known=sparse_known.DENSE_PAGE_INDICES,
    ),
    Contract(
        family="sparse_indptr",
        name="dcp_local_seq_lens",
        section="2.4",
        summary="tokens of each request that a rank of context parallelism holds",
        inputs=(
            Input(name="seq_lens", role="device", doc=f"{INDEX}, any shape, tokens"),
            Input(name="dcp_size", role="scalar", compiled=True, doc="int >= 1, ranks"),
            Input(
                name="dcp_rank",
                role="scalar",
                optional=True,
                doc="int in 0..dcp_size-1, or None: all, as a last axis",
            ),
            Input(name="interleave", role="scalar", compiled=True, doc="int >= 1, neighbouring tokens on one rank"),
        ),
        outputs=(Output(name="local_seq_lens", doc="int32, the shape of seq_lens, and the ranks' axis"),),
        domain=local.domain,
        resample=local.resample,
        expected=local.expected,
        traits=local.traits,
        relations=SHARE_RELATIONS,
        optimized="optimized.sparse_indptr:dcp_local_seq_lens",
        runs="triton",
        bindings=sparse_bindings.DCP_LOCAL_SEQ_LENS,
        known=sparse_known.DCP_LOCAL_SEQ_LENS,
    ),
    Contract(
        family="sparse_indptr",
        name="mla_split_plan",
        section="2.5",
        summary="which pieces of the KV entries each split of MLA decode works on; many plans are right",
        kind="predicate",
        inputs=(
            Input(name="qo_indptr", role="host", doc=f"{INDEX} [B+1], first query of each row"),
            Input(name="kv_indptr", role="host", doc=f"{INDEX} [B+1], first KV entry of each row"),
            Input(
                name="kv_granularity", role="scalar", compiled=True, doc="int >= 1, KV entries between places to cut at"
            ),
            Input(name="q_tile", role="scalar", doc="int >= 1, queries of a tile"),
            Input(name="num_splits", role="scalar", doc="int >= 1, splits"),
        ),
        outputs=(
            Output(name="work_indptr", doc="int32 [num_splits+1], first work of each split"),
            Output(name="work_info_set", doc="int32 [works, 8], row, partial place, queries, KV entries of each work"),
            Output(name="reduce_indptr", doc="int32, first partial result of each reduction"),
            Output(name="reduce_final_map", doc="int32 [reductions, 2], queries of each reduction"),
            Output(name="reduce_partial_map", doc="int32, places of partial results"),
        ),
        domain=plans.domain,
        resample=plans.resample,
        expected=plans.expected,
        accepts=plans.accepts,
        traits=plans.traits,
        relations=PLAN_RELATIONS,
        optimized="optimized.mla_split_plan:mla_split_plan",
        runs="host",
        bindings=sparse_bindings.MLA_SPLIT_PLAN,
    ),
    Contract(
        family="sparse_indptr",
        name="mla_decode_layout",
        section="2.6",
        summary="rows of queries and of KV entries that an MLA decode kernel works on",
        inputs=(
            STARTS,
            HOST_STARTS,
            Input(name="seq_lens", role="device", doc=f"{INDEX} [R], tokens, the queries included"),
            Input(name="num_decode_tokens", role="scalar", doc="int, tokens with a graph's padding"),
            Input(name="varlen_width", role="scalar", doc="int >= 0, queries that each row is given; 0: off"),
            Input(name="full_graph", role="scalar", doc="bool, whether results go into a graph's buffers"),
        ),
        outputs=(
            Output(name="kernel_seq_lens", doc="int32 [R], KV entries of each row"),
            Output(name="paged_kv_indptr", doc="int32 [R+1], their running sum"),
            Output(name="qo_indptr", doc="int32 [R+1], first query of each row"),
            Output(name="max_qo_len", doc="int, the most queries of a row"),
            Output(name="min_kv_seq_len", doc="int, a lower bound of the kernel lengths that the host knows"),
        ),
        domain=layout.domain,
        resample=layout.resample,
        expected=layout.expected,
        traits=layout.traits,
        relations=LAYOUT_RELATIONS,
        optimized="optimized.mla_decode_layout:mla_decode_layout",
        runs="triton",
        bindings=sparse_bindings.MLA_DECODE_LAYOUT,
        known=sparse_known.MLA_DECODE_LAYOUT,
    ),
)
