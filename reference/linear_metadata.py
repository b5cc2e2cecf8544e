"""Metadata of hybrid linear attention (KDA, GDN): what one step gives the layers of a KV-cache group."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reference.batch_classes import classify_linear_attention_batch
from reference.chunk_metadata import causal_conv1d_metadata, chunk_metadata
from reference.errors import ContractError
from reference.metadata_records import Batch, Bools, Int32, LinearConfig, LinearMetadata, LinearSpec
from reference.metadata_refusals import no_values_where_batch_twins_differ, refuse_bad_step
from reference.query_starts import query_lengths
from reference.state_columns import spec_token_partition, stage_decode_state, state_columns

CONV_BLOCK_TOKENS = 8
"""tokens a program of the causal convolution works on"""


def build_linear(
    batch: Batch,
    spec: LinearSpec,
    config: LinearConfig,
    block_table: Int32,
    slot_mapping: npt.NDArray[np.signedinteger],
) -> LinearMetadata:
    """Return the metadata of a step for one group of linear-attention layers.

    The requests are classified as :func:`reference.batch_classes.classify_linear_attention_batch` says. ``T`` is what
    :func:`reference.state_columns.state_columns` gives for the table, the batch's lengths and the group's spec.

    - *No request speculates*: the states are ``T[:, 0]``, the starts the batch's, and there are no lists of tokens.
    - *Only speculation* (no others have queries): the ``A`` requests that speculate come first. The states are
      ``T[:A]``, the tokens the first ``A * (num_speculative_tokens + 1)`` of the step, or all if they are fewer.
    - *Both*: the tokens are parted as :func:`reference.state_columns.spec_token_partition` says.

    With prefills there are chunks of the requests from ``num_decodes`` on (their starts rebased to 0), and blocks of
    ``CONV_BLOCK_TOKENS`` tokens of all that do not speculate.

    In a full graph, metadata without prefills whose rows fit the graph's buffers is staged there
    (:func:`is_linear_staged`): all ``R`` rows, those behind the last with a query, or behind the last that speculates,
    having the NULL block, no query, and 1 accepted token. Else rows of padding keep what their table says.

    ``block_table``
        int32 ``[R, M]``, in blocks. Any ids: they are copied as they are.
    ``slot_mapping``
        int32 or int64, one-dimensional. Nothing of linear attention depends on it.

    Refused (:class:`ContractError`), in this order: what :func:`reference.metadata_refusals.refuse_bad_step` refuses;
    fewer than ``1 + S`` columns in mode "none"; no accepted tokens although a request speculates; requests that do not
    speculate before one that does, where only those have queries.

    No values are promised (:class:`OnlyMemorySafety`) where the device's starts or lengths are not the host's.

    Source of the definition: contracts.md, section 5, and vLLM's `GDNAttentionMetadataBuilder.build`.
    """
    refuse_bad_step(batch, config.max_num_reqs, block_table, slot_mapping)
    mode, size, extra = spec.mamba_cache_mode, spec.block_size, spec.num_speculative_blocks
    (states,) = state_columns(block_table, batch.seq_lens, mode, size, extra)
    classes = _classify(batch, config)
    if classes.num_spec_decodes:
        _refuse_bad_speculation(batch, classes)
    no_values_where_batch_twins_differ(batch)

    if not classes.num_spec_decodes:
        metadata = _without_speculation(batch, config, classes, states)
    elif classes.num_prefills:
        metadata = _with_both(batch, config, classes, states)
    else:
        metadata = _only_speculation(batch, config, classes, states)
    return _staged(metadata, batch, states) if is_linear_staged(batch, config) else metadata


def is_linear_staged(batch: Batch, config: LinearConfig) -> bool:
    """Whether the metadata of a step lies in the buffers of a full graph: no prefills, and all rows fit."""
    fits = batch.seq_lens_cpu.size <= config.max_graph_rows
    return batch.full_graph and fits and _classify(batch, config).num_prefills == 0


def linear_buffers(spec: LinearSpec, config: LinearConfig) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Shape and dtype of the buffers of a builder, by the metadata's field that is a beginning of each."""
    rows, tokens = config.max_graph_rows, config.max_graph_rows * (config.num_speculative_tokens + 1)
    shapes = {
        "spec_state_indices_tensor": (rows, 1 + spec.num_speculative_blocks),
        "non_spec_state_indices_tensor": (rows,),
        "spec_token_indx": (tokens,),
        "non_spec_token_indx": (tokens,),
        "spec_query_start_loc": (rows + 1,),
        "non_spec_query_start_loc": (rows + 1,),
        "num_accepted_tokens": (rows,),
    }
    int32 = {name: (shape, np.dtype(np.int32)) for name, shape in shapes.items()}
    return {**int32, "spec_sequence_masks": ((rows,), np.dtype(np.bool_))}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Classes:
    num_decodes: int
    num_prefills: int
    num_spec_decodes: int
    num_decode_tokens: int
    num_prefill_tokens: int
    num_spec_decode_tokens: int
    spec_mask: Bools
    has_initial_state: Bools


def _classify(batch: Batch, config: LinearConfig) -> _Classes:
    decodes, prefills, spec_decodes, decode_tokens, prefill_tokens, spec_tokens, mask, state, _ = (
        classify_linear_attention_batch(
            batch.query_start_loc_cpu,
            batch.seq_lens_cpu,
            batch.is_prefilling,
            batch.num_decode_draft_tokens_cpu,
            config.num_speculative_tokens,
        )
    )
    return _Classes(
        num_decodes=decodes,
        num_prefills=prefills,
        num_spec_decodes=spec_decodes,
        num_decode_tokens=decode_tokens,
        num_prefill_tokens=prefill_tokens,
        num_spec_decode_tokens=spec_tokens,
        spec_mask=mask,
        has_initial_state=state,
    )


def _refuse_bad_speculation(batch: Batch, classes: _Classes) -> None:
    if batch.num_accepted_tokens is None:
        raise ContractError("num_accepted_tokens", None, "it is needed where a request speculates")
    first = classes.spec_mask[: classes.num_spec_decodes].tolist()
    if classes.num_prefills == 0 and not all(first):
        rule = (
            f"where no others have queries, requests that speculate come first: request {first.index(False)} does not"
        )
        # The implementation takes the first rows: another order would silently give it the wrong ones.
        raise ContractError("num_decode_draft_tokens_cpu", _given(batch.num_decode_draft_tokens_cpu).tolist(), rule)


def _counts(batch: Batch, classes: _Classes) -> LinearMetadata:
    return LinearMetadata(
        num_prefills=classes.num_prefills,
        num_prefill_tokens=classes.num_prefill_tokens,
        num_decodes=classes.num_decodes,
        num_decode_tokens=classes.num_decode_tokens,
        num_spec_decodes=classes.num_spec_decodes,
        num_spec_decode_tokens=classes.num_spec_decode_tokens,
        num_actual_tokens=batch.num_actual_tokens,
    )


def _without_speculation(
    batch: Batch, config: LinearConfig, classes: _Classes, states: npt.NDArray[np.int32]
) -> LinearMetadata:
    metadata = replace(
        _counts(batch, classes),
        non_spec_query_start_loc=batch.query_start_loc.copy(),
        non_spec_state_indices_tensor=states[:, 0].copy(),
    )
    return _with_prefills(metadata, config, classes) if classes.num_prefills else metadata


def _only_speculation(
    batch: Batch, config: LinearConfig, classes: _Classes, states: npt.NDArray[np.int32]
) -> LinearMetadata:
    number, most = classes.num_spec_decodes, classes.num_spec_decodes * (config.num_speculative_tokens + 1)
    return replace(
        _counts(batch, classes),
        uniform_spec_sequence_length=_uniform_queries(batch, classes),
        spec_query_start_loc=batch.query_start_loc[: number + 1].copy(),
        spec_sequence_masks=classes.spec_mask,
        spec_sequence_masks_cpu=classes.spec_mask.copy(),
        spec_token_indx=np.arange(min(most, int(batch.query_start_loc_cpu[-1])), dtype=np.int32),
        non_spec_token_indx=np.zeros(0, np.int32),
        num_accepted_tokens=_given(batch.num_accepted_tokens)[:number].copy(),
        spec_state_indices_tensor=states[:number].copy(),
    )


def _with_both(batch: Batch, config: LinearConfig, classes: _Classes, states: npt.NDArray[np.int32]) -> LinearMetadata:
    mask = classes.spec_mask
    partition = spec_token_partition(batch.query_start_loc, batch.query_start_loc_cpu, mask)
    spec_tokens, non_spec_tokens, spec_starts, non_spec_starts = partition
    speculating = [request for request, speculates in enumerate(mask.tolist()) if speculates]
    others = [request for request, speculates in enumerate(mask.tolist()) if not speculates]
    metadata = replace(
        _counts(batch, classes),
        uniform_spec_sequence_length=_uniform_queries(batch, classes),
        spec_query_start_loc=spec_starts,
        non_spec_query_start_loc=non_spec_starts,
        spec_sequence_masks=mask,
        spec_sequence_masks_cpu=mask.copy(),
        spec_token_indx=spec_tokens,
        non_spec_token_indx=non_spec_tokens,
        num_accepted_tokens=_given(batch.num_accepted_tokens)[speculating],
        spec_state_indices_tensor=states[speculating],
        non_spec_state_indices_tensor=states[others, 0],
    )
    return _with_prefills(metadata, config, classes)


def _with_prefills(metadata: LinearMetadata, config: LinearConfig, classes: _Classes) -> LinearMetadata:
    first, starts = classes.num_decodes, _given(metadata.non_spec_query_start_loc)
    prefill_starts = starts[first:] - np.int32(classes.num_decode_tokens)
    chunk_indices, chunk_offsets = chunk_metadata(prefill_starts, prefill_starts, config.chunk_size)
    batch_ptr, token_chunk_offset_ptr, num_blocks = causal_conv1d_metadata(starts, CONV_BLOCK_TOKENS)
    return replace(
        metadata,
        has_initial_state=classes.has_initial_state,
        prefill_query_start_loc=prefill_starts,
        prefill_has_initial_state=classes.has_initial_state[first:].copy(),
        prefill_state_indices=_given(metadata.non_spec_state_indices_tensor)[first:].copy(),
        chunk_indices=chunk_indices,
        chunk_offsets=chunk_offsets,
        batch_ptr=batch_ptr,
        token_chunk_offset_ptr=token_chunk_offset_ptr,
        num_conv_blocks=num_blocks,
    )


def _staged(metadata: LinearMetadata, batch: Batch, states: npt.NDArray[np.int32]) -> LinearMetadata:
    """What the beginnings of the buffers hold for all rows, instead of the tensors of the step's own rows."""
    if metadata.num_spec_decodes:
        own_starts, accepted = _given(metadata.spec_query_start_loc), _given(metadata.num_accepted_tokens)
        own_states = states[: metadata.num_spec_decodes]
        rows, starts, accepted = _stage(own_states, own_starts, accepted, states.shape[0])
        return replace(
            metadata, spec_state_indices_tensor=rows, spec_query_start_loc=starts, num_accepted_tokens=accepted
        )
    number = _rows_with_queries(batch)
    own_starts, nothing = batch.query_start_loc[: number + 1], np.zeros(number, np.int32)
    rows, starts, _ = _stage(states[:number, :1], own_starts, nothing, states.shape[0])
    return replace(metadata, non_spec_state_indices_tensor=rows[:, 0].copy(), non_spec_query_start_loc=starts)


def _stage(states: Int32, starts: Int32, accepted: Int32, num_rows: int) -> tuple[Int32, Int32, Int32]:
    buffers = (np.zeros((num_rows, states.shape[1]), np.int32), np.zeros(num_rows + 1, np.int32))
    staged = stage_decode_state(states, starts, accepted, num_rows, *buffers, np.zeros(num_rows, np.int32))
    return staged[0], staged[1], staged[2]


def _rows_with_queries(batch: Batch) -> int:
    """How many rows there are up to the last one with a query: the rest is padding."""
    queries = query_lengths(batch.query_start_loc_cpu.tolist())
    return max((row + 1 for row, number in enumerate(queries) if number), default=0)


def _uniform_queries(batch: Batch, classes: _Classes) -> int | None:
    queries = query_lengths(batch.query_start_loc_cpu.tolist())
    numbers = {number for number, speculates in zip(queries, classes.spec_mask.tolist(), strict=True) if speculates}
    return max(numbers) if len(numbers) == 1 and numbers != {0} else None


def _given(tensor: Int32 | None) -> Int32:
    """A tensor that the class of the batch brings with it."""
    assert tensor is not None
    return tensor
