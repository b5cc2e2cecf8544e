"""The binary that Triton launches on AMD: what a launch has to know of it.

It is an ELF file with one kernel: its code, a descriptor of 64 bytes that the hardware's dispatcher reads, and a note
that lists the arguments.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field

import msgspec
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, Symbol, SymbolTableSection

from oracles.verdict import Unsupported, described

MACHINE = "EM_AMDGPU"
ARCHITECTURE_BITS = 0xFF
ARCHITECTURES = {0x4C: "gfx942", 0x4F: "gfx950"}
METADATA_NOTE = 32

DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
USER_DATA = {
    0: "private segment buffer",
    1: "dispatch pointer",
    2: "queue pointer",
    3: "kernel argument pointer",
    4: "dispatch id",
    5: "flat scratch",
    6: "private segment size",
}
"""What the dispatcher puts into scalar registers in front of a workgroup, by bits of the descriptor's properties."""


@dataclass(frozen=True, kw_only=True)
class CodeObject:
    """One kernel's binary.

    ``arguments`` are (kind, offset, size) in the order of the kernel's parameters: ``global_buffer`` and ``by_value``,
    hidden ones last. ``user_sgprs`` scalar registers are filled before the numbers of the workgroup follow, one for
    each true entry of ``workgroup_ids`` (x, y, z); the first two are the address of the arguments. ``preload_length``
    words of the arguments from word ``preload_offset`` on come in the registers behind that address, if the machine
    starts 256 bytes behind the entry. ``scratch`` and ``lds_fixed`` are bytes; local memory that Triton asks for at the
    launch is not among them. ``code`` is the kernel's own, ``entry`` the place in it where it starts.
    """

    architecture: str
    name: str
    kernarg_size: int
    arguments: tuple[tuple[str, int, int], ...]
    user_sgprs: int
    workgroup_ids: tuple[bool, bool, bool]
    scratch: int
    lds_fixed: int
    vgprs: int
    agprs: int
    sgprs: int
    spilled_vgprs: int
    spilled_sgprs: int
    preload_length: int
    preload_offset: int
    code: bytes = field(repr=False)
    entry: int


class _Argument(msgspec.Struct, rename=".{}".format):
    offset: int
    size: int
    value_kind: str


class _Kernel(msgspec.Struct, rename=".{}".format):
    name: str
    symbol: str
    args: list[_Argument]
    vgpr_count: int
    sgpr_count: int
    agpr_count: int = 0
    vgpr_spill_count: int = 0
    sgpr_spill_count: int = 0


class _Metadata(msgspec.Struct):
    kernels: list[_Kernel] = msgspec.field(name="amdhsa.kernels")


def read(blob: bytes) -> CodeObject:
    """What ``blob`` holds.

    Refused with ``ValueError``: what is no AMD code object, or a damaged one. Refused with
    :class:`oracles.verdict.Unsupported`: another architecture than gfx942 and gfx950, more than one kernel, and a
    kernel that wants more of the dispatcher than its arguments.
    """
    try:
        file = ELFFile(io.BytesIO(blob))
        if file["e_machine"] != MACHINE:
            raise ValueError(f"the machine is {file['e_machine']}, where {MACHINE} belongs")
        kernel = _kernel(file)
        symbols = {symbol.name: symbol for symbol in _symbols(file)}
        missing = {kernel.name, kernel.symbol} - symbols.keys()
        if missing:
            raise ValueError(f"there is no symbol {missing.pop()!r}")
        return _described(file, kernel, symbols[kernel.symbol], symbols[kernel.name])
    except (ELFError, msgspec.DecodeError, struct.error, OverflowError) as error:
        raise ValueError(f"no AMD code object: {described(error)}") from error


def _kernel(file: ELFFile) -> _Kernel:
    for section in file.iter_sections():
        if not isinstance(section, NoteSection):
            continue
        for note in section.iter_notes():
            if note["n_name"] == "AMDGPU" and note["n_type"] in (METADATA_NOTE, str(METADATA_NOTE)):
                described = note["n_desc"]
                data = described if isinstance(described, bytes) else bytes(described, "latin-1")
                kernels = msgspec.msgpack.decode(data, type=_Metadata).kernels
                if len(kernels) != 1:
                    raise Unsupported(f"the code object holds {len(kernels)} kernels, where one belongs")
                return kernels[0]
    raise ValueError("there is no note that describes a kernel")


def _symbols(file: ELFFile) -> list[Symbol]:
    tables = [section for section in file.iter_sections() if isinstance(section, SymbolTableSection)]
    return [symbol for table in tables for symbol in table.iter_symbols() if isinstance(symbol["st_shndx"], int)]


def _described(file: ELFFile, kernel: _Kernel, descriptor: Symbol, function: Symbol) -> CodeObject:
    fields = DESCRIPTOR.unpack(_bytes(file, descriptor))
    lds, scratch, kernarg_size, entry, _, _, resources, properties, preload = fields
    for bit, wanted in USER_DATA.items():
        if properties >> bit & 1 and wanted != "kernel argument pointer":
            raise Unsupported(f"kernel {kernel.name} wants the {wanted} in scalar registers")
    code, start = _bytes(file, function), descriptor["st_value"] + entry - function["st_value"]
    if not 0 <= start < len(code):
        raise ValueError(f"{kernel.name} starts {start} bytes into its code, which has {len(code)}")
    return CodeObject(
        architecture=_architecture(file),
        name=kernel.name,
        kernarg_size=kernarg_size,
        arguments=tuple((item.value_kind, item.offset, item.size) for item in kernel.args),
        user_sgprs=resources >> 1 & 0x1F,
        workgroup_ids=(bool(resources >> 7 & 1), bool(resources >> 8 & 1), bool(resources >> 9 & 1)),
        scratch=scratch,
        lds_fixed=lds,
        vgprs=kernel.vgpr_count,
        agprs=kernel.agpr_count,
        sgprs=kernel.sgpr_count,
        spilled_vgprs=kernel.vgpr_spill_count,
        spilled_sgprs=kernel.sgpr_spill_count,
        preload_length=preload & 0x7F,
        preload_offset=preload >> 7,
        code=code,
        entry=start,
    )


def _architecture(file: ELFFile) -> str:
    number = file["e_flags"] & ARCHITECTURE_BITS
    if number not in ARCHITECTURES:
        raise Unsupported(f"architecture {number:#x} of the code object is none of {', '.join(ARCHITECTURES.values())}")
    return ARCHITECTURES[number]


def _bytes(file: ELFFile, symbol: Symbol) -> bytes:
    section = file.get_section(symbol["st_shndx"])
    begin = symbol["st_value"] - section["sh_addr"]
    data: bytes = section.data()[begin : begin + symbol["st_size"]]
    if len(data) != symbol["st_size"] or not data:
        raise ValueError(f"{symbol.name!r} does not lie in its section")
    return data
