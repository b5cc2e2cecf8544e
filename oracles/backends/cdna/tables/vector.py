"""All rows of vector instructions that stand for themselves; packed ones are made by ``packed``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from oracles.backends.cdna.tables.convert import CONVERSIONS
from oracles.backends.cdna.tables.half import CLAMPED_HALF, HALF
from oracles.backends.cdna.tables.integer import CLAMPED_INTEGER, INTEGER
from oracles.backends.cdna.tables.real import REAL
from oracles.backends.cdna.tables.rows import VectorRow

VECTOR: Mapping[str, VectorRow] = MappingProxyType(INTEGER | REAL | HALF | CONVERSIONS)
CLAMPED: Mapping[str, VectorRow] = MappingProxyType(CLAMPED_INTEGER | CLAMPED_HALF)
"""What instructions on integers do with the modifier ``clamp``."""

__all__ = ["CLAMPED", "VECTOR"]
