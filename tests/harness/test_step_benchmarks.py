"""What the benchmarks of families 5 and 6 compute from measured times: no clock is read here."""

import pytest
import torch
from click.testing import CliRunner

from benchmarks import metadata_reuse, rope_kv_cache
from benchmarks.figures import Times
from benchmarks.intervals import Interval, interval
from benchmarks.reuse_steps import Setting, Step


def test_an_interval_is_around_the_median_and_shrinks_with_more_values():
    few, many = interval(range(9)), interval([value % 9 for value in range(900)])
    assert (few.low, few.middle, few.high) == (1, 4, 7)
    assert (many.low, many.middle, many.high) == (4, 4, 4)
    assert interval([3.0]) == Interval(3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="at least one"):
        interval([])


def exactly(value):
    return Interval(value, value, value), Interval(value, value, value)


@pytest.mark.parametrize(("ours", "missed"), [(60.0, []), (71.0, ["10.00"])])
def test_goals_of_reuse_are_ratios_of_one_run(ours, missed):
    setting = Setting(14, 0)
    times = {metadata_reuse.AT_ONCE: exactly(ours), metadata_reuse.UPDATES: exactly(190.0)}
    found = {setting: {**times, metadata_reuse.THEIR_BUILDS: exactly(700.0)}}
    misses, judged = metadata_reuse._goals(found)
    assert len(misses) == len(missed)
    assert len(judged) == 2 - len(missed)
    assert all("at least 10 times" in miss for miss in misses)


def test_a_step_has_what_every_group_needs():
    setting = Setting(2, 1, requests=3, drafts=2, context=130)
    step = Step(setting, torch.device("cpu"))
    assert [tuple(table.shape) for table in step.tables] == [(3, 3 + 3)] * 3
    ids = torch.cat([table.flatten() for table in step.tables])
    assert len(ids.unique()) == len(ids)
    batch = step.batch(5)
    assert (batch.step, batch.query_start_loc_cpu.tolist(), batch.num_actual_tokens) == (5, [0, 3, 6, 9], 9)


def point(heads, tokens, ours, copy, floor, theirs=None):
    names = {
        rope_kv_cache.OURS: ours,
        rope_kv_cache.COPY: copy,
        rope_kv_cache.FLOOR: floor,
        rope_kv_cache.AITER: theirs,
    }
    times = {name: Times(value, 0.0, 0.0) for name, value in names.items() if value is not None}
    return rope_kv_cache.Point(heads, tokens, 10**6, times)


@pytest.mark.parametrize(
    ("measured", "missed"),
    [
        (point(16, 4_096, 100.0, 81.0, 1.0), ""),
        (point(16, 4_096, 100.0, 79.0, 1.0), "79% of the copy's bandwidth"),
        (point(16, 1_024, 100.0, 10.0, 1.0), ""),
        (point(16, 8, 1.3, 1.0, 1.0), ""),
        (point(16, 8, 1.4, 1.0, 1.0), "1.40 empty launches"),
        (point(16, 32, 2.0, 1.0, 1.0, theirs=1.9), "AITER's kernel 1.9 us"),
        (point(16, 32, 2.0, 1.0, 1.0, theirs=2.0), ""),
    ],
)
def test_goals_of_the_fused_write(measured, missed):
    misses = rope_kv_cache._misses([measured])
    assert [missed in miss for miss in misses] == ([True] if missed else [])


def test_torch_s_unfused_operations_are_the_rotation():
    half = torch.tensor([[0.5, 0.25]])
    lanes = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    rotated = rope_kv_cache._rotated(lanes, half, 2 * half)
    assert rotated.tolist() == [[0.5 - 3.0, 0.5 - 2.0, 1.5 + 1.0, 1.0 + 1.0]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [metadata_reuse.main, rope_kv_cache.main])
def test_without_a_gpu_nothing_is_measured(command):
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 3
    assert "sees no GPU: nothing can be measured here" in done.output
