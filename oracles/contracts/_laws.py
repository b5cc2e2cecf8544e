"""What relations of several contracts share."""

from __future__ import annotations

from collections.abc import Callable

from oracles.arrays import Inputs, Outputs
from oracles.contract import Relation

Function = Callable[[Inputs], Outputs]


class WrongShape(Exception):
    """Outputs that a law cannot be asked of; the text says what is wrong with them."""


def relation(
    name: str,
    law: str,
    check: Callable[[Function, Inputs], str | None],
    applies: Callable[[Inputs], bool] = lambda inputs: True,
) -> Relation:
    """A law that holds where it does not apply, and does not where outputs have a wrong shape."""

    def holds(function: Function, inputs: Inputs) -> str | None:
        if not applies(inputs):
            return None
        try:
            return check(function, inputs)
        except WrongShape as problem:
            return str(problem)

    return Relation(name=name, law=law, holds=holds)
