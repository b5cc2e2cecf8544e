"""What can be said of a kernel's machine code without running it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from oracles.backends.cdna.ir import Instruction, Register

CLASSES = {
    "VALU": "vector arithmetic, and moves between registers",
    "SALU": "scalar arithmetic, once a wave",
    "matrix": "matrix products",
    "scalar memory": "loads once a wave, kernel arguments among them",
    "buffer": "vector memory through a descriptor and a 32-bit offset",
    "global": "vector memory through an address",
    "flat": "vector memory through an address that may be one of local memory",
    "scratch": "a lane's own memory: spilled registers, local arrays",
    "cache": "write-backs and invalidations, part of atomic operations and fences",
    "LDS": "memory that a workgroup shares",
    "cross-lane": "values of other lanes: DPP, permutations, reading and writing one lane",
    "branch": "jumps, and the end",
    "barrier": "meetings of a workgroup's waves",
    "wait": "for memory, or for the hardware",
}
"""Classes of instructions, and what each is for."""

_RULES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("cross-lane", r"ds_b?permute_\w+|ds_swizzle_\w+|v_(read|write|readfirst)lane_\w+|v_permlane\w+"),
        ("LDS", r"ds_\w+"),
        ("cache", r"buffer_(wb|inv)\w*|s_dcache\w+|s_icache\w+"),
        ("buffer", r"buffer_\w+"),
        ("global", r"global_\w+"),
        ("flat", r"flat_\w+"),
        ("scratch", r"scratch_\w+"),
        ("matrix", r"v_s?mfmac?_\w+"),
        ("VALU", r"v_\w+"),
        ("scalar memory", r"s_(buffer_)?(load|store|atomic)_\w+|s_mem\w*time"),
        ("branch", r"s_c?branch\w*|s_(set|swap)pc\w+|s_call\w+|s_endpgm"),
        ("barrier", r"s_barrier"),
        ("wait", r"s_waitcnt|s_nop|s_sleep"),
        ("SALU", r"s_\w+"),
    )
)
_WIDE = re.compile(r"v_\w*[iu]64(_[iu]32)?|v_\w*_b64|v_(add|sub|subrev|addc|subb|subbrev)_co_u32")
_NO_ARITHMETIC = re.compile(r"v_mov_b64|v_cmp\w+")


def class_of(instruction: Instruction) -> str:
    """The class, one of :data:`CLASSES`."""
    if "dpp" in instruction.modifiers:
        return "cross-lane"
    return next(name for name, rule in _RULES if rule.fullmatch(instruction.name))


@dataclass(frozen=True)
class Statistics:
    """Counts of a kernel's instructions as they stand in the code, not as they run.

    ``mix`` has the classes that occur, in the order of :data:`CLASSES`. Of the accesses by ``global`` and ``flat``
    instructions, ``lane_addresses`` take a 64-bit address from each lane, and the others add a lane's 32-bit offset to
    a scalar address. ``wide_arithmetic`` counts vector instructions that compute integers of 64 bits, or half of one.
    """

    mix: dict[str, int]
    lane_addresses: int
    wide_arithmetic: int

    @property
    def instructions(self) -> int:
        """All of them."""
        return sum(self.mix.values())


def statistics(instructions: Sequence[Instruction]) -> Statistics:
    """Count."""
    found = Counter(map(class_of, instructions))
    wide = [item for item in instructions if _WIDE.fullmatch(item.name) and not _NO_ARITHMETIC.fullmatch(item.name)]
    return Statistics(
        {name: found[name] for name in CLASSES if found[name]}, sum(map(_from_lanes, instructions)), len(wide)
    )


def _from_lanes(instruction: Instruction) -> bool:
    """Whether an access takes a 64-bit address from each lane, which stands first, or behind a result."""
    if not instruction.name.startswith(("global_", "flat_")):
        return False
    loads = "load" in instruction.name and not instruction.name.startswith("global_load_lds")
    returns = "atomic" in instruction.name and "sc0" in instruction.modifiers
    address = instruction.operands[1 if loads or returns else 0]
    return isinstance(address, Register) and address.count == 2
