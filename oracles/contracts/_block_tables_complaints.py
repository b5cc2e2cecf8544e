"""Contract 4.1: what makes a life of block tables none, as where a case file was edited.

What the class has to refuse itself, such as a row that there is not, is a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from oracles.arrays import Array, Inputs
from reference.errors import ContractError
from reference.refusals import is_int

Check = Callable[[Any], bool]


def _are_ids(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(some, tuple) and all(map(is_int, some)) for some in value)


OPERATIONS: Mapping[str, tuple[str, tuple[Check, ...]]] = {
    "append": (
        "a row, a list of block ids for each group, and a bool",
        (is_int, _are_ids, lambda value: isinstance(value, bool)),
    ),
    "clear": ("a row", (is_int,)),
    "move": ("two rows", (is_int, is_int)),
    "swap": ("two rows", (is_int, is_int)),
    "apply": ("nothing", ()),
    "gather": ("the number of a mapping and one of rows", (is_int, is_int)),
}
"""Each operation: what follows its name, in words and in checks."""


def complaint(inputs: Inputs) -> str | None:
    """Why these inputs are no life of block tables, in one sentence; ``None`` if they are one.

    In this order: an operation that does not exist, or with other values than it has; a gather of no mapping;
    ``refilled`` that is no bool; mappings and a buffer that are no rows of numbers; a buffer that is refilled and does
    not have a mapping's dtype, or is too small.
    """
    try:
        for number, operation in enumerate(cast(Any, inputs["operations"])):
            _refuse_bad_operation(f"operations[{number}]", operation, len(cast(Any, inputs["idx_mappings"])))
        if not isinstance(inputs["refilled"], bool):
            raise ContractError("refilled", inputs["refilled"], "it must be a bool")
        _refuse_bad_mappings(inputs)
    except ContractError as error:
        return str(error)
    return None


def _refuse_bad_operation(place: str, operation: Any, mappings: int) -> None:
    if not isinstance(operation, tuple) or not operation:
        raise ContractError(place, operation, "it must be a list that begins with the name of an operation")
    name, *values = operation
    if not isinstance(name, str) or name not in OPERATIONS:
        raise ContractError(f"{place}[0]", name, f"it must be one of {', '.join(OPERATIONS)}")
    words, checks = OPERATIONS[name]
    if len(values) != len(checks) or not all(check(value) for check, value in zip(checks, values, strict=True)):
        raise ContractError(place, operation, f"what follows {name!r} must be {words}")
    if name == "gather" and not 0 <= values[0] < mappings:
        raise ContractError(f"{place}[1]", values[0], f"it must be the number of one of {mappings} idx_mappings")


def _refuse_bad_mappings(inputs: Inputs) -> None:
    buffer = cast(Array, inputs["idx_buffer"])
    rows = {f"idx_mappings[{number}]": item for number, item in enumerate(cast(Any, inputs["idx_mappings"]))}
    for name, value in (rows | {"idx_buffer": buffer}).items():
        if not isinstance(value, Array) or value.data.ndim != 1:
            shown = value.shape if isinstance(value, Array) else value
            raise ContractError(name, shown, "it must be a tensor of one dimension")
        if value.dtype not in ("int32", "int64"):
            raise ContractError(name, value.dtype, "the dtype must be int32 or int64")
        if inputs["refilled"] and value.dtype != buffer.dtype:
            raise ContractError(name, value.dtype, f"idx_buffer, which is refilled, has the dtype {buffer.dtype}")
        if inputs["refilled"] and value.data.size > buffer.data.size:
            raise ContractError(name, value.data.size, f"idx_buffer, which is refilled, has {buffer.data.size}")
