"""What builders of metadata have in common: who made a record, and whether other groups may reuse it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import ContractError
from optimized.metadata_records import Batch, LinearConfig, LinearSpec, MlaConfig, MlaSpec
from optimized.refusals import refuse_bad_sequence

Spec = LinearSpec | MlaSpec
Config = LinearConfig | MlaConfig


class MetadataBuilder:
    """Makes the metadata of one KV-cache group. This one reuses nothing: an update is a build.

    A builder of its own kind defines :meth:`build`, and calls :meth:`_signed` on what it returns.
    """

    def __init__(self, spec: Spec, config: Config, device: torch.device | str) -> None:
        self.spec = spec
        self.config = config
        self.device = torch.device(device)
        self._itself = ref(self)

    def build(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        """Return the metadata of a step for the group that has this table and these slots."""
        raise NotImplementedError

    def update_block_table(self, metadata: Any, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        """Return the metadata of the same step for this builder's group: here a build."""
        return self.build(origin_of(metadata).step.batch, block_table, slot_mapping)

    def can_reuse_metadata(self, metadata: Any, batch: Batch) -> bool:
        """Whether an update of ``metadata`` by this builder may take from it what depends on the batch alone."""
        return False

    def get_metadata_reuse_key(self) -> Hashable | None:
        """Return what two builders must have in common for that, or ``None``: it never may."""
        return None

    @classmethod
    def share_reusable_metadata_buffers(cls, builders: Sequence[MetadataBuilder]) -> None:
        """Let builders have the same buffers for what depends on the batch alone, before a graph is captured."""

    @classmethod
    def update_block_tables(
        cls,
        metadata: Any,
        builders: Sequence[MetadataBuilder],
        block_tables: Sequence[torch.Tensor],
        slot_mappings: Sequence[torch.Tensor],
    ) -> list[Any]:
        """Return what :meth:`update_block_table` of each builder gives, in order."""
        refuse_bad_lists(builders, block_tables, slot_mappings)
        given = zip(builders, block_tables, slot_mappings, strict=True)
        return [builder.update_block_table(metadata, table, slots) for builder, table, slots in given]

    def _signed(self, record: type, origin: Origin, *fields: Mapping[str, Any]) -> Any:
        """A record of these fields (those that are left out have their defaults), made by this builder."""
        # Past the frozen record's own constructor, which sets fields one by one.
        metadata: Any = object.__new__(record)
        values = metadata.__dict__
        for some in fields:
            values.update(some)
        values["origin"] = origin
        origin.metadata = ref(metadata)
        return metadata


class Step:
    """The batch of a build, and what it held then."""

    __slots__ = ("arrays", "batch", "tensors", "values", "versions")

    def __init__(
        self,
        batch: Batch,
        arrays: Sequence[npt.NDArray[np.generic] | None],
        tensors: Iterable[torch.Tensor | None],
    ) -> None:
        """Remember the batch, the memory of its host tensors, and ``tensors`` that were made from it."""
        self.batch = batch
        self.arrays = [array for array in arrays if array is not None]
        device = batch.query_start_loc, batch.seq_lens, batch.num_accepted_tokens
        self.tensors = [tensor for tensor in (*device, *tensors) if tensor is not None]
        self.values = [array.tobytes() for array in self.arrays]
        self.versions = versions_of(self.tensors)

    def unchanged(self) -> bool:
        """Whether the host's tensors hold the same, and nobody wrote to the others with torch."""
        values = [array.tobytes() for array in self.arrays]
        return values == self.values and versions_of(self.tensors) == self.versions


class Origin:
    """Who made a record, from what: private to builders.

    ``buffers`` are those of the batch if the record is staged; ``replayed``: a full graph would read staged ones.
    """

    __slots__ = ("buffers", "builder", "key", "metadata", "plan", "replayed", "step")

    metadata: Any
    """a reference to the record"""

    def __init__(self, builder: Any, key: Hashable, step: Step, buffers: Any, plan: Any, replayed: bool) -> None:
        self.builder = builder
        self.key = key
        self.step = step
        self.buffers = buffers
        self.plan = plan
        self.replayed = replayed

    def of(self, builder: ReusingBuilder) -> Origin:
        """That of an update by another builder."""
        return Origin(builder._itself, self.key, self.step, self.buffers, self.plan, self.replayed)


class ReusingBuilder(MetadataBuilder):
    """A builder whose metadata other builders of its kind can reuse. See :mod:`optimized.metadata_reuse`."""

    configuration: ClassVar[tuple[str, ...]]
    """fields of spec and config that make the key"""
    buffers: Any
    """of what depends on the batch alone; has ``step``, what they were filled from last"""

    def __init__(self, spec: Spec, config: Config, device: torch.device | str) -> None:
        super().__init__(spec, config, device)
        self._key = type(self), *(_field_of(name, spec, config) for name in self.configuration)
        self._staged_once = False

    def get_metadata_reuse_key(self) -> Hashable:
        """Return the kind of builder, and all of spec and config that shapes the metadata."""
        return self._key

    def can_reuse_metadata(self, metadata: Any, batch: Batch) -> bool:
        """Whether an update of ``metadata`` by this builder may take from it what depends on the batch alone.

        It may if all of this holds: ``metadata`` is an object that another builder of this type returned, no copy of
        it, and that builder still exists; their keys are equal; ``batch`` is the very object that it was made from,
        nobody changed it or the metadata since, as far as the host's values and torch's version counters tell, and the
        buffers have not been filled for another; staged metadata lies in buffers that are this builder's too; and
        metadata that a full graph would replay is staged. The host does not wait for the device.
        """
        origin = getattr(metadata, "origin", None)
        if not isinstance(origin, Origin) or origin.step.batch is not batch:
            return False
        return self._fits(origin, origin.builder()) and _is_intact(metadata, origin)

    def update_block_table(self, metadata: Any, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        """Return the metadata of the same step for this builder's group, which has this table and these slots.

        What depends on the batch alone are the source's own objects; the rest is made anew with this builder's spec,
        where the source is staged in this builder's own buffers, in one launch. Where :meth:`can_reuse_metadata` of the
        metadata and its own batch is ``False``, it is what :meth:`build` gives for that batch.

        Refused (:class:`ContractError`) before anything is written: metadata that no builder made; metadata that this
        builder made, which would be overwritten; what :meth:`build` refuses.
        """
        return self.update_block_tables(metadata, (self,), (block_table,), (slot_mapping,))[0]

    @classmethod
    def update_block_tables(
        cls,
        metadata: Any,
        builders: Sequence[MetadataBuilder],
        block_tables: Sequence[torch.Tensor],
        slot_mappings: Sequence[torch.Tensor],
    ) -> list[Any]:
        """Return what :meth:`update_block_table` of each builder gives, in order: one launch for all that can reuse.

        Lists or tuples of one length. More than 32 builders take a launch for each 32. Those that can not reuse the
        metadata make a build each.

        Refused besides what :meth:`update_block_table` refuses: other lists, a builder twice.
        """
        refuse_bad_lists(builders, block_tables, slot_mappings)
        origin = origin_of(metadata)
        source = origin.builder()
        _refuse_bad_builders(builders, source)
        intact = _is_intact(metadata, origin)
        able = {
            number: builder
            for number, builder in enumerate(builders)
            if intact and isinstance(builder, ReusingBuilder) and builder._fits(origin, source)
        }
        if builders and len(able) == len(builders):
            return able[0]._updated(metadata, origin, list(able.values()), block_tables, slot_mappings)
        batch, updated = origin.step.batch, {}
        for number, builder in enumerate(builders):
            if number not in able and isinstance(builder, ReusingBuilder):
                builder._refuse(batch, block_tables[number], slot_mappings[number])
        if able:
            tables, slots = [block_tables[number] for number in able], [slot_mappings[number] for number in able]
            made = next(iter(able.values()))._updated(metadata, origin, list(able.values()), tables, slots)
            updated = dict(zip(able, made, strict=True))
        return [
            updated[number] if number in updated else builder.build(batch, block_tables[number], slot_mappings[number])
            for number, builder in enumerate(builders)
        ]

    @classmethod
    def share_reusable_metadata_buffers(cls, builders: Sequence[MetadataBuilder]) -> None:
        """Give all builders the first one's buffers for what depends on the batch alone, before a graph is captured.

        Buffers of what depends on a table are never shared.

        Refused (:class:`ContractError`) with nothing changed: what is no list or tuple; builders of several types,
        keys or devices; a builder twice; a builder that has returned staged metadata, whose addresses a graph may hold.
        """
        refuse_bad_sequence("builders", builders)
        sharing: list[ReusingBuilder] = []
        for number, builder in enumerate(builders):
            if not isinstance(builder, ReusingBuilder) or type(builder) is not type(builders[0]):
                raise ContractError("builders", type(builder).__name__, "all must be of one type")
            first = sharing[0] if sharing else builder
            if builder._key != first._key:
                raise ContractError("builders", builder._key, f"the key must be that of the first, {first._key}")
            if builder.buffers.device() != first.buffers.device():
                raise ContractError("builders", str(builder.buffers.device()), "all must be on one device")
            if any(builder is other for other in sharing):
                raise ContractError("builders", number, "no builder may stand there twice")
            if builder._staged_once:
                raise ContractError("builders", number, "buffers are shared before there is metadata in them")
            sharing.append(builder)
        for builder in sharing:
            builder.buffers = sharing[0].buffers

    def _fits(self, origin: Origin, source: Any) -> bool:
        """Whether this builder is one that may reuse what has this origin, whatever became of that."""
        if source is None or source is self:
            return False
        if origin.buffers is not None:
            # Only builders of one type, key and device share buffers.
            return origin.buffers is self.buffers
        if origin.replayed or type(source) is not type(self) or origin.key != self._key:
            return False
        return bool(source.buffers.device() == self.buffers.device())

    def _refuse(self, batch: Batch, block_table: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Raise what :meth:`build` would refuse."""
        raise NotImplementedError

    def _updated(
        self,
        metadata: Any,
        origin: Origin,
        builders: Sequence[Self],
        block_tables: Sequence[torch.Tensor],
        slot_mappings: Sequence[torch.Tensor],
    ) -> list[Any]:
        """Updates by builders that can reuse the metadata, of which this is the first, or a refusal."""
        raise NotImplementedError


def origin_of(metadata: Any) -> Origin:
    """Where metadata is from, or a refusal."""
    origin = getattr(metadata, "origin", None)
    if not isinstance(origin, Origin):
        raise ContractError("metadata", type(metadata).__name__, "it must be what a builder returned")
    return origin


def refuse_bad_lists(builders: object, block_tables: object, slot_mappings: object) -> None:
    """Refuse what are no lists or tuples of one length."""
    lists = {"builders": builders, "block_tables": block_tables, "slot_mappings": slot_mappings}
    for name, values in lists.items():
        refuse_bad_sequence(name, values)
        if len(values) != len(builders):  # type: ignore[arg-type]  # both are lists or tuples, as was just found
            raise ContractError(name, len(values), f"there must be one for each builder, {len(builders)}")  # type: ignore[arg-type]


def _refuse_bad_builders(builders: Sequence[MetadataBuilder], source: Any) -> None:
    if any(builder is source for builder in builders):
        raise ContractError("builders", type(source).__name__, "none may have made the metadata: it would overwrite it")
    if len(set(map(id, builders))) != len(builders):
        raise ContractError("builders", len(builders), "no builder may stand there twice")


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Torch's counters of writes to each; those of inference mode have none."""
    return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def _is_intact(metadata: Any, origin: Origin) -> bool:
    """Whether metadata is the object that a builder made, and holds, as does its batch, what it held then."""
    if origin.metadata() is not metadata or not origin.step.unchanged():
        return False
    filled = None if origin.buffers is None else origin.buffers.step
    # Buffers that are shared may have been filled again, but only from the same values.
    return filled is None or filled is origin.step or _same(filled, origin.step)


def _field_of(name: str, spec: Spec, config: Config) -> Hashable:
    for record in (spec, config):
        if hasattr(record, name):
            value: Hashable = getattr(record, name)
            return value
    kinds = type(spec).__name__, type(config).__name__
    raise ContractError("config", kinds, f"spec and config must have the field {name}")


def _same(one: Step, other: Step) -> bool:
    return one.batch is other.batch and one.values == other.values
