"""Triton's interpreter as a backend: kernels run as NumPy code on the CPU, and every lane of every access is checked.

``BACKEND`` is the one name that the rest of the project uses. Importing this package does not import Triton.
"""

from oracles.backends.interpreter.backend import BACKEND, InterpreterBackend
from oracles.backends.interpreter.observation import InterpreterObservation

__all__ = ["BACKEND", "InterpreterBackend", "InterpreterObservation"]
