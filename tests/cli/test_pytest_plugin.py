"""pytest with this project's plugin, as a user starts it: options, outcomes, reports, workers that die."""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from oracles.case import Case
from oracles.contracts import by_name
from oracles.messages import Walk
from oracles.plugin.jobs import Job
from oracles.run import plan
from oracles.worker import _walked

ROOT = Path(__file__).resolve().parents[2]
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
    assert list(ended.cases) == [f"test_implementation[{CONTRACT}-off_by_one@mine.py-host]"]
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
        (("--impl", "optimized", "--oracle-examples", "0"), "--oracle-examples: 0"),
        (("--impl", "optimized", "--oracle-time-limit", "nan"), "--oracle-time-limit: nan"),
    ],
)
def test_what_means_nothing_is_refused(pytester, arguments, message):
    # In this process, because nothing is judged.
    ended = pytester.runpytest_inprocess("-p", "oracles.pytest_plugin", *arguments)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    assert message in "\n".join(ended.errlines)


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
    assert Job(task).label == f"{CONTRACT}-chunk_metadata@this_project-interpreter"
    assert Job(task, 1, 3).label.endswith("-shard2of3")
