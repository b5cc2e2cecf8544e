"""Contract 5: what an engine hands to its builders, on objects of its own in every step or on persistent buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from oracles.contracts import _reuse_story as story
from reference.metadata_records import Batch


class Steps:
    """The batches and tables of a life.

    Where the engine is one that refills its buffers, all batches are views of the same tensors: of each name one, which
    is filled anew before each step.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = dict(arguments)
        self._names = (*story.PER_STEP, "block_tables", "slot_mappings")
        self._buffers = {name: self._buffers_of(name) for name in self._names} if arguments["refilled"] else {}

    def begin(self, step: int) -> Batch:
        """The batch of a step. From here on the tables are those of the step."""
        if self.arguments["refilled"]:
            for name in self._names:
                self._fill(name, step)
        return story.batch_of(self.arguments, step)

    def table(self, step: int, group: int) -> tuple[Any, Any]:
        """Block table and slots of a group in the step that has begun."""
        return story.table_of(self.arguments, step, group)

    def _places(self, name: str, step: int) -> range:
        """Where the values of a step are: one, or one a group."""
        many = len(self.arguments[name]) // len(self.arguments["steps"])
        return range(step * many, (step + 1) * many)

    def _buffers_of(self, name: str) -> list[torch.Tensor | None]:
        """A buffer for each place of a step that holds what is there in any step."""
        made: list[torch.Tensor | None] = []
        for first in self._places(name, 0):
            held = list(self.arguments[name][first :: len(self._places(name, 0))])
            tensors = [item for item in held if isinstance(item, torch.Tensor)]
            size = max((item.numel() for item in tensors), default=0)
            made.append(torch.empty(size, dtype=tensors[0].dtype, device=tensors[0].device) if tensors else None)
        return made

    def _fill(self, name: str, step: int) -> None:
        values = list(self.arguments[name])
        for place, buffer in zip(self._places(name, step), self._buffers[name], strict=True):
            value = values[place]
            if isinstance(value, torch.Tensor) and buffer is not None:
                view = buffer[: value.numel()].view(value.shape)
                view.copy_(value)
                values[place] = view
        self.arguments[name] = values


@contextmanager
def refilled(batch: Batch) -> Iterator[None]:
    """Inside, the batch's host tensors hold another step's values, as persistent buffers do one step later."""
    starts = batch.query_start_loc_cpu
    before = starts.clone()  # type: ignore[attr-defined]
    starts.add_(1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        starts.copy_(before)  # type: ignore[attr-defined]


def on_host(batch: Batch) -> Batch:
    """The batch as the specification takes it, of what the host knows of it."""
    starts, lengths = _array(batch.query_start_loc_cpu), _array(batch.seq_lens_cpu)
    drafts, prefilling = batch.num_decode_draft_tokens_cpu, batch.is_prefilling
    return Batch(
        step=batch.step,
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        num_actual_tokens=batch.num_actual_tokens,
        is_prefilling=None if prefilling is None else _array(prefilling),
        num_accepted_tokens=None if drafts is None else np.ones(lengths.shape, np.int32),
        num_decode_draft_tokens_cpu=None if drafts is None else _array(drafts),
        causal=batch.causal,
        full_graph=batch.full_graph,
    )


def _array(value: Any) -> np.ndarray:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
