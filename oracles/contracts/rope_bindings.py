"""Upstream code for contract 6.1: AITER's Triton kernels of RoPE and the KV-cache write for MLA.

AITER's HIP op is in :mod:`oracles.contracts.rope_hip_bindings`, vLLM's unfused path in
:mod:`oracles.contracts.rope_torch_bindings`.

The fused op has parameters that change what it writes or how it rounds. A binding that gives one a value of its own is
named with it; all of them answer to the same contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracles.contract import Binding, Narrowing
from oracles.contracts._rope_adapters import pages_apart, scale, stored
from oracles.contracts.rope_hip_bindings import AITER_HIP
from oracles.contracts.rope_torch_bindings import VLLM_UNFUSED
from oracles.verdict import Unsupported

TRITON = "aiter/ops/triton"
FUSED_FILE, OLDER_FUSED_FILE = f"{TRITON}/fusions/fused_kv_cache.py", f"{TRITON}/fused_kv_cache.py"
CACHE_FILE, ROPE_FILE, TYPES_FILE = f"{TRITON}/kv_cache.py", f"{TRITON}/rope/rope.py", f"{TRITON}/utils/types.py"

FUSED = "fused_qk_rope_cat_and_cache_mla"
ROPE = "rope_cached_thd_positions_2c_fwd"
WRITE = "cat_and_cache_mla"
FLOAT8 = "e4m3_dtype"
UPCAST = "upcast_operand"
DECODES = "num_decode_toks_for_zeros"


class _Logger:
    """Takes what upstream logs of every call."""

    def info(self, message: str) -> None:
        """Nothing: the case is known here."""


def _unguarded(**options: Any) -> Callable[[Any], Any]:
    """Upstream registers its ops with torch; called directly, they do the same."""
    return lambda function: function


STUBS: Mapping[str, Any] = {
    "aiter.jit.utils.torch_guard:torch_compile_guard": _unguarded,
    "aiter.ops.triton.utils.logger:AiterTritonLogger": _Logger,
    # Kernels of another chip, which upstream tries to import.
    "aiter.ops.triton._gluon_kernels.gfx1250.fusions.fused_kv_cache": None,
}
FOLLOW = (
    "aiter.ops.triton._triton_kernels.fused_kv_cache",
    "aiter.ops.triton._triton_kernels.fusions.fused_kv_cache",
    "aiter.ops.triton._triton_kernels.kv_cache",
    "aiter.ops.triton._triton_kernels.quant.quant",
    "aiter.ops.triton._triton_kernels.rope.rope",
    "aiter.ops.triton._triton_kernels.rope",
    "aiter.ops.triton.rope.rope",
    "aiter.ops.triton.rope",
    "aiter.ops.triton.utils._triton",
    "aiter.ops.triton.utils._triton.arch_info",
    "aiter.ops.triton.utils.types",
)


def _cache_of(names: Mapping[str, Any], kv_cache: Any, cache_dtype: str) -> Any:
    """The cache as rows of one head.

    Refused with ``Unsupported``, in a release that asserts so: another dtype, which of float8 depends on the chip, and
    lanes that lie apart.
    """
    import torch

    cache = stored(kv_cache, cache_dtype)
    if FLOAT8 in names and cache.dtype not in (torch.bfloat16, names[FLOAT8]):
        taken = f"the cache is bfloat16 or, on this chip, {str(names[FLOAT8]).removeprefix('torch.')}"
        raise Unsupported(f"{taken} ({FUSED} and {WRITE}: assert kv_cache_dtype in ...)")
    if FLOAT8 in names and cache.stride(-1) != 1:
        raise Unsupported(f"lanes of the cache lie side by side ({FUSED} and {WRITE}: assert kv_cache_stride_d == 1)")
    return cache.view(-1, 1, cache.shape[-1])


def _fused_call(
    names: Mapping[str, Any], queries: tuple[Any, Any], given: Mapping[str, Any], **options: Any
) -> tuple[Any, ...]:
    """One call of the fused op, with these queries and all keys: queries and keys that it returns."""
    kv_cache, scaled = given["kv_cache"], given["cache_dtype"] != "auto" and given["k_scale"] is not None
    made = names[FUSED](
        *queries,
        given["kv_c"].unsqueeze(1),
        given["k_pe"].unsqueeze(1),
        _cache_of(names, kv_cache, given["cache_dtype"]),
        given["slot_mapping"],
        given["positions"],
        given["cos"],
        given["sin"],
        scale(given["k_scale"], kv_cache.device) if scaled else None,
        given["is_neox"],
        **options,
    )
    return made[0], made[2].squeeze(1)


def _with_narrow_table(given: Mapping[str, Any]) -> dict[str, Any]:
    """The table in the dtype of what it rotates, as a server keeps it for this op."""
    return {**given, **{name: given[name].to(given["q_pe"].dtype) for name in ("cos", "sin")}}


def _fused(names: Mapping[str, Any]) -> Callable[..., Any]:
    def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
        """All tokens with their queries."""
        return _fused_call(names, (given["q_nope"], given["q_pe"]), _with_narrow_table(given))

    return _in_order("triton", rope_and_cache_mla)


def _fused_in_float32(names: Mapping[str, Any]) -> Callable[..., Any]:
    def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
        """Rotated in float32, with a table of either dtype."""
        return _fused_call(names, (given["q_nope"], given["q_pe"]), given, **{UPCAST: True})

    return _in_order("hip", rope_and_cache_mla)


def _fused_with_zeros(names: Mapping[str, Any]) -> Callable[..., Any]:
    def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
        """Half of the tokens are said to be decodes, for which the op has two more outputs."""
        options = {DECODES: given["q_nope"].shape[0] // 2}
        return _fused_call(names, (given["q_nope"], given["q_pe"]), _with_narrow_table(given), **options)

    return _in_order("triton", rope_and_cache_mla)


def _fused_decodes(names: Mapping[str, Any]) -> Callable[..., Any]:
    def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
        """A mixed batch as the op's docstring has it: queries of the decodes, here half of the tokens, keys of all.

        The other tokens' queries come from a second call, which writes nothing: no slot is given to it.
        """
        import torch

        given, decodes = _with_narrow_table(given), -(-given["q_nope"].shape[0] // 2)
        queries = given["q_nope"], given["q_pe"]
        first, keys = _fused_call(names, tuple(item[:decodes] for item in queries), given)
        tokens = ("kv_c", "k_pe", "positions")
        others = {name: given[name][decodes:] for name in tokens}
        nowhere = torch.full_like(others["positions"], -1)
        others["slot_mapping"] = nowhere
        second, _ = _fused_call(names, tuple(item[decodes:] for item in queries), given | others)
        return torch.cat((first, second)), keys

    return _in_order("triton", rope_and_cache_mla)


def _in_two_steps(names: Mapping[str, Any]) -> Callable[..., Any]:
    def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
        """The rotation of queries and keys, then the write; that queries are joined is the adapter's."""
        import torch

        cache = _cache_of(names, given["kv_cache"], given["cache_dtype"])
        table = _with_narrow_table(given)
        style = 0 if given["is_neox"] else 1
        keys = given["k_pe"].unsqueeze(1)
        q_pe, keys = names[ROPE](
            given["q_pe"], keys, table["cos"], table["sin"], given["positions"], style, True, False
        )
        scaled = given["cache_dtype"] != "auto" and given["k_scale"] is not None
        k_scale = scale(given["k_scale"], keys.device) if scaled else None
        names[WRITE](given["kv_c"].unsqueeze(1), keys, cache, given["slot_mapping"], k_scale)
        return torch.cat((given["q_nope"], q_pe), dim=-1), keys.squeeze(1)

    return _in_order("triton", rope_and_cache_mla)


def _in_order(rounding: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which declares a rounding order of the contract."""
    function.rounding = rounding  # type: ignore[attr-defined]  # a function's own attribute, which the contract reads
    return function


CACHE_OF_ROWS = Narrowing(
    clause="blocks of the cache lie one behind the other",
    source=f"{FUSED}, {WRITE}: kv_cache: Matrix W with shape (B_cache, KH, D1 + D2), a row for each slot",
    excludes=pages_apart,
)

FUSED_PARAMETERS = (
    "q_nope",
    "q_pe",
    "k_nope",
    "k_pe",
    "kv_cache",
    "slot_mapping",
    "pos",
    "cos",
    "sin",
    "k_scale",
    "is_neox",
    DECODES,
    "apply_scale",
    "q_out",
    "decode_q_pe_out",
    "k_pe_out",
    "q_out_dtype",
)
ROPE_PARAMETERS = ("x", "y", "cos", "sin", "positions", "rotate_style", "reuse_freqs_front_part", "nope_first")
WRITE_PARAMETERS = ("k_nope", "k_pe", "kv_cache", "slot_mapping", "k_scale")


def _of_fused(
    adapt: Callable[[Mapping[str, Any]], Callable[..., Any]], variant: str = "", *parameters: str, older: bool = False
) -> Binding:
    return Binding(
        project="aiter",
        name=FUSED + (f"({variant})" if variant else ""),
        symbols={FUSED_FILE: (FUSED,), TYPES_FILE: (FLOAT8,)},
        other_symbols=({OLDER_FUSED_FILE: (FUSED,)},) if older else (),
        signatures={FUSED: ((*FUSED_PARAMETERS, *parameters),)},
        adapt=adapt,
        runs="triton",
        narrowings=(CACHE_OF_ROWS,),
        stubs=STUBS,
        follow=FOLLOW,
    )


AITER_TRITON = (
    _of_fused(_fused, older=True),
    _of_fused(_fused_decodes, "decode queries"),
    _of_fused(_fused_with_zeros, DECODES),
    _of_fused(_fused_in_float32, UPCAST, "shuffled_kv_cache", UPCAST),
    Binding(
        project="aiter",
        name=f"{ROPE}+{WRITE}",
        symbols={ROPE_FILE: (ROPE,), CACHE_FILE: (WRITE,), TYPES_FILE: (FLOAT8,)},
        signatures={ROPE: (ROPE_PARAMETERS,), WRITE: (WRITE_PARAMETERS,)},
        adapt=_in_two_steps,
        runs="triton",
        narrowings=(CACHE_OF_ROWS,),
        stubs=STUBS,
        follow=FOLLOW,
    ),
)
ROPE_AND_CACHE_MLA = (*AITER_TRITON, *AITER_HIP, *VLLM_UNFUSED)
