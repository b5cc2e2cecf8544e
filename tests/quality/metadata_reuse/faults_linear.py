"""Faults of a builder for linear attention: the correct one with a method replaced."""

from __future__ import annotations

import torch
from correct_builders import Metadata, staged
from correct_linear import Linear
from faults_reuse import key_without, made_of
from lost_bits import in_32_bits

(
    CopiesShallowly, CopiesWhatIsTheBatchs, SharesAtAnyTime, AcceptsAnyBatch, AcceptsEqualBatches, AcceptsTheSameStep,
    AcceptsRefilledBatches, AcceptsItsOwn, AcceptsCopies, AcceptsAnyKey, AcceptsBuffersOfOthers,
    AcceptsBuffersOfOthersAtFirst, AcceptsWhatIsNoMetadata, UsesTheFirstTable, DropsTheLastGroup,
    ReturnsTheLastGroupFirst, WorksInOneBufferForAll,
) = made_of(Linear)  # fmt: skip


KeyWithoutBlockSize = key_without(Linear, "block_size")
KeyWithoutSpeculativeBlocks = key_without(Linear, "num_speculative_blocks")
KeyWithoutMode = key_without(Linear, "mamba_cache_mode")
KeyWithoutDtype = key_without(Linear, "dtype")
KeyWithoutPageSize = key_without(Linear, "page_size_bytes")


# What an update leaves as it was.


class KeepsTheOldSlice(Linear):
    def updated(self, metadata, block_table, slot_mapping):
        found = super().updated(metadata, block_table, slot_mapping)
        found.prefill_state_indices = metadata.prefill_state_indices
        return found


class CopiesTheOldSlice(Linear):
    def updated(self, metadata, block_table, slot_mapping):
        found = super().updated(metadata, block_table, slot_mapping)
        old = metadata.prefill_state_indices
        found.prefill_state_indices = None if old is None else old.clone()
        return found


class ForgetsToRestage(Linear):
    def updated(self, metadata, block_table, slot_mapping):
        origin = metadata.origin
        own = self.table_fields(origin.batch, origin.plan, block_table, slot_mapping)
        return Metadata(**self.taken(metadata), **own)


class LeavesItsBuffersAsTheyWere(Linear):
    def updated(self, metadata, block_table, slot_mapping):
        before = {name: buffer.clone() for name, buffer in self.own.items()}
        found = super().updated(metadata, block_table, slot_mapping)
        for name, buffer in before.items():
            self.own[name].copy_(buffer)
        return found


class UpdatesAsAligned(Linear):
    """In mode "none" too, but for builds."""

    def updated(self, metadata, block_table, slot_mapping):
        self.updates = True
        found = super().updated(metadata, block_table, slot_mapping)
        self.updates = False
        return found

    def first_columns(self, batch):
        last = (batch.seq_lens.to(torch.int64) - 1).clamp(min=0) // self.spec.block_size
        return last if getattr(self, "updates", False) else super().first_columns(batch)


class ShiftsByPowersOfTwo(Linear):
    def first_columns(self, batch):
        columns = super().first_columns(batch)
        if self.spec.mamba_cache_mode == "none":
            return columns
        return (batch.seq_lens.to(torch.int64) - 1).clamp(min=0) >> (self.spec.block_size.bit_length() - 1)


class GoesOnWithTheLengthsOfItsFirstRows(Linear):
    """As 64 programs of a persistent kernel do."""

    def first_columns(self, batch):
        columns = super().first_columns(batch)
        return columns[torch.arange(len(columns)) % 64]


class MultipliesRowsIn32Bits(Linear):
    def table_fields(self, batch, plan, block_table, slot_mapping):
        return super().table_fields(batch, plan, in_32_bits(block_table, 0), slot_mapping)


class TakesColumnsOfAnEarlierStep(Linear):
    def first_columns(self, batch):
        now, before = super().first_columns(batch), getattr(self, "before", None)
        self.before = now
        return now if before is None or before.shape != now.shape else before


# Whose memory it is.


class SharesTheBuffersOfStates(Linear):
    @classmethod
    def share_reusable_metadata_buffers(cls, builders):
        super().share_reusable_metadata_buffers(builders)
        for builder in builders:
            builder.own = builders[0].own


class WorksInTheSourcesStates(Linear):
    """Writes there first. Metadata in no buffers only, which no graph reads."""

    def updated(self, metadata, block_table, slot_mapping):
        found = super().updated(metadata, block_table, slot_mapping)
        if metadata.non_spec_state_indices_tensor is not None and not metadata.origin.plan.staged:
            metadata.non_spec_state_indices_tensor.copy_(found.non_spec_state_indices_tensor)
        return found


class SharesStatesOfPadding(Linear):
    """In steps without a token: all states are NULL, so one tensor has the right values for all groups."""

    def stage_table(self, fields, batch, plan):
        found = super().stage_table(fields, batch, plan)
        if not batch.num_actual_tokens:
            null = self.shared.setdefault("null", torch.zeros_like(self.own["non_spec_state_indices_tensor"]))
            found["non_spec_state_indices_tensor"] = null[: len(plan.queries)]
        return found


class KeepsBuffersOfOneSize(Linear):
    """A graph of another size holds those that are gone."""

    def stage_states(self, name, states, rows):
        if getattr(self, "rows", rows) != rows:
            self.own = self.table_buffers()
        self.rows = rows
        return super().stage_states(name, states, rows)


class StridesChange(Linear):
    """The first element stays where it is; those behind it lie elsewhere every other time."""

    def table_buffers(self):
        self.calls = 0
        rows = 2 * self.config.max_graph_rows
        return super().table_buffers() | {"non_spec_state_indices_tensor": self.new(rows)}

    def stage_states(self, name, states, rows):
        self.calls += 1
        wide = name == "non_spec_state_indices_tensor" and self.calls % 2 == 0
        return staged(self.own[name][:: 2 if wide else 1], states, rows, 0)


class WritesToOldMemoryToo(Linear):
    """So that graphs read the right values, where the metadata no longer lies."""

    def stage_states(self, name, states, rows):
        buffers = self.__dict__.setdefault("all", {}).setdefault(name, [])
        buffers.append(torch.empty_like(self.own[name]))
        return [staged(buffer, states, rows, 0) for buffer in buffers][-1]


class CopiesChunks(Linear):
    def taken(self, metadata):
        chunks = metadata.chunk_indices
        return super().taken(metadata) | {"chunk_indices": None if chunks is None else chunks.clone()}


# Padding.


class PaddingKeepsItsIds(Linear):
    def real_rows(self, plan):
        return len(plan.queries)


class PaddingKeepsOldAcceptedTokens(Linear):
    def stage_batch(self, fields, batch, plan):
        before = self.shared["num_accepted_tokens"].clone()
        found, drafted = super().stage_batch(fields, batch, plan), len(plan.speculating)
        self.shared["num_accepted_tokens"][drafted:] = before[drafted:]
        return found


class PaddingKeepsOldMasks(Linear):
    def stage_batch(self, fields, batch, plan):
        before = self.shared["spec_sequence_masks"].clone()
        found, drafted = super().stage_batch(fields, batch, plan), len(plan.speculating)
        self.shared["spec_sequence_masks"][drafted:] = before[drafted:]
        return found


class PaddingStartsAtZero(Linear):
    def stage_batch(self, fields, batch, plan):
        found = super().stage_batch(fields, batch, plan)
        if "spec_query_start_loc" in found:
            found["spec_query_start_loc"][len(plan.speculating) + 1 :] = 0
        return found


# What is remembered.


class RemembersColumnsByAddress(Linear):
    def first_columns(self, batch):
        kept, lengths = self.__dict__.setdefault("kept", {}), batch.seq_lens
        return kept.setdefault((lengths.data_ptr(), lengths.shape), super().first_columns(batch))


class RemembersStatesByStep(Linear):
    def states(self, batch, block_table):
        return self.shared.setdefault(batch.step, super().states(batch, block_table))


class RemembersPlansByRows(Linear):
    def plan(self, batch):
        plans = self.__dict__.setdefault("plans", {})
        return plans.setdefault((batch.seq_lens.shape[0], batch.num_actual_tokens), super().plan(batch))


class RemembersStartsByAddress(Linear):
    def batch_fields(self, batch, plan):
        found, kept = super().batch_fields(batch, plan), self.__dict__.setdefault("kept", {})
        starts = batch.query_start_loc
        if not any(plan.mask):
            found["non_spec_query_start_loc"] = kept.setdefault((starts.data_ptr(), starts.shape), starts.clone())
        return found


# How a step is classified.


class BeginningsOfOneTokenAreDecodes(Linear):
    def split(self, batch, plan):
        plan.states, states = [True for _ in plan.states], plan.states
        super().split(batch, plan)
        plan.states = states


class StatesOfPrefillsOfAllRows(Linear):
    def chunks(self, plan):
        found = super().chunks(plan)
        return found | {"prefill_has_initial_state": found["has_initial_state"]}


class ReadsLengthsOnTheHost(Linear):
    def first_columns(self, batch):
        batch.seq_lens.tolist()
        return super().first_columns(batch)
