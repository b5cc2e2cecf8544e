"""Contract 5: the engine that builders live under, and the rules that their metadata has to keep beside its values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from oracles import tally
from oracles.contracts import _reuse_answers as answers
from oracles.contracts import _reuse_story as story
from oracles.contracts._reuse_fields import (
    ABSENT,
    ACCEPTED,
    FIELDS,
    HOST_FIELDS,
    NONE,
    NOT_CAPTURED,
    RECORDS,
    REJECTED,
    Builders,
    fields_of,
)
from oracles.contracts._reuse_graphs import Captured, address, captured
from oracles.contracts._reuse_steps import Steps, on_host, refilled
from oracles.interception import own_waits
from oracles.verdict import AddressMoved, Failure, Stale, WronglyAccepted
from reference.metadata_records import Batch
from reference.metadata_reuse import is_staged

CHECKS = ("identity", "own memory", "addresses", "replays", "kept", "rejections")
"""The rules beside the values, so that a test can turn each off."""


class Engine:
    """One life: the builders, the metadata of the current step, what was captured, and all that was seen."""

    def __init__(
        self, implementation: Any, builders: Builders, arguments: Mapping[str, Any], checks: Sequence[str] = CHECKS
    ) -> None:
        self.steps, self.checks = Steps(arguments), checks
        self.groups: tuple[tuple[Any, ...], ...] = tuple(tuple(group) for group in arguments["groups"])
        self.arguments = arguments
        self.device = arguments["block_tables"][0].device
        self.families = story.families(arguments)
        self.fields = fields_of(self.families)
        self.classes = {
            family: answers.builder_class(builders(implementation, family), family) for family in self.families
        }
        self.builders: dict[int, Any] = {}
        self.graphs: dict[tuple[Any, ...], Captured] = {}
        self.seen: list[dict[str, Any]] = []

    def live(self) -> dict[str, Any]:
        """Live through all steps; copies of all that was seen, by field, one an event."""
        last: dict[int, Any] = {}
        for step, (plan, probes) in enumerate(self.arguments["steps"]):
            self._join(step)
            batch = self.steps.begin(step)
            made = self._make(step, batch, plan)
            at_first = dict(zip((group for group, _ in made), self.seen[-len(made) :], strict=True))
            with _unwatched():
                self._judge_addresses(step, batch, made)
            for probe in probes:
                self._probe(probe, step, batch, made, last)
            with _unwatched():
                for group, metadata in made:
                    kept = "kept" in self.checks
                    self.seen.append(self._copied(group, metadata) if kept else at_first[group])
                self._replay(step, batch, made, at_first)
            last = dict(made)
        return {name: [seen[name] for seen in self.seen] for name in self.fields}

    def _join(self, step: int) -> None:
        """Construct the builders that there are from this step on. Those of the first step share what they may."""
        for family, build in self.classes.items():
            new = [group for group in story.groups_of(self.arguments, family, step) if group not in self.builders]
            for group in new:
                config = story.config_of(self.arguments, family)
                self.builders[group] = build(story.spec_of(self.groups[group]), config, self.device)
            if step == 0 and self.arguments["shared"]:
                self._of_class(family, "share_reusable_metadata_buffers")(self._alike(new))

    def _alike(self, groups: Sequence[int]) -> list[Any]:
        """Builders of the first group's spec: only they may share."""
        return [self.builders[group] for group in groups if self.groups[group] == self.groups[groups[0]]]

    # Asking

    def _of_class(self, family: str, name: str) -> Callable[..., Any]:
        return answers.method(self.classes[family], name, f"the builder class of the family {family}")

    def _of_group(self, group: int, name: str) -> Callable[..., Any]:
        return answers.method(self.builders[group], name, f"the builder of group {group}")

    def _metadata(self, step: int, group: int, name: str, *given: Any) -> Any:
        """What a method of a group's builder makes of a table, and what else is given."""
        made = self._of_group(group, name)(*given, *self.steps.table(step, group))
        return answers.metadata(made, self.groups[group][0], name, self._told(step, group, name))

    def _may_reuse(self, step: int, group: int, metadata: Any, batch: Batch) -> bool:
        name = "can_reuse_metadata"
        return answers.yes_or_no(self._of_group(group, name)(metadata, batch), self._told(step, group, name))

    def _told(self, step: int, group: int, name: str) -> str:
        return f"step {step}: {name} of group {group}'s builder"

    # Making

    def _make(self, step: int, batch: Batch, plan: str) -> list[tuple[int, Any]]:
        """The metadata of every group, in order, a family at a time."""
        made: list[tuple[int, Any]] = []
        for family in self.families:
            groups = story.groups_of(self.arguments, family, step)
            found = self._make_family(step, batch, family, groups, plan)
            made += [(group, found[group]) for group in groups]
        return made

    def _make_family(self, step: int, batch: Batch, family: str, groups: list[int], plan: str) -> dict[int, Any]:
        """The first group builds; the others do as planned, where their builders accept it."""
        first, *others = groups
        found = {first: self._metadata(step, first, "build", batch)}
        self._look(first, found[first])
        if plan != "build":
            willing = [group for group in others if self._accepts(step, batch, group, first, found[first])]
            for group, metadata in self._updated(step, family, willing, found[first], plan):
                found[group] = metadata
                with _unwatched():
                    self._judge_reuse(step, group, metadata, first, found[first])
        for group in others:
            if group not in found:
                found[group] = self._metadata(step, group, "build", batch)
            self._look(group, found[group])
        return found

    def _updated(self, step: int, family: str, groups: list[int], source: Any, plan: str) -> list[tuple[int, Any]]:
        if plan != "all" or not groups:
            return [(group, self._metadata(step, group, "update_block_table", source)) for group in groups]
        name, tables = "update_block_tables", [self.steps.table(step, group) for group in groups]
        builders = [self.builders[group] for group in groups]
        block_tables, slots = [table for table, _ in tables], [slots for _, slots in tables]
        returned = self._of_class(family, name)(source, builders, block_tables, slots)
        made = answers.several(returned, len(groups), f"step {step}: {name}")
        told = f"step {step}: {name}, for group"
        pairs = zip(groups, made, strict=True)
        return [(group, answers.metadata(item, family, name, f"{told} {group},")) for group, item in pairs]

    def _accepts(self, step: int, batch: Batch, group: int, first: int, source: Any) -> bool:
        """Whether a builder would reuse what the first group's built; it has to reject what would be wrong."""
        accepted, staged = self._may_reuse(step, group, source, batch), self._staged(batch, group)
        why = self._must_reject(group, first, staged=staged)
        if accepted and why and "rejections" in self.checks:
            raise self._wrongly_accepted(step, group, why)
        if not why and (staged or not batch.full_graph):
            tally.note(f"{self.groups[group][0]} {ACCEPTED if accepted else REJECTED}")
        return accepted

    def _must_reject(self, group: int, first: int, *, staged: bool) -> str:
        if self.groups[group] != self.groups[first]:
            return f"group {first} has another spec: {self.groups[first]}, not {self.groups[group]}"
        if staged and story.is_alone(self.arguments, group):
            return f"its graphs read buffers of group {group}, not those of group {first}"
        return ""

    def _staged(self, batch: Batch, group: int) -> bool:
        """Whether the metadata of a group lies in the buffers of a full graph."""
        group_spec = self.groups[group]
        return is_staged(on_host(batch), story.spec_of(group_spec), story.config_of(self.arguments, group_spec[0]))

    def _wrongly_accepted(self, step: int, group: int, why: str) -> Failure:
        return WronglyAccepted("can_reuse_metadata", f"step {step}: group {group}'s builder accepts, but {why}")

    # Rules

    def _judge_reuse(self, step: int, group: int, metadata: Any, first: int, source: Any) -> None:
        """What is the batch's is the very same objects; what is the table's shares no memory with the source's."""
        record = RECORDS[self.groups[group][0]]
        for name in record.BATCH_FIELDS:
            ours, theirs = getattr(metadata, name), getattr(source, name)
            if isinstance(theirs, torch.Tensor) and ours is not theirs and "identity" in self.checks:
                text = f"step {step}: {name} of group {group} is another object than that of group {first}"
                raise AddressMoved(name, f"{text}, whose metadata it reuses")
        for name in record.TABLE_FIELDS:
            if _overlap(getattr(metadata, name), getattr(source, name)) and "own memory" in self.checks:
                raise Stale(name, f"step {step}: {name} of group {group} lies in the memory of group {first}'s")

    def _judge_addresses(self, step: int, batch: Batch, made: Sequence[tuple[int, Any]]) -> None:
        """In a full graph every tensor lies where it lay at the capture."""
        for group, metadata in made:
            graph = self.graphs.get((group, *story.graph_of(self.arguments, step)))
            if graph is None or not self._staged(batch, group) or "addresses" not in self.checks:
                continue
            for name, tensor in self._read_by_kernels(group, metadata).items():
                was, now = graph.addresses.get(name, 0), address(tensor)
                if was and now and was != now:
                    text = f"step {step}: {name} of group {group} lies elsewhere than when its graph was captured"
                    raise AddressMoved(name, text)

    def _replay(
        self, step: int, batch: Batch, made: Sequence[tuple[int, Any]], at_first: Mapping[int, dict[str, Any]]
    ) -> None:
        """Replay the graphs of such a step, the last group's first; capture those that there are not yet."""
        replayed: dict[int, dict[str, Any]] = {}
        for group, metadata in reversed(made):
            if not self._staged(batch, group):
                continue
            key = (group, *story.graph_of(self.arguments, step))
            fields = self._read_by_kernels(group, metadata)
            if key not in self.graphs:
                self.graphs[key] = captured(fields)
                continue
            graph = self.graphs[key]
            read = graph.replay() if "replays" in self.checks else {name: at_first[group][name] for name in fields}
            shapes = {name: tensor.shape for name, tensor in fields.items()}
            replayed[group] = {
                name: story.common(value, shapes.get(name), graph.shapes.get(name)) for name, value in read.items()
            }
        for group, _ in made:
            if group in replayed:
                self.seen.append({name: replayed[group].get(name, ABSENT) for name in self.fields})

    def _read_by_kernels(self, group: int, metadata: Any) -> dict[str, torch.Tensor]:
        names = [name for name in FIELDS[self.groups[group][0]] if name not in NOT_CAPTURED]
        values = {name: getattr(metadata, name) for name in names}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    # Probes

    def _probe(
        self, probe: str, step: int, batch: Batch, made: Sequence[tuple[int, Any]], last: Mapping[int, Any]
    ) -> None:
        """Ask for what must be rejected."""
        groups = story.groups_of(self.arguments, self.families[0], step)
        first, other = groups[0], groups[-1]
        source = dict(made)[first]
        if probe == "late share":
            if self.graphs:
                # Refused or not: what graphs have captured must stay where it is, and that is judged anyway.
                with suppress(ValueError):
                    self._of_class(self.families[0], "share_reusable_metadata_buffers")(self._alike(groups))
            return
        offers = {
            "last step": (other, last.get(first), "the metadata is that of the step before"),
            "same builder": (first, source, "it made this metadata itself, and would overwrite it"),
            "copy": (other, copy.copy(source), "this is a copy, which may have been changed since"),
            "refilled": (other, source, "the batch was refilled in place since"),
            "foreign": (other, self._foreign(made), "this is no metadata of its kind"),
            "other ubatch": (other, source, "the metadata is of another micro-batch"),
        }
        group, metadata, why = offers[probe]
        asked = replace(batch, ubatch=1) if probe == "other ubatch" else batch
        with refilled(batch) if probe == "refilled" else nullcontext():
            accepted = metadata is not None and self._may_reuse(step, group, metadata, asked)
        if accepted and "rejections" in self.checks:
            raise self._wrongly_accepted(step, group, why)

    def _foreign(self, made: Sequence[tuple[int, Any]]) -> Any:
        """Metadata of another family where there is one, else anything."""
        others = (metadata for group, metadata in made if self.groups[group][0] != self.families[0])
        return next(others, object())

    def _look(self, group: int, metadata: Any) -> None:
        with _unwatched():
            self.seen.append(self._copied(group, metadata))

    def _copied(self, group: int, metadata: Any) -> dict[str, Any]:
        own = FIELDS[self.groups[group][0]]
        return {name: self._copy(name, getattr(metadata, name)) if name in own else ABSENT for name in self.fields}

    def _copy(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if name not in HOST_FIELDS:
                return value.clone()
            with own_waits():
                return value.clone().to(self.device)  # where results are compared
        return NONE if value is None else value


def _overlap(one: Any, other: Any) -> bool:
    """Whether two tensors have memory in common."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.numel() and other.numel()):
        return False
    (begin, end), (first, stop) = _extent(one), _extent(other)
    return begin < stop and first < end and not _elements(one).isdisjoint(_elements(other))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((count - 1) * step for count, step in steps) + 1
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()


def _elements(tensor: torch.Tensor) -> set[int]:
    """The address of each element: columns of one buffer lie between each other."""
    places = {tensor.data_ptr()}
    for count, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + number * step * tensor.element_size() for place in places for number in range(count)}
    return places


@contextmanager
def _unwatched() -> Iterator[None]:
    """Inside, what is done is the engine's: it is no work of an implementation, and takes a fraction of the time."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        yield
