"""The cache write of MLA in a server's step: one launch, whichever tokens its plan sends over which path."""

from __future__ import annotations

from typing import Any

import torch

from optimized.errors import ContractError
from optimized.rope_kv_cache import rope_and_cache_mla

_KINDS = ("real", "dummy", "profiling")


def mla_cache_write_dispatch(
    *,
    kind: str,
    decode_rows: range,
    prefill_rows: range,
    q_nope: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor | None,
    kv_cache: torch.Tensor,
    paths: object = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(q_out, k_pe_out)``, rotated queries and keys of a step's ``T`` tokens; write those that have a slot.

    The kernel serves decodes and prompts alike, so that all paths are one launch over all tokens: none can be left out,
    and none is written by two of them.

    ``kind``
        "real"; "dummy", in which no token has a slot; or "profiling", in which there is no slot mapping.
    ``decode_rows``, ``prefill_rows``
        disjoint ranges of consecutive tokens, those that a server's fused paths take.
    ``slot_mapping``
        as in ``rope_and_cache_mla``; ``None`` in a profiling step, in which nothing is written.
    ``q_nope``, ``positions``, ``kv_cache`` (in and out), ``others``
        as in ``rope_and_cache_mla``.
    ``paths``
        paths of a harness, which are not used.

    Refused (:class:`ContractError`) before anything is launched: an unknown kind; rows outside the batch or in both
    ranges; a slot mapping in a profiling step, and none in another; what ``rope_and_cache_mla`` refuses.

    Source of the definition: contracts.md, section 6.2.
    """
    if kind not in _KINDS:
        raise ContractError("kind", kind, f"it must be one of {', '.join(_KINDS)}")
    _refuse_bad_rows("decode_rows", decode_rows, q_nope.shape[0])
    _refuse_bad_rows("prefill_rows", prefill_rows, q_nope.shape[0])
    if max(decode_rows.start, prefill_rows.start) < min(decode_rows.stop, prefill_rows.stop):
        raise ContractError("prefill_rows", prefill_rows, f"it must have no token of decode_rows, {decode_rows}")
    if (slot_mapping is None) != (kind == "profiling"):
        rule = "it must be None in a profiling step, and in no other"
        raise ContractError("slot_mapping", None if slot_mapping is None else tuple(slot_mapping.shape), rule)
    slots = positions[:0] if slot_mapping is None else slot_mapping
    return rope_and_cache_mla(q_nope=q_nope, positions=positions, slot_mapping=slots, kv_cache=kv_cache, **others)


mla_cache_write_dispatch.rounding = "hip"  # type: ignore[attr-defined]  # a function's own attribute, as of the kernel


def _refuse_bad_rows(name: str, rows: range, tokens: int) -> None:
    if rows.step != 1 or not 0 <= rows.start <= rows.stop <= tokens:
        raise ContractError(name, rows, f"it must be a range of consecutive tokens within 0..{tokens - 1}")
