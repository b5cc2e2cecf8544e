"""Metadata of a paged MLA decode (AITER): what one step gives the layers of a KV-cache group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reference.errors import NULL_BLOCK_ID, PAD_SLOT_ID, ContractError, OnlyMemorySafety
from reference.metadata_records import Batch, Int32, MlaConfig, MlaMetadata, MlaSpec
from reference.metadata_refusals import no_values_where_batch_twins_differ, refuse_bad_step
from reference.mla_decode_layout import mla_decode_layout

_INT32_MAX = 2**31 - 1


def build_mla(
    batch: Batch,
    spec: MlaSpec,
    config: MlaConfig,
    block_table: Int32,
    slot_mapping: npt.NDArray[np.signedinteger],
) -> MlaMetadata:
    """Return the metadata of a step for one group of MLA layers. All ``R`` requests are decodes, by the caller's word.

    Lengths, starts of pages and of queries are those of :func:`reference.mla_decode_layout.mla_decode_layout`, whose
    ``num_decode_tokens`` are the batch's ``num_actual_tokens``. Its ``varlen_width`` is the config's where both batch
    and spec are causal, else 0: rows of added queries rely on the causal mask.

    A page is one token. With ``k = block_size``, token ``i`` of request ``r`` is the cache row
    ``block_table[r, i // k] * k + i % k`` and stands in ``paged_kv_indices`` at ``paged_kv_indptr[r] + i``. A column
    past the row, which only added queries reach, is looked up in the row's first block, so that a kernel reads a page
    that exists; without columns it is -1. The rest of ``paged_kv_indices`` is -1.

    ``paged_kv_indices`` is the group's whole buffer, ``max_num_reqs * (max_model_len + varlen_width)`` entries, if the
    step runs from a full graph and its rows fit the graph's buffers (:func:`is_mla_staged`). Else it is a new tensor of
    ``R * (M * k + varlen_width)``.

    ``block_table``
        int32 ``[R, M]``, in blocks; ids are at least 0. Where nothing is looked up any values may stand.
    ``slot_mapping``
        int32 or int64, one-dimensional. Any values.

    Refused (:class:`ContractError`), in this order: what :func:`reference.metadata_refusals.refuse_bad_step` refuses; a
    length past the columns of the table; a row of more than ``varlen_width > 0`` queries, and more queries of all rows
    than int32 counts; kernel lengths that sum to more than the entries of ``paged_kv_indices``.

    No values are promised (:class:`OnlyMemorySafety`) where the device's starts or lengths are not the host's, for a
    looked-up block below 0, and for a sum of lengths or a cache row that int32 cannot hold.

    Source of the definition: contracts.md, sections 5, 2.3 and 2.6, and vLLM's `AiterMLAMetadataBuilder`.
    """
    refuse_bad_step(batch, config.max_num_reqs, block_table, slot_mapping)
    _refuse_too_few_columns(batch, spec, block_table)
    width = config.varlen_width if batch.causal and spec.causal else 0
    starts, num_tokens = batch.query_start_loc_cpu, batch.num_actual_tokens
    lengths, indptr, qo_indptr, max_qo_len, min_kv_seq_len = mla_decode_layout(
        starts, starts, batch.seq_lens_cpu, num_tokens, width, batch.full_graph
    )
    num_entries = _num_entries(batch, spec, config, block_table)
    if indptr[-1] > num_entries:
        rule = f"the kernel lengths must sum to at most the entries of paged_kv_indices, {num_entries}"
        raise ContractError("seq_lens_cpu", int(indptr[-1]), rule)
    no_values_where_batch_twins_differ(batch)

    pages = [
        _cache_row(block_table, request, token, spec.block_size)
        for request, length in enumerate(lengths.tolist())
        for token in range(length)
    ]
    return MlaMetadata(
        num_decodes=lengths.size,
        num_decode_tokens=num_tokens,
        seq_lens=lengths,
        paged_kv_indptr=indptr,
        paged_kv_last_page_len=np.ones(lengths.size, np.int32),
        qo_indptr=qo_indptr,
        max_qo_len=max_qo_len,
        min_kv_seq_len=min_kv_seq_len,
        paged_kv_indices=np.array(pages + [PAD_SLOT_ID] * (num_entries - len(pages)), np.int32),
        block_table=block_table,
        slot_mapping=slot_mapping,
    )


def is_mla_staged(batch: Batch, config: MlaConfig) -> bool:
    """Whether the metadata of a step lies in the buffers of a full graph: all rows fit."""
    return batch.full_graph and batch.seq_lens_cpu.size <= config.max_graph_rows


def mla_buffers(config: MlaConfig) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Shape and dtype of the buffers of a builder, by the metadata's field that is a beginning of each."""
    rows = config.max_graph_rows
    sizes = {
        "seq_lens": rows,
        "paged_kv_indptr": rows + 1,
        "paged_kv_last_page_len": rows,
        "qo_indptr": rows + 1,
        "paged_kv_indices": config.max_num_reqs * (config.max_model_len + config.varlen_width),
    }
    return {name: ((size,), np.dtype(np.int32)) for name, size in sizes.items()}


def mla_buffer_tails(metadata: MlaMetadata) -> dict[str, int]:
    """What stands behind the rows of a step, to the end of each buffer: rows that read and write nothing."""
    return {
        "seq_lens": 0,
        "paged_kv_indptr": int(metadata.paged_kv_indptr[-1]),
        "paged_kv_last_page_len": 1,
        "qo_indptr": int(metadata.qo_indptr[-1]),
        "paged_kv_indices": PAD_SLOT_ID,
    }


def _refuse_too_few_columns(batch: Batch, spec: MlaSpec, block_table: Int32) -> None:
    for request, length in enumerate(batch.seq_lens_cpu.tolist()):
        if length > block_table.shape[1] * spec.block_size:
            rule = f"the columns must hold the {length} tokens of request {request}, {spec.block_size} a column"
            raise ContractError("block_table", block_table.shape, rule)


def _num_entries(batch: Batch, spec: MlaSpec, config: MlaConfig, block_table: Int32) -> int:
    """How many entries ``paged_kv_indices`` has."""
    if is_mla_staged(batch, config):
        return mla_buffers(config)["paged_kv_indices"][0][0]
    return len(block_table) * (int(block_table.shape[1]) * spec.block_size + config.varlen_width)


def _cache_row(block_table: Int32, request: int, token: int, block_size: int) -> int:
    num_columns = block_table.shape[1]
    if num_columns == 0:
        return PAD_SLOT_ID
    column = token // block_size
    block = int(block_table[request, column if column < num_columns else 0])
    if block < NULL_BLOCK_ID:
        raise OnlyMemorySafety(f"the block of token {token} of request {request} is {block}")
    row = block * block_size + token % block_size
    if row > _INT32_MAX:
        raise OnlyMemorySafety(f"the cache row of token {token} of request {request} is {row}, which int32 cannot hold")
    return row
