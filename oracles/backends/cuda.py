"""NVIDIA devices, through torch."""

from __future__ import annotations

from oracles.backends.device.backend import DeviceBackend
from oracles.backends.device.vendor import Vendor

VENDOR = Vendor(
    name="cuda",
    title="CUDA",
    build="cuda",
    nodes=("nvidia[0-9]*", "dxg"),
    visible=("CUDA_VISIBLE_DEVICES",),
    selecting=("CUDA_VISIBLE_DEVICES",),
)

FP8_FROM = 89
"""Compute capability (times ten) from which an architecture has float8."""


def fp8_dtype(architecture: str) -> str | None:
    """The float8 type of 4 exponent bits that an architecture (``sm_90``) computes with; ``None`` if it has none."""
    number = architecture.removeprefix("sm_").rstrip("af")
    return "float8_e4m3fn" if number.isdecimal() and int(number) >= FP8_FROM else None


BACKEND = DeviceBackend(VENDOR)
