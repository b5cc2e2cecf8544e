"""Text that describes a kernel's machine code."""

from __future__ import annotations

import linecache
import os.path
from collections.abc import Iterator

from oracles.backends.cdna.assembly import parse
from oracles.backends.cdna.code_object import CodeObject, read
from oracles.backends.cdna.compile_only import Kernel
from oracles.backends.cdna.ir import Line, Program
from oracles.backends.cdna.statistics import Statistics, class_of, statistics
from oracles.verdict import Unsupported, readable

TEXT_WIDTH = 64
"""Columns that an instruction takes in a listing."""


def description(kernel: Kernel, *, lines: bool) -> Iterator[str]:
    """What a person wants to know of one kernel; with ``lines``, each instruction and where it comes from."""
    parameters = ", ".join(f"{name}: {kind}" for name, kind in kernel.parameters)
    yield f"{kernel.name}({parameters})"
    yield f"  launch        grid {'x'.join(map(str, kernel.grid))}, {_count(kernel.warps, 'wave')} a workgroup"
    try:
        code = read(kernel.binary)
        yield from _resources(kernel, code)
        program = parse(kernel.text, kernel.name, code.architecture)
    except Unsupported as reason:
        yield f"  not known     {reason}"
        return
    yield from _instructions(statistics(program.instructions))
    if lines:
        yield ""
        yield from _listing(program)


def _resources(kernel: Kernel, code: CodeObject) -> Iterator[str]:
    accumulators = f", {code.agprs} of them AGPRs" if code.agprs else ""
    yield f"  registers     {code.vgprs} VGPRs{accumulators}, {code.sgprs} SGPRs"
    yield f"  LDS           {_count(kernel.shared + code.lds_fixed, 'byte')}"
    spilled = f"{code.spilled_vgprs} VGPRs and {code.spilled_sgprs} SGPRs spilled"
    yield f"  scratch       {_count(code.scratch, 'byte')} a lane, {spilled}"


def _instructions(found: Statistics) -> Iterator[str]:
    mix = ", ".join(f"{name} {count}" for name, count in found.mix.items())
    yield f"  instructions  {found.instructions}: {mix}"
    ways = [name for name in ("buffer", "global", "flat") if name in found.mix]
    yield f"  addressing    {' and '.join(ways) or 'no vector memory'}{_addresses(found)}"
    yield f"  64-bit        {_count(found.wide_arithmetic, 'vector instruction')} for integers of 64 bits"


def _addresses(found: Statistics) -> str:
    accesses = found.mix.get("global", 0) + found.mix.get("flat", 0)
    if not accesses:
        return ""
    return f"; {found.lane_addresses} of {_count(accesses, 'access')} by a 64-bit address of each lane"


def _listing(program: Program) -> Iterator[str]:
    """The source text stands where the line is another one than that of the instruction before."""
    targets = {item.target for item in program.instructions}
    last: Line | None = None
    for item in program.instructions:
        mark = ">" if item.number in targets else " "
        text = f"{item.text} -> {item.target}" if item.target is not None else item.text
        where = "" if item.line is None else f"{_place(item.line)}{_source(item.line) if item.line != last else ''}"
        yield f"  {mark}{item.number:>5}  {class_of(item):<13}  {text:<{TEXT_WIDTH}}  {where}".rstrip()
        last = item.line


def _place(line: Line) -> str:
    """``file:line``, and the lines that it was inlined into."""
    place = f"{os.path.basename(line.file)}:{line.number}"
    return place if line.inlined is None else f"{place} in {_place(line.inlined)}"


def _source(line: Line) -> str:
    text = linecache.getline(line.file, line.number).strip()
    return f"  {readable(text)}" if text else ""


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"
