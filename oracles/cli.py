"""The ``oracles`` command."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from oracles.backends import all_backends
from oracles.case import Case
from oracles.contracts import all_contracts
from oracles.explain import explanation
from oracles.isa_command import isa
from oracles.origins import usable_spec
from oracles.providers import ProviderError, resolve
from oracles.providers.places import identity
from oracles.replaying import judge_case
from oracles.report import document, text
from oracles.results import PROFILES, Result, Settings
from oracles.run import Execution, Plan, default_backend, interrupted, plan
from oracles.state import complaint
from oracles.usage import FINDINGS, INTERRUPTED, NOTHING_JUDGED, PASSED, Command, Group, load_case

CORPUS = Path(__file__).parents[1] / "corpus"
"""Kept cases: public bugs and past findings. They come with a checkout, not with an installed package."""

EXIT_CODES = """
\b
Exit codes:
  0  everything was judged and passed
  1  findings (or, with --require, something asked for was missing)
  2  usage: unknown name, unreadable file, malformed wheel
  3  nothing could be judged
  130  interrupted: what was found so far was reported
"""


class _Seconds(click.FloatRange):
    """A number of seconds that a clock can reach."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds(min=0.1)


class _StateFolder(click.Path):
    """A folder that can be written to, or made."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        folder = Path(str(super().convert(value, param, ctx)))
        reason = complaint(folder)
        if reason is not None:
            self.fail(reason, param, ctx)
        return folder


def _implementation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--backend",
        "backends",
        multiple=True,
        metavar="NAME",
        help="Where to run; may be repeated. `oracles list` says what each can see.",
    )(function)
    return click.option(
        "--impl",
        "specs",
        multiple=True,
        metavar="SPEC",
        help="What to judge; may be repeated: optimized (this project's), vllm or aiter (installed), vllm:WHEEL, "
        "vllm:DIR, vllm:git+REPO@REV (aiter likewise), or FILE.py:NAME, a callable that takes the contract's inputs "
        "by keyword and returns its outputs.",
    )(function)


def _state_option(kind: type[click.Path] = _StateFolder) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--state",
        type=kind(file_okay=False, path_type=Path),
        default=Path(".oracles"),
        envvar="ORACLES_STATE",
        show_default=True,
        show_envvar=True,
        help="Folder for findings and for what must survive a kill.",
    )


_time_limit_option = click.option(
    "--time-limit",
    type=SECONDS,
    help="A case that takes longer is a hang. Default: "
    f"{', '.join(f'{name} {backend.time_limit:g}' for name, backend in all_backends().items())}.",
)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(package_name="metadata-oracles")
def main() -> None:
    """Test oracles for the metadata that LLM servers compute on AMD GPUs.

    A contract pairs a slow reference with real implementations. `oracles check` tries an implementation on hundreds of
    inputs and names every difference, with its smallest case.
    """


main.add_command(isa)


@main.command("list", cls=Command)
def list_command() -> None:
    """Contracts, implementations and backends here, and why one is unavailable.

    The other commands take a contract's name as CONTRACT, a spec with --impl, and a backend's name with --backend.
    WHEEL stands for a wheel, a zip, a directory or git+REPO@REV; without `:WHEEL`, the installed package is meant.
    """
    console = Console()
    contracts, implementations, backends = [], [], []
    for contract in all_contracts():
        contracts.append((contract.full_name, contract.section, contract.kind, contract.summary))
        for found in resolve("optimized", [contract], named=True):
            implementations.append((contract.full_name, found.spec, found.name, default_backend(found.runs).name))
        for binding in contract.bindings:
            spec, default = f"{binding.project}:WHEEL", default_backend(binding.runs).name
            implementations.append((contract.full_name, spec, binding.name, default))
    for name, backend in all_backends().items():
        reason = backend.unavailable()
        sees = "\n".join(f"{what}: {how}" for what, how in backend.sees.items())
        backends.append((name, "available" if reason is None else f"unavailable: {reason}", sees))
    text.listing(console, "contracts", ("contract", "section", "kind", "what it computes"), contracts)
    text.listing(console, "implementations", ("contract", "spec", "callable", "default backend"), implementations)
    text.listing(console, "backends", ("backend", "state", "what this arm sees"), backends)


@main.command(cls=Command, epilog=EXIT_CODES)
@click.argument("contracts", nargs=-1, metavar="[CONTRACT|FAMILY]...")
@_implementation_options
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="ci",
    show_default=True,
    help=f"How much to try; sampled cases: {', '.join(f'{name} {p.examples:,}' for name, p in PROFILES.items())}.",
)
@click.option(
    "--examples", metavar="N", type=click.IntRange(min=0), help="Sampled cases, instead of the profile's number."
)
@click.option(
    "--seed",
    metavar="S",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of the sampled cases.",
)
@_time_limit_option
@click.option(
    "--jobs",
    "-j",
    metavar="N",
    type=click.IntRange(min=1),
    help="Implementations examined at a time. Default: one a core.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write results as JSON.")
@click.option("--no-known", is_flag=True, help="Report known findings like new ones.")
@click.option("--require", is_flag=True, help="Fail if anything asked for is missing or could not be judged.")
@_state_option()
def check(
    contracts: tuple[str, ...],
    specs: tuple[str, ...],
    backends: tuple[str, ...],
    profile: str,
    examples: int | None,
    seed: int,
    time_limit: float | None,
    jobs: int | None,
    json_path: Path | None,
    no_known: bool,
    require: bool,
    state: Path,
) -> None:
    """Judge implementations against their contracts.

    The small scope of a contract is walked completely, then inputs are sampled; what fails is reduced to its smallest
    case and written to a file that `oracles replay` and `oracles explain` take.

    `oracles list` has the names. A FAMILY stands for its contracts; without a name all contracts are meant. Without
    --impl, this project's implementations are judged; without --backend, Triton code on this machine's device or, where
    there is none, as gfx942 machine code, and other code on the host.

    \b
    Examples:
      oracles check                                   all contracts, this project's kernels
      oracles check chunk_metadata.mamba_chunk_layout --impl vllm
      oracles check chunk_metadata --impl vllm:vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
      oracles check chunk_metadata --impl mine.py:chunk_metadata --backend host --json out.json
    """  # noqa: D301  # click wants the control character, not the two letters
    _tell_interrupted(state)
    chosen = dataclasses.replace(
        PROFILES[profile], examples=PROFILES[profile].examples if examples is None else examples
    )
    if json_path is not None and not os.access(json_path.absolute().parent, os.W_OK):
        raise click.BadParameter(
            f"{json_path}: there is no such folder, or it cannot be written to", param_hint="--json"
        )
    planned = _said(plan(contracts, specs or ("optimized",), backends))
    corpus = CORPUS if CORPUS.is_dir() else None
    settings = Settings(chosen, seed=seed, state=state, time_limit=time_limit, known=not no_known, corpus=corpus)
    execution = Execution(planned, settings, jobs=jobs)
    code = _execute(execution, planned, json_path)
    sys.exit(code or exit_code(execution.results, require=require))


def exit_code(results: Sequence[Result], *, require: bool) -> int:
    """The exit code of finished results."""
    if any(result.findings or result.unexpected for result in results):
        return FINDINGS
    if any(result.broken for result in results):
        return NOTHING_JUDGED
    if require and any(not result.judged for result in results):
        return FINDINGS
    return PASSED if any(result.judged for result in results) else NOTHING_JUDGED


def _execute(execution: Execution, planned: Plan, json_path: Path | None) -> int:
    """Run, show progress on a terminal, report whatever there is; 0 unless interrupted."""
    errors = Console(stderr=True)
    code = 0
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=errors, disable=not errors.is_terminal, transient=True
    ) as bars:
        rows = {
            id(result): bars.add_task(escape(result.task.label), total=None, state=result.stage)
            for result in execution.results
            if not result.complete
        }

        said: dict[int, str] = {}

        def tell(result: Result) -> None:
            if not errors.is_terminal and said.get(id(result)) != result.stage:
                said[id(result)] = result.stage
                click.echo(f"{result.task.label}: {result.stage} after {result.judged} cases", err=True)
            state = f"{result.stage}, {result.judged:,} cases, {len(result.findings)} findings"
            bars.update(rows[id(result)], state=state)
            if result.complete:
                bars.update(rows[id(result)], total=1, completed=1)

        _hear_signals()
        try:
            execution.run(tell)
        except KeyboardInterrupt:
            code = INTERRUPTED
    if json_path is not None:
        document.write(json_path, execution.results)
    if code:
        errors.print("interrupted: what was found so far", style="yellow")
    text.show(Console(), execution.results)
    return code


def _hear_signals() -> None:
    """What CI sends to cancel a job, and a terminal that closes, end a run like Ctrl-C: with a report.

    Not a signal that whoever started the command wants ignored, as `nohup` does.
    """
    for number, handler in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, _hung_up)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _hung_up(number: int, frame: FrameType | None) -> None:
    """End like Ctrl-C. A terminal that is gone takes no report: nobody may fail who writes one."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(nowhere, stream)
    os.close(nowhere)
    raise KeyboardInterrupt


def _tell_interrupted(state: Path) -> None:
    for left in interrupted(state):
        who = f"{left.meta.name} ({left.meta.backend})"
        click.echo(f"an earlier run was killed while {who} ran a case; replay it: {left.replay}", err=True)
        if (state / "findings").is_dir():
            click.echo(f"findings that it had made are in {state / 'findings'}", err=True)


@main.command(cls=Command, epilog=EXIT_CODES)
@click.argument("case", type=click.Path(dir_okay=False, path_type=Path))
@_implementation_options
@_time_limit_option
@_state_option()
def replay(
    case: Path, specs: tuple[str, ...], backends: tuple[str, ...], time_limit: float | None, state: Path
) -> None:
    """Judge one case file again, and show what the callable prints.

    Without --impl and --backend, the implementation that the case was found with is judged where it was found, also
    from another folder. A path in --impl is meant from the current folder.

    \b
    Examples:
      oracles replay .oracles/findings/wrong_value-0123456789abcdef.json
      oracles replay .oracles/findings/wrong_value-0123456789abcdef.json --impl mended.py:chunk_metadata
    """  # noqa: D301  # click wants the control character, not the two letters
    loaded = load_case(case)
    planned = _said(_plan_for(loaded, case, specs, backends))
    settings = Settings(PROFILES["ci"], state=state, time_limit=time_limit)
    results = [*planned.missing, *(judge_case(task, case, loaded, settings) for task in planned.tasks)]
    text.show(Console(), results, most=None)  # who replays a case wants to see all that it shows
    sys.exit(exit_code(results, require=False))


@main.command(cls=Command)
@click.argument("case", type=click.Path(dir_okay=False, path_type=Path))
@_implementation_options
@_time_limit_option
@_state_option(click.Path)  # without an implementation, none is needed
def explain(
    case: Path, specs: tuple[str, ...], backends: tuple[str, ...], time_limit: float | None, state: Path
) -> None:
    """Show a case: its inputs, a drawing, the first difference, and got against expected around it.

    Without --impl and --backend, the implementation that the case was found with is called where it was found. The
    exit code is 0 once the case is shown, whatever its verdict.
    """
    loaded = load_case(case)
    planned, gone = Plan([], []), None
    try:
        if specs or "implementation" in loaded.origin:
            planned = _said(_plan_for(loaded, case, specs, backends))
    except ProviderError as error:
        if specs:
            raise
        gone = f"the implementation that it was found with cannot be shown: {error}"
    reason = complaint(state) if planned.tasks else None
    if reason is not None:
        raise click.BadParameter(reason, param_hint="'--state'")
    shown = explanation(loaded, case, planned, Settings(PROFILES["ci"], state=state, time_limit=time_limit))
    Console().print("\n\n".join(filter(None, (shown, gone))), markup=False, highlight=False, soft_wrap=True)


def _said(planned: Plan) -> Plan:
    for line in planned.repeated:
        click.echo(line, err=True)
    return planned


def _plan_for(case: Case, path: Path, specs: Sequence[str], backends: Sequence[str]) -> Plan:
    """The tasks for a case; the implementation and backend it was found with, unless others are asked for."""
    origin = case.origin
    found_with = usable_spec(case, path)
    planned = plan(
        [case.contract], specs or [found_with], backends or ([str(origin["backend"])] if "backend" in origin else [])
    )
    name = origin.get("callable")
    if name is not None and {identity(spec) for spec in specs} <= {identity(found_with)}:
        # The spec may offer several callables for the contract; the case is about one.
        same = [task for task in planned.tasks if task.implementation.name == name]
        return Plan(same or planned.tasks, [] if same else planned.missing)
    return planned
