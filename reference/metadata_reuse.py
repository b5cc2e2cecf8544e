"""Metadata reuse between KV-cache groups: builds, updates, a graph's buffers, and when reuse is wrong."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError
from reference.linear_metadata import build_linear, is_linear_staged, linear_buffers
from reference.metadata_records import (
    Batch,
    Int32,
    LinearConfig,
    LinearMetadata,
    LinearSpec,
    MlaConfig,
    MlaMetadata,
    MlaSpec,
)
from reference.mla_metadata import build_mla, is_mla_staged, mla_buffer_tails, mla_buffers

__all__ = [
    "Batch", "Config", "LinearConfig", "LinearMetadata", "LinearSpec", "Metadata", "MlaConfig", "MlaMetadata",
    "MlaSpec", "ReuseFacts", "Spec", "buffers", "build", "build_linear", "build_mla", "is_staged", "reuse_key",
    "staged_buffers", "updated", "why_not_reused",
]  # fmt: skip

Spec = LinearSpec | MlaSpec
Config = LinearConfig | MlaConfig
Metadata = LinearMetadata | MlaMetadata


def build(batch: Batch, spec: Spec, config: Config, block_table: Int32, slot_mapping: npt.NDArray[Any]) -> Metadata:
    """Return a group's metadata of a step: :func:`build_linear` or :func:`build_mla`, as its spec says.

    Refused (:class:`ContractError`): a spec and a config of two families; what the family refuses.
    """
    if isinstance(spec, LinearSpec) and isinstance(config, LinearConfig):
        return build_linear(batch, spec, config, block_table, slot_mapping)
    if isinstance(spec, MlaSpec) and isinstance(config, MlaConfig):
        return build_mla(batch, spec, config, block_table, slot_mapping)
    raise _two_families(spec, config)


def updated(batch: Batch, spec: Spec, config: Config, block_table: Int32, slot_mapping: npt.NDArray[Any]) -> Metadata:
    """Return what ``update_block_table`` gives for metadata of ``batch``, whichever group's table it was built with.

    It is what a build with the other table gives, with the spec and config of the group that updates. So what depends
    on the batch alone (``BATCH_FIELDS`` of the record) is shared, and what depends on the table is made anew.

    Refused (:class:`ContractError`): what :func:`build` refuses, a table of other rows than the batch's (R3) included.
    """
    return build(batch, spec, config, block_table, slot_mapping)


def is_staged(batch: Batch, spec: Spec, config: Config) -> bool:
    """Whether the metadata of a step are views of a graph's buffers.

    Refused (:class:`ContractError`): a spec and a config of two families; of linear attention, a batch that cannot be
    classified.
    """
    if isinstance(spec, LinearSpec) and isinstance(config, LinearConfig):
        return is_linear_staged(batch, config)
    if isinstance(spec, MlaSpec) and isinstance(config, MlaConfig):
        return is_mla_staged(batch, config)
    raise _two_families(spec, config)


def buffers(spec: Spec, config: Config) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Shape and dtype of a builder's buffers, by the metadata's field that is a view of each.

    Refused (:class:`ContractError`): a spec and a config of two families.
    """
    if isinstance(spec, LinearSpec) and isinstance(config, LinearConfig):
        return linear_buffers(spec, config)
    if isinstance(spec, MlaSpec) and isinstance(config, MlaConfig):
        return mla_buffers(config)
    raise _two_families(spec, config)


def staged_buffers(
    batch: Batch,
    spec: Spec,
    config: Config,
    block_table: Int32,
    slot_mapping: npt.NDArray[Any],
    before: Mapping[str, npt.NDArray[Any]],
) -> dict[str, npt.NDArray[Any]]:
    """Return the whole contents of a builder's buffers after a build or an update.

    Each buffer begins with the metadata's field of its name. Behind that, those of linear attention keep what they
    held, and those of MLA have rows that read and write nothing, to their end: length 0, pages of 1, flat starts.
    Buffers of fields that the step has not (``None``) keep what they held; so do all if the step is not staged
    (:func:`is_staged`). After an update, the buffers of the record's ``BATCH_FIELDS`` are those of the source.

    ``before``
        the contents of the buffers (:func:`buffers`) before; not changed.

    Refused (:class:`ContractError`): what :func:`build` refuses; other buffers than the builder has.
    """
    metadata = build(batch, spec, config, block_table, slot_mapping)
    after = {}
    for name, (shape, dtype) in buffers(spec, config).items():
        if name not in before or (before[name].shape, before[name].dtype) != (shape, dtype):
            raise ContractError(f"before[{name}]", before.get(name), f"it must be a tensor {shape} of {dtype}")
        after[name] = before[name].copy()
    if not is_staged(batch, spec, config):
        return after
    tails = mla_buffer_tails(metadata) if isinstance(metadata, MlaMetadata) else {}
    for name, buffer in after.items():
        values = getattr(metadata, name)
        if values is not None:
            buffer[: len(values)] = values
            buffer[len(values) :] = tails.get(name, buffer[len(values) :])
    return after


def reuse_key(spec: Spec, config: Config) -> Hashable:
    """Return what two builders must have in common to share metadata: the family and the values of ``CONFIGURATION``.

    Refused (:class:`ContractError`): a spec and a config of two families.
    """
    buffers(spec, config)
    names = config.CONFIGURATION
    return (type(spec), *(getattr(spec if hasattr(spec, name) else config, name) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseFacts:
    """What decides whether a builder may reuse metadata in a batch. *Source*: who built it, and the batch it is of.

    The defaults are those of metadata that may be reused, without a graph.
    """

    source_key: Hashable | None
    """what the source's ``get_metadata_reuse_key`` gave at the build"""
    key: Hashable | None
    """what that of the builder that would reuse gives"""
    same_device: bool = True
    """whether both builders work on one device"""
    original: bool = True
    """whether the metadata is the very object that a builder returned, no copy, and of this builder's type"""
    source_alive: bool = True
    """whether the builder that made it still exists"""
    own: bool = False
    """whether that is the builder that would reuse; an update by it would overwrite the metadata, and is refused"""
    source_step: int = 0
    step: int = 0
    """the batch's"""
    source_ubatch: int = 0
    ubatch: int = 0
    """the batch's"""
    same_batch: bool = True
    """whether the batch is the very object that the metadata was built from"""
    unchanged: bool = True
    """whether the batch's tensors, and the metadata's own of ``BATCH_FIELDS``, hold what they held at the build"""
    full_graph: bool = False
    """whether the step's kernels run from a captured full graph"""
    has_prefills: bool = False
    """whether the metadata has prefills: such a step is never replayed"""
    staged: bool = False
    """whether the metadata are views of the source's buffers"""
    shared: bool = False
    """whether the buffers of ``BATCH_FIELDS`` were shared between the two builders, before capture"""


def why_not_reused(facts: ReuseFacts) -> str | None:
    """Return the first rule of reuse that is broken, with its number in docs/metadata-reuse.md, or ``None``.

    This is the specification of ``can_reuse_metadata``. Three of the rules are not asked here: a table of other rows
    (R3) is refused by :func:`updated`, which alone sees it; no record has state of a single group (R5); and state
    columns are made anew for every table, never taken from an earlier step (R6).
    """
    broken = (
        (not facts.original, "R8: the metadata is not the object that a builder of this type returned"),
        (not facts.source_alive, "R9: the builder that made the metadata, and owns its buffers, is gone"),
        (facts.own, "R9: the builder made the metadata itself, and would overwrite it"),
        (facts.key is None or facts.source_key is None, "R1: a builder without a key shares nothing"),
        (facts.key != facts.source_key, "R1: the keys differ"),
        (not facts.same_device, "R7: the builders work on two devices"),
        (facts.step != facts.source_step, "R2: the metadata is of another step"),
        (facts.ubatch != facts.source_ubatch, "R7: the metadata is of another micro-batch"),
        (not facts.same_batch, "R2: the metadata was built from another batch"),
        (not facts.unchanged, "R2: the batch or the metadata was changed after the build"),
        (facts.staged and not facts.shared, "R4: the metadata lies in buffers that this builder's graph does not read"),
        (
            facts.full_graph and not facts.staged and not facts.has_prefills,
            "R4: the step runs from a graph, and the metadata is not in its buffers",
        ),
    )
    return next((rule for is_broken, rule in broken if is_broken), None)


def _two_families(spec: object, config: object) -> ContractError:
    return ContractError(
        "config", type(config).__name__, f"it must be of the family of the spec, {type(spec).__name__}"
    )
