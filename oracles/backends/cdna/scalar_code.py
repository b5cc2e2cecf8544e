"""Code for scalar instructions: Python integers."""

from __future__ import annotations

from oracles.backends.cdna.emit import HIGH, LOW, Emitter, expect, scalar_register
from oracles.backends.cdna.ir import EXEC, Instruction, Integer
from oracles.backends.cdna.tables.rows import ScalarRow
from oracles.backends.cdna.tables.scalar import SAVEEXEC, SCALAR, SCALAR_COMPARE, SCALAR_TEST, WREXEC
from oracles.backends.cdna.wave import Wave
from oracles.verdict import Unsupported

MODE = 1
"""The number of the hardware register MODE."""

FP16_OVERFLOW = 1 << 23
"""Its one bit that code may change here: whether overflows of small floats give the largest number."""

_EXEC = f"(s[{EXEC}] | s[{EXEC + 1}] << 32)"


def scalar(emitter: Emitter, instruction: Instruction) -> bool:
    """Emit a scalar instruction; whether it is one."""
    name = instruction.name
    if name in SCALAR:
        _arithmetic(emitter, instruction, SCALAR[name])
    elif name in SCALAR_COMPARE:
        _compare(emitter, instruction, *SCALAR_COMPARE[name])
    elif name in SCALAR_TEST:
        kinds, expression = SCALAR_TEST[name]
        operands = expect(instruction, 2)
        sources = [emitter.scalar_source(operand, kind) for operand, kind in zip(operands, kinds, strict=True)]
        emitter.line(f"SCC = {expression.format(*sources)}")
    elif name in SAVEEXEC or name in WREXEC:
        _change_exec(emitter, instruction, SAVEEXEC.get(name) or WREXEC[name], save=name in SAVEEXEC)
    elif name in ("s_setreg_imm32_b32", "s_setreg_b32"):
        _set_hardware_register(emitter, instruction)
    else:
        return False
    return True


def _arithmetic(emitter: Emitter, instruction: Instruction, row: ScalarRow) -> None:
    destination, *operands = instruction.operands
    number, wide = scalar_register(destination), row.width == 64
    if len(operands) != sum(kind not in "Dd" for kind in row.sources):
        raise Unsupported(f"{instruction.text!r}: a wrong number of operands")
    given = iter(operands)
    sources = []
    for kind in row.sources:
        if kind in "Dd":
            kind = {"D": "Bb", "d": "ij"}[kind][wide]
            sources.append(emitter.scalar_source(destination, kind))
        else:
            sources.append(emitter.scalar_source(next(given), kind))
    emitter.line(f"t = {row.value.format(*sources)}")
    if row.scc:
        emitter.line(f"q = {row.scc.format(*sources)}")
    emitter.line(f"s[{number}] = t & {LOW}" + (f"; s[{number + 1}] = t >> 32 & {LOW}" if wide else ""))
    if row.scc:
        emitter.line("SCC = q")
    emitter.after_scalar_write(number)


def _compare(emitter: Emitter, instruction: Instruction, kind: str, operator: str) -> None:
    first, second = expect(instruction, 2)
    if instruction.name.startswith("s_cmpk") and kind == "B" and isinstance(second, Integer):
        second = Integer(second.value & 0xFFFF)
    left, right = emitter.scalar_source(first, kind), emitter.scalar_source(second, kind)
    emitter.line(f"SCC = int({left} {operator} {right})")


def _change_exec(emitter: Emitter, instruction: Instruction, expression: str, *, save: bool) -> None:
    destination, source = expect(instruction, 2)
    number = scalar_register(destination)
    emitter.line(f"E = {_EXEC}")
    emitter.line(f"t = ({expression.format(emitter.scalar_source(source, 'b'))}) & {HIGH}")
    kept = "E" if save else "t"
    emitter.line(f"s[{number}] = {kept} & {LOW}; s[{number + 1}] = {kept} >> 32")
    emitter.line("SCC = int(t != 0); M = set_exec(w, t)")


def _set_hardware_register(emitter: Emitter, instruction: Instruction) -> None:
    field, value = expect(instruction, 2)
    if not isinstance(field, Integer) or field.value & 63 != MODE:
        raise Unsupported(f"{instruction.text!r}: only the register MODE can be written")
    first, count = field.value >> 6 & 31, (field.value >> 11 & 31) + 1
    emitter.line(f"{emitter.bind(set_mode)}(w, {first}, {count}, {emitter.scalar_source(value, 'B')})")


def set_mode(wave: Wave, first: int, count: int, value: int) -> None:
    """Write ``count`` bits of MODE from bit ``first`` on.

    Refused: a change of any bit but FP16_OVFL, since rounding and denormals are computed in one way.
    """
    ones = (1 << count) - 1
    new = wave.mode & ~(ones << first) | (value & ones) << first
    if (new ^ wave.mode) & ~FP16_OVERFLOW:
        raise Unsupported(f"MODE is changed from {wave.mode:#x} to {new:#x}: another rounding or handling of denormals")
    wave.mode = new
