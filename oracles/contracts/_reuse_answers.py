"""Contract 5: what builders answer, taken only where it is what has to be there; all else is held against them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.contracts._reuse_fields import FIELDS, RECORDS
from oracles.verdict import WrongShape

METHODS = {
    "build": "(batch, block_table, slot_mapping)",
    "update_block_table": "(metadata, block_table, slot_mapping)",
    "can_reuse_metadata": "(metadata, batch)",
    "share_reusable_metadata_buffers": "(builders), a class method",
    "update_block_tables": "(metadata, builders, block_tables, slot_mappings), a class method",
}
RECORDS_FILE = "reference/metadata_records.py"
MOST_NAMED = 4
"""Fields that are named; of more, the number is told."""


def method(owner: Any, name: str, whose: str) -> Callable[..., Any]:
    """A method of a builder or of its class; ``whose`` says in words whose it is."""
    found = getattr(owner, name, None)
    if not callable(found):
        raise WrongShape(name, f"{whose}, {_kind(owner)}, has no method {name}{METHODS[name]}")
    return found  # type: ignore[no-any-return]  # whatever it is, it can be called


def builder_class(given: Any, family: str) -> Any:
    """What makes the builders of a family."""
    if not callable(given):
        raise WrongShape("builder class", f"returned {_kind(given)} for {family!r}, where a builder class belongs")
    return given


def metadata(value: Any, family: str, name: str, told: str) -> Any:
    """Metadata with all fields of the family's record, which method ``name`` returned."""
    record, fields = RECORDS[family].__name__, FIELDS[family]
    lacking = [field for field in fields if not hasattr(value, field)]
    if len(lacking) == len(fields):
        text = f"where an object with the attributes of {record} belongs ({RECORDS_FILE})"
        raise WrongShape(name, f"{told} returned {_kind(value)}, {text}")
    if lacking:
        more = f" and {len(lacking) - MOST_NAMED} more" if len(lacking) > MOST_NAMED else ""
        text = f"which lacks {', '.join(lacking[:MOST_NAMED])}{more} of {record}'s attributes ({RECORDS_FILE})"
        raise WrongShape(name, f"{told} returned {_kind(value)}, {text}")
    return value


def several(value: Any, count: int, told: str) -> list[Any]:
    """A list of as many metadata as there are builders, which an update of them all returned."""
    name = "update_block_tables"
    if not isinstance(value, list | tuple):
        raise WrongShape(name, f"{told} returned {_kind(value)}, where a list of {count} metadata belongs")
    if len(value) != count:
        raise WrongShape(name, f"{told} returned {len(value)} metadata for {count} builders")
    return list(value)


def yes_or_no(value: Any, told: str) -> bool:
    """Whether a builder may reuse metadata."""
    if not isinstance(value, bool):
        raise WrongShape("can_reuse_metadata", f"{told} returned {_kind(value)}, where True or False belongs")
    return value


def _kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
