"""What the pytest plugin consists of; ``oracles.pytest_plugin`` has its options and hooks."""
