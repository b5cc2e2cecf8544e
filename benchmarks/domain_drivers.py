"""Inputs a second: the fast sampler, Hypothesis and the enumerator on the same domain, side by side in one process."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
from hypothesis import HealthCheck, Phase, given, settings

from oracles.contract import Contract
from oracles.contracts import all_contracts
from oracles.domain import Sampler, Scope, strategy, walk


def sampler(contract: Contract, count: int) -> int:
    """Draw with the sampler."""
    for index in range(count):
        contract.domain(Sampler(0, index))
    return count


def hypothesis(contract: Contract, count: int) -> int:
    """Draw with Hypothesis, without shrinking and without a database."""
    drawn = 0

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy(contract.domain))
    def draw(case: object) -> None:
        nonlocal drawn
        drawn += 1

    draw()
    return drawn


def enumerator(contract: Contract, count: int) -> int:
    """Walk the small scope."""
    drawn = 0
    for _ in walk(contract.domain, Scope(3, 3)):
        drawn += 1
        if drawn == count:
            break
    return drawn


def rate(driver: Callable[[Contract, int], int], contract: Contract, count: int) -> float:
    """Inputs a second of processor time of this process, so that other processes do not change it much."""
    driver(contract, 50)
    begin = time.process_time()
    drawn = driver(contract, count)
    return drawn / (time.process_time() - begin)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Rounds; the best one of each driver counts.")
def main(rounds: int) -> None:
    """Print a table: inputs a second a core, and the ratio to Hypothesis."""
    click.echo(f"{'contract':<36}{'sampler':>10}{'enumerator':>12}{'hypothesis':>12}{'sampler/hypothesis':>20}")
    for contract in all_contracts():
        best = dict.fromkeys((sampler, enumerator, hypothesis), 0.0)
        for _ in range(rounds):
            for driver, count in ((sampler, 5000), (enumerator, 5000), (hypothesis, 500)):
                best[driver] = max(best[driver], rate(driver, contract, count))
        fast, walked, slow = best[sampler], best[enumerator], best[hypothesis]
        click.echo(f"{contract.full_name:<36}{fast:>10,.0f}{walked:>12,.0f}{slow:>12,.0f}{fast / slow:>19.1f}x")


if __name__ == "__main__":
    main()
