"""Upstream code for contracts 2.3 and 2.6: what vLLM's AITER MLA builder makes of a decode step.

Both call the whole method that builds the decode part, on an object that has what the builder's constructor sets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from oracles.contract import Binding
from oracles.contracts.block_table_bindings import setting_up
from oracles.verdict import Unsupported

FILE = "vllm/v1/attention/backends/mla/rocm_aiter_mla.py"
MODULE = FILE.removesuffix(".py").replace("/", ".")
BUILD = "AiterMLAMetadataBuilder._build_decode"
UNIFORM = "AiterMLAMetadataBuilder._uniform_padded_mtp_qo_len"
VARLEN = "AiterMLAMetadataBuilder._fill_varlen_rows"

HEADS = 16
"""Query heads of a rank. With fewer, newer releases wait for the device to tell its kernels the least length."""


class _NoLaunch:
    """Stands for a kernel whose results another contract judges."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **options: None


# A plan is contract 2.5's, and is made on AMD devices only. The records are plain ones: their base class is not lifted.
STUBS: Mapping[str, Any] = {
    "aiter:get_mla_metadata_v1": lambda *arguments, **options: None,
    f"{MODULE}:AiterMLADecodeMetadata": SimpleNamespace,
    "vllm.v1.kv_cache_interface:is_quantized_kv_cache": lambda name: name != "auto",
}
# Page indices are contract 2.3's.
LAYOUT_STUBS: Mapping[str, Any] = {**STUBS, f"{MODULE}:_expand_page_indices_kernel": _NoLaunch()}


class Graphs:
    """Stands for the compilation settings, of which the method asks one thing."""

    def __init__(self, full: bool) -> None:
        self.cudagraph_mode = self
        self._full = full

    def has_full_cudagraphs(self) -> bool:
        """Whether there are full graphs."""
        return self._full


def builder_of(names: Mapping[str, Any], rows: int, device: Any, *, full_graph: bool, **more: Any) -> Any:
    """What the constructor sets, for this many rows at most."""
    import torch

    counts = {"dtype": torch.int32, "device": device}
    with setting_up(device):
        builder = SimpleNamespace(
            device=device,
            compilation_config=Graphs(full_graph),
            paged_kv_last_page_len=torch.ones(rows, **counts),
            paged_kv_indptr=torch.zeros(rows + 1, **counts),
            qo_indptr=torch.zeros(rows + 1, **counts),
            _graph_seq_lens=torch.zeros(rows, **counts) if full_graph else None,
            num_heads=HEADS,
            _decode_num_heads=HEADS,
            _num_attention_heads=HEADS,
            _kv_cache_dtype_str="auto",
            _kv_cache_bytes=None,
            decode_attn_out_dtype=None,
            # Batches that are wider than what was planned for get no plan.
            _mtp_decode_qlen=0,
            _decode_causal=True,
            _varlen_decode_qlen=0,
            dcp_world_size=1,
            dcp_rank=0,
            _supports_segmented_dcp_verify=False,
            _use_triton_dcp_verify=False,
            _asm_dcp_verify=False,
        )
    # Older releases plan every step of one query a row.
    for name in ("meta_data", "info_set", "indptr"):
        setattr(builder, f"_mla_work_{name}", None)
    for name in ("indptr", "final_map", "partial_map"):
        setattr(builder, f"_mla_reduce_{name}", None)
    builder._uniform_padded_mtp_qo_len = names.get(UNIFORM)
    vars(builder).update(more)
    return builder


def build_decode(names: Mapping[str, Any], builder: Any, **batch: Any) -> Any:
    """Upstream's record of a decode step; ``batch`` holds the method's arguments that say something of it."""
    upstream = names[BUILD]
    if "max_query_len" in inspect.signature(upstream).parameters:
        # The method has it for other builders, and looks at the starts itself.
        batch["max_query_len"] = 0
    return upstream(builder, max_seq_len=0, dcp_tot_seq_lens_device=None, **batch)


def _dense(names: Mapping[str, Any]) -> Callable[..., Any]:
    def dense_page_indices(
        block_table: Any, seq_lens: Any, kernel_block_size: int, paged_kv_indices: Any
    ) -> tuple[Any, ...]:
        """A step of one query a row with full CUDA graphs: without them, the rest of the buffer is left as it is."""
        import torch

        rows = block_table.shape[0]
        builder = builder_of(
            names,
            rows,
            seq_lens.device,
            full_graph=True,
            kernel_block_size=kernel_block_size,
            paged_kv_indices=paged_kv_indices,
        )
        made = build_decode(
            names,
            builder,
            block_table_tensor=block_table,
            seq_lens_device=seq_lens,
            query_start_loc_cpu=torch.arange(rows + 1, dtype=torch.int32),
            query_start_loc_device=torch.arange(rows + 1, dtype=torch.int32, device=seq_lens.device),
            num_decode_tokens=rows,
        )
        return made.paged_kv_indptr, made.paged_kv_last_page_len, paged_kv_indices

    return dense_page_indices


def _layout(names: Mapping[str, Any]) -> Callable[..., Any]:
    def mla_decode_layout(
        query_start_loc: Any,
        query_start_loc_cpu: Any,
        seq_lens: Any,
        num_decode_tokens: int,
        varlen_width: int,
        full_graph: bool,
    ) -> tuple[Any, ...]:
        """A decode step. What the record shares with the batch is copied, and lengths are int32.

        Refused with ``Unsupported``: rows of a fixed width in a release that has none.
        """
        import torch

        if varlen_width and VARLEN not in names:
            raise Unsupported(f"no rows of a fixed width: this release has no {VARLEN}")
        rows, device = seq_lens.shape[0], seq_lens.device
        nothing = torch.empty(0, dtype=torch.int32, device=device)
        builder = builder_of(
            names,
            rows,
            device,
            full_graph=full_graph,
            kernel_block_size=1,
            paged_kv_indices=nothing,
        )
        if varlen_width:
            make_wide(names, builder, rows, varlen_width)
        made = build_decode(
            names,
            builder,
            block_table_tensor=nothing.view(rows, 0),
            seq_lens_device=seq_lens,
            query_start_loc_cpu=query_start_loc_cpu,
            query_start_loc_device=query_start_loc,
            num_decode_tokens=num_decode_tokens,
        )
        return (
            made.seq_lens.to(torch.int32, copy=True),
            made.paged_kv_indptr.to(torch.int32),
            made.qo_indptr.to(torch.int32, copy=True),
            made.max_qo_len,
            getattr(made, "min_kv_seq_len", 1),
        )

    return mla_decode_layout


def make_wide(names: Mapping[str, Any], builder: Any, rows: int, width: int) -> None:
    """What the constructor adds where rows have a fixed width."""
    import torch

    with setting_up(builder.device):
        row = torch.arange(rows * width, dtype=torch.int64, device=builder.device)
        builder._varlen_decode_qlen = width
        builder._varlen_row_req, builder._varlen_row_pos, builder._varlen_row_ids = row // width, row % width, row
        builder._varlen_q_rows = torch.zeros_like(row)
        builder._varlen_o_rows = torch.zeros(rows * width + 1, dtype=torch.int64, device=builder.device)
    builder._fill_varlen_rows = partial(names[VARLEN], builder)


BATCH = (
    "self",
    "block_table_tensor",
    "seq_lens_device",
    "max_seq_len",
    "query_start_loc_cpu",
    "query_start_loc_device",
    "num_decode_tokens",
)
SIGNATURES = {
    BUILD: ((*BATCH, "max_query_len", "dcp_tot_seq_lens_device"), (*BATCH, "dcp_tot_seq_lens_device")),
    UNIFORM: (("qo_len", "max_qo_len", "num_decode_tokens"),),
    VARLEN: (("self", "query_start_loc_device", "qo_lens_device", "num_reqs"),),
}
SYMBOLS = {FILE: (BUILD, UNIFORM, VARLEN)}
OTHER_SYMBOLS = ({FILE: (BUILD, UNIFORM)}, {FILE: (BUILD,)})

DENSE_PAGE_INDICES = (
    Binding(
        project="vllm",
        name=BUILD,
        symbols=SYMBOLS,
        other_symbols=OTHER_SYMBOLS,
        signatures=SIGNATURES,
        adapt=_dense,
        runs="triton",
        stubs=STUBS,
    ),
)
MLA_DECODE_LAYOUT = (
    Binding(
        project="vllm",
        name=BUILD,
        symbols=SYMBOLS,
        other_symbols=OTHER_SYMBOLS,
        signatures=SIGNATURES,
        adapt=_layout,
        runs="host",
        stubs=LAYOUT_STUBS,
    ),
)
