"""Faults that suit builders of both families: what they accept, share and copy."""

from __future__ import annotations

import copy

import torch


class CopiesShallowly:
    def updated(self, metadata, block_table, slot_mapping):
        return copy.copy(metadata)


class CopiesWhatIsTheBatchs:
    def taken(self, metadata):
        found = super().taken(metadata)
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


class SharesAtAnyTime:
    @classmethod
    def is_too_late(cls, builders):
        return False


# Accepts too much.


class AcceptsAnyBatch:
    def is_of_this_batch(self, metadata, origin, batch):
        return True

    def is_unchanged(self, metadata, origin, batch):
        return True


class AcceptsEqualBatches:
    """Of an earlier step, where the host's values are the same."""

    def is_of_this_batch(self, metadata, origin, batch):
        return True


class AcceptsTheSameStep:
    """By its number."""

    def is_of_this_batch(self, metadata, origin, batch):
        return origin.step == batch.step


class AcceptsRefilledBatches:
    def is_unchanged(self, metadata, origin, batch):
        return True


class AcceptsItsOwn:
    def is_of_another(self, metadata, origin, batch):
        return True


class AcceptsCopies:
    def is_original(self, metadata, origin, batch):
        return True


class AcceptsAnyKey:
    def has_my_key(self, metadata, origin, batch):
        return True


class AcceptsBuffersOfOthers:
    def is_in_my_buffers(self, origin, batch):
        return True


class AcceptsBuffersOfOthersAtFirst:
    """As long as no graph reads its own: a builder that joined later."""

    def is_in_my_buffers(self, origin, batch):
        return not self.handed_out or super().is_in_my_buffers(origin, batch)


class AcceptsWhatIsNoMetadata:
    def can_reuse_metadata(self, metadata, batch):
        return super().can_reuse_metadata(metadata, batch) or not hasattr(metadata, "origin")


# All at once.


class UsesTheFirstTable:
    @classmethod
    def update_block_tables(cls, metadata, builders, block_tables, slot_mappings):
        tables = [block_tables[0] for _ in builders]
        return super().update_block_tables(metadata, builders, tables, slot_mappings)


class DropsTheLastGroup:
    @classmethod
    def update_block_tables(cls, metadata, builders, block_tables, slot_mappings):
        return super().update_block_tables(metadata, builders[:-1], block_tables[:-1], slot_mappings[:-1])


class ReturnsTheLastGroupFirst:
    @classmethod
    def update_block_tables(cls, *given):
        return super().update_block_tables(*given)[::-1]


class WorksInOneBufferForAll:
    """That of the first builder; each gets a view of it, and the last one's values."""

    @classmethod
    def update_block_tables(cls, metadata, builders, block_tables, slot_mappings):
        own = [builder.own for builder in builders]
        for builder in builders:
            builder.own = own[0]
        found = super().update_block_tables(metadata, builders, block_tables, slot_mappings)
        for builder, buffers in zip(builders, own, strict=True):
            builder.own = buffers
        return found


FAULTS = [
    CopiesShallowly, CopiesWhatIsTheBatchs, SharesAtAnyTime, AcceptsAnyBatch, AcceptsEqualBatches, AcceptsTheSameStep,
    AcceptsRefilledBatches, AcceptsItsOwn, AcceptsCopies, AcceptsAnyKey, AcceptsBuffersOfOthers,
    AcceptsBuffersOfOthersAtFirst, AcceptsWhatIsNoMetadata, UsesTheFirstTable, DropsTheLastGroup,
    ReturnsTheLastGroupFirst, WorksInOneBufferForAll,
]  # fmt: skip


def made_of(builder):
    """Builders of a family, one with each fault."""
    return [type(fault.__name__, (fault, builder), {}) for fault in FAULTS]


def key_without(builder, name):
    """A builder whose key lacks a field."""

    def key(self):
        return {field: value for field, value in builder.key(self).items() if field != name}

    return type(f"KeyWithout{name}", (builder,), {"key": key})
