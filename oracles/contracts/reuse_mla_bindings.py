"""Upstream code for contract 5: vLLM's AITER MLA builder, under the interface of builders that may reuse metadata.

Its whole method for the decode part is called, on an object that has what its constructor sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oracles.contract import Binding
from oracles.contracts.block_table_bindings import setting_up
from oracles.contracts.mla_decode_bindings import (
    BUILD,
    SIGNATURES,
    STUBS,
    SYMBOLS,
    Graphs,
    build_decode,
    builder_of,
    make_wide,
)
from oracles.contracts.reuse_bindings import as_function


def _aiter(names: Mapping[str, Any]) -> Callable[..., Any]:
    class Builder:
        """One group's builder. Upstream's has no hooks of reuse: every group builds."""

        def __init__(self, spec: Any, config: Any, device: Any) -> None:
            import torch

            self._spec, self._config = spec, config
            rows = max(config.max_num_reqs, config.max_graph_rows)
            entries = config.max_num_reqs * (config.max_model_len + config.varlen_width)
            with setting_up(device):
                pages = torch.zeros(entries, dtype=torch.int32, device=device)
            heads = dict.fromkeys(("num_heads", "_decode_num_heads", "_num_attention_heads"), spec.num_heads)
            self._upstream = builder_of(
                names, rows, device, full_graph=True, kernel_block_size=spec.block_size, paged_kv_indices=pages, **heads
            )
            self._lengths = self._upstream._graph_seq_lens
            if config.varlen_width:
                make_wide(names, self._upstream, rows, config.varlen_width)

        def build(self, batch: Any, block_table: Any, slot_mapping: Any) -> Any:
            """Build. A step that no graph was captured for is that of a server without full graphs."""
            graph = batch.full_graph and batch.seq_lens_cpu.shape[0] <= self._config.max_graph_rows
            self._upstream.compilation_config = Graphs(full=graph)
            self._upstream._graph_seq_lens = self._lengths if graph else None
            self._upstream._decode_causal = batch.causal and self._spec.causal
            made = build_decode(
                names,
                self._upstream,
                block_table_tensor=block_table,
                seq_lens_device=batch.seq_lens,
                query_start_loc_cpu=batch.query_start_loc_cpu,
                query_start_loc_device=batch.query_start_loc,
                num_decode_tokens=batch.num_actual_tokens,
            )
            made.num_decodes, made.num_decode_tokens = batch.seq_lens_cpu.shape[0], batch.num_actual_tokens
            made.slot_mapping, made.batch = slot_mapping, batch
            if not graph:
                made.paged_kv_indices = self._pages(made)
            return made

        def _pages(self, made: Any) -> Any:
            """The pages that are there, in a tensor of the contract's size: upstream has one buffer for all steps."""
            import torch

            columns = made.block_table.shape[1] * self._spec.block_size + self._config.varlen_width
            size = made.num_decodes * columns
            place = torch.arange(size, device=made.block_table.device)
            held = made.paged_kv_indices[place.clamp(max=made.paged_kv_indices.shape[0] - 1)]
            return torch.where(place < made.paged_kv_indptr[-1], held, -1)

        def update_block_table(self, metadata: Any, block_table: Any, slot_mapping: Any) -> Any:
            """A build."""
            return self.build(metadata.batch, block_table, slot_mapping)

        def can_reuse_metadata(self, metadata: Any, batch: Any) -> bool:
            """Never."""
            return False

        def get_metadata_reuse_key(self) -> None:
            """None."""

        @classmethod
        def share_reusable_metadata_buffers(cls, builders: Sequence[Any]) -> None:
            """Nothing."""

        @classmethod
        def update_block_tables(
            cls, metadata: Any, builders: Sequence[Any], block_tables: Sequence[Any], slot_mappings: Sequence[Any]
        ) -> list[Any]:
            """One by one."""
            groups = zip(builders, block_tables, slot_mappings, strict=True)
            return [builder.update_block_table(metadata, table, slots) for builder, table, slots in groups]

    return as_function(Builder)


MLA_METADATA_REUSE = (
    Binding(
        project="vllm",
        name=BUILD,
        symbols=SYMBOLS,
        signatures=SIGNATURES,
        adapt=_aiter,
        runs="triton",
        stubs=STUBS,
    ),
)
