"""Steps whose requests follow from their number: a few whose tensors lie far apart, and crowds.

Sampled batches rarely have what these have, so every small scope does: strides below 2^31 whose products with an index
that is used pass it, and more requests than a persistent kernel has programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oracles.arrays import Array, Inputs, Value
from oracles.contracts._batch import Batch, Group, Kind, Request
from oracles.contracts._batch_domain import SMALL, Wanted, draw_batch, draw_group, draw_ids
from oracles.contracts._table_layouts import MOST_FAR
from oracles.domain import Source, far_stride

APART = (3, 5, 4)
"""Requests of a step with a tensor whose elements lie far apart: a row of index 1 cannot show what 32 bits lose."""

CROWDS = (17, 65, 129)
"""Requests of a crowd: one more than the programs that persistent kernels are launched with."""

KINDS: tuple[tuple[Kind, int], ...] = (("speculative", 2), ("decode", 1), ("chunk", 2), ("decode", 1), ("idle", 0))
"""Of the rows in turn, with the tokens that they have."""

LAST: tuple[Kind, int] = ("chunk", 3)

RULED = {"apart": APART, "crowd": CROWDS}
"""The flavours that such steps have, besides those that every contract has."""


def draw_ruled(source: Source, flavour: str, wanted: Wanted) -> Batch:
    """A step of a few requests or of a crowd. No two neighbours are alike, and the last columns are in use."""
    apart = flavour == "apart"
    rows = source.choose(RULED[flavour], small=1 if apart else None)
    group = draw_group(source, SMALL, 1, replace(wanted, walked=frozenset()))
    drawn = [replace(group, window_reach=source.choose((1, 0), small=1)) if wanted.windows else group]
    if wanted.groups[1] > 1:
        # Numbers of blocks have a row a group, of which the third can lie too far away: one contract walks them.
        drawn *= source.choose((1, 3), small=2 if apart and not wanted.windows else 1)
    requests = tuple(_request(row, rows, drawn[0].block_size) for row in range(rows))
    batch = Batch(
        requests=requests,
        waiting=(),
        num_reqs_padded=rows + source.integer(0, 2, small=1),
        num_tokens_padded=sum(request.query for request in requests) + source.integer(0, 2, small=1),
        max_num_reqs=rows,
        groups=tuple(_wide_enough(group, requests) for group in drawn),
        ids=draw_ids(source, drawn, 1),
    )
    source.event(f"requests: {rows}, by a rule")
    return batch


def _request(row: int, rows: int, block_size: int) -> Request:
    """The last row, to which the first program of a persistent kernel comes as well, differs from the first.

    It alone has the most blocks, and it is the last one of the persistent tables, which has to be used.
    """
    kind, query = KINDS[row % len(KINDS)] if row < rows - 1 else LAST
    longest = 3 * block_size if row == rows - 1 else 1 + (2 * row + row // 3) % (3 * block_size - 1)
    computed = max(longest - query, 1 if kind != "chunk" else 0)
    drafts = 1 if kind == "speculative" else -1
    slot = row if row == rows - 1 else rows - 2 - row
    return Request(kind=kind, computed=computed, query=query, drafts=drafts, slot=slot)


def _wide_enough(group: Group, requests: Sequence[Request]) -> Group:
    return replace(group, columns=max(group.blocks(request.seq_len, 1) for request in requests))


def draw_step(source: Source, flavour: str, wanted: Wanted) -> Batch:
    """A step by a rule, where the flavour is one of those, else one that is drawn."""
    return draw_ruled(source, flavour, wanted) if flavour in RULED else draw_batch(source, wanted)


def placed(source: Source, flavour: str, inputs: Inputs, *names: str) -> Inputs:
    """The inputs as they are, but in steps "apart".

    There the elements of one of the named tensors, along one axis, lie as far apart as 32 bits cannot count. The stride
    itself fits 32 bits, so compilers of kernels type it so. Every tensor and axis is walked.
    """
    if flavour != "apart":
        return inputs
    places = [place for name in names for place in _places(name, inputs[name])]
    name, index, axis = source.choose(places)
    value = inputs[name]
    arrays = list(value) if isinstance(value, tuple) else [value]
    tensor = arrays[index]
    assert isinstance(tensor, Array)
    far = far_stride(tensor.shape[axis])
    strides = (far,) if tensor.data.ndim == 1 else ((far, 1), (1, far))[axis]
    arrays[index] = Array(tensor.dtype, tensor.data, strides)
    source.event(f"far apart: {name}, axis {axis}")
    return {**inputs, name: tuple(arrays) if isinstance(value, tuple) else arrays[0]}


def _places(name: str, value: Value) -> list[tuple[str, int, int]]:
    """Arrays and their axes along which there are more than two elements, and not so many that they take long."""
    arrays = value if isinstance(value, tuple) else (value,)
    return [
        (name, index, axis)
        for index, item in enumerate(arrays[:1])
        if isinstance(item, Array) and item.data.size <= MOST_FAR[1]
        for axis, count in enumerate(item.shape)
        if count > 2
    ]
