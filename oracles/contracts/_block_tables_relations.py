"""Laws of the class BlockTables (contract 4.1) that need no second implementation.

An input is a life: operations, and the rows of each gather. A law compares what two lives show, or what the last
gather of one life shows with that of a life with other operations before the last ``apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from oracles.arrays import Inputs
from oracles.contract import Relation
from oracles.contracts._law_arrays import Numbers, first_difference, number, several, shaped, turned_round
from oracles.contracts._laws import Function, WrongShape, relation
from reference.block_table import BlockTables
from reference.errors import ContractError

Operation = tuple[Any, ...]
Shown = list[Numbers]
LAST = 1 << 31
"""One more than the largest id. Ids counted from here down are other ids, and 0 stays NULL."""


def _operations(inputs: Inputs) -> tuple[Operation, ...]:
    return cast(tuple[Operation, ...], inputs["operations"])


def _capacities(inputs: Inputs) -> tuple[int, ...]:
    return cast(tuple[int, ...], inputs["max_num_blocks_per_group"])


def _requests(inputs: Inputs) -> range:
    return range(number(inputs, "max_num_reqs"))


def _gathers(inputs: Inputs) -> list[Operation]:
    """Those that show something: all that must not be refused."""
    pairs = zip(_operations(inputs), _accepted(inputs), strict=True)
    return [operation for operation, accepted in pairs if accepted and operation[0] == "gather"]


def _with(inputs: Inputs, operations: Iterable[Operation]) -> Inputs:
    return {**inputs, "operations": tuple(operations)}


def _before_the_end(inputs: Inputs, *more: Operation) -> Inputs:
    """The same life with more operations before its last two, which apply and gather."""
    operations = _operations(inputs)
    return _with(inputs, (*operations[:-2], *more, *operations[-2:]))


def _accepted(inputs: Inputs) -> list[bool]:
    """Whether each operation is one that must not be refused."""
    rows, groups = len(_requests(inputs)), _capacities(inputs)
    tables, accepted = BlockTables([1] * len(groups), rows, groups), []
    for name, *values in _operations(inputs):
        try:
            if name == "gather":
                tables.gather(several(inputs, "idx_mappings")[values[0]].data, values[1])
            else:
                getattr(tables, name)(*values)
            accepted.append(True)
        except ContractError:
            accepted.append(False)
    return accepted


def _tables(function: Function, inputs: Inputs) -> list[Shown]:
    """What every gather shows."""
    found = cast(Sequence[Sequence[Numbers]], function(inputs)["tables"])
    gathers = _gathers(inputs)
    if len(found) != len(gathers):
        raise WrongShape(f"tables are of {len(found)} gathers, not of {len(gathers)}")
    shown = []
    for place, (views, (_, _, padded)) in enumerate(zip(found, gathers, strict=True)):
        if len(views) != len(_capacities(inputs)):
            raise WrongShape(f"gather {place} shows {len(views)} groups, not {len(_capacities(inputs))}")
        shapes = [(padded, columns) for columns in _capacities(inputs)]
        shown.append([shaped(f"gather {place}", view, shape) for view, shape in zip(views, shapes, strict=True)])
    return shown


def _unequal(what: str, found: Sequence[Shown], wanted: Sequence[Shown]) -> str | None:
    for place, (left, right) in enumerate(zip(found, wanted, strict=True)):
        problem = first_difference(f"{what}: gather {place}", left, right)
        if problem:
            return problem
    return None


def _replaced(inputs: Inputs, rule: Callable[[Operation], Iterable[Operation]]) -> Inputs:
    """The same life with other operations in place of each one that is accepted."""
    pairs = zip(_operations(inputs), _accepted(inputs), strict=True)
    return _with(inputs, (new for old, accepted in pairs for new in (rule(old) if accepted else (old,))))


def _in_pieces(operation: Operation) -> Iterable[Operation]:
    """One id of one group at a time."""
    if operation[0] != "append":
        return (operation,)
    _, request, ids, overwrite = operation
    pieces = [
        tuple((block,) if at == group else () for at in range(len(ids)))
        for group in range(len(ids))
        for block in ids[group]
    ]
    return tuple(("append", request, piece, overwrite and not n) for n, piece in enumerate(pieces or [ids]))


def _overwrite_spelled_out(operation: Operation) -> Iterable[Operation]:
    if operation[0] != "append" or not operation[3]:
        return (operation,)
    _, request, ids, _ = operation
    return (("clear", request), ("append", request, ids, False))


def _clear_spelled_out(inputs: Inputs) -> Inputs:
    nothing = ((),) * len(_capacities(inputs))
    return _replaced(inputs, lambda old: (("append", old[1], nothing, True),) if old[0] == "clear" else (old,))


def _applied_twice(operation: Operation) -> Iterable[Operation]:
    return (operation, operation) if operation[0] == "apply" else (operation,)


def _swapped_back_and_forth(inputs: Inputs) -> Inputs:
    """Every operation followed by exchanges that undo each other, and by moves of requests to where they are."""
    first, last = _requests(inputs)[0], _requests(inputs)[-1]
    idle = (("swap", first, last), ("swap", last, first), ("move", last, last), ("swap", first, first))
    return _with(inputs, (new for old in _operations(inputs) for new in (old, *idle)))


def _refused_elsewhere(inputs: Inputs) -> Inputs:
    """The same life without the operations that are refused, and with others that are, one behind every operation."""
    request, groups = _requests(inputs)[-1], _capacities(inputs)
    # The first groups may have room: whoever writes group by group has changed them when the last one has none.
    over = (
        ("append", request, (*((1,) for _ in groups[:-1]), (1,) * (groups[-1] + 1)), False)
        if groups
        else ("swap", -1, 0)
    )
    pairs = zip(_operations(inputs), _accepted(inputs), strict=True)
    return _with(inputs, (new for old, accepted in pairs if accepted for new in (old, over)))


def _looking_changes_nothing(function: Function, inputs: Inputs) -> str | None:
    """A gather behind every operation; the last two have no operation between them."""
    look = _operations(inputs)[-1]
    more = _with(inputs, (new for old in _operations(inputs) for new in (old, look)))
    shown, own, at = _tables(function, more), [], 0
    for operation, accepted in zip(_operations(inputs), _accepted(inputs), strict=True):
        if operation[0] == "gather" and accepted:
            own.append(shown[at])
            at += 1
        at += 1
    again = first_difference("the last gather, done twice", shown[-1], shown[-2])
    return again or _unequal("with a gather behind every operation", own, _tables(function, inputs))


def _staged_is_not_seen(function: Function, inputs: Inputs) -> str | None:
    *before, applied, gather = _operations(inputs)
    first, last = _requests(inputs)[0], _requests(inputs)[-1]
    emptied = [("swap", first, last), *(("clear", request) for request in _requests(inputs))]
    full = tuple(tuple(range(1, columns + 1)) for columns in _capacities(inputs))
    staged = _tables(function, _with(inputs, (*before, applied, *emptied, ("append", last, full, True), gather)))
    return _unequal("with operations that are not applied", staged, _tables(function, inputs))


def _last(function: Function, inputs: Inputs, *more: Operation) -> Shown:
    """What the last gather shows, with more operations before the last ``apply``."""
    return _tables(function, _before_the_end(inputs, *more) if more else inputs)[-1]


def _cleared_is_null(function: Function, inputs: Inputs) -> str | None:
    last = _requests(inputs)[-1]
    before, cleared = _last(function, inputs), _last(function, inputs, ("clear", last))
    wanted = [np.where(np.arange(len(table))[:, None] == last, 0, table) for table in before]
    problem = first_difference(f"with request {last} cleared", cleared, wanted)
    empty = _last(function, inputs, *(("clear", request) for request in _requests(inputs)))
    return problem or first_difference("with all cleared", empty, [np.zeros_like(table) for table in before])


def _pairs(inputs: Inputs) -> list[tuple[int, int]]:
    first, last = _requests(inputs)[0], _requests(inputs)[-1]
    return [(first, last), (last, first)]


def _moves_and_swaps_take_rows_along(function: Function, inputs: Inputs) -> str | None:
    before = _last(function, inputs)
    for here, there in _pairs(inputs):
        moved, swapped = ([table.copy() for table in before] for _ in range(2))
        for table, other, old in zip(moved, swapped, before, strict=True):
            table[there], table[here] = old[here], 0
            other[[here, there]] = old[[there, here]]
        problem = first_difference(
            f"with {here} moved to {there}", _last(function, inputs, ("move", here, there)), moved
        ) or first_difference(
            f"with {here} and {there} swapped", _last(function, inputs, ("swap", here, there)), swapped
        )
        if problem:
            return problem
    return None


def _there_and_back_is_nothing(function: Function, inputs: Inputs) -> str | None:
    for here, there in _pairs(inputs):
        room = ("clear", there)
        before = _last(function, inputs, room)
        back = _last(function, inputs, room, ("move", here, there), ("move", there, here))
        moved, swapped = (_last(function, inputs, room, (name, here, there)) for name in ("move", "swap"))
        problem = first_difference(f"with {here} moved to {there} and back", back, before) or first_difference(
            f"with {here} swapped with {there}, which is empty", swapped, moved
        )
        if problem:
            return problem
    return None


def _rows_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    mappings = several(inputs, "idx_mappings")
    turned = tuple(rows.with_values(rows.data[::-1]) for rows in mappings)
    wanted = []
    for (_, mapping, _), shown in zip(_gathers(inputs), _tables(function, inputs), strict=True):
        count = len(mappings[mapping].data)
        wanted.append([np.concatenate([table[:count][::-1], table[count:]]) for table in shown])
    return _unequal("with rows reversed", _tables(function, {**inputs, "idx_mappings": turned}), wanted)


def _requests_turned_round(inputs: Inputs) -> Inputs:
    """The same life, lived by requests in other rows. What is no request stays what it is."""
    count = len(_requests(inputs))

    def renamed(operation: Operation) -> Operation:
        name, *values = operation
        if name == "append":
            return (name, int(turned_round(np.array(values[0]), count)), *values[1:])
        if name in ("clear", "move", "swap"):
            return (name, *turned_round(np.array(values), count).tolist())
        return operation

    mappings = tuple(rows.with_values(turned_round(rows.data, count)) for rows in several(inputs, "idx_mappings"))
    return {**_with(inputs, map(renamed, _operations(inputs))), "idx_mappings": mappings}


def _each_append(inputs: Inputs, change: Callable[[Any], Any]) -> Inputs:
    """The same life with other ids in each append, also in those that are refused."""
    operations = (
        ("append", operation[1], change(operation[2]), operation[3]) if operation[0] == "append" else operation
        for operation in _operations(inputs)
    )
    return _with(inputs, operations)


def _groups_do_not_meet(function: Function, inputs: Inputs) -> str | None:
    turned = {
        **_each_append(inputs, lambda ids: ids[::-1]),
        "block_sizes": cast(tuple[int, ...], inputs["block_sizes"])[::-1],
        "max_num_blocks_per_group": _capacities(inputs)[::-1],
    }
    shown = [tables[::-1] for tables in _tables(function, turned)]
    return _unequal("with groups reversed", shown, _tables(function, inputs))


def _blocks_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    def counted_down(ids: Any) -> Any:
        return tuple(tuple(LAST - block if 0 < block < LAST else block for block in own) for own in ids)

    renamed = _tables(function, _each_append(inputs, counted_down))
    wanted = [
        [np.where(table == 0, 0, LAST - table.astype(np.int64)) for table in shown]
        for shown in _tables(function, inputs)
    ]
    return _unequal("with other ids", renamed, wanted)


def _life(name: str, law: str, what: str, change: Callable[[Inputs], Inputs]) -> Relation:
    """A law by which a changed life shows the same; asked where the change is one."""

    def check(function: Function, inputs: Inputs) -> str | None:
        return _unequal(what, _tables(function, change(inputs)), _tables(function, inputs))

    return relation(name, law, check, lambda inputs: _operations(change(inputs)) != _operations(inputs))


def _each(rule: Callable[[Operation], Iterable[Operation]]) -> Callable[[Inputs], Inputs]:
    return lambda inputs: _replaced(inputs, rule)


def _looks_at_the_end(inputs: Inputs) -> bool:
    """Whether a life ends by applying and gathering every row in order, and has something to show."""
    if [name for name, *_ in _operations(inputs)[-2:]] != ["apply", "gather"] or not _capacities(inputs):
        return False
    _, mapping, padded = _operations(inputs)[-1]
    rows: list[int] = several(inputs, "idx_mappings")[mapping].data.tolist()
    return rows == [*_requests(inputs)] and padded == len(rows)


def _several_requests(inputs: Inputs) -> bool:
    return _looks_at_the_end(inputs) and len(_requests(inputs)) > 1


RELATIONS: tuple[Relation, ...] = (
    _life(
        "appends_come_in_pieces",
        "Blocks appended one by one, group by group, are the blocks appended at once.",
        "with blocks appended one by one",
        _each(_in_pieces),
    ),
    _life(
        "overwriting_is_clearing_and_appending",
        "An append that overwrites is a clear and an append.",
        "with a clear and an append for each overwrite",
        _each(_overwrite_spelled_out),
    ),
    _life(
        "clearing_is_overwriting_with_nothing",
        "A clear is an append of no block that overwrites.",
        "with an overwrite for each clear",
        _clear_spelled_out,
    ),
    _life(
        "applying_twice_is_once", "A second apply changes nothing.", "with each apply done twice", _each(_applied_twice)
    ),
    _life(
        "idle_moves_change_nothing",
        "Two swaps of the same requests, and moves and swaps of a request with itself, change nothing.",
        "with two swaps and idle moves behind every operation",
        _swapped_back_and_forth,
    ),
    _life(
        "refused_operations_change_nothing",
        "A life without the operations that are refused, and with others that are, shows the same.",
        "with other refused operations",
        _refused_elsewhere,
    ),
    relation(
        "looking_changes_nothing",
        "A gather behind every operation changes no other, and two without an operation between show the same.",
        _looking_changes_nothing,
        _looks_at_the_end,
    ),
    relation(
        "staged_is_not_seen",
        "Operations behind the last apply are not seen.",
        _staged_is_not_seen,
        _looks_at_the_end,
    ),
    relation(
        "cleared_is_null",
        "A request that is cleared has NULL in all its columns, and no other row changes.",
        _cleared_is_null,
        _looks_at_the_end,
    ),
    relation(
        "moves_and_swaps_take_rows_along",
        "A move brings a row elsewhere and leaves NULL, a swap exchanges two rows, and no other row changes.",
        _moves_and_swaps_take_rows_along,
        _several_requests,
    ),
    relation(
        "there_and_back_is_nothing",
        "A move to an empty row and back changes nothing, and a swap with an empty row is a move.",
        _there_and_back_is_nothing,
        _several_requests,
    ),
    relation(
        "rows_are_free_to_move",
        "Rows of each gather in reverse order give the same rows in reverse order, and the same padding.",
        _rows_are_free_to_move,
        lambda inputs: any(len(rows.data) > 1 for rows in several(inputs, "idx_mappings")),
    ),
    _life(
        "requests_are_free_to_move",
        "The same life lived in other rows, and gathers that name them there, show the same.",
        "with requests in reverse order",
        _requests_turned_round,
    ),
    relation(
        "groups_do_not_meet",
        "Groups in reverse order give their tables in reverse order.",
        _groups_do_not_meet,
        lambda inputs: len(_capacities(inputs)) > 1,
    ),
    relation(
        "blocks_are_free_to_move",
        "Blocks with other ids give the same tables with those ids.",
        _blocks_are_free_to_move,
        lambda inputs: _operations(_each_append(inputs, lambda ids: ())) != _operations(inputs),
    ),
)
