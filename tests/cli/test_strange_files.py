"""What the commands are pointed at: pipes, devices and endless files, edited inputs, folders that cannot be used."""

import json
import os

import pytest

CASE = {
    "schema": 1,
    "contract": "chunk_metadata.causal_conv1d_metadata",
    "inputs": {"query_start_loc": {"dtype": "int32", "shape": [2], "data": [0, 3]}, "block_m": 8},
}


def written(folder, **changes):
    path = folder / "case.json"
    path.write_text(json.dumps(CASE | changes))
    return str(path)


def only_line(err):
    [line] = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in err
    return line


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_what_is_no_file_that_ends_is_refused_in_one_line(in_process, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "long").open("wb") as stream:
        stream.truncate(3 << 30)
    for place, reason in (
        ("pipe", "it is no regular file"),
        ("/dev/zero", "it is no regular file"),
        ("long", "larger"),
    ):
        code, out, err = in_process(command, place, "--impl", "optimized")
        assert (code, out) == (2, "")
        assert only_line(err).startswith(f"Error: {place}: ")
        assert reason in only_line(err)


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_a_tensor_that_is_null_is_refused_in_one_line(in_process, tmp_path, command):
    path = written(tmp_path, inputs=CASE["inputs"] | {"query_start_loc": None})
    code, out, err = in_process(command, path, "--impl", "optimized")
    assert (code, out) == (2, "")
    assert only_line(err) == f"Error: {path}: inputs: query_start_loc: None breaks the rule: it must be a tensor"


def test_a_case_is_shown_where_nothing_can_be_written(in_process, tmp_path):
    path = written(tmp_path)
    code, out, err = in_process("explain", path, "--state", "/proc/none")
    assert (code, err) == (0, "")
    assert "expected\n" in out
    code, out, err = in_process("explain", path, "--state", "/proc/none", "--impl", "optimized")
    assert (code, out) == (2, "")
    assert "Invalid value for '--state': /proc/none: /proc is no folder that can be written to" in err
    assert list(tmp_path.iterdir()) == [tmp_path / "case.json"]


def test_what_else_lies_in_the_state_folder_breaks_no_run(in_process, tmp_path):
    state = tmp_path / ".oracles"
    (state / "running" / "folder.slot").mkdir(parents=True)
    os.mkfifo(state / "running" / "pipe.slot")
    (state / "findings").mkdir()
    os.mkfifo(state / "findings" / "pipe.json")
    (state / "notes").write_text("mine")
    ended = in_process("check", CASE["contract"], "--examples", "0", "--profile", "smoke", "--backend", "host")
    assert ended[0] == 0
    assert "Traceback" not in ended[2]
    assert sorted(path.name for path in state.rglob("*") if path.name not in ("running", "findings")) == [
        "folder.slot",
        "notes",
        "pipe.json",
        "pipe.slot",
    ]
