"""Makes Python functions of a program, one for each stretch of instructions that is entered at its first one only.

A function takes the wave and returns the number of the instruction to go on with, or what :data:`~.wave.END` says.
Stretches are translated when a wave first comes to them, so an instruction that is not known is refused only then.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

from oracles.backends.cdna import lane_code, memory_code
from oracles.backends.cdna.emit import RUNTIME, Emitter
from oracles.backends.cdna.ir import EXEC, VCC, Instruction, Program
from oracles.backends.cdna.scalar_code import scalar
from oracles.backends.cdna.vector_code import vector
from oracles.backends.cdna.wave import END, Wave
from oracles.verdict import Unsupported

Block = Callable[[Wave], int]

WITHOUT_EFFECT = frozenset({
    "s_nop", "v_nop", "s_waitcnt", "s_sleep", "s_setprio", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "buffer_wbl2",
})  # fmt: skip
"""Instructions that a machine needs not, which does one thing after the other and has no caches."""

CONDITIONS = {
    "scc0": "not SCC",
    "scc1": "SCC",
    "vccz": f"not (s[{VCC}] | s[{VCC + 1}])",
    "vccnz": f"s[{VCC}] | s[{VCC + 1}]",
    "execz": f"not (s[{EXEC}] | s[{EXEC + 1}])",
    "execnz": f"s[{EXEC}] | s[{EXEC + 1}]",
}
"""When ``s_cbranch_*`` branches."""

_HEAD = ("def block(w):", "v = w.v; s = w.s; M = w.mask; SCC = w.scc")


class Blocks:
    """The functions of one program, made when they are needed."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._namespace: dict[str, Any] = dict(RUNTIME)
        self._made: list[Block | None] = [None] * (len(program.instructions) + 1)
        self._starts = _starts(program)

    def at(self, number: int) -> Block:
        """The function that begins at an instruction."""
        return self._made[number] or self._make(number)

    def source(self, number: int) -> str:
        """Its text."""
        emitter = Emitter(self.program.architecture, self._namespace)
        instructions = self.program.instructions
        at = bisect.bisect_right(self._starts, number)
        stop = self._starts[at] if at < len(self._starts) else len(instructions)
        following = str(stop)
        for instruction in instructions[number:stop]:
            ending = _emit(emitter, instruction)
            if ending is not None:
                following = ending
        tail = (f"w.scc = SCC; w.executed += {stop - number}", f"return {following}")
        return "\n ".join((*_HEAD, *emitter.lines, *tail)) + "\n"

    def _make(self, number: int) -> Block:
        if not 0 <= number < len(self.program.instructions):
            raise Unsupported(f"kernel {self.program.name} runs past its last instruction")
        text = self.source(number)
        namespace = self._namespace
        exec(compile(text, f"<{self.program.name} from instruction {number}>", "exec"), namespace)
        block: Block = namespace.pop("block")
        self._made[number] = block
        return block


def _starts(program: Program) -> list[int]:
    """Where stretches begin: at the start, at the targets of branches, and behind what ends one."""
    starts = {0}
    for instruction in program.instructions:
        if instruction.target is not None:
            starts |= {instruction.target, instruction.number + 1}
        elif instruction.name in ("s_barrier", "s_endpgm"):
            starts.add(instruction.number + 1)
    return sorted(starts)


def _emit(emitter: Emitter, instruction: Instruction) -> str | None:
    """Add an instruction's code. Of one that ends a stretch, an expression for what comes next."""
    name = instruction.name
    if name.startswith(("s_branch", "s_cbranch_", "s_barrier", "s_endpgm")):
        return _ending(instruction)
    if name in WITHOUT_EFFECT:
        return None
    if not (
        memory_code.memory(emitter, instruction)
        or lane_code.across_lanes(emitter, instruction)
        or scalar(emitter, instruction)
    ):
        if not name.startswith("v_"):
            raise Unsupported(f"instruction {instruction.text or name!r} is not emulated")
        vector(emitter, instruction)
    return None


def _ending(instruction: Instruction) -> str:
    name, following = instruction.name, instruction.number + 1
    if name == "s_endpgm":
        return str(END)
    if name == "s_barrier":
        return str(-2 - following)
    if name == "s_branch":
        return str(instruction.target)
    condition = CONDITIONS.get(name.removeprefix("s_cbranch_"))
    if condition is None:
        raise Unsupported(f"branch {instruction.text or name!r} is not emulated")
    return f"{instruction.target} if {condition} else {following}"
