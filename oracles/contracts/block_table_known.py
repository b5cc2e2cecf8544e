"""Predicates of known findings for contracts 4.2 to 4.6: which inputs show a fault that upstream still has.

An input has what a fault needs, and upstream's arithmetic, followed step by step, goes astray or ends elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import Expected, Refused, Values
from oracles.contracts import _block_table_gather as gather
from oracles.contracts import _block_table_kernel as kernel
from oracles.contracts import _block_table_slots as slots
from oracles.contracts._block_table_upstream import Effect, Runner, arrays, gathered
from oracles.contracts._block_table_upstream import slots as slots_of
from oracles.contracts.block_table_bindings import id_outside_the_table

Predicate = Callable[[Inputs], bool]


@dataclass(frozen=True)
class Seen:
    """What upstream does with an input, beside what the specification says."""

    effect: Effect
    expected: Expected
    results: tuple[np.ndarray, ...]

    @property
    def wild(self) -> bool:
        """Memory outside the buffers is touched; or, where values are promised, programs are in each other's way."""
        return self.effect.stray or (self.effect.clash and isinstance(self.expected, Values))

    @property
    def shows(self) -> bool:
        """Anything is wrong, and the call ends."""
        return not self.effect.endless and (self.wild or self.wrong)

    @property
    def wrong(self) -> bool:
        """The call stays in its buffers and ends, with other values in them."""
        return self.settled and any(map(np.any, self.differing))

    @property
    def settled(self) -> bool:
        """The call stays in its buffers and ends, and values are promised."""
        return isinstance(self.expected, Values) and not (self.wild or self.effect.endless)

    @property
    def differing(self) -> list[np.ndarray]:
        """Which elements have another value than the specification gives them."""
        return [one != other for one, other in zip(self.effect.results, self.results, strict=True)]


_last: dict[str, tuple[Inputs, Seen | None]] = {}


def _seen(inputs: Inputs, runner: Runner | None = None) -> Seen | None:
    """The same for each predicate of a case; ``None`` where nothing is called, or not on such tensors."""
    key = runner or "gather"
    if key not in _last or _last[key][0] is not inputs:
        _last[key] = (inputs, _look(inputs, runner))
    return _last[key][1]


def _look(inputs: Inputs, runner: Runner | None) -> Seen | None:
    if runner is None:
        expected = gather.windowed_expected(inputs) if "window_reach" in inputs else gather.expected(inputs)
        narrowed, name = _nothing, "out"
    else:
        expected = slots.hybrid_expected(inputs) if "enabled" in inputs else slots.expected(inputs)
        narrowed, name = id_outside_the_table if runner == "older" else _nothing, "slot_mapping"
    if isinstance(expected, Refused) or narrowed(inputs):
        return None
    effect = gathered(inputs) if runner is None else slots_of(inputs, runner)
    wanted = expected.outputs[name] if isinstance(expected, Values) else ()
    results = cast("tuple[np.ndarray, ...]", wanted if isinstance(wanted, tuple) else (wanted,))
    return Seen(effect, expected, results)


def _nothing(inputs: Inputs) -> bool:
    """No part of the domain is left out."""
    return False


def _apart(inputs: Inputs, *names: str) -> bool:
    return any(item.layout[0] != 1 and item.data.size > 1 for item in (cast(Array, inputs[name]) for name in names))


def _columns_apart(inputs: Inputs, *names: str) -> bool:
    items = [item for name in names for item in arrays(inputs, name)]
    return any(item.shape[1] > 1 and item.layout[1] != 1 for item in items)


def _rows_apart(table: Array) -> bool:
    return table.layout[0] != table.shape[1]


# 4.2 and 4.6: BlockTables.gather_block_tables


def endless_row(inputs: Inputs) -> bool:
    """A number of blocks so large that a program does not end in time."""
    seen = _seen(inputs)
    return seen is not None and seen.effect.endless


def stale_tail(inputs: Inputs) -> bool:
    """Unused columns of a row in which an earlier step has left blocks."""
    seen = _seen(inputs)
    if seen is None or not seen.settled:
        return False
    return any(map(np.any, map(np.logical_and, seen.differing, seen.effect.untouched)))


def ids_apart(inputs: Inputs) -> bool:
    """Request numbers, or one row's numbers of blocks, or tokens computed that do not lie side by side."""
    seen = _seen(inputs)
    names = ("idx_mapping", "num_computed_tokens") if "window_reach" in inputs else ("idx_mapping",)
    return seen is not None and seen.shows and (_apart(inputs, *names) or _columns_apart(inputs, "num_blocks"))


def tables_apart(inputs: Inputs) -> bool:
    """Tables, or such as are gathered into, whose elements do not lie side by side; a table without columns too."""
    seen = _seen(inputs)
    names = [name for name in ("block_tables", "out") if any(map(_rows_apart, arrays(inputs, name)))]
    return seen is not None and seen.shows and bool(names or _columns_apart(inputs, "block_tables", "out"))


def request_outside(inputs: Inputs) -> bool:
    """A request number that is no row of the table, -1 among them."""
    seen = _seen(inputs)
    rows = cast(Array, inputs["num_blocks"]).shape
    ids = cast(Array, inputs["idx_mapping"]).data.tolist()
    return seen is not None and seen.shows and any(not 0 <= number < rows[1] for number in ids)


def count_past_the_row(inputs: Inputs) -> bool:
    """A request with more blocks than its row has columns."""
    seen = _seen(inputs)
    if seen is None or not seen.shows:
        return False
    counts, tables = cast(Array, inputs["num_blocks"]).data, arrays(inputs, "block_tables")
    ids = [number for number in cast(Array, inputs["idx_mapping"]).data.tolist() if 0 <= number < counts.shape[1]]
    return any(counts[group, number] > table.shape[1] for group, table in enumerate(tables) for number in ids)


def computed_past_int32(inputs: Inputs) -> bool:
    """Tokens computed that are so far below zero that their distance to the window wraps."""
    seen = _seen(inputs)
    if seen is None or not seen.settled or _apart(inputs, "num_computed_tokens"):
        return False
    written = map(np.logical_not, seen.effect.untouched)
    return any(map(np.any, map(np.logical_and, seen.differing, written)))


# 4.3 and 4.5: BlockTables.compute_slot_mappings and BlockTable.compute_slot_mapping

STEP = ("query_start_loc", "positions", "slot_mapping")


def _tokens(inputs: Inputs) -> list[tuple[int, int]]:
    """Request and position of each token that there is."""
    ids, starts, positions = (cast(Array, inputs[name]).data.tolist() for name in ("idx_mapping", *STEP[:2]))
    rows = zip(ids, pairwise(starts), strict=True)
    return [
        (request, position) for request, (begin, end) in rows for position in positions[max(begin, 0) : max(end, 0)]
    ]


def endless_step(inputs: Inputs, runner: Runner) -> bool:
    """Starts so far apart that a program does not end in time."""
    seen = _seen(inputs, runner)
    return seen is not None and seen.effect.endless


def vectors_apart(inputs: Inputs, runner: Runner) -> bool:
    """Starts, positions or slots that do not lie side by side; for the newer runner request numbers too."""
    return _shows(inputs, runner) and _apart(inputs, *STEP, *(("idx_mapping",) if runner != "older" else ()))


def columns_apart(inputs: Inputs, runner: Runner) -> bool:
    """A table whose columns do not lie side by side."""
    return _shows(inputs, runner) and _columns_apart(inputs, "block_table")


def column_past_row(inputs: Inputs, runner: Runner) -> bool:
    """A token whose block is past its request's row."""
    return _shows(inputs, runner) and any(_column(inputs, place) >= _columns(inputs) for _, place in _tokens(inputs))


def negative_position(inputs: Inputs, runner: Runner) -> bool:
    """A token at a position below zero."""
    return _shows(inputs, runner) and any(place < 0 for _, place in _tokens(inputs))


def token_of_nobody(inputs: Inputs, runner: Runner) -> bool:
    """A token of a request that is no row of the table; since 0.31 the newer runner knows negative ones."""
    rows, least = cast(Array, inputs["block_table"]).shape[0], 0 if runner == "newer until 0.30" else -(1 << 63)
    return _shows(inputs, runner) and any(not least <= request < rows for request, _ in _tokens(inputs))


def start_outside(inputs: Inputs, runner: Runner) -> bool:
    """A start before the first token or past the last one."""
    starts, positions = (cast(Array, inputs[name]).data for name in STEP[:2])
    return _shows(inputs, runner) and any(not 0 <= start <= positions.size for start in starts.tolist())


def slot_past_int32(inputs: Inputs, runner: Runner) -> bool:
    """A block number times a block size that 32 bits do not hold."""
    size = cast(int, inputs.get("kernel_block_size", inputs["block_size"]))
    return _wrong(inputs, runner) and bool(
        (np.abs(cast(Array, inputs["block_table"]).data.astype(np.int64)) * size >= 1 << 31).any()
    )


def positions_behind_the_rows(inputs: Inputs, runner: Runner) -> bool:
    """Positions behind the last row's tokens, whose slots are left as they are."""
    starts, positions = (cast(Array, inputs[name]).data for name in STEP[:2])
    return _wrong(inputs, runner) and int(starts[-1]) < positions.size


def switched_off(inputs: Inputs, runner: Runner) -> bool:
    """A group without slots, of which some are left as they are."""
    return _wrong(inputs, runner) and inputs["enabled"] is False


def _shows(inputs: Inputs, runner: Runner) -> bool:
    seen = _seen(inputs, runner)
    return seen is not None and seen.shows


def _wrong(inputs: Inputs, runner: Runner) -> bool:
    seen = _seen(inputs, runner)
    return seen is not None and seen.wrong


def _columns(inputs: Inputs) -> int:
    return cast(Array, inputs["block_table"]).shape[1]


def _column(inputs: Inputs, position: int) -> int:
    """The column of a position; of one that belongs to another rank, that of its place on a rank."""
    size = cast(int, inputs["block_size"])
    ranks, interleave = cast(int, inputs["cp_size"]), cast(int, inputs["cp_interleave"])
    offset = position % (size * ranks)
    local = position // (size * ranks) * size + offset // (interleave * ranks) * interleave + offset % interleave
    return local // cast(int, inputs.get("kernel_block_size", size))


# 4.4: AttentionGroup.map_to_kernel_block_table


def no_columns(inputs: Inputs) -> bool:
    """A table without columns."""
    return isinstance(kernel.expected(inputs), Values) and not _columns(inputs)


Condition = Callable[[Inputs, Runner], bool]


def _of(runner: Runner, prefix: str, *conditions: Condition) -> dict[str, Predicate]:
    return {prefix + condition.__name__: _bound(condition, runner) for condition in conditions}


def _bound(condition: Condition, runner: Runner) -> Predicate:
    return lambda inputs: condition(inputs, runner)


COMMON = (endless_step, vectors_apart, column_past_row, negative_position, start_outside)
NEWER = (*COMMON, columns_apart, token_of_nobody, slot_past_int32)
SLOT_MAPPING: dict[str, Predicate] = {
    **_of("newer", "", *NEWER),
    **_of("newer until 0.30", "until_0_30_", token_of_nobody),
    **_of("older", "older_", *COMMON, positions_behind_the_rows),
}
SLOT_MAPPING_HYBRID: dict[str, Predicate] = {
    **SLOT_MAPPING,
    **_of("newer", "", switched_off),
    **_of("older", "older_", switched_off),
}
GATHER: dict[str, Predicate] = {
    predicate.__name__: predicate
    for predicate in (endless_row, stale_tail, ids_apart, tables_apart, request_outside, count_past_the_row)
}
GATHER_WINDOWED: dict[str, Predicate] = {**GATHER, computed_past_int32.__name__: computed_past_int32}
KERNEL_BLOCK_TABLE: dict[str, Predicate] = {no_columns.__name__: no_columns}
"""What known_findings.toml may name, by contract."""
