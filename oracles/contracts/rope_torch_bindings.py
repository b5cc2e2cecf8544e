"""Upstream code for contract 6.1: vLLM's unfused path, a rotation in torch and the write behind it.

The write is C++ in vLLM (``concat_and_cache_mla``), which no text can be lifted of. Its torch form is this module's: it
divides by the scale in float32, and a slot outside the cache is none. What is judged of vLLM is the rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oracles.contract import Binding
from oracles.contracts._rope_adapters import scale, stored

FOLDER = "vllm/model_executor/layers/rotary_embedding"
PLAIN_FILE, SCALING_FILE = f"{FOLDER}/base.py", f"{FOLDER}/deepseek_scaling_rope.py"
PLAIN, SCALING = "RotaryEmbedding.forward_static", "DeepseekScalingRotaryEmbedding.forward_static"
WRITE = "concat_and_cache_mla"


class _CustomOp:
    """Stands for the base class of vLLM's ops, which chooses one of a class's methods for the platform."""

    @staticmethod
    def register(name: str) -> Callable[[Any], Any]:
        """A decorator that leaves the class as it is."""
        return lambda op: op


def _adapter(method: str, rounding: str) -> Callable[[Mapping[str, Any]], Callable[..., Any]]:
    def adapt(names: Mapping[str, Any]) -> Callable[..., Any]:
        upstream = names[method]

        def rope_and_cache_mla(**given: Any) -> tuple[Any, ...]:
            """The method with a table as vLLM's models keep it, cosines and sines side by side."""
            import torch

            table = torch.cat((given["cos"], given["sin"]), dim=-1)
            k_pe, width = given["k_pe"], given["k_pe"].shape[1]
            queries, keys = upstream(
                given["positions"], given["q_pe"], k_pe.unsqueeze(1), width, width, table, given["is_neox"]
            )
            # A float32 table leaves float32 results, which are rounded where the model takes them over.
            queries, keys = queries.to(k_pe.dtype), keys.squeeze(1).to(k_pe.dtype)
            _write(torch.cat((given["kv_c"], keys), dim=-1), given)
            return torch.cat((given["q_nope"], queries), dim=-1), keys

        rope_and_cache_mla.rounding = rounding  # type: ignore[attr-defined]  # read by the contract
        return rope_and_cache_mla

    return adapt


def _write(rows: Any, given: Mapping[str, Any]) -> None:
    """Every row to its slot, without the host looking at a slot: each place is told which row it gets, or none."""
    import torch

    slots, cache = given["slot_mapping"], given["kv_cache"]
    blocks, block_size, width = cache.shape
    if not slots.shape[0] or not cache.numel():
        return
    if given["cache_dtype"] != "auto":
        rows, cache = _as_float8(rows, given).view(torch.uint8), cache.view(torch.uint8)
    capacity = blocks * block_size
    there = (slots >= 0) & (slots < capacity)
    owner = torch.full((capacity + 1,), -1, dtype=torch.int64, device=slots.device)
    token = torch.arange(slots.shape[0], device=slots.device)
    owner = owner.scatter(0, torch.where(there, slots, capacity).to(torch.int64), token)[:capacity]
    owner = owner.view(blocks, block_size, 1)
    chosen = rows[owner.clamp(min=0).flatten()].view(blocks, block_size, width)
    cache.copy_(torch.where(owner >= 0, chosen, cache))


def _as_float8(rows: Any, given: Mapping[str, Any]) -> Any:
    """Divided by the scale, and cut to what the format holds, which not every release of torch does by itself."""
    import torch

    form = stored(given["kv_cache"], given["cache_dtype"]).dtype
    most = torch.finfo(form).max
    return (rows.float() / scale(given["k_scale"], rows.device)).clamp(-most, most).to(form)


STUBS: Mapping[str, Any] = {"vllm.model_executor.custom_op:CustomOp": _CustomOp}
FOLLOW = ("vllm.model_executor.layers.rotary_embedding.common",)
ARGUMENTS = ("positions", "query", "key", "head_size", "rotary_dim", "cos_sin_cache", "is_neox_style")


def _of(file: str, method: str, rounding: str) -> Binding:
    return Binding(
        project="vllm",
        name=f"{method}+{WRITE}",
        symbols={file: (method,)},
        signatures={method: (ARGUMENTS,)},
        adapt=_adapter(method, rounding),
        runs="host",
        stubs=STUBS,
        follow=FOLLOW,
    )


VLLM_UNFUSED = (_of(PLAIN_FILE, PLAIN, "torch"), _of(SCALING_FILE, SCALING, "promote"))
