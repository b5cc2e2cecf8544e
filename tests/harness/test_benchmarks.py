"""What the benchmarks compute from measured times, and how they refuse: no clock is read here."""

import io
import json
import os
import sys

import numpy as np
import pytest
from click import ClickException
from click.testing import CliRunner
from rich.console import Console

from benchmarks import batches, emulator, report
from benchmarks.figures import BUILDER, FASTER_AT, OURS, Goal, Point, Times, exponent, goals, growth, repetitions


def point(sequences: int, ours: float, theirs: float | None, *, chunks: int = 0, host: float = 1.0) -> Point:
    times = {OURS: Times(ours, host, ours)}
    if theirs is not None:
        times[BUILDER] = Times(theirs, 2.0, theirs)
    return Point(distribution="decode", chunk_size=64, sequences=sequences, chunks=chunks or sequences, times=times)


@pytest.mark.parametrize(
    ("seconds", "budget", "most", "least", "expected"),
    [
        (1e-6, 1e-3, 100, 1, 100),
        (1e-4, 1.05e-3, 100, 1, 10),
        (0.155, 1e-3, 100, 1, 1),
        (0.155, 1e-3, 40, 2, 2),
        (0, 1, 7, 1, 7),
    ],
)
def test_repetitions_fit_the_budget(seconds, budget, most, least, expected):
    assert repetitions(seconds, budget, most, least) == expected


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power):
    sizes = [10, 100, 3000]
    assert exponent(sizes, [7 * size**power for size in sizes]) == pytest.approx(power)


def test_an_exponent_needs_two_sizes_and_positive_numbers():
    with pytest.raises(ValueError, match="a slope needs two different ones"):
        exponent([5, 5], [1, 2])
    with pytest.raises(ValueError, match="must be positive"):
        exponent([5, 6], [0, 2])


def test_growth_is_fitted_over_sequences_plus_chunks_of_large_batches():
    points = [point(1, 900, None), point(10_000, 30, None, chunks=20_000), point(20_000, 90, None, chunks=70_000)]
    assert growth(points, OURS) == {"decode, chunks of 64": pytest.approx(1.0)}
    assert growth(points, BUILDER) == {}


def test_goals_name_what_misses_them():
    good = [point(1, 1.0, 1.0), point(FASTER_AT, 2.0, 80.0), point(65_536, 12.0, 9000.0)]
    assert [goal.state for goal in goals(good)] == ["met"] * 4
    slow = [point(1, 1.2, 1.0, host=1.5), point(FASTER_AT, 5.0, 80.0), point(65_536, 600.0, 9000.0)]
    found = goals(slow)
    assert [goal.state for goal in found] == ["missed"] * 4
    assert [len(goal.misses) for goal in found] == [1, 1, 1, 1]
    assert "decode, N = 1, chunks of 64: 1.20 us against 1.00 us, 1.20 times" in found[0].misses


def test_without_the_other_builder_only_growth_is_judged():
    states = [goal.state for goal in goals([point(8192, 2.0, None), point(65_536, 9.0, None)])]
    assert states == ["not judged", "not judged", "met", "not judged"]


@pytest.mark.parametrize("name", batches.DISTRIBUTIONS)
@pytest.mark.parametrize("count", [1, 2, 7, 257, 8192])
def test_batches_have_their_sequences_and_repeat(name, count):
    lengths = batches.DISTRIBUTIONS[name](count)
    starts = batches.starts(lengths)
    assert lengths.shape == (count,)
    assert lengths.min() >= 0
    assert starts.dtype == np.int32
    assert np.array_equal(np.diff(starts), batches.DISTRIBUTIONS[name](count))


def test_batches_are_what_their_names_say():
    assert batches.prefill(1).tolist() == [batches.LONG_TOKENS]
    assert np.count_nonzero(batches.prefill(257) > 1) == batches.MOST_LONG
    assert (batches.empty(257) == 0).mean() > 0.8
    with pytest.raises(ValueError, match="int32 starts hold at most"):
        batches.starts(np.full(4, 1 << 30))


def test_the_table_shows_times_ratios_and_what_was_left_out():
    shown = Point(
        distribution="empty",
        chunk_size=64,
        sequences=1024,
        chunks=9,
        times={OURS: Times(2.0, 30.0, 31.0), BUILDER: Times(250.0, 60.0, 280.0)},
        left_out={"vLLM host": "wrong"},
    )
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(report.table([shown]))
    text = console.export_text()
    for cell in ("1,024", "2.00 | 30.00 / 31.00", "250 | 60.00 / 280", "wrong", "125.00"):
        assert cell in text


def test_the_document_is_plain_data(tmp_path):
    found = report.document([point(8192, 2.0, 80.0)], [Goal("a rule", 1, ["a miss"])], {"device": "none"})
    report.write_json(tmp_path / "out.json", found)
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["device"] == "none"
    assert read["points"][0]["times"][OURS] == {"graph": 2.0, "host": 1.0, "total": 2.0}
    assert read["goals"][0]["state"] == "missed"


def test_a_plot_without_matplotlib_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    problem = report.plot(tmp_path / "out.png", [point(8192, 2.0, 80.0)], 64, "title")
    assert problem is not None
    assert "matplotlib is not installed" in problem


def test_the_benchmark_refuses_a_machine_without_a_gpu(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    from benchmarks.chunk_metadata import NOTHING_JUDGED, main

    done = CliRunner().invoke(main, [])
    assert done.exit_code == NOTHING_JUDGED
    assert "sees no GPU" in done.output


def test_help_names_the_batches_and_the_exit_codes():
    from benchmarks.chunk_metadata import main

    shown = CliRunner().invoke(main, ["--help"]).output
    for word in (*batches.DISTRIBUTIONS, "Exit codes", "--vllm"):
        assert word in shown


def ran(kernel: str, ours: float | None, theirs: float | None) -> emulator.Measured:
    rates = {name: rate for name, rate in (("gfx942", ours), (emulator.BASELINE, theirs)) if rate is not None}
    left_out = {} if theirs is not None else {emulator.BASELINE: "bfloat16 is not judged"}
    return emulator.Measured(kernel, rates, left_out, {"gfx942": 0.5}, 1500.0)


def test_the_emulator_is_compared_kernel_by_kernel_and_in_the_median():
    fast = [ran("a", 10, 10), ran("b", 24, 20), ran("c", 60, 20)]
    assert [goal.state for goal in emulator.goals(fast, "gfx942")] == ["met", "met"]
    slow = [ran("a", 5, 10), ran("b", 6, 10), ran("c", 13, 10)]
    one, middle = emulator.goals(slow, "gfx942")
    assert (one.state, list(one.misses), one.judged) == ("missed", ["a: 0.50 times"], 3)
    assert (middle.state, list(middle.misses)) == ("missed", ["0.60 times"])


def test_a_kernel_that_one_arm_does_not_run_is_not_compared():
    found = [ran("a", 30, None)]
    assert [goal.state for goal in emulator.goals(found, "gfx942")] == ["not judged", "not judged"]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(emulator.table([*found, ran("b", 30, 20)], "gfx942"))
    lines = [line for line in console.export_text().splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert cells == [
        ["a", "1,500", "-", "30.0", "-", "0.50"],
        ["b", "1,500", "20.0", "30.0", "1.50", "0.50"],
        ["median", "", "", "", "1.50", ""],
    ]


class StandIn:
    """An arm that answers from a list."""

    def __init__(self, name: str, answers: list[dict]) -> None:
        self.name, self._answers = name, iter(answers)

    def ask(self, line: str) -> dict:
        return next(self._answers)


def answer(seconds: float, checksum: int = 1) -> dict:
    return {"launches": 6, "seconds": seconds, "checksum": checksum, "instructions": 600}


def test_the_first_round_compiles_and_does_not_count():
    arms = [
        StandIn(emulator.BASELINE, [answer(each) for each in (9, 1, 3, 2)]),
        StandIn("gfx942", [answer(each) for each in (5, 1, 1, 9)]),
    ]
    found = emulator.measured("k", arms, 3)
    assert found.rates == {emulator.BASELINE: 3.0, "gfx942": 6.0}
    assert (found.ratio("gfx942"), found.first["gfx942"], found.instructions) == (2.0, 5, 100)


def test_arms_with_different_results_are_refused():
    arms = [StandIn(emulator.BASELINE, [answer(1)] * 2), StandIn("gfx942", [answer(1), answer(1, checksum=2)])]
    with pytest.raises(ClickException, match="k: the arms' results differ"):
        emulator.measured("k", arms, 1)


def test_what_an_arm_cannot_run_is_told_and_not_timed():
    arms = [StandIn(emulator.BASELINE, [{"unsupported": "bfloat16"}]), StandIn("gfx942", [answer(1)] * 2)]
    found = emulator.measured("k", arms, 1)
    assert (found.left_out, found.ratio("gfx942")) == ({emulator.BASELINE: "bfloat16"}, None)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("ORACLES_NIGHTLY") != "1", reason="two processes that import and compile: nightly")
def test_both_arms_run_and_agree(tmp_path):
    pytest.importorskip("triton")
    file = tmp_path / "out.json"
    done = CliRunner().invoke(
        emulator.main, ["--inputs", "1", "--rounds", "1", "--kernel", "sampled", "--json", str(file)]
    )
    assert done.exit_code in (0, 1), done.output  # whether the goals are met depends on the machine
    [kernel] = json.loads(file.read_text())["kernels"]
    assert set(kernel["rates"]) == {emulator.BASELINE, "gfx942"}
    assert kernel["instructions"] > 100
