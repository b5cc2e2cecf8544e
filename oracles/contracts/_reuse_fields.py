"""Contract 5: the fields of both families' metadata, and what is looked at of each. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oracles.contracts import _reuse_story as story
from reference.metadata_records import LinearMetadata, MlaMetadata

RECORDS: dict[str, type[LinearMetadata] | type[MlaMetadata]] = {story.LINEAR: LinearMetadata, story.MLA: MlaMetadata}
FIELDS = {family: (*record.BATCH_FIELDS, *record.TABLE_FIELDS) for family, record in RECORDS.items()}
NOT_CAPTURED = ("spec_sequence_masks_cpu", "block_table", "slot_mapping")
"""Tensors that no kernel reads, or that are the engine's own: where those lie is not the builder's affair."""

HOST_FIELDS = ("spec_sequence_masks_cpu",)
"""Tensors that lie on the host."""

ABSENT, NONE = 0, -1
"""What stands for a field that is not looked at, and for one that is ``None``."""

ACCEPTED, REJECTED = "reuse accepted", "reuse rejected"
"""What is noted, behind the family, of a reuse that a builder may accept: what it answered."""

Builders = Callable[[Any, str], Any]
"""From an implementation to the builder class of a family."""


def fields_of(families: Iterable[str]) -> tuple[str, ...]:
    """The fields of these families' metadata, in order, each once."""
    return tuple(dict.fromkeys(name for family in families for name in FIELDS[family]))
