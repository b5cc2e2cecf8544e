"""Builders that are right, but for what a method returns, or a method that is missing."""

from __future__ import annotations

from correct_linear import Linear


class BuildsNothing(Linear):
    def build(self, batch, block_table, slot_mapping):
        super().build(batch, block_table, slot_mapping)


class BuildsADict(Linear):
    def build(self, *given):
        return vars(super().build(*given))


class BuildsWithoutSomeFields(Linear):
    def build(self, *given):
        metadata = super().build(*given)
        for name in (*Linear.TABLE, "num_decodes", "chunk_indices"):
            delattr(metadata, name)
        return metadata


class UpdatesATuple(Linear):
    def update_block_table(self, *given):
        return (super().update_block_table(*given),)


class UpdatesNone(Linear):
    @classmethod
    def update_block_tables(cls, *given):
        super().update_block_tables(*given)


class UpdatesLists(Linear):
    @classmethod
    def update_block_tables(cls, *given):
        return [[metadata] for metadata in super().update_block_tables(*given)]


class AnswersNone(Linear):
    def can_reuse_metadata(self, metadata, batch):
        super().can_reuse_metadata(metadata, batch)


class CanNotUpdate(Linear):
    update_block_table = None


class SharesNothing:
    """A class of its own, without the methods that it does not think of."""

    def __init__(self, *given):
        self.build = Linear(*given).build


def makes_nothing(spec, config, device):
    return None


makes_nothing.share_reusable_metadata_buffers = lambda builders: None


def no_classes(family):
    return family
