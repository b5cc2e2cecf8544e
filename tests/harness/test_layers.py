"""The layers and the hygiene of the repository itself."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("reference", "optimized", "oracles")
LONGEST_FILE = 420  # lines: what one reading takes in


def project_files() -> list[Path]:
    """Every file that is, or would be, committed."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the project is not known")
    listing = subprocess.run(
        [git, "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]
    assert files
    return files


def texts() -> dict[Path, str]:
    """The text files among them, by path from the root."""
    found = {}
    for path in project_files():
        content = path.read_bytes()
        if b"\0" not in content:
            found[path.relative_to(ROOT)] = content.decode()
    return found


def check_layers(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages under `root`."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-logo", "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_layers_hold():
    run = check_layers(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("files", "contract"),
    [
        ({"reference/added.py": "import torch"}, "reference imports NumPy"),
        ({"optimized/added.py": "import reference"}, "optimized imports neither"),
        ({"oracles/added.py": "import optimized"}, "only oracles.contracts pairs"),
        (
            {"oracles/contracts/added.py": "", "oracles/added.py": "import oracles.contracts.added"},
            "nothing outside oracles.contracts",
        ),
    ],
    ids=["reference", "optimized", "pairing", "families"],
)
def test_a_new_module_that_breaks_a_layer_is_caught(tmp_path, files, contract):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    run = check_layers(tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    broken = [line for line in run.stdout.splitlines() if line.rstrip().endswith("BROKEN")]
    assert any(line.startswith(contract) for line in broken), run.stdout


def test_every_package_says_what_it_is():
    silent = []
    for package in PACKAGES:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            start = folder / "__init__.py"
            if not start.exists() or not ast.get_docstring(ast.parse(start.read_text())):
                silent.append(str(start.relative_to(ROOT)))
    assert not silent


def test_no_file_is_too_long_to_read():
    lengths = {str(path): len(text.splitlines()) for path, text in texts().items() if path.suffix == ".py"}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def found_in_texts(pattern: str) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_notes_to_self():
    assert found_in_texts(r"\b(TO" + r"DO|FIX" + r"ME)\b") == []


def test_no_path_of_one_machine():
    homes = r"/(?:root|home|Users|work)/\w"
    assert found_in_texts(rf"(?<![\w.:/])(?:{homes}|{re.escape(str(ROOT))}/)") == []


def test_changelog_names_the_version_and_only_what_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[?{re.escape(project['version'])}\b", changelog, re.MULTILINE)
    newest = re.split(r"^## ", changelog, flags=re.MULTILINE)[1]
    words = re.findall(r"`([^`\s]+)`", newest)
    paths = [word for word in words if "/" in word or word.endswith((".py", ".md", ".toml", ".ini"))]
    assert [path for path in paths if not (ROOT / path).exists()] == []
