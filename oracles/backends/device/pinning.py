"""Which device each of several test processes uses: one each, among those that the caller made visible.

It only sets environment variables, and only before torch is imported, because a device runtime reads them once. What
the caller restricted stays restricted: a process is given one entry of the caller's own list.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from oracles.backends.device.vendor import HIDDEN, INDEX, Vendor

KFD = Path("/sys/class/kfd/kfd/topology/nodes")
"""Where the AMD driver describes its devices, GPUs and processors alike."""

_held: list[int] = []
"""Locks of this process, kept for as long as it lives."""


def devices(
    vendor: Vendor, environ: Mapping[str, str], *, dev: Path = Path("/dev"), kfd: Path = KFD
) -> tuple[tuple[str, ...], list[str]]:
    """The variables that choose among the caller's devices, and those devices as entries of such a variable.

    No entry where there is nothing to choose: no device, or one that the caller chose by ``ORACLES_DEVICE``. AMD's
    runtime applies ``ROCR_VISIBLE_DEVICES`` first, and ``HIP_VISIBLE_DEVICES`` counts among what that leaves.
    """
    if INDEX in environ:
        return (), []
    chosen = tuple(name for name in vendor.selecting if name in environ)
    if chosen:
        # Where the caller set several names of the same list, they must go on saying the same.
        return chosen, _entries(environ[chosen[0]])
    outer = next((environ[name] for name in vendor.visible if name in environ), None)
    count = _count(vendor, dev, kfd) if outer is None else len(_entries(outer))
    return vendor.selecting[:1], [str(index) for index in range(count)]


def claim(count: int, worker: int, folder: Path) -> int:
    """The number of a device for this process: its own one, round robin, or the next that no living process holds.

    A worker that replaces a dead one has a new number, and would otherwise share a device while another one is idle.
    The locks in ``folder`` end with their process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(count):
        number = (worker + step) % count
        lock = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)
        return number
    return worker % count


def _entries(value: str) -> list[str]:
    """The devices of a list; what follows an invalid entry does not count, as in the runtimes themselves."""
    found: list[str] = []
    for entry in value.split(","):
        if entry.strip() in HIDDEN:
            break
        found.append(entry.strip())
    return found


def _count(vendor: Vendor, dev: Path, kfd: Path) -> int:
    """How many devices the driver shows. Asking torch would import it, and with it read the variables."""
    if vendor.build == "hip":
        return sum(1 for node in kfd.glob("*/properties") if _is_gpu(node))
    return sum(1 for _ in dev.glob("nvidia[0-9]*"))


def _is_gpu(properties: Path) -> bool:
    """Processors are nodes too; they have no SIMD units."""
    try:
        lines = properties.read_text().splitlines()
    except OSError:
        return False  # a device that this container may not use
    return any(line.split()[:1] == ["simd_count"] and line.split()[1:] not in ([], ["0"]) for line in lines)
