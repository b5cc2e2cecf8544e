"""What all commands have in common: exit codes, errors of usage, case files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oracles.backends import UnknownBackend
from oracles.case import Case, CaseError
from oracles.contracts import UnknownContract
from oracles.contracts import by_name as contract_by_name
from oracles.providers import ProviderError
from oracles.session import HarnessError
from oracles.state import StateError

PASSED, FINDINGS, USAGE, NOTHING_JUDGED, INTERRUPTED = 0, 1, 2, 3, 130


class Group(click.Group):
    """All commands. Interrupted anywhere, they end with 130 and nothing else is said."""

    def invoke(self, context: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


class Command(click.Command):
    """A command whose usage errors name the argument, the value and the rule, and exit with 2."""

    def invoke(self, context: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(context)
        except (UnknownContract, UnknownBackend, ProviderError, CaseError, StateError) as error:
            raise click.UsageError(str(error), context) from error
        except HarnessError as error:
            raise click.ClickException(
                f"the harness itself failed; this is a defect of metadata-oracles:\n{error}"
            ) from error


def load_case(path: Path) -> Case:
    """A case whose inputs are those of its contract."""
    case = Case.load(path)
    complaint = contract_by_name(case.contract).complaint(case.inputs)
    if complaint is not None:
        raise CaseError(f"{path}: inputs: {complaint}")
    return case
