"""Metadata that KV-cache groups share: built once a step, and updated for each further group's block table."""

from __future__ import annotations

from optimized.errors import ContractError
from optimized.linear_metadata import LinearMetadataBuilder
from optimized.metadata_builder import MetadataBuilder
from optimized.metadata_records import (
    Batch,
    LinearConfig,
    LinearMetadata,
    LinearSpec,
    MlaConfig,
    MlaMetadata,
    MlaSpec,
)
from optimized.mla_metadata import MlaMetadataBuilder

_BUILDERS: dict[str, type[MetadataBuilder]] = {"linear": LinearMetadataBuilder, "mla": MlaMetadataBuilder}

__all__ = [
    "Batch",
    "LinearConfig",
    "LinearMetadata",
    "LinearMetadataBuilder",
    "LinearSpec",
    "MetadataBuilder",
    "MlaConfig",
    "MlaMetadata",
    "MlaMetadataBuilder",
    "MlaSpec",
    "builder_of",
]


def builder_of(family: str) -> type[MetadataBuilder]:
    """Return the builder class of a family, "linear" or "mla". Refused (:class:`ContractError`): any other."""
    if family not in _BUILDERS:
        raise ContractError("family", family, f"it must be one of {', '.join(_BUILDERS)}")
    return _BUILDERS[family]
