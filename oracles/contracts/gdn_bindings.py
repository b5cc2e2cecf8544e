"""Upstream code for contracts 3.2 to 3.5: how vLLM's GDN builder classes a batch, parts its tokens, stages its state.

The builder's ``build`` is called whole, on an object that has what its constructor sets and on vLLM's own record of a
batch. The tensors that it needs beside the contract's inputs are made up; none of them reaches a result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from oracles.arrays import Array, Inputs
from oracles.contract import Binding, Narrowing

GDN = "vllm/v1/attention/backends/gdn_attn.py"
BATCH_FILE = "vllm/v1/attention/backend.py"
UTILS = "vllm/v1/attention/backends/utils.py"

BUILD = "GDNAttentionMetadataBuilder.build"
STAGES = ("GDNAttentionMetadataBuilder._stage_decode", "GDNAttentionMetadataBuilder._stage_spec_decode")
BATCH = "CommonAttentionMetadata"
SPLIT = "split_decodes_and_prefills"

STALE = 7
"""A block in the rows of a table that stand for nothing: no result may have it."""


def _no_chunks(*arguments: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.int32)


# The oldest releases lay out chunks inside build; that is contract 1.1's.
_INDEX = "vllm.model_executor.layers.fla.ops"
STUBS: Mapping[str, Any] = {
    f"{_INDEX}.index:prepare_chunk_indices": _no_chunks,
    f"{_INDEX}.index:prepare_chunk_offsets": _no_chunks,
    f"{_INDEX}.utils:FLA_CHUNK_SIZE": 64,
}


def _batch(names: Mapping[str, Any], table: Any, starts: Any, starts_cpu: Any, **more: Any) -> Any:
    """The record of a batch, as far as the release has its fields."""
    queries = starts_cpu.diff()
    given = {
        "query_start_loc": starts,
        "query_start_loc_cpu": starts_cpu,
        "num_reqs": starts_cpu.shape[0] - 1,
        "num_actual_tokens": int(starts_cpu[-1]),
        "max_query_len": int(queries.max()) if queries.numel() else 0,
        "max_seq_len": 0,
        "block_table_tensor": table,
        "slot_mapping": table[:, 0],
        **more,
    }
    record = names[BATCH]
    return record(**{item.name: given[item.name] for item in dataclasses.fields(record) if item.name in given})


def _build(
    names: Mapping[str, Any], batch: Any, drafts: Any, accepted: Any, num_spec: int, buffers: Mapping[str, Any]
) -> Any:
    """Without buffers, nothing is staged."""
    builder = SimpleNamespace(
        use_spec_decode=num_spec > 0,
        num_spec=num_spec,
        kv_cache_spec=None,
        vllm_config=SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="none")),
        use_full_cuda_graph=bool(buffers),
        # The checkpoints and chunks of a prefill are other contracts'.
        gdn_prefill_backend="flashinfer",
        plan_flashinfer_checkpoints=False,
        checkpoint_builder=SimpleNamespace(build=lambda *_: None),
        _build_chunk_metadata=lambda *_: (None, None),
        **buffers,
    )
    for stage in STAGES:
        if stage in names:
            setattr(builder, stage.partition(".")[2], partial(names[stage], builder))
    return names[BUILD](builder, 0, batch, accepted, drafts)


def _staged(names: Mapping[str, Any]) -> Callable[..., Any]:
    def stage_decode_state(
        state_indices: Any,
        query_start_loc: Any,
        num_accepted_tokens: Any,
        batch_size: int,
        state_buffer: Any,
        query_start_loc_buffer: Any,
        num_accepted_buffer: Any,
    ) -> tuple[Any, ...]:
        """A batch of speculative rows and of padding behind them, with full CUDA graphs.

        The host does not know how many queries the rows have, and says one of each: so many tokens fit the buffers.
        """
        import torch

        rows, width = state_indices.shape
        padding, device = batch_size - rows, state_indices.device
        capacity = state_buffer.shape[0]
        table = torch.full((batch_size, width), STALE, dtype=torch.int32, device=device)
        table[:rows] = state_indices
        starts = torch.cat([query_start_loc, query_start_loc[-1:].expand(padding)])
        accepted = torch.full((batch_size,), STALE, dtype=torch.int32, device=device)
        accepted[:rows] = num_accepted_tokens
        batch = _batch(
            names,
            table,
            starts,
            torch.arange(batch_size + 1, dtype=torch.int32).clamp(max=rows),
            seq_lens=starts.diff(),
        )
        buffers = {
            "decode_cudagraph_max_bs": capacity,
            "spec_state_indices_tensor": state_buffer,
            "spec_query_start_loc": query_start_loc_buffer,
            "num_accepted_tokens": num_accepted_buffer,
            "spec_sequence_masks": torch.empty(capacity, dtype=torch.bool, device=device),
            "spec_token_indx": torch.empty(capacity * width, dtype=torch.int32, device=device),
            "non_spec_token_indx": torch.empty(capacity * width, dtype=torch.int32, device=device),
        }
        drafts = torch.full((batch_size,), -1, dtype=torch.int32)
        drafts[:rows] = 1
        # One draft at least, or the builder speculates with none.
        made = _build(names, batch, drafts, accepted, max(width - 1, 1), buffers)
        return made.spec_state_indices_tensor, made.spec_query_start_loc, made.num_accepted_tokens

    return stage_decode_state


def _split(names: Mapping[str, Any]) -> Callable[..., Any]:
    upstream = names[SPLIT]

    def split_decodes_and_prefills(
        query_start_loc: Any,
        is_prefilling: Any,
        decode_threshold: int,
        require_uniform: bool,
        treat_short_extends_as_decodes: bool,
    ) -> tuple[int, ...]:
        """The function that most builders call, on what it reads of a batch."""
        queries = query_start_loc.diff()
        batch = SimpleNamespace(
            query_start_loc_cpu=query_start_loc,
            num_reqs=queries.shape[0],
            num_actual_tokens=int(query_start_loc[-1]),
            max_query_len=int(queries.max()) if queries.numel() else 0,
            is_prefilling=is_prefilling,
        )
        made: tuple[int, ...] = upstream(batch, decode_threshold, require_uniform, treat_short_extends_as_decodes)
        return made

    return split_decodes_and_prefills


def _partition(names: Mapping[str, Any]) -> Callable[..., Any]:
    def spec_token_partition(query_start_loc: Any, query_start_loc_cpu: Any, spec_mask_cpu: Any) -> tuple[Any, ...]:
        """The indices and starts of a batch, as int32.

        What upstream leaves out is told here: without speculation, the others' tokens are all, as they are; without
        others' tokens, there are none.
        """
        import torch

        rows, counts = spec_mask_cpu.shape[0], {"dtype": torch.int32, "device": query_start_loc.device}
        batch = _batch(
            names,
            torch.zeros(rows, 1, **counts),
            query_start_loc,
            query_start_loc_cpu,
            seq_lens=query_start_loc[1:],
            seq_lens_cpu_upper_bound=query_start_loc_cpu[1:],
        )
        drafts = torch.where(spec_mask_cpu, 1, -1)
        # So many that a row's queries are never more than its drafts and one.
        most = max(batch.max_query_len, 1)
        made = _build(names, batch, drafts, torch.ones(rows, **counts), most, {})
        speculating = int(spec_mask_cpu.sum())
        left_out = (
            torch.empty(0, **counts),
            torch.arange(batch.num_actual_tokens, **counts),
            torch.zeros(1, **counts),
            torch.zeros(rows - speculating + 1, **counts),
        )
        given = made.spec_token_indx, made.non_spec_token_indx, made.spec_query_start_loc, made.non_spec_query_start_loc
        pairs = zip(given, left_out, strict=True)
        return tuple((other if item is None else item).to(torch.int32, copy=True) for item, other in pairs)

    return spec_token_partition


def _classified(names: Mapping[str, Any]) -> Callable[..., Any]:
    def classify_linear_attention_batch(
        query_start_loc_cpu: Any,
        seq_lens_cpu: Any,
        is_prefilling: Any,
        num_decode_draft_tokens_cpu: Any,
        num_speculative_tokens: int,
    ) -> tuple[Any, ...]:
        """What the builder decides, on the host alone. Where it leaves a tensor out, there is nothing in it."""
        import torch

        rows = seq_lens_cpu.shape[0]
        batch = _batch(
            names,
            torch.zeros(rows, 1, dtype=torch.int32),
            query_start_loc_cpu,
            query_start_loc_cpu,
            seq_lens=seq_lens_cpu,
            seq_lens_cpu_upper_bound=seq_lens_cpu,
            is_prefilling=is_prefilling,
        )
        accepted = torch.ones(rows, dtype=torch.int32)
        made = _build(names, batch, num_decode_draft_tokens_cpu, accepted, num_speculative_tokens, {})
        starts = made.prefill_query_start_loc
        mask, state = made.spec_sequence_masks, made.has_initial_state
        return (
            made.num_decodes,
            made.num_prefills,
            made.num_spec_decodes,
            made.num_decode_tokens,
            made.num_prefill_tokens,
            made.num_spec_decode_tokens,
            torch.zeros(rows, dtype=torch.bool) if mask is None else mask,
            torch.zeros(0, dtype=torch.bool) if state is None else state,
            (torch.zeros(1) if starts is None else starts).to(query_start_loc_cpu.dtype, copy=True),
        )

    return classify_linear_attention_batch


def no_rows(inputs: Inputs) -> bool:
    """A step without requests."""
    states = inputs["state_indices"]
    return isinstance(states, Array) and states.data.ndim == 2 and not states.shape[0]


SOME_ROWS = Narrowing(
    clause="there is a speculative row",
    source="GDNAttentionMetadataBuilder.build: num_spec_decodes == 0 takes the path without spec_sequence_masks",
    excludes=no_rows,
)

BUILD_ARGUMENTS = (
    "self",
    "common_prefix_len",
    "common_attn_metadata",
    "num_accepted_tokens",
    "num_decode_draft_tokens_cpu",
)
SPLIT_ARGUMENTS = (
    "common_attn_metadata",
    "decode_threshold",
    "require_uniform",
    "treat_short_extends_as_decodes",
)


def _of_builder(adapt: Callable[[Mapping[str, Any]], Callable[..., Any]], *narrowings: Narrowing) -> Binding:
    return Binding(
        project="vllm",
        name=BUILD,
        symbols={GDN: (BUILD, *STAGES), BATCH_FILE: (BATCH,)},
        other_symbols=({GDN: (BUILD,), BATCH_FILE: (BATCH,)},),
        signatures={BUILD: (BUILD_ARGUMENTS,)},
        adapt=adapt,
        runs="host",
        narrowings=narrowings,
        stubs=STUBS,
        follow=("vllm.v1.attention.backends.utils",),
    )


GDN_STAGING = (_of_builder(_staged, SOME_ROWS),)
SPLIT_DECODES_AND_PREFILLS = (
    Binding(
        project="vllm",
        name=SPLIT,
        symbols={UTILS: (SPLIT,)},
        signatures={SPLIT: (SPLIT_ARGUMENTS,)},
        adapt=_split,
        runs="host",
    ),
)
SPEC_TOKEN_PARTITION = (_of_builder(_partition),)
CLASSIFY = (_of_builder(_classified),)
