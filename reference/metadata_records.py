"""Records of metadata reuse: one step's batch, what a builder is made from, and the metadata of both families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError
from reference.refusals import refuse_bad_int

Int32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
_MODES = ("none", "align", "all")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One step of the engine, the same for all groups. It is made anew every step and never refilled.

    ``R`` requests, those of a graph's padding included: they come last, and have no query and the length 0. Tensors
    marked *host* lie on the host, the others on the device; a device tensor and its ``_cpu`` twin hold the same.
    """

    step: int
    """the number of the engine's step: two steps never share one"""
    ubatch: int = 0
    """the part of the step that a micro-batch is"""
    query_start_loc: Int32
    """int32 ``[R + 1]``, in tokens"""
    query_start_loc_cpu: Int32
    """int32 ``[R + 1]``, *host*; the first start is 0"""
    seq_lens: Int32
    """int32 ``[R]``, in tokens, the queries included; this rank's share under context parallelism"""
    seq_lens_cpu: Int32
    """int32 ``[R]``, *host*"""
    num_actual_tokens: int
    """tokens with those of a graph's padding: at least ``query_start_loc_cpu[R]``"""
    is_prefilling: Bools | None = None
    """bool ``[R]``, *host*: whether prompt tokens are left before the step; ``None``: of no request"""
    num_accepted_tokens: Int32 | None = None
    """int32 ``[R]``: how many tokens of the last step's drafts a request keeps; needed where one speculates"""
    num_decode_draft_tokens_cpu: Int32 | None = None
    """int32 ``[R]``, *host*: drafts that a request verifies, -1: it does not speculate; ``None``: none does"""
    causal: bool = True
    """whether a query sees only what comes before it"""
    full_graph: bool
    """whether this step's kernels run from a captured full graph"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """What the KV cache of a group of linear-attention layers is. Refused: an ``int`` too small, an unknown mode."""

    block_size: int
    """tokens a block of state, at least 1"""
    num_speculative_blocks: int
    """``S`` of :func:`reference.state_columns.state_columns`: state blocks of drafts, at least 0"""
    mamba_cache_mode: str
    """"none", "align" or "all"; "all" is treated as "align" """
    dtype: str
    """of the state"""
    page_size_bytes: int
    """bytes of one block, at least 1"""

    def __post_init__(self) -> None:
        refuse_bad_int("block_size", self.block_size, 1)
        refuse_bad_int("num_speculative_blocks", self.num_speculative_blocks, 0)
        if self.mamba_cache_mode not in _MODES:
            raise ContractError("mamba_cache_mode", self.mamba_cache_mode, f"it must be one of {', '.join(_MODES)}")
        refuse_bad_int("page_size_bytes", self.page_size_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig:
    """What else a builder for linear attention depends on. Refused: an ``int`` too small."""

    num_speculative_tokens: int
    """the most drafts of a request, at least 0; 0: the model does not draft"""
    max_num_reqs: int
    """the most requests of a batch, at least 1"""
    max_graph_rows: int
    """``C``, the rows that the buffers of a graph have, at least 0"""
    chunk_size: int = 64
    """tokens a chunk of the prefill kernels, at least 1"""

    CONFIGURATION: ClassVar[tuple[str, ...]] = (
        "block_size",
        "num_speculative_blocks",
        "mamba_cache_mode",
        "dtype",
        "page_size_bytes",
        "num_speculative_tokens",
        "max_num_reqs",
        "max_graph_rows",
        "chunk_size",
    )
    """the fields of the spec and of the config that make the key of reuse"""

    def __post_init__(self) -> None:
        refuse_bad_int("num_speculative_tokens", self.num_speculative_tokens, 0)
        refuse_bad_int("max_num_reqs", self.max_num_reqs, 1)
        refuse_bad_int("max_graph_rows", self.max_graph_rows, 0)
        refuse_bad_int("chunk_size", self.chunk_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """What the KV cache of a group of MLA layers is, and what its kernels depend on. Refused: an ``int`` below 1."""

    block_size: int
    """``k``, tokens a block of the table that the kernel is given, at least 1"""
    num_heads: int
    """query heads of this rank, at least 1"""
    kv_cache_dtype: str
    """how the cache is stored"""
    dtype: str
    """of the queries"""
    causal: bool = True
    """whether a query sees only what comes before it"""

    def __post_init__(self) -> None:
        refuse_bad_int("block_size", self.block_size, 1)
        refuse_bad_int("num_heads", self.num_heads, 1)
        if not isinstance(self.causal, bool):
            raise ContractError("causal", self.causal, "it must be a bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaConfig:
    """What else a builder for MLA decodes depends on. Refused: an ``int`` too small, a rank that there is not."""

    max_num_reqs: int
    """the most requests of a batch, at least 1"""
    max_model_len: int
    """the most tokens of a sequence, at least 1"""
    max_graph_rows: int
    """``C``, the rows that the buffers of a graph have, at least 0"""
    varlen_width: int = 0
    """``W`` of :func:`reference.mla_decode_layout.mla_decode_layout`, at least 0; 0: off"""
    dcp_size: int = 1
    """ranks of decode context parallelism, at least 1"""
    dcp_rank: int = 0
    """this rank, in ``0..dcp_size - 1``"""
    dcp_interleave: int = 1
    """neighbouring tokens of a rank, at least 1"""

    CONFIGURATION: ClassVar[tuple[str, ...]] = (
        "block_size",
        "num_heads",
        "kv_cache_dtype",
        "dtype",
        "causal",
        "max_num_reqs",
        "max_model_len",
        "max_graph_rows",
        "varlen_width",
        "dcp_size",
        "dcp_rank",
        "dcp_interleave",
    )
    """the fields of the spec and of the config that make the key of reuse"""

    def __post_init__(self) -> None:
        least = {"max_num_reqs": 1, "max_model_len": 1, "max_graph_rows": 0, "varlen_width": 0}
        for name, smallest in {**least, "dcp_size": 1, "dcp_rank": 0, "dcp_interleave": 1}.items():
            refuse_bad_int(name, getattr(self, name), smallest)
        if self.dcp_rank >= self.dcp_size:
            raise ContractError("dcp_rank", self.dcp_rank, f"it must lie in 0..{self.dcp_size - 1}, the ranks")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearMetadata:
    """Metadata of linear attention (KDA, GDN); the names are those of vLLM's GDN record.

    ``R`` requests, of which ``A`` speculate, ``S`` of the spec, ``C`` of the config. *Staged* metadata lies in the
    buffers of a graph and has rows for the padding too. Every tensor is ``None`` where its class of requests is absent.
    """

    num_prefills: int
    num_prefill_tokens: int
    num_decodes: int
    num_decode_tokens: int
    num_spec_decodes: int
    """``A``"""
    num_spec_decode_tokens: int
    num_actual_tokens: int
    """the batch's, padding included"""
    uniform_spec_sequence_length: int | None = None
    """the queries of each request that speculates, if they are the same number, and not 0"""
    has_initial_state: Bools | None = None
    """bool ``[R - A]``, with prefills: whether a request that does not speculate has state from before"""
    spec_query_start_loc: Int32 | None = None
    """int32 ``[A + 1]``, staged ``[R + 1]``: starts of the requests that speculate, their tokens packed"""
    non_spec_query_start_loc: Int32 | None = None
    """int32 ``[R - A + 1]``: those of all others; none if only padding is left"""
    prefill_query_start_loc: Int32 | None = None
    """int32 ``[P + 1]``, with prefills: those of the ``P`` others that are no plain decodes, from 0"""
    prefill_has_initial_state: Bools | None = None
    """bool ``[P]``"""
    spec_sequence_masks: Bools | None = None
    """bool ``[R]``: whether a request speculates"""
    spec_sequence_masks_cpu: Bools | None = None
    """the same, *host*"""
    spec_token_indx: Int32 | None = None
    """int32: the tokens of requests that speculate, increasing"""
    non_spec_token_indx: Int32 | None = None
    """int32: all other tokens, increasing"""
    num_accepted_tokens: Int32 | None = None
    """int32 ``[A]``, staged ``[R]``: 1 for padding"""
    chunk_indices: Int32 | None = None
    """int32 ``[T, 2]``, with prefills: chunks of ``prefill_query_start_loc``"""
    chunk_offsets: npt.NDArray[np.int64] | None = None
    """int64 ``[P + 1]``"""
    batch_ptr: Int32 | None = None
    """int32, with prefills: the programs of a causal convolution over ``non_spec_query_start_loc``, 8 tokens a block"""
    token_chunk_offset_ptr: Int32 | None = None
    """int32, of its size"""
    num_conv_blocks: int | None = None
    """how many of them have work; it stands for vLLM's ``nums_dict``"""
    spec_state_indices_tensor: Int32 | None = None
    """int32 ``[A, 1 + S]``, staged ``[R, 1 + S]``, in blocks: NULL for padding"""
    non_spec_state_indices_tensor: Int32 | None = None
    """int32 ``[R - A]``, in blocks; staged: NULL for padding"""
    prefill_state_indices: Int32 | None = None
    """int32 ``[P]``, in blocks"""

    TABLE_FIELDS: ClassVar[tuple[str, ...]] = (
        "spec_state_indices_tensor",
        "non_spec_state_indices_tensor",
        "prefill_state_indices",
    )
    """what depends on a group's block table"""
    BATCH_FIELDS: ClassVar[tuple[str, ...]] = (
        "num_prefills",
        "num_prefill_tokens",
        "num_decodes",
        "num_decode_tokens",
        "num_spec_decodes",
        "num_spec_decode_tokens",
        "num_actual_tokens",
        "uniform_spec_sequence_length",
        "has_initial_state",
        "spec_query_start_loc",
        "non_spec_query_start_loc",
        "prefill_query_start_loc",
        "prefill_has_initial_state",
        "spec_sequence_masks",
        "spec_sequence_masks_cpu",
        "spec_token_indx",
        "non_spec_token_indx",
        "num_accepted_tokens",
        "chunk_indices",
        "chunk_offsets",
        "batch_ptr",
        "token_chunk_offset_ptr",
        "num_conv_blocks",
    )
    """what follows from the batch alone: groups may share it"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MlaMetadata:
    """Metadata of an MLA decode over pages of one token (AITER); the names are those of vLLM's AITER MLA records."""

    num_decodes: int
    """``R``, padding included"""
    num_decode_tokens: int
    """the batch's ``num_actual_tokens``"""
    seq_lens: Int32
    """int32 ``[R]``, in tokens: the kernel's lengths"""
    paged_kv_indptr: Int32
    """int32 ``[R + 1]``, in tokens: 0, then the running sum of ``seq_lens``"""
    paged_kv_last_page_len: Int32
    """int32 ``[R]``, all 1"""
    qo_indptr: Int32
    """int32 ``[R + 1]``, in queries"""
    max_qo_len: int
    min_kv_seq_len: int
    paged_kv_indices: Int32
    """int32, in cache rows: of each request in turn, then -1 to the end of the tensor"""
    block_table: Int32
    """the table that was given, int32 ``[R, M]``"""
    slot_mapping: npt.NDArray[np.signedinteger]
    """the slots that were given"""

    TABLE_FIELDS: ClassVar[tuple[str, ...]] = ("paged_kv_indices", "block_table", "slot_mapping")
    """what depends on a group's block table"""
    BATCH_FIELDS: ClassVar[tuple[str, ...]] = (
        "num_decodes",
        "num_decode_tokens",
        "seq_lens",
        "paged_kv_indptr",
        "paged_kv_last_page_len",
        "qo_indptr",
        "max_qo_len",
        "min_kv_seq_len",
    )
    """what follows from the batch alone: groups may share it"""
