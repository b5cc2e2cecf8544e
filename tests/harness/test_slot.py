"""The slot that tells which case a worker was running, also when it was killed."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oracles.slot import CAPACITY, HEADER, META, SIZE, Meta, Slot, leftovers
from oracles.state import StateError, complaint

WHAT = Meta("family.name", "optimized", "name", "host")

CHILD = """
import os, signal, sys
from pathlib import Path
from oracles.slot import Slot
slot = Slot(Path(sys.argv[1]))
slot.begin([1, 2, -3], 7, 11)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
slot.end()
"""

PARENT = """
import sys, time
from pathlib import Path
from oracles.slot import Meta, Slot
slot = Slot(Path(sys.argv[1]), create=Meta("family.name", "optimized", "name", "host"))
slot.begin([4, 5])
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "running" / "1.slot"


@pytest.fixture
def slot(path):
    slot = Slot(path, create=WHAT)
    yield slot
    slot.close()


def test_nothing_runs_in_a_new_slot(slot):
    assert slot.running() is None
    assert slot.meta() == WHAT


@pytest.mark.parametrize("choices", [[], [0], [1, 2, 3], [2**63 - 1, 0, -(2**63)], list(range(CAPACITY))])
def test_a_case_is_there_from_begin_to_end(slot, choices):
    before = time.monotonic()
    slot.begin(choices, 5, 9)
    running = slot.running()
    assert (running.choices, running.seed, running.index, running.number) == (choices, 5, 9, 1)
    assert before <= running.started <= time.monotonic()
    slot.end()
    assert slot.running() is None


def test_cases_are_counted_and_replace_each_other(slot):
    for number, choices in enumerate(([1, 2, 3], [9], []), start=1):
        slot.begin(choices)
        running = slot.running()
        assert (running.number, running.choices, running.seed, running.index) == (number, choices, -1, -1)
    assert slot.meta() == WHAT


def test_the_last_case_and_what_was_judged_outlive_the_end(slot):
    assert (slot.last(), slot.judged()) == (None, 0)
    slot.begin([4, 2], 1, 3)
    slot.end(5)
    last = slot.last()
    assert (last.choices, last.seed, last.index, slot.judged()) == ([4, 2], 1, 3, 5)
    slot.begin([7])
    assert (slot.last().choices, slot.judged()) == ([7], 5)
    slot.end()
    assert (slot.last().choices, slot.judged()) == ([7], 0)
    slot.clear()
    assert (slot.last(), slot.running(), slot.judged()) == (None, None, 0)
    assert slot.meta() == WHAT


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_a_sequence_that_is_too_long_leaves_seed_and_index(slot, seed):
    slot.begin(range(CAPACITY + 1), seed, 12)
    running = slot.running()
    assert (running.choices, running.seed, running.index) == (None, seed, 12)


def test_a_description_that_is_too_long_is_refused(path):
    with pytest.raises(ValueError, match=f"meta: .* do not fit into {META}"):
        Slot(path, create=Meta("c", "x" * META, "n", "b"))


def test_a_folder_in_which_nothing_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "running", Path("/proc/none/running"), tmp_path / ("x" * 300)):
        with pytest.raises(StateError, match=f"{folder}: no file can be made"):
            Slot(folder / "1.slot", create=WHAT)


def test_a_state_folder_is_tried_out_and_left_as_it_was(tmp_path):
    assert complaint(tmp_path / "a" / "b") is None
    (tmp_path / "good" / "findings").mkdir(parents=True)
    assert complaint(tmp_path / "good") is None
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "running").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    for state, place in ((tmp_path / "bad", tmp_path / "bad" / "running"), (tmp_path / "link", tmp_path / "link")):
        assert f"{state}: {place} is no folder that can be written to" in complaint(state)
    assert complaint(Path("/proc/none")).startswith("/proc/none: /proc is no folder")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("end", "choices"), [("kill", [1, 2, -3]), ("return", None)])
def test_another_process_writes_what_the_owner_reads(slot, path, end, choices):
    child = subprocess.run([sys.executable, "-c", CHILD, str(path), end], check=False)
    assert child.returncode == (-signal.SIGKILL if end == "kill" else 0)
    running = slot.running()
    assert (running and (running.choices, running.seed, running.index)) == (choices and (choices, 7, 11))


def test_a_live_owner_keeps_its_slot_and_a_dead_one_leaves_its_case(path):
    with subprocess.Popen([sys.executable, "-c", PARENT, str(path)], stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        assert list(leftovers(path.parent)) == []
        assert path.exists()
        parent.kill()
        parent.wait()
        [(meta, running)] = leftovers(path.parent)
    assert (meta, running.choices) == (WHAT, [4, 5])
    assert not path.exists()
    assert list(leftovers(path.parent)) == []


def test_a_slot_in_this_process_is_locked_too(slot, path):
    slot.begin([1])
    assert list(leftovers(path.parent)) == []
    with path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("running", [False, True])
def test_a_closed_slot_is_left_or_removed(path, running):
    slot = Slot(path, create=WHAT)
    if running:
        slot.begin([3])
    slot.close()
    assert [item.choices for _, item in leftovers(path.parent)] == ([[3]] if running else [])
    assert not path.exists()
    Slot(path, create=WHAT).close(remove=True)
    assert not path.exists()


def test_removing_a_slot_that_is_gone_is_no_error(path):
    slot = Slot(path, create=WHAT)
    path.unlink()
    slot.close(remove=True)
    assert not path.exists()


def left(path, change) -> list:
    slot = Slot(path, create=WHAT)
    slot.begin([1, 2, 3])
    slot.close()
    content = bytearray(path.read_bytes())
    assert len(content) == SIZE
    path.write_bytes(change(content))
    found = list(leftovers(path.parent))
    assert not path.exists(), "a leftover is reported once"
    return found


@pytest.mark.parametrize("length", [0, 1, META, META + HEADER.size, SIZE - 1])
def test_a_truncated_file_is_no_case(path, length):
    assert left(path, lambda content: content[:length]) == []


@pytest.mark.parametrize("at", [0, 3, 10])
def test_garbage_in_the_description_is_no_case(path, at):
    assert left(path, lambda content: content[:at] + b"\xff{" + content[at + 2 :]) == []


def test_truncated_files_leave_no_descriptor_open(path):
    before = len(os.listdir("/proc/self/fd"))
    left(path, lambda content: content[:100])
    assert len(os.listdir("/proc/self/fd")) == before


def test_random_bytes_are_no_case(path):
    assert left(path, lambda content: b"\xa7" * SIZE) == []


def test_zeros_are_no_case(path):
    assert left(path, lambda content: bytes(SIZE)) == []


def test_an_impossible_count_leaves_seed_and_index(path):
    def change(content):
        struct.pack_into("<I", content, META + HEADER.size - 8, 2**32 - 1)
        return content

    [(_, running)] = left(path, change)
    assert running.choices is None


def test_a_description_of_another_kind_is_no_case(path):
    assert left(path, lambda content: b'{"contract": 3}'.ljust(META, b"\0") + content[META:]) == []


def test_several_leftovers_come_in_order_and_other_files_stay(path):
    for number in (2, 1, 3):
        slot = Slot(path.with_name(f"{number}.slot"), create=WHAT)
        slot.begin([number])
        slot.close()
    note = path.with_name("note.txt")
    note.write_text("stays")
    assert [running.choices for _, running in leftovers(path.parent)] == [[1], [2], [3]]
    assert os.listdir(path.parent) == ["note.txt"]


def test_no_directory_means_no_leftovers(tmp_path):
    assert list(leftovers(tmp_path / "absent")) == []
