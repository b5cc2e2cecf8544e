"""GPU implementations: Triton kernels and their host wrappers. Importing this package imports neither of the two."""
