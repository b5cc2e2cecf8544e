"""Script: contracts' optimized implementations on every small batch; prints a JSON summary.

``BACKEND REQUESTS LENGTH CONTRACT...`` judges every batch of up to so many requests with lengths up to that, in every
mode, with 0 to 2 speculative blocks, and blocks of 1 to 3 tokens, as far as a contract has them.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oracles.arrays import Inputs, array
from oracles.backends import by_name as backend_by_name
from oracles.backends.base import Backend
from oracles.check import Subject, judge
from oracles.contracts import by_name
from oracles.providers import resolve

Rows = tuple[tuple[int, int], ...]
"""For each request its queries, and the tokens before them."""

BLOCK_SIZES = (1, 2, 3)
SPECULATIVE = (0, 1, 2)
MODES = ("none", "align", "all")


def starts_of(rows: Rows) -> np.ndarray:
    return np.cumsum([0, *(queries for queries, _ in rows)])


def lengths_of(rows: Rows) -> list[int]:
    return [queries + computed for queries, computed in rows]


def table_of(rows: Rows, columns: int) -> np.ndarray:
    """A block for every column: whoever reads a wrong one gets another number."""
    return (np.arange(len(rows) * columns) * 3 + 5).reshape(len(rows), columns)


def sparse_indptr(rows: Rows) -> Iterator[Inputs]:
    starts = starts_of(rows)
    for topk in (1, 2):
        yield {
            "seq_lens": array(lengths_of(rows), "int32"),
            "query_start_loc": array(starts, "int32"),
            "query_start_loc_cpu": array(starts, "int32"),
            "topk": topk,
            "num_tokens": int(starts[-1]) + 1,
        }


def dense_page_indices(rows: Rows) -> Iterator[Inputs]:
    for size, columns in itertools.product(BLOCK_SIZES, (0, 1, 3)):
        yield {
            "block_table": array(table_of(rows, columns), "int32"),
            "seq_lens": array(lengths_of(rows), "int32"),
            "kernel_block_size": size,
            "paged_kv_indices": array(np.arange(len(rows) * columns * size + 2) + 900, "int32"),
        }


def state_columns(rows: Rows) -> Iterator[Inputs]:
    for mode, size, blocks in itertools.product(MODES, BLOCK_SIZES, SPECULATIVE):
        yield {
            "block_table": array(table_of(rows, 3), "int32"),
            "seq_lens": array(lengths_of(rows), "int32"),
            "mamba_cache_mode": mode,
            "block_size": size,
            "num_speculative_blocks": blocks,
        }


def stage_decode_state(rows: Rows) -> Iterator[Inputs]:
    count = len(rows)
    for blocks, padding, behind in itertools.product(SPECULATIVE, (0, 1, 2), (0, 1)):
        capacity = count + padding + behind
        yield {
            "state_indices": array(table_of(rows, 1 + blocks), "int32"),
            "query_start_loc": array(starts_of(rows), "int32"),
            "num_accepted_tokens": array([1 + row % 3 for row in range(count)], "int32"),
            "batch_size": count + padding,
            "state_buffer": array(np.full((capacity, 1 + blocks), 91), "int32"),
            "query_start_loc_buffer": array(np.full(capacity + 1, 92), "int32"),
            "num_accepted_buffer": array(np.full(capacity, 93), "int32"),
        }


def split_decodes_and_prefills(rows: Rows) -> Iterator[Inputs]:
    for threshold, uniform, short in itertools.product((1, 2), (False, True), (False, True)):
        yield {
            "query_start_loc": array(starts_of(rows), "int32"),
            "is_prefilling": array([queries > computed for queries, computed in rows], "bool"),
            "decode_threshold": threshold,
            "require_uniform": uniform,
            "treat_short_extends_as_decodes": short,
        }


def spec_token_partition(rows: Rows) -> Iterator[Inputs]:
    for mask in itertools.product((False, True), repeat=len(rows)):
        yield {
            "query_start_loc": array(starts_of(rows), "int32"),
            "query_start_loc_cpu": array(starts_of(rows), "int32"),
            "spec_mask_cpu": array(list(mask), "bool"),
        }


INPUTS: dict[str, Callable[[Rows], Iterator[Inputs]]] = {
    function.__name__: function
    for function in (
        sparse_indptr,
        dense_page_indices,
        state_columns,
        stage_decode_state,
        split_decodes_and_prefills,
        spec_token_partition,
    )
}
BOTH = ("sparse_indptr", "split_decodes_and_prefills")
"""What queries and the tokens before them are told apart by; elsewhere only one of the two matters."""


def batches(name: str, most: int, longest: int) -> Iterator[Rows]:
    """Every batch."""
    numbers = range(longest + 1)
    kinds = list(itertools.product(numbers, numbers if name in BOTH else (0,)))
    for count in range(most + 1):
        yield from itertools.product(kinds, repeat=count)


def judge_all(name: str, backend: Backend, most: int, longest: int) -> dict[str, Any]:
    family = "sparse_indptr" if name in ("sparse_indptr", "dense_page_indices") else "state_columns"
    contract = by_name(f"{family}.{name}")
    (implementation,) = resolve("optimized", (contract,), named=True)
    subject = Subject(contract, implementation, implementation.load(), backend)
    judged, problems = 0, []
    for rows in batches(name, most, longest):
        for inputs in INPUTS[name](rows):
            judged += 1
            problems += [f"{rows}: {failure}" for failure in judge(subject, inputs, fresh=False)]
    return {"judged": judged, "problems": problems[:20]}


def main(backend_name: str, most: str, longest: str, *names: str) -> int:
    backend = backend_by_name(backend_name)
    os.environ.update(backend.environment())
    backend.prepare()
    backend.begin()
    found = {name: judge_all(name, backend, int(most), int(longest)) for name in names}
    print(json.dumps(found))
    return 1 if any(each["problems"] for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
