"""Faults of ``mla_cache_write_dispatch``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_dispatch import (
    decode,
    dispatched,
    mla_cache_write_dispatch,
    prefill,
    replaces,
    rest_of,
    results,
    slots_of_rows,
    unfused,
)

_cache: dict = {}


# Who writes.


@replaces("unfused")
def both_paths_write(call, slots):
    """The unfused write takes the whole batch, although fused paths have written theirs: with the same bytes."""
    for rows in rest_of(call):
        call.paths.rotate(rows)
    call.paths.write(range(call.q_nope.shape[0]), slots)


@replaces("unfused")
def neither_writes(call, slots):
    """Skipped as soon as any fused path has run."""
    for rows in rest_of(call):
        call.paths.rotate(rows)
        if not (call.decode_rows or call.prefill_rows):
            call.paths.write(rows, slots_of_rows(slots, rows))


@replaces("unfused")
def decode_rows_are_rotated_twice(call, slots):
    """The unfused rotation takes the whole batch."""
    unfused(call, slots)
    call.paths.rotate(call.decode_rows)


@replaces("unfused")
def writes_before_it_rotates(call, slots):
    for rows in rest_of(call):
        call.paths.write(rows, slots_of_rows(slots, rows))
        call.paths.rotate(rows)


@replaces("unfused")
def leaves_keys_to_a_fused_path(call, slots):
    """What is left is written as it came."""
    for rows in rest_of(call):
        call.paths.write(rows, slots_of_rows(slots, rows))


@replaces("unfused")
def knows_one_run_of_rows(call, slots):
    """As if what is left were one slice, behind the last fused row."""
    rows = range(max(call.decode_rows.stop, call.prefill_rows.stop), call.q_nope.shape[0])
    call.paths.fused(rows, slots_of_rows(slots, rows))


@replaces("unfused")
def decodes_come_first(call, slots):
    """What is left begins behind as many rows as the fused paths have."""
    rows = range(len(call.decode_rows) + len(call.prefill_rows), call.q_nope.shape[0])
    call.paths.fused(rows, slots_of_rows(slots, rows))


@replaces("prefill")
def prompts_begin_behind_decodes(call, slots):
    rows = range(len(call.decode_rows), len(call.decode_rows) + len(call.prefill_rows))
    call.paths.fused(rows, slots_of_rows(slots, rows))


@replaces("prefill")
def prompts_take_the_first_slots(call, slots):
    call.paths.fused(call.prefill_rows, None if slots is None else slots[: len(call.prefill_rows)])


@replaces("prefill")
def prompts_take_the_slots_behind_those_of_decodes(call, slots):
    begin = len(call.decode_rows)
    call.paths.fused(call.prefill_rows, slots_of_rows(slots, range(begin, begin + len(call.prefill_rows))))


@replaces("decode")
def a_batch_with_prompts_has_no_decodes(call, slots):
    if not call.prefill_rows:
        decode(call, slots)


@replaces("prefill")
def a_row_of_both_fused_paths(call, slots):
    """The prompt path takes the row before its own as well, for the sake of alignment."""
    prefill(call, slots)
    if call.prefill_rows and call.decode_rows and call.decode_rows.stop == call.prefill_rows.start:
        rows = call.decode_rows[-1:]
        call.paths.write(rows, slots_of_rows(slots, rows))


# Steps that write nothing.


def profiling_leaves_queries_unrotated(**inputs):
    if inputs["kind"] == "profiling":
        return torch.cat([inputs["q_nope"], inputs["q_pe"]], dim=2), inputs["k_pe"].clone()
    return dispatched(**inputs)


@replaces("slots")
def dummy_runs_write_slot_0(call):
    """A warm-up has a mapping of its own: zeros. Its last token is the one that is left there."""
    return torch.zeros_like(call.slot_mapping) if call.kind == "dummy" else call.slot_mapping


@replaces("slots")
def profiling_writes_the_first_slots(call):
    if call.slot_mapping is not None:
        return call.slot_mapping
    return torch.arange(call.q_nope.shape[0], device=call.q_nope.device)


def rows_without_a_slot_return_early(**inputs):
    """F05: what skips the write also skips the query."""
    q_out, k_pe_out = dispatched(**inputs)
    count, slots = q_out.shape[0], inputs["slot_mapping"]
    if slots is not None:
        none = torch.cat([slots < 0, slots.new_ones(count - slots.shape[0], dtype=torch.bool)])[:, None, None]
        q_out = torch.where(none, torch.cat([inputs["q_nope"], inputs["q_pe"]], dim=2), q_out)
    return q_out, k_pe_out


@replaces("decode")
def rows_behind_the_slots_are_left_out(call, slots):
    count = len(call.decode_rows) if slots is None else slots[call.decode_rows.start : call.decode_rows.stop].shape[0]
    call.paths.fused(call.decode_rows[:count], slots_of_rows(slots, call.decode_rows))


# What is returned.


@replaces("results")
def returns_keys_as_they_came(call):
    """F07: the rotated key is in the cache only."""
    return call.paths.q_out, call.k_pe.clone()


@replaces("results")
def returns_its_own_buffer(call):
    """One buffer for all steps of a size."""
    key = (tuple(call.q_nope.shape), call.q_pe.shape[2], call.q_nope.dtype)
    held = _cache.setdefault(key, torch.empty_like(call.paths.q_out))
    return held.copy_(call.paths.q_out), call.paths.k_pe_out


@replaces("results")
def looks_at_slots_on_the_host(call):
    if call.slot_mapping is not None:
        (call.slot_mapping >= 0).any().item()
    return results(call)


def remembers_slots_by_identity(**inputs):
    """The mapping of the first step with the same object, which has been refilled since."""
    slots = inputs["slot_mapping"]
    if slots is not None:
        key = (slots.data_ptr(), tuple(slots.shape))
        if key not in _cache or _cache[key][0] is not inputs["kv_cache"]:
            _cache[key] = inputs["kv_cache"], slots.clone()
        inputs["slot_mapping"] = _cache[key][1]
    return dispatched(**inputs)


def rotates_in_place(**inputs):
    """The caller's keys are rotated too, as an operator does that is declared to change nothing."""
    found = dispatched(**inputs)
    inputs["k_pe"].copy_(found[1])
    return found


# Refusals.


@replaces("refuse")
def accepts_everything(call):
    pass


def refuses_steps_without_tokens(**inputs):
    if not inputs["q_nope"].shape[0]:
        raise ValueError("q_nope: must have a token")
    return mla_cache_write_dispatch(**inputs)


def needs_slots(**inputs):
    """A profiling step has none."""
    assert inputs["slot_mapping"] is not None or inputs["kind"] != "profiling", "slot_mapping is missing"
    return mla_cache_write_dispatch(**inputs)
