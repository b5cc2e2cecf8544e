"""From a launch as the JIT asks for it to what a machine starts from: decoded code, and the bytes of the arguments."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from oracles.backends.cdna.ir import LANES
from oracles.verdict import Unsupported

if TYPE_CHECKING:
    from oracles.backends.cdna.code_object import CodeObject
    from oracles.backends.cdna.machine import LoadedKernel

Grid = tuple[int, int, int]
Virtual = Callable[[torch.Tensor, str], int]
"""A tensor, and what to call it, to the address that the machine knows it by."""

LARGEST_AXIS = 2**31 - 1
"""Programs on an axis of a grid: the launcher's argument is a C int."""

_FLOATS = {"fp16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d", "f64": "<d"}
_NOTHING = ("hidden_none", "hidden_global_offset", "hidden_remainder")
"""Hidden arguments that are 0: whole workgroups only, and no offset."""


class Item(NamedTuple):
    """One argument as the machine code counts them: name, Triton type (empty: by the value's own), and value."""

    name: str
    kind: str
    value: Any


def grid_of(sizes: Sequence[Any]) -> Grid:
    """The grid, of which an axis without programs means that nothing runs.

    Raises what a launch on a device would: TypeError for what is no integer, OverflowError for what the launcher could
    not pass on, RuntimeError for a negative size.
    """
    x, y, z = (operator.index(size) for size in sizes)
    for size in (x, y, z):
        if not -LARGEST_AXIS <= size <= LARGEST_AXIS:
            raise OverflowError(f"grid: {size} programs on an axis, which is more than a C int can hold")
    if x * y * z and min(x, y, z) < 0:
        raise RuntimeError(f"grid: {(x, y, z)} has a negative size")
    return x, y, z


def flattened(name: str, kind: Any, value: Any) -> Iterator[Item]:
    """The arguments of one parameter: none for a constant, several for a tuple or a tensor descriptor."""
    if isinstance(kind, tuple):
        names = getattr(value, "_fields", None) or range(len(kind))
        for part, inner, item in zip(names, kind, value, strict=True):
            yield from flattened(f"{name}.{part}" if isinstance(part, str) else f"{name}[{part}]", inner, item)
    elif str(kind).startswith("tensordesc"):
        yield from _descriptor(name, value)
    elif kind != "constexpr":
        yield Item(name, str(kind), value)


def _descriptor(name: str, value: Any) -> Iterator[Item]:
    """A tensor descriptor, which these chips have no hardware for: its tensor, shape, strides and flags."""
    from triton.backends.amd.driver import make_tensordesc_arg

    base, *numbers = make_tensordesc_arg(value, None, None)
    yield Item(name, "*", base)
    for number in numbers:
        yield Item(name, "", number)


class Shape(NamedTuple):
    """What a launch is made of: its grid, waves a workgroup, and bytes of local memory a workgroup."""

    grid: Grid
    warps: int
    shared: int


def packed(code: CodeObject, items: Sequence[Item], shape: Shape, virtual: Virtual) -> bytes:
    """The bytes that a kernel's arguments take up in memory.

    Raises what the launcher raises for a value that is no argument, and :class:`Unsupported` for a code object whose
    arguments are not those that Triton passes.
    """
    block = bytearray(code.kernarg_size)
    given = iter(items)
    left = len(items)
    for kind, offset, size in code.arguments:
        if kind.startswith("hidden_"):
            data = _hidden(kind, shape).to_bytes(size, "little")
        elif left:
            data = _packed(next(given), size, virtual)
            left -= 1
        elif kind == "global_buffer":
            data = bytes(size)  # scratch memory of the launcher's, which a kernel that uses any is refused for
        else:
            raise Unsupported(f"kernel {code.name}: its code object has more arguments than the launch")
        block[offset : offset + size] = data
    if left:
        raise Unsupported(f"kernel {code.name}: its code object has fewer arguments than the launch")
    return bytes(block)


def _hidden(kind: str, shape: Shape) -> int:
    """Arguments that the runtime adds."""
    axis, grid = "xyz".find(kind[-1]), shape.grid
    if kind.startswith("hidden_block_count_"):
        return grid[axis]
    if kind.startswith("hidden_group_size_"):
        return (shape.warps * LANES, 1, 1)[axis]
    if kind == "hidden_grid_dims":
        return 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    if kind == "hidden_dynamic_lds_size":
        return shape.shared
    if kind.startswith(_NOTHING):
        return 0
    raise Unsupported(f"the kernel asks the runtime for {kind}, which is not emulated")


def _packed(item: Item, size: int, virtual: Virtual) -> bytes:
    name, kind, value = item
    if kind.startswith("*"):
        return _address(name, value, virtual).to_bytes(size, "little")
    if kind in _FLOATS or kind == "bf16":
        return _real(kind, float(value))
    number = operator.index(value)
    low, high = (0, 1 << 64) if kind == "u64" else (-(1 << 63), 1 << 63)
    if not low <= number < high:
        raise OverflowError(f"{name}: {number} is not in the range of {kind or 'i64'}, {low} to {high - 1}")
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _real(kind: str, value: float) -> bytes:
    """A float as the launcher's C code stores it: too large ones are infinite, and bfloat16 is cut off, not rounded."""
    if kind in ("bf16", "fp32", "f32"):
        with np.errstate(over="ignore"):
            single: bytes = np.float64(value).astype("<f4").tobytes()
        return single[2:] if kind == "bf16" else single
    return struct.pack(_FLOATS[kind], value)


def _address(name: str, value: Any, virtual: Virtual) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & ((1 << 64) - 1)
    tensor = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
    if not isinstance(tensor, torch.Tensor):
        if not hasattr(value, "data_ptr"):
            raise TypeError(f"{name}: a pointer argument must be a tensor or an int, not {type(value).__name__}")
        raise Unsupported(f"{name}: the memory of a {type(value).__name__} is not known")
    return virtual(tensor, name)


@lru_cache(maxsize=512)
def loaded(binary: bytes, text: str, name: str, architecture: str) -> LoadedKernel:
    """Decoded code, made once for each code object.

    Raises :class:`Unsupported` for code that the machine does not know, or that needs what it does not have.
    """
    from oracles.backends.cdna.assembly import parse
    from oracles.backends.cdna.code_object import read
    from oracles.backends.cdna.machine import LoadedKernel

    code = read(binary)
    if code.architecture != architecture:
        raise Unsupported(f"kernel {name} was compiled for {code.architecture}, and this is {architecture}")
    if code.scratch:
        raise Unsupported(f"kernel {name} spills {code.scratch} bytes a lane to scratch memory, which is not emulated")
    return LoadedKernel(parse(text, name, architecture), code)


def refuse_unknown(name: str, metadata: Any) -> None:
    """Raise :class:`Unsupported` for a way to launch that the machine does not have."""
    if getattr(metadata, "launch_cooperative_grid", False):
        raise Unsupported(f"kernel {name}: cooperative launches are not emulated")
    if getattr(metadata, "num_ctas", 1) > 1:
        raise Unsupported(f"kernel {name}: {metadata.num_ctas} workgroups a program are not emulated")
    for size in ("global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, size, 0):
            raise Unsupported(f"kernel {name}: {size.removesuffix('_size').replace('_', ' ')} memory is not emulated")
