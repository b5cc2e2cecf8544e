"""Unusual ways of both families."""

from __future__ import annotations

import weakref


class NeverReuses:
    """Builds whatever is asked for."""

    def get_metadata_reuse_key(self):
        return None

    def can_reuse_metadata(self, metadata, batch):
        return False

    def update_block_table(self, metadata, block_table, slot_mapping):
        return self.build(metadata.origin.batch, block_table, slot_mapping)

    @classmethod
    def share_reusable_metadata_buffers(cls, builders):
        pass


class Record:
    """Not a namespace: it looks its fields up."""

    def __init__(self, fields):
        self.fields = fields

    def __getattr__(self, name):
        if name == "fields" or name not in self.fields:
            raise AttributeError(name)
        return self.fields[name]


class ReturnsAnotherRecord:
    """Its metadata is of another type with the same names."""

    def signed(self, *given):
        record = Record(vars(super().signed(*given)))
        record.origin.itself = weakref.ref(record)
        return record


def made_of(builder):
    """Builders of a family with each of these ways."""
    return [type(way.__name__, (way, builder), {}) for way in (NeverReuses, ReturnsAnotherRecord)]
