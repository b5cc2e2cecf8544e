"""Which bytes a launch may touch: the registered buffers, and the storages of kernel arguments that nobody registered.

Addresses are absolute and in bytes; accesses are flat arrays of addresses with one size in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from oracles.memory import Memory, Region

Addresses = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Part = tuple["Extent", "Flags | None"]
"""A buffer and which of the accesses it owns; ``None`` means all of them."""


@dataclass(eq=False)
class Extent:
    """One buffer: bytes from ``low`` up to, without, ``high``. ``region`` is ``None`` for an unregistered storage."""

    name: str
    low: int
    high: int
    region: Region | None = None
    dense: bool = True

    @property
    def place(self) -> str:
        """The stable name that a failure carries."""
        return self.name if self.region is None else self.region.public_name

    @property
    def recorded(self) -> bool:
        """Whether races are looked for: an input that is written is a finding of its own, so its loads are free."""
        return self.region is None or self.region.writable

    def contains(self, low: int, high: int) -> bool:
        """Whether the bytes from ``low`` up to ``high`` lie inside, gaps between rows included."""
        return self.low <= low and high <= self.high

    def owns(self, addresses: Addresses, size: int) -> Flags:
        """Which accesses of ``size`` bytes lie wholly on elements."""
        if self.region is not None:
            return _owned_by(self.region, addresses, size)
        if self.high - size < self.low:
            return np.zeros(addresses.shape, bool)
        return (addresses >= np.uint64(self.low)) & (addresses <= np.uint64(self.high - size))

    def locate(self, address: int, size: int) -> str:
        """The address in words, counted in elements; of ``size`` bytes where the buffer's own are not known."""
        if self.region is not None:
            return self.region.locate(address)
        if address < self.low:
            return f"{self.name}, {-((address - self.low) // size)} elements before the first of its storage"
        if address >= self.high:
            return f"{self.name}, {(address - self.high) // size + 1} elements past the last of its storage"
        return f"{self.name}, element {(address - self.low) // size} of its storage"

    def distance(self, address: int) -> int:
        """Bytes between the address and this buffer, 0 inside."""
        return max(self.low - address, address - self.high + 1, 0)


class AddressSpace:
    """All extents of one call. Registered buffers are looked up again whenever an access hits none of the known."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.known: list[Extent] = []
        self.foreign: list[Extent] = []
        self._recent: Extent | None = None
        self.refresh()

    def refresh(self) -> bool:
        """Take up the buffers registered since the last call; whether there were any."""
        regions = self.memory.regions
        if len(regions) == len(self.known):
            return False
        for region in regions[len(self.known) :]:
            low, high = region.extent
            self.known.append(Extent(region.name, low, high, region, _dense(region)))
        return True

    def begin_launch(self) -> None:
        """Forget the unregistered storages: only the arguments of a launch make them reachable."""
        self.foreign.clear()
        self._recent = None
        self.refresh()

    def storage(self, low: int, size: int) -> Extent | None:
        """The extent whose buffer is the storage of ``size`` bytes at ``low``."""
        for extent in self.known:
            if extent.region is not None and low <= extent.low and extent.high <= low + size:
                return extent
        return next((extent for extent in self.foreign if extent.low == low), None)

    def admit(self, name: str, low: int, size: int) -> Extent:
        """Make an unregistered storage legal for this launch, under the name of the kernel's parameter."""
        extent = Extent(name, low, low + size)
        self.foreign.append(extent)
        return extent

    def split(self, addresses: Addresses, size: int, hint: Extent | None) -> list[Part]:
        """The buffers that own these accesses. An access that no part owns is out of bounds.

        A pointer computed from an argument (``hint``) may reach that argument's buffer only: where a stray address
        lands otherwise depends on where the operating system put the buffers. Only a pointer that came out of a table
        may reach any of them.
        """
        if addresses.size == 0:
            return []
        if hint is not None:
            return self._only(hint, addresses, size)
        low, high = int(addresses.min()), int(addresses.max()) + size
        if self._recent is not None and self._recent.contains(low, high):
            return [self._part(self._recent, addresses, size)]
        parts = self._search(addresses, size, low, high)
        if (not parts or not _covered(parts, addresses.size)) and self.refresh():
            parts = self._search(addresses, size, low, high)
        return parts

    def nearest(self, address: int) -> Extent | None:
        """The buffer closest to an address."""
        return min((*self.foreign, *self.known), key=lambda extent: extent.distance(address), default=None)

    def _search(self, addresses: Addresses, size: int, low: int, high: int) -> list[Part]:
        parts: list[Part] = []
        for extent in (*self.foreign, *self.known):
            if extent.contains(low, high):
                self._recent = extent
                return [self._part(extent, addresses, size)]
            if extent.low < high and low < extent.high:
                owned = extent.owns(addresses, size)
                if owned.any():
                    parts.append((extent, owned))
        return parts

    def _only(self, extent: Extent, addresses: Addresses, size: int) -> list[Part]:
        low, high = int(addresses.min()), int(addresses.max()) + size
        if extent.contains(low, high):
            return [self._part(extent, addresses, size)]
        owned = extent.owns(addresses, size)
        return [(extent, owned)] if owned.any() else []

    @staticmethod
    def _part(extent: Extent, addresses: Addresses, size: int) -> Part:
        if extent.dense:
            return extent, None
        owned = extent.owns(addresses, size)
        return extent, None if owned.all() else owned


def _owned_by(region: Region, addresses: Addresses, size: int) -> Flags:
    """``Region.owns``, also where one access spans several elements, as a word read from a byte buffer does."""
    width = region.itemsize
    if size <= width or size % width:
        return region.owns(addresses, size)
    owned = np.ones(addresses.shape, bool)
    for step in range(0, size, width):
        owned &= region.owns(addresses + np.uint64(step), width)
    return owned


def _covered(parts: list[Part], count: int) -> bool:
    owned = np.zeros(count, bool)
    for _, flags in parts:
        if flags is None:
            return True
        owned |= flags
    return bool(owned.all())


def _dense(region: Region) -> bool:
    """Whether no byte between the first and the last element is a gap."""
    step = 1
    for count, stride in sorted(zip(region.shape, region.strides, strict=True), key=lambda item: item[1]):
        if count > 1 and stride:
            if stride > step:
                return False
            step = stride * (count - 1) + step
    return True
