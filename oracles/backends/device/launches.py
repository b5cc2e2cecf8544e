"""Launches of Triton kernels, and which compiled variant each one used."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oracles.backends.base import Observation

_compiled: dict[int, tuple[object, str]] = {}
"""Compiled kernels by identity, with what they are called; kept alive, so that an identity is not used again."""


@contextmanager
def counted(observation: Observation) -> Iterator[None]:
    """Count every launch inside, and note each compiled variant once.

    Triton calls its hook when a kernel is compiled or taken from the cache on disk; later launches of the same variant
    are known by the kernel that Triton returns.
    """
    from triton import knobs
    from triton.runtime.jit import JITFunction

    original, hook = JITFunction.run, knobs.runtime.jit_post_compile_hook
    fresh: list[str] = []

    def heard(*args: Any, **kwargs: Any) -> Any:
        fresh.append(variant(kwargs["fn"].name, kwargs["compile"]))
        return None if hook is None else hook(*args, **kwargs)

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        fresh.clear()
        kernel = original(function, *args, grid=grid, warmup=warmup, **kwargs)
        observation.launches += not warmup
        name = _name_of(kernel, function, fresh[-1] if fresh else None)
        if name not in observation.compilations:
            observation.compilations.append(name)
        return kernel

    JITFunction.run, knobs.runtime.jit_post_compile_hook = run, heard
    try:
        yield
    finally:
        JITFunction.run, knobs.runtime.jit_post_compile_hook = original, hook


def _name_of(kernel: object, function: Any, fresh: str | None) -> str:
    """What a compiled kernel is called; one that was compiled outside of every watched call gets a number."""
    known = _compiled.get(id(kernel))
    if known is not None:
        return known[1]
    name = fresh or f"{getattr(function, '__name__', 'kernel')} (compiled before the first call, {len(_compiled)})"
    _compiled[id(kernel)] = kernel, name
    return name


def variant(name: str, compilation: Mapping[str, Any]) -> str:
    """One line for a compiled variant: parameters with their types, what was assumed of them, and the options.

    The number at the end is a checksum of Triton's own key, so that two variants never share a line.
    """
    signature: Mapping[str, str] = compilation["signature"]
    constants, assumed = _by_name(compilation["constants"], signature), _by_name(compilation["configs"][0], signature)
    parts = []
    for parameter, kind in signature.items():
        if parameter in constants:
            parts.append(f"{parameter}={constants[parameter]}")
        else:
            parts.append(f"{parameter}: {kind}" + (" divisible" if assumed.get(parameter) else ""))
    short = name.rsplit(".", 1)[-1]
    checksum = zlib.crc32(repr(compilation["key"]).encode())
    return f"{short} ({', '.join(parts)}) warps {compilation['num_warps']} #{checksum:08x}"


def _by_name(paths: Mapping[Any, Any], signature: Mapping[str, str]) -> dict[str, Any]:
    """Triton names a parameter by a path of positions; older versions by its name."""
    names = list(signature)
    return {names[path[0]] if isinstance(path, tuple) else str(path): value for path, value in paths.items()}
