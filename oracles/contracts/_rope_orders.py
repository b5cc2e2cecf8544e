"""Contract 6.1: the rounding order that a callable declares, and what is said where another one explains an element."""

from __future__ import annotations

import re
from typing import Any

from oracles.providers.base import ProviderError
from reference.rope_orders import ORDERS
from reference.rope_results import Explanation

DEFAULT = "hip"
"""The order of a callable that declares none."""

PAGE = "docs/rounding.md"


def declared_order(function: Any) -> str:
    """The order that a callable follows, by its attribute ``rounding``; refused: a name of none."""
    order = getattr(function, "rounding", DEFAULT)
    if not isinstance(order, str) or order not in ORDERS:
        raise ProviderError(f"the callable's rounding is {order!r}; it must be one of {', '.join(ORDERS)} ({PAGE})")
    return order


def told(found: Explanation, place: str, *, as_bytes: bool) -> str:
    """An explanation for the message that has named the element ``place``, what it is and what was expected.

    Got and right are repeated where that has not said all: of several right results, and of ``as_bytes``, a cache whose
    float8 are bytes for the message.
    """
    element, bits, *rest = str(found).split("\n  ")
    said = len(set(found.right.values())) == 1 and not as_bytes
    return "\n  ".join([element.removeprefix(f"{place}: "), *([] if said else [bits]), *rest, *hints(found)])


def hints(found: Explanation) -> list[str]:
    """How a callable that means to follow the order that explains an element declares it."""
    orders = [named[1] for named in (re.match(r'order "(\w+)"', suspect) for suspect in found.suspects) if named]
    if not orders:
        return []
    return [f'if it is meant to round in that order, declare it: function.rounding = "{orders[0]}" ({PAGE})']
