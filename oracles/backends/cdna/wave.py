"""The state of a wave and of a workgroup while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from oracles.backends.cdna.ir import EXEC, LANES
from oracles.backends.cdna.shadow import Digest, Touch, conflicts, digest, joined

if TYPE_CHECKING:
    from oracles.backends.cdna.local_memory import LocalMemory
    from oracles.backends.cdna.reports import Grid, LaunchRecord
    from oracles.backends.cdna.shadow import Conflict
    from oracles.backends.cdna.space import Allocation, DeviceSpace

    Touched: TypeAlias = Allocation | LocalMemory

Words = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

VECTOR_REGISTERS = 512
"""The unified file: accumulation registers are the upper half."""

ACCUMULATION = 256
SCALAR_REGISTERS = 128
ALL_LANES = (1 << LANES) - 1
LANE_NUMBERS = np.arange(LANES)

MODE = 0xF0
"""The register MODE at the start of a kernel that Triton makes: rounds to the nearest, keeps denormals."""

MOST_TOUCHES = 2048
"""Accesses to one buffer that are kept as they are before they are digested, so that long loops take no memory."""

END = -1
"""What a block of code returns at the end of the program; at a barrier it is ``-2`` minus the next instruction."""


class Wave:
    """64 lanes. Arrays in ``v`` are never written to, so registers may share them; ``s`` holds Python integers.

    ``mask`` is exec as one flag a lane, ``None`` where every lane is on. ``ordered``: the wave has acquired, see
    :mod:`oracles.backends.cdna.shadow`. ``mode`` is the hardware register of that name.
    """

    __slots__ = (
        "done",
        "executed",
        "group",
        "mask",
        "mode",
        "number",
        "ordered",
        "pc",
        "polled",
        "s",
        "scc",
        "v",
        "waiting",
    )

    def __init__(self, group: Workgroup, number: int, v: list[Words], s: list[int], scc: int) -> None:
        self.group = group
        self.number = number
        self.v = v
        self.s = s
        self.scc = scc
        self.mode = MODE
        self.pc = 0
        self.executed = 0
        self.waiting = self.done = self.ordered = self.polled = False
        self.mask: Flags | None = None
        s[EXEC] = s[EXEC + 1] = ALL_LANES & 0xFFFFFFFF


class Workgroup:
    """The waves of one workgroup, their local memory, and what they touched since the last barrier.

    ``alone``: there is no other workgroup to race with.
    """

    def __init__(
        self, number: int, index: Grid, space: DeviceSpace, local: LocalMemory, record: LaunchRecord, alone: bool
    ) -> None:
        self.number = number
        self.index = index
        self.space = space
        self.local = local
        self.record = record
        self.waves: list[Wave] = []
        self.recording = not alone
        self.digests: dict[Allocation, Digest] = {}
        self._alone = alone
        self._touches: dict[Touched, list[Touch]] = {}
        self._by_wave: dict[Touched, Digest] = {}

    def add(self, wave: Wave) -> None:
        """Let one more wave belong to it. Waves of one workgroup can race with each other."""
        self.waves.append(wave)
        self.recording = self.recording or len(self.waves) > 1

    def touch(self, what: Touched, touch: Touch) -> None:
        """Remember an access for the search for races."""
        touches = self._touches.get(what)
        if touches is None:
            self._touches[what] = [touch]
            return
        touches.append(touch)
        if len(touches) >= MOST_TOUCHES:
            self._digest_by_wave(what, touches)
            self._digest_as_whole(what, self._touches.pop(what))

    def close_epoch(self, report: Callable[[Touched, Conflict], None]) -> None:
        """Look for races between waves since the last barrier; what follows is ordered behind it."""
        for what, touches in self._touches.items():
            stored = any(touch.values is not None for touch in touches)
            if what in self._by_wave or (stored and len({touch.wave for touch in touches}) > 1):
                self._digest_by_wave(what, touches)
            self._digest_as_whole(what, touches)
        for what, made in self._by_wave.items():
            for conflict in conflicts([made], copies=True):
                report(what, conflict)
        self._touches, self._by_wave = {}, {}
        if any(wave.ordered for wave in self.waves):
            for wave in self.waves:
                wave.ordered = True

    def _digest_by_wave(self, what: Touched, touches: list[Touch]) -> None:
        if len(self.waves) > 1:
            made = digest(touches, [touch.wave for touch in touches])
            before = self._by_wave.get(what)
            self._by_wave[what] = made if before is None else joined(before, made)

    def _digest_as_whole(self, what: Touched, touches: list[Touch]) -> None:
        """What other workgroups can meet: accesses of any wave to global memory."""
        if self._alone or what is self.local:
            return
        made = digest(touches, [self.number] * len(touches))
        allocation = cast("Allocation", what)
        before = self.digests.get(allocation)
        self.digests[allocation] = made if before is None else joined(before, made)
