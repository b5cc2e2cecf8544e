"""The interpreter backend: what it finds, what it must not find, and what it refuses to judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.backends.interpreter import BACKEND
from oracles.backends.interpreter.limits import limit_of
from oracles.backends.interpreter.races import Touch, conflicts
from oracles.verdict import Unsupported

PROGRAMS = Path(__file__).with_name("interpreter_programs.py")
KERNELS = Path(__file__).with_name("interpreter_kernels.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def observed() -> dict[str, Any]:
    """What the programs of ``interpreter_programs.py`` showed; they run once, in a process of their own."""
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, **BACKEND.environment(), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(PROGRAMS)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def keys(result: dict[str, Any]) -> list[str]:
    """Kind and place of every failure."""
    assert result["raised"] is None, result["raised"]
    return [f"{kind}:{where}" for kind, where, _ in result["failures"]]


def line_of(text: str) -> int:
    """The one line of the kernels that holds this text."""
    numbers = [at for at, line in enumerate(KERNELS.read_text().splitlines(), 1) if text in line]
    assert len(numbers) == 1, (text, numbers)
    return numbers[0]


@pytest.mark.parametrize("kernel", ["gather", "scan"])
@pytest.mark.parametrize("fault", ["none", "far"])
@pytest.mark.parametrize("sentinel", [0, 1])
def test_correct_kernels_raise_nothing(observed: dict[str, Any], kernel: str, fault: str, sentinel: int) -> None:
    result = observed["faults"][f"{kernel} {fault} {sentinel}"]
    assert keys(result) == []
    assert result["poisoned"] == {}
    expected = {"gather": [26, 10, 42], "scan": [[0, 0, 1, 3], [0, 3, 7, 12]]}
    assert result["values"]["totals" if kernel == "gather" else "out"] == expected[kernel]


@pytest.mark.parametrize(
    ("kernel", "fault", "expected"),
    [
        ("gather", "mask", ["out_of_bounds_read:cache", "out_of_bounds_write:torch.empty", "race:torch.empty"]),
        ("gather", "block", ["out_of_bounds_read:cache"]),
        ("gather", "stride32", ["out_of_bounds_read:cache"]),
        ("gather", "past", ["out_of_bounds_write:torch.empty"]),
        ("gather", "race", ["race:torch.empty"]),
        ("scan", "mask", ["out_of_bounds_read:lengths"]),
        ("scan", "block", ["out_of_bounds_read:lengths"]),
        ("scan", "stride32", ["out_of_bounds_read:lengths"]),
        ("scan", "past", ["out_of_bounds_write:starts"]),
        ("scan", "race", ["race:starts"]),
    ],
)
@pytest.mark.parametrize("sentinel", [0, 1])
def test_planted_fault_is_found(
    observed: dict[str, Any], kernel: str, fault: str, expected: list[str], sentinel: int
) -> None:
    assert keys(observed["faults"][f"{kernel} {fault} {sentinel}"]) == expected


@pytest.mark.parametrize(("kernel", "output"), [("gather", "totals"), ("scan", "out")])
def test_dropped_other_depends_on_the_sentinel(observed: dict[str, Any], kernel: str, output: str) -> None:
    first, second = (observed["faults"][f"{kernel} other {sentinel}"] for sentinel in (0, 1))
    correct = observed["faults"][f"{kernel} none 0"]["values"][output]
    assert keys(first) == keys(second) == []
    assert first["values"][output] != second["values"][output]
    assert correct not in (first["values"][output], second["values"][output])
    assert sum(first["poisoned"].values()) == {"gather": 12, "scan": 2}[kernel]
    assert all("tl.load(start + lanes, mask=keep)" in line for line in first["poisoned"])


def test_report_names_buffer_kernel_program_lane_and_line(observed: dict[str, Any]) -> None:
    line = line_of("tl.store(out + row * width + lanes, x, mask=keep)")
    detail = observed["faults"]["gather mask 0"]["failures"][1][2]
    assert detail == (
        "wrote torch.empty #1 [3, 4], 1 elements past its last; kernel gather, program (2, 0, 0), "
        f"interpreter_kernels.py:{line}: tl.store(out + row * width + lanes, x, mask=keep); "
        "lane 4 of 8, 1 lanes in all"
    )


def test_gap_between_rows_is_out_of_bounds(observed: dict[str, Any]) -> None:
    detail = observed["faults"]["gather mask 0"]["failures"][0][2]
    assert detail.startswith("read cache[1, 3] + 1 elements (between the elements of a strided view)")
    assert detail.endswith("2 more such accesses in this launch")


def test_report_gives_the_line_of_the_device_function(observed: dict[str, Any]) -> None:
    line = line_of("    return tl.load(start + lanes, mask=keep, other=0)")
    detail = observed["faults"]["scan block 0"]["failures"][0][2]
    assert f"kernel scan, program (1, 0, 0), interpreter_kernels.py:{line}:" in detail


def test_race_report_names_both_programs_and_lines(observed: dict[str, Any]) -> None:
    detail = observed["faults"]["scan race 0"]["failures"][0][2]
    line = line_of("        tl.store(out + 0, row)")
    assert detail.startswith("starts[0, 0]: kernel scan, program (0, 0, 0), interpreter_kernels.py:")
    assert detail.endswith(f"program (1, 0, 0), interpreter_kernels.py:{line}: tl.store(out + 0, row)")


def test_orders(observed: dict[str, Any]) -> None:
    found = {order: result for order, result in observed["orders"].items() if order != "unwritten"}
    drawn = {order: result["values"]["out"] for order, result in found.items()}
    assert drawn["forward"] == [0, 1, 2, 3, 4]
    assert drawn["reverse"] == [4, 3, 2, 1, 0]
    assert sorted(drawn["random"]) == [0, 1, 2, 3, 4]
    assert drawn["random"] not in (drawn["forward"], drawn["reverse"])
    assert all((keys(result), result["unwritten"]) == ([], []) for result in found.values())


def test_a_load_of_what_nobody_wrote_is_remembered(observed: dict[str, Any]) -> None:
    [what] = observed["orders"]["unwritten"]["unwritten"]
    assert what.startswith("counter[0]; kernel order_of, program (0, 0, 0), interpreter_kernels.py:")
    assert what.endswith("; lane 0 of 1, 1 lanes in all, which nobody had written")


def test_pointer_tables(observed: dict[str, Any]) -> None:
    exact, skewed = observed["pointer_tables"]["0"], observed["pointer_tables"]["1"]
    assert keys(exact) == []
    assert exact["values"]["out"] == [[0] * 4, [1] * 4]
    assert set(keys(skewed)) == {"out_of_bounds_read:rows"}


@pytest.mark.parametrize(
    ("program", "expected"),
    [("shift", ["race:values"]), ("flag", []), ("acquire", []), ("relaxed", ["race:parts"])],
)
def test_races_between_programs(observed: dict[str, Any], program: str, expected: list[str]) -> None:
    assert keys(observed["races"][program]) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [("annotated", [2**33]), ("plain", [0]), ("one", [8]), ("large", [2**33 + 4]), ("float", [2.0**-20, 2.0**-19])],
)
def test_scalars_have_the_type_that_the_jit_gives_them(
    observed: dict[str, Any], case: str, expected: list[float]
) -> None:
    result = observed["scalars"][case]
    assert keys(result) == []
    assert result["values"]["out"] == expected


@pytest.mark.parametrize(("case", "kind"), [("not whole", "Unsupported"), ("bfloat16", "Unsupported")])
def test_annotations_that_cannot_be_honoured(observed: dict[str, Any], case: str, kind: str) -> None:
    name, reason = observed["scalars"][case]["raised"]
    assert name == kind
    assert reason.startswith("a")


@pytest.mark.parametrize(
    "case", ["bf16", "fp8", "asm", "torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e4m3fnuz", "swallowed"]
)
def test_limits_of_the_interpreter_are_unsupported(observed: dict[str, Any], case: str) -> None:
    name, reason = observed["limits"][case]["raised"]
    assert name == "Unsupported"
    assert "interpreter" in reason


def test_exception_in_a_kernel_names_its_line(observed: dict[str, Any]) -> None:
    name, message = observed["limits"]["assert"]["raised"]
    assert name == "InterpreterError"
    line = line_of('tl.static_assert(KIND == "", "this kernel fails")')
    assert message.startswith("AssertionError: this kernel fails; kernel casts, program (0, 0, 0), ")
    assert f"interpreter_kernels.py:{line}:" in message


@pytest.mark.parametrize(
    ("case", "launches", "keys"), [("same", 3, 1), ("sixteen", 2, 2), ("one", 2, 2), ("wide", 2, 2)]
)
def test_launches_and_compilations(observed: dict[str, Any], case: str, launches: int, keys: int) -> None:
    result = observed["compilations"][case]
    assert result["launches"] == launches
    assert len(result["compilations"]) == keys
    assert result["compilations"][0] == "specialised (out=*i32:DS, a=i32, b=i32, BLOCK=constexpr:4, num_warps=2)"


def test_functions_that_a_module_holds_under_its_own_name(observed: dict[str, Any]) -> None:
    programs = observed["borrowed_functions"]
    assert keys(programs["renamed"]) == []
    assert programs["renamed"]["values"]["out"] == [1.0]
    assert programs["stub"]["raised"][0] == "Unsupported"
    assert programs["restored"]["values"] is True


def test_every_reduction_over_a_masked_lane_depends_on_the_sentinel(observed: dict[str, Any]) -> None:
    first, second = (observed["extremes"][sentinel]["values"]["out"] for sentinel in ("0", "1"))
    assert all(one != other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("sentinel", ["0", "1"])
def test_truth_values_spread_over_lanes_and_a_single_zero_for_lanes_that_are_off(
    observed: dict[str, Any], sentinel: str
) -> None:
    result = observed["truth_values"][sentinel]
    assert (result["raised"], keys(result), result["poisoned"]) == (None, [], {})
    assert result["values"]["out"] == [[5, 6, 0, 0], [5, 6, 0, 0]]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("mask has unsupported dtype: int8"), "the Triton interpreter: mask has unsupported dtype: int8"),
        (Unsupported("a reason"), "a reason"),
        (ValueError("a kernel's own"), None),
        (TypeError("unsupported operand type(s)"), None),
    ],
)
def test_limits_are_told_from_failures(error: Exception, reason: str | None) -> None:
    assert limit_of(error) == reason
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = error
    assert limit_of(wrapped) == reason


def test_atomics_are_checked(observed: dict[str, Any]) -> None:
    inside, outside = observed["atomics"]["1"], observed["atomics"]["2"]
    assert keys(inside) == []
    assert inside["values"] == {"values": [4, 14], "out": [4]}
    assert keys(outside) == ["out_of_bounds_write:values"] * 2
    assert outside["values"] == {"values": [4, 4], "out": [0]}


def test_unregistered_storages_are_legal_as_arguments(observed: dict[str, Any]) -> None:
    exact, short = observed["operations"]["4"], observed["operations"]["3"]
    assert keys(exact) == []
    assert exact["values"] == {"out": [3, 2, 1, 0], "sums": [0, 1, 3, 6]}
    assert keys(short) == ["out_of_bounds_write:sums"]
    assert "1 elements past the last of its storage" in short["failures"][0][2]


def test_arguments(observed: dict[str, Any]) -> None:
    result = observed["arguments"]["tuple and descriptor"]
    assert keys(result) == []
    assert result["values"]["out"] == [[12.0, 13.0, 14.0, 15.0]] * 8
    assert observed["arguments"]["heuristics"]["values"]["out"] == [3] * 4
    assert observed["arguments"]["autotune"]["values"]["out"] == [3] * 4
    assert keys(observed["arguments"]["autotune"]) == []
    assert observed["arguments"]["autotune"]["launches"] == 1
    assert observed["arguments"]["missing"]["raised"][0] == "TypeError"


def test_slice_of_a_buffer(observed: dict[str, Any]) -> None:
    assert keys(observed["views"]["1"]) == keys(observed["views"]["7"]) == []
    assert observed["views"]["7"]["values"]["out"] == [6, 7]


def test_a_launch_makes_no_torch_calls(observed: dict[str, Any]) -> None:
    values = observed["quiet"]["quiet"]["values"]
    assert values["in_launch"] == 0
    assert values["in_grid"] > 0, "host code that computes the grid must be heard"


def test_triton_is_restored(observed: dict[str, Any]) -> None:
    assert observed["restored"]["restored"] == []


def test_backend_is_available_without_importing_triton() -> None:
    code = (
        "import sys; from oracles.backends.interpreter import BACKEND; "
        "print(BACKEND.unavailable(), 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]


def test_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.10.1")
    assert BACKEND.unavailable() == "triton 3.10.1 is outside 3.6 to 3.9"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert BACKEND.unavailable() == "triton is not installed"


def touch(program: int, addresses: list[int], values: list[int] | None = None, size: int = 4, **flags: Any) -> Touch:
    """A load, or a store that changes every lane."""
    bits = None if values is None else np.array(values, np.uint64)
    changed = None if values is None else np.ones(len(addresses), bool)
    return Touch(program, None, size, np.array(addresses, np.uint64), bits, changed, **flags)


@pytest.mark.parametrize(
    ("touches", "expected"),
    [
        pytest.param([touch(0, [8], [1]), touch(1, [8], [2])], [8], id="different stores"),
        pytest.param([touch(0, [8], [1]), touch(1, [8], [1])], [], id="equal stores"),
        pytest.param([touch(0, [8], [5]), touch(0, [8], [1]), touch(1, [8], [1])], [], id="equal last stores"),
        pytest.param([touch(0, [4, 8], [1, 2]), touch(1, [10], [7], 1)], [10], id="partial overlap"),
        pytest.param([touch(0, [8], [1]), touch(1, [12])], [], id="neighbours"),
        pytest.param([touch(0, [8], [1]), touch(1, [8])], [8], id="load after store"),
        pytest.param([touch(1, [8]), touch(0, [8], [1])], [8], id="load before store"),
        pytest.param([touch(0, [8]), touch(0, [8], [1]), touch(1, [4])], [], id="in place"),
        pytest.param([touch(0, [8], [1]), touch(1, [8], [1]), touch(1, [8])], [], id="load after own store"),
        pytest.param([touch(0, [8], [1]), touch(1, [8], [2], atomic=True)], [8], id="plain against atomic"),
        pytest.param([touch(0, [8], [1], atomic=True), touch(1, [8], [2], atomic=True)], [], id="atomics"),
        pytest.param([touch(0, [8], [1]), touch(1, [8], ordered=True)], [], id="load after acquire"),
        pytest.param([touch(0, [8], [1]), touch(1, [8], [2], ordered=True)], [], id="store after acquire"),
    ],
)
def test_rules_for_races(touches: list[Touch], expected: list[int]) -> None:
    assert [conflict.address for conflict in conflicts(touches)] == expected
