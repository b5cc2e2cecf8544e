"""The released wheels that there are, one test each."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NONE = "no vLLM wheel: put one in wheels/, or name files or folders in ORACLES_VLLM_WHEEL"


def wheels() -> list[Path]:
    """The wheels that ``ORACLES_VLLM_WHEEL`` names (files and folders of wheels), else those in ``wheels/``."""
    named = [Path(place) for place in os.environ.get("ORACLES_VLLM_WHEEL", "").split(os.pathsep) if place]
    if not named:
        return sorted((ROOT / "wheels").glob("vllm-*.whl"))
    found = {place: sorted(place.glob("vllm-*.whl")) if place.is_dir() else [place] for place in named}
    for place, files in found.items():
        if not (files and all(file.is_file() for file in files)):
            raise pytest.UsageError(f"ORACLES_VLLM_WHEEL: {place} is no wheel, and no folder with one")
    return [file for files in found.values() for file in files]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``released`` runs for every wheel, and is skipped with the reason where there is none."""
    if "released" in metafunc.fixturenames:
        missing = [pytest.param(None, marks=pytest.mark.skip(reason=NONE), id="no wheel")]
        found = [pytest.param(path, id="-".join(path.name.split("-")[:2])) for path in wheels()]
        metafunc.parametrize("released", found or missing)
