"""Correct ``mla_cache_write_dispatch`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from correct_dispatch import dispatched, mla_cache_write_dispatch, refuse, rest_of, slots_of_rows


def one_path_for_all(**inputs):
    """The plan is not looked at."""
    call = SimpleNamespace(**inputs)
    refuse(call)
    call.paths.fused(range(call.q_nope.shape[0]), call.slot_mapping)
    return call.paths.q_out, call.paths.k_pe_out


def masks_what_is_written(**inputs):
    """As servers do: the unfused write takes the whole batch, with -1 for rows that a fused path has written."""
    call = SimpleNamespace(**inputs)
    refuse(call)
    slots, left = call.slot_mapping, rest_of(call)
    for rows in (call.decode_rows, call.prefill_rows):
        call.paths.fused(rows, slots_of_rows(slots, rows))
    for rows in left:
        call.paths.rotate(rows)
    if slots is not None:
        own = [range(t, t + 1) in left for t in range(slots.shape[0])]
        masked = torch.where(torch.tensor(own, dtype=torch.bool, device=slots.device), slots, -1)
        call.paths.write(range(call.q_nope.shape[0]), masked)
    return call.paths.q_out, call.paths.k_pe_out


def rotates_all_before_any_write(**inputs):
    """Backwards, and returns a mapping with the cache in it."""
    call = SimpleNamespace(**inputs)
    refuse(call)
    tokens = range(call.q_nope.shape[0])
    call.paths.rotate(reversed(tokens))
    for token in reversed(tokens):
        call.paths.write(tokens[token : token + 1], slots_of_rows(call.slot_mapping, tokens[token : token + 1]))
    return {"kv_cache": call.kv_cache, "k_pe_out": call.paths.k_pe_out, "q_out": call.paths.q_out}


class Server:
    """Keeps a workspace between steps, writes rows without a slot never, and gives the cache back as well."""

    def __init__(self):
        self.workspace = {}

    def __call__(self, **inputs):
        q_out, k_pe_out = dispatched(**inputs)
        held = self.workspace.setdefault((tuple(q_out.shape), q_out.dtype), torch.empty_like(q_out))
        held.copy_(q_out)
        return held.clone(), k_pe_out, inputs["kv_cache"]


server = Server()


def in_torch_order(**inputs):
    return mla_cache_write_dispatch(**inputs)


in_torch_order.rounding = "torch"


def in_promote_order(**inputs):
    return mla_cache_write_dispatch(**inputs)


in_promote_order.rounding = "promote"


def kernels_of_its_own(**inputs):
    """Brings the paths itself, and ignores those of the harness: rows are rotated and written one by one."""
    call = SimpleNamespace(**inputs)
    refuse(call)
    own = type(call.paths)(inputs, call.paths._order)
    slots = call.slot_mapping
    for token in range(call.q_nope.shape[0]):
        own.fused([token], None if slots is None else slots[token : token + 1])
    return own.q_out, own.k_pe_out
