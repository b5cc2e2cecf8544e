"""Every implementation that ``--impl`` names against its contracts; this project's own if none is named."""

from oracles.plugin.suite import test_implementation

__all__ = ["test_implementation"]
