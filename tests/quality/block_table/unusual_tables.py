"""Correct classes ``BlockTables`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

from copy import deepcopy

import torch
from correct_tables import BlockTables


class ReturnsLists(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        return list(super().gather(idx_mapping, num_reqs_padded))


class UploadsWhenItGathers(BlockTables):
    """``apply`` takes a picture of the lists; whoever looks first pays for the copy."""

    picture = None

    def apply(self):
        self.picture = deepcopy(self.staged)

    def gather(self, idx_mapping, num_reqs_padded):
        self.refuse_gather(idx_mapping, num_reqs_padded)
        if self.picture is not None:
            now, self.staged = self.staged, self.picture
            super().apply()
            self.staged, self.picture = now, None
        return super().gather(idx_mapping, num_reqs_padded)


class UploadsChangedRows(BlockTables):
    """Rows that are what they were are not copied."""

    def apply(self):
        before = getattr(self, "uploaded", [self.no_blocks() for _ in self.staged])
        for request, (now, old) in enumerate(zip(self.staged, before, strict=True)):
            for group, table in enumerate(self.applied):
                if now[group] != old[group]:
                    self.upload(table[request : request + 1], [self.padded(now[group], self.widths[group])])
        self.uploaded = list(self.staged)


class AppliesIntoTwoTables(BlockTables):
    """Tables take turns; the views that gathers return stay where they are."""

    def apply(self):
        self.spare, self.applied = self.applied, getattr(self, "spare", [table.clone() for table in self.applied])
        super().apply()


class HasOneWideTable(BlockTables):
    """All groups side by side in one allocation: the views are columns of it."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.applied = self.columns(self.count + 1)
        self.views = self.columns(self.count)

    def columns(self, rows):
        return self.zeros(rows, sum(self.widths)).split(self.widths, 1) if self.widths else ()


class GathersRowByRow(BlockTables):
    def fill(self, view, table, requests):
        view[requests.shape[0] :] = 0
        for row in reversed(range(requests.shape[0])):
            view[row : row + 1] = table.index_select(0, requests[row : row + 1])


class KeepsItsRowsOnTheDevice(BlockTables):
    """The host knows how many blocks there are, not which."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.rows = [self.zeros(self.count, width) for width in self.widths]
        self.counts = [[0] * len(self.widths) for _ in self.staged]

    def append(self, req, ids_per_group, overwrite):
        self.refuse_requests(req)
        self.refuse_ids(ids_per_group)
        begins = [0] * len(self.widths) if overwrite else self.counts[req]
        ends = [begin + len(ids) for begin, ids in zip(begins, ids_per_group, strict=True)]
        self.refuse_rows([range(end) for end in ends])
        for rows, begin, end, ids in zip(self.rows, begins, ends, ids_per_group, strict=True):
            rows[req, begin:end] = torch.tensor(ids, dtype=torch.int32, device=self.device)
            rows[req, end:] = 0
        self.counts[req] = ends

    def clear(self, req):
        self.append(req, self.no_blocks(), overwrite=True)

    def move(self, src, dst):
        self.refuse_requests(src, dst)
        if src != dst:
            self.swap(src, dst)
            self.clear(src)

    def swap(self, a, b):
        self.refuse_requests(a, b)
        for rows in self.rows:
            rows[[a, b]] = rows[[b, a]]
        self.counts[a], self.counts[b] = self.counts[b], self.counts[a]

    def apply(self):
        for table, rows in zip(self.applied, self.rows, strict=True):
            table[:-1] = rows
