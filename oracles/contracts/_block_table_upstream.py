"""What vLLM's kernels for block tables do with an input, in their own arithmetic: known findings follow from it.

Each function gives the effect of one call. It is no second specification: a fault of upstream is in here as well, and
whoever asks compares with the specification.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from oracles.arrays import Array, Inputs
from reference.errors import PAD_SLOT_ID

Numbers = npt.NDArray[Any]
Runner = Literal["newer", "newer until 0.30", "older"]
"""The newer one took a request of -1 for a row until 0.30."""

FAR = 1 << 24
"""Rows away from a table where nothing of it can be, however they are multiplied."""

LANES = 1024
"""Elements that a program treats at once."""

MOST_ELEMENTS = 1 << 17
"""Elements behind each other that one program treats within a backend's time limit, with room to spare."""


@dataclass
class Effect:
    """What a call leaves in its buffers, and what it does beside.

    ``stray``: it touches memory outside its buffers, or between rows; then ``results`` says nothing. ``clash``: two
    programs write different values to one element. ``endless``: a program's loop runs into a time limit. ``idle``: it
    goes astray for a value that nothing is done with, and compilers leave such a load out. ``untouched``: elements of
    the results that nothing was written to.
    """

    results: list[Numbers]
    stray: bool = False
    clash: bool = False
    endless: bool = False
    idle: bool = False
    untouched: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    _writer: list[Numbers] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.untouched = [np.ones(result.shape, bool) for result in self.results]
        self._writer = [np.zeros(result.shape, np.int64) for result in self.results]

    def write(self, at: int, cells: Cells, where: Numbers, values: Numbers | int, program: int) -> None:
        """One program stores values at distances from the first element of result ``at``. Programs count from 1."""
        places, inside = cells.find(where)
        self.stray = self.stray or not inside.all()
        places, new = places[inside], np.broadcast_to(np.asarray(values), where.shape)[inside]
        old, writer = self.results[at].reshape(-1), self._writer[at].reshape(-1)
        foreign = (writer[places] != 0) & (writer[places] != program)
        self.clash = self.clash or bool((foreign & (old[places] != new)).any())
        old[places], writer[places] = new, program
        self.untouched[at].reshape(-1)[places] = False


class Cells:
    """The elements of an array by their distance from the first one, as a kernel computes addresses."""

    def __init__(self, value: Array, layout: tuple[int, ...] | None = None) -> None:
        self.values = value.data.reshape(-1)
        steps = value.layout if layout is None else layout
        sizes = [(step, count, place) for place, (step, count) in enumerate(zip(steps, value.shape, strict=True))]
        self._axes = sorted((size for size in sizes if size[1] > 1), reverse=True)
        self._shape = value.shape

    def find(self, distances: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Where these elements are in the flat values, and which of them there are."""
        rest = np.asarray(distances, np.int64)
        inside = np.full(rest.shape, self.values.size > 0)
        index = [np.zeros(rest.shape, np.int64) for _ in self._shape]
        for step, count, place in self._axes:
            at = rest // step if step else np.zeros_like(rest)
            inside &= (at >= 0) & (at < count)
            index[place] = np.clip(at, 0, count - 1)
            rest = rest - at * step
        inside &= rest == 0
        flat = np.zeros(rest.shape, np.int64)
        for place, count in enumerate(self._shape):
            flat = flat * count + index[place]
        return flat, inside

    def read(self, distances: Numbers | int) -> tuple[Numbers, bool]:
        """What a load gives, and whether it touches these elements only; 0 stands for all others."""
        places, inside = self.find(np.atleast_1d(np.asarray(distances, np.int64)))
        loaded = np.where(inside, self.values[places] if self.values.size else 0, 0).astype(self.values.dtype)
        return loaded, bool(inside.all())

    def one(self, distance: int) -> tuple[int, bool]:
        """The same for one element."""
        place, rest = [0] * len(self._shape), distance
        for step, count, axis in self._axes:
            at = rest // step if step else 0
            if not 0 <= at < count:
                return 0, False
            place[axis], rest = at, rest - at * step
        if rest or not self.values.size:
            return 0, False
        flat = 0
        for at, count in zip(place, self._shape, strict=True):
            flat = flat * count + at
        return int(self.values[flat]), True


def arrays(inputs: Inputs, name: str) -> tuple[Array, ...]:
    """The tensors of a list, or the one that there is."""
    value = inputs[name]
    return (value,) if isinstance(value, Array) else cast("tuple[Array, ...]", value)


def divided(one: Numbers, other: Numbers | int) -> Numbers:
    """Division as kernels do it: towards zero."""
    quotient: Numbers = one // other
    inexact: Numbers = (one % other != 0) & (one < 0)
    rounded: Numbers = quotient + inexact.astype(quotient.dtype)
    return rounded


def gathered(inputs: Inputs) -> Effect:
    """``BlockTables.gather_block_tables``, with windows where the inputs have some."""
    effect = Effect([table.data.copy() for table in arrays(inputs, "out")])
    for group in range(len(effect.results)):
        _gather_group(inputs, effect, group)
    return effect


def _gather_group(inputs: Inputs, effect: Effect, group: int) -> None:
    table, counts = arrays(inputs, "block_tables")[group], cast(Array, inputs["num_blocks"])
    ids, rows = cast(Array, inputs["idx_mapping"]), effect.results[group].shape[0]
    source, target, numbers, blocks_of = Cells(table), Cells(arrays(inputs, "out")[group]), Cells(ids), Cells(counts)
    stride = table.layout[0]
    for row in range(rows):
        program = row + 1
        if row >= ids.data.size:
            # The stride is taken for the number of columns.
            effect.endless = effect.endless or stride > MOST_ELEMENTS
            effect.write(group, target, row * stride + np.arange(min(stride, MOST_ELEMENTS)), 0, program)
            continue
        request, known = numbers.one(row)
        request = max(min(request, FAR), -FAR)
        count, there = blocks_of.one(_in_32_bits(group, counts.layout[0]) + request)
        effect.stray = effect.stray or not (known and there)
        effect.endless = effect.endless or count > MOST_ELEMENTS
        # Behind its row, a program reads the next one's blocks and writes into the next one's row.
        effect.stray = effect.stray or count > table.shape[1]
        columns = np.arange(max(min(count, table.shape[1]), 0))
        seen = columns >= _left_behind(inputs, effect, group, request)
        blocks, inside = source.read(request * stride + columns)
        effect.stray = effect.stray or (bool(seen.any()) and not inside)
        effect.write(group, target, row * stride + columns, np.where(seen, blocks, 0), program)


def _in_32_bits(index: int, stride: int) -> int:
    """Their product as a kernel has it whose index has 32 bits, and whose stride has where it fits."""
    product = index * stride
    return product if stride >= 1 << 31 else (product + (1 << 31)) % (1 << 32) - (1 << 31)


def _left_behind(inputs: Inputs, effect: Effect, group: int, request: int) -> int:
    """Columns before the window; the difference may wrap in 32 bits."""
    reaches = cast("tuple[int, ...]", inputs.get("window_reach", ()))
    if not any(reaches):
        return 0
    first, inside = Cells(cast(Array, inputs["num_computed_tokens"])).read(request)
    effect.stray = effect.stray or not inside
    if not reaches[group]:
        return 0
    with np.errstate(over="ignore"):
        beyond = first - np.array(reaches[group], np.int32)
    return max(int(beyond[0]), 0) // cast("tuple[int, ...]", inputs["block_sizes"])[group]


@dataclass(frozen=True)
class _Step:
    """One call of a slot mapping: the tensors as kernels see them, and its sizes."""

    inputs: Inputs
    runner: Runner

    def cells(self, name: str) -> Cells:
        return Cells(cast(Array, self.inputs[name]))

    def size(self, name: str) -> int:
        return cast(int, self.inputs[name])

    @property
    def kernel_block_size(self) -> int:
        return cast(int, self.inputs.get("kernel_block_size", self.inputs["block_size"]))

    @property
    def enabled(self) -> bool:
        return self.inputs.get("enabled", True) is True


def slots(inputs: Inputs, runner: Runner) -> Effect:
    """``BlockTables.compute_slot_mappings`` or, of the older runner, ``BlockTable.compute_slot_mapping``."""
    step = _Step(inputs, runner)
    buffer, starts, ids = step.cells("slot_mapping"), step.cells("query_start_loc"), step.cells("idx_mapping")
    effect = Effect([cast(Array, inputs["slot_mapping"]).data.copy()])
    if runner == "older" and not step.enabled:
        return effect
    rows = cast(Array, inputs["idx_mapping"]).data.size
    for row in range(rows):
        request, known = (row, True) if runner == "older" else ids.one(row)
        begin, first = starts.one(row)
        end, second = starts.one(row + 1)
        effect.stray = effect.stray or not (first and second)
        tokens = _elements(effect, begin, end)
        effect.idle = effect.idle or not (known or tokens.size)
        if tokens.size:
            effect.stray = effect.stray or not known
            effect.write(0, buffer, tokens, _slots_of(step, effect, request, tokens), row + 1)
    behind, there = starts.one(rows)
    if runner == "older":
        behind, there = cast(Array, inputs["positions"]).data.size, True
    effect.stray = effect.stray or not there
    effect.write(0, buffer, _elements(effect, behind, effect.results[0].size), PAD_SLOT_ID, rows + 1)
    return effect


def _elements(effect: Effect, begin: int, end: int) -> Numbers:
    """What a program's loop goes through, cut off where that has no end."""
    effect.endless = effect.endless or end - begin > MOST_ELEMENTS
    count = min(max(end - begin, 0), MOST_ELEMENTS)
    # A loop that far from all buffers begins outside of them.
    return np.arange(count, dtype=np.int64) + max(min(begin, 1 << 62), -(1 << 62))


def _slots_of(step: _Step, effect: Effect, request: int, tokens: Numbers) -> Numbers:
    """The slots of one row's tokens."""
    positions, inside = step.cells("positions").read(tokens)
    effect.stray = effect.stray or not inside
    with np.errstate(over="ignore", divide="ignore"):
        local, own = _local(step, positions)
        size = _number(step, step.kernel_block_size)
        columns = divided(local, size)
        within = local - columns * size
        blocks, legal = _blocks(step, request, columns if step.enabled else columns * 0, own, tokens.size)
        slots = blocks * size + within
    effect.stray = effect.stray or not legal
    real = step.runner != "newer" or request >= 0
    return np.where(own, slots, PAD_SLOT_ID) if real and step.enabled else np.full(tokens.size, PAD_SLOT_ID)


def _number(step: _Step, value: int) -> Numbers:
    """A block size: the newer runner loads it from an int32 tensor; of the older one's constants no product wraps."""
    return np.array(value, np.int64 if step.runner == "older" else np.int32)


def _local(step: _Step, positions: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Positions among a rank's own, and which are the rank's."""
    ranks, interleave = step.size("cp_size"), step.size("cp_interleave")
    if ranks == 1:
        return positions, np.ones(positions.shape, bool)
    size = _number(step, step.size("block_size"))
    rounds = divided(positions, size * ranks)
    offsets = positions - rounds * (size * ranks)
    turns = divided(offsets, interleave)
    own = turns - divided(turns, ranks) * ranks == step.size("cp_rank")
    local = divided(offsets, interleave * ranks) * interleave + (offsets - turns * interleave)
    return rounds * size + local, own


def _blocks(
    step: _Step, request: int, columns: Numbers, own: npt.NDArray[np.bool_], count: int
) -> tuple[Numbers, bool]:
    """The block numbers in these columns, and whether all of them are the table's."""
    table, request = cast(Array, step.inputs["block_table"]), max(min(request, FAR), -FAR)
    if step.runner == "older":
        # The adapter copies the batch's rows; behind each row lies the next.
        rows = cast(Array, step.inputs["idx_mapping"]).data
        table = Array("int32", table.data[rows] if table.data.size else np.zeros((rows.size, table.shape[1]), np.int32))
    elif step.runner == "newer" and request < 0:
        return np.zeros(columns.shape, np.int32), True
    places = request * table.layout[0] + columns.astype(np.int64)
    lanes = places[own]
    if step.runner != "older" and count % LANES and step.size("cp_rank") == 0:
        # Lanes behind the row's last token load as well, for position 0.
        lanes = np.append(lanes, request * table.layout[0])
    cells = Cells(table)
    _, legal = cells.read(lanes) if lanes.size else (None, True)
    blocks, _ = cells.read(places)
    return blocks.astype(np.int64 if step.runner == "older" else np.int32), legal
