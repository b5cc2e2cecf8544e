"""Executes kernels for gfx942 and gfx950 as their machine code says, and watches what they touch."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from oracles.backends.cdna.ir import LANES, Instruction, Program
from oracles.backends.cdna.local_memory import LocalMemory
from oracles.backends.cdna.reports import Grid, LaunchRecord, Report, site
from oracles.backends.cdna.schedule import ORDERS, Order, Schedule, StepLimit
from oracles.backends.cdna.shadow import Conflict, Digest, Place, conflicts
from oracles.backends.cdna.translate import Blocks
from oracles.backends.cdna.wave import (
    LANE_NUMBERS,
    SCALAR_REGISTERS,
    VECTOR_REGISTERS,
    Wave,
    Words,
    Workgroup,
)
from oracles.verdict import BarrierDivergence, Hang, Race, Unsupported

if TYPE_CHECKING:
    from oracles.backends.cdna.code_object import CodeObject
    from oracles.backends.cdna.space import Allocation, DeviceSpace

STEP_LIMIT = 500_000
"""Instructions that a wave may execute before it counts as one that never ends."""

MOST_WAVES = 16
_GARBAGE = 16
"""Different vectors that registers start with, each wave with another one of them first."""


@dataclass(frozen=True, eq=False)
class LoadedKernel:
    """A kernel's instructions and what the dispatcher knows of it. Translated code is kept with it."""

    program: Program
    code: CodeObject

    @cached_property
    def blocks(self) -> Blocks:
        """The program as Python functions."""
        return Blocks(self.program)


class Machine:
    """Runs launches on ``space``.

    ``order``: ``forward``, ``reverse``, ``random`` or ``interleaved``, of workgroups and of the waves in each. ``seed``
    fixes that, and the garbage in registers and local memory.
    """

    def __init__(
        self, space: DeviceSpace, *, order: Order = "forward", seed: int = 0, step_limit: int = STEP_LIMIT
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order: {order!r} is none of {', '.join(ORDERS)}")
        self.space = space
        self.order = order
        self.step_limit = step_limit
        self._seed = seed
        self._launches = 0

    def launch(self, kernel: LoadedKernel, arguments: bytes, grid: Grid, warps: int, shared: int) -> LaunchRecord:
        """Run a kernel to its end: ``grid`` workgroups of ``warps`` waves with ``shared`` bytes of local memory each.

        Refused with :class:`oracles.verdict.Unsupported`: code that needs scratch memory, more than 16 waves, and an
        instruction that is not known, when a wave comes to it.
        """
        if kernel.code.scratch:
            raise Unsupported(f"kernel {kernel.program.name} uses {kernel.code.scratch} bytes of scratch memory a lane")
        if not 1 <= warps <= MOST_WAVES:
            raise Unsupported(f"kernel {kernel.program.name}: {warps} waves in a workgroup")
        self._launches += 1
        generator = random.Random(f"{self._seed}/{self._launches}")
        window = self.space.arguments(arguments)
        try:
            # Integers wrap around and floats overflow: that is the kernel's business.
            with np.errstate(all="ignore"):
                launch = _Launch(self, kernel, window.low, grid, warps, shared, generator)
                launch.run()
            return launch.record
        finally:
            self.space.end_launch()


class _Launch:
    def __init__(
        self,
        machine: Machine,
        kernel: LoadedKernel,
        arguments: int,
        grid: Grid,
        warps: int,
        shared: int,
        generator: random.Random,
    ) -> None:
        self.record = LaunchRecord(kernel.program.name, grid)
        self._machine = machine
        self._kernel = kernel
        self._grid = grid
        self._warps = warps
        self._shared = shared + kernel.code.lds_fixed
        self._arguments = arguments
        self._count = math.prod(grid)
        self._generator = generator
        self._digests: dict[Allocation, list[Digest]] = {}
        words = np.frombuffer(generator.randbytes(4 * LANES * _GARBAGE), np.uint32).reshape(_GARBAGE, LANES)
        self._vectors: list[Words] = [words[number % _GARBAGE] for number in range(VECTOR_REGISTERS)]
        self._scalars: list[int] = words.ravel()[:SCALAR_REGISTERS].tolist()

    def run(self) -> None:
        schedule = Schedule(
            self._machine.order,
            self._generator,
            self._machine.step_limit,
            self._kernel.blocks.at,
            self._start,
            self._release,
            self._finish,
        )
        try:
            schedule.run(self._count)
        except StepLimit as limit:
            self._hang(limit.wave)
        for allocation, digests in self._digests.items():
            for conflict in conflicts(digests):
                self._race(allocation, conflict, None)

    def _index(self, number: int) -> Grid:
        rest, x = divmod(number, self._grid[0])
        z, y = divmod(rest, self._grid[1])
        return x, y, z

    def _start(self, number: int) -> Workgroup:
        garbage = np.frombuffer(self._generator.randbytes(self._shared), np.uint8)
        local = LocalMemory(garbage)
        group = Workgroup(number, self._index(number), self._machine.space, local, self.record, self._count == 1)
        code = self._kernel.code
        for wave in range(self._warps):
            turn = (number * MOST_WAVES + wave) % _GARBAGE
            v = self._vectors[turn:] + self._vectors[:turn]
            s = self._scalars[turn:] + self._scalars[:turn]
            s[0], s[1] = self._arguments & 0xFFFFFFFF, self._arguments >> 32
            identifiers = [part for part, wanted in zip(group.index, code.workgroup_ids, strict=True) if wanted]
            s[code.user_sgprs : code.user_sgprs + len(identifiers)] = identifiers
            v[0] = (LANE_NUMBERS + LANES * wave).astype(np.uint32)
            group.add(Wave(group, wave, v, s, turn & 1))
        return group

    def _release(self, group: Workgroup) -> None:
        """Let the waves go on that wait at a barrier. Waves that have ended count as if they waited."""
        waiting = [wave for wave in group.waves if wave.waiting]
        barriers = {wave.pc - 1 for wave in waiting}
        if len(waiting) < len(group.waves) or len(barriers) > 1:
            first = waiting[0]
            what = (
                f"{len(waiting)} of {len(group.waves)} waves came to the barrier, the others had ended"
                if len(barriers) == 1
                else f"waves of one workgroup wait at {len(barriers)} different barriers"
            )
            self.record.note(BarrierDivergence, self.record.kernel, what, first, self._instruction(first.pc - 1))
        self._close(group)
        for wave in waiting:
            wave.waiting = False

    def _finish(self, group: Workgroup) -> None:
        self._close(group)
        self.record.workgroups += 1
        self.record.instructions += sum(wave.executed for wave in group.waves)
        for allocation, digest in group.digests.items():
            self._digests.setdefault(allocation, []).append(digest)

    def _close(self, group: Workgroup) -> None:
        group.close_epoch(lambda what, conflict: self._race(what, conflict, group))

    def _instruction(self, number: int) -> Instruction:
        return self._kernel.program.instructions[number]

    def _hang(self, wave: Wave) -> None:
        what = f"still running after {self._machine.step_limit} instructions of one wave"
        self.record.note(Hang, self.record.kernel, what, wave, self._with_line(wave.pc))

    def _with_line(self, number: int) -> Instruction:
        """An instruction, with the line of what follows it where it has none: the code of loops has many of these."""
        instruction = self._instruction(number)
        following = (each.line for each in self._kernel.program.instructions[number:] if each.line is not None)
        return replace(instruction, line=next(following, None))

    def _race(self, what: Allocation | LocalMemory, conflict: Conflict, group: Workgroup | None) -> None:
        """Report a race between waves of a group, or between workgroups."""
        first, second = conflict.first, conflict.second
        other = f"wave {second.wave}" if group is not None else f"workgroup {self._index(second.agent)}"
        verb = "stores another value there than" if conflict.both_store else "loads what is changed by"
        between = ", with no barrier between them" if group is not None else ""
        instruction = self._instruction(second.instruction)
        told = (
            f"{what.locate(conflict.offset, conflict.unit)}: it {verb} {other}{between}"
            f" ({site(instruction.line)}, instruction `{instruction.text or instruction.name}`)"
        )
        self.record.add(
            Report(Race, what.place, told, self._instruction(first.instruction), self._owner(first, group), first.wave)
        )

    def _owner(self, place: Place, group: Workgroup | None) -> Grid:
        return group.index if group is not None else self._index(place.agent)
