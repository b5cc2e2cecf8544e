"""The emulated chips against Triton's interpreter: launches a second of processor time, side by side in one run.

Each arm is a process of its own, with all checks that its backend makes. The same kernels get the same inputs, and arms
take turns, so that what slows the machine down slows both.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Goal
from oracles.backends import by_name

ROOT = Path(__file__).parents[1]
BASELINE = "interpreter"
LEAST_RATIO = 0.6
LEAST_MEDIAN = 1.2


@dataclass(frozen=True)
class Measured:
    """One kernel: launches a second of each arm, or why an arm has none, and instructions a launch."""

    kernel: str
    rates: dict[str, float]
    left_out: dict[str, str]
    first: dict[str, float]
    instructions: float

    def ratio(self, architecture: str) -> float | None:
        """How many times faster than the interpreter the emulator is."""
        rates = self.rates
        return rates[architecture] / rates[BASELINE] if {architecture, BASELINE} <= set(rates) else None


class Arm:
    """A process that answers lines."""

    def __init__(self, backend: str, vllm: str, inputs: int) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **by_name(backend).environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.name = backend
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.emulator_arm", backend, vllm, str(inputs)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, line: str) -> Any:
        """Its answer; refused with ``ClickException``: an arm that has ended, which has said why."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise click.ClickException(f"{self.name}: its process ended")
        return json.loads(answer)

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()


def measured(kernel: str, arms: list[Arm], rounds: int) -> Measured:
    """Rounds of all arms in turn. The first one compiles and translates, and is told apart.

    Refused with ``ClickException``: arms whose results differ.
    """
    answers = {arm.name: [arm.ask(kernel)] for arm in arms}
    left_out = {name: each[0]["unsupported"] for name, each in answers.items() if "unsupported" in each[0]}
    running = [arm for arm in arms if arm.name not in left_out]
    for _ in range(rounds):
        for arm in running:
            answers[arm.name].append(arm.ask(kernel))
    if len({answer["checksum"] for arm in running for answer in answers[arm.name]}) > 1:
        raise click.ClickException(f"{kernel}: the arms' results differ, so their times mean nothing")
    rates, first, instructions = {}, {}, 0.0
    for arm in running:
        cold, *warm = answers[arm.name]
        rates[arm.name] = cold["launches"] / median(answer["seconds"] for answer in warm)
        first[arm.name] = cold["seconds"]
        instructions = max(instructions, cold["instructions"] / cold["launches"])
    return Measured(kernel, rates, left_out, first, instructions)


def goals(found: list[Measured], architecture: str) -> list[Goal]:
    """What this project promises of its emulator's speed."""
    ratios = {each.kernel: ratio for each in found if (ratio := each.ratio(architecture)) is not None}
    slow = [f"{kernel}: {ratio:.2f} times" for kernel, ratio in ratios.items() if ratio < LEAST_RATIO]
    middle = median(ratios.values()) if ratios else 0.0
    few = [f"{middle:.2f} times"] if ratios and middle < LEAST_MEDIAN else []
    return [
        Goal(f"at least {LEAST_RATIO} times the interpreter's launches a second, every kernel", len(ratios), slow),
        Goal(f"at least {LEAST_MEDIAN} times in the median", len(ratios), few),
    ]


def table(found: list[Measured], architecture: str) -> Table:
    """One line a kernel."""
    shown = Table(title="launches a second of processor time, all checks on")
    shown.add_column("kernel", no_wrap=True)
    for column in ("instructions a launch", BASELINE, architecture, "ratio", "first round, s"):
        shown.add_column(column, justify="right")
    for each in found:
        cells = [f"{each.rates[name]:,.1f}" if name in each.rates else "-" for name in (BASELINE, architecture)]
        ratio, first = each.ratio(architecture), each.first.get(architecture)
        shown.add_row(
            each.kernel, f"{each.instructions:,.0f}", *cells,
            "-" if ratio is None else f"{ratio:.2f}", "-" if first is None else f"{first:.2f}",
        )  # fmt: skip
    ratios = [ratio for each in found if (ratio := each.ratio(architecture)) is not None]
    if ratios:
        shown.add_section()
        shown.add_row("median", "", "", "", f"{median(ratios):.2f}", "")
    return shown


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--vllm", metavar="SPEC", default="", help="vLLM's sources, whose kernels run too: vllm:FILE.whl.")
@click.option("--architecture", type=click.Choice(["gfx942", "gfx950"]), default="gfx942", show_default=True)
@click.option("--inputs", type=click.IntRange(1), default=12, show_default=True, help="Inputs of each kernel.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--kernel", "only", multiple=True, metavar="TEXT", help="Only kernels with this in their names.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all that was measured to this file.")
def main(vllm: str, architecture: str, inputs: int, rounds: int, only: tuple[str, ...], json_file: Path | None) -> None:
    """Print the table. Exits with 1 where a goal is missed, with 3 where nothing could be compared."""
    for name in (BASELINE, architecture):
        reason = by_name(name).unavailable()
        if reason is not None:
            click.echo(f"{name}: {reason}")
            sys.exit(3)
    arms = [Arm(name, vllm, inputs) for name in (BASELINE, architecture)]
    try:
        kernels = [name for name in arms[0].ask("names") if not only or any(part in name for part in only)]
        if arms[1].ask("names") and not kernels:
            raise click.UsageError(f"--kernel: no kernel's name contains {' or '.join(only)}")
        found = [measured(kernel, arms, rounds) for kernel in kernels]
    finally:
        for arm in arms:
            arm.close()
    Console().print(table(found, architecture))
    for each in found:
        for name, reason in each.left_out.items():
            click.echo(f"{each.kernel}: not run by {name}: {reason}")
    judged = goals(found, architecture)
    for goal in judged:
        click.echo(f"{goal.state}: {goal.rule}" + "".join(f"\n  {miss}" for miss in goal.misses))
    if json_file is not None:
        about = {"architecture": architecture, "inputs": inputs, "rounds": rounds, "python": platform.python_version()}
        points = [{**asdict(each), "ratio": each.ratio(architecture)} for each in found]
        results = [{**asdict(goal), "state": goal.state} for goal in judged]
        json_file.write_text(json.dumps({**about, "kernels": points, "goals": results}, indent=1) + "\n")
    sys.exit(3 if not judged[0].judged else int(any(goal.misses for goal in judged)))


if __name__ == "__main__":
    main()
