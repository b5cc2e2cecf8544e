"""What the tests of more than one file share: inputs for laws, how often a law applies, and made calls of RoPE."""

import functools

import numpy as np
import pytest

from oracles.contract import Values
from oracles.contracts import by_name
from oracles.domain import Sampler, Scope, walk
from reference.floats import FORMATS, FloatArray

KEPT = 0x2D


def _call(
    queries, keys, cos, sin, *, dtype="bfloat16", table=None, latents=None, nope=None, positions=None, slots=None,
    scale=None, neox=True, cache="auto", shape=(2, 4),
):  # fmt: skip
    """Inputs from numbers: ``queries`` [T, H, P], ``keys`` [T, P]; a latent of one lane, 1, unless given."""
    keys = np.asarray(keys, float)
    latents = np.ones((len(keys), 1)) if latents is None else np.asarray(latents, float)
    queries = keys[:, None] if queries is None else np.asarray(queries, float)
    nope = np.ones((*queries.shape[:2], latents.shape[1])) if nope is None else nope
    floats = {"q_nope": nope, "q_pe": queries, "kv_c": latents, "k_pe": keys}
    storage = FORMATS[dtype].storage if cache == "auto" else np.uint8
    held = np.full((*shape, latents.shape[1] + keys.shape[1]), KEPT, storage)
    return {
        **{name: FloatArray.from_numbers(dtype, numbers) for name, numbers in floats.items()},
        "cos": FloatArray.from_numbers(table or dtype, cos),
        "sin": FloatArray.from_numbers(table or dtype, sin),
        "positions": np.array(range(len(keys)) if positions is None else positions, np.int64),
        "slot_mapping": np.array(range(len(keys)) if slots is None else slots, np.int64),
        "k_scale": scale,
        "q_scale": None,
        "is_neox": neox,
        "cache_dtype": cache,
        "kv_cache": FloatArray(dtype if cache == "auto" else "uint8", held),
    }


def _drawn(seed, dtype="bfloat16", *, table="float32", tokens=5, heads=2, latent=3, width=8, cache="auto", **more):
    generator = np.random.default_rng(seed)
    angles = generator.uniform(0, 7, (6, width // 2))
    return _call(
        generator.normal(0, 3, (tokens, heads, width)), generator.normal(0, 3, (tokens, width)),
        np.cos(angles), np.sin(angles), dtype=dtype, table=table, cache=cache,
        latents=generator.normal(0, 3, (tokens, latent)), nope=generator.normal(0, 3, (tokens, heads, latent)),
        positions=generator.integers(0, 6, tokens), slots=generator.permutation(8)[:tokens],
        **{"scale": 0.3, "neox": bool(seed % 2), **more},
    )  # fmt: skip


@pytest.fixture(scope="session")
def rope_call():
    """A call from numbers; the cache is full of bytes 0x2D, and of as many higher bytes of 0 as its dtype has."""
    return _call


@pytest.fixture(scope="session")
def rope_drawn():
    """A random call with a seed."""
    return _drawn


@functools.cache
def _sampled(name, count=40, seed=5):
    contract = by_name(name)
    drawn = (contract.domain(Sampler(seed, number)) for number in range(2 * count))
    return [inputs for inputs in drawn if isinstance(contract.expected(inputs), Values)][:count]


@functools.cache
def _small(name):
    contract = by_name(name)
    walked = (inputs for inputs, _ in walk(contract.domain, Scope(2, 2)))
    return [inputs for inputs in walked if isinstance(contract.expected(inputs), Values)]


@pytest.fixture(scope="session")
def sampled():
    """Drawn inputs of a contract to which its specification has an answer, 40 unless told."""
    return _sampled


@pytest.fixture(scope="session")
def small():
    """Those of its small scope."""
    return _small


def _applications(law, drawn, specification):
    asked = set()
    for number, inputs in enumerate(drawn):

        def function(other, number=number):
            asked.add(number)
            return specification(other)

        assert law.holds(function, inputs) is None
    return len(asked)


@pytest.fixture(scope="session")
def applications():
    """Asserts that a law holds on the specification for each of these inputs; gives the number it applies to."""
    return _applications
