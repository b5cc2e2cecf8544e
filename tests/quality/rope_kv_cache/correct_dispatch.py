"""Correct ``mla_cache_write_dispatch`` in small steps over the harness's paths. Planted faults replace a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from reference.mla_cache_write import KINDS


def refuse(call):
    """Everything that is wrong by the text of 6.2, and what of 6.1 the domain has."""
    tokens, slots = call.q_nope.shape[0], call.slot_mapping
    for rows in (call.decode_rows, call.prefill_rows):
        if not 0 <= rows.start <= rows.stop <= tokens:
            raise ValueError(f"rows: {rows} are none of a step of {tokens} tokens")
    if set(call.decode_rows) & set(call.prefill_rows):
        raise ValueError(f"rows: {call.decode_rows} and {call.prefill_rows} have a token in common")
    if call.kind not in KINDS or (slots is None) != (call.kind == "profiling"):
        raise ValueError(f"kind: {call.kind!r} is unknown, or has slots where there are none, or none where there are")
    if call.kv_c.shape[0] != tokens or (slots is not None and slots.shape[0] > tokens):
        raise ValueError(f"kv_c and slot_mapping: {call.kv_c.shape[0]} tokens, or more slots, in a step of {tokens}")


def slots_of(call):
    """The slots of the step."""
    return call.slot_mapping


def slots_of_rows(slots, rows):
    """The slots of consecutive rows; behind the last slot there are none."""
    return None if slots is None else slots[rows.start : rows.stop]


def decode(call, slots):
    """The fused path of decodes."""
    call.paths.fused(call.decode_rows, slots_of_rows(slots, call.decode_rows))


def prefill(call, slots):
    """The fused path of prompts."""
    call.paths.fused(call.prefill_rows, slots_of_rows(slots, call.prefill_rows))


def rest_of(call):
    """The rows that no fused path takes, as ranges of one row each."""
    tokens = range(call.q_nope.shape[0])
    return [tokens[t : t + 1] for t in tokens if t not in call.decode_rows and t not in call.prefill_rows]


def unfused(call, slots):
    """Rotate and write what is left."""
    for rows in rest_of(call):
        call.paths.rotate(rows)
        call.paths.write(rows, slots_of_rows(slots, rows))


def results(call):
    """What is returned."""
    return call.paths.q_out, call.paths.k_pe_out


@dataclass(frozen=True)
class Steps:
    """How a batch is dispatched."""

    refuse: Callable[..., Any] = refuse
    slots: Callable[..., Any] = slots_of
    decode: Callable[..., Any] = decode
    prefill: Callable[..., Any] = prefill
    unfused: Callable[..., Any] = unfused
    results: Callable[..., Any] = results


def dispatched(steps=Steps(), /, **inputs):  # frozen
    """All steps together."""
    call = SimpleNamespace(**inputs)
    steps.refuse(call)
    slots = steps.slots(call)
    for path in (steps.decode, steps.prefill, steps.unfused):
        path(call, slots)
    return steps.results(call)


def replaces(step):
    """Makes a function that takes a step's place the whole that has it."""
    return lambda function: partial(dispatched, Steps(**{step: function}))


def mla_cache_write_dispatch(**inputs):
    return dispatched(**inputs)
