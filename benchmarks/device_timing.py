"""Times of calls on a GPU: replayed graphs and eager calls, the contenders in turn so that clocks drift for all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.figures import Times, repetitions

GRAPH_SECONDS = 2e-3  # what one graph holds, and what one eager round takes
MOST_LAUNCHES = 100
MOST_EAGER = 40  # fewer launches than a stream queues, so that enqueueing never waits for the device
SECONDS_A_CONTENDER = 1.5
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Contender:
    """A call to time. It gets a number that changes from call to call; ``captures``: a graph can hold it."""

    call: Callable[[int], Any]
    captures: bool = True


def measure(contenders: Mapping[str, Contender], rounds: int) -> dict[str, Times]:
    """Times of each contender: medians over rounds in which every one has its turn."""
    once = {name: _seconds_once(contender) for name, contender in contenders.items()}
    fastest = min(once.values())
    graphs = {
        name: (_captured(contender, launches), launches)
        for name, contender in contenders.items()
        if contender.captures
        # What is about as fast gets as many launches, so that a replay's own cost is the same share of all.
        for launches in [repetitions(max(fastest, once[name] / 10), GRAPH_SECONDS, MOST_LAUNCHES)]
    }
    in_graph = _in_turn(
        {name: partial(_replay, graph, launches) for name, (graph, launches) in graphs.items()},
        {name: _rounds(2 * launches * once[name], rounds) for name, (_, launches) in graphs.items()},
    )
    counts = {name: repetitions(once[name], GRAPH_SECONDS, MOST_EAGER, least=2) for name in contenders}
    eager = _in_turn(
        {name: partial(_eager, contender, counts[name]) for name, contender in contenders.items()},
        {name: _rounds(counts[name] * once[name], rounds) for name in contenders},
    )
    return {
        name: Times(
            graph=median(in_graph[name]) * 1e6 if name in in_graph else None,
            host=median(host for hosts, _ in eager[name] for host in hosts) * 1e6,
            total=median(total for _, total in eager[name]) * 1e6,
        )
        for name in contenders
    }


def warm_clocks(seconds: float) -> None:
    """Keep the device busy, so that the first batch meets the clocks of the later ones."""
    matrix = torch.ones((4096, 4096), device="cuda", dtype=torch.bfloat16)
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        matrix @ matrix
        torch.cuda.synchronize()


def _rounds(seconds: float, most: int) -> int:
    return repetitions(seconds, SECONDS_A_CONTENDER, most, least=min(LEAST_ROUNDS, most))


def _in_turn(timed: Mapping[str, Callable[[], Any]], rounds: Mapping[str, int]) -> dict[str, list[Any]]:
    """Call all in turn, each as often as its rounds say."""
    found: dict[str, list[Any]] = {name: [] for name in timed}
    gc.collect()
    gc.disable()
    try:
        for number in range(max(rounds.values(), default=0)):
            for name, call in timed.items():
                if number < rounds[name]:
                    found[name].append(call())
    finally:
        gc.enable()
    return found


def _seconds_once(contender: Contender) -> float:
    contender.call(0)  # compiles
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(2):
        contender.call(number)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 2


def _captured(contender: Contender, launches: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(launches):
            contender.call(number)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _replay(graph: torch.cuda.CUDAGraph, launches: int) -> float:
    """Seconds a launch. A replay before it is not timed: behind it, the device does not wait for the host."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / launches


def _eager(contender: Contender, count: int) -> tuple[list[float], float]:
    """Seconds of the host a call, each call for itself, and seconds a call until the device is done with all."""
    clock = time.perf_counter
    hosts = []
    first = clock()
    for number in range(count):
        begin = clock()
        contender.call(number)
        hosts.append(clock() - begin)
    torch.cuda.synchronize()
    return hosts, (clock() - first) / count
