"""The builder of metadata for MLA decodes over pages of one token (AITER)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from optimized.errors import PAD_SLOT_ID, ContractError
from optimized.metadata_builder import Origin, ReusingBuilder, Step
from optimized.metadata_records import Batch, MlaConfig, MlaMetadata, MlaSpec
from optimized.metadata_refusals import checked_batch, refuse_bad_groups
from optimized.mla_decode_layout import _LEAST_LENGTH, _widths
from optimized.mla_launches import LAYOUT, Layout, write_layout, write_pages

_MOST_VIEWS = 4096  # numbers of rows whose views of a graph's buffers are kept

_Fields = dict[str, Any]


class MlaBuffers:
    """A graph's buffers for what depends on the batch alone: of one builder, or of several that share them."""

    def __init__(self, config: MlaConfig, device: torch.device) -> None:
        rows = config.max_graph_rows
        self.step: Step | None = None
        self.seq_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.paged_kv_indptr = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.paged_kv_last_page_len = torch.ones(rows, dtype=torch.int32, device=device)
        self.qo_indptr = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self._views: dict[int, _Fields] = {}

    def device(self) -> torch.device:
        """Asked of a tensor each time, because "cuda" is "cuda:0" there."""
        return self.seq_lens.device

    def whole(self) -> tuple[torch.Tensor, ...]:
        """All of them, in the order of ``LAYOUT``."""
        return self.seq_lens, self.paged_kv_indptr, self.paged_kv_last_page_len, self.qo_indptr

    def of_rows(self, num_rows: int) -> _Fields:
        """The views that a step has."""
        views = self._views.get(num_rows)
        if views is None:
            if len(self._views) == _MOST_VIEWS:
                self._views.clear()
            ends = num_rows, num_rows + 1, num_rows, num_rows + 1
            parts = [buffer[:end] for buffer, end in zip(self.whole(), ends, strict=True)]
            views = self._views[num_rows] = dict(zip(LAYOUT, parts, strict=True))
        return views


class _Plan(NamedTuple):
    """What the pages of further groups need. ``width``, ``adaptive``: of :class:`Layout`."""

    width: int
    adaptive: bool
    max_qo_len: int
    longest: int
    num_pages: int
    staged: bool


class MlaMetadataBuilder(ReusingBuilder):
    """Makes the :class:`MlaMetadata` of one KV-cache group of MLA layers.

    ``spec``, ``config``
        :class:`MlaSpec` and :class:`MlaConfig`, or others with their fields.
    ``device``
        where the tables are, a ``torch.device`` or its name.

    Refused (:class:`ContractError`): a spec or config without one of the fields.

    Source of the definition: contracts.md, sections 5, 2.3 and 2.6, and vLLM's `AiterMLAMetadataBuilder`.
    """

    configuration = MlaConfig.CONFIGURATION
    spec: MlaSpec
    config: MlaConfig
    buffers: MlaBuffers

    def __init__(self, spec: MlaSpec, config: MlaConfig, device: torch.device | str) -> None:
        super().__init__(spec, config, device)
        self.buffers = MlaBuffers(config, self.device)
        self._capacity = config.max_num_reqs * (config.max_model_len + config.varlen_width)
        # The largest buffer by far, so that a builder without graphs has none.
        self._pages: torch.Tensor | None = self._empty_pages() if config.max_graph_rows else None

    def build(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> MlaMetadata:
        """Return the metadata of a step of decodes for the group that has this table and these slots, in one launch.

        Lengths and starts are those of :func:`optimized.mla_decode_layout.mla_decode_layout`, adaptive where the config
        has a ``varlen_width`` and both batch and spec are causal. Token ``i`` of request ``r`` is page
        ``block_table[r, i // k] * k + i % k``; past the columns, which only added queries reach, the row's first block
        is used. In a step that runs from a full graph and whose requests fit its buffers, tensors are views of those,
        and ``paged_kv_indices`` is the whole buffer. Else they are new.

        ``block_table``
            int32 ``[R, M]``, any strides; ids are at least 0. The metadata has the tensor itself.
        ``slot_mapping``
            int32 or int64, one-dimensional. The metadata has the tensor itself.

        Any device values are memory-safe. Refused (:class:`ContractError`) before anything is launched or written: what
        :func:`optimized.metadata_refusals.checked_batch` and ``refuse_bad_groups`` list; a request of more tokens than
        its columns have; a row of more than ``varlen_width > 0`` queries, more queries of all rows than int32 counts;
        more pages than ``paged_kv_indices`` has places.
        """
        plan, arrays = self._planned(batch, block_table, slot_mapping)
        num_rows = batch.seq_lens.shape[0]
        if plan.staged:
            fields, outs = dict(self.buffers.of_rows(num_rows)), self.buffers.whole()
        else:
            new = batch.seq_lens.new_empty
            outs = new((num_rows,)), new((num_rows + 1,)), new((num_rows,)), new((num_rows + 1,))
            fields = dict(zip(LAYOUT, outs, strict=True))
        pages = self._pages_for(block_table, plan.staged)
        layout = Layout(outs, plan.width, plan.adaptive)
        write_layout(block_table, batch.seq_lens, batch.query_start_loc, self.spec.block_size, pages, layout)
        step, buffers = Step(batch, arrays, list(fields.values())), None
        if plan.staged:
            buffers, self.buffers.step, self._staged_once = self.buffers, step, True
        fields["num_decodes"], fields["num_decode_tokens"] = num_rows, batch.num_actual_tokens
        fields["max_qo_len"], fields["min_kv_seq_len"] = plan.max_qo_len, _LEAST_LENGTH
        fields.update(_of_group(pages, block_table, slot_mapping))
        origin = Origin(self._itself, self._key, step, buffers, plan, batch.full_graph)
        metadata: MlaMetadata = self._signed(MlaMetadata, origin, fields)
        return metadata

    def _refuse(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        self._planned(batch, block_table, slot_mapping)

    def _planned(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> tuple[_Plan, Any]:
        """What the host knows of a step, and the memory of its tensors there, or a refusal."""
        host = checked_batch(batch, self.config.max_num_reqs, self.buffers.device())
        num_rows, longest = host.queries.size, int(host.lengths.max(initial=0))
        refuse_bad_groups((block_table,), (slot_mapping,), num_rows, self.buffers.device())
        self._refuse_few_columns(block_table, longest)
        varlen = self.config.varlen_width if batch.causal and self.spec.causal else 0
        most_queries, width = _widths(host.queries, batch.num_actual_tokens, varlen)
        num_pages = int(host.lengths.sum(dtype=np.int64))
        if varlen:
            num_pages += num_rows * width - int(host.starts[-1])
        elif width:
            # Where rows are padded to one width, those that have no query have no length that counts.
            idle = host.queries == 0
            num_pages += width * int(np.count_nonzero(idle)) - int(host.lengths[idle].sum(dtype=np.int64))
        staged = batch.full_graph and num_rows <= self.config.max_graph_rows
        plan = _Plan(width, varlen > 0, width or most_queries, longest, num_pages, staged)
        self._refuse_few_places(block_table, plan)
        return plan, host.arrays

    def _refuse_few_columns(self, block_table: torch.Tensor, longest: int) -> None:
        if longest > block_table.shape[1] * self.spec.block_size:
            rule = f"the columns must hold the {longest} tokens of a request, {self.spec.block_size} a column"
            raise ContractError("block_table", tuple(block_table.shape), rule)

    def _refuse_few_places(self, block_table: torch.Tensor, plan: _Plan) -> None:
        places = self._num_places(block_table, plan.staged)
        if plan.num_pages > places:
            rule = f"the kernel lengths must sum to at most the places of paged_kv_indices, {places}"
            raise ContractError("seq_lens_cpu", plan.num_pages, rule)

    def _num_places(self, block_table: torch.Tensor, staged: bool) -> int:
        if staged:
            return self._capacity
        num_rows, num_columns = block_table.shape
        return num_rows * (num_columns * self.spec.block_size + self.config.varlen_width)

    def _pages_for(self, block_table: torch.Tensor, staged: bool) -> torch.Tensor:
        if not staged:
            return block_table.new_empty((self._num_places(block_table, staged),))
        if self._pages is None:
            self._pages = self._empty_pages()
        return self._pages

    def _empty_pages(self) -> torch.Tensor:
        return torch.full((self._capacity,), PAD_SLOT_ID, dtype=torch.int32, device=self.device)

    def _updated(
        self,
        metadata: MlaMetadata,
        origin: Origin,
        builders: Sequence[MlaMetadataBuilder],
        block_tables: Sequence[torch.Tensor],
        slot_mappings: Sequence[torch.Tensor],
    ) -> list[MlaMetadata]:
        plan = origin.plan
        refuse_bad_groups(block_tables, slot_mappings, metadata.num_decodes, self.buffers.device())
        groups = list(zip(builders, block_tables, slot_mappings, strict=True))
        for builder, table, _ in groups:
            builder._refuse_few_columns(table, plan.longest)
            builder._refuse_few_places(table, plan)
        pages = [builder._pages_for(table, plan.staged) for builder, table, _ in groups]
        write_pages(block_tables, metadata.seq_lens, self.spec.block_size, pages)
        fields, updated = vars(metadata), []
        for own, (builder, table, slots) in zip(pages, groups, strict=True):
            builder._staged_once |= plan.staged
            updated.append(builder._signed(MlaMetadata, origin.of(builder), fields, _of_group(own, table, slots)))
        return updated


def _of_group(pages: torch.Tensor, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> _Fields:
    return {"paged_kv_indices": pages, "block_table": block_table, "slot_mapping": slot_mapping}
