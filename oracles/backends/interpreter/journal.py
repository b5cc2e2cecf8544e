"""What one launch did: accesses outside every buffer, and, for races, who touched which bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from oracles.backends.interpreter.races import Conflict, Touch, conflicts
from oracles.backends.interpreter.sites import Access, Program, Site, current_site
from oracles.backends.interpreter.space import Addresses, AddressSpace, Extent, Flags, Part
from oracles.verdict import Failure, OutOfBoundsRead, Race

Grid = tuple[int, int, int]


@dataclass
class _Stray:
    """The first of the out-of-bounds accesses of one line to one buffer, and how many accesses followed it."""

    what: type[Failure]
    where: str
    detail: str
    more: int = 0

    def failure(self) -> Failure:
        again = f"; {self.more} more such accesses in this launch" if self.more else ""
        return self.what(self.where, self.detail + again)


@dataclass
class Journal:
    """The record of one launch on a grid of programs. Races are recorded only where there are two programs to race."""

    kernel: str
    grid: Grid
    space: AddressSpace
    number: int = 0
    ordered: bool = False
    _strays: dict[tuple[str, str, Site | None], _Stray] = field(default_factory=dict)
    _touches: dict[Extent, list[Touch]] = field(default_factory=dict)

    @property
    def programs(self) -> int:
        """Number of programs of the launch."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def recording(self) -> bool:
        """Whether accesses are recorded for the search for races."""
        return self.programs > 1

    def index(self, number: int) -> Program:
        """The grid index of a program's linear number; the first axis is the fastest."""
        rest, x = divmod(number, self.grid[0])
        z, y = divmod(rest, self.grid[1])
        return x, y, z

    def enter(self, number: int) -> None:
        """A program starts."""
        self.number = number
        self.ordered = False

    def stray(
        self, what: type[Failure], addresses: Addresses, owned: Flags, lanes: Flags, size: int, hint: Extent | None
    ) -> None:
        """Note an out-of-bounds access.

        ``addresses`` and ``owned`` have one entry for each lane that is on in ``lanes``, the mask of the block.
        """
        first = int(np.argmin(owned))
        address, lane = int(addresses[first]), int(np.flatnonzero(lanes)[first])
        extent, site = hint or self.space.nearest(address), current_site()
        place = extent.place if extent is not None else "no buffer"
        key = (what.kind, place, site)
        if key in self._strays:
            self._strays[key].more += 1
            return
        verb = "read" if what is OutOfBoundsRead else "wrote"
        target = extent.locate(address, size) if extent is not None else hex(address)
        count = int(owned.size - np.count_nonzero(owned))
        detail = f"{verb} {target}; {self._who(site, lane, lanes.size, count)}"
        self._strays[key] = _Stray(what, place, detail)

    def describe(self, addresses: Addresses, chosen: Flags, size: int, hint: Extent | None) -> str:
        """What an access reached, and who it was; ``chosen`` are the lanes of the block that it is about."""
        lane = int(np.flatnonzero(chosen)[0])
        address = int(addresses.ravel()[lane])
        extent = hint or self.space.nearest(address)
        target = extent.locate(address, size) if extent is not None else hex(address)
        return f"{target}; {self._who(current_site(), lane, chosen.size, int(np.count_nonzero(chosen)))}"

    def _who(self, site: Site | None, lane: int, lanes: int, count: int) -> str:
        who = Access(self.kernel, self.index(self.number), site)
        return f"{who}; lane {lane} of {lanes}, {count} lanes in all"

    def touch(
        self,
        parts: list[Part],
        addresses: Addresses,
        size: int,
        values: npt.NDArray[np.uint64] | None = None,
        changed: Flags | None = None,
        *,
        atomic: bool = False,
    ) -> None:
        """Record an access for the search for races; all arrays have one entry for each lane that is on."""
        site = None
        for extent, flags in parts:
            if not extent.recorded:
                continue
            site = site or current_site()
            one = Touch(self.number, site, size, addresses, values, changed, atomic, self.ordered)
            self._touches.setdefault(extent, []).append(one if flags is None else _only(one, flags))

    def failures(self) -> Iterator[Failure]:
        """All that was wrong with the launch, out-of-bounds accesses first."""
        for stray in self._strays.values():
            yield stray.failure()
        for extent, touches in self._touches.items():
            for conflict in conflicts(touches):
                yield Race(extent.place, self._describe(extent, conflict))

    def _describe(self, extent: Extent, conflict: Conflict) -> str:
        first, second = (
            Access(self.kernel, self.index(touch.program), touch.site) for touch in (conflict.first, conflict.second)
        )
        verb = "stores another value there than" if conflict.both_store else "loads what is changed by"
        place = extent.locate(conflict.address, conflict.first.size)
        return f"{place}: {first} {verb} program {second.program}, {second.site or 'an unknown line'}"


def _only(touch: Touch, flags: Flags) -> Touch:
    touch.addresses = touch.addresses[flags]
    touch.values = None if touch.values is None else touch.values[flags]
    touch.changed = None if touch.changed is None else touch.changed[flags]
    return touch
