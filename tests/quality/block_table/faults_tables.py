"""Faults of the operations of ``BlockTables``: the correct class with a method replaced."""

from __future__ import annotations

from correct_tables import BlockTables

# append


class AppendsReplace(BlockTables):
    def kept(self, req, overwrite):
        return self.no_blocks()


class AppendsInFront(BlockTables):
    def joined(self, old, new):
        return super().joined(new, old)


class AppendsToTheAppliedRow(BlockTables):
    """Of several appends before ``apply``, the last one wins."""

    shown = None

    def kept(self, req, overwrite):
        return self.no_blocks() if overwrite or self.shown is None else self.shown[req]

    def apply(self):
        super().apply()
        self.shown = list(self.staged)


class AppendsGroupByGroup(BlockTables):
    """Not atomic: what fits is kept."""

    def refuse_rows(self, rows):
        for group, (row, width) in enumerate(zip(rows, self.widths, strict=True)):
            if len(row) > width:
                self.staged[0] = [*rows[:group], *self.staged[0][group:]]
                super().refuse_rows(rows)


class AppendsEvenWhereTheyRefuse(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        try:
            super().append(req, ids_per_group, overwrite)
        except ValueError:
            self.staged[0] = self.no_blocks()
            raise


class OverwritesLeaveTheOldTail(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        old = self.staged[req] if overwrite and 0 <= req < self.count else self.no_blocks()
        super().append(req, ids_per_group, overwrite)
        self.staged[req] = [[*new, *before[len(new) :]] for new, before in zip(self.staged[req], old, strict=True)]


class OverwritesAppend(BlockTables):
    def kept(self, req, overwrite):
        return self.staged[req]


class OverwritesReplaceGroupsWithBlocksOnly(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        old = self.staged[req] if overwrite and 0 <= req < self.count else self.no_blocks()
        super().append(req, ids_per_group, overwrite)
        self.staged[req] = [new or before for new, before in zip(self.staged[req], old, strict=True)]


class DropsWhatDoesNotFit(BlockTables):
    def refuse_rows(self, rows):
        rows[:] = [row[:width] for row, width in zip(rows, self.widths, strict=True)]


class TakesTheFirstGroupsWidth(BlockTables):
    def refuse_rows(self, rows):
        if any(len(row) > self.widths[0] for row in rows):
            raise ValueError(f"ids_per_group: a request has at most {self.widths[0]} blocks")
        super().refuse_rows(rows)


class RefusesFullRows(BlockTables):
    def refuse_rows(self, rows):
        if any(len(row) >= width > 0 for row, width in zip(rows, self.widths, strict=True)):
            raise ValueError("ids_per_group: a request has fewer blocks than columns")


class KeepsTheCallersLists(BlockTables):
    def joined(self, old, new):
        return [ids if not before else [*before, *ids] for before, ids in zip(old, new, strict=True)]


# clear, move, swap


class ClearsNothing(BlockTables):
    def clear(self, req):
        self.refuse_requests(req)


class ClearsAtOnce(BlockTables):
    def clear(self, req):
        super().clear(req)
        for table in self.applied:
            table[req] = 0


class ClearsTheFirstGroup(BlockTables):
    def clear(self, req):
        self.refuse_requests(req)
        self.staged[req] = [[], *self.staged[req][1:]]


class MovesToItselfErase(BlockTables):
    def move(self, src, dst):
        super().move(src, dst)
        self.staged[src] = self.no_blocks()


class MovesLeaveTheSource(BlockTables):
    def move(self, src, dst):
        self.refuse_requests(src, dst)
        self.staged[dst] = self.staged[src]


class MovesLeaveTheOldTail(BlockTables):
    def move(self, src, dst):
        self.refuse_requests(src, dst)
        old = self.staged[dst]
        super().move(src, dst)
        self.staged[dst] = [[*new, *before[len(new) :]] for new, before in zip(self.staged[dst], old, strict=True)]


class MovesBackwards(BlockTables):
    def move(self, src, dst):
        super().move(dst, src)


class MovesOnlyToEmptyRows(BlockTables):
    def move(self, src, dst):
        self.refuse_requests(src, dst)
        if not any(self.staged[dst]):
            super().move(src, dst)


class SwapsOneGroup(BlockTables):
    def swap(self, a, b):
        super().swap(a, b)
        self.staged[a], self.staged[b] = (
            [*self.staged[a][:1], *self.staged[b][1:]],
            [*self.staged[b][:1], *self.staged[a][1:]],
        )


class SwapsMove(BlockTables):
    def swap(self, a, b):
        self.move(a, b)


class SwapsNothingWithAnEmptyRow(BlockTables):
    def swap(self, a, b):
        self.refuse_requests(a, b)
        if any(self.staged[a]) and any(self.staged[b]):
            super().swap(a, b)


# What is refused


class CountsRequestsFromTheEnd(BlockTables):
    def refuse_requests(self, *requests):
        super().refuse_requests(*(request + self.count if request < 0 else request for request in requests))


class IgnoresRequestsThatThereAreNot(BlockTables):
    def clear(self, req):
        if 0 <= req < self.count:
            super().clear(req)


class AcceptsAnyId(BlockTables):
    def refuse_ids(self, ids_per_group):
        super().refuse_ids([[0] * len(ids) for ids in ids_per_group])


class AcceptsMoreGroups(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        super().append(req, ids_per_group[: len(self.widths)], overwrite)


class AcceptsSizesOfNothing(BlockTables):
    def refuse_sizes(self, block_sizes, max_num_reqs, widths):
        super().refuse_sizes([max(size, 1) for size in block_sizes], max_num_reqs, widths)


class RefusesEmptyAppends(BlockTables):
    def refuse_ids(self, ids_per_group):
        super().refuse_ids(ids_per_group)
        if ids_per_group and not any(ids_per_group):
            raise ValueError("ids_per_group: there must be a block")


class CrashesWhereItShouldRefuse(BlockTables):
    def refuse_requests(self, *requests):
        assert all(0 <= request < self.count for request in requests)


class AppliesTheFirst64Rows(BlockTables):
    """As a persistent kernel does that goes on with its first row's ids: all others show those."""

    def apply(self):
        staged, self.staged = self.staged, [self.staged[row % 64] for row in range(len(self.staged))]
        super().apply()
        self.staged = staged
