"""What the fused rotary embedding and cache write refuses."""

from __future__ import annotations

import math
from ctypes import c_float

import torch

from optimized.errors import ContractError
from optimized.refusals import refuse_bad_index, refuse_other_devices

CACHE_DTYPES = {"auto": None, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e4m3fnuz": torch.float8_e4m3fnuz}
"""What a cache may hold -> its dtype, unless that is the input's."""

_INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_NAMES = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin", "positions", "slot_mapping", "kv_cache")


def refuse_bad_scalars(k_scale: object, q_scale: object, is_neox: object, cache_dtype: object) -> None:
    """Refuse a scale that float32 does not hold as positive and finite, and modes that do not exist."""
    if k_scale is not None and not (isinstance(k_scale, float) and 0 < c_float(k_scale).value < math.inf):
        raise ContractError("k_scale", k_scale, "it must be None or a float that float32 holds as positive and finite")
    if q_scale is not None:
        raise ContractError("q_scale", q_scale, "it must be None")
    if is_neox is not True and is_neox is not False:
        raise ContractError("is_neox", is_neox, "it must be a bool")
    if not isinstance(cache_dtype, str) or cache_dtype not in CACHE_DTYPES:
        raise ContractError("cache_dtype", cache_dtype, f"it must be one of {', '.join(CACHE_DTYPES)}")


def refuse_bad_tensors(tensors: tuple[torch.Tensor, ...], cache_dtype: str) -> None:
    """Refuse tensors of another number of dimensions, dtype or device, in the order of the arguments."""
    q_nope, _, _, _, cos, _, positions, slot_mapping, kv_cache = tensors
    own = (q_nope.dtype,)
    stored = CACHE_DTYPES[cache_dtype]
    dtypes = _INPUT_DTYPES, own, own, own, (q_nope.dtype, torch.float32), (cos.dtype,)
    for name, tensor, dimensions, allowed in zip(_NAMES, tensors, (3, 3, 2, 2, 2, 2), dtypes, strict=False):
        _refuse_bad_floats(name, tensor, dimensions, allowed)
    refuse_bad_index("positions", positions)
    refuse_bad_index("slot_mapping", slot_mapping)
    _refuse_bad_floats("kv_cache", kv_cache, 3, own if stored is None else (torch.uint8, stored))
    refuse_other_devices(q_nope.device, zip(_NAMES, tensors, strict=True))


def refuse_bad_sizes(tensors: tuple[torch.Tensor, ...]) -> None:
    """Refuse sizes that disagree, an odd number of rotated lanes, and a table without rows.

    The tensors have the numbers of dimensions that they must have.
    """
    q_nope, q_pe, kv_c, k_pe, cos, sin, positions, slot_mapping, kv_cache = tensors
    (tokens, heads, latent), width, rows = q_nope.shape, q_pe.shape[2], cos.shape[0]
    if q_pe.shape[:2] != (tokens, heads) or width % 2 != 0:
        raise ContractError("q_pe", tuple(q_pe.shape), f"the shape must be {(tokens, heads)} and an even number")
    if rows < 1:
        raise ContractError("cos", tuple(cos.shape), "the table must have at least one row")
    wanted = (
        ("kv_c", kv_c, (tokens, latent), "q_nope"),
        ("k_pe", k_pe, (tokens, width), "q_pe"),
        ("cos", cos, (rows, width // 2), "q_pe"),
        ("sin", sin, (rows, width // 2), "cos"),
        ("positions", positions, (tokens,), "q_nope"),
    )
    for name, tensor, shape, source in wanted:
        if tensor.shape != shape:
            raise ContractError(name, tuple(tensor.shape), f"the shape must be {shape}, as of {source}")
    if slot_mapping.shape[0] > tokens:
        rule = f"the size must be at most {tokens}, as of q_nope"
        raise ContractError("slot_mapping", slot_mapping.shape[0], rule)
    if kv_cache.shape[2] != latent + width:
        rule = f"the last size must be {latent + width}, as of q_nope and q_pe"
        raise ContractError("kv_cache", tuple(kv_cache.shape), rule)


def _refuse_bad_floats(
    name: str, tensor: torch.Tensor, dimensions: int, dtypes: tuple[torch.dtype | None, ...]
) -> None:
    if tensor.dim() != dimensions:
        raise ContractError(name, tuple(tensor.shape), f"the shape must have {dimensions} dimensions")
    if tensor.dtype not in dtypes:
        names = " or ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ContractError(name, str(tensor.dtype).removeprefix("torch."), f"the dtype must be {names}")
