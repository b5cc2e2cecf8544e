"""The executable specification: NumPy and the standard library only, plain loops, one module a family."""
