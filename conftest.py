"""Settings for every test: the Hypothesis profiles.

Nothing here may import torch or Triton: tests choose the backend in the environment before either is loaded.
"""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["oracles.pytest_plugin", "pytester"]

# How fast inputs are drawn depends on the machine's load, so that check would fail tests at random.
settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("nightly", settings.get_profile("ci"), derandomize=False, max_examples=5_000)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
