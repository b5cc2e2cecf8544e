"""The pages that people follow word for word: their files are written, their commands run, their output compared.

A ``python`` block with a file name is that file; the lines of a ``console`` block are commands, which exit with 0 or
with the number behind ``# exit``; every line of a ``text`` block behind it comes out in that order, as the beginning of
a line, and ``…`` stands for anything. A heading ends what a command printed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oracles.case import Case
from oracles.contracts import all_contracts
from oracles.known import entries
from oracles.report import contracts_page
from oracles.report.known_page import page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$|^## ", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"\s+#(?: exit (\d+))?.*$")
PAGES = ("judge-your-own-kernel.md", "ci.md", "writing-a-contract.md", "implementations.md", "batches.md")
# The whole scope takes minutes; what a page shows is in a smaller one too.
SMALL = "from oracles import domain, results; results.PROFILES['ci'] = results.Profile(domain.Scope(1, 2), 10)"
TOOLS = {
    "oracles": f"{SMALL}; from oracles.cli import main; main(prog_name='oracles')",
    "pytest": f"{SMALL}; import sys, pytest; sys.exit(pytest.main())",
}


@pytest.fixture
def clone(tmp_path):
    """A copy of what a clone holds, with ``oracles`` and ``pytest`` on the path that belong to it."""
    folder = tmp_path / "clone"
    for name in ("reference", "optimized", "oracles", "corpus"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if (ROOT / "wheels").is_dir():
        (folder / "wheels").symlink_to(ROOT / "wheels")
    (tmp_path / "bin").mkdir()
    for name, body in TOOLS.items():
        script = tmp_path / "bin" / name
        script.write_text(f"#!{sys.executable}\n{body}\n")
        script.chmod(0o755)
    return folder


def commands(block):
    for line in block.splitlines():
        command, expected = EXIT.sub("", line), EXIT.search(line)
        yield command, int(expected[1]) if expected and expected[1] else 0


def run(command, folder):
    environment = os.environ | {
        "PATH": f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "COLUMNS": "400",
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )


def compare(shown, printed, command):
    """Every line that the page shows is printed, in that order."""
    rest = iter(printed.splitlines())
    for line in filter(None, shown.splitlines()):
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        assert any(pattern.match(candidate) for candidate in rest), f"{command}: not printed: {line}\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize("name_of_page", PAGES)
def test_a_page_is_right_word_for_word(name_of_page, clone):
    printed, ran, command = "", 0, ""
    for kind, name, body in BLOCK.findall((DOCS / name_of_page).read_text(encoding="utf-8")):
        if not kind:
            printed = ""
        elif kind == "python" and name:
            (clone / name).write_text(body, encoding="utf-8")
        elif kind == "text" and printed:
            compare(body, printed, command)
            printed = ""
        elif kind == "console":
            printed = ""
            for command, code in commands(body):
                if "wheels/" in command and not (clone / "wheels").exists():
                    pytest.skip("the wheel is missing: wheels/")
                ended = run(command, clone)
                assert ended.returncode == code, f"{command}\n{ended.stdout}\n{ended.stderr}"
                printed += ended.stdout
                ran += 1
    assert ran, "a page without commands"


def test_the_workflow_s_command_runs_and_says_what_is_missing(clone):
    """Without a device, ``--require`` makes it fail for that reason and for no other."""
    text = (DOCS / "ci.md").read_text(encoding="utf-8")
    found = re.search(r"- run: >-\n\s+python -m (pytest.*?)\n\s+- uses", text, re.DOTALL)
    command = " ".join(found[1].split()).replace("-n 8", "-n 2").replace("--oracle-shards 4", "--oracle-shards 1")
    assert "-n 2" in command
    assert "--oracle-shards 1" in command
    if not (clone / "wheels").exists():
        pytest.skip("the wheel is missing: wheels/")
    ended = run(command.replace("pytest", "pytest -p oracles.pytest_plugin", 1), clone)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    judged = sum(1 + sum(each.project == "vllm" for each in contract.bindings) for contract in all_contracts())
    assert f"{judged} failed" in ended.stdout
    assert ended.stdout.count("not built for ROCm") >= judged


def test_the_page_of_known_findings_is_up_to_date():
    written = (DOCS / "known-findings.md").read_text(encoding="utf-8")
    assert written == page(entries()), "run python -m oracles.report.known_page docs/known-findings.md"
    assert all(f"]({'../' + entry.case})" in written for entry in entries())


def test_the_page_of_contracts_is_up_to_date():
    written = (DOCS / "contracts.md").read_text(encoding="utf-8")
    assert written == contracts_page.page(list(all_contracts())), "run python -m oracles.report.contracts_page"


def test_every_case_of_a_public_bug_is_named_beside_the_bug():
    told = (DOCS / "public-bugs.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(\.\./(corpus/[\w/-]+\.json)\)", told))
    assert [case for case in sorted(linked) if not (ROOT / case).is_file()] == []
    kept = {path: Case.load(path).origin.get("bugs", []) for path in ROOT.glob("corpus/*/*.json")}
    named = {path.relative_to(ROOT).as_posix() for path, bugs in kept.items() if bugs}
    assert sorted(named - linked) == []


def test_pages_that_readme_names_exist():
    named = re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).is_file()] == []
