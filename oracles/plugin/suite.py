"""What pytest runs when it is asked to judge implementations and no test file is named."""

from __future__ import annotations

from oracles.plugin.oracle import Oracle


def test_implementation(oracle: Oracle) -> None:
    """One implementation of one contract on one backend."""
    oracle.check()
