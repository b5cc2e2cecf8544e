"""Contract 6.1: rotary embeddings of a step's queries and keys, and the write of the keys to the KV cache of MLA."""

from __future__ import annotations

from oracles.contract import Contract, Input, Output
from oracles.contracts import _rope_domain as rope
from oracles.contracts import rope_bindings as bindings
from oracles.contracts import rope_known as known
from oracles.contracts._rope_relations import RELATIONS

INDEX = "int32 or int64"

CONTRACTS = (
    Contract(
        family="rope_kv_cache",
        name="rope_and_cache_mla",
        section="6.1",
        summary="rotated queries and keys, and a cache that holds the keys with their latents",
        inputs=(
            Input(
                name="q_nope", role="device", compiled_axes=(1, 2), doc="float [T, H, L], the part that is not rotated"
            ),
            Input(name="q_pe", role="device", compiled_axes=(2,), doc="float [T, H, P], the part that is rotated"),
            Input(name="kv_c", role="device", doc="float [T, L], latents"),
            Input(name="k_pe", role="device", doc="float [T, P], keys, to be rotated"),
            Input(name="cos", role="device", doc="that float or float32 [max_pos, P/2]"),
            Input(name="sin", role="device", doc="as cos"),
            Input(name="positions", role="device", doc=f"{INDEX} [T], rows of the table, clamped into it"),
            Input(
                name="slot_mapping",
                role="device",
                doc=f"{INDEX} [<= T], where in the cache; -1, and a slot past its last, write nothing",
            ),
            Input(
                name="k_scale",
                role="scalar",
                optional=True,
                doc="float > 0, what float8 is divided by, or None for 1",
            ),
            Input(name="q_scale", role="scalar", optional=True, doc="None"),
            Input(name="is_neox", role="scalar", doc="bool, pairs (i, i + P/2) or (2i, 2i + 1)"),
            Input(name="cache_dtype", role="scalar", text=True, doc="auto, float8_e4m3fn or float8_e4m3fnuz"),
            Input(
                name="kv_cache",
                role="device",
                inout=True,
                compiled_axes=(1,),
                doc="[blocks, block_size, L+P], that float, or float8 as such or as uint8",
            ),
        ),
        outputs=(
            Output(name="q_out", doc="float [T, H, L+P], q_nope and the rotated q_pe"),
            Output(name="k_pe_out", doc="float [T, P], the rotated k_pe"),
        ),
        domain=rope.domain,
        resample=rope.resample,
        expected=rope.expected,
        declared=rope.declared,
        traits=rope.traits,
        relations=RELATIONS,
        optimized="optimized.rope_kv_cache:rope_and_cache_mla",
        runs="triton",
        bindings=bindings.ROPE_AND_CACHE_MLA,
        known=known.ROPE_AND_CACHE_MLA,
    ),
)
