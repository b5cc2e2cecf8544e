"""The binaries that Triton's AMD backend makes: what is read from them, and that damaged ones are refused.

The kernels are compiled in a process of their own, because whether Triton compiles at all is settled at its import.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from oracles.backends.cdna.assembly import parse
from oracles.backends.cdna.code_object import read
from oracles.backends.cdna.statistics import CLASSES, statistics
from oracles.verdict import Unsupported

HERE = Path(__file__).parent
END = (0xBF810000).to_bytes(4, "little")
"""``s_endpgm``."""

FLAGS_OFFSET, MACHINE_OFFSET = 48, 18
PROPERTIES_OFFSET = 56


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> list[dict]:
    """Few variants, each by the names in the index, with its text and binary."""
    folder = tmp_path_factory.mktemp("kernels")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "cdna_kernels.py"), str(folder)],
        env={**environment, "TRITON_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "index.json").read_text())
    for item in found:
        item["text"] = Path(item["stem"] + ".s").read_text()
        item["binary"] = Path(item["stem"] + ".hsaco").read_bytes()
    return found


@pytest.fixture
def binary(kernels) -> bytearray:
    assert kernels[0]["architecture"] == "gfx942"
    return bytearray(kernels[0]["binary"])


def test_what_a_launch_has_to_know(kernels) -> None:
    assert {item["architecture"] for item in kernels} == {"gfx942", "gfx950"}
    for item in kernels:
        code = read(item["binary"])
        assert (code.name, code.architecture) == (item["name"], item["architecture"])
        types = item["signature"].split()
        kinds = [kind for kind, _, _ in code.arguments]
        given = ["global_buffer" if kind.startswith("*") else "by_value" for kind in types]
        scratch = ["global_buffer"] * 2
        assert kinds[: len(types) + 2] == given + scratch
        assert all(kind.startswith("hidden_") for kind in kinds[len(types) + 2 :])
        last_kind, last, size = code.arguments[-1]
        assert code.kernarg_size >= last + size, last_kind
        assert [offset % size for _, offset, size in code.arguments] == [0] * len(kinds)
        assert (code.lds_fixed, code.scratch, code.entry) == (0, 0, 0)
        assert (code.spilled_vgprs, code.spilled_sgprs, code.agprs) == (0, 0, 0)
        assert code.workgroup_ids == (True, "program_id(1)" in item["source"], False)
        assert code.user_sgprs == 2 + code.preload_length
        assert code.preload_offset == 0
        assert 0 < code.vgprs <= 512
        assert 0 < code.sgprs <= 112


def test_the_number_of_programs_is_a_hidden_argument(kernels) -> None:
    for item in kernels:
        kinds = {kind for kind, _, _ in read(item["binary"]).arguments}
        assert ("hidden_block_count_y" in kinds) == ("num_programs(" in item["source"])


def test_the_text_is_that_of_the_code(kernels) -> None:
    for item in kernels:
        code = read(item["binary"])
        program = parse(item["text"], item["name"], item["architecture"])
        # An instruction takes one or two words, and in front of the entry there is filling.
        words = len(code.code) // 4
        assert words / 2 - 64 <= len(program.instructions) <= words
        assert code.code[-4:] == END
        assert program.instructions[-1].name == "s_endpgm"
        targets = [step.target for step in program.instructions if "branch" in step.name]
        assert all(target is not None and target < len(program.instructions) for target in targets)
        lines = [step.line for step in program.instructions if step.line is not None]
        assert any(line.file.endswith("cdna_kernels.py") and line.number > 1 for line in lines)


def test_every_kind_of_instruction_is_counted(kernels) -> None:
    found: set[str] = set()
    for item in kernels:
        program = parse(item["text"], item["name"], item["architecture"])
        counted = statistics(program.instructions)
        assert counted.instructions == len(program.instructions)
        assert counted.lane_addresses <= counted.mix.get("global", 0) + counted.mix.get("flat", 0)
        found |= counted.mix.keys()
    # Triton's kernels of this kind have no scratch memory, matrix products or flat addresses.
    assert found == CLASSES.keys() - {"scratch", "matrix", "flat"}


def test_what_is_no_code_object_is_refused(binary) -> None:
    with pytest.raises(ValueError, match="no AMD code object"):
        read(b"")
    with pytest.raises(ValueError, match="no AMD code object"):
        read(b"not an ELF file at all")
    binary[MACHINE_OFFSET : MACHINE_OFFSET + 2] = (62).to_bytes(2, "little")
    with pytest.raises(ValueError, match="the machine is EM_X86_64, where EM_AMDGPU belongs"):
        read(bytes(binary))


def test_a_truncated_code_object_is_refused(binary) -> None:
    for length in range(0, len(binary), 97):
        with pytest.raises(ValueError):  # noqa: PT011  # what is missing first depends on where it was cut
            read(bytes(binary[:length]))


def test_another_architecture_is_refused(binary) -> None:
    binary[FLAGS_OFFSET] = 0x41
    with pytest.raises(Unsupported, match="architecture 0x41 of the code object is none of gfx942, gfx950"):
        read(bytes(binary))


def test_more_than_arguments_in_scalar_registers_is_refused(binary) -> None:
    file = ELFFile(io.BytesIO(bytes(binary)))
    (symbol,) = file.get_section_by_name(".dynsym").get_symbol_by_name(f"{read(bytes(binary)).name}.kd")
    section = file.get_section(symbol["st_shndx"])
    binary[section["sh_offset"] + symbol["st_value"] - section["sh_addr"] + PROPERTIES_OFFSET] |= 0b10
    with pytest.raises(Unsupported, match="wants the dispatch pointer in scalar registers"):
        read(bytes(binary))
