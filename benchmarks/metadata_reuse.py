"""Metadata of many KV-cache groups on a GPU: builds, updates one by one, one update for all, and vLLM's builder."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.chunk_metadata import NOTHING_JUDGED
from benchmarks.empty_launch import empty_launch
from benchmarks.intervals import Interval, interval
from benchmarks.reuse_steps import Setting, Step
from oracles.environment import environment

BUILDS, UPDATES, AT_ONCE = "N builds", "1 build + updates", "1 build + one launch"
THEIR_BUILDS, THEIR_UPDATES = "vLLM: N builds", "vLLM: 1 build + updates"
PAGES, FLOOR = "MLA pages alone", "empty launch"

CONTEXTS = (1_024, 16_384, 262_144)
SETTINGS = (
    *(Setting(14, 0, context=context) for context in CONTEXTS),
    *(Setting(0, 6, context=context) for context in CONTEXTS),
    *(Setting(14, 6, context=context) for context in CONTEXTS),
    *(Setting(groups, 0) for groups in (2, 4, 8, 16, 32, 64)),
    *(Setting(14, 0, requests=requests) for requests in (1, 32, 128, 512)),
)

Run = Callable[[int], Any]
"""One engine step; its number changes from call to call."""

GOALS = {
    "one build no slower than vLLM's": (BUILDS, THEIR_BUILDS, 1.0, Setting(1, 0)),
    "one build + updates at least 3.5 times faster than vLLM's builds": (UPDATES, THEIR_BUILDS, 3.5, Setting(14, 0)),
    "one build + one launch at least 10 times faster": (AT_ONCE, THEIR_BUILDS, 10.0, Setting(14, 0)),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--vllm", metavar="SPEC", help="vLLM's sources, read and not installed, such as vllm:FILE.whl.")
@click.option("--rounds", type=click.IntRange(5), default=60, show_default=True, help="Rounds; one step of each.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures there.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path, dir_okay=False), help="Draw them as a PNG there.")
@click.option("--quick", is_flag=True, help="Only the settings that goals are about.")
def main(vllm: str | None, rounds: int, json_file: Path | None, plot_file: Path | None, quick: bool) -> None:
    """Measure what a decode step's metadata costs, all contenders in turn in one run.

    Each figure is the time of one engine step in microseconds: from the first call until the last launch is enqueued,
    and until the device is done; the median of the rounds and its 95 % confidence interval. The metadata of every
    contender of this project is compared with plain builds first.

    Exit codes: 0 all goals met; 1 a goal is missed; 2 usage; 3 no GPU, or no goal could be judged (without --vllm).

    \b
    Example: python -m benchmarks.metadata_reuse --vllm vllm:FILE.whl --json out.json --plot out.png
    """
    if not torch.cuda.is_available():
        click.echo(f"torch {torch.__version__} sees no GPU: nothing can be measured here", err=True)
        sys.exit(NOTHING_JUDGED)
    wanted = list(dict.fromkeys((*(goal[-1] for goal in GOALS.values()), *(() if quick else SETTINGS))))
    found: dict[Setting, dict[str, tuple[Interval, Interval]]] = {}
    for setting in wanted:
        found[setting] = _measured(_contenders(Step(setting, torch.device("cuda")), vllm), rounds)
        click.echo(setting.name, err=True)
    misses, judged = _goals(found)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(_table(found))
    for line in (*judged, *misses):
        console.print(line)
    about = {"device": torch.cuda.get_device_name(), "vllm": vllm, **environment()}
    if json_file:
        json_file.write_text(json.dumps({**about, "settings": _plain(found), "misses": misses}, indent=1) + "\n")
    if plot_file:
        from benchmarks.reuse_plot import draw

        draw(plot_file, found, about["device"])
    sys.exit(1 if misses else 0 if judged else NOTHING_JUDGED)


def _contenders(step: Step, vllm: str | None) -> dict[str, Run]:
    """What is timed for a setting."""
    from optimized.metadata_reuse import LinearMetadataBuilder, MlaMetadataBuilder

    setting = step.setting
    parts = [
        _Groups(step, LinearMetadataBuilder, step.linear(), range(setting.linear)),
        _Groups(step, MlaMetadataBuilder, step.mla(), range(setting.linear, setting.linear + setting.mla)),
    ]
    parts = [part for part in parts if part.tables]
    runs: dict[str, Run] = {
        BUILDS: lambda number: [part.builds(number) for part in parts],
        UPDATES: lambda number: [part.updates(number) for part in parts],
        AT_ONCE: lambda number: [part.at_once(number) for part in parts],
    }
    for part in parts:
        part.compare()
    if vllm and setting.linear and not setting.mla:
        from benchmarks.reuse_upstream import upstream

        runs |= dict(zip((THEIR_BUILDS, THEIR_UPDATES), upstream(vllm, step), strict=True))
    if setting.mla and not setting.linear:
        runs[PAGES] = parts[0].pages
    runs[FLOOR] = lambda number: empty_launch(step.tables[0])
    return runs


class _Groups:
    """Builders of one family, their graph buffers shared."""

    def __init__(self, step: Step, builder: type, of: tuple[Any, Any], groups: range) -> None:
        self.step = step
        self.tables, self.slots = [step.tables[group] for group in groups], [step.slots[group] for group in groups]
        self.builders = [builder(*of, self.tables[0].device) for _ in groups] if groups else []
        self.kind = builder
        if self.builders:
            builder.share_reusable_metadata_buffers(self.builders)  # type: ignore[attr-defined]

    def builds(self, number: int) -> list[Any]:
        """Every group builds."""
        batch = self.step.batch(number)
        given = zip(self.builders, self.tables, self.slots, strict=True)
        return [builder.build(batch, table, slots) for builder, table, slots in given]

    def updates(self, number: int) -> list[Any]:
        """The first builds, the others ask and update, one by one."""
        batch = self.step.batch(number)
        first = self.builders[0].build(batch, self.tables[0], self.slots[0])
        made = [first]
        for builder, table, slots in zip(self.builders[1:], self.tables[1:], self.slots[1:], strict=True):
            assert builder.can_reuse_metadata(first, batch)
            made.append(builder.update_block_table(first, table, slots))
        return made

    def at_once(self, number: int) -> list[Any]:
        """The first builds, then one call updates all others."""
        batch = self.step.batch(number)
        first = self.builders[0].build(batch, self.tables[0], self.slots[0])
        assert all(builder.can_reuse_metadata(first, batch) for builder in self.builders[1:2])
        rest = self.kind.update_block_tables(first, self.builders[1:], self.tables[1:], self.slots[1:])  # type: ignore[attr-defined]
        return [first, *rest]

    def pages(self, number: int) -> Any:
        """The page expansion of one group alone."""
        from optimized.sparse_indptr import dense_page_indices

        lengths, size = self.step.values["seq_lens"], self.builders[0].spec.block_size
        if number == 0:
            self.buffer = torch.empty(self.tables[0].numel() * size, dtype=torch.int32, device=self.tables[0].device)
        return dense_page_indices(
            block_table=self.tables[0], seq_lens=lengths, kernel_block_size=size, paged_kv_indices=self.buffer
        )

    def compare(self) -> None:
        """Updates give what builds give."""
        wanted = [_values(metadata) for metadata in self.builds(0)]
        for made in (self.updates, self.at_once):
            if [_values(metadata) for metadata in made(1)] != wanted:
                raise click.ClickException(f"{self.kind.__name__}: an update differs from a build")


def _values(metadata: Any) -> dict[str, Any]:
    names = (*metadata.BATCH_FIELDS, *metadata.TABLE_FIELDS)
    values = {name: getattr(metadata, name) for name in names}
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def _measured(runs: Mapping[str, Run], rounds: int) -> dict[str, tuple[Interval, Interval]]:
    """Microseconds a step: until enqueued, and until the device is done. Contenders take turns."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for run in runs.values():
        for number in range(3):
            run(number)
    gc.collect()
    gc.disable()
    clock = time.perf_counter
    try:
        for number in range(3, 3 + rounds):
            for name, run in runs.items():
                torch.cuda.synchronize()
                begin = clock()
                run(number)
                enqueued = clock()
                torch.cuda.synchronize()
                times[name][0].append((enqueued - begin) * 1e6)
                times[name][1].append((clock() - begin) * 1e6)
    finally:
        gc.enable()
    return {name: (interval(host), interval(total)) for name, (host, total) in times.items()}


def _goals(found: Mapping[Setting, Mapping[str, tuple[Interval, Interval]]]) -> tuple[list[str], list[str]]:
    misses, judged = [], []
    for rule, (ours, theirs, least, setting) in GOALS.items():
        times = found.get(setting, {})
        if theirs not in times:
            continue
        ratio = times[theirs][1].middle / times[ours][1].middle
        line = f"{rule}: {ratio:.2f} times ({times[theirs][1].middle:.1f} / {times[ours][1].middle:.1f} us)"
        (judged if ratio >= least else misses).append(("met: " if ratio >= least else "missed: ") + line)
    return misses, judged


def _table(found: Mapping[Setting, Mapping[str, tuple[Interval, Interval]]]) -> Table:
    names = list(dict.fromkeys(name for times in found.values() for name in times))
    table = Table(title="microseconds a step until the device is done (until enqueued), medians")
    table.add_column("step")
    for name in names:
        table.add_column(name, justify="right")
    for setting, times in found.items():
        cells = [f"{times[n][1].middle:.1f} ({times[n][0].middle:.1f})" if n in times else "" for n in names]
        table.add_row(setting.name, *cells)
    return table


def _plain(found: Mapping[Setting, Mapping[str, tuple[Interval, Interval]]]) -> list[dict[str, Any]]:
    return [
        {
            "linear": setting.linear,
            "mla": setting.mla,
            "requests": setting.requests,
            "context": setting.context,
            "times": {name: {"host": vars(host), "total": vars(total)} for name, (host, total) in times.items()},
        }
        for setting, times in found.items()
    ]


if __name__ == "__main__":
    main()
