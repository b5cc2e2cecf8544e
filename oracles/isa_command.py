"""The command ``oracles isa``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from oracles.arrays import Inputs
from oracles.backends.cdna.ir import ARCHITECTURES
from oracles.case import CaseError, sizes
from oracles.isa import CannotCompile, compiled, typical
from oracles.run import plan
from oracles.session import Task
from oracles.usage import NOTHING_JUDGED, PASSED, Command, load_case


@click.command(cls=Command)
@click.argument("contract", metavar="CONTRACT|FAMILY")
@click.option(
    "--arch", type=click.Choice(ARCHITECTURES), default=ARCHITECTURES[0], show_default=True, help="What to compile for."
)
@click.option(
    "--impl", "spec", metavar="SPEC", default="optimized", show_default=True, help="Whose kernels; as `oracles check`."
)
@click.option(
    "--case",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The input whose kernels are compiled, a case file. Default: a typical one for each combination of dtypes.",
)
@click.option("--lines", is_flag=True, help="List every instruction with the line of the source that it comes from.")
def isa(contract: str, arch: str, spec: str, path: Path | None, lines: bool) -> None:
    """Show what AMD's machine code of an implementation's kernels takes and does.

    Kernels are compiled by Triton's AMD backend for the inputs that they are launched with, and not run. Shown of each
    variant: registers, local memory, spills, instructions by class, and how vector memory is addressed.

    \b
    Exit codes:
      0  kernels were shown
      2  usage: unknown name, unreadable file
      3  no kernel was compiled

    \b
    Examples:
      oracles isa chunk_metadata.chunk_metadata
      oracles isa chunk_metadata.chunk_metadata --arch gfx950 --impl vllm --lines
    """  # noqa: D301  # click wants the control character, not the two letters
    planned = plan([contract], [spec], [arch])
    for missing in planned.missing:
        click.echo(f"{missing.task.label}: {missing.refused}", err=True)
    tasks, inputs = planned.tasks, None
    if path is not None:
        case = load_case(path)
        tasks, inputs = [task for task in tasks if task.contract.full_name == case.contract], [case.inputs]
        if not tasks:
            raise CaseError(f"{path}: its contract is {case.contract}, which {contract} does not name")
    shown = [_show(task, inputs, lines=lines) for task in tasks]
    sys.exit(PASSED if any(shown) else NOTHING_JUDGED)


def _show(task: Task, inputs: list[Inputs] | None, *, lines: bool) -> bool:
    """Print what belongs to a task; whether there was a kernel."""
    # Imported here: reading ELF files takes long to import, and the other commands do without.
    from oracles.report.machine_code import description

    if task.implementation.runs != "triton":
        click.echo(f"{task.label}: it launches no Triton kernel", err=True)
        return False
    chosen = typical(task.contract) if inputs is None else inputs
    try:
        answer = compiled(task.contract, task.implementation, task.backend, chosen)
    except CannotCompile as reason:
        click.echo(f"{task.label}: {reason}", err=True)
        return False
    if answer.unloaded:
        click.echo(f"{task.label}: could not be loaded: {answer.unloaded}", err=True)
        return False
    click.echo(task.label)
    for values in chosen:
        click.echo(f"  input         {sizes(values)}")
    for kernel in answer.kernels:
        click.echo("\n" + "\n".join(description(kernel, lines=lines)))
    for error, count in Counter(answer.errors).items():
        click.echo(f"{task.label}: {'a call' if count == 1 else f'{count} calls'} raised {error}", err=True)
    return bool(answer.kernels)
