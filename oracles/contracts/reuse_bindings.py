"""Upstream code for contract 5: how vLLM's newer runner reuses the metadata of its GDN builder.

The builder's class is lifted whole and constructed as a server does. What the runner does around it is the adapter's
part: one dictionary a step, keyed by the spec and the builder's type, whose entry later groups update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from oracles.arrays import Inputs
from oracles.contract import Binding, Narrowing
from oracles.contracts.gdn_bindings import BATCH, BATCH_FILE, BUILD, BUILD_ARGUMENTS, GDN
from oracles.contracts.mla_decode_bindings import Graphs

BUILDER = "GDNAttentionMetadataBuilder"
UPDATE = f"{BUILDER}.update_block_table"
UPDATE_ARGUMENTS = ("self", "metadata", "blk_table", "slot_mapping")


@dataclass(frozen=True)
class Spec:
    """What stands for a ``MambaSpec``: the fields that the builder reads, and those that make specs differ."""

    block_size: int
    num_speculative_blocks: int
    mamba_cache_mode: str
    dtype: str
    page_size_bytes: int
    prefill_checkpoint_alignment: ClassVar[None] = None
    num_prefill_checkpoint_blocks: ClassVar[int] = 0


class _NoCheckpoints:
    """Stands for what lays out checkpoints of prefills, which are no part of the contract."""

    def __init__(self, vllm_config: Any, kv_cache_spec: Any) -> None:
        pass

    def build(self, batch: Any, request_rows: Any) -> None:
        """None."""


STUBS: Mapping[str, Any] = {
    "vllm.v1.kv_cache_interface:MambaSpec": Spec,
    "vllm.model_executor.layers.mamba.checkpoint:MambaPrefillCheckpointBuilder": _NoCheckpoints,
    # Triton's kernels are what most devices run.
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:_resolve_gdn_prefill_backend": lambda _: (
        None,
        "triton",
    ),
}
FOLLOW = (
    "vllm.v1.attention.backend",
    "vllm.v1.attention.backends.utils",
    "vllm.third_party.flash_linear_attention.ops.index",
    "vllm.third_party.flash_linear_attention.ops.utils",
)


def configuration(spec: Any, config: Any) -> Any:
    """What stands for a ``VllmConfig``.

    A graph has ``max_graph_rows`` requests, each with its drafts and one token: upstream counts tokens.
    """
    drafts = config.num_speculative_tokens
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=Graphs(full=True), max_cudagraph_capture_size=config.max_graph_rows * (1 + drafts)
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=drafts, parallel_drafting=False) if drafts else None,
        num_speculative_tokens=drafts,
        scheduler_config=SimpleNamespace(max_num_seqs=max(config.max_num_reqs, config.max_graph_rows)),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        cache_config=SimpleNamespace(mamba_cache_mode=spec.mamba_cache_mode),
        use_v2_model_runner=True,
    )


def common(record: Any, batch: Any, table: Any, slots: Any) -> Any:
    """The record of a batch that the runner makes for a group; ``record`` is upstream's class."""
    queries = batch.query_start_loc_cpu.diff()
    return record(
        query_start_loc=batch.query_start_loc,
        query_start_loc_cpu=batch.query_start_loc_cpu,
        seq_lens=batch.seq_lens,
        seq_lens_cpu_upper_bound=batch.seq_lens_cpu,
        num_reqs=batch.seq_lens_cpu.shape[0],
        num_actual_tokens=batch.num_actual_tokens,
        max_query_len=int(queries.max()) if queries.numel() else 0,
        max_seq_len=int(batch.seq_lens_cpu.max()) if queries.numel() else 0,
        block_table_tensor=table,
        slot_mapping=slots,
        causal=batch.causal,
        is_prefilling=batch.is_prefilling,
    )


def _gdn(names: Mapping[str, Any]) -> Callable[..., Any]:
    class Builder:
        """One group's builder, and what the runner remembers of the step.

        Buffers are shared by reusing metadata, at the capture too, so that there is nothing to share before.
        """

        step: ClassVar[tuple[Any, dict[Hashable, Any]]] = (None, {})
        """The batch of the step, and the metadata that later groups of a key update."""

        def __init__(self, spec: Any, config: Any, device: Any) -> None:
            self._spec = Spec(**dataclasses.asdict(spec))
            self._rows = config.max_graph_rows
            self._upstream = names[BUILDER](self._spec, [], configuration(spec, config), device)
            # What the constructor does on a GPU.
            self._upstream.supports_update_block_table = True
            self._upstream.mamba_aligned_state_indices = None

        def build(self, batch: Any, block_table: Any, slot_mapping: Any) -> Any:
            """Build. The first of a key is remembered for the step.

            A step that runs from no graph, or that none was captured for, is that of a server without full graphs.
            """
            graph = batch.full_graph and batch.seq_lens_cpu.shape[0] <= self._rows
            self._upstream.use_full_cuda_graph = graph
            record = common(names[BATCH], batch, block_table, slot_mapping)
            made = self._upstream.build(0, record, batch.num_accepted_tokens, batch.num_decode_draft_tokens_cpu)
            made.full_graph = graph
            remembered = Builder.step[1] if Builder.step[0] is batch else {}
            remembered.setdefault(self.get_metadata_reuse_key(), made)
            Builder.step = batch, remembered
            return _with_blocks(made)

        def update_block_table(self, metadata: Any, block_table: Any, slot_mapping: Any) -> Any:
            """What upstream makes of another group's metadata."""
            self._upstream.use_full_cuda_graph = metadata.full_graph
            return _with_blocks(self._upstream.update_block_table(metadata, block_table, slot_mapping))

        def can_reuse_metadata(self, metadata: Any, batch: Any) -> bool:
            """Whether it is what the runner remembers of this step for the builder's key."""
            of_step, remembered = Builder.step
            return of_step is batch and remembered.get(self.get_metadata_reuse_key()) is metadata

        def get_metadata_reuse_key(self) -> Hashable:
            """The runner's."""
            return self._spec, type(self._upstream)

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


def as_function(builder: Any) -> Callable[..., Any]:
    """The class as a function with the class methods of the contract: a provider may wrap functions alone."""

    def construct(spec: Any, config: Any, device: Any) -> Any:
        return builder(spec, config, device)

    for name in ("share_reusable_metadata_buffers", "update_block_tables"):
        setattr(construct, name, getattr(builder, name))
    return construct


def _with_blocks(metadata: Any) -> Any:
    """The record with its number of blocks of the convolution, where the contract has it."""
    metadata.num_conv_blocks = None if metadata.nums_dict is None else int(metadata.nums_dict[8]["tot"])
    return metadata


def other_blocks_than_drafts(inputs: Inputs) -> bool:
    """A group with another number of blocks for drafts than there are drafts."""
    groups = cast("tuple[tuple[Any, ...], ...]", inputs["groups"])
    return any(group[2] != inputs["num_speculative_tokens"] for group in groups)


BLOCKS_ARE_DRAFTS = Narrowing(
    clause="as many blocks for drafts as there are drafts",
    source="MambaBase.get_kv_cache_spec: num_speculative_blocks=vllm_config.num_speculative_tokens",
    excludes=other_blocks_than_drafts,
)

LINEAR_METADATA_REUSE = (
    Binding(
        project="vllm",
        name=BUILDER,
        symbols={GDN: (BUILDER, BUILD, UPDATE), BATCH_FILE: (BATCH,)},
        signatures={BUILD: (BUILD_ARGUMENTS,), UPDATE: (UPDATE_ARGUMENTS,)},
        adapt=_gdn,
        runs="host",
        narrowings=(BLOCKS_ARE_DRAFTS,),
        stubs=STUBS,
        follow=FOLLOW,
    ),
)
