"""Upstream code for contract 6.1: AITER's HIP op of RoPE and the KV-cache write for MLA.

It runs where AITER is installed for ROCm. From text there is nothing to lift: every case is ``unsupported`` there, and
the report names the import, that of the module which compiles HIP code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracles.contract import Binding
from oracles.contracts._rope_adapters import scale, stored
from oracles.verdict import Unsupported

FILE = "aiter/ops/cache.py"
FUSED = "fused_qk_rope_concat_and_cache_mla"
ALL_QUERIES = "compute_all_q_rope"

FEWEST_LANES = 2048
"""Lanes of all heads' latents from which on one of the two kernels is chosen that may rotate queries without a slot."""


def _adapter(**options: bool) -> Callable[[Mapping[str, Any]], Callable[..., Any]]:
    """An adapter that gives the op's last parameters these values."""

    def adapt(names: Mapping[str, Any]) -> Callable[..., Any]:
        def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
            """One call. The op gives no rotated keys: they are asked for as queries, with a cache to be thrown away.

            Refused with ``Unsupported``: ``compute_all_q_rope`` with sizes whose kernel has no such mode.
            """
            import torch

            if options and not _rotates_all(given):
                raise Unsupported(f"{ALL_QUERIES} is for two of the kernels ({FUSED}: AITER_CHECK of the dispatch)")
            tokens, heads, latent = given["q_nope"].shape
            k_pe, device = given["k_pe"], given["k_pe"].device
            width = latent + k_pe.shape[1]
            q_out = k_pe.new_empty((tokens, heads, width))
            _call(names[FUSED], given, q_out, **options)
            keys, thrown_away = k_pe.new_empty((tokens, 1, width)), k_pe.new_empty((max(tokens, 1), 1, width))
            everywhere = torch.arange(tokens, dtype=torch.int64, device=device)
            of_keys = {"q_nope": given["kv_c"].unsqueeze(1), "q_pe": k_pe.unsqueeze(1), "kv_cache": thrown_away}
            of_keys |= {"cache_dtype": "auto", "slot_mapping": everywhere}
            _call(names[FUSED], given | of_keys, keys)
            return q_out, keys[:, 0, latent:].contiguous()

        rope_and_cache_mla.rounding = "hip"  # type: ignore[attr-defined]  # read by the contract
        return rope_and_cache_mla

    return adapt


def _call(upstream: Callable[..., None], given: Mapping[str, Any], q_out: Any, **options: bool) -> None:
    import torch

    device = q_out.device
    upstream(
        given["q_nope"],
        given["q_pe"],
        given["kv_c"],
        given["k_pe"],
        stored(given["kv_cache"], given["cache_dtype"]),
        q_out,
        given["slot_mapping"].to(torch.int64),
        scale(given["k_scale"] if given["cache_dtype"] != "auto" else None, device),
        scale(None, device),
        given["positions"].to(torch.int64),
        given["cos"],
        given["sin"],
        given["is_neox"],
        True,
        **options,
    )


def _rotates_all(given: Mapping[str, Any]) -> bool:
    """Whether the op takes one of the two kernels that may rotate the queries of tokens without a slot."""
    (tokens, heads, latent), width = given["q_nope"].shape, given["q_pe"].shape[2]
    by_head = width == 64 and latent <= 512 and given["kv_cache"].shape[1] == 1 and tokens < 256
    return bool(by_head or (width == 64 and latent == 512 and latent * heads >= FEWEST_LANES))


PARAMETERS = (
    "q_nope",
    "q_pe",
    "kv_c",
    "k_pe",
    "kv_cache",
    "q_out",
    "slot_mapping",
    "k_scale",
    "q_scale",
    "positions",
    "cos_cache",
    "sin_cache",
    "is_neox",
    "is_nope_first",
)

AITER_HIP = (
    Binding(project="aiter", name=FUSED, symbols={FILE: (FUSED,)}, adapt=_adapter(), runs="triton"),
    Binding(
        project="aiter",
        name=f"{FUSED}({ALL_QUERIES})",
        symbols={FILE: (FUSED,)},
        adapt=_adapter(**{ALL_QUERIES: True}),
        runs="triton",
    ),
)
