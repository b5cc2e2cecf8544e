"""Contract 5, what a life shows with vLLM's builders: it is followed step by step, to where it ends or goes wrong.

Only where upstream leaves the specification is anything computed here; all else is what the reference gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from oracles.arrays import Array, Inputs
from oracles.contracts import _reuse_story as story
from reference.metadata_records import Batch, LinearConfig, LinearMetadata, LinearSpec, MlaConfig, MlaMetadata, MlaSpec
from reference.metadata_reuse import build_linear, build_mla, is_staged
from reference.state_columns import state_columns

Int32 = npt.NDArray[np.int32]

UNSHARED, OWN, REFILLED = "unshared buffers", "its own metadata", "a refilled batch"
"""What is reused although it must not be: the life ends there."""

NO_INDICES, MOVED = "no aligned indices", "moved buffers"
"""Other ends: an update that asserts, a build that is not where the graph reads."""


@dataclass
class Seen:
    """How a life ends, before its last step or not at all, and what was wrong until then.

    ``wrong`` holds reasons and the fields that show them; nobody compares values of a life that ended early.
    """

    end: str | None = None
    wrong: set[tuple[str, str]] = field(default_factory=set)
    masked: bool = False
    """Whether a step has tokens of requests that speculate, and of others."""


class GdnLife:
    """One life, with builders that share nothing and a runner that updates whatever has the first group's spec.

    ``old``: until 0.31 mode "all" was mode "none", speculation without any draft was none, and requests that speculate
    were always gathered with a mask.
    """

    def __init__(self, inputs: Inputs, *, old: bool = False) -> None:
        self.old = old
        self.arguments: Mapping[str, Any] = {name: story.plain(value) for name, value in inputs.items()}
        self.groups = self.arguments["groups"]
        self.captured: dict[tuple[Any, ...], bool] = {}
        self.seen = Seen()

    def live(self) -> Seen:
        """Live until the end."""
        for step in range(len(self.arguments["steps"])):
            self.seen.end = self._step(step)
            if self.seen.end is not None:
                self.seen.wrong.clear()
                break
        return self.seen

    def _step(self, step: int) -> str | None:
        plan, probes = self.arguments["steps"][step]
        batch, there = story.batch_of(self.arguments, step), story.groups_of(self.arguments, story.LINEAR, step)
        updated = [group for group in there[1:] if plan != "build" and self.groups[group] == self.groups[there[0]]]
        made = {group: self._built(batch, step, group) for group in there}
        right = made[there[0]]
        undrafted = self.old and is_undrafted(batch, right)
        masked = not undrafted and (is_mixed(right) or (self.old and right.num_spec_decodes > 0))
        self.seen.masked = self.seen.masked or masked
        staged = is_staged(batch, self._spec(there[0]), self._config())
        if staged and any(story.is_alone(self.arguments, group) for group in updated):
            return UNSHARED
        if updated and self._spec(there[0]).mamba_cache_mode == "align":
            return NO_INDICES
        if undrafted:
            self.seen.wrong.add(("no drafts", "num_spec_decodes"))
        else:
            self._note_wrong(batch, step, made, updated, staged=staged)
        if staged and self._moved((*story.graph_of(self.arguments, step), undrafted), there, updated):
            return MOVED
        return self._probed(probes, there)

    def _probed(self, probes: tuple[str, ...], there: list[int]) -> str | None:
        """The first probe that is accepted, though it must not be."""
        alike = self.groups[there[-1]] == self.groups[there[0]]
        accepted = {"same builder": OWN, **({"refilled": REFILLED} if alike else {})}
        return next((accepted[probe] for probe in probes if probe in accepted), None)

    def _moved(self, graph: tuple[Any, ...], there: list[int], updated: list[int]) -> bool:
        """Whether a group was built here and updated at the capture, or the other way round."""
        moved = False
        for group in there:
            was = self.captured.setdefault((group, *graph), group in updated)
            moved = moved or was != (group in updated)
        return moved

    def _note_wrong(
        self, batch: Batch, step: int, made: Mapping[int, LinearMetadata], updated: list[int], *, staged: bool
    ) -> None:
        for group, right in made.items():
            spec, (table, _) = self._spec(group), story.table_of(self.arguments, step, group)
            if is_mixed(right):
                self.seen.wrong |= {("long indices", "spec_token_indx"), ("long indices", "non_spec_token_indx")}
            if (self.old or group in updated) and spec.mamba_cache_mode == "all":
                self.seen.wrong |= {("first columns", name) for name in _unlike(batch, spec, table, right)}
            if not (right.num_spec_decodes or right.num_prefills):
                self._note_padding(batch, right, staged=staged)

    def _note_padding(self, batch: Batch, right: LinearMetadata, *, staged: bool) -> None:
        """Decodes alone: padding is counted with them, tokens as well as rows."""
        if right.num_decode_tokens != batch.num_actual_tokens:
            self.seen.wrong.add(("padded tokens", "num_decode_tokens"))
        if staged and not np.diff(batch.query_start_loc_cpu)[-1]:
            self.seen.wrong.add(("padded rows", "non_spec_state_indices_tensor"))

    def _built(self, batch: Batch, step: int, group: int) -> LinearMetadata:
        return build_linear(batch, self._spec(group), self._config(), *story.table_of(self.arguments, step, group))

    def _spec(self, group: int) -> LinearSpec:
        spec = story.spec_of(self.groups[group])
        assert isinstance(spec, LinearSpec)
        return spec

    def _config(self) -> LinearConfig:
        config = story.config_of(self.arguments, story.LINEAR)
        assert isinstance(config, LinearConfig)
        return config


def is_mixed(metadata: LinearMetadata) -> bool:
    """Whether requests speculate and others have tokens."""
    return bool(metadata.num_spec_decodes and metadata.num_prefills)


def is_undrafted(batch: Batch, metadata: LinearMetadata) -> bool:
    """Whether requests speculate, none of which has drafted anything."""
    drafts = batch.num_decode_draft_tokens_cpu
    return drafts is not None and metadata.num_spec_decodes > 0 and not (drafts > 0).any()


def _unlike(batch: Batch, spec: LinearSpec, table: Int32, right: LinearMetadata) -> list[str]:
    """The fields that differ if states are looked up in the first columns of the table."""
    sizes = spec.block_size, spec.num_speculative_blocks
    (columns,) = state_columns(table, batch.seq_lens, spec.mamba_cache_mode, *sizes)
    given, wanted = _states(right, table[:, : columns.shape[1]]), _states(right, columns)
    return [name for name, values in given.items() if not np.array_equal(values, wanted[name])]


def _states(metadata: LinearMetadata, columns: Int32) -> dict[str, Int32]:
    """The fields that a table gives, of the columns in which the states are."""
    mask = metadata.spec_sequence_masks
    if mask is None or not metadata.num_spec_decodes:
        found = {"non_spec_state_indices_tensor": columns[:, 0]}
        return found | ({"prefill_state_indices": columns[metadata.num_decodes :, 0]} if metadata.num_prefills else {})
    if not metadata.num_prefills:
        return {"spec_state_indices_tensor": columns[: metadata.num_spec_decodes]}
    others = columns[~mask, 0]
    names = ("non_spec_state_indices_tensor", "prefill_state_indices")
    return {"spec_state_indices_tensor": columns[mask], **dict.fromkeys(names, others)}


@dataclass(frozen=True)
class MlaBuild:
    """One build of a group's MLA metadata."""

    batch: Batch
    spec: MlaSpec
    config: MlaConfig
    right: MlaMetadata
    row_stride: int

    @property
    def rows_wrap(self) -> bool:
        """Whether a row with pages begins where 32 bits do not reach, though its table's stride needs no more."""
        lengths = np.diff(self.right.paged_kv_indptr)
        last = int(np.flatnonzero(lengths)[-1]) if lengths.any() else 0
        return self.row_stride < 1 << 31 <= last * self.row_stride

    @property
    def queries_apart(self) -> bool:
        """Whether there is no graph, and upstream counts a query for each row, though not every row has one."""
        if is_staged(self.batch, self.spec, self.config) or self.right.max_qo_len != 1:
            return False
        return not np.array_equal(self.right.qo_indptr, np.arange(self.right.num_decodes + 1))

    @property
    def pages_apart(self) -> bool:
        """Whether pages of added tokens are not the request's first, which upstream repeats."""
        if not (self.config.varlen_width and self.batch.causal and self.spec.causal):
            return False
        starts = self.right.paged_kv_indptr
        rows = zip(self.right.block_table, self.batch.seq_lens, starts, starts[1:], strict=False)
        pages, size = self.right.paged_kv_indices, self.spec.block_size
        return any(bool((pages[start + length : end] != row[0] * size).any()) for row, length, start, end in rows)


def mla_builds(inputs: Inputs) -> Iterator[MlaBuild]:
    """The builds of all steps and groups."""
    for given in story.givens(story.plain_inputs(inputs)):
        spec, config = given.spec, given.config
        assert isinstance(spec, MlaSpec)
        assert isinstance(config, MlaConfig)
        right = build_mla(given.batch, spec, config, given.block_table, given.slot_mapping)
        table = cast(Array, story.table_of(inputs, given.step, given.group)[0])
        yield MlaBuild(given.batch, spec, config, right, table.layout[0])
