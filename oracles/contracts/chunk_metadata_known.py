"""Predicates of known findings for contract 1.1: which inputs show a fault that upstream still has."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from oracles.arrays import Array, Inputs

Predicate = Callable[[Inputs], bool]

MOST_ROWS = 1 << 20
"""Rows of one program that the interpreter writes within its time limit."""


def _lengths(cu: Array) -> list[int]:
    values = cu.data.tolist()
    return [end - begin for begin, end in pairwise(values)]


def _legal(inputs: Inputs) -> tuple[Array, list[int], list[int], int] | None:
    """Device starts, device lengths, host lengths and chunk size of an input that the contract does not refuse."""
    cu, host, size = inputs["cu_seqlens"], inputs["cu_seqlens_cpu"], inputs["chunk_size"]
    if not (isinstance(cu, Array) and isinstance(host, Array) and isinstance(size, int)) or size < 1:
        return None
    if cu.data.ndim != 1 or cu.shape != host.shape or not cu.data.size:
        return None
    if not {cu.dtype, host.dtype} <= {"int32", "int64"}:
        return None
    known = _lengths(host)
    return None if min(known, default=0) < 0 else (cu, _lengths(cu), known, size)


def every_case(inputs: Inputs) -> bool:
    """Every input that the contract allows."""
    return _legal(inputs) is not None


def no_sequences(inputs: Inputs) -> bool:
    """Zero sequences."""
    legal = _legal(inputs)
    return legal is not None and not legal[2]


def empty_before_non_empty(inputs: Inputs) -> bool:
    """An empty sequence with a non-empty one behind it."""
    legal = _legal(inputs)
    if legal is None:
        return False
    lengths = legal[2]
    return any(length == 0 and any(lengths[at:]) for at, length in enumerate(lengths))


def strided(inputs: Inputs) -> bool:
    """Starts that do not lie side by side."""
    legal = _legal(inputs)
    return legal is not None and len(legal[1]) > 0 and legal[0].layout != (1,)


def remembers_refilled_starts(inputs: Inputs) -> bool:
    """Starts that can be refilled in place with others, for which a first call on new objects is right."""
    # Imported late: the record of the contract, in that module, names this predicate.
    from oracles.contracts.chunk_metadata import resample

    legal = _legal(inputs)
    if legal is None or legal[1] != legal[2] or not legal[1] or empty_before_non_empty(inputs):
        return False
    others = resample(inputs)
    return bool(others) and not empty_before_non_empty(others[0]) and not int32_sums_past_int32(others[0])


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _upstream_rows(cu: Array, chunk_size: int) -> list[tuple[int, int]]:
    """First row and number of rows that each program of the device builder writes, in its 32-bit arithmetic.

    It takes starts to lie side by side; between strided ones it reads bytes of others, which read as 0 here.
    """
    values, step = cu.data.tolist(), cu.layout[0]
    seen = [values[at // step] if step and at % step == 0 else 0 for at in range(len(values))]
    starts = [_int32(value) for value in seen]
    rows, base = [], 0
    for begin, end in pairwise(starts):
        scaled = _int32(_int32(end - begin) + chunk_size - 1)
        # Division in a kernel truncates towards zero.
        chunks = abs(scaled) // chunk_size * (1 if scaled >= 0 else -1)
        rows.append((base, chunks))
        base = _int32(base + chunks)
    return rows


def _disagreeing(inputs: Inputs) -> tuple[list[tuple[int, int]], int, bool] | None:
    """Rows that are written, rows that there are, and whether every device length is legal; contiguous starts only."""
    legal = _legal(inputs)
    if legal is None or strided(inputs) or legal[1] == legal[2]:
        return None
    cu, device, host, size = legal
    return _upstream_rows(cu, size), sum(-(-length // size) for length in host), min(device, default=0) >= 0


def more_chunks_than_a_run_can_write(inputs: Inputs) -> bool:
    """One program writes so many rows that the interpreter does not end in time."""
    legal = _legal(inputs)
    return legal is not None and any(count > MOST_ROWS for _, count in _upstream_rows(legal[0], legal[3]))


def rows_outside_the_allocation(inputs: Inputs) -> bool:
    """The device's lengths give rows that the host's have no room for."""
    found = _disagreeing(inputs)
    if found is None or more_chunks_than_a_run_can_write(inputs):
        return False
    rows, there, _ = found
    return any(count > 0 and (base < 0 or base + count > there) for base, count in rows)


def rows_that_nobody_writes(inputs: Inputs) -> bool:
    """The device's lengths give fewer rows than the host's."""
    found = _disagreeing(inputs)
    if found is None or more_chunks_than_a_run_can_write(inputs):
        return False
    rows, there, legal = found
    return legal and sum(count for _, count in rows) < there


def sums_past_int32(inputs: Inputs) -> bool:
    """A length plus a chunk, less one, that 32 bits do not hold."""
    legal = _legal(inputs)
    if legal is None or strided(inputs) or min(legal[1], default=0) < 0 or more_chunks_than_a_run_can_write(inputs):
        return False
    return any(length + legal[3] - 1 >= 1 << 31 for length in legal[1])


def int32_sums_past_int32(inputs: Inputs) -> bool:
    """The same, of starts that are int32 themselves."""
    legal = _legal(inputs)
    if legal is None or legal[0].dtype != "int32" or legal[1] != legal[2]:
        return False
    return any(length + legal[3] - 1 >= 1 << 31 for length in legal[1])


def host_sums_past_int32(inputs: Inputs) -> bool:
    """The same, of the host's lengths, where the twin is int32."""
    legal, host = _legal(inputs), inputs["cu_seqlens_cpu"]
    if legal is None or not isinstance(host, Array) or host.dtype != "int32":
        return False
    return any(length + legal[3] - 1 >= 1 << 31 for length in legal[2])


PREDICATES = (
    host_sums_past_int32,
    sums_past_int32,
    int32_sums_past_int32,
    every_case,
    no_sequences,
    empty_before_non_empty,
    strided,
    remembers_refilled_starts,
    more_chunks_than_a_run_can_write,
    rows_outside_the_allocation,
    rows_that_nobody_writes,
)
KNOWN: dict[str, Predicate] = {predicate.__name__: predicate for predicate in PREDICATES}
"""What known_findings.toml may name."""
