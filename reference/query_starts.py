"""Query starts, the packed layout of a batch: what several families refuse of them, and what they take from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError, OnlyMemorySafety


def refuse_other_size(name: str, array: npt.NDArray[np.generic], size: int, rule: str) -> None:
    """Refuse a one-dimensional tensor of another size; ``rule`` says whose size it follows."""
    if array.size != size:
        raise ContractError(name, array.size, f"the size must be {rule}, {size}")


def starts_from_zero(name: str, starts: npt.NDArray[np.signedinteger]) -> list[int]:
    """The host's starts as Python ints. Refused: no element, a first start other than 0, a start that decreases."""
    if starts.size == 0:
        raise ContractError(name, starts.shape, "there must be at least one element")
    values: list[int] = starts.tolist()
    if values[0] != 0:
        raise ContractError(name, values[0], "the first start must be 0")
    for request, length in enumerate(query_lengths(values)):
        if length < 0:
            raise ContractError(name, length, f"the length of request {request} must not be negative")
    return values


def query_lengths(starts: list[int]) -> list[int]:
    """How many tokens each request has."""
    return [starts[request + 1] - starts[request] for request in range(len(starts) - 1)]


def no_values_where_twins_differ(name: str, device: npt.NDArray[np.signedinteger], host: list[int]) -> None:
    """Promise nothing (:class:`OnlyMemorySafety`) where the device holds other starts than the host's twin."""
    for place, start in enumerate(device.tolist()):
        if start != host[place]:
            raise OnlyMemorySafety(f"{name}[{place}] is {start} on the device and {host[place]} on the host")
