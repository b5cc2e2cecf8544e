"""The device that a worker uses, behind the few operations that the harness needs.

Everything goes through a handle with the attributes ``version``, ``cuda`` and ``device`` of torch: builds of torch for
AMD devices have the same names, and tests put a stand-in there.
"""

from __future__ import annotations

from typing import Any

import torch

from oracles.backends.device.vendor import INDEX, DeviceUnavailable, Vendor, chosen_index


class Runtime:
    """One chosen device. ``architecture`` is its name as compilers write it; ``pinned`` says whether copies can be."""

    def __init__(self, handle: Any, vendor: Vendor, index: int) -> None:
        self.cuda = handle.cuda
        self.cuda.set_device(index)
        self.device: torch.device = handle.device("cuda", index)
        self.pinned = self.device.type != "cpu"
        properties = self.cuda.get_device_properties(index)
        self.name = str(properties.name)
        self.architecture = architecture_of(properties, vendor)
        # Makes the context now, so that its seconds are not a case's.
        torch.zeros(1, device=self.device)
        self.cuda.synchronize()

    def synchronize(self) -> None:
        """Wait for the device; what went wrong on it is raised here."""
        self.cuda.synchronize()

    def free_bytes(self) -> int:
        """Device memory that nobody uses."""
        return int(self.cuda.mem_get_info()[0])


def open_device(handle: Any, vendor: Vendor) -> Runtime:
    """The device that the caller chose. Raises :class:`DeviceUnavailable` with what is missing."""
    check_build(handle, vendor)
    if not handle.cuda.is_available():
        raise DeviceUnavailable(f"torch is built for {vendor.title} {built_for(handle, vendor)} but sees no device")
    count, index = handle.cuda.device_count(), chosen_index()
    if index >= count:
        raise DeviceUnavailable(f"{INDEX} is {index}, and {count} devices are visible")
    return Runtime(handle, vendor, index)


def check_build(handle: Any, vendor: Vendor) -> None:
    """Refuse a torch for something else. Touches no device, so it is safe before a fork."""
    if built_for(handle, vendor) is None:
        raise DeviceUnavailable(f"torch {handle.__version__} is not built for {vendor.title}")


def built_for(handle: Any, vendor: Vendor) -> str | None:
    """The vendor's version that torch was built for."""
    found = getattr(handle.version, vendor.build, None)
    return None if found is None else str(found)


def architecture_of(properties: Any, vendor: Vendor) -> str:
    """``gfx942`` or ``sm_90``. AMD's name comes with features behind colons (``gfx942:sramecc+:xnack-``)."""
    if vendor.build == "hip":
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"
