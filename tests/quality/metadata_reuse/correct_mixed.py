"""Both families, as the contract of lives with both takes them."""

from __future__ import annotations

from correct_linear import Linear
from correct_mla import Mla


def pair(linear=Linear, mla=Mla):
    """From a family to its builder class."""
    return lambda family: linear if family == "linear" else mla


builders = pair()
