"""Source trees: what is read, and everything that is refused, by name and reason."""

import os
import stat
import struct
import subprocess
import zipfile

import pytest

from oracles.providers.archives import ArchiveTree
from oracles.providers.base import ProviderError
from oracles.providers.git import GitTree
from oracles.providers.projects import Project
from oracles.providers.trees import MOST_BYTES, DirectoryTree, TextTree
from oracles.providers.upstream import open_tree

PKG = Project(package="pkg", distributions=("pkg",))
METADATA = "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n"


def wheel(
    folder, entries=None, *, name="pkg-1.0-py3-none-any.whl", metadata=METADATA, compression=zipfile.ZIP_DEFLATED
):
    path = folder / name
    with zipfile.ZipFile(path, "w", compression) as file:
        for entry, text in (entries or {"pkg/a.py": "A = 1\n"}).items():
            file.writestr(entry, text)
        if metadata is not None:
            file.writestr("pkg-1.0.dist-info/METADATA", metadata)
    return path


def patched(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    return path


BAD_PATHS = ["/etc/passwd", "../x.py", "a/../../x.py", "a/./b.py", "a//b.py", "", "a\\b.py", "..", "a/", "a\0b", "a\nb"]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_no_tree_takes_a_path_that_could_leave_it(tmp_path, path):
    for tree in (TextTree({}), DirectoryTree(tmp_path, "x"), ArchiveTree(wheel(tmp_path))):
        with pytest.raises(ProviderError, match="not a path inside a source tree"):
            tree.read(path)


# Directories


def test_directory_reads_files_and_nothing_else(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_bytes(b"\xef\xbb\xbfA = 1\r\nB = 2\r")
    os.mkfifo(tmp_path / "pkg/pipe.py")
    tree = DirectoryTree(tmp_path, "x")
    assert tree.read("pkg/a.py") == "A = 1\nB = 2\n"
    assert [tree.read(path) for path in ("pkg", "pkg/none.py", "pkg/pipe.py", "pkg/a.py/b.py")] == [None] * 4


def test_symbolic_links_may_not_leave_the_directory(tmp_path):
    inside, outside = tmp_path / "tree", tmp_path / "secret.py"
    inside.mkdir()
    outside.write_text("SECRET = 1\n")
    (inside / "real.py").write_text("A = 1\n")
    (inside / "near.py").symlink_to("real.py")
    (inside / "far.py").symlink_to(outside)
    (inside / "folder").symlink_to(tmp_path)
    (inside / "loop.py").symlink_to("loop.py")
    (inside / "dangling.py").symlink_to("nothing.py")
    tree = DirectoryTree(inside, "x")
    assert tree.read("near.py") == "A = 1\n"
    assert tree.read("dangling.py") is None
    for path in ("far.py", "folder/secret.py"):
        with pytest.raises(ProviderError, match=r"a symbolic link leaves"):
            tree.read(path)
    # Python 3.13 resolves a loop to itself, which is then no regular file.
    try:
        assert tree.read("loop.py") is None
    except ProviderError as error:
        assert "loop.py: cannot be read" in str(error)  # noqa: PT017


def test_directory_refuses_large_files_and_other_encodings(tmp_path):
    (tmp_path / "large.py").write_bytes(b"#" * (MOST_BYTES + 1))
    (tmp_path / "latin.py").write_bytes("ä = 1".encode("latin-1"))
    tree = DirectoryTree(tmp_path, "x")
    with pytest.raises(ProviderError, match=r"large\.py: larger than"):
        tree.read("large.py")
    with pytest.raises(ProviderError, match=r"latin\.py: not UTF-8"):
        tree.read("latin.py")


@pytest.mark.parametrize(
    ("files", "label"),
    [
        ({"pkg-1.0.dist-info/METADATA": METADATA}, "pkg 1.0 (directory)"),
        ({"other-3.0.dist-info/METADATA": METADATA}, "pkg, unknown version (directory)"),
        ({"pkg/_version.py": "__version__ = version = '2.0'\n"}, "pkg 2.0 (directory)"),
        ({"pkg/version.py": "import os\n__version__ = os.environ['V']\n"}, "pkg, unknown version (directory)"),
        ({"pkg/__init__.py": "__version__ = '4.0'\n"}, "pkg 4.0 (directory)"),
        ({"pkg/_version.py": "def (\n"}, "pkg, unknown version (directory)"),
        (
            {"pkg-1.0.dist-info/METADATA": METADATA, "pkg-2.0.dist-info/METADATA": METADATA},
            "pkg, unknown version (directory)",
        ),
    ],
)
def test_directory_label(tmp_path, files, label):
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert open_tree(str(tmp_path), PKG).label == label


def test_the_package_itself_may_be_named(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("__version__ = '1.5'\n")
    tree = open_tree(str(tmp_path / "pkg"), PKG)
    assert tree.label == "pkg 1.5 (directory)"
    assert tree.read("pkg/__init__.py") is not None


# Wheels and zips


def test_wheel_is_read_in_place(tmp_path):
    tree = ArchiveTree(wheel(tmp_path))
    assert tree.label == "pkg 1.0 (wheel)"
    assert tree.read("pkg/a.py") == "A = 1\n"
    assert tree.read("pkg/b.py") is None
    assert tree.read("pkg") is None
    assert [path.name for path in tmp_path.iterdir()] == ["pkg-1.0-py3-none-any.whl"]


def test_zip_of_a_repository(tmp_path):
    tree = ArchiveTree(wheel(tmp_path, {"pkg/a.py": "A = 1\n"}, name="plain.zip", metadata=None))
    assert (tree.label, tree.read("pkg/a.py")) == ("plain, unknown version (zip)", "A = 1\n")
    entries = {"pkg-main/pyproject.toml": "", "pkg-main/pkg/a.py": "A = 2\n", "pkg-main/PKG-INFO": METADATA}
    tree = ArchiveTree(wheel(tmp_path, entries, name="main.zip", metadata=None))
    assert (tree.label, tree.read("pkg/a.py")) == ("pkg 1.0 (zip)", "A = 2\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a readable wheel or zip"),
        (b"hello\n", "not a readable wheel"),
        (b"PK\3\4" + b"\0" * 99, "not a readable"),
    ],
)
def test_what_is_no_zip(tmp_path, content, reason):
    path = tmp_path / "pkg-1.0-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(ProviderError, match=reason) as info:
        ArchiveTree(path)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.99])
def test_a_truncated_wheel(tmp_path, keep):
    path = wheel(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ProviderError, match=r"pkg-1\.0-py3-none-any\.whl: not a readable wheel"):
        ArchiveTree(path)


@pytest.mark.parametrize("entry", ["/abs/a.py", "../up.py", "pkg/../../up.py", "pkg\\a.py", "pkg//a.py", "./a.py"])
def test_entries_that_leave_the_archive(tmp_path, entry):
    with pytest.raises(ProviderError, match=r"\.whl: entry .* has a name that is absolute or leaves the archive"):
        ArchiveTree(wheel(tmp_path, {entry: "A = 1\n"}))


def test_a_name_cut_by_a_null_character(tmp_path):
    path = patched(wheel(tmp_path, {"pkg/a.pyX": "A = 1\n"}), b"pkg/a.pyX", b"pkg/a.py\0")
    with pytest.raises(ProviderError, match="has a name that cannot be trusted"):
        ArchiveTree(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile says so while the test writes it
def test_an_entry_that_is_there_twice(tmp_path):
    path = wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("pkg/a.py", "A = 2\n")
    with pytest.raises(ProviderError, match=r"entry 'pkg/a\.py' is there twice"):
        ArchiveTree(path)


def test_wrong_checksum(tmp_path):
    path = patched(wheel(tmp_path, compression=zipfile.ZIP_STORED), b"A = 1\n", b"A = 2\n")
    tree = ArchiveTree(path)
    with pytest.raises(ProviderError, match=r"\.whl: pkg/a\.py cannot be read: Bad CRC-32"):
        tree.read("pkg/a.py")


def test_garbage_in_compressed_data(tmp_path):
    path = wheel(tmp_path, {"pkg/a.py": "".join(f"A{n} = {n}\n" for n in range(200))})
    with zipfile.ZipFile(path) as file:
        start = file.getinfo("pkg/a.py").header_offset + 30 + len("pkg/a.py")
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(ProviderError, match=r"pkg/a\.py cannot be read"):
        ArchiveTree(path).read("pkg/a.py")


def test_encrypted_entries(tmp_path):
    path = wheel(tmp_path)
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = content.index(signature) + offset
        struct.pack_into("<H", content, at, struct.unpack_from("<H", content, at)[0] | 1)
    path.write_bytes(content)
    with pytest.raises(ProviderError, match=r"entry 'pkg/a\.py' is encrypted"):
        ArchiveTree(path)


def test_absurd_compression_and_size(tmp_path):
    with pytest.raises(ProviderError, match=r"entry 'pkg/a\.py' is compressed more than 200-fold"):
        ArchiveTree(wheel(tmp_path, {"pkg/a.py": "#" * (1 << 20)}))
    with pytest.raises(ProviderError, match=r"entry 'pkg/a\.py' is larger than"):
        ArchiveTree(wheel(tmp_path, {"pkg/a.py": "#" * (MOST_BYTES + 1)}))
    # Only sources are ever read: a blank library is no reason to refuse the wheel.
    assert ArchiveTree(wheel(tmp_path, {"pkg/a.so": "\0" * (MOST_BYTES + 1)})).read("pkg/a.py") is None


def test_an_understated_size_gives_no_more_than_it_says(tmp_path):
    path = wheel(tmp_path, {"pkg/a.py": "#" * 60_000})
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<L", 60_000), struct.pack("<L", 10)))
    with pytest.raises(ProviderError, match=r"pkg/a\.py cannot be read"):
        ArchiveTree(path).read("pkg/a.py")


def test_an_unknown_compression(tmp_path):
    path = wheel(tmp_path)
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, content.index(b"PK\1\2") + 10, 99)
    struct.pack_into("<H", content, content.index(b"PK\3\4") + 8, 99)
    path.write_bytes(content)
    with pytest.raises(ProviderError, match=r"pkg/a\.py cannot be read: .*compression"):
        ArchiveTree(path).read("pkg/a.py")


def test_symbolic_links_in_archives_are_refused(tmp_path):
    path = tmp_path / "links.zip"
    with zipfile.ZipFile(path, "w") as file:
        info = zipfile.ZipInfo("pkg/a.py")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc/passwd")
    with pytest.raises(ProviderError, match=r"pkg/a\.py is a symbolic link"):
        ArchiveTree(path).read("pkg/a.py")


def test_encoding_in_archives(tmp_path):
    with pytest.raises(ProviderError, match=r"\.whl: pkg/a\.py: not UTF-8"):
        ArchiveTree(wheel(tmp_path, {"pkg/a.py": b"\xff\xfe"})).read("pkg/a.py")


@pytest.mark.parametrize(
    ("name", "metadata", "reason"),
    [
        ("pkg-2.0-py3-none-any.whl", METADATA, "the file name says pkg 2.0, its METADATA pkg 1.0"),
        ("other-1.0-py3-none-any.whl", METADATA, "the file name says other 1.0, its METADATA pkg 1.0"),
        ("pkg.whl", METADATA, "'pkg.whl' is not the name of a wheel"),
        ("pkg-1.0.whl", METADATA, "is not the name of a wheel"),
        ("pkg-1.0-py3-none-any.whl", None, "0 .*METADATA files; a wheel has one"),
        ("pkg-1.0-py3-none-any.whl", "", "no metadata with one Name and one Version"),
        ("pkg-1.0-py3-none-any.whl", "Name: pkg\n", "no metadata with one Name and one Version"),
        ("pkg-1.0-py3-none-any.whl", METADATA + "Version: 2.0\n", "no metadata with one Name and one Version"),
        ("pkg-1.0-py3-none-any.whl", "Name: pkg\nVersion: 1.0 or so\n", "no metadata with one Name"),
    ],
)
def test_identity_of_a_wheel(tmp_path, name, metadata, reason):
    with pytest.raises(ProviderError, match=reason):
        ArchiveTree(wheel(tmp_path, name=name, metadata=metadata))


@pytest.mark.parametrize(
    ("name", "metadata", "label"),
    [
        ("My_Pkg-1.0-1-cp38-abi3-linux_x86_64.whl", "Name: my.pkg\nVersion: 1.0\n", "my-pkg 1.0 (wheel)"),
        ("pkg-1.0+rocm7-py3-none-any.whl", "Name: pkg\nVersion: 1.0+rocm7\n\nbody\n", "pkg 1.0+rocm7 (wheel)"),
    ],
)
def test_spellings_of_a_wheel(tmp_path, name, metadata, label):
    assert ArchiveTree(wheel(tmp_path, name=name, metadata=metadata)).label == label


# Git


def git(folder, *arguments):
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    folder = tmp_path / "a repo@home"
    (folder / "pkg").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "pkg/a.py").write_text("A = 1\n")
    (folder / "pkg/link.py").symlink_to("a.py")
    (folder / "pkg/[x].py").write_text("X = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "v1")
    (folder / "pkg/a.py").write_text("A = 2\n")
    git(folder, "commit", "-q", "-a", "-m", "two")
    return folder


def test_git_reads_a_revision(repository):
    head = git(repository, "rev-parse", "HEAD")
    for revision, text in (("v1", "A = 1\n"), ("main", "A = 2\n"), ("HEAD~1", "A = 1\n"), (head[:12], "A = 2\n")):
        tree = open_tree(f"git+{repository}@{revision}", PKG)
        assert tree.read("pkg/a.py") == text
    assert tree.label == f"pkg at {head[:10]} (git)"
    assert [tree.read(path) for path in ("pkg/b.py", "pkg", "pkg/*.py", "pkg/[a].py")] == [None] * 4
    assert tree.read("pkg/[x].py") == "X = 1\n"
    with pytest.raises(ProviderError, match=r"link\.py is a symbolic link"):
        tree.read("pkg/link.py")
    with pytest.raises(ProviderError, match="not a path inside"):
        tree.read(":/pkg/../x")


def test_every_tree_says_whether_it_has_a_package(repository, tmp_path):
    (repository / "empty").mkdir()
    trees = [TextTree({"pkg/a.py": ""}), DirectoryTree(repository, "x"), GitTree(str(repository), "v1", "pkg")]
    trees.append(ArchiveTree(wheel(tmp_path)))
    assert [[tree.has(name) for name in ("pkg", "pk", "empty", "a.py")] for tree in trees] == [[True] + [False] * 3] * 4


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE"])
def test_git_is_not_redirected_by_the_environment(repository, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert GitTree(str(repository), "v1", "pkg").read("pkg/a.py") == "A = 1\n"


def test_git_runs_nothing_that_the_repository_names(repository, tmp_path):
    mark = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    script.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "diff.x.textconv",
        "filter.x.smudge",
        "diff.external",
        "core.sshCommand",
    ):
        git(repository, "config", key, str(script))
    (repository / ".git/info/attributes").write_text("*.py diff=x filter=x\n")
    assert GitTree(str(repository), "v1", "pkg").read("pkg/a.py") == "A = 1\n"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("git+https://example.invalid/x.git@main", "only a local repository can be read: clone it"),
        ("git+git@example.invalid:x/y.git@main", "only a local repository"),
        ("git+ssh://git@example.invalid/x@main", "only a local repository"),
        ("git+{repo}", "a repo: there is no such directory"),  # the folder's name holds an @
        ("git+/nowhere/at/all@main", "there is no such directory"),
        ("git+{repo}@nothing", "has no commit 'nothing'"),
        ("git+{repo}@--output=x", "is not a revision"),
        ("git+{repo}@", "is not a revision"),
        ("git+{repo}@HEAD:pkg", "is not a revision"),
        ("git+{repo}/..@HEAD", "is no readable git repository"),
        ("git+@HEAD", "say which revision"),
        ("git+x", "say which revision"),
        ("https://example.invalid/x.whl", "nothing is downloaded"),
        ("/nowhere/at/all.whl", "there is no such file or directory"),
    ],
)
def test_places_that_are_refused(repository, place, reason):
    with pytest.raises(ProviderError, match=reason):
        open_tree(place.format(repo=repository), PKG)
