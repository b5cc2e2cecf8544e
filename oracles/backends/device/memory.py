"""Guarded memory on a device.

All buffers of a call lie in one arena, each between guard zones; the arena is filled with poison in one operation. A
mirror of the arena in page-locked host memory is where inputs are laid out, so that they reach the device in one copy
before the call, and where everything that was used comes back in one copy after it: outputs, inputs and guard zones.
What was changed is then found by the code that watches memory on the CPU. The part of the arena that no buffer uses is
compared with the poison on the device, and its answer travels in the arena's first byte.

A buffer of 16 MiB or more has memory of its own. As on the CPU, only the surroundings of its elements are filled with
values, copied and compared; a stride past 2^31 elements needs a device that holds the whole span.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from oracles.arrays import Array
from oracles.backends.device.runtime import Runtime
from oracles.memory import ALIGNMENT, BYTES, POISON_BYTES, SPARSE_FROM, Memory, Region, _bytes, poison
from oracles.verdict import Failure, OutOfBoundsWrite, Unsupported

ARENA = 1 << 22
"""Bytes of an arena: what usual cases need, and space behind it in which stray writes show."""


@dataclass(eq=False)
class Chunk:
    """A stretch of device memory and its mirror. ``own`` chunks hold one large buffer, the others are arenas."""

    mirror: BYTES
    pages: torch.Tensor
    device: torch.Tensor
    own: bool
    used: int = 0
    stretches: list[slice] = field(default_factory=list)

    def to_device(self) -> None:
        """Copy the mirror to the device."""
        for part in self._parts():
            self.device[part].copy_(self.pages[part], non_blocking=True)

    def to_host(self) -> None:
        """Copy the device's bytes into the mirror."""
        for part in self._parts():
            self.pages[part].copy_(self.device[part])

    def _parts(self) -> list[slice]:
        return self.stretches if self.own else [slice(0, self.used)]


class DeviceMemory(Memory):
    """All guarded buffers of one call. Tensors of the role ``host`` are on the CPU as everywhere.

    :meth:`commit` comes before the call and :meth:`read_back` after it, when the device is idle.
    """

    def __init__(self, runtime: Runtime, sentinel: int = 0, *, arena: int = ARENA) -> None:
        super().__init__(sentinel)
        self.device_type = runtime.device.type
        self._runtime = runtime
        self._arena = arena
        self._chunks: list[Chunk] = []
        self._homes: dict[Region, tuple[Chunk, int]] = {}
        self._reserved: tuple[Chunk, int] | None = None
        self._strays: list[Failure] = []
        self._current = False

    def commit(self) -> None:
        """Bring what the host laid out to the device."""
        self._current = False
        for chunk in self._chunks:
            chunk.to_device()

    def read_back(self) -> None:
        """Bring everything back that a call may have changed."""
        for chunk in self._chunks:
            if not chunk.own:
                self._compare_unused(chunk)
            chunk.to_host()
        self._current = True
        self._strays = [failure for chunk in self._chunks if not chunk.own for failure in self._strays_in(chunk)]

    def faults(self) -> Iterator[Failure]:
        """What the call did outside its outputs, far from any buffer too."""
        yield from super().faults()
        yield from self._strays

    def read(self, tensor: torch.Tensor) -> npt.NDArray[np.generic]:
        """A copy of an output's values: from the mirror if it lies in an arena, else from the device."""
        found = self._chunk_of(tensor)
        size = tensor.dtype.itemsize
        if found is None or not self._current or found[0].own or found[1] % size:
            return super().read(tensor)
        chunk, start = found
        whole = chunk.pages[: chunk.mirror.size // size * size].view(tensor.dtype)
        return super().read(whole.as_strided(tensor.shape, tensor.stride(), start // size))

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, name: str, *, device: bool = True) -> torch.Tensor:
        """A poisoned contiguous tensor. Its guard zones are already on the device unless its poison is another."""
        tensor = super().allocate(shape, dtype, name, device=device)
        region = self.regions[-1]
        pattern = poison(dtype, self.sentinel)
        if region.device and not (pattern == POISON_BYTES[self.sentinel]).all():
            chunk, at = self._homes[region]
            for window in region.windows:
                part = slice(at + window.start, at + window.stop)
                chunk.device[part].copy_(chunk.pages[part], non_blocking=True)
        return tensor

    def overwrite(self, name: str, value: Array) -> None:
        """Put other values into the buffer of that name; they reach the device with the next commit."""
        self._current = False
        super().overwrite(name, value)

    def region_of(self, tensor: torch.Tensor) -> Region | None:
        """The buffer that a tensor begins in: on the device all buffers share a storage."""
        found = self._chunk_of(tensor)
        if found is None:
            return super().region_of(tensor)
        chunk, start = found
        for region, (home, at) in self._homes.items():
            if home is chunk and at <= start < at + region.raw.size:
                return region
        return None

    def _chunk_of(self, tensor: torch.Tensor) -> tuple[Chunk, int] | None:
        """The chunk that a tensor begins in, and the offset of its first byte."""
        if tensor.layout != torch.strided or tensor.device.type != self.device_type:
            return None
        address = tensor.data_ptr()
        for chunk in self._chunks:
            start = address - chunk.device.data_ptr()
            if 0 <= start < chunk.mirror.size:
                return chunk, start
        return None

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
        region = super()._reserve(name, dtype, shape, strides, offset, device=device, writable=writable)
        if self._reserved is not None:
            self._homes[region] = self._reserved
            if self._reserved[0].own:
                self._reserved[0].stretches = region.windows
        return region

    def _buffer(self, name: str, total: int, *, device: bool) -> BYTES:
        self._reserved = None
        if not device:
            return super()._buffer(name, total, device=device)
        aligned = -(-total // ALIGNMENT) * ALIGNMENT
        if total >= SPARSE_FROM:
            chunk = self._own_chunk(name, total)
        else:
            fits = [chunk for chunk in self._chunks if not chunk.own and chunk.used + aligned <= chunk.mirror.size]
            chunk = fits[-1] if fits else self._new_arena(name, aligned)
        start = chunk.used
        chunk.used += aligned
        chunk.mirror[start + total : min(start + aligned, chunk.mirror.size)] = POISON_BYTES[self.sentinel]
        self._reserved = chunk, start
        return chunk.mirror[start : start + total]

    def _tensor(self, raw: BYTES) -> torch.Tensor:
        if self._reserved is None:
            return super()._tensor(raw)
        chunk, start = self._reserved
        return chunk.device[start : start + raw.size]

    def _new_arena(self, name: str, least: int) -> Chunk:
        size = max(self._arena, ALIGNMENT + least)
        pages = torch.empty(size, dtype=torch.uint8, pin_memory=self._runtime.pinned)
        chunk = Chunk(pages.numpy(), pages, self._filled(name, size), own=False, used=ALIGNMENT)
        chunk.mirror[:ALIGNMENT] = POISON_BYTES[self.sentinel]
        self._chunks.append(chunk)
        return chunk

    def _own_chunk(self, name: str, total: int) -> Chunk:
        mirror = _bytes(total)
        chunk = Chunk(mirror, torch.from_numpy(mirror), self._filled(name, total), own=True)
        self._chunks.append(chunk)
        return chunk

    def _filled(self, name: str, size: int) -> torch.Tensor:
        value = POISON_BYTES[self.sentinel]
        try:
            return torch.full((size,), value, dtype=torch.uint8, device=self._runtime.device)
        except torch.OutOfMemoryError as error:
            free = self._runtime.free_bytes()
            raise Unsupported(f"{name} spans {size:,} bytes, and the device has {free:,} free") from error

    def _compare_unused(self, chunk: Chunk) -> None:
        """Set the arena's first byte to whether anything behind the last buffer is no poison any more."""
        behind = chunk.device[chunk.used :].view(torch.int64)
        word = int(np.full(8, POISON_BYTES[self.sentinel], np.uint8).view(np.int64)[0])
        torch.any(behind.ne(word), dim=0, keepdim=True, out=chunk.device[:1].view(torch.bool))

    def _strays_in(self, chunk: Chunk) -> Iterator[Failure]:
        filling = POISON_BYTES[self.sentinel]
        changed = np.flatnonzero(chunk.mirror[1:ALIGNMENT] != filling) + 1
        stray = bool(chunk.mirror[0])
        chunk.mirror[0] = filling
        if stray:
            behind = chunk.device[chunk.used :].cpu().numpy()
            changed = np.concatenate([changed, np.flatnonzero(behind != filling) + chunk.used])
        regions = [region for region, (home, _) in self._homes.items() if home is chunk]
        if changed.size and regions:
            near = regions[0] if changed[0] < ALIGNMENT else regions[-1]
            place = near.locate(int(chunk.mirror.ctypes.data) + int(changed[0]))
            yield OutOfBoundsWrite(near.public_name, f"wrote {place}")
