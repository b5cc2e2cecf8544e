"""Settings for every test: the Hypothesis profiles.

Nothing here may import torch or Triton: tests choose the backend in the environment before either is loaded.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["oracles.pytest_plugin", "pytester"]

# How fast inputs are drawn depends on the machine's load, so that check would fail tests at random.
settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("nightly", settings.get_profile("ci"), derandomize=False, max_examples=5_000)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

NIGHTLY = os.environ.get("ORACLES_NIGHTLY") == "1"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("nightly") and not NIGHTLY:
            item.add_marker(pytest.mark.skip(reason="takes long, and others like it run: ORACLES_NIGHTLY=1 runs it"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    # Most tests wait for processes of their own, so two a core keep the cores busy. Devices are not shared like that.
    asked = config.option.oracle_impl or config.option.oracle_contract or config.option.oracle_backend
    return None if asked else 2 * (os.cpu_count() or 1)
