"""A correct class ``BlockTables``: lists on the host, whole tables copied to the device when they are applied."""

from __future__ import annotations

import torch

INTEGERS = (torch.int32, torch.int64)


def is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


class BlockTables:
    """Everything by the text. Each planted fault replaces a method."""

    def __init__(self, block_sizes, max_num_reqs, max_num_blocks_per_group, device):
        self.refuse_sizes(block_sizes, max_num_reqs, max_num_blocks_per_group)
        self.count, self.widths, self.device = max_num_reqs, list(max_num_blocks_per_group), device
        self.staged = [self.no_blocks() for _ in range(max_num_reqs)]
        # The last row is that of all requests which there are not.
        self.applied = [self.zeros(max_num_reqs + 1, width) for width in self.widths]
        self.views = [self.zeros(max_num_reqs, width) for width in self.widths]

    def zeros(self, *shape):
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def no_blocks(self):
        return [[] for _ in self.widths]

    def refuse_sizes(self, block_sizes, max_num_reqs, widths):
        if not is_int(max_num_reqs) or max_num_reqs < 1:
            raise ValueError(f"max_num_reqs: {max_num_reqs} must be an int of at least 1")
        if any(not is_int(size) or size < 1 for size in block_sizes):
            raise ValueError(f"block_sizes: {block_sizes} must be ints of at least 1")
        if any(not is_int(width) or width < 0 for width in widths) or len(widths) != len(block_sizes):
            raise ValueError(f"max_num_blocks_per_group: {widths} must be ints of at least 0, one a group")

    def refuse_requests(self, *requests):
        for request in requests:
            if not is_int(request) or not 0 <= request < self.count:
                raise ValueError(f"req: {request} must be in 0..{self.count - 1}")

    def refuse_ids(self, ids_per_group):
        if len(ids_per_group) != len(self.widths):
            raise ValueError(f"ids_per_group: {len(ids_per_group)} must be {len(self.widths)}, the number of groups")
        if any(not is_int(block) or not 0 <= block < 1 << 31 for ids in ids_per_group for block in ids):
            raise ValueError("ids_per_group: a block id must be in 0..2**31 - 1")

    def refuse_rows(self, rows):
        if any(len(row) > width for row, width in zip(rows, self.widths, strict=True)):
            raise ValueError(f"ids_per_group: a request has at most {self.widths} blocks")

    def refuse_gather(self, idx_mapping, num_reqs_padded):
        if idx_mapping.dim() != 1 or idx_mapping.dtype not in INTEGERS:
            raise ValueError("idx_mapping: must be [R], int32 or int64")
        if not is_int(num_reqs_padded) or not idx_mapping.shape[0] <= num_reqs_padded <= self.count:
            raise ValueError(f"num_reqs_padded: {num_reqs_padded} must be at least R and at most {self.count}")

    def append(self, req, ids_per_group, overwrite):
        self.refuse_requests(req)
        self.refuse_ids(ids_per_group)
        rows = self.joined(self.kept(req, overwrite), ids_per_group)
        self.refuse_rows(rows)
        self.staged[req] = rows

    def kept(self, req, overwrite):
        return self.no_blocks() if overwrite else self.staged[req]

    def joined(self, old, new):
        return [[*before, *ids] for before, ids in zip(old, new, strict=True)]

    def clear(self, req):
        self.refuse_requests(req)
        self.staged[req] = self.no_blocks()

    def move(self, src, dst):
        self.refuse_requests(src, dst)
        if src != dst:
            self.staged[dst], self.staged[src] = self.staged[src], self.no_blocks()

    def swap(self, a, b):
        self.refuse_requests(a, b)
        self.staged[a], self.staged[b] = self.staged[b], self.staged[a]

    def apply(self):
        for group, table in enumerate(self.applied):
            rows = [self.padded(blocks[group], self.widths[group]) for blocks in self.staged]
            self.upload(table[:-1], rows)

    def padded(self, blocks, width):
        return [*blocks, *[0] * (width - len(blocks))]

    def upload(self, table, rows):
        table.copy_(torch.tensor(rows, dtype=torch.int32, device=self.device))

    def gather(self, idx_mapping, num_reqs_padded):
        self.refuse_gather(idx_mapping, num_reqs_padded)
        requests = self.rows_of(idx_mapping)
        for table, view in zip(self.applied, self.views, strict=True):
            self.fill(view, table, requests)
        return tuple(view[:num_reqs_padded] for view in self.views)

    def rows_of(self, idx_mapping):
        requests = idx_mapping.to(torch.int64)
        return torch.where((requests >= 0) & (requests < self.count), requests, self.count)

    def fill(self, view, table, requests):
        view.zero_()
        view[: requests.shape[0]] = table[requests]
