"""What the adapters of contract 6.1 share: the cache as upstream takes it, scales as tensors, tables of one dtype."""

from __future__ import annotations

from typing import Any

from oracles.arrays import Array, Inputs
from oracles.contracts.block_table_bindings import setting_up


def stored(kv_cache: Any, cache_dtype: str) -> Any:
    """The cache with the dtype of its numbers: bytes become float8, as every caller of upstream views them."""
    import torch

    return kv_cache if cache_dtype == "auto" else kv_cache.view(getattr(torch, cache_dtype))


def scale(k_scale: float | None, device: Any) -> Any:
    """The scale as a float32 tensor, which a server makes when it loads the model."""
    import torch

    with setting_up(device):
        return torch.full((1,), 1.0 if k_scale is None else k_scale, dtype=torch.float32, device=device)


def pages_apart(inputs: Inputs) -> bool:
    """Whether a block of the cache does not begin where the one before ends, so that a slot's number is no row."""
    cache = inputs["kv_cache"]
    if not isinstance(cache, Array) or cache.data.ndim != 3:
        return False
    blocks, block_size, _ = cache.shape
    return blocks > 1 and block_size > 1 and cache.layout[0] != block_size * cache.layout[1]
