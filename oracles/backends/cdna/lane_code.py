"""Code for instructions that move values between lanes, or between vector and scalar registers."""

from __future__ import annotations

import numpy as np

from oracles.backends.cdna import cross_lane
from oracles.backends.cdna.emit import Emitter, allowed, expect, register_number, scalar_register
from oracles.backends.cdna.ir import LANES, Instruction, Operand, Register
from oracles.backends.cdna.tables import cross_lane as table

_ACCUMULATION = ("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32")
_SWAPS = {"v_permlane16_swap_b32": 16, "v_permlane32_swap_b32": 32}
_PERMUTES = {"ds_bpermute_b32": cross_lane.bpermute, "ds_permute_b32": cross_lane.permute}


def across_lanes(emitter: Emitter, instruction: Instruction) -> bool:
    """Emit such an instruction; whether it is one."""
    name = instruction.name
    if name in ("v_readfirstlane_b32", "v_readlane_b32"):
        _read_lane(emitter, instruction)
    elif name == "v_writelane_b32":
        _write_lane(emitter, instruction)
    elif name in _PERMUTES:
        allowed(instruction, "offset")
        numbers = ", ".join(str(register_number(operand)) for operand in expect(instruction, 3))
        function = emitter.bind(_PERMUTES[name])
        emitter.line(f"{function}(w, M, {numbers}, {instruction.modifiers.get('offset', 0)})")
    elif name == "ds_swizzle_b32":
        allowed(instruction, "offset")
        result, source = (register_number(operand) for operand in expect(instruction, 2))
        lanes = emitter.bind(np.array(table.swizzle(instruction.modifiers.get("offset", 0))))
        emitter.line(f"{emitter.bind(cross_lane.swizzle)}(w, M, {result}, {source}, {lanes})")
    elif name in _SWAPS:
        allowed(instruction)
        first, second = (register_number(operand) for operand in expect(instruction, 2))
        emitter.line(f"{emitter.bind(cross_lane.swapper(_SWAPS[name]))}(w, M, {first}, {second})")
    elif name in _ACCUMULATION:
        allowed(instruction)
        target, operand = expect(instruction, 2)
        number, value = register_number(target), emitter.vector_source(operand, "u")
        emitter.line(f"v[{number}] = merged(M, {value}, v[{number}])")
    else:
        return False
    return True


def _read_lane(emitter: Emitter, instruction: Instruction) -> None:
    allowed(instruction)
    if instruction.name == "v_readlane_b32":
        destination, source, lane = expect(instruction, 3)
        at = _lane(emitter, lane)
    else:
        destination, source = expect(instruction, 2)
        at = "first_lane(M)"
    number = scalar_register(destination)
    if isinstance(source, Register) and source.file != "s":
        emitter.line(f"s[{number}] = v[{register_number(source)}].item({at})")
    else:
        emitter.line(f"s[{number}] = {emitter.scalar_source(source, 'B')}")
    emitter.after_scalar_write(number)


def _write_lane(emitter: Emitter, instruction: Instruction) -> None:
    allowed(instruction)
    result, source, lane = expect(instruction, 3)
    number, value = register_number(result), emitter.scalar_source(source, "B")
    write = emitter.bind(cross_lane.write_lane)
    emitter.line(f"v[{number}] = {write}(v[{number}], {_lane(emitter, lane)}, {value})")


def _lane(emitter: Emitter, operand: Operand) -> str:
    return f"({emitter.scalar_source(operand, 'B')}) % {LANES}"
