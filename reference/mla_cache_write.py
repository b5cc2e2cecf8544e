"""The cache write of MLA, step by step, whichever of a server's paths a token takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reference.errors import ContractError, OnlyMemorySafety
from reference.floats import FloatArray
from reference.rope_kv_cache import Indices, rope_and_cache_mla, slots_of_tokens
from reference.rope_results import RightResults, right_results

KINDS = ("real", "dummy", "profiling")
"""A step of requests; one that warms up, in which no token has a slot; one that measures, before there are slots."""


def mla_cache_write_dispatch(
    *,
    kind: str,
    decode_rows: range,
    prefill_rows: range,
    q_nope: FloatArray,
    slot_mapping: Indices | None,
    kv_cache: FloatArray,
    **others: Any,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(q_out, k_pe_out, kv_cache)`` of one step: rotated queries and keys of ``T`` tokens, and the new cache.

    The result is that of one call of :func:`~reference.rope_kv_cache.rope_and_cache_mla`, whatever the split.

    ``kind``
        "real"; "dummy": ``slot_mapping`` holds no slot; "profiling": there is no slot mapping. In the last two all
        tokens are rotated and none is written.
    ``decode_rows``, ``prefill_rows``
        the tokens of the fused decode path and those of the fused prefill path: two ranges of consecutive tokens
        within ``0..T-1``, of which either may come first or be empty. All other tokens are left to the unfused write.
    ``q_nope``, ``kv_cache``, ``others``
        as ``rope_and_cache_mla`` takes them.
    ``slot_mapping``
        likewise, or ``None`` in a profiling step.

    Refused (:class:`ContractError`): an unknown kind; rows that are no such range; a token in both ranges, which would
    be written twice; a slot mapping in a profiling step, and none in another; what ``rope_and_cache_mla`` refuses.

    No values are promised (:class:`OnlyMemorySafety`) where two tokens have one slot of the cache, or where one of a
    dummy step has any.

    Source of the definition: contracts.md, section 6.2, and the ways in which AITER and
    vLLM treat a token without a slot.
    """
    if kind not in KINDS:
        raise ContractError("kind", kind, f"it must be one of {', '.join(KINDS)}")
    _refuse_bad_rows("decode_rows", decode_rows, q_nope.shape[0])
    _refuse_bad_rows("prefill_rows", prefill_rows, q_nope.shape[0])
    for token in prefill_rows:
        if token in decode_rows:
            rule = f"a token takes one path, and decode_rows {decode_rows} has token {token} too"
            raise ContractError("prefill_rows", prefill_rows, rule)
    if (slot_mapping is None) != (kind == "profiling"):
        raise ContractError("slot_mapping", slot_mapping, "it must be None in a profiling step, and in no other")
    slots = np.empty(0, np.int64) if slot_mapping is None else slot_mapping
    results = rope_and_cache_mla(q_nope=q_nope, slot_mapping=slots, kv_cache=kv_cache, **others)
    if kind == "dummy":
        for token in slots_of_tokens(slots, kv_cache):
            raise OnlyMemorySafety(f"token {token} of a dummy step has slot {slots[token]}")
    return results


def live(
    steps: Sequence[Mapping[str, Any]], kv_cache: FloatArray, rounding: str = "hip", contraction: str = "none"
) -> tuple[list[tuple[FloatArray, FloatArray]], FloatArray]:
    """All steps, one after another, on one cache: ``(q_out, k_pe_out)`` of each, and the cache after the last.

    ``steps`` are inputs of :func:`mla_cache_write_dispatch` by name, without ``kv_cache``.
    """
    results = []
    for step in steps:
        *outputs, kv_cache = mla_cache_write_dispatch(
            **step, kv_cache=kv_cache, rounding=rounding, contraction=contraction
        )
        results.append((outputs[0], outputs[1]))
    return results, kv_cache


def right_results_of_life(
    steps: Sequence[Mapping[str, Any]], kv_cache: FloatArray, rounding: str = "hip"
) -> dict[str, RightResults]:
    """All right results of :func:`live` by output: ``q_out[0]``, ``k_pe_out[0]`` and so on, and ``kv_cache``.

    An element of the cache is what the last step that wrote it has made of it.
    """
    found: dict[str, RightResults] = {}
    cache = None
    for number, step in enumerate(steps):
        results = right_results(one_call(step, kv_cache), rounding)
        found |= {f"{name}[{number}]": results[name] for name in ("q_out", "k_pe_out")}
        cache = results["kv_cache"] if cache is None else _written_over(cache, results["kv_cache"], step, kv_cache)
    return found if cache is None else {**found, "kv_cache": cache}


def one_call(step: Mapping[str, Any], kv_cache: FloatArray) -> dict[str, Any]:
    """A step as the inputs of the one call of ``rope_and_cache_mla`` that it has to equal."""
    plan = ("kind", "decode_rows", "prefill_rows")
    slots = np.empty(0, np.int64) if step["slot_mapping"] is None else step["slot_mapping"]
    inputs = {name: value for name, value in step.items() if name not in plan}
    return {**inputs, "slot_mapping": slots, "kv_cache": kv_cache}


def _written_over(
    before: RightResults, after: RightResults, step: Mapping[str, Any], kv_cache: FloatArray
) -> RightResults:
    """The cache after a step, where ``after`` is as if the step had been the first."""
    results = {contraction: bits.copy() for contraction, bits in before.results.items()}
    for place in slots_of_tokens(one_call(step, kv_cache)["slot_mapping"], kv_cache).values():
        for contraction, bits in results.items():
            bits[place] = after.results[contraction][place]
    return RightResults(before.name, before.form, results, before.computed | after.computed)


def _refuse_bad_rows(name: str, rows: range, tokens: int) -> None:
    if rows.step != 1 or not 0 <= rows.start <= rows.stop <= tokens:
        raise ContractError(name, rows, f"it must be a range of consecutive tokens within 0..{tokens - 1}")
