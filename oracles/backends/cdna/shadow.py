"""Races, found from a record of which elements each wave touched.

Emulated waves run one after the other, so a race need not show as a wrong value. Two rules, for the waves of a
workgroup between two barriers and for the workgroups of a launch:

* two of them must not leave different values in the same element (equal values are tolerated);
* one must not load an element that another one changes.

Not accused, because they may be ordered:

* atomics against atomics: the memory system orders them;
* whatever a wave does after it acquired (:attr:`Touch.ordered`): it may have waited for the other one's release;
* a load after an own store to the same element, which the first rule judges;
* between waves, a load that the storing wave did as well, by the same instruction: a value that all waves hold copies
  of. Where a copy matters, some order of waves gives a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]

_WAVES = 1 << 8
"""Waves of a workgroup are fewer: the number of an instruction times this and a wave's number share an integer."""


@dataclass(eq=False, slots=True)
class Touch:
    """One access of a wave to one allocation: ``index`` counts ``unit`` bytes (1, 2 or 4).

    ``values`` are the stored bits, ``None`` for a load; ``changed`` says which of them changed memory.
    """

    wave: int
    instruction: int
    unit: int
    index: Numbers
    values: Values | None = None
    changed: Flags | None = None
    atomic: bool = False
    ordered: bool = False


class Place(NamedTuple):
    """Who accessed an element: the agent (a wave's or a workgroup's number), the instruction, the wave."""

    agent: int
    instruction: int
    wave: int


class Conflict(NamedTuple):
    """Two agents that meet at an offset in bytes; ``second`` stores there, and ``first`` too if ``both_store``."""

    offset: int
    unit: int
    first: Place
    second: Place
    both_store: bool


class Rows(NamedTuple):
    """A row for each element and agent, sorted by both. ``code`` is the instruction and the wave in one number."""

    element: Numbers
    agent: Numbers
    code: Numbers
    value: Values
    atomic: Flags

    def taken(self, chosen: Any) -> Rows:
        """Some of the rows."""
        return Rows(*(column[chosen] for column in self))

    def place(self, row: int) -> Place:
        """Who that row is about."""
        code = int(self.code[row])
        return Place(int(self.agent[row]), code // _WAVES, code % _WAVES)


class Digest(NamedTuple):
    """What is left of accesses: each agent's last store, that it changed an element, its first load before a store."""

    unit: int
    stores: Rows
    changes: Rows
    loads: Rows


def digest(touches: Sequence[Touch], agents: Sequence[int]) -> Digest:
    """The digest of touches in program order of each agent; ``agents`` says whose each touch is."""
    unit = min(touch.unit for touch in touches)
    stores, changed, free, order = _table(touches, agents, unit, stores=True)
    loads, _, free_loads, order_loads = _table(touches, agents, unit, stores=False)
    if stores.element.size and loads.element.size:
        free_loads = free_loads & ~_after_own_store(loads, order_loads, stores, order)
    return Digest(unit, _last(stores.taken(free)), _last(stores.taken(free & changed)), _first(loads.taken(free_loads)))


def joined(earlier: Digest, later: Digest) -> Digest:
    """The digest of the touches of two digests, of which those of one agent came before in the first."""
    unit = min(earlier.unit, later.unit)
    stores, changes, loads = (
        [_finer(before, earlier.unit, unit), _finer(after, later.unit, unit)]
        for before, after in zip(earlier[1:], later[1:], strict=True)
    )
    if stores[0].element.size and loads[1].element.size:
        own = _find(stores[0].element, stores[0].agent, loads[1].element, loads[1].agent)
        loads[1] = loads[1].taken(own < 0)
    return Digest(unit, _last(_merged(stores)), _last(_merged(changes)), _first(_merged(loads)))


def conflicts(digests: Sequence[Digest], *, copies: bool = False) -> Iterator[Conflict]:
    """At most one conflict of each rule, that at the lowest element. ``copies``: the agents are waves."""
    unit = min(item.unit for item in digests)
    stores = _merged([_finer(item.stores, item.unit, unit) for item in digests])
    if stores.element.size == 0:
        return
    meet = (stores.element[1:] == stores.element[:-1]) & (stores.value[1:] != stores.value[:-1])
    meet &= ~(stores.atomic[1:] & stores.atomic[:-1])
    if meet.any():
        at = int(meet.argmax())
        yield Conflict(int(stores.element[at]) * unit, unit, stores.place(at), stores.place(at + 1), True)
    loads = _merged([_finer(item.loads, item.unit, unit) for item in digests])
    changes = _merged([_finer(item.changes, item.unit, unit) for item in digests])
    if loads.element.size and changes.element.size:
        yield from _unordered_load(loads, changes, unit, copies)


def _table(
    touches: Sequence[Touch], agents: Sequence[int], unit: int, *, stores: bool
) -> tuple[Rows, Flags, Flags, Numbers]:
    """Rows in order of index, agent and program; which changed memory, which may race, and their program order."""
    chosen = [number for number, touch in enumerate(touches) if (touch.values is not None) == stores]
    if not chosen:
        none, flags = np.empty(0, np.int64), np.empty(0, bool)
        return Rows(none, none, none, none.astype(np.uint32), flags), flags, flags, none
    parts = [_split(touches[number], unit) for number in chosen]
    index, value, changed = (np.concatenate(column) for column in zip(*parts, strict=True))
    picked = [touches[number] for number in chosen]
    facts = [
        (agents[number], touch.instruction * _WAVES + touch.wave, touch.atomic, not touch.ordered, number)
        for number, touch in zip(chosen, picked, strict=True)
    ]
    each = np.repeat(np.array(facts, np.int64), [part[0].size for part in parts], axis=0)
    order = np.lexsort((each[:, 4], each[:, 0], index))
    each = each[order]
    rows = Rows(index[order], each[:, 0], each[:, 1], value[order], each[:, 2].astype(bool))
    return rows, changed[order], each[:, 3].astype(bool), each[:, 4]


def _split(touch: Touch, unit: int) -> tuple[Numbers, Values, Flags]:
    values = np.zeros(touch.index.size, np.uint32) if touch.values is None else touch.values
    changed = np.zeros(touch.index.size, bool) if touch.changed is None else touch.changed
    if unit == touch.unit:
        return touch.index, values, changed
    index, parts, times = _finer_columns(touch.index, values, touch.unit, unit)
    return index, parts, np.repeat(changed, times)


def _finer_columns(index: Numbers, values: Values, unit: int, finer: int) -> tuple[Numbers, Values, int]:
    times = unit // finer
    steps = np.arange(times)
    parts = (values[:, None] >> (steps * (8 * finer)).astype(np.uint32)) & np.uint32((1 << (8 * finer)) - 1)
    return (index[:, None] * times + steps).ravel(), parts.ravel(), times


def _finer(rows: Rows, unit: int, finer: int) -> Rows:
    if unit == finer:
        return rows
    index, values, times = _finer_columns(rows.element, rows.value, unit, finer)
    return Rows(index, rows.agent.repeat(times), rows.code.repeat(times), values, rows.atomic.repeat(times))


def _runs(rows: Rows) -> Flags:
    """Where a row has the same element and agent as the next one."""
    same: Flags = (rows.element[1:] == rows.element[:-1]) & (rows.agent[1:] == rows.agent[:-1])
    return same


def _last(rows: Rows) -> Rows:
    keep = np.ones(rows.element.size, bool)
    keep[:-1] = ~_runs(rows)
    return rows.taken(keep)


def _first(rows: Rows) -> Rows:
    keep = np.ones(rows.element.size, bool)
    keep[1:] = ~_runs(rows)
    return rows.taken(keep)


def _after_own_store(loads: Rows, order: Numbers, stores: Rows, store_order: Numbers) -> Flags:
    """Which loads follow a store of the same agent to the same element."""
    first = np.ones(stores.element.size, bool)
    first[1:] = ~_runs(stores)
    at = _find(stores.element[first], stores.agent[first], loads.element, loads.agent)
    later: Flags = (at >= 0) & (store_order[first][at] < order)
    return later


def _find(index: Numbers, agent: Numbers, wanted_index: Numbers, wanted_agent: Numbers) -> Numbers:
    """Where each pair stands in sorted columns, -1 where it does not."""
    kind = [("index", np.int64), ("agent", np.int64)]
    keys, wanted = np.empty(index.size, kind), np.empty(wanted_index.size, kind)
    keys["index"], keys["agent"], wanted["index"], wanted["agent"] = index, agent, wanted_index, wanted_agent
    at = np.minimum(np.searchsorted(keys, wanted), index.size - 1)
    return np.where(keys[at] == wanted, at, -1)


def _merged(parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    rows = Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return rows.taken(np.lexsort((rows.agent, rows.element)))


def _unordered_load(loads: Rows, changes: Rows, unit: int, copies: bool) -> Iterator[Conflict]:
    # Changes are sorted by element and agent: the ends of an element's run are its lowest and highest agent, and some
    # other agent than the reader changes it unless both ends are the reader.
    low = np.searchsorted(changes.element, loads.element, side="left")
    high = np.searchsorted(changes.element, loads.element, side="right") - 1
    hit = low <= high
    if not hit.any():
        return
    low, high = np.minimum(low, changes.element.size - 1), np.maximum(high, 0)
    other = np.where(changes.agent[low] != loads.agent, low, high)
    hit &= changes.agent[other] != loads.agent
    if copies:
        twin = _find(loads.element, loads.agent, loads.element, changes.agent[other])
        hit &= (twin < 0) | (loads.code[twin] // _WAVES != loads.code // _WAVES)
    if hit.any():
        at = int(hit.argmax())
        yield Conflict(int(loads.element[at]) * unit, unit, loads.place(at), changes.place(int(other[at])), False)
