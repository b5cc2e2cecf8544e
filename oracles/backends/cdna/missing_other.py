"""Masked loads without ``other``: where a kernel has them, and a compilation in which they have one.

What such a load gives where it is masked off is nobody's promise, though on these chips it is mostly 0, which may even
be the right answer. So there is a second compilation with a value that is not: where the two differ, it is seen.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.language.semantic import TritonSemantic

_LOAD = re.compile(r"tt\.load (?P<operands>%[^\s,]+(?:, %[^\s,]+)*).* loc\((?P<location>.*)\)$")
_DEFINITION = re.compile(r"^(?P<name>#loc\d*) = loc\((?P<location>.*)\)$")
_REFERENCE = re.compile(r"#loc\d*")
_PLACE = re.compile(r'"(?P<file>[^"]*)":(?P<line>\d+):\d+')

_INTEGER = 0x5B
"""Each byte of an integer: a number above every length."""

_FLOATS = {
    "fp16": 0x7C00,
    "bf16": 0x7F80,
    "fp32": 0x7F80_0000,
    "fp64": 0x7FF0_0000_0000_0000,
    "fp8e5": 0x7C,
    "fp8e4nv": 0x7F,
    "fp8e4b15": 0x7F,
    "fp8e4b8": 0x80,
    "fp8e5b16": 0x80,
}
"""Bits of infinity, or of NaN in the formats that have no infinity."""


class Place(NamedTuple):
    """A line of a kernel's source."""

    file: str
    line: int

    @property
    def name(self) -> str:
        """As a key that is the same in every run."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}: {linecache.getline(self.file, self.line).strip()}"


@dataclass(frozen=True)
class Filling:
    """Which masked loads without ``other`` get one: none or ``every``, the other way round on the line ``except_on``.

    ``except_on`` is the name of a :class:`Place`.
    """

    every: bool = False
    except_on: str | None = None

    @property
    def name(self) -> str:
        """The filling in a cache key."""
        chosen = "every line" if self.every else "no line"
        return f"missing other filled on {chosen}" + (f" but {self.except_on}" if self.except_on else "")

    def fills(self, place: Place) -> bool:
        """Whether loads on this line get a value."""
        return self.every != (place.name == self.except_on)


def left_over(stages: Mapping[str, str]) -> tuple[Place, ...]:
    """The lines with such loads in a kernel's source, if any of its loads is one after Triton's own passes too.

    They give many a load an ``other`` (that of the ``tl.where`` around it) and merge equal ones into one with one line.
    """
    return places(stages.get("source", "")) if places(stages.get("ttir", "")) else ()


def places(ttir: str) -> tuple[Place, ...]:
    """The lines with masked loads that have no ``other``, in a kernel's Triton IR; of inlined ones, the callee's."""
    definitions: dict[str, str] = {}
    loads = []
    for line in map(str.strip, ttir.splitlines()):
        definition = _DEFINITION.match(line)
        if definition:
            definitions[definition["name"]] = definition["location"]
            continue
        load = _LOAD.search(line)
        if load and load["operands"].count("%") == 2:
            loads.append(load["location"])
    found = (_resolved(location, definitions) for location in loads)
    return tuple(dict.fromkeys(place for place in found if place is not None))


def _resolved(location: str, definitions: dict[str, str]) -> Place | None:
    """The first place that a location leads to; in a chain of calls that is the innermost."""
    for _ in range(len(definitions) + 1):
        place, reference = _PLACE.search(location), _REFERENCE.search(location)
        if place is not None and (reference is None or place.start() < reference.start()):
            return Place(place["file"], int(place["line"]))
        if reference is None:
            return None
        location = definitions.get(reference.group(), "")
    return None


@contextmanager
def filled(filling: Filling) -> Iterator[None]:
    """Kernels compiled inside have the loads of ``filling`` filled."""
    original: Callable[..., Any] = TritonSemantic.load

    def load(semantic: Any, pointer: Any, mask: Any, other: Any, *policy: Any, **options: Any) -> Any:
        if mask is not None and other is None and any(map(filling.fills, _lines_of(sys._getframe(1)))):
            other = _sentinel(semantic, pointer.type.scalar.element_ty)
        return original(semantic, pointer, mask, other, *policy, **options)

    TritonSemantic.load = load
    try:
        yield
    finally:
        TritonSemantic.load = original


def _lines_of(frame: FrameType | None) -> list[Place]:
    """The lines of the expression that is compiled: Triton notes one of them, and which one depends on its version."""
    while frame is not None:
        generator = frame.f_locals.get("self")
        if isinstance(generator, CodeGenerator):
            node, begin = generator.cur_node, generator.begin_line
            return [Place(generator.file_name, begin + n) for n in range(node.lineno, node.end_lineno + 1)]
        frame = frame.f_back
    return []


def _sentinel(semantic: Any, element: Any) -> Any:
    """A scalar of that element type which is no legal length, offset or id."""
    if element == tl.int1:
        return semantic.scalar_constant(1, tl.int8)
    if element.is_ptr():
        return semantic.cast(semantic.scalar_constant(_repeated(8), tl.int64), element)
    size = element.primitive_bitwidth // 8
    bits = _FLOATS[element.name] if element.is_floating() else _repeated(size)
    if element.is_int():
        return semantic.scalar_constant(bits, element)
    holder = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}[size]
    return semantic.bitcast(semantic.scalar_constant(bits, holder), element)


def _repeated(size: int) -> int:
    return int.from_bytes(bytes([_INTEGER]) * size, "little")
