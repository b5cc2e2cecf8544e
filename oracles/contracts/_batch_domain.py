"""Batches drawn from a source of choices: mixes that engines make, in shapes of small tests and of real models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from oracles.contracts._batch import REGIONS, Batch, Group, Ids, Kind, Request
from oracles.domain import COUNTS, Source

LONGEST = 4096
"""Tokens of a request, unless its blocks hold fewer."""

MOST_TOKENS = (300, 2_500)
"""Bounds on the tokens of a step, mostly the first: an emulated kernel takes its time."""

MOST_IDS = (1_500, 12_000)
"""Bounds on the elements of a step's persistent tables."""

MOST_KINDS = 3
"""Groups of a step that differ in their sizes."""

KINDS: tuple[Kind, ...] = ("decode", "prefill", "idle", "chunk", "speculative")
"""Simplest first. An idle row has no token in this step: it was preempted, or it is padding inside the batch."""


ORDERS: tuple[Literal["rising", "falling", "shuffled"], ...] = ("rising", "falling", "shuffled")
TAILS: tuple[Literal["null", "stale", "absurd"], ...] = ("null", "stale", "absurd")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes that belong together. ``block_sizes``: of a group's table; ``kernel_block_sizes``: those kernels see."""

    name: str
    block_sizes: tuple[int, ...]
    kernel_block_sizes: tuple[int, ...]
    num_speculative_tokens: tuple[int, ...]
    cp_sizes: tuple[int, ...]
    window_reaches: tuple[int, ...] = (0,)
    most_groups: int = 4


SMALL = Preset(
    name="small",
    block_sizes=(2, 1, 3, 4),
    kernel_block_sizes=(1, 2),
    num_speculative_tokens=(0, 1, 2),
    cp_sizes=(1, 2, 3),
    window_reaches=(0, 1, 3),
)
GENERAL = Preset(
    name="general",
    block_sizes=(16, 1, 2, 48, 64, 96, 128, 784),
    kernel_block_sizes=(1, 8, 16, 32, 64, 48, 3),
    num_speculative_tokens=(0, 1, 2, 4, 7),
    cp_sizes=(1, 2, 4, 8, 3),
    window_reaches=(0, 1, 128, 4095),
    most_groups=9,
)
DEEPSEEK_V3 = Preset(
    name="deepseek-v3",
    block_sizes=(64,),
    kernel_block_sizes=(1, 64),
    num_speculative_tokens=(1, 3),
    cp_sizes=(1, 8),
    most_groups=1,
)
KIMI_K3 = Preset(
    name="kimi-k3",
    block_sizes=(784,),
    kernel_block_sizes=(1, 16, 784),
    num_speculative_tokens=(2, 0),
    cp_sizes=(1, 4),
    most_groups=20,
)
PRESETS = (SMALL, GENERAL, DEEPSEEK_V3, KIMI_K3)
"""Tables of the last two have the widths that these models' block sizes and numbers of KV-cache groups give."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What batches a contract needs: between so many KV-cache groups, context parallelism or not, windows or not.

    ``walked``: what the enumerator varies besides the requests, of ``slots``, ``tails``, ``padding``, ``blocks`` (their
    sizes), ``cp`` and ``windows``. All else is the simplest in small scopes.
    """

    groups: tuple[int, int] = (1, 1)
    cp: bool = False
    windows: bool = False
    kinds: int = 3
    walked: frozenset[str] = frozenset()

    def small(self, aspect: str) -> int:
        """How many of the simplest choices the enumerator walks."""
        return 2 if aspect in self.walked else 1


def draw_batch(source: Source, wanted: Wanted) -> Batch:
    """A step."""
    preset = source.choose(PRESETS, weights=(4, 6, 1, 1), small=1)
    num_spec = source.choose(preset.num_speculative_tokens, small=1)
    cp_size = _mostly_first(source, preset.cp_sizes, wanted.small("cp")) if wanted.cp else 1
    drawn = draw_groups(source, preset, cp_size, wanted)
    near = sorted({size for group in drawn for size in (group.block_size, group.kernel_block_size)})
    requests = source.items(request_drawer(near, num_spec, wanted.kinds), max_count=130)
    waits = source.choose((False, True), weights=(2, 1), small=1)
    waiting = [request_drawer(near, num_spec, 1)(source)] if waits else []
    rows = len(requests) + len(waiting) + source.integer(0, 3, small=1)
    ids = draw_ids(source, drawn, wanted.small("tails"))
    requests, waiting = _bounded(source, requests, waiting, drawn, rows, cp_size)
    if source.choose((False, True), weights=(5, 1), small=1):
        source.event("order: as scheduled")
    else:
        requests.sort(key=lambda request: REGIONS[request.kind])
    requests, waiting = _with_slots(source, requests, waiting, rows, wanted.small("slots"))
    batch = Batch(
        requests=tuple(requests),
        waiting=tuple(waiting),
        num_reqs_padded=len(requests) + source.integer(0, 40, near=(0, 1, 2), small=wanted.small("padding")),
        num_tokens_padded=sum(r.query for r in requests) + source.integer(0, 70, near=(0, 1), small=1),
        max_num_reqs=rows,
        groups=_with_columns(source, drawn, requests + waiting, cp_size),
        ids=ids,
        cp_size=cp_size,
        cp_rank=source.integer(0, cp_size - 1, near=(cp_size - 1,)) if cp_size > 1 else 0,
        cp_interleave=_interleave(source, drawn, cp_size),
    )
    note_batch(source, preset, batch)
    return batch


def _mostly_first(source: Source, options: Sequence[T], small: int) -> T:
    return source.choose(options, weights=(3,) + (1,) * (len(options) - 1), small=small)


def draw_groups(source: Source, preset: Preset, cp_size: int, wanted: Wanted) -> list[Group]:
    """Groups of up to three kinds in turn, as hybrid models have them: a case with fewer is one choice away."""
    count = draw_group_count(source, preset, wanted)
    kinds = source.integer(1, min(count, MOST_KINDS), near=(2,), small=1) if count else 0
    made = [draw_group(source, preset, cp_size, wanted) for _ in range(kinds)]
    return [made[number % kinds] for number in range(count)]


def draw_group_count(source: Source, preset: Preset, wanted: Wanted) -> int:
    """How many groups a step has, up to what the preset has room for."""
    low, high = wanted.groups
    if low == 0 and source.choose((False, True), weights=(20, 1), small=1):
        return 0
    low = max(low, 1)
    return source.integer(low, max(low, min(high, preset.most_groups)), near=(1, 2, preset.most_groups), small=1)


def draw_group(source: Source, preset: Preset, cp_size: int, wanted: Wanted) -> Group:
    """One group; its table's width comes when the requests are known."""
    block_size = source.choose(preset.block_sizes, small=wanted.small("blocks"))
    divisors = tuple(size for size in preset.kernel_block_sizes if block_size % size == 0 and size != block_size)
    kernel = source.choose((block_size, *divisors), small=1)
    reach = _mostly_first(source, preset.window_reaches, wanted.small("windows")) if wanted.windows else 0
    return Group(block_size=block_size, kernel_block_size=kernel, columns=0, window_reach=reach, sharded=cp_size > 1)


def request_drawer(near: Sequence[int], num_spec: int, small: int) -> Callable[[Source], Request]:
    """What draws one request: contexts and chunks around whole blocks of the groups."""
    around = sorted({max(n * size + d, 0) for size in near for n in (1, 2, 5) for d in (-1, 0, 1)})

    def draw(source: Source) -> Request:
        kind = source.choose(KINDS, weights=(6, 4, 2, 3, 3), small=small)
        least, small_context = (0, 1) if kind == "idle" else (1, None)
        computed = 0 if kind == "prefill" else source.integer(least, LONGEST, near=around, small=small_context)
        if kind == "idle":
            return Request(kind=kind, computed=computed, query=0)
        if kind == "decode":
            return Request(kind=kind, computed=computed, query=1)
        if kind == "speculative":
            drafts = source.integer(0, num_spec, near=(num_spec,))
            rejected = source.integer(0, num_spec, near=(num_spec,))
            return Request(kind=kind, computed=computed, query=1 + drafts, drafts=drafts, rejected=rejected)
        return Request(kind=kind, computed=computed, query=source.integer(1, LONGEST, near=[n for n in around if n]))

    return draw


def draw_ids(source: Source, groups: Sequence[Group], small: int) -> Ids:
    """Where the allocator's ids begin and how it hands them out. Products with a block's size pass 2^31 here."""
    sizes = [size for group in groups for size in (group.block_size, group.kernel_block_size)] or [1]
    most = (1 << 31) - 1 - max(MOST_IDS)
    edges = (1, 0, (1 << 16) - 2, 1 << 27, *(max((1 << 31) // size - 2, 1) for size in sizes))
    first = source.choose((1, None), weights=(2, 3), small=1)
    if first is None:
        first = source.integer(0, most, near=[min(edge, most) for edge in edges])
    order = source.choose(ORDERS, small=1)
    seed = source.pick(1 << 16) if order == "shuffled" else 0
    tails = source.choose(TAILS, weights=(2, 5, 2), small=small)
    return Ids(first=first, order=order, seed=seed, tails=tails)


def _bounded(
    source: Source,
    requests: list[Request],
    waiting: list[Request],
    groups: Sequence[Group],
    rows: int,
    cp_size: int,
) -> tuple[list[Request], list[Request]]:
    """The requests with fewer tokens, so that all fit the bounds of a case."""
    tokens = source.choose(MOST_TOKENS, weights=(9, 1), small=1)
    blocks = source.choose(MOST_IDS, weights=(9, 1), small=1) // max(rows * len(groups), 1)
    held = [group.block_size * (cp_size if group.sharded else 1) for group in groups]
    longest = max(max(blocks - 2, 1) * min(held, default=LONGEST), 1)
    bounded = []
    for request in (*requests, *waiting):
        query = min(request.query, tokens, longest)
        computed = min(request.computed, longest - query)
        bounded.append(replace(request, query=query, computed=computed, drafts=min(request.drafts, query - 1)))
        tokens -= query if len(bounded) <= len(requests) else 0
    return bounded[: len(requests)], bounded[len(requests) :]


def _with_slots(
    source: Source, requests: Sequence[Request], waiting: Sequence[Request], rows: int, small: int
) -> tuple[list[Request], list[Request]]:
    """The requests in rows of the persistent tables: one after the other, from the end, or far apart."""
    order = source.choose(("in order", "from the end", "scattered"), weights=(2, 2, 3), small=small)
    slots = list(range(rows))
    if order == "from the end":
        slots.reverse()
    elif order == "scattered":
        step = next((step for step in (7, 5, 3) if rows % step), 1)
        slots = [place * step % rows for place in range(rows)]
    placed = [replace(request, slot=slot) for request, slot in zip((*requests, *waiting), slots, strict=False)]
    return placed[: len(requests)], placed[len(requests) :]


def _with_columns(
    source: Source, groups: Sequence[Group], requests: Sequence[Request], cp_size: int
) -> tuple[Group, ...]:
    """Tables as wide as the longest request needs, or wider."""
    wide = []
    for group in groups:
        needed = max((group.blocks(r.seq_len + r.rejected, cp_size) for r in requests), default=0)
        wide.append(replace(group, columns=needed + source.integer(0, 9, near=(0, 1), small=1)))
    return tuple(wide)


def _interleave(source: Source, groups: Sequence[Group], cp_size: int) -> int:
    """Tokens that lie side by side on a rank: a divisor of every sharded block."""
    if cp_size == 1:
        return 1
    sizes = [group.block_size for group in groups if group.sharded]
    return source.choose([n for n in (1, 2, 3, 4, 8, 16, 7, 24, 49) if all(size % n == 0 for size in sizes)], small=1)


def note_batch(source: Source, preset: Preset, batch: Batch) -> None:
    """Events for what is special about a batch."""
    source.event(f"preset: {preset.name}")
    kinds = {request.kind for request in batch.requests}
    source.event("batch: " + (" + ".join(kind for kind in KINDS if kind in kinds) or "no request"))
    if len(batch.requests) in COUNTS[3:]:
        source.event("requests: around a power of two")
    for label, there in (
        ("padding rows", batch.num_reqs_padded > len(batch.requests)),
        ("only idle rows", kinds == {"idle"}),
        ("rejected drafts", any(request.rejected for request in batch.requests)),
        ("waiting requests", bool(batch.waiting)),
        ("context parallelism", batch.cp_size > 1),
        ("ids past 2^31 / block size", any(batch.ids.first * g.block_size > 1 << 31 for g in batch.groups)),
    ):
        if there:
            source.event(label)
    source.event(f"unused columns: {batch.ids.tails}")
