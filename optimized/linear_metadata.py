"""The builder of metadata for hybrid linear attention (KDA, GDN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import ContractError
from optimized.linear_launches import NO_ROWS, StepRows, write_states, write_step
from optimized.linear_steps import LinearBuffers, Plan, with_speculation, without_speculation
from optimized.metadata_builder import Origin, ReusingBuilder, Step
from optimized.metadata_records import Batch, LinearConfig, LinearMetadata, LinearSpec
from optimized.metadata_refusals import HostRows, checked_batch, refuse_bad_groups

_Fields = dict[str, Any]


class LinearMetadataBuilder(ReusingBuilder):
    """Makes the :class:`LinearMetadata` of one KV-cache group of linear-attention layers.

    ``spec``, ``config``
        :class:`LinearSpec` and :class:`LinearConfig`, or others with their fields.
    ``device``
        where the tables are, a ``torch.device`` or its name.

    Refused (:class:`ContractError`): a spec or config without one of the fields.

    Source of the definition: contracts.md, section 5, and vLLM's `GDNAttentionMetadataBuilder.build`.
    """

    configuration = LinearConfig.CONFIGURATION
    spec: LinearSpec
    config: LinearConfig
    buffers: LinearBuffers

    def __init__(self, spec: LinearSpec, config: LinearConfig, device: torch.device | str) -> None:
        super().__init__(spec, config, device)
        rows, self._width = config.max_graph_rows, 1 + spec.num_speculative_blocks
        self._block_size = None if spec.mamba_cache_mode == "none" else spec.block_size
        self.buffers = LinearBuffers(config, self.device)
        self._spec_states = torch.zeros((rows, self._width), dtype=torch.int32, device=self.device)
        self._non_spec_states = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self._views: dict[tuple[bool, int], _Fields] = {}

    def build(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> LinearMetadata:
        """Return the metadata of a step for the group that has this table and these slots.

        The host does not wait for the device. Without prefills it is one launch; with them, chunks and partitions take
        theirs, and host tables are copied. Without prefills, in a step that runs from a full graph and whose requests
        fit its buffers, tensors are views of those, in rows for all ``R`` requests: padding, which is all behind the
        last request with a query or the last that speculates, has NULL blocks, no query, 1 accepted token. Every other
        tensor is new, or a view of the batch's.

        ``block_table``
            int32 ``[R, M]``, any strides. Any ids: they are copied.
        ``slot_mapping``
            int32 or int64, one-dimensional. Nothing depends on it.

        Any device values are memory-safe. Refused (:class:`ContractError`) before anything is launched or written: what
        :func:`optimized.metadata_refusals.checked_batch` and ``refuse_bad_groups`` list; fewer than ``1 + S`` columns
        in mode "none"; no accepted counts although a request speculates; requests that do not speculate before one that
        does, where only those have queries.
        """
        host, mask = self._checked(batch, block_table, slot_mapping)
        if mask is None:
            step = without_speculation(batch, host, self.config, self.buffers)
        else:
            step = with_speculation(batch, host, mask, self._width, self.config, self.buffers)
        states, own = self._states(step.plan)
        self._launch(batch, block_table, states, step.plan, step.rows)
        if step.num_prefills:
            step.add_chunks(self.config)
        tensors = [value for value in step.fields.values() if type(value) is not int]
        made_from = Step(batch, host.arrays, tensors)
        buffers = None
        if step.plan.staged:
            buffers, self.buffers.step, self._staged_once = self.buffers, made_from, True
        replayed = batch.full_graph and not step.num_prefills
        origin = Origin(self._itself, self._key, made_from, buffers, step.plan, replayed)
        metadata: LinearMetadata = self._signed(LinearMetadata, origin, step.fields, own)
        return metadata

    def _updated(
        self,
        metadata: LinearMetadata,
        origin: Origin,
        builders: Sequence[LinearMetadataBuilder],
        block_tables: Sequence[torch.Tensor],
        slot_mappings: Sequence[torch.Tensor],
    ) -> list[LinearMetadata]:
        plan, batch = origin.plan, origin.step.batch
        refuse_bad_groups(block_tables, slot_mappings, batch.seq_lens.shape[0], self.buffers.device())
        if self._block_size is None:
            for table in block_tables:
                self._refuse_few_columns(table)
        states, fields = [], []
        for builder in builders:
            place, own = builder._states(plan)
            states.append(place)
            fields.append(own)
        if len(states) == 1:
            self._launch(batch, block_tables[0], states[0], plan, NO_ROWS)
        else:
            write_states(block_tables, plan.seq_lens, self._block_size, states, plan.rows)
        shared, updated = vars(metadata), []
        for builder, own in zip(builders, fields, strict=True):
            builder._staged_once |= plan.staged
            updated.append(builder._signed(LinearMetadata, origin.of(builder), shared, own))
        return updated

    def _launch(self, batch: Batch, table: torch.Tensor, states: torch.Tensor, plan: Plan, rows: StepRows) -> None:
        starts, no_flags = batch.query_start_loc, self.buffers.spec_sequence_masks
        write_step(table, plan.seq_lens, starts, self._block_size, states, plan.rows, rows, no_flags)

    def _states(self, plan: Plan) -> tuple[torch.Tensor, _Fields]:
        """Where states of a step go, and the fields that lie there."""
        if not plan.staged:
            return plan.allocated()
        speculates, num_rows = plan.num_spec > 0, plan.rows.num_rows
        buffer = self._spec_states if speculates else self._non_spec_states
        views = self._views.get((speculates, num_rows))
        if views is None:
            name = "spec_state_indices_tensor" if speculates else "non_spec_state_indices_tensor"
            views = self._views[speculates, num_rows] = {name: buffer[:num_rows]}
        return buffer, views

    def _refuse(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        self._checked(batch, block_table, slot_mapping)

    def _checked(
        self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> tuple[HostRows, npt.NDArray[np.bool_] | None]:
        """The host's rows, and which of them speculate if any does, or a refusal."""
        device = self.buffers.device()
        host = checked_batch(batch, self.config.max_num_reqs, device)
        refuse_bad_groups((block_table,), (slot_mapping,), host.queries.size, device)
        if self._block_size is None:
            self._refuse_few_columns(block_table)
        drafts = host.drafts
        if drafts is None or not self.config.num_speculative_tokens:
            return host, None
        mask = drafts >= 0
        number = np.count_nonzero(mask)
        if not number:
            return host, None
        if batch.num_accepted_tokens is None:
            raise ContractError("num_accepted_tokens", None, "it is needed where a request speculates")
        if np.count_nonzero(mask[:number]) < number and not host.queries[~mask].any():
            rule = "where no others have queries, requests that speculate must come first"
            # The first rows are taken: in another order they would silently be the wrong ones.
            raise ContractError("num_decode_draft_tokens_cpu", drafts.tolist(), rule)
        return host, mask

    def _refuse_few_columns(self, block_table: torch.Tensor) -> None:
        """Refuse them in mode "none", where all are copied."""
        if block_table.shape[1] < self._width:
            rule = f"there must be at least 1 + num_speculative_blocks columns, {self._width}"
            raise ContractError("block_table", tuple(block_table.shape), rule)
