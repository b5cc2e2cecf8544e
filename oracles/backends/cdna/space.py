"""The addresses that emulated code computes with, and the host memory behind those that it may touch.

Every tensor's storage gets virtual addresses of its own, far from any other one's: a stray 32-bit offset reaches a
hole, never a neighbour, and never host memory that is not a tensor. Pointers that code loads from a table are host
addresses; they are legal where a buffer lies.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from oracles.arrays import contiguous_strides
from oracles.backends.cdna.ir import LANES
from oracles.memory import poison
from oracles.verdict import Unsupported

if TYPE_CHECKING:
    from oracles.memory import Memory, Region

Octets = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FIRST_ADDRESS = 0x1000_0000_0000
LAST_ADDRESS = 0x5400_0000_0000
"""Virtual addresses lie between: the middle of what 47 bits reach, where Linux maps nothing by itself."""

LINE = 1 << 32
HOLE = 1 << 35
"""Bytes without any buffer on either side of a buffer: what a signed 32-bit count of 16-byte elements reaches."""

PHASE = 256
"""Addresses agree with those of the real tensors modulo this: Triton specialises on a divisibility by 16."""

PADDING = 64
"""Bytes that may be read behind a kernel's arguments: a wide scalar load takes them along."""


@dataclass(eq=False)
class Allocation:
    """The bytes of one buffer that code may touch: ``data`` shares the host's memory, ``low`` is its virtual address.

    ``region`` is ``None`` for a storage that no guarded memory knows, and for a kernel's arguments. ``recorded`` says
    whether races are looked for: an input that is written is a finding of its own, so its loads are free. ``poison`` is
    what words of it hold that nobody has written, if no value looks like that.
    """

    name: str
    low: int
    data: Octets
    region: Region | None = None
    recorded: bool = True
    keep: Any = None
    poison: npt.NDArray[np.uint32] | None = None
    dense: bool = field(init=False)
    units: dict[int, npt.NDArray[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.dense = self.region is None or self.region.strides == contiguous_strides(self.region.shape)
        self.units = {1: self.data}
        for size, dtype in ((2, np.uint16), (4, np.uint32)):
            if int(self.data.ctypes.data) % size == 0:
                self.units[size] = self.data[: self.data.size // size * size].view(dtype)

    @property
    def high(self) -> int:
        """The virtual address behind the last byte."""
        return self.low + self.data.size

    @property
    def place(self) -> str:
        """The stable name that a failure carries."""
        return self.name if self.region is None else self.region.public_name

    def owns(self, offsets: Offsets, size: int) -> Flags:
        """Which accesses of ``size`` bytes, so many bytes behind the first element, lie wholly on elements."""
        inside: Flags = (offsets >= 0) & (offsets <= self.data.size - size)
        if self.dense or not inside.any():
            return inside
        assert self.region is not None
        width = self.region.itemsize
        step = width if size % width == 0 else min(size, 1)
        hosts = np.where(inside, offsets, 0).astype(np.uint64) + np.uint64(self.region.address)
        for done in range(0, size, step):
            inside &= self.region.owns(hosts + np.uint64(done), step)
        return inside

    def locate(self, offset: int, size: int) -> str:
        """The element so many bytes behind the first one, in words; of ``size`` bytes if their own is not known."""
        if self.region is not None:
            return self.region.locate(self.region.address + offset)
        if offset < 0:
            return f"{self.name}, {-(offset // size)} elements before the first of its storage"
        if offset >= self.data.size:
            return f"{self.name}, {(offset - self.data.size) // size + 1} elements past the last of its storage"
        return f"{self.name}, element {offset // size} of its storage"


@dataclass(eq=False)
class Window:
    """Addresses from ``low`` up to, without, ``high`` that reach an allocation: its virtual or its host addresses."""

    low: int
    high: int
    allocation: Allocation
    origin: npt.NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.origin = np.full(LANES, self.low, np.uint64)


class DeviceSpace:
    """All that the kernels of one call may touch. A buffer that is registered later is found when it is needed."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._next = FIRST_ADDRESS
        self._known = 0
        self._windows: list[Window] = []
        self._lows: list[int] = []
        self._recent: Window | None = None
        self._regions: dict[int, tuple[int, Allocation]] = {}
        self._foreign: dict[int, tuple[int, Allocation]] = {}
        self._refresh()

    def virtual(self, tensor: torch.Tensor, name: str) -> int:
        """The virtual address of a tensor's first element.

        ``name``, that of the kernel's parameter, names a storage that the guarded memory does not hold. Such a storage
        may be touched until the end of the launch; give the tensor again for the next one.
        """
        storage = tensor.untyped_storage()
        host = int(storage.data_ptr())
        self._refresh()
        found = self._regions.get(host) or self._foreign.get(host)
        if found is None:
            found = self._foreign[host] = self._admit(storage, host, name)
        base, _ = found
        # Not from the tensor's address: torch gives 0 for one without elements, which would have no name then.
        return base + int(tensor.storage_offset()) * tensor.element_size()

    def arguments(self, data: bytes) -> Window:
        """A place for a kernel's arguments. Call :meth:`end_launch` when the launch is over."""
        raw = np.zeros(len(data) + PADDING, np.uint8)
        raw[: len(data)] = np.frombuffer(data, np.uint8)
        return self._map(Allocation("kernel arguments", self._reserve(0, raw.size), raw, recorded=False))

    def end_launch(self) -> None:
        """Forget the arguments and the storages that nobody registered: only arguments make those reachable."""
        self._foreign.clear()
        registered = {id(allocation): allocation for _, allocation in self._regions.values()}
        self._windows = [window for window in self._windows if id(window.allocation) in registered]
        self._lows = [window.low for window in self._windows]
        self._recent = None
        self._next = max((allocation.high for allocation in registered.values()), default=FIRST_ADDRESS)

    def find(self, address: int) -> Window | None:
        """The window that an address lies in."""
        recent = self._recent
        if recent is not None and recent.low <= address < recent.high:
            return recent
        window = self._search(address)
        if window is None and self._refresh():
            window = self._search(address)
        if window is not None:
            self._recent = window
        return window

    def gap(self, address: int) -> tuple[int, int]:
        """The first and the last address of the hole around an address that lies in no window."""
        at = bisect.bisect_right(self._lows, address)
        return (
            self._windows[at - 1].high if at else 0,
            self._lows[at] - 1 if at < len(self._lows) else 0xFFFF_FFFF_FFFF_FFFF,
        )

    def nearest(self, address: int) -> tuple[Allocation, int] | None:
        """The buffer closest to an address, unless none is near, and the address in bytes behind its first element."""

        def distance(window: Window) -> int:
            return max(window.low - address, address - window.high + 1, 0)

        window = min(self._windows, key=distance, default=None)
        if window is None or distance(window) > HOLE // 2:
            return None
        return window.allocation, address - window.low

    def _search(self, address: int) -> Window | None:
        at = bisect.bisect_right(self._lows, address) - 1
        if at >= 0 and address < self._windows[at].high:
            return self._windows[at]
        return None

    def _refresh(self) -> bool:
        regions = self.memory.regions
        if len(regions) == self._known:
            return False
        for region in regions[self._known :]:
            self._add(region)
        self._known = len(regions)
        return True

    def _add(self, region: Region) -> None:
        host, first = int(region.raw.ctypes.data), region.first
        low = self._reserve(region.address, region.span)
        data = region.raw[first : first + region.span]
        allocation = Allocation(region.name, low, data, region, region.writable)
        allocation.poison = _poison_of(region, self.memory.sentinel)
        self._regions[host] = (low - first, allocation)
        self._map(allocation)
        self._map_host(allocation)

    def _admit(self, storage: torch.UntypedStorage, host: int, name: str) -> tuple[int, Allocation]:
        size = storage.nbytes()
        # Not through torch: while a call is watched, torch reports whoever looks at a device tensor's memory.
        data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(host)) if size else np.zeros(0, np.uint8)
        allocation = Allocation(name, self._reserve(host, size), data, keep=storage)
        self._map(allocation)
        self._map_host(allocation)
        return allocation.low, allocation

    def _map(self, allocation: Allocation) -> Window:
        return self._insert(Window(allocation.low, allocation.high, allocation))

    def _map_host(self, allocation: Allocation) -> None:
        low = int(allocation.data.ctypes.data)
        if low < LAST_ADDRESS and low + allocation.data.size > FIRST_ADDRESS:
            raise Unsupported(f"{allocation.name} lies at {low:#x}, among the addresses that emulated code gets")
        self._insert(Window(low, low + allocation.data.size, allocation))

    def _insert(self, window: Window) -> Window:
        at = bisect.bisect_right(self._lows, window.low)
        self._lows.insert(at, window.low)
        self._windows.insert(at, window)
        return window

    def _reserve(self, address: int, size: int) -> int:
        """A free virtual address for ``size`` bytes that lie at ``address`` in the host.

        Where it can be, bytes lie on both sides of a multiple of 4 GiB, so that a lost carry from the low to the high
        half of an address shows.
        """
        line = -(-(self._next + HOLE + size) // LINE) * LINE
        phase = address % PHASE
        before = -(-(size // 2) // PHASE) * PHASE
        low = line + phase - (before if size > before - phase else 0)
        self._next = low + size
        if self._next + HOLE > LAST_ADDRESS:
            raise Unsupported(f"the tensors of this call fill the emulated address space at {size} bytes more")
        return low


def _poison_of(region: Region, sentinel: int) -> npt.NDArray[np.uint32] | None:
    octets = poison(region.tensor.dtype, sentinel)
    if not region.writable or region.tensor.dtype == torch.bool or (octets.size > 4 and (octets != octets[0]).any()):
        return None
    return np.full(LANES, np.resize(octets, 4).view(np.uint32)[0], np.uint32)
