"""`oracles list`, the help texts, and what is refused before anything runs."""

import zipfile

import pytest

EXIT_CODES = """\
  Exit codes:
    0  everything was judged and passed
    1  findings (or, with --require, something asked for was missing)
    2  usage: unknown name, unreadable file, malformed wheel
    3  nothing could be judged
    130  interrupted: what was found so far was reported
"""


def test_list_is_plain_in_a_pipe(in_process):
    code, out, err = in_process("list")
    assert (code, err) == (0, "")
    assert not set("┃│━─…") & set(out)
    for word in (
        "chunk_metadata.chunk_metadata",
        "1.1",
        "chunk indices and offsets for chunked linear attention",
        "optimized",
        "vllm:WHEEL",
        "prepare_chunk_metadata_device",
        "prepare_chunk_indices+prepare_chunk_offsets",
        "interpreter",
        "host",
        "available",
    ):
        assert any(word in line for line in out.splitlines()), word


def test_list_has_short_lines_in_a_pipe(in_process):
    _, out, _ = in_process("list")
    assert max(len(line) for line in out.splitlines()) <= 110
    assert "\t" not in out


def test_list_names_every_contract_and_backend(in_process):
    from oracles.backends import all_backends
    from oracles.contracts import all_contracts

    _, out, _ = in_process("list")
    for name in (*all_backends(), *(contract.full_name for contract in all_contracts())):
        assert name in out, name


def test_list_says_why_a_backend_is_unavailable(in_process, monkeypatch):
    from oracles.backends.host import HostBackend

    monkeypatch.setattr(HostBackend, "unavailable", lambda self: "the [red] wire is cut")
    _, out, _ = in_process("list")
    assert "unavailable: the [red] wire is cut" in " ".join(out.split())


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_command_itself(in_process, flag):
    code, out, _ = in_process(flag)
    assert code == 0
    assert out.startswith("Usage: oracles [OPTIONS] COMMAND [ARGS]...\n")
    assert EXIT_CODES in out
    for command in ("check", "explain", "list", "replay"):
        assert f"\n  {command} " in out


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("list", [], ["why one is unavailable"]),
        (
            "check",
            ["--impl", "--backend", "--profile", "--examples", "--seed", "--time-limit", "--jobs", "--json", "--state"],
            ["[CONTRACT|FAMILY]...", "FILE.py:NAME", "smallest case", "Examples:", "[default: ci]", EXIT_CODES],
        ),
        ("replay", ["--impl", "--backend", "--time-limit", "--state"], ["CASE", "found with", EXIT_CODES]),
        ("explain", ["--impl", "--backend", "--state"], ["CASE", "a drawing", "got against"]),
    ],
)
def test_help_teaches(in_process, command, options, words):
    code, out, _ = in_process(command, "--help")
    assert code == 0
    assert out.startswith(f"Usage: oracles {command} [OPTIONS]")
    for word in (*options, *words):
        assert word in out, word
    assert "\\b" not in out


def test_the_examples_stand_on_lines_of_their_own(in_process):
    _, out, _ = in_process("check", "--help")
    for line in (
        "    oracles check                                   all contracts, this project's kernels",
        "    oracles check chunk_metadata --impl mine.py:chunk_metadata --backend host --json out.json",
    ):
        assert line in out.splitlines()


CHECK = ("check", "chunk_metadata.chunk_metadata", "--impl", "mine.py:chunk_metadata")
USAGE = {
    "no such command": (("chekc",), ["chekc"]),
    "no such option": ((*CHECK, "--imp", "optimized"), ["--imp"]),
    "no such contract": (("check", "weather"), ["weather", "chunk_metadata.chunk_metadata"]),
    "no such contract in a family": (("check", "chunk_metadata.x"), ["chunk_metadata.x"]),
    "no such backend": ((*CHECK, "--backend", "moon"), ["moon", "host, interpreter"]),
    "no such profile": ((*CHECK, "--profile", "slow"), ["--profile", "slow", "nightly"]),
    "no such file": ((*CHECK, "--impl", "none.py:f"), ["none.py", "there is no such file"]),
    "no name": ((*CHECK, "--impl", "mine.py"), ["mine.py", "say which callable"]),
    "empty name": ((*CHECK, "--impl", "mine.py:"), ["mine.py", "the name of the callable is missing"]),
    "another name": ((*CHECK, "--impl", "mine.py:chunk_metadat"), ["chunk_metadat", "it has chunk_metadata"]),
    "not Python": ((*CHECK, "--impl", "broken.py:f"), ["broken.py:1", "not valid Python"]),
    "no contract of that name": (("check", "--impl", "mine.py:other"), ["other", "name one on the command line"]),
    "no provider": ((*CHECK, "--impl", "nonsense"), ["nonsense", "is no provider", "FILE.py:NAME"]),
    "empty spec": ((*CHECK, "--impl", ""), ["is no provider"]),
    "no wheel": ((*CHECK, "--impl", "vllm:none.whl"), ["none.whl"]),
    "malformed wheel": ((*CHECK, "--impl", "vllm:bad.whl"), ["bad.whl"]),
    "truncated wheel": ((*CHECK, "--impl", "vllm:half.whl"), ["half.whl"]),
    "wheel of nobody": ((*CHECK, "--impl", "bad.whl"), ["bad.whl", "say whose it is"]),
    "no folder": ((*CHECK, "--json", "none/out.json"), ["--json", "none/out.json", "no such folder"]),
    "a folder for JSON": ((*CHECK, "--json", "."), ["--json"]),
    "negative examples": ((*CHECK, "--examples", "-1"), ["--examples", "-1", "x>=0"]),
    "negative seed": ((*CHECK, "--seed", "-1"), ["--seed", "-1"]),
    "huge seed": ((*CHECK, "--seed", str(1 << 64)), ["--seed"]),
    "no time": ((*CHECK, "--time-limit", "0"), ["--time-limit", "0"]),
    "time that is no number": ((*CHECK, "--time-limit", "nan"), ["--time-limit", "nan"]),
    "endless time": ((*CHECK, "--time-limit", "inf"), ["--time-limit", "inf"]),
    "no jobs": ((*CHECK, "--jobs", "0"), ["--jobs", "0"]),
    "state is a file": ((*CHECK, "--state", "mine.py"), ["--state", "mine.py"]),
    "state where nothing can be made": ((*CHECK, "--state", "/proc/none"), ["--state", "/proc is no folder"]),
    "replay nothing": (("replay",), ["CASE"]),
    "replay a case that is not there": (("replay", "none.json"), ["Error: none.json: cannot be read: No such file"]),
    "explain nothing": (("explain",), ["CASE"]),
}


@pytest.mark.parametrize("mistake", USAGE)
def test_a_usage_error_names_the_value_and_the_rule(in_process, tmp_path, mistake):
    files(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    arguments, words = USAGE[mistake]
    code, out, err = in_process(*arguments)
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("Usage: oracles")
    for word in words:
        assert word in " ".join(err.split()), err
    assert sorted(tmp_path.rglob("*")) == before


def files(folder):
    (folder / "mine.py").write_text("def chunk_metadata(**inputs): pass\ndef other(**inputs): pass\n")
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "bad.whl").write_text("this is no zip")
    with zipfile.ZipFile(folder / "half.whl", "w") as archive:
        archive.writestr("vllm/__init__.py", "x = 1\n" * 1000)
    (folder / "half.whl").write_bytes((folder / "half.whl").read_bytes()[:-30])


def test_a_wheel_without_the_code_is_not_judged(in_process, tmp_path):
    with zipfile.ZipFile(tmp_path / "vllm-0.1-py3-none-any.whl", "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.1\n")
    code, out, err = in_process(
        "check", "chunk_metadata.chunk_metadata", "--impl", "vllm:vllm-0.1-py3-none-any.whl", "--json", "out.json"
    )
    assert (code, err) == (3, ""), (code, out, err)
    assert out.splitlines()[-1].endswith("implementations not judged")
    assert (
        in_process("check", "chunk_metadata.chunk_metadata", "--impl", "vllm:vllm-0.1-py3-none-any.whl", "--require")[0]
        == 1
    )


def test_a_folder_that_cannot_be_written_to(in_process, tmp_path):
    """Found out before anything is run, not after."""
    (tmp_path / "mine.py").write_text("def chunk_metadata(**inputs): pass\n")
    code, _, err = in_process(
        "check", "chunk_metadata.chunk_metadata", "--impl", "mine.py:chunk_metadata", "--state", "mine.py/x"
    )
    assert code == 2
    assert "mine.py/x" in err
