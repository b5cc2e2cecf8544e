"""Code for vector instructions that the tables have a row for."""

from __future__ import annotations

from oracles.backends.cdna.cross_lane import dpp
from oracles.backends.cdna.emit import Emitter, register_number
from oracles.backends.cdna.ir import VCC, Instruction, Operand, Register
from oracles.backends.cdna.scalar_code import FP16_OVERFLOW
from oracles.backends.cdna.tables.forms import row_of
from oracles.backends.cdna.tables.rows import VectorRow
from oracles.backends.cdna.wave import ALL_LANES
from oracles.verdict import Unsupported


def vector(emitter: Emitter, instruction: Instruction) -> None:
    """Emit a vector instruction. Refused with :class:`oracles.verdict.Unsupported`: one that no row is for."""
    row = row_of(instruction, emitter.architecture)
    count = len(row.results)
    results, given = instruction.operands[:count], list(instruction.operands[count:])
    mask = "N" if "dpp" in instruction.modifiers else "M"
    sources: list[Operand | str] = []
    for number, kind in enumerate(row.sources):
        if kind in "DVO":
            sources.append(_implicit(emitter, kind, row, results[0]))
        elif not given:
            raise Unsupported(f"{instruction.text!r}: an operand is missing")
        elif number == 0 and mask == "N":
            sources.append(_from_other_lanes(emitter, instruction, given.pop(0), kind))
        else:
            sources.append(given.pop(0))
    if given or len(results) < count:
        raise Unsupported(f"{instruction.text!r}: a wrong number of operands")
    emitter.line(f"{'t, c' if count == 2 else 't'} = {emitter.expression(row.expression, row.sources, sources)}")
    _write(emitter, results[0], row.results[0], mask)
    if count == 2:
        _write_flags(emitter, results[1], "c", mask)


def _implicit(emitter: Emitter, kind: str, row: VectorRow, result: Operand) -> str:
    if kind == "D":
        return emitter.vector_source(result, "F" if row.results[0] in "UIF" else "f")
    if kind == "V":
        return emitter.vector_source(Register("s", VCC, 2), "m")
    return f"flags({ALL_LANES} if w.mode & {FP16_OVERFLOW} else 0)"


def _from_other_lanes(emitter: Emitter, instruction: Instruction, operand: Operand, kind: str) -> str:
    modifiers = instruction.modifiers
    if kind not in "uifhw":
        raise Unsupported(f"{instruction.text!r}: DPP on a 64-bit source")
    names = ("dpp", "row_mask", "bank_mask", "bound_ctrl")
    picker = emitter.bind(dpp(*(modifiers[name] for name in names)))
    emitter.line(f"x, N = {picker}(v[{register_number(operand)}], M)")
    return {"i": "x.view(i32)", "f": "x.view(f32)"}.get(kind, "x")


def _write(emitter: Emitter, result: Operand, kind: str, mask: str) -> None:
    if kind == "m":
        _write_flags(emitter, result, "t", mask)
        return
    number = register_number(result)
    if kind in "UIF":
        emitter.line("t = t.view(u32)")
        for half in (0, 1):
            emitter.line(f"v[{number + half}] = merged({mask}, t[{half}::2].copy(), v[{number + half}])")
        return
    view = ".view(u32)" if kind in "if" else ""
    emitter.line(f"v[{number}] = t{view} if {mask} is None else merged({mask}, t{view}, v[{number}])")


def _write_flags(emitter: Emitter, result: Operand, name: str, mask: str) -> None:
    emitter.line(f"if {mask} is not None: {name} = {name} & {mask}")
    emitter.write_mask(result, name)
