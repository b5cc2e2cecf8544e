"""Batches to measure on: lengths of sequences in tokens, the same ones in every run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]

LONG_TOKENS = 1 << 20
"""Tokens that the long sequences of a prefill batch share."""

MOST_LONG = 8
LONGEST_MIXED = 2048


def decode(num_seqs: int) -> Lengths:
    """One token each."""
    return np.ones(num_seqs, np.int64)


def prefill(num_seqs: int) -> Lengths:
    """At most eight long sequences share 2**20 tokens (one sequence: all of them); the others decode."""
    lengths = np.ones(num_seqs, np.int64)
    long = min(num_seqs, MOST_LONG)
    lengths[np.arange(long) * num_seqs // long] = LONG_TOKENS // long
    return lengths


def mixed(num_seqs: int) -> Lengths:
    """1 to 2,048 tokens, all orders of magnitude alike."""
    exponents = np.random.default_rng(num_seqs).random(num_seqs)
    return np.floor(LONGEST_MIXED**exponents).astype(np.int64)


def empty(num_seqs: int) -> Lengths:
    """Every eighth sequence is as in a mixed batch, the others have no tokens; the first and the last are empty."""
    return np.where(np.arange(num_seqs) % 8 == 3, mixed(num_seqs), 0)


DISTRIBUTIONS: dict[str, Callable[[int], Lengths]] = {
    "decode": decode,
    "prefill": prefill,
    "mixed": mixed,
    "empty": empty,
}


def starts(lengths: Lengths) -> npt.NDArray[np.int32]:
    """Cumulative starts ``[N + 1]``, int32 as an engine keeps them. Refused: more tokens than int32 numbers."""
    found = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if found[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"lengths: {found[-1]} tokens; int32 starts hold at most {np.iinfo(np.int32).max}")
    return found.astype(np.int32)
