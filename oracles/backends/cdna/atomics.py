"""What atomics do to memory, lane after lane."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles.backends.cdna.lanes import VALUES
from oracles.backends.cdna.tables.memory import Atomic
from oracles.backends.cdna.wave import Words

Values = npt.NDArray[Any]

_DTYPES = {"u": np.uint32, "i": np.int32, "f": np.float32, "U": np.uint64, "I": np.int64, "F": np.float64}


class Operation:
    """An atomic's arithmetic on cells of one or two 32-bit words."""

    def __init__(self, row: Atomic) -> None:
        self.dtype = np.dtype(_DTYPES[row.type])
        self.words = self.dtype.itemsize // 4
        self.count = row.operands
        parameters = ("old", "first", "second")[: 1 + row.operands]
        text = f"lambda {', '.join(parameters)}: {row.expression.format(*parameters)}"
        self.new: Callable[..., Values] = eval(text, dict(VALUES))

    def operands(self, v: list[Words], first: int) -> list[Values]:
        """The operands in registers from ``first`` on."""
        return [
            self.joined(v[first + at : first + at + self.words]) for at in range(0, self.count * self.words, self.words)
        ]

    def joined(self, words: list[Words]) -> Values:
        """Values from their words, lowest first."""
        return np.ascontiguousarray(np.stack(words, axis=1)).view(self.dtype)[:, 0]

    def apply(self, memory: Words, index: npt.NDArray[np.int64], operands: list[Values]) -> list[Words]:
        """Change the cells whose first words are ``memory[index]``; what they held before, a word an array."""
        old = np.empty(index.size, self.dtype)
        left = np.arange(index.size)
        while left.size:
            # Of the lanes that are left, the first one at each cell.
            now = left[np.unique(index[left], return_index=True)[1]]
            cells = index[now]
            held = self.joined([memory[cells + word] for word in range(self.words)])
            old[now] = held
            new = np.ascontiguousarray(self.new(held, *(operand[now] for operand in operands)), dtype=self.dtype)
            for word, part in enumerate(new.view(np.uint32).reshape(-1, self.words).T):
                memory[cells + word] = part
            left = np.setdiff1d(left, now, assume_unique=True)
        return list(np.ascontiguousarray(old.view(np.uint32).reshape(-1, self.words).T))


@cache
def operation(row: Atomic) -> Operation:
    """The operation of a table's row, made once."""
    return Operation(row)
