"""Correct builders for linear attention of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_linear import Linear
from unusual_reuse import made_of

NeverReuses, ReturnsAnotherRecord = made_of(Linear)


class RefusesToUpdate(NeverReuses):
    """As it never agrees to reuse anything, nobody may ask it for an update."""

    def update_block_table(self, metadata, block_table, slot_mapping):
        raise ValueError("metadata: it was not accepted")

    @classmethod
    def update_block_tables(cls, metadata, builders, block_tables, slot_mappings):
        raise ValueError("metadata: it was not accepted")


class ColumnsOfOneBuffer(Linear):
    """Builders that share have the columns of one buffer for their states: their elements lie between each other."""

    @classmethod
    def share_reusable_metadata_buffers(cls, builders):
        super().share_reusable_metadata_buffers(builders)
        rows = builders[0].config.max_graph_rows
        wide = builders[0].new(rows, len(builders))
        for number, builder in enumerate(builders):
            builder.own["non_spec_state_indices_tensor"] = wide[:, number]


class KeepsItsViews(Linear):
    """Of each size one object, which is returned again and again."""

    def stage_states(self, name, states, rows):
        view = super().stage_states(name, states, rows)
        return self.__dict__.setdefault("views", {}).setdefault((name, rows), view)


class ComputesInInt64(Linear):
    def states(self, batch, block_table):
        return super().states(batch, block_table.to(torch.int64)).to(torch.int32)


class ComparesWithAllColumns(Linear):
    """Every column of the table times whether it is the one."""

    def states(self, batch, block_table):
        columns = self.first_columns(batch)[:, None] + self.upload(range(1 + self.spec.num_speculative_blocks))
        every = torch.arange(block_table.shape[1], device=self.device)
        return ((columns[:, :, None] == every) * block_table[:, None, :]).sum(2).to(torch.int32)
