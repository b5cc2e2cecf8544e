"""Faults of what ``BlockTables`` applies and gathers: the correct class with a method replaced."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from correct_tables import BlockTables

_states: dict = {}


# apply


class GathersWhatIsStaged(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        self.apply()
        return super().gather(idx_mapping, num_reqs_padded)


class AppliesWhenItGathers(BlockTables):
    """So what is done in between shows as well."""

    due = False

    def apply(self):
        self.due = True

    def gather(self, idx_mapping, num_reqs_padded):
        if self.due:
            super().apply()
            self.due = False
        return super().gather(idx_mapping, num_reqs_padded)


class AppliesAppendsAgain(BlockTables):
    """What was appended stays in the list of what is to be applied."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.journal = []

    def append(self, req, ids_per_group, overwrite):
        super().append(req, ids_per_group, overwrite)
        self.journal.append((req, [list(ids) for ids in ids_per_group]))

    def apply(self):
        super().apply()
        for req, ids in self.journal:
            self.staged[req] = [
                row[:width] for row, width in zip(self.joined(self.staged[req], ids), self.widths, strict=True)
            ]


class AppliesOnlyRowsWithBlocks(BlockTables):
    def upload(self, table, rows):
        for request, row in enumerate(rows):
            if any(row):
                super().upload(table[request : request + 1], [row])


class AppliesColumnsWithBlocks(BlockTables):
    """Where a row gets shorter, its tail stays."""

    def apply(self):
        for group, table in enumerate(self.applied):
            for request, blocks in enumerate(self.staged):
                row = torch.tensor(blocks[group], dtype=torch.int32, device=self.device)
                table[request, : row.shape[0]] = row


class ForgetsTheLastRequest(BlockTables):
    def upload(self, table, rows):
        super().upload(table[:-1], rows[:-1])


class ForgetsTheLastBlock(BlockTables):
    def padded(self, blocks, width):
        return super().padded(blocks[:-1], width)


class PadsWithMinusOne(BlockTables):
    def padded(self, blocks, width):
        return [*blocks, *[-1] * (width - len(blocks))]


class PassesIdsThroughFloats(BlockTables):
    def upload(self, table, rows):
        table.copy_(torch.tensor(rows, dtype=torch.float32, device=self.device))


class BeginsUnwritten(BlockTables):
    def zeros(self, *shape):
        return torch.empty(shape, dtype=torch.int32, device=self.device)


class SharesItsStateWithOtherInstances(BlockTables):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.staged = _states.setdefault((self.count, *self.widths), self.staged)


# gather


class GathersTheFirstGroup(BlockTables):
    def fill(self, view, table, requests):
        first = self.applied[0]
        super().fill(view, first if first.shape == table.shape else table, requests)


class KeepsPaddingRows(BlockTables):
    def fill(self, view, table, requests):
        view[: requests.shape[0]] = table[requests]


class TakesMinusOneForTheLastRequest(BlockTables):
    def rows_of(self, idx_mapping):
        return super().rows_of(torch.where(idx_mapping == -1, self.count - 1, idx_mapping))


class ClampsIds(BlockTables):
    def rows_of(self, idx_mapping):
        return idx_mapping.to(torch.int64).clamp(0, self.count - 1)


class KnowsNoIdButMinusOne(BlockTables):
    def rows_of(self, idx_mapping):
        requests = idx_mapping.to(torch.int64)
        return torch.where(requests == -1, self.count, requests % self.count)


class TakesIdsIn32Bits(BlockTables):
    def rows_of(self, idx_mapping):
        return super().rows_of(idx_mapping.to(torch.int32))


class IgnoresTheMapping(BlockTables):
    def rows_of(self, idx_mapping):
        return torch.arange(idx_mapping.shape[0], device=self.device)


class IgnoresTheStrideOfItsMapping(BlockTables):
    def rows_of(self, idx_mapping):
        return super().rows_of(idx_mapping.as_strided(idx_mapping.shape, (1,)))


class GathersIntoNewTensors(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        return tuple(view.clone() for view in super().gather(idx_mapping, num_reqs_padded))


class GathersIntoTwoBuffersInTurn(BlockTables):
    """Two buffers take turns, as if nobody had captured the first one's address."""

    def gather(self, idx_mapping, num_reqs_padded):
        self.spare, self.views = self.views, getattr(self, "spare", [torch.zeros_like(view) for view in self.views])
        return super().gather(idx_mapping, num_reqs_padded)


class ReturnsAllRows(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        super().gather(idx_mapping, num_reqs_padded)
        return tuple(self.views)


class ReturnsAGenerator(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded) -> Iterable:
        return (view for view in super().gather(idx_mapping, num_reqs_padded))


class GathersAMappingOnce(BlockTables):
    """Until something is applied, a mapping at an address that it knows gives what it gave."""

    known = None

    def apply(self):
        super().apply()
        self.known = None

    def gather(self, idx_mapping, num_reqs_padded):
        key = (idx_mapping.data_ptr(), num_reqs_padded)
        if self.known == key:
            self.refuse_gather(idx_mapping, num_reqs_padded)
            return tuple(view[:num_reqs_padded] for view in self.views)
        self.known = key
        return super().gather(idx_mapping, num_reqs_padded)


# Cheats


class ShowsNothing(BlockTables):
    def fill(self, view, table, requests):
        view.zero_()


class WritesOneRowTooFar(BlockTables):
    def fill(self, view, table, requests):
        super().fill(view, table, requests)
        view.as_strided((view.shape[0] + 1, view.shape[1]), view.stride())[-1] = 0


class ReplacesMinusOneInPlace(BlockTables):
    def rows_of(self, idx_mapping):
        rows = super().rows_of(idx_mapping)
        idx_mapping.clamp_(min=0)
        return rows


class ReadsItsMappingOnTheHost(BlockTables):
    def rows_of(self, idx_mapping):
        rows = [row if 0 <= row < self.count else self.count for row in idx_mapping.tolist()]
        return torch.tensor(rows, dtype=torch.int64, device=self.device)


class LooksForMinusOne(BlockTables):
    def rows_of(self, idx_mapping):
        rows = super().rows_of(idx_mapping)
        return rows if (idx_mapping < 0).any() else rows.clone()


# What is refused


class AcceptsFewerRowsThanTheMapping(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        return super().gather(idx_mapping, max(num_reqs_padded, idx_mapping.shape[0]))


class AcceptsMoreRowsThanThereAre(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        return super().gather(idx_mapping, min(num_reqs_padded, self.count))


class CannotGatherBeforeItApplies(BlockTables):
    ready = False

    def apply(self):
        super().apply()
        self.ready = True

    def gather(self, idx_mapping, num_reqs_padded):
        if not self.ready:
            raise RuntimeError("nothing was applied")
        return super().gather(idx_mapping, num_reqs_padded)
