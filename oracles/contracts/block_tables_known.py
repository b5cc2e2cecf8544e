"""Predicates of known findings for contract 4.1: which lives of block tables show a fault that upstream still has.

Both of vLLM's classes are followed operation by operation, faults included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contracts.block_tables_bindings import moves_or_swaps, refuses_more_than_full_rows
from reference.errors import ContractError

Table = np.ndarray
Story = Sequence[tuple[tuple[Any, ...], "tuple[Table, ...] | None", str]]


def _story(inputs: Inputs) -> Story | None:
    """Operations, what gathers have to show, and why operations are refused; ``None`` if the constructor is."""
    # Imported late: the record of the contract, in that module, names these predicates.
    from oracles.contracts.block_tables import lived

    try:
        return lived(inputs)
    except ContractError:
        return None


@dataclass
class Newer:
    """``BlockTables`` of the newer runner.

    ``clears``: a gather also clears rows that a larger one before it has left, as since 0.33. ``atomic``: an append
    that does not fit changes nothing, which is not so. ``strays``: why memory outside the tables is touched. ``clash``:
    two staged writes that do not follow each other put different ids into one place. ``mistaken``: another append is
    refused than the contract refuses.
    """

    inputs: Inputs
    clears: bool
    atomic: bool = False
    strays: set[str] = field(default_factory=set)
    clash: bool = False
    mistaken: bool = False
    shown: list[list[Table]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = cast(int, self.inputs["max_num_reqs"])
        columns = cast("tuple[int, ...]", self.inputs["max_num_blocks_per_group"])
        self.tables = [np.zeros((rows, width), np.int64) for width in columns]
        self.buffers = [table.copy() for table in self.tables]
        self.counts = np.zeros((len(columns), rows), np.int64)
        self.applied = self.counts.copy()
        self.staged: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.dirty = 0

    def live(self, story: Story) -> None:
        """All operations, up to one that is refused by mistake."""
        for (name, *values), _, refused in story:
            if name == "append":
                self.mistaken = self.append(*values) != bool(refused)
            elif name == "clear":
                self.append(values[0], ((),) * len(self.tables), overwrite=True)
            elif name == "apply":
                self.apply()
            elif name == "gather":
                self.gather(*values)
            if self.mistaken:
                return

    def append(self, request: int, ids: Sequence[tuple[int, ...]], overwrite: bool) -> bool:
        """Whether the append is refused; groups before the one that is full are written nevertheless."""
        before, staged = self.counts.copy(), list(self.staged)
        for group, (new, table) in enumerate(zip(ids, self.tables, strict=True)):
            begin = 0 if overwrite else int(self.counts[group, request])
            if begin + len(new) > table.shape[1]:
                if self.atomic:
                    self.counts, self.staged = before, staged
                return True
            if new:
                self.staged.append((group, request, begin, tuple(new)))
            self.counts[group, request] = begin + len(new)
        return False

    def apply(self) -> None:
        """The staged writes, as programs of one launch."""
        written: dict[tuple[int, int, int], int] = {}
        for group, request, begin, ids in self.staged:
            for column, block in enumerate(ids, begin):
                place = (group, request, column)
                self.clash = self.clash or written.get(place, block) != block
                written[place] = block
                self.tables[group][request, column] = block
        self.staged, self.applied = [], self.counts.copy()

    def gather(self, number: int, padded: int) -> None:
        """Rows into the persistent buffers."""
        mapping = cast("tuple[Array, ...]", self.inputs["idx_mappings"])[number]
        ids = mapping.data.tolist()
        if self.inputs["refilled"] is not True and mapping.layout[0] != 1 and len(ids) > 1 and self.tables:
            self.strays.add("mapping")
        rows = max(padded, self.dirty) if self.clears else padded
        self.dirty = len(ids)
        for group, (table, buffer) in enumerate(zip(self.tables, self.buffers, strict=True)):
            buffer[len(ids) : rows] = 0
            if rows > len(ids) and not table.shape[1]:
                self.strays.add("columns")
            for row, request in enumerate(ids):
                self._copy(group, row, request)
        self.shown.append([buffer[:padded].copy() for buffer in self.buffers])

    def _copy(self, group: int, row: int, request: int) -> None:
        rows, place = self.counts.shape[1], group * self.counts.shape[1] + request
        if 0 <= request < rows:
            count = self.applied[group, request]
            self.buffers[group][row, :count] = self.tables[group][request, :count]
            return
        # Compilers for AMD's chips cut the distances of elements in small buffers to 32 bits.
        seen = place if 0 <= place < self.applied.size else place - request + cut(request)
        if not 0 <= seen < self.applied.size or self.applied.reshape(-1)[seen] > 0:
            self.strays.add("request")
        elif seen != place:
            self.strays.add("far request")


def cut(number: int) -> int:
    """What 32 bits hold of a number."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclass
class Older:
    """``MultiGroupBlockTable`` of the older runner. ``stays``: a row that moves to itself stays, which is not so."""

    inputs: Inputs
    stays: bool = False
    shown: list[list[Table]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = cast(int, self.inputs["max_num_reqs"])
        columns = cast("tuple[int, ...]", self.inputs["max_num_blocks_per_group"])
        self.tables = [np.zeros((rows, width), np.int64) for width in columns]
        self.counts = [np.zeros(rows, np.int64) for _ in columns]
        self.applied = [table.copy() for table in self.tables]

    def live(self, story: Story) -> None:
        """All operations but those that must be refused."""
        for (name, *values), _, refused in story:
            if refused:
                continue
            if name == "apply":
                self.applied = [table.copy() for table in self.tables]
            elif name == "gather":
                self.gather(*values)
            else:
                for group, (table, counts) in enumerate(zip(self.tables, self.counts, strict=True)):
                    self.change(table, counts, group, name, *values)

    def change(self, table: Table, counts: Table, group: int, name: str, one: int, *values: Any) -> None:
        """One group's part of an operation."""
        count = counts[one]
        if name == "append":
            ids, overwrite = values[0][group], values[1]
            begin = 0 if overwrite else count
            table[one, begin : begin + len(ids)] = ids
            counts[one] = begin + len(ids)
        elif name == "clear":
            table[one, :count], counts[one] = 0, 0
        elif name == "swap":
            both, turned = [one, values[0]], [values[0], one]
            table[both], counts[both] = table[turned], counts[turned]
        elif not (self.stays and one == values[0]):
            table[values[0], :count], counts[values[0]] = table[one, :count], count
            table[one, :count], counts[one] = 0, 0

    def gather(self, number: int, padded: int) -> None:
        """The adapter's: rows of other numbers are NULL, and so is the padding."""
        ids = cast("tuple[Array, ...]", self.inputs["idx_mappings"])[number].data.tolist()
        shown = []
        for table in self.applied:
            rows = np.zeros((padded, table.shape[1]), np.int64)
            for row, request in enumerate(ids):
                rows[row] = table[request] if 0 <= request < len(table) else 0
            shown.append(rows)
        self.shown.append(shown)


def _differ(some: Sequence[Sequence[Table]], others: Sequence[Sequence[Table]]) -> bool:
    return any(
        not np.array_equal(one, other)
        for tables, wanted in zip(some, others, strict=True)
        for one, other in zip(tables, wanted, strict=True)
    )


def _wanted(story: Story) -> list[tuple[Table, ...]]:
    return [shown for _, shown, _ in story if shown is not None]


def _newer(inputs: Inputs, *, clears: bool, atomic: bool = False) -> tuple[Newer, Story] | None:
    """The newer class at the end of a life that it knows."""
    story = _story(inputs)
    if story is None or moves_or_swaps(inputs) or refuses_more_than_full_rows(inputs):
        return None
    tables = Newer(inputs, clears, atomic)
    tables.live(story)
    return tables, story


def _settled(inputs: Inputs, *, clears: bool) -> tuple[Newer, Story] | None:
    """The same, where nothing but values can be wrong."""
    found = _newer(inputs, clears=clears)
    return None if found is None or found[0].strays or found[0].clash or found[0].mistaken else found


def _strays(inputs: Inputs, reason: str, *, clears: bool) -> bool:
    found = _newer(inputs, clears=clears)
    return found is not None and reason in found[0].strays


def every_life(inputs: Inputs) -> bool:
    """Every life that the newer class knows."""
    return _newer(inputs, clears=True) is not None


def mapping_apart(inputs: Inputs) -> bool:
    """Request numbers that do not lie side by side."""
    return _strays(inputs, "mapping", clears=True)


def request_outside(inputs: Inputs) -> bool:
    """A request number that is no row, behind which something is read."""
    return _strays(inputs, "request", clears=True)


def far_request(inputs: Inputs) -> bool:
    """A request number that is no row, of which 32 bits are one, of a request without blocks."""
    return _strays(inputs, "far request", clears=True)


def no_columns(inputs: Inputs) -> bool:
    """Padding in a group without columns."""
    return _strays(inputs, "columns", clears=True)


def until_0_32_no_columns(inputs: Inputs) -> bool:
    """The same, where rows that a larger gather has left are not cleared."""
    return _strays(inputs, "columns", clears=False)


def overlapping_writes(inputs: Inputs) -> bool:
    """A request that gets other ids in one place between two applies."""
    found = _newer(inputs, clears=True)
    return found is not None and found[0].clash


def half_an_append(inputs: Inputs) -> bool:
    """An append that fits some groups alone and shows there; or because of which another one is refused."""
    return _half_an_append(inputs, clears=True)


def until_0_32_half_an_append(inputs: Inputs) -> bool:
    """The same, where rows that a larger gather has left are not cleared."""
    return _half_an_append(inputs, clears=False)


def _half_an_append(inputs: Inputs, *, clears: bool) -> bool:
    found, other = _newer(inputs, clears=clears), _newer(inputs, clears=clears, atomic=True)
    if found is None or other is None or found[0].mistaken:
        return found is not None
    if _settled(inputs, clears=clears) is None:
        return False
    return _differ(found[0].shown, other[0].shown) and _differ(found[0].shown, _wanted(found[1]))


def stale_tail(inputs: Inputs) -> bool:
    """A row with fewer blocks than one that was gathered there before."""
    return _stale_tail(inputs, clears=True)


def until_0_32_stale_tail(inputs: Inputs) -> bool:
    """The same, where rows that a larger gather has left are not cleared."""
    return _stale_tail(inputs, clears=False)


def _stale_tail(inputs: Inputs, *, clears: bool) -> bool:
    found, other = _settled(inputs, clears=clears), _newer(inputs, clears=clears, atomic=True)
    if found is None or other is None or not _differ(found[0].shown, _wanted(found[1])):
        return False
    return _differ(other[0].shown, _wanted(found[1]))


def _older(inputs: Inputs, *, stays: bool = False) -> tuple[Older, Story] | None:
    story = _story(inputs)
    if story is None:
        return None
    tables = Older(inputs, stays)
    tables.live(story)
    return tables, story


def older_self_move(inputs: Inputs) -> bool:
    """A row that moves to itself."""
    found, other = _older(inputs), _older(inputs, stays=True)
    if found is None or other is None or not _differ(found[0].shown, _wanted(found[1])):
        return False
    return _differ(found[0].shown, other[0].shown)


def older_stale_tail(inputs: Inputs) -> bool:
    """A row that gets fewer blocks than it had."""
    found, other = _older(inputs), _older(inputs, stays=True)
    if found is None or other is None or not _differ(found[0].shown, _wanted(found[1])):
        return False
    return _differ(other[0].shown, _wanted(found[1]))


PREDICATES = (
    every_life,
    mapping_apart,
    request_outside,
    far_request,
    no_columns,
    until_0_32_no_columns,
    overlapping_writes,
    half_an_append,
    until_0_32_half_an_append,
    stale_tail,
    until_0_32_stale_tail,
    older_self_move,
    older_stale_tail,
)
KNOWN: dict[str, Callable[[Inputs], bool]] = {predicate.__name__: predicate for predicate in PREDICATES}
"""What known_findings.toml may name."""
