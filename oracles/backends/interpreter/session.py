"""One watched call: puts the checks in place, runs every launch, and takes everything away again.

Only what lies on the path of a launch is replaced: how a jitted function is run and called, and the memory operations
of the interpreter's builder. Tensors are never copied, unlike in the interpreter's own executor, which copies whole
storages and so cannot take sparse ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError

from oracles.backends.base import Variation
from oracles.backends.interpreter import memory_access
from oracles.backends.interpreter.arguments import convert, kernel_of
from oracles.backends.interpreter.journal import Grid, Journal
from oracles.backends.interpreter.limits import limit_of
from oracles.backends.interpreter.memory_access import Checks
from oracles.backends.interpreter.observation import InterpreterObservation
from oracles.backends.interpreter.sites import Access, site_of
from oracles.backends.interpreter.space import AddressSpace
from oracles.memory import Memory
from oracles.verdict import Unsupported, described

_ATOMICS = ("create_atomic_load", "create_atomic_store", "create_atomic_poll")


class Session:
    """All launches of one call. ``other_poison``: see :class:`~.memory_access.Checks`."""

    def __init__(
        self,
        memory: Memory,
        variation: Variation,
        observation: InterpreterObservation,
        other_poison: str | None = None,
    ) -> None:
        self.variation = variation
        self.observation = observation
        self.unsupported: Unsupported | None = None
        self._space = AddressSpace(memory)
        self._builder = triton_interpreter.interpreter_builder
        self._checks = Checks(self._builder, variation.sentinel, observation, other_poison)
        self._undo = ExitStack()
        self._adopted: set[int] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Every launch inside is checked; afterwards Triton is as it was."""
        functions, reductions = triton_interpreter.InterpretedFunction, triton_interpreter.ReduceScanOpInterface
        with self._undo:
            for name, value in self._operations().items():
                setattr(self._builder, name, value)
                self._undo.callback(delattr, self._builder, name)
            # Of the class: Triton before 3.7 makes one for every launch.
            language = type(triton_interpreter.interpreter_semantic)
            self._replace(language, "load", self._checks.noting_other(language.load))
            self._replace(functions, "run", self._checked_run())
            self._replace(functions, "__call__", self._device_call(functions.__call__))
            self._replace(reductions, "to_tensor", memory_access.wrapping(reductions.to_tensor))
            self._replace(Autotuner, "_bench", _untimed)
            self._replace(Autotuner, "check_disk_cache", _uncached)
            yield

    def _checked_run(self) -> Callable[..., None]:
        def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            if not warmup:
                self.launch(function, grid, args, kwargs)

        return run

    def _device_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._checks.journal is None:
                return original(function, *args, **kwargs)
            # The language is patched once for the launch: doing it again for every call, as Triton does, costs
            # milliseconds and is never undone.
            return self._body(function)(*args, **kwargs)

        return call

    def _body(self, function: Any) -> Callable[..., Any]:
        """The Python function to run. Builtins that its module holds under names of its own get the interpreter."""
        names = function.fn.__globals__
        if id(names) not in self._adopted:
            self._adopted.add(id(names))
            for name, value in list(names.items()):
                if tl.core.is_builtin(value):
                    self._undo.callback(names.__setitem__, name, value)
                    names[name] = partial(value, _semantic=triton_interpreter.interpreter_semantic)
        return cast(Callable[..., Any], function.rewrite())

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def launch(self, function: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run one kernel on its grid and add what was seen to the observation."""
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        self.observation.launches += 1
        kernel = kernel_of(function)
        self._space.begin_launch()
        try:
            with torch._C.DisableTorchFunction():
                bound = kernel.bind(args, kwargs)
            if bound.compilation not in self.observation.compilations:
                self.observation.compilations.append(bound.compilation)
            # A grid is the implementation's own host code: if it reads a device tensor, that must be seen.
            shape = _grid(grid(bound.values) if callable(grid) else grid)
            with torch._C.DisableTorchFunction():
                values = convert(kernel, bound, self._space)
                self._run(function, Journal(kernel.name, shape, self._space), values)
        except Unsupported as reason:
            self.unsupported = reason
            raise

    def _run(self, function: Any, journal: Journal, values: dict[str, Any]) -> None:
        body = self._body(function)
        names = {"tl": tl, "core": tl.core}
        self._builder.set_grid_dim(*journal.grid)
        patched = triton_interpreter._patch_lang(SimpleNamespace(__globals__=names))
        # Triton 3.6 asks NumPy for the number in an array with an axis, which NumPy 2.5 refuses.
        patched.set_attr(tl.tensor, "__index__", lambda tensor: operator.index(tensor.handle.data.item()))
        self._checks.journal = journal
        try:
            # Poison and out-of-range conversions are the kernel's business; as warnings they would be noise.
            with np.errstate(all="ignore"):
                for number in self._order(journal.programs):
                    self._builder.set_grid_idx(*journal.index(number))
                    journal.enter(number)
                    body(**values)
        except Exception as error:
            raise _explained(error, journal) from error
        finally:
            self._checks.journal = None
            patched.restore()
            self.observation.failures.extend(journal.failures())

    def _order(self, programs: int) -> Iterator[int]:
        if self.variation.order == "reverse":
            return iter(range(programs - 1, -1, -1))
        if self.variation.order == "random":
            generator = np.random.default_rng([self.variation.seed, self.observation.launches])
            return iter(generator.permutation(programs).tolist())
        return iter(range(programs))

    def _operations(self) -> dict[str, Callable[..., Any]]:
        """The builder's methods that are replaced during the session."""
        checks, builder = self._checks, self._builder
        operations: dict[str, Callable[..., Any]] = {
            "create_masked_load": checks.load,
            "create_masked_store": checks.store,
            "create_atomic_rmw": checks.rmw,
            "create_atomic_cas": checks.cas,
        }
        for name in _ATOMICS:
            if hasattr(builder, name):
                operations[name] = checks.as_atomic(getattr(builder, name))
        for name, position in memory_access.POINTERS.items():
            method = f"create_{name}"
            operations[method] = memory_access.keep_hint(getattr(builder, method), position)
        operations["create_splat"] = memory_access.spreading(operations["create_splat"])
        for name in dir(builder):
            if name.startswith(("get_bf16", "get_fp8")):
                operations[name] = memory_access.refuse(name)
        return operations


def _untimed(tuner: Any, *args: Any, **options: Any) -> list[float]:
    # Every configuration must be right, and timing needs a GPU: all are equally fast, so the first one is run.
    return [0.0, 0.0, 0.0]


def _uncached(tuner: Any, key: Any, configurations: Any, benchmark: Callable[[], None]) -> bool:
    benchmark()
    return False


def _grid(grid: Any) -> Grid:
    sizes = [operator.index(size) for size in grid]
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"grid: {len(sizes)} axes, not 1 to 3")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _explained(error: Exception, journal: Journal) -> Exception:
    reason = limit_of(error)
    if reason is not None:
        return Unsupported(reason)
    who = Access(journal.kernel, journal.index(journal.number), site_of(error.__traceback__))
    return InterpreterError(f"{described(error)}; {who}")  # type: ignore[no-any-return]
