"""Contract 6.2: the cache write of MLA over several steps, whichever of a server's paths its tokens take.

A dispatcher is called once a step, by keyword, with the inputs of ``rope_and_cache_mla``, and ``kind``,
``decode_rows``, ``prefill_rows`` (ranges of tokens) and ``paths``; it returns ``q_out`` and ``k_pe_out``. It may bring
its own kernels, or send rows over ``paths``, where a second rotation or write of a token is counted.
docs/rope-kv-cache.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracles.contract import Contract, Input, Output
from oracles.contracts import _write_complaints as complaints
from oracles.contracts import _write_life as life
from oracles.contracts import _write_machine as machine
from oracles.contracts._rope_orders import declared_order
from oracles.verdict import WrongShape
from reference.rope_orders import ORDERS

INDEX = "int32 or int64"
MOST_TOLD = 4
"""Items of what was returned whose types are told."""


def exercise(implementation: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a dispatcher once a step; all that it returned, as it stands after the last step."""
    from oracles.contracts._write_paths import Paths, Steps  # not without torch

    order = ORDERS[declared_order(implementation)]
    seen: dict[str, list[Any]] = {name: [] for name in life.OUTPUTS}
    for number, step in enumerate(Steps(arguments)):
        paths = Paths(step, order)
        returned = _returned(number, implementation(**step, paths=paths))
        for name, value in zip(life.OUTPUTS, (*returned, *paths.again()), strict=True):
            seen[name].append(value)
    return seen


def _returned(step: int, result: Any) -> tuple[Any, Any]:
    """The two outputs of a step; the cache may be returned behind them."""
    import torch

    names = life.OUTPUTS[:2]
    found: tuple[Any, ...] = ()
    if isinstance(result, Mapping) and set(names) <= set(result):
        found = tuple(result[name] for name in names)
    elif isinstance(result, tuple | list) and len(result) in (2, 3):
        found = tuple(result[:2])
    wrong = [name for name, value in zip(names, found, strict=False) if not isinstance(value, torch.Tensor)]
    if not found or wrong:
        belongs = "where the tensors q_out and k_pe_out belong, behind which kv_cache may stand"
        raise WrongShape(wrong[0] if wrong else "outputs", f"step {step}: returned {_kinds(result)}, {belongs}")
    return found[0], found[1]


def _kinds(result: Any) -> str:
    """What was returned, by its types: ``a tuple of Tensor, None``."""
    if isinstance(result, Mapping):
        return f"a {type(result).__name__} with {', '.join(map(repr, result)) or 'nothing'}"
    if isinstance(result, tuple | list):
        more = ", ..." if len(result) > MOST_TOLD else ""
        return f"a {type(result).__name__} of {', '.join(map(_kind, result[:MOST_TOLD])) or 'nothing'}{more}"
    return _kind(result)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _inputs() -> tuple[Input, ...]:
    def scalar(name: str, doc: str, *, many: bool = False, optional: bool = False) -> Input:
        return Input(name=name, role="scalar", doc=doc, many=many, optional=optional)

    def device(name: str, doc: str, *axes: int, optional: bool = False) -> Input:
        doc = f"for each step {doc}"
        return Input(name=name, role="device", doc=doc, many=True, optional=optional, compiled_axes=axes)

    return (
        scalar("kind", "for each step real, dummy (no token has a slot) or profiling (no slot mapping)", many=True),
        scalar("decode_rows", "for each step first and end of the rows of the fused decode path", many=True),
        scalar("prefill_rows", "likewise of the fused prefill path; others are left to the unfused write", many=True),
        device("q_nope", "float [T, H, L], the part that is not rotated", 1, 2),
        device("q_pe", "float [T, H, P], the part that is rotated", 2),
        device("kv_c", "float [T, L], latents"),
        device("k_pe", "float [T, P], keys, to be rotated"),
        device("positions", f"{INDEX} [T], rows of the table, clamped into it"),
        device(
            "slot_mapping",
            f"{INDEX} [<= T], where in the cache; -1: nowhere; None in a profiling step",
            optional=True,
        ),
        Input(name="cos", role="device", doc="that float or float32 [max_pos, P/2]"),
        Input(name="sin", role="device", doc="as cos"),
        scalar("k_scale", "float > 0, what float8 is divided by, or None for 1", optional=True),
        scalar("q_scale", "None", optional=True),
        scalar("is_neox", "bool, pairs (i, i + P/2) or (2i, 2i + 1)"),
        scalar("cache_dtype", "auto, float8_e4m3fn or float8_e4m3fnuz"),
        scalar("refilled", "bool; True: all steps are views of the same tensors, refilled before each"),
        Input(
            name="kv_cache",
            role="device",
            inout=True,
            compiled_axes=(1,),
            doc="[blocks, block_size, L+P], that float, or float8 as such or as uint8; all steps write it",
        ),
    )


CONTRACTS = (
    Contract(
        family="rope_kv_cache",
        name="mla_cache_write_dispatch",
        section="6.2",
        summary="steps whose tokens take several paths, each of which rotates and writes its own once",
        kind="protocol",
        inputs=_inputs(),
        outputs=(
            Output(name="q_out", doc="for each step float [T, H, L+P], q_nope and the rotated q_pe"),
            Output(name="k_pe_out", doc="for each step float [T, P], the rotated k_pe"),
            Output(name="rotated_again", doc="for each step int32 [T], rotations by paths after the first: none"),
            Output(name="written_again", doc="for each step int32 [T], writes by paths after the first: none"),
        ),
        domain=machine.domain,
        resample=life.resample,
        expected=life.expected,
        declared=life.declared,
        traits=life.traits,
        sketch=life.sketch,
        call=exercise,
        complains=complaints.complaint,
        optimized="optimized.mla_cache_write:mla_cache_write_dispatch",
        runs="triton",
    ),
)
