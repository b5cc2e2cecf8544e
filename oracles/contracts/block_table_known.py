"""Predicates of known findings for contracts 4.2 to 4.6: which inputs show a fault that upstream still has.

Each fault is a condition on the input, and what upstream's own arithmetic, followed step by step, makes of it.
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
from oracles.contracts._block_table_upstream import MOST_ELEMENTS, Effect, Runner, arrays, gathered
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
    def endless(self) -> bool:
        """The call does not end in time."""
        return self.effect.endless

    @property
    def settled(self) -> bool:
        """The call stays in its buffers and ends, programs are not in each other's way, and values are promised."""
        return isinstance(self.expected, Values) and not (self.effect.stray or self.effect.clash or self.endless)

    @property
    def wrong(self) -> bool:
        """The call is settled, with other values in its buffers."""
        return self.settled and any(map(np.any, self.differing))

    @property
    def shows(self) -> bool:
        """Anything is wrong, and the call ends."""
        clash = self.effect.clash and isinstance(self.expected, Values)
        return not self.endless and (self.effect.stray or clash or self.wrong)

    @property
    def idle(self) -> bool:
        """The call ends, and goes astray for a value that is not needed."""
        return not self.endless and self.effect.idle

    @property
    def left_over(self) -> bool:
        """The call is settled, and elements have another value because nothing was written to them."""
        return self.settled and any(map(np.any, map(np.logical_and, self.differing, self.effect.untouched)))

    @property
    def miscalculated(self) -> bool:
        """The call is settled, and other values were written to elements."""
        written = map(np.logical_not, self.effect.untouched)
        return self.settled and any(map(np.any, map(np.logical_and, self.differing, written)))

    @property
    def differing(self) -> list[np.ndarray]:
        """Which elements have another value than the specification gives them."""
        return [one != other for one, other in zip(self.effect.results, self.results, strict=True)]


def fault(condition: Predicate, what: Callable[[Seen], bool], runner: Runner | None = None) -> Predicate:
    """The inputs with a condition for which ``what`` holds of the call: a gather, or a slot mapping of a runner."""

    def predicate(inputs: Inputs) -> bool:
        expected = _expected(inputs, runner)
        if isinstance(expected, Refused) or (runner == "older" and id_outside_the_table(inputs)):
            return False
        return condition(inputs) and what(_seen(inputs, runner, expected))

    return predicate


def _expected(inputs: Inputs, runner: Runner | None) -> Expected:
    if runner is None:
        return gather.windowed_expected(inputs) if "window_reach" in inputs else gather.expected(inputs)
    return slots.hybrid_expected(inputs) if "enabled" in inputs else slots.expected(inputs)


_last: dict[Runner | None, tuple[Inputs, Seen]] = {}


def _seen(inputs: Inputs, runner: Runner | None, expected: Expected) -> Seen:
    """One look for all predicates of a case."""
    if runner not in _last or _last[runner][0] is not inputs:
        effect = gathered(inputs) if runner is None else slots_of(inputs, runner)
        wanted = expected.outputs if isinstance(expected, Values) else {"out": ()}
        results = wanted["out"] if "out" in wanted else (wanted["slot_mapping"],)
        _last[runner] = (inputs, Seen(effect, expected, cast("tuple[np.ndarray, ...]", results)))
    return _last[runner][1]


def every_case(inputs: Inputs) -> bool:
    """Every input of a slot mapping that its contract allows."""
    return not isinstance(_expected(inputs, "newer"), Refused)


def _numbers(inputs: Inputs, name: str) -> list[int]:
    return cast("list[int]", cast(Array, inputs[name]).data.tolist())


def _apart(inputs: Inputs, *names: str) -> bool:
    """Whether elements of a vector do not lie side by side."""
    return any(item.layout[0] != 1 and item.data.size > 1 for item in (cast(Array, inputs[name]) for name in names))


def columns_apart(inputs: Inputs, *names: str) -> bool:
    """A table whose columns do not lie side by side."""
    items = [item for name in names or ("block_table",) for item in arrays(inputs, name)]
    return any(item.shape[1] > 1 and item.layout[1] != 1 for item in items)


# 4.2 and 4.6: BlockTables.gather_block_tables


def endless_row(inputs: Inputs) -> bool:
    """A number of blocks, or a stride that is taken for a number of columns, that makes a program run on and on."""
    longest = int(cast(Array, inputs["num_blocks"]).data.max(initial=0))
    return max(longest, *(table.layout[0] for table in arrays(inputs, "block_tables")), 0) > MOST_ELEMENTS


def stale_tail(inputs: Inputs) -> bool:
    """A request with fewer blocks than its row has columns."""
    rows = cast(Array, inputs["num_blocks"]).data
    return any(
        bool((row < table.shape[1]).any()) for row, table in zip(rows, arrays(inputs, "block_tables"), strict=True)
    )


def ids_apart(inputs: Inputs) -> bool:
    """Request numbers, or one group's numbers of blocks, or tokens computed that do not lie side by side.

    Also numbers of blocks of groups that lie so far apart that a product in 32 bits does not reach the last one.
    """
    names = ("idx_mapping", "num_computed_tokens") if "window_reach" in inputs else ("idx_mapping",)
    counts = cast(Array, inputs["num_blocks"])
    far = counts.layout[0] < 1 << 31 <= (counts.shape[0] - 1) * counts.layout[0]
    return _apart(inputs, *names) or columns_apart(inputs, "num_blocks") or far


def tables_apart(inputs: Inputs) -> bool:
    """Tables, or such as are gathered into, whose elements do not lie side by side; a table without columns too."""
    tables = (*arrays(inputs, "block_tables"), *arrays(inputs, "out"))
    return columns_apart(inputs, "block_tables", "out") or any(item.layout[0] != item.shape[1] for item in tables)


def request_outside(inputs: Inputs) -> bool:
    """A request number that is no row of the table, -1 among them."""
    rows = cast(Array, inputs["num_blocks"]).shape[1]
    return any(not 0 <= number < rows for number in _numbers(inputs, "idx_mapping"))


def count_past_the_row(inputs: Inputs) -> bool:
    """A request of the batch with more blocks than its row has columns."""
    counts, tables = cast(Array, inputs["num_blocks"]).data, arrays(inputs, "block_tables")
    ids = [number for number in _numbers(inputs, "idx_mapping") if 0 <= number < counts.shape[1]]
    return any(counts[group, number] > table.shape[1] for group, table in enumerate(tables) for number in ids)


def computed_past_int32(inputs: Inputs) -> bool:
    """Tokens computed that are so far below zero that their distance to the window wraps."""
    computed = cast(Array, inputs["num_computed_tokens"])
    reach = max(cast("tuple[int, ...]", inputs["window_reach"]), default=0)
    least = int(computed.data.min(initial=0)) - reach
    return computed.dtype == "int32" and least < -(1 << 31) and not _apart(inputs, "num_computed_tokens")


# 4.3 and 4.5: BlockTables.compute_slot_mappings and BlockTable.compute_slot_mapping


def _tokens(inputs: Inputs) -> list[tuple[int, int]]:
    """Request and position of each token that there is."""
    rows = zip(_numbers(inputs, "idx_mapping"), pairwise(_numbers(inputs, "query_start_loc")), strict=True)
    places = _numbers(inputs, "positions")
    return [(request, place) for request, (begin, end) in rows for place in places[max(begin, 0) : max(end, 0)]]


def endless_step(inputs: Inputs) -> bool:
    """Starts so far apart, or so far below zero, that a program does not end in time."""
    starts = [*_numbers(inputs, "query_start_loc"), cast(Array, inputs["slot_mapping"]).data.size]
    return max(end - begin for begin, end in pairwise(starts)) > MOST_ELEMENTS


def tokens_apart(inputs: Inputs) -> bool:
    """Starts, positions or slots that do not lie side by side."""
    return _apart(inputs, "query_start_loc", "positions", "slot_mapping")


def vectors_apart(inputs: Inputs) -> bool:
    """The same, or request numbers."""
    return tokens_apart(inputs) or _apart(inputs, "idx_mapping")


def numbers_of_empty_rows(inputs: Inputs) -> bool:
    """Request numbers of rows without tokens that do not lie side by side."""
    return _apart(inputs, "idx_mapping")


def column_past_row(inputs: Inputs) -> bool:
    """A token whose block is past its request's row."""
    columns = cast(Array, inputs["block_table"]).shape[1]
    return any(_column(inputs, place) >= columns for _, place in _tokens(inputs))


def _column(inputs: Inputs, position: int) -> int:
    """The column of a position; of one that belongs to another rank, that of its place on a rank."""
    size = cast(int, inputs["block_size"])
    ranks, interleave = cast(int, inputs["cp_size"]), cast(int, inputs["cp_interleave"])
    offset = position % (size * ranks)
    local = position // (size * ranks) * size + offset // (interleave * ranks) * interleave + offset % interleave
    return local // cast(int, inputs.get("kernel_block_size", size))


def negative_position(inputs: Inputs) -> bool:
    """A token at a position below zero."""
    return any(place < 0 for _, place in _tokens(inputs))


def token_past_the_table(inputs: Inputs) -> bool:
    """A token of a request whose number is past the rows of the table."""
    rows = cast(Array, inputs["block_table"]).shape[0]
    return any(request >= rows for request, _ in _tokens(inputs))


def token_outside_the_table(inputs: Inputs) -> bool:
    """A token of a request whose number is no row of the table, -1 among them."""
    rows = cast(Array, inputs["block_table"]).shape[0]
    return any(not 0 <= request < rows for request, _ in _tokens(inputs))


def start_outside(inputs: Inputs) -> bool:
    """A start before the first token or past the last one."""
    tokens = cast(Array, inputs["positions"]).data.size
    return any(not 0 <= start <= tokens for start in _numbers(inputs, "query_start_loc"))


def slot_past_int32(inputs: Inputs) -> bool:
    """A block number times a block size that 32 bits do not hold."""
    size = cast(int, inputs.get("kernel_block_size", inputs["block_size"]))
    most = int(np.abs(cast(Array, inputs["block_table"]).data.astype(np.int64)).max(initial=0))
    return most * size >= 1 << 31


def positions_behind_the_rows(inputs: Inputs) -> bool:
    """Positions behind the last row's tokens."""
    return _numbers(inputs, "query_start_loc")[-1] < cast(Array, inputs["positions"]).data.size


def switched_off(inputs: Inputs) -> bool:
    """A group without slots."""
    return inputs["enabled"] is False


# 4.4: AttentionGroup.map_to_kernel_block_table


def no_columns(inputs: Inputs) -> bool:
    """A table without columns."""
    return isinstance(kernel.expected(inputs), Values) and not cast(Array, inputs["block_table"]).shape[1]


def every_gather(inputs: Inputs) -> bool:
    """Any gather that is not refused."""
    return not isinstance(_expected(inputs, None), Refused)


GATHER: dict[str, Predicate] = {
    "every_gather": every_gather,
    "endless_row": fault(endless_row, lambda seen: seen.endless),
    "stale_tail": fault(stale_tail, lambda seen: seen.left_over),
    **{
        condition.__name__: fault(condition, lambda seen: seen.shows)
        for condition in (ids_apart, tables_apart, request_outside, count_past_the_row)
    },
}
GATHER_WINDOWED: dict[str, Predicate] = {
    **GATHER,
    "computed_past_int32": fault(computed_past_int32, lambda seen: seen.miscalculated),
}


def _of(runner: Runner, prefix: str, what: Callable[[Seen], bool], *conditions: Predicate) -> dict[str, Predicate]:
    return {prefix + condition.__name__: fault(condition, what, runner) for condition in conditions}


COMMON = (column_past_row, negative_position, start_outside)
SLOT_MAPPING: dict[str, Predicate] = {
    "every_case": every_case,
    **_of("newer", "", lambda seen: seen.shows, *COMMON, vectors_apart, columns_apart, token_past_the_table),
    **_of("newer", "", lambda seen: seen.wrong, slot_past_int32),
    **_of("newer", "", lambda seen: seen.endless, endless_step),
    **_of("newer", "", lambda seen: seen.idle, numbers_of_empty_rows),
    **_of("newer until 0.30", "until_0_30_", lambda seen: seen.shows, token_outside_the_table),
    **_of("older", "older_", lambda seen: seen.shows, *COMMON, tokens_apart),
    **_of("older", "older_", lambda seen: seen.wrong, positions_behind_the_rows),
    **_of("older", "older_", lambda seen: seen.endless, endless_step),
}
SLOT_MAPPING_HYBRID: dict[str, Predicate] = {
    **SLOT_MAPPING,
    **_of("newer", "", lambda seen: seen.wrong, switched_off),
    **_of("older", "older_", lambda seen: seen.wrong, switched_off),
}
KERNEL_BLOCK_TABLE: dict[str, Predicate] = {"no_columns": no_columns}
"""What known_findings.toml may name, by contract."""
