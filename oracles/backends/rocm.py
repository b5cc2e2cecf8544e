"""AMD devices, through a build of torch for ROCm, where they go by the names of ``torch.cuda``."""

from __future__ import annotations

from oracles.backends.device.backend import DeviceBackend
from oracles.backends.device.vendor import Vendor

VENDOR = Vendor(
    name="rocm",
    title="ROCm",
    build="hip",
    nodes=("kfd", "dxg"),
    visible=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    selecting=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
)

FP8 = {
    "gfx940": "float8_e4m3fnuz",
    "gfx941": "float8_e4m3fnuz",
    "gfx942": "float8_e4m3fnuz",
    "gfx950": "float8_e4m3fn",
    "gfx1200": "float8_e4m3fn",
    "gfx1201": "float8_e4m3fn",
}
"""Architecture -> the float8 type of 4 exponent bits that its instructions compute with."""


def fp8_dtype(architecture: str) -> str | None:
    """The float8 type of an architecture, also of one with features (``gfx942:sramecc+:xnack-``); else ``None``."""
    return FP8.get(architecture.split(":")[0])


BACKEND = DeviceBackend(VENDOR)
