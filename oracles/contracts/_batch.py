"""A batch as an engine sees it before a step. Block tables, slots, page indices and state columns all follow from it.

Everything in it is plain Python or NumPy and consistent: the requests' lengths fit their blocks, no block belongs to
two requests, rows that are not in the step hold other requests' blocks or what was left in them.
:mod:`oracles.contracts._batch_domain` draws batches; contracts take the tensors they need from one, and break them on
purpose where they ask what an implementation does with garbage.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["decode", "prefill", "idle", "chunk", "speculative"]
Table = npt.NDArray[np.int32]

REGIONS: dict[Kind, int] = {"decode": 0, "speculative": 0, "idle": 1, "chunk": 2, "prefill": 3}
"""Engines put decodes first, then requests that go on with their prompt, then new ones."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of a step.

    ``computed`` tokens are in the cache, ``query`` tokens are scheduled; ``drafts`` of these are speculative (-1: the
    request does not speculate). ``rejected`` drafts of the step before were thrown away: the request keeps the blocks
    that were taken for them. ``slot`` is its row of the persistent tables.
    """

    kind: Kind
    computed: int
    query: int
    drafts: int = -1
    rejected: int = 0
    slot: int = 0

    @property
    def seq_len(self) -> int:
        """Tokens in the cache when the step is done."""
        return self.computed + self.query

    @property
    def is_prefilling(self) -> bool:
        """Whether prompt tokens are left to compute before this step."""
        return self.kind in ("prefill", "chunk")


@dataclass(frozen=True, kw_only=True)
class Group:
    """One KV-cache group. Its table holds ids of blocks of ``block_size`` tokens; kernels may see smaller ones.

    ``columns``: the table's width. ``window_reach``: tokens before the first new one that attention still reads (0:
    all). ``sharded``: whether the blocks' tokens are spread over the ranks of context parallelism.
    """

    block_size: int
    kernel_block_size: int
    columns: int
    window_reach: int = 0
    sharded: bool = False

    def blocks(self, tokens: int, cp_size: int) -> int:
        """Blocks that hold so many tokens of a request."""
        held = self.block_size * (cp_size if self.sharded else 1)
        return -(-tokens // held)


@dataclass(frozen=True, kw_only=True)
class Ids:
    """How physical blocks were handed out: from ``first`` on, in which ``order``; and what unused columns hold."""

    first: int = 1
    order: Literal["rising", "falling", "shuffled"] = "rising"
    seed: int = 0
    tails: Literal["null", "stale", "absurd"] = "null"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A step. ``requests`` are its rows in order; rows up to ``num_reqs_padded`` are a CUDA graph's padding.

    ``waiting`` are requests that are not in the step: their rows of the persistent tables are live. All other rows of
    ``max_num_reqs`` are empty, and hold what their last request left.
    """

    requests: tuple[Request, ...]
    waiting: tuple[Request, ...]
    num_reqs_padded: int
    num_tokens_padded: int
    max_num_reqs: int
    groups: tuple[Group, ...]
    ids: Ids
    cp_size: int = 1
    cp_rank: int = 0
    cp_interleave: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all requests."""
        return sum(request.query for request in self.requests)

    @property
    def query_start_loc(self) -> list[int]:
        """``[R + 1]``, first token of each request; the last element is the number of tokens."""
        return list(accumulate((request.query for request in self.requests), initial=0))

    @property
    def seq_lens(self) -> list[int]:
        """``[R]``, tokens in the cache when the step is done."""
        return [request.seq_len for request in self.requests]

    @property
    def idx_mapping(self) -> list[int]:
        """``[R]``, the row of the persistent tables that belongs to each row of the batch."""
        return [request.slot for request in self.requests]

    @property
    def positions(self) -> list[int]:
        """``[T]``, each token's place in its own request."""
        return [request.computed + place for request in self.requests for place in range(request.query)]

    @property
    def computed_by_slot(self) -> list[int]:
        """``[max_num_reqs]``, tokens in the cache before the step, by row of the persistent tables."""
        computed = [0] * self.max_num_reqs
        for request in (*self.requests, *self.waiting):
            computed[request.slot] = request.computed
        return computed

    def num_blocks(self, group: int) -> list[int]:
        """``[max_num_reqs]``, blocks of each row of the persistent table of a group."""
        counts = [0] * self.max_num_reqs
        for request in (*self.requests, *self.waiting):
            tokens = request.seq_len + request.rejected
            counts[request.slot] = min(self.groups[group].blocks(tokens, self.cp_size), self.groups[group].columns)
        return counts

    def block_table(self, group: int) -> Table:
        """``[max_num_reqs, columns]``, the persistent table of a group: by slot, with what unused columns hold."""
        counts, columns = self.num_blocks(group), self.groups[group].columns
        live = handed_out(self.ids, sum(counts))
        table = np.zeros((self.max_num_reqs, columns), np.int32)
        left = leftovers(self.ids, live, self.max_num_reqs * columns - len(live))
        used = unused = 0
        for slot, count in enumerate(counts):
            table[slot, :count] = live[used : used + count]
            table[slot, count:] = left[unused : unused + columns - count]
            used, unused = used + count, unused + columns - count
        return table

    def gathered(self, group: int) -> Table:
        """``[num_reqs_padded, columns]``, the table by row of the batch: used columns, and NULL everywhere else."""
        table, counts = self.block_table(group), self.num_blocks(group)
        rows = np.zeros((self.num_reqs_padded, self.groups[group].columns), np.int32)
        for row, request in enumerate(self.requests):
            rows[row, : counts[request.slot]] = table[request.slot, : counts[request.slot]]
        return rows


def handed_out(ids: Ids, count: int) -> Table:
    """So many different block ids, in the order in which requests got them."""
    rising = np.arange(ids.first, ids.first + count, dtype=np.int32)
    if ids.order == "shuffled":
        np.random.Generator(np.random.Philox(key=ids.seed)).shuffle(rising)
    return rising[::-1] if ids.order == "falling" else rising


ABSURD = np.array([-1, (1 << 31) - 1, -(1 << 31), 1 << 30], np.int32)
"""Numbers that are no blocks of any cache."""


def leftovers(ids: Ids, live: Table, count: int) -> Table:
    """What unused columns hold: NULL, blocks that belong to somebody by now, or numbers that are no blocks."""
    places = np.arange(count)
    if ids.tails == "stale" and len(live):
        return live[(len(live) - 1 - 2 * places) % len(live)]
    if ids.tails == "absurd":
        return ABSURD[places % len(ABSURD)]
    return np.zeros(count, np.int32)
