"""The checks that take the place of the interpreter's own loads, stores and atomics during a launch.

The interpreter reads and writes raw host addresses. Here each lane's address must belong to a buffer first: a lane
that does not reads 0 or is dropped, and is noted. Lanes that are masked off, where the program gave no value for them,
get a poison value, since a GPU gives them none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from oracles.backends.interpreter.arguments import HINT
from oracles.backends.interpreter.journal import Journal
from oracles.backends.interpreter.observation import InterpreterObservation
from oracles.backends.interpreter.sites import current_site
from oracles.backends.interpreter.space import Addresses, Flags, Part
from oracles.memory import poison as memory_poison
from oracles.verdict import Failure, OutOfBoundsRead, OutOfBoundsWrite, Unsupported

Handle = Any
POINTERS = {
    **dict.fromkeys(("addptr", "broadcast", "expand_dims", "reshape", "trans", "bitcast", "unsplat"), 0),
    "splat": 1,
}
"""Operations that make pointers from pointers, and which argument is the pointer."""

_SMALL_FLOATS = ("bf16", "fp8")


class Lanes(NamedTuple):
    """One access: its mask, the flat addresses of the lanes that are on, their owners, and the mask of legal lanes."""

    on: Flags
    addresses: Addresses
    parts: list[Part]
    legal: Flags

    @property
    def plain(self) -> bool:
        """Whether every lane is on and legal, as in most accesses."""
        return self.legal is self.on and self.addresses.size == self.on.size


@lru_cache(maxsize=256)
def poison_lanes(dtype: np.dtype[Any], shape: tuple[int, ...], sentinel: int) -> npt.NDArray[Any]:
    """What lanes hold that a load without ``other`` left out.

    Floats are infinite, positive (sentinel 0) or negative (sentinel 1): a minimum or maximum, which in the interpreter
    would ignore a NaN, shows one of the two, and a product with 0 is NaN. Integers are far below zero or far above
    every length; bool has no illegal value and alternates by lane, the other way round each time.
    """
    if dtype.kind == "f":
        return np.full(shape, (np.inf, -np.inf)[sentinel], dtype)
    if dtype.kind == "b":
        odd: npt.NDArray[np.bool_] = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(bool)
        return ~odd if sentinel else odd
    pattern = np.full(dtype.itemsize, (0xA7, 0x5B)[sentinel], np.uint8).view(dtype)[0]
    return np.full(shape, pattern, dtype)


class Checks:
    """Checked memory operations on one interpreter builder. ``journal`` is that of the running launch.

    Loads on the line ``other_poison`` get the other one of the two poisons where they are masked off.
    """

    def __init__(self, builder: Any, sentinel: int, seen: InterpreterObservation, other_poison: str | None) -> None:
        self.sentinel = sentinel
        self.journal: Journal | None = None
        self._seen = seen
        self._other_poison = other_poison
        self._atomic = False
        self._other_given = False
        self._load: Callable[..., Handle] = builder.create_masked_load
        self._store: Callable[..., None] = builder.create_masked_store
        self._rmw: Callable[..., Handle] = builder.create_atomic_rmw
        self._cas: Callable[..., Handle] = builder.create_atomic_cas

    def load(self, pointers: Handle, mask: Handle, other: Handle | None, *policy: Any, **options: Any) -> Handle:
        """A masked load; lanes that are off get ``other`` or poison, lanes out of bounds get 0."""
        dtype, element = _element(pointers)
        lanes = self._lanes(pointers, mask, dtype.itemsize, OutOfBoundsRead)
        journal = self.journal
        if journal is not None and journal.recording and not self._atomic:
            journal.touch(lanes.parts, lanes.addresses, dtype.itemsize)
        if lanes.plain:
            loaded = self._load(pointers, mask, other, *policy, **options)
            self._note_unwritten(lanes, loaded.data)
            return loaded
        fill = self._fill(pointers, dtype, lanes.on, other)
        if lanes.legal is not lanes.on:
            fill = np.where(lanes.on & ~lanes.legal, np.zeros((), dtype), fill)
        handle = triton_interpreter.TensorHandle
        loaded = self._load(pointers, handle(lanes.legal, tl.int1), handle(fill, element), *policy, **options)
        self._note_unwritten(lanes, loaded.data)
        return loaded

    def noting_other(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The language's load, which remembers that ``other`` was given.

        The interpreter passes a single ``other`` on only if it is true, and so drops a single zero.
        """

        def load(language: Any, pointers: Any, mask: Any, other: Any, *policy: Any, **options: Any) -> Any:
            self._other_given = other is not None
            try:
                return original(language, pointers, mask, other, *policy, **options)
            finally:
                self._other_given = False

        return load

    def _fill(self, pointers: Handle, dtype: np.dtype[Any], on: Flags, other: Handle | None) -> npt.NDArray[Any]:
        if other is not None:
            return np.broadcast_to(other.data, on.shape)
        return np.zeros(on.shape, dtype) if self._other_given else self._poison(pointers, dtype, on)

    def store(self, pointers: Handle, value: Handle, mask: Handle, *policy: Any, **options: Any) -> None:
        """A masked store; lanes out of bounds are dropped."""
        dtype, element = _element(pointers)
        data = np.broadcast_to(value.data, pointers.data.shape)
        if data.dtype.itemsize != dtype.itemsize:
            # Some operations of the interpreter return wider integers than their Triton type says.
            data = data.astype(dtype)
        lanes = self._lanes(pointers, mask, dtype.itemsize, OutOfBoundsWrite)
        self._record_store(pointers, data, lanes, dtype)
        handle = triton_interpreter.TensorHandle
        self._store(pointers, handle(data, element), handle(lanes.legal, tl.int1), *policy, **options)

    def rmw(self, operation: Any, pointers: Handle, value: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        """An atomic read-modify-write; lanes out of bounds are dropped and give 0, lanes that are off give poison."""
        dtype, _ = _element(pointers)
        lanes = self._lanes(pointers, mask, dtype.itemsize, OutOfBoundsWrite)
        legal = triton_interpreter.TensorHandle(lanes.legal, tl.int1)
        before = self._rmw(operation, pointers, value, legal, sem, scope)
        self._note_unwritten(lanes, before.data)
        self._record_atomic(pointers, before, lanes, dtype, sem)
        if not lanes.plain:
            fill = np.where(lanes.on, np.zeros((), dtype), poison_lanes(dtype, lanes.on.shape, self.sentinel))
            before.data = np.where(lanes.legal, before.data, fill)
        return before

    def cas(self, pointers: Handle, compare: Handle, value: Handle, sem: Any, scope: Any) -> Handle:
        """An atomic compare-and-swap; lanes out of bounds are dropped and give 0."""
        dtype, element = _element(pointers)
        shape = pointers.data.shape
        every = triton_interpreter.TensorHandle(np.ones(shape, bool), tl.int1)
        lanes = self._lanes(pointers, every, dtype.itemsize, OutOfBoundsWrite)
        handle, legal = triton_interpreter.TensorHandle, lanes.legal
        chosen = [np.broadcast_to(item.data, shape)[legal] for item in (pointers, compare, value)]
        types = (pointers.dtype, element, element)
        result = np.zeros(shape, dtype)
        if legal.any():
            operands = [handle(data, kind) for data, kind in zip(chosen, types, strict=True)]
            result[legal] = self._cas(*operands, sem, scope).data
        before = handle(result, compare.dtype.scalar)
        self._note_unwritten(lanes, result)
        self._record_atomic(pointers, before, lanes, dtype, sem)
        return before

    def as_atomic(self, original: Callable[..., Handle]) -> Callable[..., Handle]:
        """Atomic loads, stores and polls, which the interpreter makes from plain ones."""

        def operation(*args: Any, **options: Any) -> Handle:
            self._atomic = True
            try:
                return original(*args, **options)
            finally:
                self._atomic = False
                self._order(options["sem"] if "sem" in options else args[-2])

        return operation

    def _lanes(self, pointers: Handle, mask: Handle, size: int, what: type[Failure]) -> Lanes:
        assert self.journal is not None, "memory is accessed outside a launch"
        flags = np.asarray(mask.data)
        if flags.dtype != np.bool_:
            raise Unsupported(f"the Triton interpreter computed a mask of dtype {flags.dtype}")
        data = pointers.data
        on = flags if flags.shape == data.shape else np.broadcast_to(flags, data.shape)
        addresses = data.ravel() if on.all() else data[on]
        hint = pointers.attr.get(HINT)
        parts = self.journal.space.split(addresses, size, hint)
        if addresses.size == 0 or (len(parts) == 1 and parts[0][1] is None):
            return Lanes(on, addresses, parts, on)
        owned = np.zeros(addresses.size, bool)
        for _, part in parts:
            owned |= True if part is None else part
        if owned.all():
            return Lanes(on, addresses, parts, on)
        self.journal.stray(what, addresses, owned, on, size, hint)
        legal = on.copy()
        legal[on] = owned
        return Lanes(on, addresses, parts, legal)

    def _poison(self, pointers: Handle, dtype: np.dtype[Any], on: Flags) -> npt.NDArray[Any]:
        sentinel = self.sentinel
        if not on.all():
            assert self.journal is not None
            line = f"{self.journal.kernel}: {current_site() or 'an unknown line'}"
            poisoned = self._seen.poisoned
            poisoned[line] = poisoned.get(line, 0) + int(on.size - np.count_nonzero(on))
            if line not in self._seen.reads:
                what = self.journal.describe(pointers.data, ~on, dtype.itemsize, pointers.attr.get(HINT))
                self._seen.reads[line] = f"{what}, masked off in a load without other"
            sentinel = 1 - sentinel if line == self._other_poison else sentinel
        return poison_lanes(dtype, on.shape, sentinel)

    def _note_unwritten(self, lanes: Lanes, loaded: npt.NDArray[Any]) -> None:
        """Remember the first load of an element that still holds the poison of its buffer."""
        if self._seen.unwritten or self.journal is None:
            return
        for extent, owned in lanes.parts:
            region = extent.region
            if region is None or not region.writable or region.itemsize != loaded.itemsize:
                continue
            poison = memory_poison(region.tensor.dtype, self.journal.space.memory.sentinel)
            held = np.broadcast_to(loaded, lanes.on.shape)[lanes.on]
            untouched = (_as_bits(held) == poison.view(f"u{loaded.itemsize}")[0]) & (True if owned is None else owned)
            if untouched.any():
                chosen = lanes.on.copy()
                chosen[lanes.on] = untouched
                addresses = np.zeros(lanes.on.shape, np.uint64)
                addresses[lanes.on] = lanes.addresses
                what = self.journal.describe(addresses, chosen, loaded.itemsize, extent)
                self._seen.unwritten.append(f"{what}, which nobody had written")
                return

    def _record_store(self, pointers: Handle, data: npt.NDArray[Any], lanes: Lanes, dtype: np.dtype[Any]) -> None:
        if self.journal is None or not self.journal.recording or not lanes.parts:
            return
        before = self._bits(pointers, lanes, dtype)
        values = _as_bits(data[lanes.on])
        self.journal.touch(lanes.parts, lanes.addresses, dtype.itemsize, values, values != before, atomic=self._atomic)

    def _record_atomic(self, pointers: Handle, before: Handle, lanes: Lanes, dtype: np.dtype[Any], sem: Any) -> None:
        if self.journal is not None and self.journal.recording and lanes.parts:
            values = self._bits(pointers, lanes, dtype)
            changed = values != _as_bits(np.broadcast_to(before.data, lanes.on.shape)[lanes.on])
            self.journal.touch(lanes.parts, lanes.addresses, dtype.itemsize, values, changed, atomic=True)
        self._order(sem)

    def _bits(self, pointers: Handle, lanes: Lanes, dtype: np.dtype[Any]) -> npt.NDArray[np.uint64]:
        """What memory holds at the lanes that are on, as unsigned integers; 0 where it may not be read."""
        unsigned = np.dtype(f"u{dtype.itemsize}")
        nothing = np.zeros(lanes.on.shape, unsigned)
        now = triton_interpreter._interpreter.load(pointers.data, lanes.legal, nothing, unsigned)
        return np.asarray(now)[lanes.on].astype(np.uint64)

    def _order(self, sem: Any) -> None:
        if self.journal is not None and "ACQUIRE" in str(getattr(sem, "name", sem)).upper():
            self.journal.ordered = True


def keep_hint(original: Callable[..., Handle], position: int) -> Callable[..., Handle]:
    """The operation, with its result remembering which argument of the kernel its pointers were made from."""

    def operation(*args: Any, **options: Any) -> Handle:
        result = original(*args, **options)
        if len(args) > position:
            hint = args[position].attr.get(HINT)
            if hint is not None:
                result.attr[HINT] = hint
        return result

    return operation


def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """How a reduction makes its result, with integers that wrap around as on a GPU.

    Triton before 3.9 refuses a scalar sum that leaves its type's range, be it the kernel's own or one of poison.
    """

    def to_tensor(reduction: Any, result: Any, dtype: Any) -> Any:
        if isinstance(result, int | np.integer):
            result = np.array([result]).astype(triton_interpreter._get_np_dtype(dtype))[0]
        return original(reduction, result, dtype)

    return to_tensor


def spreading(original: Callable[..., Handle]) -> Callable[..., Handle]:
    """How a scalar becomes a block: the interpreter makes numbers of truth values, which are no masks."""

    def splat(shape: Any, scalar: Handle) -> Handle:
        block = original(shape, scalar)
        if np.asarray(scalar.data).dtype == np.bool_:
            block.data = block.data.astype(np.bool_)
        return block

    return splat


def refuse(name: str) -> Callable[..., Any]:
    """A stand-in for a type that the interpreter computes wrongly."""

    def refused(*args: Any) -> Any:
        raise Unsupported(f"the Triton interpreter computes bfloat16 and float8 wrongly ({name})")

    return refused


def _element(pointers: Handle) -> tuple[np.dtype[Any], Any]:
    """NumPy and Triton type of what the pointers point to."""
    element = pointers.get_element_ty()
    if element.name.startswith(_SMALL_FLOATS):
        raise Unsupported(f"the Triton interpreter computes {element.name} wrongly")
    return np.dtype(triton_interpreter._get_np_dtype(element)), element


def _as_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
