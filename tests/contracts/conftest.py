"""Fixtures of tests that call one kernel's wrapper with inputs of their own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest

PAST_32_BITS = 2**31 + 16


class Chip:
    """Calls functions as gfx942 machine code, in this process and on guarded memory, and compares with references."""

    def __init__(self) -> None:
        from oracles.backends.cdna.backend import CdnaBackend

        self.backend = CdnaBackend("gfx942")
        self.backend.prepare()
        self.compilations: dict[str, set[str]] = {}

    def run(self, function, inputs, *, host=(), buffers=(), order="forward", races=False):
        """One call: the number of launches, what is returned, and what was given."""
        from oracles.backends.base import Variation
        from oracles.interception import intercepted
        from oracles.memory import values_of
        from oracles.verdict import Race

        variation = Variation(order == "reverse", order)
        memory = self.backend.memory(variation)
        given = {
            name: values_of(value, memory, name, device=name not in host, writable=name in buffers)
            for name, value in inputs.items()
        }
        device = [region.tensor for region in memory.regions if region.device]
        with self.backend.watch(memory, variation) as seen, intercepted(memory, device) as read:
            results = function(**given)
        failures = [*read.failures, *seen.failures, *memory.faults()]
        assert [item for item in failures if not (races and isinstance(item, Race))] == []
        self.compilations.setdefault(function.__name__, set()).update(seen.compilations)
        return seen.launches, results, given

    def agrees(self, function, reference, inputs, *, host=(), buffers=(), order="forward"):
        """One call with defined values: all are right. Returns the number of launches."""
        launches, results, given = self.run(function, inputs, host=host, buffers=buffers, order=order)
        wanted = reference(**{name: getattr(value, "data", value) for name, value in inputs.items()})
        found = [*results[: len(wanted) - len(buffers)], *(given[name] for name in buffers)]
        for one, other in zip(found, wanted, strict=True):
            if isinstance(other, int):
                assert one == other
            else:
                assert (one.numpy().dtype, one.numpy().tolist()) == (other.dtype, other.tolist())
        return launches


@pytest.fixture(scope="module")
def chip(own_triton, tmp_path_factory) -> Iterator[Chip]:
    """The emulated chip, with a cache of compiled kernels for one test file."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: there is nothing to compile kernels with")
    with pytest.MonkeyPatch.context() as patch:
        own_triton(patch, tmp_path_factory.mktemp("triton"))
        yield Chip()


@pytest.fixture
def laid_out():
    """Makes of an input's arrays others with the same values, in the layout of that number."""
    from oracles.arrays import Array, contiguous_strides

    def lay(value, number):
        if not isinstance(value, Array):
            return value
        step, gap = (1, 2, 3, 16)[number % 4], (0, 1, 5)[number % 3]
        strides = [stride * step for stride in contiguous_strides(value.shape)]
        if len(strides) > 1:
            strides[0] += gap
        if strides and number % 10 == 9 and value.shape[0] < 4:
            strides[0] = PAST_32_BITS
        return Array(value.dtype, value.data, tuple(strides), number % 5)

    return lambda inputs, number: {name: lay(value, number) for name, value in inputs.items()}


@pytest.fixture
def absurd():
    """Draws lengths, starts or ids that mean nothing, and that may be the largest and smallest of their dtype."""
    from oracles.arrays import array

    rng = np.random.default_rng(11)

    def draw(shape, dtype):
        limits = np.iinfo(dtype)
        return array(rng.choice([limits.min, -2, 0, 3, 4, 700, limits.max - 1, limits.max], shape), dtype)

    return draw
