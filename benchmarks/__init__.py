"""Benchmarks: scripts that measure alternatives side by side, and what they share."""
