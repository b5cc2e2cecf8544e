"""Kernels on bfloat16 and 8-bit floats, compiled and run as machine code: bit for bit what exact rounding gives.

Rounding is written out here in integers and in float64, which holds all numbers concerned exactly. One NaN is as good
as another: no standard says which bits of it are left.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from oracles.backends.base import Variation
from oracles.backends.cdna.backend import CdnaBackend

pytest.importorskip("triton", reason="the emulated backends compile with Triton")

ARCHITECTURES = ("gfx942", "gfx950")
TRITON = tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])
Octets = npt.NDArray[np.uint8]
Singles = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Format:
    """An 8-bit float. ``infinity``: the bits of the largest number, of infinity or of NaN, for an infinite input.

    Finite numbers that are too large become the largest one: Triton clamps them, or sets the mode in which the hardware
    does. Formats without a zero below zero (``only_nan``) have one NaN, which takes its bits.
    """

    mantissa: int
    bias: int
    largest: int
    only_nan: bool = False

    def values(self) -> npt.NDArray[np.float64]:
        """The numbers from 0 to the largest, in the order of their bits."""
        bits = np.arange(self.largest + 1)
        exponent, fraction = bits >> self.mantissa, bits & ((1 << self.mantissa) - 1)
        lead = np.where(exponent > 0, 1 << self.mantissa, 0)
        return np.ldexp((lead + fraction).astype(np.float64), np.maximum(exponent, 1) - self.bias - self.mantissa)

    def rounded(self, x: Singles, infinity: int) -> Octets:
        """To the nearest, and of two to that with an even last bit."""
        values = self.values()
        size = np.minimum(np.abs(x.astype(np.float64)), values[-1])
        middles = (values[:-1] + values[1:]) / 2
        below, up_to = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
        bits = np.where(below & 1, up_to, below)
        bits = np.where(np.isinf(x), infinity, bits)
        sign = np.signbit(x) & ~(self.only_nan & (bits == 0)) & ~(self.only_nan & (bits == 0x80))
        return (bits | sign * 0x80).astype(np.uint8)


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7E),
    "float8_e5m2": Format(2, 15, 0x7B),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, only_nan=True),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, only_nan=True),
}
INFINITY = {
    # No instruction of gfx942 makes these two: Triton's own code does, and clamps infinity like any other number.
    ("gfx942", "float8_e4m3fn"): 0x7E,
    ("gfx942", "float8_e5m2"): 0x7B,
    # So it does for gfx950 until Triton 3.6.
    ("gfx950", "float8_e4m3fn"): 0x7F if TRITON > (3, 6) else 0x7E,
    ("gfx950", "float8_e5m2"): 0x7C if TRITON > (3, 6) else 0x7B,
}
"""What infinity becomes: it differs between the chips. Formats without it make NaN of it on both."""


def skip_before(release: tuple[int, int], architecture: str, name: str) -> None:
    """Skip a format that is foreign to gfx950 where Triton cannot convert it yet."""
    if (architecture, name[-4:]) == ("gfx950", "fnuz") and release > TRITON:
        pytest.skip(f"Triton {TRITON[0]}.{TRITON[1]} does not compile this conversion of {name} for gfx950")


def bfloat16(x: Singles) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 numbers, rounded to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, own_triton: Any, kernel_module: Any) -> Iterator[ModuleType]:
    """The kernels, in a process whose Triton is put back afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        own_triton(patch, tmp_path_factory.mktemp("triton"))
        yield kernel_module(patch, Path(__file__).with_name("emulated_floats.py"))


def launched(architecture: str, kernel: object, grid: int, *arguments: object, **options: object) -> None:
    """A launch in which nothing may be found."""
    backend = CdnaBackend(architecture)
    backend.prepare()
    memory = backend.memory(Variation())
    with backend.watch(memory, Variation()) as seen:
        kernel[(grid,)](*arguments, **options)  # type: ignore[index]
    assert (seen.launches, seen.workgroups, seen.failures) == (1, grid, [])


def of_bits(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    """A bfloat16 tensor with these bits."""
    return torch.from_numpy(bits).view(torch.bfloat16)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("table", ["float32", "bfloat16"])
def test_rotary_embeddings(kernels: ModuleType, architecture: str, table: str) -> None:
    generator = np.random.default_rng(8)
    tokens, half, places = 9, 64, 40
    x = bfloat16(generator.normal(0, 4, (tokens, 2 * half)).astype(np.float32))
    x[0, :4], x[0, half : half + 4] = [0, 0x8000, 0x7F80, 0xFF80], [0x8000, 0x3F80, 0x0000, 0x4000]
    positions = generator.integers(0, places, tokens).astype(np.int32)
    positions[0] = 0  # its sine is 0, which infinity turns into NaN
    angles = np.arange(places)[:, None] * 10000.0 ** (-np.arange(half) / half)
    tables = [function(angles).astype(np.float32) for function in (np.cos, np.sin)]
    given = [torch.from_numpy(each) for each in tables]
    if table == "bfloat16":
        # Products of two of these are exact in float32, so whether they are fused with the sum makes no difference.
        given = [of_bits(bfloat16(each)) for each in tables]
        tables = [(bfloat16(each).astype(np.uint32) << 16).view(np.float32) for each in tables]
    y = torch.zeros((tokens, 2 * half), dtype=torch.bfloat16)
    launched(
        architecture, kernels.rotate, tokens, of_bits(x), torch.from_numpy(positions), *given, y,
        HALF=half, num_warps=1, enable_fp_fusion=table == "bfloat16",
    )  # fmt: skip
    wide = (x.astype(np.uint32) << 16).view(np.float32)
    first, second, cosine, sine = wide[:, :half], wide[:, half:], tables[0][positions], tables[1][positions]
    with np.errstate(invalid="ignore"):
        exact = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=1)
    got, number = y.view(torch.uint16).numpy(), ~np.isnan(exact)
    np.testing.assert_array_equal(got[number], bfloat16(exact)[number])
    assert np.isnan((got[~number].astype(np.uint32) << 16).view(np.float32)).all()
    assert 0 < np.count_nonzero(~number) < 10


def trying() -> Singles:
    """All bfloat16 numbers from 2^-20 to 2^19, the middles between 8-bit ones among them; neighbours; extremes."""
    upper = np.arange((127 - 20) << 7, (127 + 19) << 7, dtype=np.uint32) << 16
    bits = np.concatenate([upper, upper + 1, upper - 1, [0, 1, 0x7F7FFFFF, 0x7F800000]]).astype(np.uint32)
    numbers = np.concatenate([bits, bits | 0x80000000]).view(np.float32)
    return np.resize(numbers, -(-numbers.size // 4096) * 4096)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_rounding_to_8_bits(kernels: ModuleType, architecture: str, name: str, source: str) -> None:
    skip_before((3, 7), architecture, name)
    x = trying()
    given = torch.from_numpy(x)
    if source == "bfloat16":
        x = x[x.view(np.uint32) & 0xFFFF == 0]
        x = np.resize(x, -(-x.size // 4096) * 4096)
        given = of_bits(bfloat16(x))
    y = torch.zeros(x.size, dtype=getattr(torch, name))
    launched(architecture, kernels.convert, x.size // 4096, given, y, B=4096, num_warps=4)
    expected = FORMATS[name].rounded(x, INFINITY.get((architecture, name), 0x80))
    np.testing.assert_array_equal(y.view(torch.uint8).numpy(), expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", FORMATS)
def test_8_bits_become_floats_and_nan_stays_nan(kernels: ModuleType, architecture: str, name: str) -> None:
    skip_before((3, 9), architecture, name)
    bits = torch.arange(256, dtype=torch.uint8)
    y = torch.zeros(256, dtype=torch.float32)
    launched(architecture, kernels.convert, 1, bits.view(getattr(torch, name)), y, B=256, num_warps=1)
    values = FORMATS[name].values()
    positive = np.full(128, np.nan)
    positive[: values.size] = values
    if name == "float8_e5m2":
        positive[0x7C] = np.inf
    both = np.concatenate([positive, -positive])
    if FORMATS[name].only_nan:
        both[0x80] = np.nan
    np.testing.assert_array_equal(y.numpy(), both.astype(np.float32))
    back = torch.zeros(256, dtype=getattr(torch, name))
    nan = torch.full((256,), float("nan"))
    launched(architecture, kernels.convert, 1, nan, back, B=256, num_warps=1)
    assert bool(back.to(torch.float32).isnan().all())


@pytest.mark.parametrize(("architecture", "name"), [("gfx942", "float8_e4m3fnuz"), ("gfx950", "float8_e4m3fn")])
def test_a_cache_in_8_bits(kernels: ModuleType, architecture: str, name: str) -> None:
    generator = np.random.default_rng(4)
    x = bfloat16(generator.normal(0, 30, (6, 256)).astype(np.float32))
    scales = np.array([1, 0.5, 3, 0.1, 7e-3, 40], np.float32)
    y = torch.zeros((6, 256), dtype=getattr(torch, name))
    launched(architecture, kernels.quantise, 6, of_bits(x), torch.from_numpy(scales), y, B=256, num_warps=2)
    quotients = (x.astype(np.uint32) << 16).view(np.float32) / scales[:, None]
    assert np.abs(quotients).max() > FORMATS[name].values()[-1]
    np.testing.assert_array_equal(y.view(torch.uint8).numpy(), FORMATS[name].rounded(quotients, 0x80))
