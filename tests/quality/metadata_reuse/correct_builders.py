"""What correct builders of both families have in common, in small methods. Faults replace one of them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch


class Metadata(SimpleNamespace):
    """The fields of a record, and where it is from."""


@dataclass
class Origin:
    """Who made metadata, of what."""

    builder: Any
    key: Any
    batch: Any
    step: int
    held: list
    plan: Any
    buffers: dict
    itself: Any = None


class Builder:
    """A group's builder. Its family says which buffers there are and what the fields are."""

    BATCH: tuple = ()

    def __init__(self, spec, config, device):
        self.spec, self.config, self.device = spec, config, device
        self.shared, self.own = self.batch_buffers(), self.table_buffers()
        self.handed_out = False

    # Making.

    def build(self, batch, block_table, slot_mapping):
        plan = self.plan(batch)
        fields = self.batch_fields(batch, plan)
        if plan.staged:
            fields = fields | self.stage_batch(fields, batch, plan)
        return self.signed(fields, batch, plan, block_table, slot_mapping)

    def signed(self, fields, batch, plan, block_table, slot_mapping):
        """Metadata of these fields of the batch, with those of a table beside them."""
        own = self.fields_of_table(batch, plan, block_table, slot_mapping)
        metadata = Metadata(**fields, **own)
        origin = Origin(weakref.ref(self), self.key(), batch, batch.step, held(batch), plan, self.shared)
        origin.itself = weakref.ref(metadata)
        metadata.origin = origin
        self.handed_out = self.handed_out or plan.staged
        return metadata

    def fields_of_table(self, batch, plan, block_table, slot_mapping):
        own = self.table_fields(batch, plan, block_table, slot_mapping)
        return own | self.stage_table(own, batch, plan) if plan.staged else own

    def update_block_table(self, metadata, block_table, slot_mapping):
        origin = metadata.origin
        if origin.builder() is self:
            raise ValueError("metadata: this builder made it, and would overwrite it")
        if not self.can_reuse_metadata(metadata, origin.batch):
            return self.build(origin.batch, block_table, slot_mapping)
        return self.updated(metadata, block_table, slot_mapping)

    def updated(self, metadata, block_table, slot_mapping):
        origin = metadata.origin
        return self.signed(self.taken(metadata), origin.batch, origin.plan, block_table, slot_mapping)

    def taken(self, metadata):
        """What an update takes from the source: the very objects."""
        return {name: getattr(metadata, name) for name in self.BATCH}

    @classmethod
    def update_block_tables(cls, metadata, builders, block_tables, slot_mappings):
        given = zip(builders, block_tables, slot_mappings, strict=True)
        return [builder.update_block_table(metadata, table, slots) for builder, table, slots in given]

    # Reuse.

    def get_metadata_reuse_key(self):
        return tuple(self.key().values())

    def key(self):
        """All that shapes the metadata, by name."""
        found = {name: getattr(self.config, name, None) for name in self.config.CONFIGURATION}
        found |= {name: getattr(self.spec, name) for name in found if hasattr(self.spec, name)}
        return found | {"type": type(self)}

    def can_reuse_metadata(self, metadata, batch):
        origin = getattr(metadata, "origin", None)
        if origin is None:
            return False
        rules = (self.is_original, self.is_of_this_batch, self.is_unchanged, self.is_of_another, self.has_my_key)
        return all(rule(metadata, origin, batch) for rule in rules) and self.is_in_my_buffers(origin, batch)

    def is_original(self, metadata, origin, batch):
        return origin.itself() is metadata

    def is_of_this_batch(self, metadata, origin, batch):
        return origin.batch is batch and origin.step == batch.step

    def is_unchanged(self, metadata, origin, batch):
        return origin.held == held(batch)

    def is_of_another(self, metadata, origin, batch):
        return origin.builder() is not None and origin.builder() is not self

    def has_my_key(self, metadata, origin, batch):
        return origin.key == self.key()

    def is_in_my_buffers(self, origin, batch):
        return origin.buffers is self.shared if origin.plan.staged else self.is_never_replayed(origin, batch)

    def is_never_replayed(self, origin, batch):
        """Whether metadata that lies in no buffers does for the step."""
        return not batch.full_graph or bool(origin.plan.prefills)

    @classmethod
    def share_reusable_metadata_buffers(cls, builders):
        if len({id(builder) for builder in builders}) < len(builders):
            raise ValueError("builders: one stands there twice")
        if any(builder.key() != builders[0].key() for builder in builders):
            raise ValueError("builders: the keys differ")
        if cls.is_too_late(builders):
            raise ValueError("builders: a graph may hold the addresses of their buffers")
        for builder in builders:
            builder.shared = builders[0].shared

    @classmethod
    def is_too_late(cls, builders):
        return any(builder.handed_out for builder in builders)

    # Memory.

    def new(self, *shape, dtype=torch.int32):
        return torch.empty(shape, dtype=dtype, device=self.device)

    def upload(self, values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=self.device)


def held(batch):
    """What the host's tensors of a batch hold."""
    tensors = (batch.query_start_loc_cpu, batch.seq_lens_cpu, batch.num_decode_draft_tokens_cpu, batch.is_prefilling)
    return [None if tensor is None else tensor.tolist() for tensor in tensors]


def queries_of(batch):
    return [end - begin for begin, end in pairwise(batch.query_start_loc_cpu.tolist())]


def staged(buffer, values, rows, padding):
    """The beginning of a buffer, with these values and padding up to ``rows``."""
    count = values.shape[0]
    buffer[:count] = values
    buffer[count:rows] = padding
    return buffer[:rows]
