"""Which workgroup and which wave runs when.

A wave runs until it waits at a barrier, ends, or has used up its turn. Workgroups whose waves used up their turns step
back, so that one that waits for another lets it run; a wave that goes on past the step limit is a hang.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from oracles.backends.cdna.wave import END, Wave, Workgroup

Order = Literal["forward", "reverse", "random", "interleaved"]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "random", "interleaved")

TURN = 1024
"""Instructions that a wave may execute in one turn."""

WAITING_ROOM = 32
"""Workgroups that stepped back before they all get another turn and new ones start."""

RESIDENT = 8
"""Workgroups that run at once where they are interleaved, at first."""

PATIENCE = 64
"""Turns of each of those in which none has ended; then another one starts, for which they may all wait."""

Block = Callable[[Wave], int]


class StepLimit(Exception):
    """A wave has executed more instructions than it may."""

    def __init__(self, wave: Wave) -> None:
        super().__init__(f"wave {wave.number} of workgroup {wave.group.index}")
        self.wave = wave


class Schedule:
    """One launch's order. ``blocks`` gives the code that begins at an instruction.

    ``start`` makes a workgroup by its number; ``release`` is called for one whose waves all wait at a barrier or have
    ended, ``finish`` for one whose waves have all ended.
    """

    def __init__(
        self,
        order: Order,
        generator: random.Random,
        step_limit: int,
        blocks: Callable[[int], Block],
        start: Callable[[int], Workgroup],
        release: Callable[[Workgroup], None],
        finish: Callable[[Workgroup], None],
    ) -> None:
        self._order = order
        self._generator = generator
        self._step_limit = step_limit
        self._blocks = blocks
        self._start = start
        self._release = release
        self._finish = finish
        self._backwards = False

    def run(self, count: int) -> None:
        """Run that many workgroups. Raises :class:`StepLimit`."""
        numbers = self._numbers(count)
        if self._order == "interleaved":
            self._interleaved(numbers)
            return
        waiting: list[Workgroup] = []
        for number in numbers:
            group = self._start(number)
            if not self._turn(group, TURN):
                waiting.append(group)
                if len(waiting) % WAITING_ROOM == 0:
                    waiting = self._round(waiting)
        while waiting:
            waiting = self._round(waiting)

    def _numbers(self, count: int) -> Sequence[int]:
        if self._order == "reverse":
            return range(count - 1, -1, -1)
        if self._order == "forward":
            return range(count)
        return self._generator.sample(range(count), count)

    def _round(self, groups: list[Workgroup]) -> list[Workgroup]:
        """Give each of them a turn; those that are not done. Back and forth, as each may wait for its neighbour."""
        self._backwards = not self._backwards
        return [group for group in (groups[::-1] if self._backwards else groups) if not self._turn(group, TURN)]

    def _interleaved(self, numbers: Sequence[int]) -> None:
        coming = iter(numbers)
        resident = [self._start(number) for _, number in zip(range(RESIDENT), coming, strict=False)]
        idle = 0
        while resident:
            at = self._generator.randrange(len(resident))
            idle += 1
            ended = self._turn(resident[at], self._generator.randrange(1, 64))
            if ended:
                del resident[at]
            if ended or idle > PATIENCE * len(resident):
                idle = 0
                resident += [self._start(number) for _, number in zip(range(1), coming, strict=False)]

    def _turn(self, group: Workgroup, instructions: int) -> bool:
        """Let a workgroup's waves run, each that many instructions further; whether it has ended."""
        stops = [wave.executed + instructions for wave in group.waves]
        while True:
            for wave in self._waves(group):
                if not wave.waiting and not wave.done:
                    self._run(wave, stops[wave.number])
            if all(wave.done for wave in group.waves):
                self._finish(group)
                return True
            if not all(wave.waiting or wave.done for wave in group.waves):
                return False
            self._release(group)
            # A loop around a barrier may wait for another workgroup, too.
            if any(wave.executed >= stop for wave, stop in zip(group.waves, stops, strict=True)):
                return False

    def _waves(self, group: Workgroup) -> Iterator[Wave]:
        waves = group.waves
        if self._order == "reverse":
            return reversed(waves)
        if self._order == "forward" or len(waves) == 1:
            return iter(waves)
        return iter(self._generator.sample(waves, len(waves)))

    def _run(self, wave: Wave, stop: int) -> None:
        """Run a wave until it waits, ends, or has executed as many instructions as ``stop`` says."""
        pc, blocks = wave.pc, self._blocks
        stop = min(stop, self._step_limit)
        while True:
            pc = blocks(pc)(wave)
            if pc < 0:
                wave.done = pc == END
                wave.waiting = not wave.done
                wave.pc = -2 - pc
                return
            if wave.executed >= stop:
                wave.pc = pc
                if wave.executed >= self._step_limit:
                    raise StepLimit(wave)
                return
