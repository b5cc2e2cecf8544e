"""Contract 4.1, the class BlockTables: a rule-based machine draws operations, and an implementation lives through them.

The rules know a model of what is staged, so that most operations are ones that an engine makes: requests get blocks,
grow, are preempted, come back in another row. Every sequence ends by applying and gathering all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracles.arrays import Array, Inputs, Value, array
from oracles.contracts._garbage import draw_dtype, garbage
from oracles.contracts._ruled_steps import CROWDS
from oracles.domain import Source

Operation = tuple[Any, ...]

MOST_STEPS = (12, 60)
"""Operations of a case, mostly up to the first."""

MOST_ROWS = 40
"""Rows of all groups together, unless one group has more: the interpreter takes 20 ms for each in every gather."""

DRAWN_GROUPS = 2
"""Groups whose sizes and appends are drawn; more follow these in turn. So a case with fewer is one choice away."""

ALL = 5
"""So many blocks of one group in an append stand for as many as its row has room for."""

EDGES = (1, 0, (1 << 16) - 1, (1 << 27) - 1, (1 << 31) - 20_000)
"""Where the ids begin that a case hands out. Behind the last there are enough for the longest case."""


@dataclass
class Machine:
    """The state that the rules look at: how many blocks each request has in each group, and the next free id.

    Engines of one kind move requests between rows, others never do; ``mistakes`` are operations that must be refused.
    """

    source: Source
    rows: int
    capacities: tuple[int, ...]
    next_id: int
    dtype: str
    moves: bool
    mistakes: bool
    counts: list[list[int]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    mappings: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [[0] * len(self.capacities) for _ in range(self.rows)]

    def step(self) -> None:
        """One rule."""
        rules: dict[Callable[[], Operation], int] = {self.append: 9, self.apply: 6}
        rules |= {self.move: 3} if self.moves else {}
        rules |= {self.overwrite: 2}
        rules |= {self.refused: 3} if self.mistakes else {}
        rules |= {self.gather: 4, self.clear: 2}
        rules |= {self.swap: 3} if self.moves else {}
        rule = self.source.choose(tuple(rules), weights=tuple(rules.values()), small=5)
        self.operations.append(rule())

    def request(self) -> int:
        """A row, often one that was used before."""
        return self.source.integer(0, self.rows - 1, near=(0, 0, 1, self.rows - 1), small=2)

    def ids(self, free: list[int]) -> tuple[tuple[int, ...], ...]:
        """New ids for each group, no more than are free. Only the first groups' numbers of them are drawn."""
        made: list[tuple[int, ...]] = []
        drawn = [self.source.integer(0, ALL, near=(1, 1, 2, ALL), small=2) for _ in free[:DRAWN_GROUPS]]
        for group, room in enumerate(free):
            wanted = drawn[group % DRAWN_GROUPS]
            count = room if wanted == ALL else min(wanted, room)
            made.append(tuple(range(self.next_id, self.next_id + count)))
            self.next_id += count
        return tuple(made)

    def append(self) -> Operation:
        """More blocks for a request."""
        request = self.request()
        room = [most - held for most, held in zip(self.capacities, self.counts[request], strict=True)]
        ids = self.ids(room)
        self.counts[request] = [held + len(new) for held, new in zip(self.counts[request], ids, strict=True)]
        return ("append", request, ids, False)

    def overwrite(self) -> Operation:
        """Other blocks for a request, as when it comes back after a preemption."""
        request = self.request()
        ids = self.ids(list(self.capacities))
        self.counts[request] = [len(new) for new in ids]
        return ("append", request, ids, True)

    def clear(self) -> Operation:
        """A request is done."""
        request = self.request()
        self.counts[request] = [0] * len(self.capacities)
        return ("clear", request)

    def move(self) -> Operation:
        """A request takes another row, or stays where it is."""
        source, target = self.request(), self.request()
        if source != target:
            self.counts[target], self.counts[source] = self.counts[source], [0] * len(self.capacities)
        return ("move", source, target)

    def swap(self) -> Operation:
        """Two requests change rows."""
        one, other = self.request(), self.request()
        self.counts[one], self.counts[other] = self.counts[other], self.counts[one]
        return ("swap", one, other)

    def apply(self) -> Operation:
        """What is staged becomes visible."""
        return ("apply",)

    def gather(self) -> Operation:
        """Some rows, in any order, with padding or numbers that are no rows among them."""
        count = self.source.integer(0, self.rows, near=(self.rows,), small=2)
        rows = [self.request() for _ in range(min(count, 6))] + list(range(self.rows))[: max(count - 6, 0)]
        if rows and self.source.pick(2, weights=(5, 1), small=1):
            rows[-1] = garbage(self.source, self.dtype, near=(-1, self.rows))
        return self._gather(rows, len(rows) + self.source.integer(0, self.rows - len(rows), near=(0, 1), small=1))

    def _gather(self, rows: list[int], padded: int) -> Operation:
        self.mappings.append(self.source.view(rows, self.dtype, small=1))
        return ("gather", len(self.mappings) - 1, padded)

    def refused(self) -> Operation:
        """An operation that host-visible facts show to be wrong; nothing may change."""
        source, groups = self.source, len(self.capacities)
        full = [most - held + 1 for most, held in zip(self.capacities, self.counts[0], strict=True)]
        # The first groups fit: whoever writes group by group has changed them when the last one does not.
        over = tuple(
            (self.next_id,) * (room if group == groups - 1 else min(1, room - 1)) for group, room in enumerate(full)
        )
        none = ((),) * groups
        wrong: tuple[Operation, ...] = (
            ("append", 0, over, False) if groups else ("append", self.rows, none, False),
            ("append", self.rows, none, False),
            ("append", -1, none, False),
            ("append", 0, (*none, ()), False),
            ("append", 0, ((-1,),) * groups if groups else ((),), True),
            ("append", 0, ((1 << 31,),) * groups if groups else ((),), True),
            ("clear", self.rows),
            ("move", 0, self.rows),
            ("move", -1, 0),
            ("swap", self.rows, 0),
            # Of a gather: how many rows of the batch, and with padding.
            ("gather", 1, 0),
            ("gather", 0, self.rows + 1),
        )
        chosen = source.choose(wrong, weights=(6,) + (1,) * (len(wrong) - 1), small=1)
        return self._gather([0] * chosen[1], chosen[2]) if chosen[0] == "gather" else chosen

    def finish(self) -> None:
        """Apply, and look at every row."""
        self.operations += [self.apply(), self._gather(list(range(self.rows)), self.rows)]


def domain(source: Source) -> Inputs:
    """A life of block tables; a crowd that gets its blocks in one step; or a constructor that must be refused."""
    kind = source.choose(("life", "refused", "crowd"), weights=(74, 4, 2))
    if kind != "life":
        return _refused(source) if kind == "refused" else _crowd(source)
    rows = source.choose((2, 1, 3, 4, 5, 33, 70), weights=(4, 2, 4, 4, 4, 1, 1), small=1)
    groups = (
        0
        if source.pick(2, weights=(20, 1), small=1)
        else source.integer(1, max(MOST_ROWS // rows, 1), near=(2, 3), small=1)
    )
    drawn = range(min(groups, DRAWN_GROUPS))
    capacities = tuple(source.choose((2, 3, 4, 1, 0, 130), small=1) for _ in drawn)
    capacities += (3,) * (groups - len(capacities))
    sizes = [source.choose((16, 1, 64, 784), small=1) for _ in drawn]
    block_sizes = tuple(sizes[group % DRAWN_GROUPS] for group in range(groups))
    machine = Machine(
        source,
        rows,
        capacities,
        next_id=source.choose(EDGES, small=1),
        dtype=draw_dtype(source),
        moves=source.choose((True, False), weights=(2, 3), small=1),
        mistakes=source.choose((True, False), weights=(1, 2), small=1),
    )
    most = source.choose(MOST_STEPS, weights=(4, 1), small=1)
    while len(machine.operations) < most and _more(source, most, len(machine.operations)):
        machine.step()
    machine.finish()
    return _lived(source, machine, block_sizes)


def _crowd(source: Source) -> Inputs:
    """Requests that all get a block or two before they are applied, and every second one others in a second step."""
    rows = source.choose(CROWDS)
    machine = Machine(source, rows, (3,), next_id=1, dtype=draw_dtype(source), moves=False, mistakes=False)
    for step in (1, 2):
        for request in range(0, rows, step):
            count = 1 + request % 2
            ids = tuple(range(machine.next_id, machine.next_id + count))
            machine.next_id += count
            machine.operations.append(("append", request, (ids,), step == 2))
        machine.finish()
    return _lived(source, machine, (16,))


def _lived(source: Source, machine: Machine, block_sizes: tuple[int, ...]) -> Inputs:
    """The inputs of a life that has been drawn."""
    rows = machine.rows
    source.event(f"operations: {len(machine.operations) // 10 * 10} or more")
    for name in sorted({str(operation[0]) for operation in machine.operations}):
        source.event(f"operation: {name}")
    return {
        "block_sizes": block_sizes,
        "max_num_reqs": rows,
        "max_num_blocks_per_group": machine.capacities,
        "operations": tuple(machine.operations),
        "idx_mappings": tuple(machine.mappings),
        "refilled": source.choose((False, True), weights=(3, 1), small=1),
        "idx_buffer": array([-7] * rows, machine.dtype),
    }


def _more(source: Source, most: int, so_far: int) -> bool:
    """Whether there is another step. It is one choice in long cases too, so that each step can be left out."""
    return bool(source.pick(2, weights=(1, most))) if most == MOST_STEPS[1] else source.more(so_far)


def _refused(source: Source) -> Inputs:
    inputs: dict[str, Value] = {
        "block_sizes": (16, 64),
        "max_num_reqs": 2,
        "max_num_blocks_per_group": (3, 2),
        "operations": (("gather", 0, 2),),
        "idx_mappings": (array([1], "int32"),),
        "refilled": False,
        "idx_buffer": array([-7, -7], "int32"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "no rows": {"max_num_reqs": 0},
        "negative rows": {"max_num_reqs": -1},
        "block size 0": {"block_sizes": (16, 0)},
        "negative columns": {"max_num_blocks_per_group": (3, -1)},
        "fewer columns than groups": {"max_num_blocks_per_group": (3,)},
        "more columns than groups": {"max_num_blocks_per_group": (3, 2, 2)},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]
