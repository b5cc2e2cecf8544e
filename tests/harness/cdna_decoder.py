"""A second way to a kernel's instructions: from the binary, with tinygrad's tables of the encodings.

It shares nothing with ``oracles.backends.cdna.assembly`` but the records that both make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tinygrad.renderer.amd import decode_inst

from oracles.backends.cdna.ir import Instruction, Integer, Named, Operand, Real, Register

VCC_PAIR = Register("s", 106, 2)
REALS = dict(zip(range(240, 249), (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 0.15915494), strict=True))
NAMED = {251: Named("vccz"), 252: Named("execz"), 253: Named("scc")}
CARRIES = ("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32", "v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32")
CARRIED = (*CARRIES[3:], "v_cndmask_b32")
SCALAR_RESULT = ("v_readfirstlane_b32", "v_readlane_b32")
RENAMED = {"v_mad_mix_f32": "v_fma_mix_f32", "v_mad_mixlo_f16": "v_fma_mixlo_f16", "v_mad_mixhi_f16": "v_fma_mixhi_f16"}
"""gfx90a and later fuse what carries this opcode, and LLVM's name says so."""


def decode(code: bytes, names: Sequence[str]) -> list[Instruction]:
    """The instructions of a kernel, from its first byte to its last one.

    ``names`` are those of the text. Between them the assembler fills up to the next multiple of some bytes, with
    ``s_nop``, where the text wants a loop or the entry aligned; what fills is left out.
    """
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(code):
        item = decode_inst(code[at : at + 16], "cdna")
        expected = names[len(found)] if len(found) < len(names) else ""
        if item.op_name != "S_NOP" or item.simm16 or expected == "s_nop":
            found.append((at, item))
        at += item.size()
    numbers = {address: number for number, (address, _) in enumerate(found)}
    return [_Decoded(item, address).instruction(number, numbers) for number, (address, item) in enumerate(found)]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


class _Decoded:
    def __init__(self, item: Any, address: int) -> None:
        self.item, self.address = item, address
        name = item.op_name.lower().removesuffix("_e32").removesuffix("_e64")
        self.name = RENAMED.get(name, name)
        self.kind = type(item).__name__.removesuffix("_LIT")
        self.modifiers: dict[str, int] = {}
        self.target: int | None = None

    def instruction(self, number: int, numbers: dict[int, int]) -> Instruction:
        operands = tuple(getattr(self, f"_{self.kind.split('_')[0].lower()}")())
        target = None if self.target is None else numbers[self.target]
        return Instruction(number, self.name, operands, self.modifiers, target)

    def _register(self, code: int, count: int) -> Operand:
        if code >= 256:
            return Register("v", code - 256, count)
        if code in REALS:
            return Real(REALS[code])
        if code in NAMED:
            return NAMED[code]
        if code == 255:
            return Integer(self.item.literal)
        if 128 <= code <= 208:
            return Integer(code - 128 if code <= 192 else 192 - code)
        assert code < 128, code
        return Register("s", code, count)

    def _field(self, name: str) -> Operand:
        """A field by the bits that stand in it, with the width that the tables give it."""
        wide = self.item.op_regs.get(name.removeprefix("v") if name in ("vsrc0",) else name, 1)
        return self._register(getattr(self.item, name).offset, wide)

    def _flags(self, *names: str, **renamed: str) -> None:
        for name, shown in {**{name: name for name in names}, **renamed}.items():
            if value := getattr(self.item, name, 0):
                self.modifiers[shown] = value

    def _named(self, *names: str) -> list[Operand]:
        return [self._field(name) for name in names if name in self.item.operands]

    def _ds(self) -> Iterator[Operand]:
        item = self.item
        self._flags("gds")
        if "read2" in self.name or "write2" in self.name:
            self._flags("offset0", "offset1")
        elif offset := item.offset0 | item.offset1 << 8:
            self.modifiers["offset"] = offset
        yield from self._named("vdst", "addr", "data0", "data1")

    def _global(self) -> Iterator[Operand]:
        item = self.item
        if offset := signed(item.offset, 13) if self.kind == "GLOBAL" else item.offset:
            self.modifiers["offset"] = offset
        self._flags("sc0", "sc1", "nt")
        base = item.saddr.offset if self.kind == "GLOBAL" else 127
        address = Register("v", item.addr.offset - 256, 2 if base == 127 else 1)
        result = "vdst" in item.operands and ("atomic" not in self.name or item.sc0)
        yield from self._named("vdst") if result else ()
        yield address
        yield from self._named("data")
        if self.kind == "GLOBAL":
            yield Named("off") if base == 127 else Register("s", base, 2)

    _flat = _global

    def _mubuf(self) -> Iterator[Operand]:
        item = self.item
        self._flags("offen", "idxen", "offset", "sc0", "sc1", "nt", "lds")
        if "srsrc" not in item.operands:
            return
        if not item.lds:
            yield from self._named("vdata")
        count = item.offen + item.idxen
        yield Register("v", item.vaddr.offset - 256, count) if count else Named("off")
        yield from self._named("srsrc", "soffset")

    def _smem(self) -> Iterator[Operand]:
        item = self.item
        self._flags("glc")
        yield from self._named("sdata", "sbase")
        if "soffset" not in item.operands:
            return
        if item.soffset_en:
            yield self._register(item.soffset.offset, 1)
            if item.imm and item.offset:
                self.modifiers["offset"] = signed(item.offset, 21)
        else:
            yield Integer(signed(item.offset, 21)) if item.imm else self._register(item.offset & 127, 1)

    def _sop1(self) -> list[Operand]:
        return self._named("sdst", "ssrc0")

    def _sop2(self) -> list[Operand]:
        return self._named("sdst", "ssrc0", "ssrc1")

    def _sopc(self) -> list[Operand]:
        return self._named("ssrc0", "ssrc1")

    def _sopk(self) -> list[Operand]:
        number = self.item.simm16
        if self.name == "s_setreg_imm32_b32":
            return [Integer(number), Integer(self.item.literal)]
        if self.name == "s_setreg_b32":
            return [Integer(number), *self._named("sdst")]
        return [*self._named("sdst"), Integer(signed(number, 16) if self.name.endswith("i32") else number)]

    def _sopp(self) -> list[Operand]:
        number = self.item.simm16
        if self.name == "s_waitcnt":
            counters = {"vmcnt": (number & 15 | number >> 14 << 4, 63), "expcnt": (number >> 4 & 7, 7)}
            counters["lgkmcnt"] = number >> 8 & 15, 15
            self.modifiers = {name: value for name, (value, most) in counters.items() if value != most}
            return []
        if "branch" in self.name:
            self.target = self.address + 4 + 4 * signed(number, 16)
            return []
        return [Integer(number)] if self.name in ("s_nop", "s_sleep", "s_setprio") else []

    def _result(self) -> list[Operand]:
        if self.name not in SCALAR_RESULT:
            return self._named("vdst")
        return [Register("s", self.item.vdst.offset % 256)]

    def _first(self) -> list[Operand]:
        """The first source, which stands behind the first word where there is DPP or SDWA."""
        if self.kind.endswith("_DPP16"):
            self.modifiers |= {"dpp": self.item.dpp, "bound_ctrl": self.item.bc}
            self.modifiers |= {"row_mask": self.item.row_mask, "bank_mask": self.item.bank_mask}
        elif "_SDWA" in self.kind:
            self._sdwa()
        elif "src0" not in self.item.operands:
            return []
        else:
            return [self._field("src0")]
        for word in ("neg", "abs"):
            bits = getattr(self.item, f"src0_{word}") | getattr(self.item, f"src1_{word}") << 1
            self.modifiers |= {word: bits} if bits else {}
        scalar = getattr(self.item, "s0", 0)
        return [self._register(self.item.vsrc0.offset - 256 * scalar, 1)]

    def _sdwa(self) -> None:
        shown = ["src0_sel"]
        shown += ["src1_sel"] if "vsrc1" in self.item.operands else []
        shown += ["dst_sel", "dst_unused"] if hasattr(self.item, "dst_sel") else []
        self.modifiers |= {name: getattr(self.item, name) for name in shown}
        self._flags(clmp="clamp")
        if bits := self.item.src0_sext | self.item.src1_sext << 1:
            self.modifiers["sext"] = bits

    def _second(self) -> list[Operand]:
        scalar = getattr(self.item, "s1", 0)
        return [self._register(self.item.vsrc1.offset - 256 * scalar, self.item.op_regs.get("vsrc1", 1))]

    def _vop1(self) -> list[Operand]:
        return [*self._result(), *self._first()]

    def _vop2(self) -> Iterator[Operand]:
        yield from self._named("vdst")
        if self.name in CARRIES:
            yield VCC_PAIR
        yield from self._first()
        if "fmamk" in self.name or "madmk" in self.name:
            yield Integer(self.item.literal)
        yield from self._second()
        if "fmaak" in self.name or "madak" in self.name:
            yield Integer(self.item.literal)
        if self.name in CARRIED:
            yield VCC_PAIR

    def _vopc(self) -> Iterator[Operand]:
        elsewhere = "_SDWA" in self.kind and self.item.sd
        yield self._register(self.item.sdst.offset, 2) if elsewhere else VCC_PAIR
        yield from self._first()
        yield from self._second()

    def _vop3(self) -> list[Operand]:
        item = self.item
        self._flags("neg", "abs", clmp="clamp", opsel="op_sel")
        if output := getattr(item, "omod", 0):
            self.modifiers |= {1: {"mul": 2}, 2: {"mul": 4}, 3: {"div": 2}}[output]
        if self.name.startswith("v_bitop3"):
            self._truth_table()
        return [*self._result(), *self._named("src0", "src1", "src2")]

    def _truth_table(self) -> None:
        """Spread over the fields of modifiers that an operation on bits has no use for."""
        bits = self.item
        table = bits.omod << 6 | bits.abs << 3 | bits.neg
        self.modifiers = {"bitop3": table} | ({"op_sel": bits.opsel} if bits.opsel else {})

    def _vop3sd(self) -> list[Operand]:
        self._flags("neg", clmp="clamp")
        return self._named("vdst", "sdst", "src0", "src1", "src2")

    def _vop3p(self) -> list[Operand]:
        item = self.item
        operands = self._named("vdst", "src0", "src1", "src2")
        mixed = "_mix" in self.name
        self._flags(clmp="clamp", opsel="op_sel", **({"neg": "neg", "neg_hi": "abs"} if mixed else {"neg": "neg_lo"}))
        if not mixed:
            self._flags("neg_hi")
        high = item.opsel_hi | item.opsel_hi2 << 2
        if mixed:
            self.modifiers |= {"op_sel_hi": high} if high else {}
        elif self.name.startswith("v_pk_"):
            self.modifiers["op_sel_hi"] = high & (1 << len(operands) - 1) - 1
        return operands
