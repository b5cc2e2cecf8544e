"""From options to tests: one job for every implementation, contract, backend and shard."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import pytest

from oracles.backends import UnknownBackend
from oracles.contracts import UnknownContract
from oracles.providers import ProviderError
from oracles.results import PROFILES, Profile, Result
from oracles.run import plan
from oracles.session import Task
from oracles.state import complaint


@dataclass(frozen=True)
class Job:
    """What one test judges. ``missing`` is the result of what cannot be started; it says why."""

    task: Task
    shard: int = 0
    shards: int = 1
    missing: Result | None = None

    @property
    def label(self) -> str:
        """The test's id, without characters that a shell or ``-k`` takes for its own."""
        implementation, backend = self.task.implementation, self.task.backend
        who = f"{implementation.name}@{implementation.provider}"
        parts = [self.task.contract.full_name, who, backend.name]
        parts += [f"shard{self.shard + 1}of{self.shards}"] if self.shards > 1 else []
        return "-".join(re.sub(r"[^\w.+@]+", "_", part).strip("_") for part in parts)

    @property
    def seed(self) -> str | None:
        """What makes this shard draw other inputs than its neighbours; the only one draws what the profile says."""
        return f"shard {self.shard}" if self.shards > 1 else None

    def examples(self, profile: Profile) -> Profile:
        """This shard's share of a profile's examples."""
        share = -(-profile.examples // self.shards)
        return dataclasses.replace(profile, examples=share)


def jobs_of(option: Any) -> list[Job]:
    """The jobs that a command line stands for, in an order that is the same in every process."""
    try:
        planned = plan(option.oracle_contract, option.oracle_impl or ["optimized"], option.oracle_backend)
    except (UnknownContract, UnknownBackend, ProviderError) as error:
        raise pytest.UsageError(str(error)) from error
    refuse_state(option)
    shards = option.oracle_shards
    found = [Job(task, shard, shards) for task in planned.tasks for shard in range(shards)]
    return found + [Job(result.task, missing=result) for result in planned.missing]


def refuse_state(option: Any) -> None:
    """Refuse a folder that cannot hold what has to survive, before anything is judged."""
    reason = complaint(option.oracle_state)
    if reason is not None:
        raise pytest.UsageError(f"--oracle-state: {reason}")


def profile_of(option: Any) -> Profile:
    """The profile, with the number of examples that was asked for."""
    profile = PROFILES[option.oracle_profile]
    return profile if option.oracle_examples is None else dataclasses.replace(profile, examples=option.oracle_examples)


def refuse_numbers(option: Any) -> None:
    """Refuse numbers that mean nothing, before anything is collected."""
    limit, examples, shards = option.oracle_time_limit, option.oracle_examples, option.oracle_shards
    if limit is not None and not 0.1 <= limit < float("inf"):
        raise pytest.UsageError(f"--oracle-time-limit: {limit} is no number of seconds from 0.1 up")
    if examples is not None and examples < 0:
        raise pytest.UsageError(f"--oracle-examples: {examples} is no number from 0 up")
    if shards < 1:
        raise pytest.UsageError(f"--oracle-shards: {shards} is no number from 1 up")
