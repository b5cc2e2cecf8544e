"""Faults of a builder for MLA decodes: the correct one with a method replaced."""

from __future__ import annotations

import torch
from correct_mla import Mla
from faults_reuse import key_without, made_of
from lost_bits import in_32_bits

(
    CopiesShallowly, CopiesWhatIsTheBatchs, SharesAtAnyTime, AcceptsAnyBatch, AcceptsEqualBatches, AcceptsTheSameStep,
    AcceptsRefilledBatches, AcceptsItsOwn, AcceptsCopies, AcceptsAnyKey, AcceptsBuffersOfOthers,
    AcceptsBuffersOfOthersAtFirst, AcceptsWhatIsNoMetadata, UsesTheFirstTable, DropsTheLastGroup,
    ReturnsTheLastGroupFirst, WorksInOneBufferForAll,
) = made_of(Mla)  # fmt: skip

KeyWithoutBlockSize = key_without(Mla, "block_size")
KeyWithoutHeads = key_without(Mla, "num_heads")
KeyWithoutCacheDtype = key_without(Mla, "kv_cache_dtype")
KeyWithoutDtype = key_without(Mla, "dtype")
KeyWithoutCausal = key_without(Mla, "causal")


# Pages.


class MultipliesRowsIn32Bits(Mla):
    def pages(self, indptr, block_table, size):
        return super().pages(indptr, in_32_bits(block_table, 0), size)


class MasksPlacesInBlocks(Mla):
    """Right where a block has a power of two of tokens."""

    def pages(self, indptr, block_table, size):
        found, k = super().pages(indptr, block_table, size), self.spec.block_size
        ends, places = indptr[1:], torch.arange(size, dtype=torch.int32, device=self.device)
        row = (places[:, None] >= ends).sum(1).clamp(max=max(ends.shape[0] - 1, 0))
        token = places - indptr[row]
        return torch.where(found >= 0, found - token % k + (token & (k - 1)), found)


class KeepsTheSourcesPages(Mla):
    def updated(self, metadata, block_table, slot_mapping):
        found = super().updated(metadata, block_table, slot_mapping)
        found.paged_kv_indices = metadata.paged_kv_indices
        return found


class DoesNotRefreshPages(Mla):
    """Its own buffer keeps what an earlier step left."""

    def stage_pages(self, pages):
        if getattr(self, "filled", False):
            return self.own["paged_kv_indices"]
        self.filled = True
        return super().stage_pages(pages)


class KeepsTheSourcesTable(Mla):
    def updated(self, metadata, block_table, slot_mapping):
        found = super().updated(metadata, block_table, slot_mapping)
        found.block_table = metadata.block_table
        return found


class CopiesTheSourcesSlots(Mla):
    def updated(self, metadata, block_table, slot_mapping):
        return super().updated(metadata, block_table, metadata.slot_mapping.clone())


class TailIsNull(Mla):
    def with_tail(self, pages, there):
        return torch.where(there, pages, 0)


class TailKeepsOldPages(Mla):
    def stage_pages(self, pages):
        own = self.own["paged_kv_indices"]
        return own.copy_(torch.where(pages < 0, own, pages))


class ColumnsPastTheRowAreClamped(Mla):
    """To the last one, where rows have to look their first one up."""

    def pages(self, indptr, block_table, size):
        wide = torch.cat([block_table, block_table[:, -1:]], 1)
        return super().pages(indptr, wide, size)


class WritesPagesOfAllIntoTheFirst(Mla):
    @classmethod
    def share_reusable_metadata_buffers(cls, builders):
        super().share_reusable_metadata_buffers(builders)
        for builder in builders:
            builder.own = builders[0].own


# Rows.


class PaddingKeepsOldStarts(Mla):
    def stage_rows(self, name, values, plan):
        buffer, real = self.shared[name], 1 + sum(1 for number in plan.queries if number)
        before = buffer.clone()
        found = super().stage_rows(name, values, plan)
        if name == "paged_kv_indptr":
            buffer[real:] = before[real:]
        return found


class IgnoresVarlen(Mla):
    def varlen(self, batch):
        return 0


class GivesQueriesWithoutACausalMask(Mla):
    def varlen(self, batch):
        return self.config.varlen_width


class GivesQueriesWithoutTokens(Mla):
    """Lengths stay those of the queries that there are."""

    def lengths(self, batch, plan):
        return batch.seq_lens.clone()


class RowsOfGraphsAreNotPadded(Mla):
    def plan(self, batch):
        plan = super().plan(batch)
        plan.width = plan.varlen
        return plan


class AddsQueriesInPlace(Mla):
    """To the engine's lengths: once more for every table."""

    def lengths(self, batch, plan):
        if plan.varlen:
            batch.seq_lens.add_(self.upload([plan.varlen - number for number in plan.queries]))
        return batch.seq_lens.clone()


class AddsToSharedLengths(Mla):
    """An update counts the added queries once more."""

    def updated(self, metadata, block_table, slot_mapping):
        found = super().updated(metadata, block_table, slot_mapping)
        if metadata.origin.plan.varlen:
            metadata.seq_lens.add_(metadata.origin.plan.varlen - 1)
        return found


class KeepsIndptrOfEachSize(Mla):
    """Two sizes at most, and the third evicts one that a graph holds."""

    def stage_rows(self, name, values, plan):
        kept = self.__dict__.setdefault("kept", {})
        buffers = kept.setdefault(values.shape[0], {})
        if name not in buffers:
            buffers[name] = self.new(values.shape[0])
        while len(kept) > 2:
            del kept[next(iter(kept))]
        return buffers[name].copy_(values)


class RemembersLengthsByAddress(Mla):
    def lengths(self, batch, plan):
        kept, given = self.__dict__.setdefault("kept", {}), batch.seq_lens
        return kept.setdefault((given.data_ptr(), given.shape), super().lengths(batch, plan))


class ReadsLengthsOnTheHost(Mla):
    def indptr(self, lengths):
        lengths.max().item()
        return super().indptr(lengths)
