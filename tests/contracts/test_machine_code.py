"""The machine code of this project's kernels for AMD: nothing is spilled, and no lane has memory of its own."""

import numpy as np
import pytest

from oracles import isa
from oracles.arrays import array
from oracles.backends import by_name
from oracles.backends.cdna.assembly import parse
from oracles.backends.cdna.code_object import read
from oracles.backends.cdna.ir import ARCHITECTURES
from oracles.backends.cdna.statistics import statistics
from oracles.contracts import all_contracts
from oracles.providers import resolve

LAUNCHING = [contract for contract in all_contracts() if contract.runs == "triton"]
KERNELS = {
    "chunk_metadata.chunk_metadata": 2,
    "block_table.BlockTables": 3,
    "block_table.gather_block_tables": 2,
    "block_table.gather_block_tables_windowed": 2,
}
"""Kernels of a contract, where it is not one: of small and large batches, of few groups and many, of apply."""

EVERY_RUN = "chunk_metadata.chunk_metadata"
"""Compiling the kernels of a dozen contracts for two architectures takes minutes; the others are nightly."""

LARGE_BATCHES = (1100, 9000)
"""Sequences: no batch of the domain is as large as those for which ``chunk_metadata`` has another kernel."""


def batch(count: int, dtype: str) -> dict:
    starts = array(np.arange(count + 1) * 3, dtype)
    return {"cu_seqlens": starts, "cu_seqlens_cpu": starts, "chunk_size": 2}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "contract",
    [
        pytest.param(
            contract, id=contract.full_name, marks=[] if contract.full_name == EVERY_RUN else pytest.mark.nightly
        )
        for contract in LAUNCHING
    ],
)
def test_nothing_is_spilled(contract, architecture) -> None:
    (implementation,) = resolve("optimized", [contract], named=True)
    inputs = isa.typical(contract)
    if contract.name == "chunk_metadata":
        inputs += [batch(count, dtype) for count in LARGE_BATCHES for dtype in ("int32", "int64")]
    answer = isa.compiled(contract, implementation, by_name(architecture), inputs)
    assert answer.errors == []
    assert len({kernel.name for kernel in answer.kernels}) == KERNELS.get(contract.full_name, 1)
    for kernel in answer.kernels:
        code = read(kernel.binary)
        assert (code.scratch, code.spilled_vgprs, code.spilled_sgprs, code.agprs) == (0, 0, 0, 0)
        assert code.vgprs <= 128  # at most 128 leave room for four waves on each of a compute unit's four units
        mix = statistics(parse(kernel.text, kernel.name, architecture).instructions).mix
        assert not mix.keys() & {"scratch", "flat", "matrix"}
