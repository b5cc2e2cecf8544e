"""What an implementation does to tensors on the host side of a call: which memory it allocates, what it reads back.

Two torch modes surround every call on the CPU. One puts each tensor that a factory makes into guarded, poisoned memory
and follows which tensors live on the (imagined) device. The other answers ``tensor.device`` with a device that a
factory can be recognised by, and reports every read by which the host would have waited for the device (G6).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from oracles.lines import current_line, with_line
from oracles.memory import Memory
from oracles.verdict import Failure, HostSync

DEVICE = torch.device("cpu", 0)
"""What ``.device`` says of a device tensor: the CPU as torch takes it, and yet distinguishable from the host's."""

EMPTY = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")
FILLED = (
    "zeros",
    "ones",
    "full",
    "arange",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
)

READS = {
    "tolist", "item", "cpu", "numpy", "nonzero", "argwhere", "masked_select", "equal", "allclose", "is_nonzero",
    "unique", "unique_consecutive", "bincount", "__int__", "__bool__", "__float__", "__index__", "__complex__",
    "__array__", "__dlpack__", "__contains__", "__format__", "__repr__", "__iter__", "histc", "_unique2", "unique_dim",
    "_local_scalar_dense",
}  # fmt: skip
"""Functions, methods and operators that bring a tensor's values, or a shape that depends on them, to the host."""

CONVERSIONS = ("tensor", "as_tensor", "new_tensor", "asarray")
"""Functions that make tensors from host values."""

HARMLESS = {"__iter__"}  # iterating only takes views; what is then read is reported by itself


def plain(tensor: torch.Tensor, device_type: str = "cpu") -> bool:
    """Whether a tensor is a strided view of CPU memory or the device's: not sparse, not quantized, not without data."""
    return tensor.layout == torch.strided and tensor.device.type in ("cpu", device_type) and not tensor.is_quantized


_WORKSPACES: dict[int, StorageWeakRef] = {}
"""Device memory of earlier calls, by storage. An implementation may keep it, whatever tensor objects come and go."""


def _is_workspace(storage: int) -> bool:
    kept = _WORKSPACES.get(storage)
    return kept is not None and not kept.expired()


def _forget_freed() -> None:
    for storage in [storage for storage, kept in _WORKSPACES.items() if kept.expired()]:
        del _WORKSPACES[storage]


_own: list[None] = []


@contextmanager
def own_waits() -> Iterator[None]:
    """Inside, it is the harness that waits for the device, as a capture does: nobody is blamed for it."""
    _own.append(None)
    try:
        yield
    finally:
        _own.pop()


def waits_are_own() -> bool:
    """Whether the harness is waiting."""
    return bool(_own)


class Interception:
    """The tensors on the device, and the reads that were seen."""

    def __init__(self, memory: Memory, device_tensors: Sequence[torch.Tensor]) -> None:
        self.memory = memory
        self.failures: list[Failure] = []
        self.real = memory.device_type != "cpu"
        self._device = {tensor.untyped_storage()._cdata: tensor for tensor in device_tensors}
        self._made: dict[int, torch.Tensor] = {}
        self._count = 0
        _forget_freed()

    def on_device(self, value: object) -> bool:
        """Whether a tensor (or one inside a list or dict) lives on the device."""
        if isinstance(value, torch.Tensor):
            if self.real:
                return value.device.type == self.memory.device_type
            if not plain(value):
                return False
            storage = value.untyped_storage()._cdata
            return storage in self._device or _is_workspace(storage)
        if isinstance(value, list | tuple):
            return any(self.on_device(item) for item in value)
        return False

    def names_device(self, value: object) -> bool:
        """Whether a ``device`` argument stands for the device."""
        if self.real:
            return value is not None and torch.device(value).type == self.memory.device_type  # type: ignore[call-overload]
        return value == DEVICE

    def names_host(self, values: Sequence[Any]) -> bool:
        """Whether one of these arguments names the host."""
        devices = [value for value in values if isinstance(value, str | torch.device)]
        return any(
            torch.device(value).type == "cpu" and not self.names_device(torch.device(value)) for value in devices
        )

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to be the host's: an argument, or made in this call without the device.

        What is left is a workspace of an earlier call, of which nobody can say where it would live.
        """
        if self.on_device(tensor) or not plain(tensor):
            return False
        return self.memory.region_of(tensor) is not None or tensor.untyped_storage()._cdata in self._made

    def note_made(self, value: object) -> None:
        """Remember what this call made on the host."""
        if isinstance(value, torch.Tensor) and plain(value):
            self._made[value.untyped_storage()._cdata] = value

    def mark(self, value: object) -> None:
        """Results of operations on device tensors are device tensors."""
        if isinstance(value, torch.Tensor):
            if not plain(value):
                return
            # The tensor is kept alive with its mark, so that a recycled storage is never taken for it; afterwards an
            # implementation may keep it as a workspace, and it stays a device tensor for as long as it lives.
            storage = value.untyped_storage()
            if not _is_workspace(storage._cdata):
                _WORKSPACES[storage._cdata] = StorageWeakRef(storage)
            self._device.setdefault(value.untyped_storage()._cdata, value)
        elif isinstance(value, list | tuple):
            for item in value:
                self.mark(item)

    def unmark(self, tensor: torch.Tensor) -> None:
        """A copy that the host owns."""
        self._device.pop(tensor.untyped_storage()._cdata, None)
        _WORKSPACES.pop(tensor.untyped_storage()._cdata, None)

    def report(self, operation: str, detail: str) -> None:
        """One failure for each kind of read, with the line that reads first."""
        if all(failure.where != operation for failure in self.failures):
            self.failures.append(HostSync(operation, with_line(detail, current_line())))

    def regrown(self, tensor: torch.Tensor, shape: Sequence[int]) -> bool:
        """Give a tensor of guarded memory that outgrows its buffer a new one, as the allocator would."""
        region = self.memory.region_of(tensor)
        if region is None or not region.allocated or math.prod(shape) <= math.prod(region.shape):
            return False
        grown = self.memory.allocate(tuple(shape), tensor.dtype, f"{region.name} resized", device=region.device)
        grown.view(-1)[: tensor.numel()].copy_(tensor.reshape(-1))
        tensor.set_(grown.untyped_storage(), grown.storage_offset(), grown.shape, grown.stride())
        return True

    def guarded(self, made: torch.Tensor, operation: str, device: bool) -> torch.Tensor:
        """The same tensor in guarded memory."""
        self._count += 1
        shape = tuple(made.shape)
        if self.real:
            device = self.on_device(made)
            if not device and made.is_pinned():
                return made
        if made.layout != torch.strided or not made.is_contiguous() or made.dtype.is_complex:
            return made
        name = f"torch.{operation} #{self._count} {list(shape)}"
        tensor = self.memory.allocate(shape, made.dtype, name, device=device)
        if operation not in EMPTY:
            tensor.copy_(made)
        return tensor


class AllocationMode(TorchDispatchMode):
    """Puts the results of factories into guarded memory and follows the device."""

    def __init__(self, interception: Interception) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = interception

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under this mode. To say so to torch costs an import of seconds and time in every call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator; relocate what it allocated; pass the device on."""
        # The other mode has seen the call. It need not see each property that is read here of each tensor.
        with torch._C.DisableTorchFunction():
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        seen = self._seen
        device = (
            seen.on_device(args) or seen.on_device(tuple(kwargs.values())) or seen.names_device(kwargs.get("device"))
        )
        if name in READS and device:
            seen.report(_PUBLIC.get(name, name), f"{func} reads a device tensor on the host")
        if name == "copy_" and seen.is_host(args[0]) and seen.on_device(args[1]):
            seen.report("copy_", "a device tensor is copied into a host tensor")
            device = False
        if name == "resize_" and seen.regrown(args[0], args[1]):
            return args[0]
        result = func(*args, **kwargs)
        if (name in EMPTY or name in FILLED) and isinstance(result, torch.Tensor):
            result = seen.guarded(result, name, device)
        if device:
            seen.mark(result)
        else:
            seen.note_made(result)
        return result


_PUBLIC = {
    "_local_scalar_dense": "item",
    "_unique2": "unique",
    "unique_dim": "unique",
}


class HostReadMode(TorchFunctionMode):
    """Reports host reads under the name that the implementation's author used."""

    def __init__(self, interception: Interception) -> None:
        super().__init__()
        self._seen = interception

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Judge the call, then make it."""
        kwargs = kwargs or {}
        seen = self._seen
        name = getattr(func, "__name__", str(func))
        first = args[0] if args else None
        if name == "__get__" and func == _DEVICE_GETTER:
            return DEVICE if not seen.real and seen.on_device(first) else func(*args, **kwargs)
        if not (seen.on_device(list(args)) or seen.on_device(list(kwargs.values()))):
            return self._sent(name, func(*args, **kwargs), kwargs)
        read = _read_of(seen, name, args, kwargs)
        if read is None:
            return self._sent(name, func(*args, **kwargs), kwargs)
        if read not in HARMLESS:
            seen.report(_PUBLIC.get(read, read.strip("_")), f"{read} on a device tensor of shape {_shape(first)}")
        return self._on_host(func, args, kwargs)

    def _sent(self, name: str, result: Any, kwargs: Mapping[str, Any]) -> Any:
        """What host values were copied into is on the device if the call says so."""
        if name in CONVERSIONS and (kwargs.get("device") == DEVICE or name == "new_tensor"):
            self._seen.mark(result)
        return result

    def _on_host(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that was reported, so that what follows from it is not reported again."""
        with torch._C.DisableTorchFunction(), _without_dispatch():
            result = func(*args, **kwargs)
            if isinstance(result, torch.Tensor):
                result = result.detach().clone()
                self._seen.unmark(result)
        return result


_DEVICE_GETTER = torch.Tensor.device.__get__


def _read_of(seen: Interception, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The name of a host read, or ``None``."""
    if name in READS:
        return name
    if name in ("tensor", "asarray"):
        return "tensor"
    if name == "to" and len(args) > 1 and isinstance(args[1], torch.Tensor) and not seen.on_device(args[1]):
        return "cpu"
    if name == "to" and seen.names_host([*args[1:], *kwargs.values()]):
        return "cpu"
    if name in ("__getitem__", "__setitem__") and len(args) > 1:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) for item in index):
            return "boolean mask"
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        counts = args[1] if len(args) > 1 else kwargs.get("repeats", args[0] if args else None)
        return "repeat_interleave" if isinstance(counts, torch.Tensor) else None
    if name == "where" and len(args) == 1 and not kwargs:
        return "where"
    return None


def _shape(value: object) -> list[int]:
    return list(value.shape) if isinstance(value, torch.Tensor) else []


@contextmanager
def _without_dispatch() -> Iterator[None]:
    with torch.utils._python_dispatch._disable_current_modes():
        yield


@contextmanager
def _beyond_modes(seen: Interception) -> Iterator[None]:
    """What torch's modes do not see: threads that start meanwhile, since a mode belongs to a thread, and pickling."""
    bootstrap: Callable[[threading.Thread], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    reduce = torch.Tensor.__reduce_ex__

    def in_modes(thread: threading.Thread) -> None:
        with HostReadMode(seen), AllocationMode(seen):
            bootstrap(thread)

    def heard(tensor: torch.Tensor, protocol: Any) -> Any:
        if seen.on_device(tensor):
            seen.report("pickle", f"a device tensor of shape {_shape(tensor)} is pickled")
        return reduce(tensor, protocol)  # type: ignore[no-untyped-call]

    threading.Thread._bootstrap_inner = in_modes  # type: ignore[attr-defined]
    torch.Tensor.__reduce_ex__ = heard  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]
        torch.Tensor.__reduce_ex__ = reduce  # type: ignore[method-assign]


def warm_up() -> None:
    """Load what torch loads at the first intercepted call: seconds that must not count as a case's."""
    memory = Memory()
    with intercepted(memory, []):
        torch.zeros(1).add_(1).item()


@contextmanager
def intercepted(memory: Memory, device_tensors: Sequence[torch.Tensor]) -> Iterator[Interception]:
    """Surround one call."""
    seen = Interception(memory, device_tensors)
    with _beyond_modes(seen), HostReadMode(seen), AllocationMode(seen):
        yield seen
