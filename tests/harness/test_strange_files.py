"""What else may lie where cases are read from and kept: pipes, devices, folders, files without end, other slots."""

import os
import socket

import numpy as np
import pytest

from oracles import case as cases
from oracles.arrays import array
from oracles.case import Case, CaseError
from oracles.run import interrupted
from oracles.slot import META, SIZE, Meta, Slot, leftovers

NAME = "chunk_metadata.causal_conv1d_metadata"
WHAT = Meta(NAME, "mine.py:f", "f", "host", 7.0)
LARGE = {"x": array(np.arange(5000), "int64")}


def strange(path, what):
    """Put something at a path that is neither a case nor a slot; what has to stay open."""
    if what == "folder":
        (path / "inside").mkdir(parents=True)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "socket":
        held = socket.socket(socket.AF_UNIX)
        held.bind(str(path))
        return held
    elif what == "link to nothing":
        path.symlink_to("nowhere")
    return None


WHATS = ["folder", "pipe", "device", "socket", "link to nothing"]


@pytest.fixture
def short(tmp_path, monkeypatch):
    """A folder with a short name, as the names of sockets have to be short."""
    monkeypatch.chdir(tmp_path)
    return type(tmp_path)()


@pytest.mark.parametrize("what", WHATS)
def test_what_is_no_regular_file_is_no_case(short, what):
    path = short / "case.json"
    held = strange(path, what)
    with pytest.raises(CaseError, match=r"^case\.json: cannot be read: .") as found:
        Case.load(path)
    assert "\n" not in str(found.value)
    if what in ("pipe", "device"):
        assert str(found.value) == "case.json: cannot be read: it is no regular file"
    if held is not None:
        held.close()


def test_a_link_to_a_case_is_a_case(tmp_path):
    Case(contract=NAME, inputs={"x": 1}).save(tmp_path / "case.json")
    (tmp_path / "link.json").symlink_to("case.json")
    assert Case.load(tmp_path / "link.json").inputs == {"x": 1}


def test_a_document_that_no_case_can_be_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "case.json"
    with path.open("wb") as stream:
        stream.truncate(40 << 30)
    with pytest.raises(CaseError, match="larger than 64 MiB, which no case is: large arrays lie beside it"):
        Case.load(path)


@pytest.mark.parametrize("what", WHATS)
def test_no_array_is_read_from_what_is_no_regular_file(short, what):
    path = Case(contract=NAME, inputs=LARGE).save(short / "case.json")
    (short / "case.npz").unlink()
    held = strange(short / "case.npz", what)
    with pytest.raises(CaseError, match=r"^case\.json: x: case\.npz: cannot be read: "):
        Case.load(path)
    if held is not None:
        held.close()


@pytest.mark.parametrize(("count", "there"), [(20_000, 160_128), (4_000, 32_128)])
def test_an_archive_is_looked_at_before_it_is_unpacked(tmp_path, count, there):
    path = Case(contract=NAME, inputs=LARGE).save(tmp_path / "case.json")
    np.savez(tmp_path / "case.npz", x=np.zeros(count, "int64"))
    with pytest.raises(CaseError, match=f"x: .*{there} bytes do not hold an array of 40000, at most {1 << 30}$"):
        Case.load(path)


def test_an_array_that_no_input_is_is_not_unpacked(tmp_path, monkeypatch):
    path = Case(contract=NAME, inputs=LARGE).save(tmp_path / "case.json")
    monkeypatch.setattr(cases, "MOST_ARRAY_BYTES", 39_999)
    with pytest.raises(CaseError, match="an array of 40000, at most 39999"):
        Case.load(path)


@pytest.mark.parametrize("taken", ["case.json", "case.npz"])
def test_a_case_is_kept_beside_a_folder_that_has_its_name(tmp_path, taken):
    (tmp_path / taken).mkdir()
    (tmp_path / "case-1.json").mkdir()
    path = Case(contract=NAME, inputs=LARGE).save(tmp_path / "case.json")
    assert path == tmp_path / "case-2.json"
    assert Case.load(path).inputs == LARGE


def test_a_slot_is_made_beside_a_folder_that_has_its_name(tmp_path):
    (tmp_path / "1.slot").mkdir()
    slot = Slot(tmp_path / "1.slot", create=WHAT)
    assert slot.path.is_file()
    slot.begin([1])
    slot.close()
    assert [meta for meta, _ in leftovers(tmp_path)] == [WHAT]
    assert os.listdir(tmp_path) == ["1.slot"]


@pytest.mark.parametrize("what", WHATS)
def test_what_is_no_slot_stays_and_breaks_no_run(short, what):
    held = strange(short / "0.slot", what)
    slot = Slot(short / "1.slot", create=WHAT)
    slot.begin([1])
    slot.close()
    assert [running.choices for _, running in leftovers(short)] == [[1]]
    assert os.listdir(short) == ["0.slot"]
    if held is not None:
        held.close()


@pytest.mark.parametrize("choices", [[10**15], [-1] * 9, [1] * 4000])
def test_a_slot_whose_choices_are_nonsense_breaks_no_run(tmp_path, choices):
    slot = Slot(tmp_path / "running" / "1.slot", create=WHAT)
    slot.begin(choices)
    slot.close()
    assert all(item.path.is_file() for item in interrupted(tmp_path))
    assert list((tmp_path / "running").iterdir()) == []


@pytest.mark.parametrize(
    "meta", [b'{"contract":"no.contract","spec":"","name":"","backend":""}', b"[]", b"{}", b"", b"\xff"]
)
def test_a_slot_of_another_release_breaks_no_run(tmp_path, meta):
    slot = Slot(tmp_path / "running" / "1.slot", create=WHAT)
    slot.begin([0])
    slot.close()
    content = slot.path.read_bytes()
    slot.path.write_bytes(meta.ljust(META, b"\0") + content[META:SIZE])
    assert interrupted(tmp_path) == []
    assert list((tmp_path / "running").iterdir()) == []


@pytest.mark.parametrize("place", ["a.json", "none.json"])
def test_a_slot_with_a_file_that_is_no_case_breaks_no_run(tmp_path, place):
    os.mkfifo(tmp_path / "a.json")
    slot = Slot(tmp_path / "running" / "1.slot", create=WHAT)
    slot.begin_file(str(tmp_path / place))
    slot.close()
    assert interrupted(tmp_path) == []


def test_the_replay_of_a_run_that_was_killed_has_its_time_limit(tmp_path):
    for number, limit in ((1, 7.0), (2, None)):
        slot = Slot(tmp_path / "running" / f"{number}.slot", create=Meta(NAME, "mine.py:f", "f", "host", limit))
        slot.begin([0, 0, 0])
        slot.close()
    limited, usual = interrupted(tmp_path)
    assert limited.replay == f"{usual.replay} --time-limit 7"
    assert usual.replay.startswith(f"oracles replay {usual.path} --impl mine.py:f --backend host")
