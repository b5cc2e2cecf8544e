"""Contract 6.2, lives of a dispatcher: a rule-based machine draws steps that write one cache.

The rules know which slots are taken, so that most steps are ones that a server makes: decodes that go on, prompts,
steps that only warm up, and steps that measure before there are slots. Tokens take the next free slots; where none is
left, and now and then before, they take slots that an earlier step has written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracles.arrays import Array, Inputs, Value, array, contiguous_strides
from oracles.contracts._garbage import draw_dtype, garbage
from oracles.contracts._rope_domain import CACHES, INPUT_DTYPES
from oracles.contracts._rope_values import Numbers, floats
from oracles.domain import Source

MOST_STEPS = 4

SHAPES = ((1, 2, 2), (2, 3, 4))
"""Heads, L and P. How many lanes there are is for contract 6.1 to try; here they only have to differ."""

TOKENS = (1, 2, 3, 0, 4, 5)

LAYOUTS = (
    ("decode", "prefill", "unfused"),
    ("unfused", "prefill", "decode"),
    ("decode", "unfused", "prefill"),
    ("unfused", "decode", "prefill"),
    ("prefill", "decode", "unfused"),
    ("prefill", "unfused", "decode"),
    ("unfused", "decode", "unfused", "prefill", "unfused"),
)
"""In which order a batch has the tokens of each path. Servers have decodes first; nothing rests on it.

The first two have every pair of paths in either order."""

HOLES = ("none", "last", "first", "fewer", "past the last", "twice")
"""Which tokens of a real step have no slot: none; one that has -1; one behind the end of the slots; one with a slot
that the cache does not have. Or two have the same."""

PLAN = ("kind", "decode_rows", "prefill_rows")
TENSORS = ("q_nope", "q_pe", "kv_c", "k_pe", "positions", "slot_mapping")
PER_STEP = (*PLAN, *TENSORS)
"""Inputs that hold one value a step."""


@dataclass
class Machine:
    """What the rules look at: the shapes of the life, and the next free slot."""

    source: Source
    numbers: Numbers
    dtype: str
    shape: tuple[int, int, int]
    rows: int
    capacity: int
    types: tuple[str, str]
    next_slot: int = 0
    columns: dict[str, list[Value]] = field(default_factory=lambda: {name: [] for name in PER_STEP})

    @property
    def first(self) -> bool:
        """Whether there is no step yet. Small scopes try more in the first one."""
        return not self.columns["kind"]

    def step(self) -> None:
        """One rule."""
        rules: dict[Callable[[int], None], int] = {self.real: 6, self.dummy: 2, self.profiling: 2}
        rule = self.source.choose(tuple(rules), weights=tuple(rules.values()))
        wanted = self.source.choose(TOKENS, weights=(3, 4, 4, 1, 2, 2), small=2 if self.first else 1)
        rule(min(wanted, self.capacity))

    def real(self, tokens: int) -> None:
        """Tokens of requests: most of them have a slot."""
        source = self.source
        again = bool(not self.first and source.pick(2, weights=(3, 1), small=1))
        begin = 0 if again else self.next_slot
        slots = [(begin + token) % self.capacity for token in range(tokens)]
        self.next_slot = max(self.next_slot, begin + tokens)
        if source.choose((False, True), weights=(3, 1), small=1):
            slots.reverse()
        hole = source.choose(HOLES, weights=(6, 3, 3, 3, 1, 1), small=2 if self.first else 1) if tokens else "none"
        source.event(f"slots: {hole}")
        if hole in ("last", "past the last"):
            slots[-1] = -1 if hole == "last" else self.capacity + source.integer(0, 1 << 20, near=(0,), small=1)
        elif hole == "twice":
            slots[-1] = slots[0]
        elif hole == "first":
            slots[0] = -1
        elif hole == "fewer":
            slots = slots[: source.integer(0, tokens - 1, near=(tokens - 1,), small=1)]
        self._add("real", tokens, slots)

    def dummy(self, tokens: int) -> None:
        """A step that warms up: as many tokens as asked for, none of which has a slot."""
        count = 0 if self.source.pick(2, weights=(5, 1), small=1) else tokens
        self._add("dummy", tokens, [-1] * count)

    def profiling(self, tokens: int) -> None:
        """A step that measures memory, before there are slots."""
        self._add("profiling", tokens, None)

    def _add(self, kind: str, tokens: int, slots: list[int] | None) -> None:
        source, (heads, latent, rope) = self.source, self.shape
        source.event(f"step: {kind}")
        decode, prefill = self._split(tokens)
        start = source.choose((1, 0, 2, 4), small=1)
        positions = [(start + token) % self.rows for token in range(tokens)]
        if tokens and source.pick(2, weights=(6, 1), small=1):
            positions[-1] = garbage(source, self.types[0], near=(self.rows, -1))
        values: dict[str, Value] = {
            "kind": kind,
            "decode_rows": decode,
            "prefill_rows": prefill,
            "q_nope": self.floats(tokens, heads, latent),
            "q_pe": self.floats(tokens, heads, rope),
            "kv_c": self.floats(tokens, latent),
            "k_pe": self.floats(tokens, rope),
            "positions": array(positions, self.types[0]),
            "slot_mapping": None if slots is None else array(slots, self.types[1]),
        }
        for name, value in values.items():
            self.columns[name].append(value)

    def _split(self, tokens: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Which rows the fused decode path takes, and which the fused prefill path."""
        source = self.source
        small = 2 if self.first else 1
        unfused = source.integer(0, tokens, near=(0, 1, tokens), small=small)
        prefill = source.integer(0, tokens - unfused, near=(0, 1, tokens - unfused), small=small)
        sizes = {"unfused": unfused, "prefill": prefill, "decode": tokens - unfused - prefill}
        mixed = sum(map(bool, sizes.values())) > 1
        layout = source.choose(LAYOUTS, weights=(5, 2, 3, 2, 2, 2, 3), small=2 if self.first and mixed else 1)
        rows, begin = {}, 0
        for place, path in enumerate(layout):
            taken = source.integer(0, sizes[path], small=1) if path in layout[place + 1 :] else sizes[path]
            rows[path] = (begin, begin + taken)
            sizes[path] -= taken
            begin += taken
        return rows["decode"], rows["prefill"]

    def floats(self, *shape: int) -> Array:
        """Floats; now and then rows with bytes of others between them, as slices of one projection are."""
        plain = floats(self.numbers.draw(*shape), self.dtype)
        if not self.source.pick(2, weights=(6, 1), small=1):
            return plain
        strides = contiguous_strides(plain.shape)
        return Array(self.dtype, plain.data, (strides[0] + 2, *strides[1:]))


def domain(source: Source) -> Inputs:
    """A few steps on one cache; or a single one that must be refused."""
    if source.choose((False, True), weights=(12, 1)):
        return _refused(source)
    shape = source.choose(SHAPES, small=1)
    dtype = source.choose(INPUT_DTYPES, weights=(3, 1, 1), small=1)
    numbers = Numbers(source, dtype)
    table_dtype = source.choose((dtype, "float32"), weights=(2, 1), small=1)
    rows = source.choose((5, 2, 1), weights=(4, 1, 1), small=1)
    cos, sin = numbers.table(rows, shape[2] // 2, table_dtype)
    cache_dtype = source.choose(CACHES, weights=(2, 1, 1), small=1)
    cache = _draw_cache(source, numbers, shape[1] + shape[2], dtype, cache_dtype)
    capacity = cache.shape[0] * cache.shape[1]
    machine = Machine(source, numbers, dtype, shape, rows, capacity, (draw_dtype(source), draw_dtype(source)))
    steps = source.integer(1, MOST_STEPS, near=(2, 3), small=2)
    for _ in range(steps):
        machine.step()
    source.event(f"steps: {steps}")
    return {
        **{name: tuple(values) for name, values in machine.columns.items()},
        "cos": floats(cos, table_dtype),
        "sin": floats(sin, table_dtype),
        "k_scale": source.choose((None, 0.5, 0.3), small=1) if cache_dtype != "auto" else None,
        "q_scale": None,
        "is_neox": source.choose((True, False), small=1),
        "cache_dtype": cache_dtype,
        "refilled": source.choose((False, True), small=1) if steps > 1 else False,
        "kv_cache": cache,
    }


def _draw_cache(source: Source, numbers: Numbers, width: int, dtype: str, cache_dtype: str) -> Array:
    blocks, block_size = source.choose(((1, 2), (2, 2), (3, 1), (2, 4), (5, 2)), weights=(2, 4, 2, 3, 2), small=1)
    stored = dtype if cache_dtype == "auto" else source.choose(("uint8", cache_dtype), small=1)
    bits: Any = numbers.draw(blocks, block_size, width)
    if cache_dtype != "auto":
        bits = (bits % 0x70).astype("uint8")  # any codes but NaN
    plain = floats(bits, stored)
    layout = source.choose(("contiguous", "padded pages", "padded rows"), weights=(5, 1, 1), small=1)
    if layout == "contiguous":
        return plain
    row = width + 6 if layout == "padded rows" else width
    return Array(stored, plain.data, (block_size * row + (8 if layout == "padded pages" else 0), row, 1))


def _refused(source: Source) -> Inputs:
    """One step of two tokens that breaks a rule."""
    numbers = Numbers.plain("bfloat16")
    cos, sin = numbers.table(2, 1, "bfloat16")
    cache = floats(numbers.draw(1, 2, 4), "bfloat16")
    machine = Machine(source, numbers, "bfloat16", (1, 2, 2), 2, 2, ("int64", "int64"))
    values: dict[str, Value] = {
        "kind": "real",
        "decode_rows": (0, 1),
        "prefill_rows": (1, 2),
        "q_nope": machine.floats(2, 1, 2),
        "q_pe": machine.floats(2, 1, 2),
        "kv_c": machine.floats(2, 2),
        "k_pe": machine.floats(2, 2),
        "positions": array([0, 1], "int64"),
        "slot_mapping": array([0, 1], "int64"),
    }
    wrong: dict[str, dict[str, Value]] = {
        "a token of both fused paths": {"decode_rows": (0, 2)},
        "rows past the batch": {"prefill_rows": (1, 3)},
        "negative rows": {"decode_rows": (-1, 1)},
        "rows that end before they begin": {"decode_rows": (1, 0)},
        "unknown kind": {"kind": "warm-up"},
        "a real step without slots": {"slot_mapping": None},
        "a profiling step with slots": {"kind": "profiling"},
        "more slots than tokens": {"slot_mapping": array([0, 1, -1], "int64")},
        "other tokens": {"kv_c": machine.floats(3, 2)},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return {
        **{name: (value,) for name, value in (values | wrong[fault]).items()},
        "cos": floats(cos, "bfloat16"),
        "sin": floats(sin, "bfloat16"),
        "k_scale": None,
        "q_scale": None,
        "is_neox": True,
        "cache_dtype": "auto",
        "refilled": False,
        "kv_cache": cache,
    }
