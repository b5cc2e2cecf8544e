"""A Triton driver for a device that is not there: the JIT and the code generator are Triton's own, launches come here.

Importing this module imports Triton. Only a worker does, and the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver
from triton.compiler import compiler as triton_compiler
from triton.runtime.cache import triton_key

from oracles.backends.cdna import missing_other
from oracles.backends.cdna.ir import LANES
from oracles.backends.cdna.missing_other import Filling, Place
from oracles.backends.cdna.relocation import file_of, relocated
from oracles.interception import DEVICE
from oracles.verdict import Unsupported


class Model(NamedTuple):
    """What programs can ask of a device: bytes of local memory a workgroup, and compute units."""

    shared_memory: int
    compute_units: int


MODELS: Mapping[str, Model] = {"gfx942": Model(64 << 10, 304), "gfx950": Model(160 << 10, 256)}
"""MI300X and MI355X."""

MOST_THREADS = 1024
"""Threads that a workgroup may have."""

_FIRST_TARGET = Filling()


@dataclass(frozen=True)
class FilledTarget(GPUTarget):  # type: ignore[misc]
    """A target whose name, and with it Triton's cache keys, says that masked loads are filled."""

    filling: str = ""


class Compiled(NamedTuple):
    """What Triton made of a kernel: the assembly text, and the lines with masked loads that have no ``other``."""

    text: str
    missing: tuple[Place, ...]


class Function(NamedTuple):
    """A loaded kernel, as Triton hands it to the launcher."""

    name: str
    binary: bytes


class Launch(NamedTuple):
    """One launch as the JIT asks for it; ``arguments`` pairs each parameter's name with its type and value.

    ``file`` is that of the kernel's source, empty where it is not known.
    """

    function: Function
    metadata: Any
    grid: tuple[Any, Any, Any]
    arguments: list[tuple[str, Any, Any]]
    file: str = ""


Receiver = Callable[[Launch], None]

_compiled: dict[tuple[bytes, str], Compiled] = {}
"""Every kernel that was compiled in this process, by its code object and its file: copies have one code object."""


def compiled(launch: Launch) -> Compiled:
    """What is known of a kernel's code. Raises :class:`Unsupported` for code that nobody compiled here."""
    try:
        return _compiled[launch.function.binary, launch.file]
    except KeyError:
        raise Unsupported(f"kernel {launch.function.name}: it was not compiled by Triton in this process") from None


class _Utilities:
    """What Triton asks a driver for besides launches."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self._driver = driver

    def get_device_properties(self, device: int) -> dict[str, Any]:
        model = MODELS[self._driver.architecture]
        return {
            "max_shared_mem": model.shared_memory,
            "multiprocessor_count": model.compute_units,
            "warpSize": LANES,
            "arch": self._driver.architecture,
            "cooperativeLaunch": 0,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[None, Function, int, int, int]:
        # No module: a kernel may outlive the driver, and Triton would ask whichever comes next to unload it.
        return None, Function(name, binary), 0, 0, MOST_THREADS


class _Launcher:
    """Made once for each compiled kernel; called for each launch, with the hooks around it."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._types = dict(source.signature)
        self._file = file_of(getattr(source, "fn", None))
        self._metadata = metadata

    def __call__(
        self,
        x: Any,
        y: Any,
        z: Any,
        stream: Any,
        function: Function,
        packed: Any,
        about: Any,
        enter: Callable[[Any], None] | None,
        leave: Callable[[Any], None] | None,
        *values: Any,
    ) -> None:
        if enter is not None:
            enter(about)
        arguments = [(str(name), kind, value) for (name, kind), value in zip(self._types.items(), values, strict=True)]
        active().receive(Launch(function, self._metadata, (x, y, z), arguments, self._file))
        if leave is not None:
            leave(about)


class EmulatedDriver(GPUDriver):  # type: ignore[misc]
    """The driver of one architecture at a time.

    Every architecture, and every way to fill masked loads, has a device number of its own, because a jitted function
    keeps what it compiled by device number.
    """

    def __init__(self, architecture: str) -> None:
        # GPUDriver's own __init__ looks for a device in torch.
        self.architecture = architecture
        self.filling = _FIRST_TARGET
        self.receiver: Receiver | None = None
        self.utils = _Utilities(self)
        self.launcher_cls = _Launcher
        self._numbers = {(name, _FIRST_TARGET): number for number, name in enumerate(MODELS)}

    def warm_up(self) -> None:
        """Let Triton hash its own files and load the code generator; it keeps both."""
        target = self.get_current_target()
        backend = triton_compiler.make_backend(target)
        triton_key()
        backend.hash()
        backend.parse_options({}).hash()

    @staticmethod
    def is_active() -> bool:
        """Never found by Triton's own search for a device."""
        return False

    def receive(self, launch: Launch) -> None:
        """Hand a launch on. Raises :class:`Unsupported` outside of every watched call."""
        if self.receiver is None:
            raise Unsupported(f"kernel {launch.function.name} is launched outside of a call, where nothing is watched")
        self.receiver(launch)

    def get_current_device(self) -> int:
        """A number for the architecture and the filling."""
        return self._numbers.setdefault((self.architecture, self.filling), len(self._numbers))

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int) -> int:
        """There is one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What Triton compiles for."""
        plain = ("hip", self.architecture, LANES)
        return GPUTarget(*plain) if self.filling == _FIRST_TARGET else FilledTarget(*plain, self.filling.name)

    def get_active_torch_device(self) -> torch.device:
        """What stands for the device during a call."""
        return DEVICE

    def get_device_interface(self) -> Any:
        """Refused: there is no such part of torch."""
        raise Unsupported("a kernel is timed, and there is no device to time it on")

    def get_benchmarker(self) -> Any:
        """Refused: nothing here says how long a device would take."""
        return self.get_device_interface()

    def map_python_to_cpp_type(self, ty: str) -> str:
        """No launcher is written in C++."""
        return ty


def active() -> EmulatedDriver:
    """The driver in place. Raises RuntimeError where there is none."""
    driver = triton.runtime.driver.active
    if not isinstance(driver, EmulatedDriver):
        raise RuntimeError("the emulated driver is not installed in this process")
    return driver


def install(architecture: str) -> EmulatedDriver:
    """Make this the driver of the process, for good. Raises ValueError for an unknown architecture."""
    if architecture not in MODELS:
        raise ValueError(f"architecture: {architecture!r} is none of {', '.join(MODELS)}")
    current = triton.runtime.driver._active
    if isinstance(current, EmulatedDriver):
        current.architecture = architecture
        return current
    driver = EmulatedDriver(architecture)
    triton.runtime.driver.set_active(driver)
    original = triton_compiler.compile

    def compile(source: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        return _compile(original, source, target or driver.get_current_target(), options, more)

    # A jitted function takes the name from the second of these at its first launch.
    for module in (triton_compiler, triton.compiler, triton):
        module.compile = compile
    return driver


def _compile(
    original: Callable[..., Any], source: Any, target: GPUTarget, options: Any, more: Mapping[str, Any]
) -> Any:
    """Compile as the device would have it, and once more with filled loads where there are any to fill."""
    plain = GPUTarget(target.backend, target.arch, target.warp_size)
    kernel = original(source, target=plain, options=options, **more)
    function = getattr(source, "fn", None)
    texts = relocated(kernel.asm, function)
    missing = missing_other.left_over(texts)
    filling = active().filling
    if isinstance(target, FilledTarget) and any(filling.fills(place) for place in missing):
        with missing_other.filled(filling):
            kernel = original(source, target=target, options=options, **more)
        texts = relocated(kernel.asm, function)
    _compiled[bytes(kernel.kernel), file_of(function)] = Compiled(texts["amdgcn"], missing)
    return kernel


@contextmanager
def receiving(driver: EmulatedDriver, receiver: Receiver, filling: Filling) -> Iterator[None]:
    """Launches inside go to ``receiver``; kernels are compiled with that filling."""
    before = driver.receiver, driver.filling
    driver.receiver, driver.filling = receiver, filling
    try:
        yield
    finally:
        driver.receiver, driver.filling = before
