"""Contract 5: what happens in a life, in order. Whoever judges it and whoever specifies it walks the same events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oracles.arrays import Array, Inputs
from reference.metadata_records import Batch, LinearConfig, LinearSpec, MlaConfig, MlaSpec

LINEAR, MLA = "linear", "mla"

PER_STEP = (
    "query_start_loc",
    "query_start_loc_cpu",
    "seq_lens",
    "seq_lens_cpu",
    "is_prefilling",
    "num_accepted_tokens",
    "num_decode_draft_tokens_cpu",
    "num_actual_tokens",
    "full_graph",
)
"""Inputs that hold one value a step: the fields of its batch."""

Arguments = Mapping[str, Any]
"""The inputs of a life, as arrays or as tensors."""


@dataclass(frozen=True)
class Event:
    """One look at one group's metadata.

    ``when``: "made" as it was made, "kept" after all groups had theirs, "replayed" what a graph read that was captured
    in the step ``captured``.
    """

    step: int
    group: int
    when: str
    captured: int = -1

    def told(self, how: str = "") -> str:
        """In words; ``how`` says in which way metadata was made."""
        captured = f", captured in step {self.captured}" if self.when == "replayed" else ""
        return f"step {self.step}, group {self.group}, {how or self.when}{captured}"


def spec_of(group: tuple[Any, ...]) -> LinearSpec | MlaSpec:
    """The spec of a group."""
    if group[0] == LINEAR:
        names = ("block_size", "num_speculative_blocks", "mamba_cache_mode", "dtype", "page_size_bytes")
        return LinearSpec(**dict(zip(names, group[1:], strict=True)))
    names = ("block_size", "num_heads", "kv_cache_dtype", "dtype", "causal")
    return MlaSpec(**dict(zip(names, group[1:], strict=True)))


def config_of(arguments: Arguments, family: str) -> LinearConfig | MlaConfig:
    """The configuration of a family's builders."""
    sizes = {name: arguments[name] for name in ("max_num_reqs", "max_graph_rows")}
    if family == LINEAR:
        return LinearConfig(num_speculative_tokens=arguments["num_speculative_tokens"], **sizes)
    widths = {name: arguments[name] for name in ("max_model_len", "varlen_width")}
    return MlaConfig(**sizes, **widths)


def groups_of(arguments: Arguments, family: str, step: int) -> list[int]:
    """The groups of a family that there are in a step: the last group of all may join later."""
    groups = arguments["groups"]
    there = [number for number, group in enumerate(groups) if group[0] == family]
    last = len(groups) - 1
    return [number for number in there if number != last or step >= arguments["joins"] or there[0] == last]


def batch_of(arguments: Arguments, step: int) -> Batch:
    """The batch of a step, made of whatever the arguments hold."""
    return Batch(step=step, **{name: arguments[name][step] for name in PER_STEP})


def table_of(arguments: Arguments, step: int, group: int) -> tuple[Any, Any]:
    """Block table and slots of a group in a step."""
    place = step * len(arguments["groups"]) + group
    return arguments["block_tables"][place], arguments["slot_mappings"][place]


def plain(value: Any) -> Any:
    """Arrays as NumPy has them."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.data if isinstance(value, Array) else value


def plain_inputs(inputs: Inputs) -> dict[str, Any]:
    """Inputs with their arrays as NumPy has them."""
    return {name: plain(value) for name, value in inputs.items()}


@dataclass(frozen=True)
class Given:
    """What the builder of one group is given in a step."""

    step: int
    group: int
    batch: Batch
    spec: LinearSpec | MlaSpec
    config: LinearConfig | MlaConfig
    block_table: Any
    slot_mapping: Any


def givens(arguments: Arguments) -> Iterator[Given]:
    """What each builder is given, of all steps, families and groups."""
    for step in range(len(arguments["steps"])):
        batch = batch_of(arguments, step)
        for family in families(arguments):
            config = config_of(arguments, family)
            for group in groups_of(arguments, family, step):
                spec = spec_of(arguments["groups"][group])
                yield Given(step, group, batch, spec, config, *table_of(arguments, step, group))


def is_alone(arguments: Arguments, group: int) -> bool:
    """Whether a group's builder has buffers that it shares with nobody."""
    joined = group == len(arguments["groups"]) - 1 and arguments["joins"]
    return bool(not arguments["shared"] or joined)


def families(arguments: Arguments) -> list[str]:
    """The families of a life, in the order of their first groups."""
    return list(dict.fromkeys(group[0] for group in arguments["groups"]))


def graph_of(arguments: Arguments, step: int) -> tuple[Any, ...]:
    """What one captured graph serves: batches of so many rows and tokens, padding included, of one kind of request."""
    drafts = arguments["num_decode_draft_tokens_cpu"][step]
    return int(arguments["seq_lens_cpu"][step].shape[0]), arguments["num_actual_tokens"][step], drafts is not None


def common(value: Any, now: Any, captured: Any) -> Any:
    """What a graph read and the step's metadata have in common, of the shapes of both.

    A list of tokens may be longer or shorter than at the capture. What lies behind a shorter one is not promised.
    """
    if now is None or captured is None:
        return value
    return value[: min(now[0], captured[0])] if len(now) == len(captured) == 1 else value


def events(arguments: Arguments, staged: Mapping[tuple[int, int], bool]) -> Iterator[Event]:
    """All events of a life; ``staged`` says for each step and group whether its metadata lies in a graph's buffers."""
    captured: dict[tuple[Any, ...], dict[int, int]] = {}
    for step in range(len(arguments["steps"])):
        there = [group for family in families(arguments) for group in groups_of(arguments, family, step)]
        yield from (Event(step, group, "made") for group in there)
        yield from (Event(step, group, "kept") for group in there)
        graph = captured.setdefault(graph_of(arguments, step), {})
        for group in there:
            if staged[step, group]:
                if group in graph:
                    yield Event(step, group, "replayed", graph[group])
                graph.setdefault(group, step)
