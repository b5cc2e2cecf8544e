"""Two ways to a kernel's instructions give the same: this project's from the text, and one from the binary.

tinygrad has the encodings; it is no dependency, because the modules used are its private ones. tests/README.md says how
to install it.
"""

import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from oracles import isa
from oracles.arrays import array
from oracles.backends import by_name
from oracles.backends.cdna.assembly import parse
from oracles.backends.cdna.code_object import read
from oracles.backends.cdna.ir import ARCHITECTURES, Instruction
from oracles.contracts import all_contracts
from oracles.providers import resolve

HERE = Path(__file__).parent
FUNCTION = '\t.amdgcn_target "amdgcn-amd-amdhsa--{}"\n\t.text\nk:\n\t{}\n.Lfunc_end0:\n'


@pytest.fixture(scope="module")
def decode():
    pytest.importorskip(
        "tinygrad.renderer.amd", reason="tinygrad, whose tables of the encodings are used, is not installed"
    )
    return runpy.run_path(str(HERE / "cdna_decoder.py"))["decode"]


def seen(instruction: Instruction) -> tuple:
    """What both ways have to agree on."""
    return instruction.name, instruction.operands, dict(instruction.modifiers), instruction.target


def differences(ours: tuple[Instruction, ...], others: list[Instruction]) -> list[tuple]:
    assert [item.name for item in ours] == [item.name for item in others]
    return [
        (one.text, seen(one), seen(other)) for one, other in zip(ours, others, strict=True) if seen(one) != seen(other)
    ]


def compiled(folder: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Name, architecture, text and binary of every variant of the kernels of ``cdna_kernels.py``."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "cdna_kernels.py"), str(folder), "every"],
        env={**environment, "TRITON_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for item in json.loads((folder / "index.json").read_text()):
        text, binary = Path(item["stem"] + ".s").read_text(), Path(item["stem"] + ".hsaco").read_bytes()
        yield item["name"], item["architecture"], text, binary


def launched() -> Iterator[tuple[str, str, str, bytes]]:
    """The same of the kernels that this project's implementations launch, those for large batches too."""
    for contract in all_contracts():
        if contract.runs != "triton":
            continue
        (implementation,) = resolve("optimized", [contract], named=True)
        inputs = isa.typical(contract)
        if contract.name == "chunk_metadata":
            inputs += [_batch(count, dtype) for count in (1100, 9000) for dtype in ("int32", "int64")]
        for architecture in ARCHITECTURES:
            answer = isa.compiled(contract, implementation, by_name(architecture), inputs)
            assert answer.errors == []
            for kernel in answer.kernels:
                yield kernel.name, architecture, kernel.text, kernel.binary


def _batch(count: int, dtype: str) -> dict:
    starts = array(np.arange(count + 1) * 3, dtype)
    return {"cu_seqlens": starts, "cu_seqlens_cpu": starts, "chunk_size": 2}


@pytest.mark.slow
def test_text_and_binary_give_the_same_instructions(decode, tmp_path) -> None:
    programs, instructions, names = 0, 0, set()
    for name, architecture, text, binary in [*compiled(tmp_path), *launched()]:
        program, code = parse(text, name, architecture), read(binary)
        others = decode(code.code, [item.name for item in program.instructions])
        assert differences(program.instructions, others) == []
        programs += 1
        instructions += len(others)
        names |= {item.name for item in others}
    print(f"{programs} programs, {instructions} instructions, {len(names)} names")
    assert programs > 100
    assert instructions > 100 * programs
    assert len(names) > 200


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_form_of_instruction(decode, architecture) -> None:
    """Lines as LLVM writes them, for what the kernels above do not happen to contain."""
    from triton.backends.amd import compiler

    # Before 3.9 only the C++ module has it.
    assemble = getattr(compiler, "assemble_amdgcn", None) or compiler.amd.assemble_amdgcn
    lines = (HERE / "cdna_instructions.txt").read_text().splitlines()
    here = [line.partition(": ")[2] or line for line in lines if line.split(": ")[0] in (architecture, line)]
    assert len(here) > 200
    text = FUNCTION.format(architecture, "\n\t".join(here))
    section = ELFFile(io.BytesIO(assemble(text, architecture, ""))).get_section_by_name(".text")
    ours = parse(text, "k", architecture).instructions
    assert differences(ours, decode(section.data(), [item.name for item in ours])) == []
