"""What the front end makes of a kernel's text, and all that the rest knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VCC, M0, EXEC = 106, 124, 126
"""Scalar registers with a name of their own: the first of each pair."""

ARCHITECTURES = ("gfx942", "gfx950")
LANES = 64


@dataclass(frozen=True, slots=True)
class Register:
    """``count`` consecutive 32-bit registers from ``number`` on. ``file``: ``v`` has 64 lanes, ``s`` is a wave's own.

    ``vcc``, ``m0`` and ``exec`` are scalar registers with the numbers above; ``vcc_hi`` is ``VCC + 1``.
    """

    file: Literal["v", "s", "a"]
    number: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Integer:
    """A literal integer as the text has it, negative ones too; the instruction says how many bits count.

    Those of 16 bits that an instruction takes as signed (``s_movk_i32``, ``s_addk_i32``...) are signed. A field of a
    hardware register is the 16 bits of the encoding: register, first bit (from bit 6), bits less one (from bit 11).
    """

    value: int


@dataclass(frozen=True, slots=True)
class Real:
    """A literal floating-point number; for an integer source its 32-bit pattern counts."""

    value: float


@dataclass(frozen=True, slots=True)
class Named:
    """``off`` (no register), ``scc``, ``vccz`` or ``execz``."""

    name: Literal["off", "scc", "vccz", "execz"]


Operand = Register | Integer | Real | Named


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a kernel's source. ``inlined`` is the line that the function it lies in was called from."""

    file: str
    number: int
    inlined: Line | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    ``name`` has no suffix for the encoding (``_e32``, ``_e64``, ``_dpp``, ``_sdwa``); ``number`` is its place in the
    program, and what branches and program counters count; ``target`` is that of a branch. ``modifiers`` are integers by
    the names of the assembly text, and besides:

    * ``neg``, ``abs``, ``sext``: a bit a source, from the first source on as bit 0 (destinations do not count);
    * ``dpp``: the 9-bit control of the encoding; then ``row_mask``, ``bank_mask`` and ``bound_ctrl`` are there too;
    * ``op_sel``, ``op_sel_hi``, ``neg_lo``, ``neg_hi``: a bit an entry of the list; of ``op_sel`` of an instruction
      that is not packed, bit 3 is the destination's. Packed instructions (``v_pk_``) always have ``op_sel_hi``;
    * ``src0_sel``, ``src1_sel``, ``dst_sel``, ``dst_unused``: the code of the SDWA encoding (byte 0..3: 0..3, word
      0..1: 4..5, dword: 6; pad, sext, preserve: 0..2); all that the instruction can have are there;
    * ``mul`` and ``div``: the number in the text;
    * ``offset`` of ``ds_swizzle_b32``: the bits of the encoding, however the text writes them;
    * the counters of ``s_waitcnt`` by their names (``vmcnt``, ``lgkmcnt``, ``expcnt``), those that are waited for;
    * flags such as ``offen``, ``clamp``, ``sc0``: 1.
    """

    number: int
    name: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, int] = field(default_factory=dict)
    target: int | None = None
    text: str = ""
    line: Line | None = None


@dataclass(frozen=True)
class Program:
    """A kernel's instructions in order.

    It starts at the first one, which is the prologue for a machine that preloads no arguments.
    """

    name: str
    architecture: str
    instructions: tuple[Instruction, ...]
