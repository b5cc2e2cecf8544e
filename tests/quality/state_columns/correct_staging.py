"""Correct ``stage_decode_state`` in small steps of plain torch. Planted faults replace a step or wrap the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)
BUFFERS = ("state_buffer", "query_start_loc_buffer", "num_accepted_buffer")
SOURCES = ("state_indices", "query_start_loc", "num_accepted_tokens")


def refuse(call):
    """Everything that is wrong by the text of 3.2."""
    given, buffers = ([getattr(call, name) for name in names] for names in (SOURCES, BUFFERS))
    if [item.dim() for item in (*given, *buffers)] != [2, 1, 1] * 2:
        raise ValueError("state_indices: must have two dimensions, as its buffer; all other tensors one")
    if any(item.dtype != torch.int32 for item in (given[0], *buffers)) or not {given[1].dtype, given[2].dtype} <= {
        *INTEGERS
    }:
        raise ValueError("state_indices: must be int32, as all buffers; all other tensors int32 or int64")
    if isinstance(call.batch_size, bool) or not isinstance(call.batch_size, int):
        raise ValueError(f"batch_size: {call.batch_size} must be an int")
    rows, capacity = given[0].shape[0], buffers[0].shape[0]
    if [given[1].shape[0], given[2].shape[0]] != [rows + 1, rows] or given[0].shape[1] != buffers[0].shape[1]:
        raise ValueError("state_indices: must have the rows of all sources and the columns of its buffer")
    if [buffers[1].shape[0], buffers[2].shape[0]] != [capacity + 1, capacity]:
        raise ValueError("state_buffer: must have the capacity of the other buffers")
    if not rows <= call.batch_size <= capacity:
        raise ValueError(f"batch_size: {call.batch_size} must lie in {rows}..{capacity}")


def rows_of(call):
    """Rows of the step."""
    return call.state_indices.shape[0]


def stage_states(call, rows):
    call.state_buffer[:rows] = call.state_indices
    call.state_buffer[rows : call.batch_size] = 0


def stage_starts(call, rows):
    call.query_start_loc_buffer[: rows + 1] = call.query_start_loc
    call.query_start_loc_buffer[rows + 1 : call.batch_size + 1] = call.query_start_loc[rows : rows + 1]


def stage_accepted(call, rows):
    call.num_accepted_buffer[:rows] = call.num_accepted_tokens
    call.num_accepted_buffer[rows : call.batch_size] = 1


def views_of(call):
    """What is returned."""
    size = call.batch_size
    return call.state_buffer[:size], call.query_start_loc_buffer[: size + 1], call.num_accepted_buffer[:size]


@dataclass(frozen=True)
class Steps:
    """How a step is staged."""

    refuse: Callable[..., Any] = refuse
    rows: Callable[..., Any] = rows_of
    states: Callable[..., Any] = stage_states
    starts: Callable[..., Any] = stage_starts
    accepted: Callable[..., Any] = stage_accepted
    views: Callable[..., Any] = views_of


def stage(steps=Steps(), /, **inputs):  # frozen
    """All steps together."""
    call = SimpleNamespace(**inputs)
    steps.refuse(call)
    rows = steps.rows(call)
    steps.states(call, rows)
    steps.starts(call, rows)
    steps.accepted(call, rows)
    return steps.views(call)


def replaces(step):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: partial(stage, Steps(**{step: function}))


def stage_decode_state(**inputs):
    return stage(**inputs)
