"""One device for each test process: the caller's own list, the runtimes' precedence, workers that replace others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracles.backends.cuda import VENDOR as CUDA
from oracles.backends.device.pinning import claim, devices
from oracles.backends.rocm import VENDOR as ROCM


@pytest.fixture
def machine(tmp_path):
    """Three NVIDIA devices and two AMD ones, with what else lies beside them."""
    dev, kfd = tmp_path / "dev", tmp_path / "kfd"
    dev.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    for node, text in (
        ("0", "cpu_cores_count 64\nsimd_count 0\n"),
        ("1", "cpu_cores_count 0\nsimd_count 1216\n"),
        ("2", "simd_count 1216\n"),
    ):
        (kfd / node).mkdir(parents=True)
        (kfd / node / "properties").write_text(text)
    (kfd / "3").mkdir()
    (kfd / "3" / "properties").mkdir()  # cannot be read, as a device that is not this container's
    return {"dev": dev, "kfd": kfd}


@pytest.mark.parametrize(
    ("vendor", "environ", "names", "entries"),
    [
        (CUDA, {}, ["CUDA_VISIBLE_DEVICES"], ["0", "1", "2"]),
        (CUDA, {"CUDA_VISIBLE_DEVICES": "5, 7"}, ["CUDA_VISIBLE_DEVICES"], ["5", "7"]),
        (CUDA, {"CUDA_VISIBLE_DEVICES": "GPU-1a,MIG-2b"}, ["CUDA_VISIBLE_DEVICES"], ["GPU-1a", "MIG-2b"]),
        (CUDA, {"CUDA_VISIBLE_DEVICES": "4,-1,6"}, ["CUDA_VISIBLE_DEVICES"], ["4"]),
        (CUDA, {"CUDA_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES"], []),
        (CUDA, {"HIP_VISIBLE_DEVICES": "1"}, ["CUDA_VISIBLE_DEVICES"], ["0", "1", "2"]),
        (CUDA, {"ORACLES_DEVICE": "1"}, [], []),
        (ROCM, {}, ["HIP_VISIBLE_DEVICES"], ["0", "1"]),
        (ROCM, {"HIP_VISIBLE_DEVICES": "3,1"}, ["HIP_VISIBLE_DEVICES"], ["3", "1"]),
        (ROCM, {"CUDA_VISIBLE_DEVICES": "2,6"}, ["CUDA_VISIBLE_DEVICES"], ["2", "6"]),
        # HIP counts among what ROCR leaves, so its own indices start at 0 there.
        (ROCM, {"ROCR_VISIBLE_DEVICES": "4,5,6"}, ["HIP_VISIBLE_DEVICES"], ["0", "1", "2"]),
        (ROCM, {"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, ["HIP_VISIBLE_DEVICES"], ["2", "0"]),
        (
            ROCM,
            {"HIP_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "1,0"},
            ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"],
            ["1", "0"],
        ),
    ],
)
def test_the_caller_s_devices(machine, vendor, environ, names, entries):
    assert devices(vendor, environ, **machine) == (tuple(names), entries)


def test_a_machine_without_devices(tmp_path):
    nowhere = {"dev": tmp_path, "kfd": tmp_path / "none"}
    assert [devices(vendor, {}, **nowhere)[1] for vendor in (CUDA, ROCM)] == [[], []]


def test_a_worker_takes_its_own_device_or_the_next_free_one(tmp_path):
    """Processes of their own, because a lock is a process's; the second one stands in for a dead worker's successor."""
    holder = _claimer(tmp_path, count=3, worker=1)
    assert holder.stdout.readline() == "1\n"
    assert [_claimed_once(tmp_path, count=3, worker=number) for number in (0, 1, 4)] == [0, 2, 2]
    holder.kill()
    holder.wait()
    holder.stdout.close()
    holder.stdin.close()
    assert _claimed_once(tmp_path, count=3, worker=1) == 1


def test_more_workers_than_devices_share_them(tmp_path):
    assert [claim(2, worker, tmp_path) for worker in range(5)] == [0, 1, 0, 1, 0]


def _claimed_once(folder: Path, *, count: int, worker: int) -> int:
    process = _claimer(folder, count=count, worker=worker)
    return int(process.communicate()[0])


def _claimer(folder: Path, *, count: int, worker: int) -> subprocess.Popen:
    """A process that claims a device, prints its number and keeps it until its standard input ends."""
    body = (
        "import sys; from pathlib import Path; from oracles.backends.device.pinning import claim; "
        "print(claim(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])), flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", body, str(count), str(worker), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
