"""Guarded memory for one call on the CPU.

Every buffer lies between guard zones, in an allocation of its own. What nobody has written is poison: a byte pattern
that is no legal id, length or offset. There are two patterns, so that "still poison under both" is certain. Afterwards
:meth:`Memory.faults` compares guards, gaps between the rows of strided views, and inputs with what they were.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from oracles.arrays import Array, Value, contiguous_strides
from oracles.verdict import Failure, InputMutated, OutOfBoundsWrite, place_of

GUARD = 4096
"""Bytes of guard zone on each side of a buffer."""

NAN_BYTES = (0xA7, 0x93)
"""Payloads of the two NaN that poison floats; the top bit makes one of every width."""

ALIGNMENT = 256
"""Every buffer's aligned base address is a multiple of this; a sliced view starts ``offset`` elements later."""

POISON_BYTES = (0xA7, 0x58)
"""The two fillings, different in every bit. As int32 or int64 one is a large negative, the other a large positive
number: no legal length, offset or sequence number, and a sign test sees them differ."""

SPARSE_FROM = 1 << 24
"""Spans from this size on are mapped, not filled: only the pages around elements exist (strides past 2^31)."""

BYTES = npt.NDArray[np.uint8]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def poison(dtype: torch.dtype, sentinel: int) -> BYTES:
    """The bytes of one poisoned element. Floats are NaN; bool has no illegal value, so it alternates."""
    size = dtype.itemsize
    if dtype == torch.bool:
        return np.array([1 - sentinel], np.uint8)
    if size == 1 and dtype.is_floating_point:
        # e4m3fnuz has one NaN only; the other byte is 240, its largest value.
        nan = (0x80, 0x7F) if dtype == torch.float8_e4m3fnuz else (0x7F, 0xFF)
        return np.array([nan[sentinel]], np.uint8)
    if dtype.is_floating_point:
        high = {2: [0x7F], 4: [0xC0, 0x7F], 8: [0xF8, 0x7F]}[size]
        return np.array([NAN_BYTES[sentinel]] * (size - len(high)) + high, np.uint8)
    return np.full(size, POISON_BYTES[sentinel], np.uint8)


@dataclass(eq=False)
class Region:
    """One buffer: what may be touched in it, and what it looked like before the call.

    ``address`` is that of the first element; ``shape`` and ``strides`` (elements) say which bytes are elements, all
    other bytes of ``raw`` are guard. ``pristine`` is a copy of ``raw`` from before the call.
    """

    name: str
    raw: BYTES
    first: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: bool
    writable: bool
    tensor: torch.Tensor
    pristine: BYTES | None = None
    windows: list[slice] = field(default_factory=list)

    @cached_property
    def base(self) -> int:
        """Address of ``raw``."""
        return int(self.raw.ctypes.data)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return self.base + self.first

    @property
    def allocated(self) -> bool:
        """Whether the implementation made this buffer, as opposed to the harness."""
        return " #" in self.name

    @property
    def public_name(self) -> str:
        """The stable part of the name: ``torch.empty #2 [4, 2]`` and ``tables[3]`` are each one of many."""
        return place_of(self.name.split(" #")[0])

    @property
    def extent(self) -> tuple[int, int]:
        """First byte address and the one after the last, guards excluded."""
        return self.address, self.address + self.span

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        return (sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1) * self.itemsize

    def element_bytes(self) -> BYTES:
        """The element bytes of ``raw`` as an array ``[*shape, itemsize]`` that shares memory with it."""
        strides = (*(stride * self.itemsize for stride in self.strides), 1)
        return np.lib.stride_tricks.as_strided(self.raw[self.first :], (*self.shape, self.itemsize), strides)

    def owns(self, addresses: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.bool_]:
        """Which of these accesses of ``size`` bytes lie wholly on elements."""
        low, high = self.extent
        start = addresses.astype(np.int64) - low
        inside = (addresses >= low) & (start + size <= high - low)
        if not inside.any() or self.strides == contiguous_strides(self.shape):
            return inside
        relative = np.where(inside, start, 0)
        remainder, valid = relative // self.itemsize, inside & (relative % self.itemsize + size <= self.itemsize)
        for count, stride in sorted(zip(self.shape, self.strides, strict=True), key=lambda item: -item[1]):
            if stride and count > 1:
                valid &= remainder // stride < count
                remainder = remainder % stride
        owned: npt.NDArray[np.bool_] = valid & (remainder == 0)
        return owned

    def locate(self, address: int) -> str:
        """``name[index]`` for an address in or near this buffer, in words that say how far outside it is."""
        low, high = self.extent
        offset = address - low
        if 0 <= offset < high - low:
            rest, index = offset // self.itemsize, [0] * len(self.shape)
            for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
                if self.strides[axis] and self.shape[axis] > 1:
                    index[axis] = min(rest // self.strides[axis], self.shape[axis] - 1)
                    rest -= index[axis] * self.strides[axis]
            place = f"{self.name}{index}"
            return f"{place} + {rest} elements (between the elements of a strided view)" if rest else place
        if offset < 0:
            return f"{self.name}, {-(offset // self.itemsize)} elements before its first"
        return f"{self.name}, {(address - high) // self.itemsize + 1} elements past its last"

    def intact(self) -> bool:
        """Whether nothing was changed that may not be: the quick answer for the usual case."""
        if not self.writable or self.strides != contiguous_strides(self.shape) or len(self.windows) != 1:
            return self.changed().size == 0
        assert self.pristine is not None
        end = self.first + self.span
        before, after = slice(0, self.first), slice(end, self.raw.size)
        return all(self.raw[part].tobytes() == self.pristine[part].tobytes() for part in (before, after))

    def changed(self) -> npt.NDArray[np.int64]:
        """Offsets in ``raw`` of all bytes that differ from ``pristine``."""
        assert self.pristine is not None
        found = []
        at = 0
        for window in self.windows:
            now, before = self.raw[window], self.pristine[at : at + window.stop - window.start]
            at += window.stop - window.start
            if now.tobytes() != before.tobytes():
                found.append(np.flatnonzero(now != before) + window.start)
        return np.concatenate(found) if found else np.empty(0, np.int64)


def bits(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A NumPy copy of a tensor's values; types that NumPy lacks come as unsigned integers of the same width."""
    plain = tensor.detach()
    if plain.dtype.is_floating_point and str(plain.dtype) not in ("torch.float16", "torch.float32", "torch.float64"):
        plain = plain.contiguous().view({1: torch.uint8, 2: torch.uint16}[plain.dtype.itemsize])
    return np.array(plain.cpu().contiguous().numpy())


class Memory:
    """All guarded buffers of one call. ``sentinel`` (0 or 1) picks the poison pattern.

    ``device_type`` is where tensors of the role ``device`` lie. Where that is the CPU, the device is imagined; a
    subclass that puts them on a real one replaces :meth:`_buffer` and :meth:`_tensor`.
    """

    device_type = "cpu"

    def __init__(self, sentinel: int = 0) -> None:
        self.sentinel = sentinel
        self.regions: list[Region] = []

    def place(self, value: Array, name: str, *, device: bool, writable: bool = False) -> torch.Tensor:
        """A tensor with the values and the layout of ``value``; everything around and between is poison."""
        dtype = torch_dtype(value.dtype)
        strides = value.layout
        region = self._reserve(name, dtype, value.shape, strides, value.offset, device=device, writable=writable)
        _fill(region, value)
        return self.seal(region)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, name: str, *, device: bool = True) -> torch.Tensor:
        """A poisoned contiguous tensor, as ``torch.empty`` would give it."""
        region = self._reserve(name, dtype, shape, contiguous_strides(shape), 0, device=device, writable=True)
        return self.seal(region)

    def seal(self, region: Region) -> torch.Tensor:
        """Remember what the buffer looks like now: everything that differs later was changed by the call."""
        region.pristine = np.concatenate([region.raw[window] for window in region.windows])
        return region.tensor

    def overwrite(self, name: str, value: Array) -> None:
        """Put other values into the buffer of that name: same tensor, same address."""
        region = next(region for region in self.regions if region.name == name)
        _fill(region, value)
        self.seal(region)

    def read(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """A copy of an output's values, as :func:`bits` gives it."""
        return bits(tensor)

    def region_of(self, tensor: torch.Tensor) -> Region | None:
        """The buffer that a tensor's storage belongs to."""
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return None
        address = tensor.untyped_storage().data_ptr()
        return next((region for region in self.regions if region.base == address), None)

    def faults(self) -> Iterator[Failure]:
        """What the call did outside its outputs: writes to guards and gaps, changed inputs."""
        for region in self.regions:
            if region.intact():
                continue
            changed = region.changed()
            addresses = (changed + region.base).astype(np.uint64)
            inside = region.owns(addresses, 1)
            if not inside.all():
                first = int(addresses[~inside][0])
                yield OutOfBoundsWrite(region.public_name, f"wrote {region.locate(first)}")
            if inside.any() and not region.writable:
                first = int(addresses[inside][0])
                yield InputMutated(region.public_name, f"changed {region.locate(first)}")

    def _reserve(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        *,
        device: bool,
        writable: bool,
    ) -> Region:
        size = dtype.itemsize
        spread = 0 if 0 in shape else sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        total = GUARD + (offset + spread) * size + GUARD
        raw = self._buffer(name, total, device=device)
        first = GUARD + offset * size
        whole = self._tensor(raw)[: total // size * size].view(dtype)
        tensor = whole.as_strided(shape, strides, whole.storage_offset() + GUARD // size + offset)
        region = Region(name, raw, first, size, shape, strides, device, writable, tensor)
        region.windows = _windows(region, total)
        pattern = poison(dtype, self.sentinel)
        for window in region.windows:
            _paint(raw[window], pattern, (window.start - first) % size)
        self.regions.append(region)
        return region

    def _buffer(self, name: str, total: int, *, device: bool) -> BYTES:
        """Host memory for a buffer with its guards. On a real device it mirrors the buffer."""
        return _bytes(total)

    def _tensor(self, raw: BYTES) -> torch.Tensor:
        """The bytes that implementations see where the harness sees ``raw``."""
        return torch.from_numpy(raw)


def _fill(region: Region, value: Array) -> None:
    data = value.data[..., None].view(np.uint8)
    region.element_bytes()[...] = data.reshape(*value.shape, region.itemsize)


def _paint(stretch: BYTES, pattern: BYTES, phase: int) -> None:
    """Fill a stretch that starts ``phase`` bytes into an element."""
    if (pattern == pattern[0]).all():
        stretch.fill(pattern[0])
        return
    whole = np.tile(np.roll(pattern, -phase), stretch.size // pattern.size + 1)
    stretch[:] = whole[: stretch.size]


def _bytes(total: int) -> BYTES:
    if total >= SPARSE_FROM:
        # Shared, so that the address space is not counted against the worker's limit on private memory.
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        return np.frombuffer(mmap.mmap(-1, total, flags=flags), np.uint8)
    block = np.empty(total + ALIGNMENT, np.uint8)
    skip = -int(block.ctypes.data) % ALIGNMENT
    return block[skip : skip + total]


def _windows(region: Region, total: int) -> list[slice]:
    """The stretches of a buffer that are filled and checked: all of it, or the surroundings of each element."""
    if total < SPARSE_FROM or region.strides == contiguous_strides(region.shape):
        return [slice(0, total)]
    starts = np.zeros(1, np.int64)
    for count, stride in zip(region.shape, region.strides, strict=True):
        starts = (starts[:, None] + np.arange(count, dtype=np.int64) * (stride * region.itemsize)).ravel()
    windows: list[slice] = []
    for start in sorted({0, *(region.first + starts).tolist()}):
        low, high = max(start - GUARD, 0), min(start + region.itemsize + GUARD, total)
        if windows and low <= windows[-1].stop:
            windows[-1] = slice(windows[-1].start, max(high, windows[-1].stop))
        else:
            windows.append(slice(low, high))
    return windows


def values_of(value: Value, memory: Memory, name: str, *, device: bool, writable: bool) -> object:
    """A case's value as an implementation gets it: tensors for arrays, lists of tensors for tuples of arrays."""
    if isinstance(value, Array):
        return memory.place(value, name, device=device, writable=writable)
    if isinstance(value, tuple):
        return [
            values_of(item, memory, f"{name}[{index}]", device=device, writable=writable)
            for index, item in enumerate(value)
        ]
    return value
