"""A workbench for short programs in AMD's assembly, run on the machine without Triton."""

from __future__ import annotations

import struct

import numpy as np
import torch

from oracles.arrays import Array
from oracles.backends.cdna.assembly import parse
from oracles.backends.cdna.code_object import CodeObject
from oracles.backends.cdna.machine import LoadedKernel, Machine
from oracles.backends.cdna.reports import LaunchRecord
from oracles.backends.cdna.space import DeviceSpace
from oracles.memory import Memory


def kernel_of(body: str, architecture: str = "gfx942") -> LoadedKernel:
    """A kernel whose arguments' address is in s[0:1] and whose workgroup's number is in s2 to s4."""
    program = parse(f"probe:\n{body}\ts_endpgm\n.Lfunc_end0:\n", "probe", architecture)
    code = CodeObject(
        architecture=architecture,
        name="probe",
        kernarg_size=64,
        arguments=(),
        user_sgprs=2,
        workgroup_ids=(True, True, True),
        scratch=0,
        lds_fixed=0,
        vgprs=256,
        agprs=0,
        sgprs=100,
        spilled_vgprs=0,
        spilled_sgprs=0,
        preload_length=0,
        preload_offset=0,
        code=b"",
        entry=0,
    )
    return LoadedKernel(program, code)


class Bench:
    """One call's memory. Arguments of programs are tensors, by their virtual address, and integers, 8 bytes each."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.space = DeviceSpace(self.memory)

    def tensor(self, values: object, name: str, dtype: type = np.int32, writable: bool = True) -> torch.Tensor:
        return self.memory.place(
            Array(np.dtype(dtype).name, np.array(values, dtype)), name, device=True, writable=writable
        )

    def packed(self, arguments: list[object]) -> bytes:
        numbers = [
            self.space.virtual(argument, f"p{place}") if isinstance(argument, torch.Tensor) else argument
            for place, argument in enumerate(arguments)
        ]
        return b"".join(struct.pack("<Q", number & 2**64 - 1) for number in numbers)

    def run(
        self,
        body: str,
        *arguments: object,
        groups: int = 1,
        warps: int = 1,
        shared: int = 0,
        architecture: str = "gfx942",
        **options: object,
    ) -> LaunchRecord:
        machine = Machine(self.space, **options)
        kernel = kernel_of(body, architecture)
        return machine.launch(kernel, self.packed(list(arguments)), (groups, 1, 1), warps, shared)
