"""Kernel arguments: what Triton's JIT would make of them on an AMD target, and the interpreter's values for them.

Binding and specialisation are Triton's own (its argument binder with its HIP backend class for gfx942), so the key of a
launch is what the JIT's cache would see: types, divisibility by 16, equality to 1, pointer range, constexpr values,
annotations and options. The interpreter itself ignores annotations and types a large integer by its value; here every
scalar gets the type of that specialisation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import triton.language as tl
from triton.backends.amd.compiler import HIPBackend
from triton.backends.compiler import GPUTarget
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.jit import KernelParam, create_function_from_signature

from oracles.backends.compilations import compilation
from oracles.backends.interpreter.space import AddressSpace, Extent
from oracles.verdict import Unsupported

ARCHITECTURE = "gfx942"
"""The target whose specialisation rules give the compilation keys."""

HINT = "oracles.buffer"
"""Attribute of a pointer's handle: the buffer of the argument that it was computed from."""

_SCALARS: dict[str, tuple[str, str]] = {
    **{f"{sign[0]}{bits}": (f"{sign}{bits}", f"{sign}{bits}") for sign in ("int", "uint") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("i1", "u1"), ("int1", "bool")),
    **{f"fp{bits}": (f"float{bits}", f"float{bits}") for bits in (16, 32, 64)},
    **{f"f{bits}": (f"float{bits}", f"float{bits}") for bits in (16, 32, 64)},
}
"""Triton's short name of a scalar type -> its name in ``triton.language`` and the NumPy dtype that computes it."""


class Bound(NamedTuple):
    """The arguments of one launch: as passed, with the type each gets, and the key of the compilation they need."""

    values: dict[str, Any]
    types: dict[str, Any]
    compilation: str


class Kernel:
    """A jitted function's signature as Triton's JIT reads it."""

    def __init__(self, function: Any) -> None:
        self.name: str = function.fn.__name__
        signature = inspect.signature(function.fn)
        plain = set(function.kwargs.get("do_not_specialize") or ())
        unaligned = set(function.kwargs.get("do_not_specialize_on_alignment") or ())
        self.parameters = [
            KernelParam(index, parameter, bool({index, name} & plain), bool({index, name} & unaligned))
            for index, (name, parameter) in enumerate(signature.parameters.items())
        ]
        self._binder: Callable[..., tuple[dict[str, Any], list[Any], dict[str, Any]]] = create_function_from_signature(
            signature, self.parameters, _target()
        )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
        """Bind as a launch does. Raises TypeError for arguments that the JIT refuses."""
        values, specialization, options = self._binder(*args, **kwargs)
        types = {name: kind for name, (kind, _) in zip(values, specialization, strict=True)}
        for name, kind in types.items():
            _refuse_small_floats(name, kind)
        return Bound(values, types, compilation(self.name, values, specialization, options))

    def is_constexpr(self, index: int) -> bool:
        """Whether the parameter is declared ``tl.constexpr``."""
        return bool(self.parameters[index].is_constexpr)


_kernels: WeakKeyDictionary[Any, Kernel] = WeakKeyDictionary()


def kernel_of(function: Any) -> Kernel:
    """The signature of a jitted function, read once."""
    if function not in _kernels:
        _kernels[function] = Kernel(function)
    return _kernels[function]


def convert(kernel: Kernel, bound: Bound, space: AddressSpace) -> dict[str, Any]:
    """The interpreter's values for the arguments; storages that nobody registered become legal in ``space``."""
    converted = {}
    for index, (name, value) in enumerate(bound.values.items()):
        constant = kernel.is_constexpr(index)
        converted[name] = value if constant else _convert(name, value, bound.types[name], space)
    return converted


@cache
def _target() -> Any:
    return HIPBackend(GPUTarget("hip", ARCHITECTURE, 64))


def _convert(name: str, value: Any, kind: Any, space: AddressSpace) -> Any:
    if isinstance(value, tuple):
        kinds = kind if isinstance(kind, tuple) else (kind,) * len(value)
        items = [_convert(f"{name}[{at}]", *pair, space) for at, pair in enumerate(zip(value, kinds, strict=True))]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if hasattr(value, "data_ptr"):
        return _pointer(name, value, kind, space)
    if isinstance(value, bool | int | float):
        return _scalar(name, value, kind)
    if hasattr(value, "base") and hasattr(value, "block_shape"):
        _extent(name, value.base, space)
        return triton_interpreter._implicit_cvt(value)
    return value


def _pointer(name: str, tensor: Any, kind: str, space: AddressSpace) -> Any:
    if not kind.startswith("*"):
        raise Unsupported(f"{name}: a tensor for a parameter annotated {kind}")
    element = tl.str_to_ty(kind, None)
    extent = _extent(name, tensor, space)
    # torch gives a tensor without elements the address 0; its buffer has a place all the same.
    address = np.array([tensor.data_ptr() or extent.low], dtype=np.uint64)
    handle = triton_interpreter.TensorHandle(address, element, {HINT: extent})
    return tl.tensor(handle, element)


def _extent(name: str, tensor: Any, space: AddressSpace) -> Extent:
    storage = triton_interpreter._unwrap_tensor(tensor).untyped_storage()
    low, size = storage.data_ptr(), storage.nbytes()
    return space.storage(low, size) or space.admit(name, low, size)


def _scalar(name: str, value: bool | float, kind: str) -> Any:
    if kind == "constexpr":
        # The JIT folds an integer that equals 1 into the code, where it is an ordinary 32-bit constant.
        kind = "i32"
    if kind not in _SCALARS:
        raise Unsupported(f"{name}: the interpreter cannot honour the annotation {kind} for {value!r}")
    triton_name, numpy_name = _SCALARS[kind]
    dtype = np.dtype(numpy_name)
    if dtype.kind in "iu" and not _fits(value, dtype):
        raise Unsupported(f"{name}: {value!r} does not fit the parameter's type {kind}")
    scalar = getattr(tl, triton_name)
    with np.errstate(over="ignore"):
        data = np.array([value]).astype(dtype)
    return tl.tensor(triton_interpreter.TensorHandle(data, scalar), scalar)


def _fits(value: bool | float, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return isinstance(value, int) and int(limits.min) <= value <= int(limits.max)


def _refuse_small_floats(name: str, kind: Any) -> None:
    for text in _strings(kind):
        if "bf16" in text or "fp8" in text:
            raise Unsupported(f"{name} is {text}: the interpreter computes bfloat16 and float8 wrongly")


def _strings(kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list | tuple):
        for item in kind:
            yield from _strings(item)
