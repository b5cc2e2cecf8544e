"""The kernel of RoPE and cache: what is refused, one launch, few compilations, every number rounded to float8.

It is executed as gfx942 machine code, in this process.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles.arrays import DTYPES, Array, array
from oracles.contract import Refused, Values
from oracles.contracts._rope_domain import Judge
from oracles.contracts._rope_values import floats
from reference.floats import FORMATS

pytest.importorskip("triton", reason="the kernels are Triton's")

from optimized import rope_kv_cache  # not without Triton
from optimized.errors import ContractError

JUDGE = Judge("hip")
FLOATS = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin", "kv_cache")


@pytest.fixture
def rng():
    return np.random.default_rng(8)


def batch(rng, tokens=3, heads=2, latent=48, width=16, blocks=3, block_size=2, dtype="bfloat16", rows=5, **more):
    """Tokens in the last slots of a cache, the last token in none, each lane another number."""

    def numbers(*shape):
        return floats(FORMATS[dtype].encode(rng.normal(size=shape) * 4), dtype)

    stored = {"auto": dtype}.get(more.get("cache_dtype", "auto"), "uint8")
    cache = array(rng.integers(0, 255, (blocks, block_size, latent + width)), "uint8")
    slots = np.arange(blocks * block_size)[::-1][:tokens].copy()
    slots[-1:] = -1
    return {
        "q_nope": numbers(tokens, heads, latent),
        "q_pe": numbers(tokens, heads, width),
        "kv_c": numbers(tokens, latent),
        "k_pe": numbers(tokens, width),
        "cos": numbers(rows, width // 2),
        "sin": numbers(rows, width // 2),
        "positions": array(rng.integers(0, rows, tokens), "int64"),
        "slot_mapping": array(slots, "int64"),
        "k_scale": None,
        "q_scale": None,
        "is_neox": True,
        "cache_dtype": "auto",
        "kv_cache": cache if stored == "uint8" else numbers(blocks, block_size, latent + width),
        **more,
    }


def bits_of(tensor, dtype):
    """What a tensor holds, as a case has it."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize]
    return tensor.contiguous().view(width).numpy().view(DTYPES[dtype])


def agrees(chip, inputs, order="forward"):
    """One call: all results are right. Returns the number of launches."""
    launches, (q_out, k_pe_out), given = chip.run(
        rope_kv_cache.rope_and_cache_mla, inputs, buffers=("kv_cache",), order=order
    )
    dtype = inputs["q_nope"].dtype
    found = {"q_out": bits_of(q_out, dtype), "k_pe_out": bits_of(k_pe_out, dtype)}
    found["kv_cache"] = bits_of(given["kv_cache"], inputs["kv_cache"].dtype)
    settled, wanted = JUDGE.settle(inputs, found), JUDGE.expected(inputs)
    assert isinstance(wanted, Values)
    for name, value in wanted.outputs.items():
        assert settled[name].shape == value.data.shape
        assert settled[name].tobytes() == value.data.tobytes(), name
    return launches


def wrong(inputs):
    """Inputs with one thing that is wrong, and the argument's name."""

    def other(name, dtype):
        return {name: Array(dtype, np.zeros(inputs[name].shape, DTYPES[dtype]))}

    def cut(name, axis, size=1):
        value = inputs[name]
        kept = np.take(value.data, range(value.data.shape[axis] - size), axis)
        return {name: Array(value.dtype, np.ascontiguousarray(kept))}

    yield from (cut(name, axis) for name in FLOATS for axis in range(inputs[name].data.ndim) if name != "kv_cache")
    yield cut("kv_cache", 2)
    yield cut("q_pe", 2) | cut("k_pe", 1)
    yield cut("cos", 0, 5) | cut("sin", 0, 5)
    yield cut("positions", 0)
    yield {"slot_mapping": array([0, 1, 2, -1], "int32")}
    yield from (other(name, "float16") for name in FLOATS)
    yield from (other(name, "float64") for name in FLOATS)
    yield from (other(name, "int16") for name in ("positions", "slot_mapping"))
    yield other("cos", "float32")
    yield other("kv_cache", "uint8")
    yield other("kv_cache", "float8_e4m3fn")
    yield {"cache_dtype": "float8_e4m3fn"}
    yield other("kv_cache", "float8_e4m3fnuz") | {"cache_dtype": "float8_e4m3fn"}
    yield from ({"k_scale": scale} for scale in (0.0, -1.0, 1, True, float("inf"), float("nan"), 1e39, 1e-46))
    yield {"q_scale": 1.0}
    yield from ({"is_neox": mode} for mode in (1, None))
    yield from ({"cache_dtype": mode} for mode in ("fp8", None, ""))


def test_what_the_specification_refuses_is_refused_before_a_launch(chip, rng) -> None:
    from oracles.backends.base import Variation
    from oracles.memory import values_of

    inputs = batch(rng)
    for changed in wrong(inputs):
        bad = inputs | changed
        refused = JUDGE.expected(bad)
        assert isinstance(refused, Refused), changed
        memory = chip.backend.memory(Variation())
        given = {
            name: values_of(value, memory, name, device=True, writable=name == "kv_cache")
            for name, value in bad.items()
        }
        with chip.backend.watch(memory, Variation()) as seen, pytest.raises(ContractError) as raised:
            rope_kv_cache.rope_and_cache_mla(**given)
        assert (seen.launches, list(memory.faults())) == (0, [])
        assert raised.value.argument in {refused.argument, *changed}


def test_a_dimension_too_many_is_refused(rng) -> None:
    inputs = batch(rng)
    tensors = {name: torch.zeros(inputs[name].shape, dtype=torch.bfloat16) for name in FLOATS}
    tensors |= {name: torch.zeros(3, dtype=torch.int64) for name in ("positions", "slot_mapping")}
    scalars = {name: inputs[name] for name in ("k_scale", "q_scale", "is_neox", "cache_dtype")}
    for name, tensor in tensors.items():
        with pytest.raises(ContractError, match=f"^{name}: .*dimension"):
            rope_kv_cache.rope_and_cache_mla(**{**tensors, **scalars, name: tensor[None]})
    with pytest.raises(ContractError, match=r"^kv_cache: 'meta' .*device"):
        rope_kv_cache.rope_and_cache_mla(**{**tensors, **scalars, "kv_cache": tensors["kv_cache"].to("meta")})


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_wide_accesses_give_the_same(chip, rng, dtype, is_neox) -> None:
    """Rows that begin at multiples of 16 bytes have code of their own, which few inputs of the domain run."""
    for cache_dtype in ("auto", "float8_e4m3fn"):
        inputs = batch(rng, 2, 3, dtype=dtype, is_neox=is_neox, cache_dtype=cache_dtype, k_scale=0.3)
        assert agrees(chip, inputs, "reverse") == 1


@pytest.mark.parametrize("sizes", [(0, 6, 4), (5, 0, 4), (5, 6, 0), (1, 5, 2), (33, 1, 2)])
def test_sizes_of_zero_and_odd_ones(chip, rng, sizes) -> None:
    heads, latent, width = sizes
    assert agrees(chip, batch(rng, 2, heads, latent, width, block_size=3)) == 1


def test_no_tokens_or_no_slots(chip, rng) -> None:
    assert agrees(chip, batch(rng, 0)) == 0
    assert agrees(chip, batch(rng, blocks=0, slot_mapping=array([0, -1], "int32"))) == 1
    assert agrees(chip, batch(rng, block_size=0, slot_mapping=array([], "int32"))) == 1


def test_more_tokens_than_an_axis_of_a_launch_has_programs(chip, rng, monkeypatch) -> None:
    monkeypatch.setattr("optimized.rope_kv_cache._MOST_ROWS", 3)
    assert agrees(chip, batch(rng, 8, 1, 6, 4, blocks=5)) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("cache_dtype", "k_scale"), [("float8_e4m3fn", None), ("float8_e4m3fnuz", 0.3)])
def test_every_number_is_rounded_to_float8(chip, rng, dtype, cache_dtype, k_scale) -> None:
    every = floats(np.arange(1 << 16, dtype=np.uint16).reshape(32, 2048), dtype)
    modes = {"cache_dtype": cache_dtype, "k_scale": k_scale, "kv_c": every}
    slots = array(rng.permutation(32), "int32")
    inputs = batch(rng, 32, 0, 2048, 2, blocks=2, block_size=16, dtype=dtype, slot_mapping=slots, **modes)
    assert agrees(chip, inputs) == 1


def test_layouts_and_counts_never_compile_again(chip, rng, laid_out) -> None:
    chip.compilations.clear()
    for number in range(20):
        tokens, blocks, rows = (1, 2, 3)[number % 3], 2 + number % 2, 1 + number % 4
        scale = (None, 0.3, 7.0)[number % 3]
        inputs = batch(rng, tokens, 2, blocks=blocks, rows=rows, cache_dtype="float8_e4m3fn", k_scale=scale)
        inputs["slot_mapping"] = array(inputs["slot_mapping"].data[: tokens - number % 2], "int64")
        assert agrees(chip, laid_out(inputs, number) if number else inputs) == 1
    assert {name: len(keys) for name, keys in chip.compilations.items()} == {"rope_and_cache_mla": 2}
