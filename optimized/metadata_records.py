"""Records of metadata reuse: one step's batch, what a builder is made from, and the metadata of both families.

The metadata records keep their fields in a dictionary and not in slots: an update copies it whole, and only replaces
what depends on a table, in a tenth of the time that setting thirty fields takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from optimized.errors import ContractError
from optimized.refusals import refuse_bad_int

_MODES = ("none", "align", "all")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One step of the engine, the same for all groups. It is made anew every step and never refilled.

    ``R`` requests, those of a graph's padding included: they come last, with no query and the length 0. Tensors marked
    *host* are on the CPU, all others on the device; a device tensor and its ``_cpu`` twin have the same values. Any
    strides.
    """

    step: int
    """the number of the engine's step: two steps never share one"""
    ubatch: int = 0
    """which part of the step it is, where steps are cut into micro-batches"""
    query_start_loc: torch.Tensor
    """int32 ``[R + 1]``, in tokens"""
    query_start_loc_cpu: torch.Tensor
    """int32 ``[R + 1]``, *host*, the first 0"""
    seq_lens: torch.Tensor
    """int32 ``[R]``, in tokens, the queries included; under context parallelism this rank's share"""
    seq_lens_cpu: torch.Tensor
    """int32 ``[R]``, *host*"""
    num_actual_tokens: int
    """tokens with the padding of a graph, at least ``query_start_loc_cpu[R]``"""
    is_prefilling: torch.Tensor | None = None
    """bool ``[R]``, *host*: whether prompt tokens are left before the step; ``None``: of no request"""
    num_accepted_tokens: torch.Tensor | None = None
    """int32 ``[R]``: tokens that each request keeps of its last drafts; needed where one speculates"""
    num_decode_draft_tokens_cpu: torch.Tensor | None = None
    """int32 ``[R]``, *host*: drafts a request verifies, -1 where it does not speculate; ``None``: none does"""
    causal: bool = True
    """whether a query sees only what is before it"""
    full_graph: bool
    """whether this step's kernels run from a captured full graph"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """KV-cache specification of a group of linear-attention layers. Refused: ints too small, an unknown mode."""

    block_size: int
    """tokens a block of state, at least 1"""
    num_speculative_blocks: int
    """``S``, state blocks for drafts, at least 0"""
    mamba_cache_mode: str
    """"none", "align" or "all" (which is "align" here)"""
    dtype: str
    """of the state"""
    page_size_bytes: int
    """at least 1"""

    def __post_init__(self) -> None:
        _refuse_small(self, block_size=1, num_speculative_blocks=0, page_size_bytes=1)
        if self.mamba_cache_mode not in _MODES:
            raise ContractError("mamba_cache_mode", self.mamba_cache_mode, f"it must be one of {', '.join(_MODES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig:
    """What else shapes a builder for linear attention. Refused: ints too small."""

    num_speculative_tokens: int
    """the most drafts of a request, at least 0, and 0 where the model has none"""
    max_num_reqs: int
    """the most requests of a batch, at least 1"""
    max_graph_rows: int
    """rows of a graph's buffers, at least 0"""
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
    """fields of the spec and of the config that make the key of reuse"""

    def __post_init__(self) -> None:
        _refuse_small(self, num_speculative_tokens=0, max_num_reqs=1, max_graph_rows=0, chunk_size=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """KV-cache specification of a group of MLA layers, and what its kernels depend on. Refused: ints below 1."""

    block_size: int
    """tokens a block of the table that the kernel is given, at least 1"""
    num_heads: int
    """query heads of this rank, at least 1"""
    kv_cache_dtype: str
    """of the cache"""
    dtype: str
    """of the queries"""
    causal: bool = True
    """whether a query sees only what is before it"""

    def __post_init__(self) -> None:
        _refuse_small(self, block_size=1, num_heads=1)
        if not isinstance(self.causal, bool):
            raise ContractError("causal", self.causal, "it must be a bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaConfig:
    """What else shapes a builder for MLA decodes. Refused: ints too small, a rank past the last one."""

    max_num_reqs: int
    """the most requests of a batch, at least 1"""
    max_model_len: int
    """the most tokens of a request, at least 1"""
    max_graph_rows: int
    """rows of a graph's buffers, at least 0"""
    varlen_width: int = 0
    """queries that every row is given, at least 0, and 0 where rows keep theirs"""
    dcp_size: int = 1
    """ranks of decode context parallelism, at least 1"""
    dcp_rank: int = 0
    """this one's number"""
    dcp_interleave: int = 1
    """neighbouring tokens that one rank has, at least 1"""

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
    """fields of the spec and of the config that make the key of reuse"""

    def __post_init__(self) -> None:
        _refuse_small(self, max_num_reqs=1, max_model_len=1, max_graph_rows=0, varlen_width=0)
        _refuse_small(self, dcp_size=1, dcp_rank=0, dcp_interleave=1)
        if self.dcp_rank >= self.dcp_size:
            raise ContractError("dcp_rank", self.dcp_rank, f"it must lie in 0..{self.dcp_size - 1}, the ranks")


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMetadata:
    """Metadata of linear attention (KDA, GDN) of one step and one group, named as in vLLM's GDN record.

    ``R`` requests, of which ``A`` speculate; ``S`` is of the spec. *Staged* metadata lies in a graph's buffers. A
    tensor is ``None`` where the class of requests that it tells of is absent.
    """

    num_prefills: int
    num_prefill_tokens: int
    num_decodes: int
    num_decode_tokens: int
    num_spec_decodes: int
    """``A``"""
    num_spec_decode_tokens: int
    num_actual_tokens: int
    """the batch's"""
    uniform_spec_sequence_length: int | None = None
    """queries of every request that speculates, if they are one number and not 0"""
    has_initial_state: torch.Tensor | None = None
    """bool ``[R - A]``, with prefills: whether a request that does not speculate has more tokens than queries"""
    spec_query_start_loc: torch.Tensor | None = None
    """``[A + 1]``, staged ``[R + 1]``, in tokens of the requests that speculate"""
    non_spec_query_start_loc: torch.Tensor | None = None
    """``[R - A + 1]``, in tokens of all others"""
    prefill_query_start_loc: torch.Tensor | None = None
    """``[P + 1]``, with prefills: those of the ``P`` others that are no plain decodes, from 0 on"""
    prefill_has_initial_state: torch.Tensor | None = None
    """bool ``[P]``"""
    spec_sequence_masks: torch.Tensor | None = None
    """bool ``[R]``: whether a request speculates"""
    spec_sequence_masks_cpu: torch.Tensor | None = None
    """the same on the CPU"""
    spec_token_indx: torch.Tensor | None = None
    """int32, increasing: tokens of the requests that speculate"""
    non_spec_token_indx: torch.Tensor | None = None
    """int32, increasing: all others"""
    num_accepted_tokens: torch.Tensor | None = None
    """``[A]``, staged ``[R]``: 1 for padding"""
    chunk_indices: torch.Tensor | None = None
    """``[T, 2]``, with prefills: chunks of ``prefill_query_start_loc``"""
    chunk_offsets: torch.Tensor | None = None
    """int64 ``[P + 1]``"""
    batch_ptr: torch.Tensor | None = None
    """int32, with prefills: programs of a causal convolution, 8 tokens a block, over ``non_spec_query_start_loc``"""
    token_chunk_offset_ptr: torch.Tensor | None = None
    """int32, as long"""
    num_conv_blocks: int | None = None
    """how many of them have work, in place of vLLM's ``nums_dict``"""
    spec_state_indices_tensor: torch.Tensor | None = None
    """int32 ``[A, 1 + S]``, staged ``[R, 1 + S]``: NULL (0) for padding"""
    non_spec_state_indices_tensor: torch.Tensor | None = None
    """int32 ``[R - A]``: NULL for padding where it is staged"""
    prefill_state_indices: torch.Tensor | None = None
    """int32 ``[P]``"""
    origin: Any = field(default=None, repr=False, compare=False)
    """private: who made it, and from what"""

    TABLE_FIELDS: ClassVar[tuple[str, ...]] = (
        "spec_state_indices_tensor",
        "non_spec_state_indices_tensor",
        "prefill_state_indices",
    )
    """what depends on the group's block table"""
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
    """what follows from the batch alone, so that groups can share it"""


@dataclass(frozen=True, kw_only=True, eq=False)
class MlaMetadata:
    """Metadata of an MLA decode over pages of one token (AITER), named as in vLLM's AITER MLA records."""

    num_decodes: int
    """``R``, padding included"""
    num_decode_tokens: int
    """the batch's ``num_actual_tokens``"""
    seq_lens: torch.Tensor
    """int32 ``[R]``, in tokens: the kernel's lengths"""
    paged_kv_indptr: torch.Tensor
    """int32 ``[R + 1]``, in tokens: 0 and the running sum of ``seq_lens``"""
    paged_kv_last_page_len: torch.Tensor
    """int32 ``[R]``, all 1"""
    qo_indptr: torch.Tensor
    """int32 ``[R + 1]``, in queries"""
    max_qo_len: int
    min_kv_seq_len: int
    paged_kv_indices: torch.Tensor
    """int32: cache rows of each request in turn, and -1 up to the end"""
    block_table: torch.Tensor
    """the table that was given"""
    slot_mapping: torch.Tensor
    """the slots that were given"""
    origin: Any = field(default=None, repr=False, compare=False)
    """private: who made it, and from what"""

    TABLE_FIELDS: ClassVar[tuple[str, ...]] = ("paged_kv_indices", "block_table", "slot_mapping")
    """what depends on the group's block table"""
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
    """what follows from the batch alone, so that groups can share it"""


def _refuse_small(record: object, **least: int) -> None:
    for name, smallest in least.items():
        refuse_bad_int(name, getattr(record, name), smallest)
