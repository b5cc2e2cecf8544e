"""pytest with this project's plugin, as a user starts it: options, outcomes, reports, workers that die."""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from oracles.case import Case
from oracles.contracts import by_name
from oracles.messages import Walk
from oracles.plugin.jobs import Job
from oracles.plugin.oracle import properties
from oracles.plugin.reporting import Reporting
from oracles.results import Result
from oracles.run import plan
from oracles.worker import _walked

ROOT = Path(__file__).resolve().parents[2]
SUITE_NAME = "oracles.plugin.suite"
DATA = Path(__file__).parent / "data"
CONTRACT = "chunk_metadata.chunk_metadata"
# A scope of a few dozen inputs, for tests of what surrounds the judging.
SMALL = """\
from hypothesis import settings
from oracles import domain, results
from oracles.plugin import oracle
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
results.PROFILES["ci"] = results.Profile(domain.Scope(1, 2), 5)
oracle.CORPUS = __import__("pathlib").Path("none")
"""


@dataclass(frozen=True)
class Ended:
    """A run of pytest that has ended; ``cases`` are the tests of its JUnit XML by name."""

    code: int
    out: str
    cases: dict[str, ElementTree.Element]

    def properties(self, name: str) -> list[str]:
        """All values of a property in all tests."""
        found = [item for case in self.cases.values() for item in case.iter("property")]
        return [item.attrib["value"] for item in found if item.attrib["name"] == name]


@pytest.fixture
def run(tmp_path):
    """Run pytest in an empty folder with a small scope."""

    def start(*arguments: str, plugin: str = "", env: dict[str, str] | None = None) -> Ended:
        (tmp_path / "small_scope.py").write_text(SMALL + plugin)
        xml = tmp_path / "junit.xml"
        plugins = ["-p", "oracles.pytest_plugin", "-p", "small_scope", "-p", "no:cacheprovider"]
        process = subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, f"--junit-xml={xml}", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "COLUMNS": "160"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        cases = ElementTree.parse(xml).iter("testcase") if xml.exists() else ()
        return Ended(process.returncode, process.stdout, {case.attrib["name"]: case for case in cases})

    return start


def test_a_finding_fails_with_its_smallest_case_and_a_replay_line_that_works(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DATA)!r})\nfrom good import chunk_metadata as good\n"
        "def off_by_one(**inputs):\n    indices, offsets = good(**inputs)\n    return indices, offsets + 1\n"
    )
    ended = run("--impl", "mine.py:off_by_one", "--contract", CONTRACT, "--backend", "host")
    assert ended.code == 1, ended.out
    ((name, test),) = ended.cases.items()
    assert (test.attrib["classname"], name) == (SUITE_NAME, f"test_implementation[{CONTRACT}-off_by_one@mine.py-host]")
    findings = zip(*map(ended.properties, ("bucket", "case", "case_file", "replay")), strict=True)
    bucket = "wrong_value:chunk_offsets"
    ((_, identifier, path, replay),) = (finding for finding in findings if finding[0] == bucket)
    assert Case.load(tmp_path / path).id == identifier
    assert f"replay: {replay}" in ended.out
    assert "oracle.check()" not in ended.out, "a finding is no traceback of the harness"
    words = replay.split()
    assert words[:2] == ["oracles", "replay"]
    again = subprocess.run(
        [sys.executable, "-m", "oracles", *words[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (again.returncode, bucket in again.stdout) == (1, True), again.stdout + again.stderr


def test_what_is_missing_is_said_and_nothing_judged_is_no_success(run):
    ended = run("--impl", "optimized", "--contract", CONTRACT, "--backend", "host", "-q")
    assert ended.code == pytest.ExitCode.NO_TESTS_COLLECTED, ended.out
    (case,) = ended.cases.values()
    assert "runs none" in case.find("skipped").attrib["message"]
    assert "not judged" in ended.out
    assert "nothing was judged" in ended.out


def test_require_fails_for_what_is_missing(run):
    ended = run("--impl", "optimized", "--contract", CONTRACT, "--backend", "host", "--require")
    assert ended.code == 1, ended.out
    assert "runs none" in next(iter(ended.cases.values())).find("failure").attrib["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--impl", "nothing.whl"), "say whose it is"),
        (("--contract", "nothing"), "nothing"),
        (("--backend", "nothing"), "there is no backend 'nothing'"),
        (("--impl", "optimized", "--oracle-shards", "0"), "--oracle-shards: 0"),
        (("--impl", "optimized", "--oracle-examples", "-1"), "--oracle-examples: -1"),
        (("--impl", "optimized", "--oracle-time-limit", "nan"), "--oracle-time-limit: nan"),
        (("--oracle-state", "/proc/none"), "--oracle-state: /proc/none: /proc is no folder"),
        (("--impl", "optimized", "--oracle-state", os.devnull), f"--oracle-state: {os.devnull}: "),
    ],
)
def test_what_means_nothing_is_refused(pytester, arguments, message):
    # In this process, because nothing is judged.
    ended = pytester.runpytest_inprocess("-p", "oracles.pytest_plugin", *arguments)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert message in "\n".join(ended.errlines)


@pytest.mark.parametrize("option", ["--impl", "--contract", "--backend", "--no-known", "--require"])
def test_an_option_that_a_conftest_defines_too_is_named(pytester, option):
    pytester.makeconftest(f"def pytest_addoption(parser):\n    parser.addoption({option!r}, default='')\n")
    ended = pytester.runpytest_inprocess("-p", "oracles.pytest_plugin")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {option}: oracles.pytest_plugin and another" in "\n".join(ended.errlines)


def test_a_mistake_in_a_conftest_stays_what_it_is(pytester):
    pytester.makeconftest("def pytest_addoption(parser):\n    raise ValueError('it is --require that I mean not')\n")
    with pytest.raises(ValueError, match="I mean not"):
        pytester.inline_run("-p", "oracles.pytest_plugin", no_reraise_ctrlc=True)


def test_an_id_can_be_given_back(pytester):
    asked = ("-p", "oracles.pytest_plugin", "--contract", CONTRACT, "--oracle-shards", "2", "--collect-only", "-q")
    listed = [line for line in pytester.runpytest_inprocess(*asked).outlines if "::" in line]
    label = f"{CONTRACT}-chunk_metadata@this_project-gfx942"
    suite = "oracles/plugin/suite.py::test_implementation"
    assert listed == [f"{suite}[{label}-shard{number}of2]" for number in (1, 2)]
    again = pytester.runpytest_inprocess(*asked, listed[1])
    assert [line for line in again.outlines if "::" in line] == [listed[1]]


def a_result(**changes) -> Result:
    (task,) = plan([CONTRACT], ["optimized"], []).tasks
    return Result(task, **changes)


def summary(reports=(), unfinished=None) -> list[str]:
    """The lines of the section ``oracles``."""
    reporting, lines = Reporting(None, unfinished or {}), []
    for nodeid in reports:
        said = properties(a_result(judged=5, complete=True))
        reporting.pytest_runtest_logreport(
            SimpleNamespace(nodeid=nodeid, user_properties=said, when="call", duration=0)
        )
    reporting.pytest_terminal_summary(
        SimpleNamespace(section=lambda title: None, write_line=lambda line, **style: lines.append(line))
    )
    return lines


@pytest.mark.parametrize(
    ("stage", "judged", "begin", "end"),
    [
        ("corpus", 8, "interrupted  ", "8 cases | interrupted while replaying kept cases"),
        ("sampling", 8, "interrupted  ", "8 cases | interrupted while sampling"),
        ("waiting", 0, "not judged   ", "interrupted before it began"),
    ],
)
def test_what_is_interrupted_is_no_pass(stage, judged, begin, end):
    line = summary(unfinished={"suite.py::test[x]": a_result(judged=judged, stage=stage)})[0]
    assert line.startswith(begin)
    assert line.endswith(f" | {end}")


def test_tests_that_judge_the_same_are_told_apart():
    label = "pass         chunk_metadata.chunk_metadata | this project: chunk_metadata | gfx942"
    assert summary(["a.py::test[x]"])[:-1] == [f"{label} | 5 cases"]
    assert summary(["a.py::test[x]", "a.py::other[x]"])[:-1] == [
        f"{label} | a.py::test | 5 cases",
        f"{label} | a.py::other | 5 cases",
    ]
    assert summary(["a.py::test[x-1]", "a.py::test[x-2]"])[1] == f"{label} | a.py::test[x-2] | 5 cases"


def test_a_test_of_one_s_own(run, tmp_path):
    (tmp_path / "test_mine.py").write_text("def test_kernel(oracle):\n    oracle.check()\n")
    spec = f"{DATA / 'good.py'}:chunk_metadata"
    ended = run("test_mine.py", "--impl", spec, "--contract", CONTRACT, "--backend", "host")
    assert ended.code == 0, ended.out
    assert list(ended.cases) == [f"test_kernel[{CONTRACT}-chunk_metadata@good.py-host]"]
    assert "cases judged, 0 findings" in ended.out


def test_a_dead_worker_s_case_is_not_lost(run, tmp_path):
    """The callable kills pytest's own process: the parent of the process that its worker was forked from."""
    (tmp_path / "killer.py").write_text(
        "import os, pathlib, signal\n"
        "def chunk_metadata(**inputs):\n"
        "    nursery = os.getppid()\n"
        "    status = pathlib.Path(f'/proc/{nursery}/status').read_text()\n"
        "    parent = next(line.split()[1] for line in status.splitlines() if line.startswith('PPid:'))\n"
        "    os.kill(int(parent), signal.SIGKILL)\n"
        "    signal.pause()\n"
    )
    spec = "killer.py:chunk_metadata"
    ended = run("--impl", spec, "--contract", CONTRACT, "--backend", "host", "-n", "1", "--dist=worksteal")
    assert ended.code == 1, ended.out
    (line,) = re.findall(r"was running a case; replay it: oracles replay (\S+) ", ended.out)
    assert Case.load(tmp_path / line).contract == CONTRACT
    assert line in next(iter(ended.cases.values())).find("error").text


def test_workers_are_pinned_before_torch_is_imported(run, tmp_path):
    plugin = f"""
import os, sys
import oracles.pytest_plugin
oracles.pytest_plugin.torch_facts = lambda: {{"cuda": "12.8"}}
def pytest_sessionstart(session):
    if hasattr(session.config, "workerinput"):
        said = f"{{os.environ['CUDA_VISIBLE_DEVICES']}} {{'torch' in sys.modules}}\\n"
        open({str(tmp_path / "said")!r}, "a").write(said)
"""
    spec = f"{DATA / 'good.py'}:chunk_metadata"
    options = ("--contract", CONTRACT, "--backend", "host", "-n", "2", "--oracle-shards", "2")
    ended = run("--impl", spec, *options, plugin=plugin, env={"CUDA_VISIBLE_DEVICES": "5,7"})
    assert ended.code == 0, ended.out
    assert sorted((tmp_path / "said").read_text().splitlines()) == ["5 False", "7 False"]
    assert len(ended.cases) == 2


def test_the_shards_of_a_walk_are_the_whole_walk():
    domain = by_name(CONTRACT).domain
    whole = [job.choices for job in _walked(domain, Walk(1, 1, None))]
    parts = [[job.choices for job in _walked(domain, Walk(1, 1, None, part=part, parts=3))] for part in range(3)]
    assert sorted(itertools.chain(*parts)) == sorted(whole)
    assert all(len(part) > len(whole) // 6 for part in parts)
    taken_up = [job.choices for job in _walked(domain, Walk(1, 1, parts[1][4], part=1, parts=3))]
    assert taken_up == parts[1][5:]


def test_labels_are_names_that_select():
    (task,) = plan([CONTRACT], ["optimized"], []).tasks
    assert Job(task).label == f"{CONTRACT}-chunk_metadata@this_project-gfx942"
    assert Job(task, 1, 3).label.endswith("-shard2of3")
