"""Contract 5, lives of metadata builders: which groups there are, which steps they live through, and what is asked.

A life is a row of engine steps over a few KV-cache groups. In each step the first group of a family builds; the others
build as well, or reuse what it built, one by one or all at once. Full-graph steps are captured the first time, and
replayed from then on. Probes ask builders for a reuse that must be rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contracts._reuse_story import PER_STEP
from oracles.contracts._table_layouts import MOST_FAR
from oracles.domain import Source, far_stride

PLANS = ("reuse", "all", "build")
"""How the groups behind the first get their metadata: one update each, one launch for all, a build each."""

PROBES = ("last step", "same builder", "copy", "refilled", "late share", "foreign", "other ubatch")
"""What must be rejected: the metadata of another step, of the asking builder, a copy, of a batch that was refilled in
place; sharing after addresses were handed out; metadata of another kind, and of another micro-batch."""

KINDS = ("decode", "speculative", "mixed", "prefill", "mixed speculative", "padding")
"""Batches."""

IN_GRAPHS = ("decode", "speculative", "padding")
"""Those that can run from full graphs."""

MODES = ("none", "align", "all")
DTYPES = ("bfloat16", "float16", "float32")
"""Of a state, or of queries."""

KV_CACHE_DTYPES = ("auto", "fp8")
MOST_STEPS = 4
IDS = 1000
"""Block ids of a group in a step: no other group has them, so that another group's id is seen for what it is."""


@dataclass(frozen=True)
class Row:
    """One request in a step."""

    query: int
    computed: int
    drafts: int = -1
    prefilling: bool = False

    @property
    def length(self) -> int:
        """Tokens with those of the step; a padding row has none."""
        return self.computed + self.query


def draw_row(source: Source, kind: str, spec_tokens: int, edge: int) -> Row:
    """A request; how much of it is computed is drawn around an edge of blocks."""
    computed = source.integer(1, 2 * edge, near=(edge - 1, edge, edge + 1), small=1)
    if kind == "decode":
        return Row(1, computed)
    if kind == "speculative":
        drafts = source.integer(0, spec_tokens, near=(spec_tokens,), small=1)
        return Row(1 + drafts, computed, drafts)
    fresh = source.choose((True, False), small=1)
    query = source.integer(1, 66, near=(1, 2, 63, 64, 65), small=1)
    return Row(query, 0 if fresh else computed, prefilling=True)


CROWDS = {"linear": (17, 65, 129), "mla": (17, 17, 33)}
"""Rows of steps with more requests than persistent kernels have programs. Their contexts are short, their lives too.

Pages of MLA have a place a token: a life of 129 such rows takes an emulated kernel 45 seconds.
"""


def draw_crowd(kind: str, spec_tokens: int, edge: int, most: int) -> list[Row]:
    """As many decodes as there may be, no two neighbours alike, all but two of the rows; two of padding."""
    drafts = [row % (1 + spec_tokens) for row in range(most - 2)]
    computed = [1 + (2 * row + row // 3) % (2 * edge) for row in range(most - 2)]
    if kind == "speculative":
        return [Row(1 + n, held, n) for n, held in zip(drafts, computed, strict=True)] + [Row(0, 0)] * 2
    return [Row(1, held) for held in computed] + [Row(0, 0)] * 2


def draw_rows(source: Source, kind: str, spec_tokens: int, edge: int, most: int) -> list[Row]:
    """The rows of a step, those that continue first, padding last."""
    parts = {
        "decode": ("decode",),
        "speculative": ("speculative",),
        "mixed": ("decode", "prefill"),
        "prefill": ("prefill",),
        "mixed speculative": ("speculative", "decode", "prefill"),
        "padding": (),
    }[kind]
    rows: list[Row] = []
    for part in parts:
        room = most - len(rows)
        count = source.integer(1 if room else 0, min(room, 3), near=(1, 2), small=1) if room else 0
        rows += [draw_row(source, part, spec_tokens, edge) for _ in range(count)]
    room = most - len(rows)
    padding = source.integer(1 if kind == "padding" and room else 0, min(room, 2), near=(0, 1), small=1)
    return rows + [Row(0, 0)] * padding


@dataclass
class Life:
    """The life that is drawn, in the form of the contract's inputs."""

    source: Source
    groups: tuple[tuple[Any, ...], ...]
    spec_tokens: int
    most: int
    max_len: int
    tight: bool = False
    """whether MLA tables have no more columns than the step's tokens take: added queries then reach past the row"""
    apart: bool = False
    """whether the rows of tables lie apart: those of few elements so far that 32 bits cannot count to the last one"""
    crowded: bool = False
    """whether its steps have as many requests as there is room for"""
    one_size: bool = False
    """whether all steps in graphs are padded to the same rows, so that most of them are replays"""

    def __post_init__(self) -> None:
        self.columns: dict[str, list[Value]] = {name: [] for name in PER_STEP}
        self.tables: list[Array] = []
        self.slots: list[Array] = []
        self.steps: list[Value] = []

    def step(self, kind: str, full_graph: bool) -> None:
        """One step: its batch, a table and slots for each group, and how the groups get their metadata."""
        source, number = self.source, len(self.steps)
        edge = min([group[1] for group in self.groups] + [16])
        rows = (
            draw_crowd(kind, self.spec_tokens, edge, self.most)
            if self.crowded and kind != "padding"
            else draw_rows(source, kind, self.spec_tokens, edge, self.most)
        )
        if full_graph and self.one_size:
            rows += [Row(0, 0)] * (self.most - len(rows))
        source.event(f"batch: {kind}")
        starts = list(accumulate((row.query for row in rows), initial=0))
        lengths = [row.length for row in rows]
        drafted = any(row.drafts >= 0 for row in rows)
        # To what one size of graph serves, however many rows are padding, or past it.
        whole = len(rows) * (1 + self.spec_tokens if drafted else 1) - starts[-1]
        pads = (whole,) if self.one_size else (0, whole, 3)
        pad = source.choose(pads, weights=(2, 3, 1)[: len(pads)], small=1) if full_graph else 0
        accepted = [1 + (row + number) % (1 + self.spec_tokens) for row in range(len(rows))]
        values: dict[str, Value] = {
            "query_start_loc": array(starts, "int32"),
            "query_start_loc_cpu": array(starts, "int32"),
            "seq_lens": array(lengths, "int32"),
            "seq_lens_cpu": array(lengths, "int32"),
            "is_prefilling": array([row.prefilling for row in rows], "bool"),
            "num_accepted_tokens": array(accepted, "int32") if drafted else None,
            "num_decode_draft_tokens_cpu": array([row.drafts for row in rows], "int32") if drafted else None,
            "num_actual_tokens": starts[-1] + pad,
            "full_graph": full_graph,
        }
        for name, value in values.items():
            self.columns[name].append(value)
        for group, spec in enumerate(self.groups):
            self.tables.append(self._table(spec, number, group, lengths))
            self.slots.append(array(np.arange(starts[-1]) + IDS * (number + 1) + group, "int64"))
        plan = source.choose(PLANS, weights=(3, 2, 1), small=2)
        probes = [probe for probe in PROBES if source.pick(2, weights=(5, 1), small=1)]
        self.steps.append((plan, tuple(probes)))

    def _table(self, spec: tuple[Any, ...], step: int, group: int, lengths: list[int]) -> Array:
        """Ids that only this group has in this step; in padding rows too, where an engine did not clear them."""
        family, block_size, rows = spec[0], spec[1], len(lengths)
        wide = -(-self.max_len // block_size)
        if family == "mla" and self.tight:
            wide = max(1, -(-max(lengths, default=0) // block_size))
        if family == "linear":
            wide = wide + spec[2] if spec[3] != "none" else 1 + spec[2] + (step + group) % 2
        # Rows of a crowd have more ids than that: groups then differ in their first ones only.
        first = 1 + IDS * (1 + group + len(self.groups) * step)
        ids = first + np.arange(rows * wide).reshape(rows, wide)
        far = self.apart and rows > 2 and ids.size <= MOST_FAR[1]
        strides = (far_stride(rows) if far else 2 * wide + 1, 1) if self.apart else None
        return array(ids, "int32", strides)


def draw_groups(source: Source, families: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    """Groups of the families in turn: mostly of one spec a family, sometimes with one that differs in a field."""
    count = source.integer(len(families), 4, near=(2, 3), small=2)
    mode = source.choose(MODES, small=3)
    block_size = source.choose((16, 4, 1, 3, 48), weights=(4, 6, 2, 2, 1), small=1)
    speculative = source.choose((1, 0, 2), small=1)
    specs: dict[str, tuple[Any, ...]] = {
        "linear": ("linear", block_size, speculative, mode, "bfloat16", 4096),
        "mla": ("mla", block_size, 16, "auto", "bfloat16", True),
    }
    groups = [specs[families[number % len(families)]] for number in range(count)]
    if source.pick(2, weights=(4, 1), small=1):
        source.event("groups: one of another spec")
        groups[-1] = _another(source, groups[-1])
    return tuple(groups)


def _another(source: Source, spec: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same spec with one other field."""
    others = {
        "linear": ((1, 2 * spec[1]), (2, spec[2] + 1), (3, "align" if spec[3] == "none" else "none")),
        "mla": ((1, 2 * spec[1]), (2, 128), (3, "fp8")),
    }[spec[0]]
    field, value = source.choose((*others, (4, "float16"), (5, not spec[5] if spec[0] == "mla" else 8192)))
    return (*spec[:field], value, *spec[field + 1 :])


def draw_life(source: Source, families: tuple[str, ...]) -> Inputs:
    """Groups and the steps they live through."""
    groups = draw_groups(source, families)
    linear = [group for group in groups if group[0] == "linear"]
    spec_tokens = min((group[2] for group in linear), default=source.choose((0, 1), small=1))
    kinds = [kind for kind in KINDS if spec_tokens or "speculative" not in kind]
    most = source.choose((3, 5, 9, *CROWDS[families[-1]]), weights=(30, 20, 10, 1, 1, 1), small=1)
    crowded = most > 9
    if "mla" in families or crowded:
        kinds = [kind for kind in kinds if kind in IN_GRAPHS]
    varlen = 1 + spec_tokens if "mla" in families and source.pick(2, weights=(3, 1), small=1) else 0
    tight = varlen > 0 and source.choose((False, True), weights=(2, 1), small=1)
    steps = source.integer(1, 2 if crowded else MOST_STEPS, near=(2,) if crowded else (2, 3), small=2)
    graphs = source.choose((True, False), weights=(2, 1))
    one_size = graphs and source.choose((False, True), small=1)
    apart = source.choose((False, True), weights=(9, 1), small=1)
    longest = 2 * 16 + (4 if crowded else 66)
    life = Life(source, groups, spec_tokens, most, longest, tight, apart, crowded, one_size)
    usual = source.choose(tuple(kinds), weights=[3 if graphs and kind in IN_GRAPHS else 1 for kind in kinds], small=2)
    for _ in range(steps):
        kind = usual if source.choose((True, False), weights=(3, 1), small=1) else source.choose(tuple(kinds), small=1)
        life.step(kind, graphs and kind in IN_GRAPHS)
    source.event(f"steps: {steps}")
    return {
        "groups": groups,
        "num_speculative_tokens": spec_tokens,
        "max_num_reqs": most,
        "max_graph_rows": source.choose((most, 2), weights=(5, 1), small=1),
        "max_model_len": life.max_len,
        "varlen_width": varlen,
        "shared": source.choose((True, False), weights=(3, 1)),
        "joins": source.integer(0, min(steps - 1, 2), near=(0, 0, 1), small=1),
        # Persistent buffers lie in one piece.
        "refilled": not apart and source.choose((False, True), weights=(1, 1), small=1),
        "steps": tuple(life.steps),
        **{name: tuple(values) for name, values in life.columns.items()},
        "block_tables": tuple(life.tables),
        "slot_mappings": tuple(life.slots),
    }
