"""Predicates of known findings for contract 1.2: which inputs show a fault that upstream still has."""

from __future__ import annotations

from collections.abc import Callable

from oracles.arrays import Inputs
from oracles.contract import Values


def _legal_traits(inputs: Inputs) -> frozenset[str]:
    # Imported late: the record of the contract, in that module, names these predicates.
    from oracles.contracts.mamba_chunk_layout import expected, traits

    return traits(inputs) if isinstance(expected(inputs), Values) else frozenset()


def empty_inside_chunk(inputs: Inputs) -> bool:
    """A request without tokens whose computed count is no multiple of the chunk size."""
    return "empty_inside_chunk" in _legal_traits(inputs)


def end_checkpoint_inside_chunk(inputs: Inputs) -> bool:
    """A checkpoint at a request's end, off an absolute multiple."""
    return "end_checkpoint_inside_chunk" in _legal_traits(inputs)


def empty_behind_a_chunk(inputs: Inputs) -> bool:
    """A request without tokens, on a multiple, with a chunk of an earlier request before it."""
    from oracles.contracts.mamba_chunk_layout import requests_of

    size = inputs["chunk_size"]
    requests = requests_of(inputs)
    if "empty_at_multiple" not in _legal_traits(inputs) or requests is None or not isinstance(size, int):
        return False
    chunks = False
    for each in requests:
        if chunks and not each.length and each.computed % size == 0:
            return True
        chunks = chunks or bool(each.length) or bool(each.computed % size)
    return False


PREDICATES = (empty_inside_chunk, end_checkpoint_inside_chunk, empty_behind_a_chunk)
KNOWN: dict[str, Callable[[Inputs], bool]] = {predicate.__name__: predicate for predicate in PREDICATES}
"""What known_findings.toml may name."""
