"""The row of an instruction as it stands in a program: with its modifiers, for its architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oracles.backends.cdna.ir import Instruction
from oracles.backends.cdna.tables.convert import of_architecture
from oracles.backends.cdna.tables.half import KEEPS_OTHER_HALF
from oracles.backends.cdna.tables.packed import MIXED, PACKED, in_half, mixed, packed
from oracles.backends.cdna.tables.rows import IMPLICIT, VectorRow, clamped
from oracles.backends.cdna.tables.vector import CLAMPED, VECTOR
from oracles.verdict import Unsupported

FOR_THE_EXECUTOR = frozenset({"dpp", "row_mask", "bank_mask", "bound_ctrl"})
"""Modifiers that move lanes. What executes has to see to them; rows know one lane."""

_ONE_NUMBER = FOR_THE_EXECUTOR | {
    "neg", "abs", "sext", "clamp", "op_sel", "bitop3", "src0_sel", "src1_sel", "dst_sel", "dst_unused",
}  # fmt: skip
_PACKED = frozenset({"op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp"})
_MIXED = frozenset({"op_sel", "op_sel_hi", "neg", "abs", "clamp"})

_DWORD, _PAD, _PRESERVE = 6, 0, 2
_SIGN_OF_BITS = frozenset({"v_cndmask_b32"})
"""Instructions that move bits and let the signs of floats be changed on the way."""

_GFX950_ONLY = frozenset({
    "v_bitop3_b32", "v_bitop3_b16", "v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32", "v_cvt_f32_bf16",
})  # fmt: skip


def row_of(instruction: Instruction, architecture: str) -> VectorRow:
    """What a vector instruction does on one lane.

    Its expression has all modifiers in it but those of ``FOR_THE_EXECUTOR``: sources are given as the registers hold
    them. Refused with :class:`oracles.verdict.Unsupported`: an instruction without a row for the architecture, and a
    modifier that its row does not provide for.
    """
    name, modifiers = instruction.name, instruction.modifiers
    if name in PACKED:
        _refuse_others(instruction, _PACKED)
        return packed(name, modifiers)
    if name in MIXED:
        _refuse_others(instruction, _MIXED)
        return mixed(name, modifiers)
    row = VECTOR.get(name) or of_architecture(architecture).get(name)
    if row is None or (name in _GFX950_ONLY and architecture != "gfx950"):
        raise Unsupported(f"{name} is not known on {architecture} (in {instruction.text!r})")
    _refuse_others(instruction, _ONE_NUMBER)
    return _Form(instruction, row).specialised()


def _refuse_others(instruction: Instruction, provided: frozenset[str]) -> None:
    for name, value in instruction.modifiers.items():
        if name not in provided and value:
            raise _refused(instruction, name)


def _refused(instruction: Instruction, modifier: str) -> Unsupported:
    return Unsupported(f"modifier {modifier} of {instruction.name} is not known (in {instruction.text!r})")


@dataclass(frozen=True)
class _Form:
    """An instruction on one number and the row of its name."""

    instruction: Instruction
    row: VectorRow

    def specialised(self) -> VectorRow:
        row = self._clamped_row()
        sources = [
            f"{{{k}}}" if letter in IMPLICIT else self._source(k, letter) for k, letter in enumerate(row.sources)
        ]
        named = {"op_sel": self._modifier("op_sel"), "bitop3": self._modifier("bitop3")}
        if self._modifier("op_sel") & 7 and "{op_sel}" not in row.expression and not set("hw") & set(row.sources):
            raise _refused(self.instruction, "op_sel")
        row = replace(row, expression=row.expression.format(*sources, **named))
        if self._modifier("clamp") and self.instruction.name not in CLAMPED:
            if row.results not in ("f", "F", "h"):
                raise _refused(self.instruction, "clamp")
            row = replace(row, expression=clamped(row.results, row.expression))
        return self._placed(row)

    def _modifier(self, name: str) -> int:
        return self.instruction.modifiers.get(name, 0)

    def _clamped_row(self) -> VectorRow:
        return CLAMPED.get(self.instruction.name, self.row) if self._modifier("clamp") else self.row

    def _source(self, number: int, letter: str) -> str:
        source = self._selected(f"{{{number}}}", number, letter)
        negated, absolute = self._modifier("neg") >> number & 1, self._modifier("abs") >> number & 1
        if not negated and not absolute:
            return source
        if letter in "fF":
            source = f"magnitude({source})" if absolute else source
            return f"(-{source})" if negated else source
        if letter == "h" or self.instruction.name in _SIGN_OF_BITS:
            sign = 0x8000 if letter == "h" else 0x80000000
            source = f"({source} & {sign - 1:#x})" if absolute else source
            return f"({source} ^ {sign:#x})" if negated else source
        raise _refused(self.instruction, "neg" if negated else "abs")

    def _selected(self, source: str, number: int, letter: str) -> str:
        """The half or byte of a source that counts, at the bottom."""
        if letter in "hw" and self._modifier("op_sel") >> number & 1:
            return f"({source} >> 16)"
        selection = self.instruction.modifiers.get(f"src{number}_sel", _DWORD) if number < 2 else _DWORD
        if selection == _DWORD:
            return source
        if letter not in "uifhw":
            raise _refused(self.instruction, f"src{number}_sel")
        place, width = _bits(selection)
        as_bits = source if letter in "uhw" else f"as_u32({source})"
        if self._modifier("sext") >> number & 1:
            signed = f"(as_i32({as_bits} << {32 - place - width}) >> {32 - width})"
            return signed if letter == "i" else f"as_u32({signed})"
        part = f"({as_bits} >> {place} & {(1 << width) - 1:#x})"
        return part if letter in "uhw" else f"as_{letter}32({part})"

    def _placed(self, row: VectorRow) -> VectorRow:
        """With the result in the half or byte of the destination that it goes to."""
        selection = self.instruction.modifiers.get("dst_sel", _DWORD)
        high = self._modifier("op_sel") >> 3 & 1
        keeps = self.instruction.name in KEEPS_OTHER_HALF
        if high and row.results not in ("h", "w"):
            raise _refused(self.instruction, "op_sel")
        if high or (keeps and selection == _DWORD):
            sources, old = row.sources + "D", f"{{{len(row.sources)}}}"
            return VectorRow("u", sources, in_half(f"({row.expression})", old, high=bool(high), keeps=keeps))
        return row if selection == _DWORD else self._in_part(row, selection)

    def _in_part(self, row: VectorRow, selection: int) -> VectorRow:
        unused = self._modifier("dst_unused")
        if row.results not in tuple("uifhw") or unused not in (_PAD, _PRESERVE):
            raise _refused(self.instruction, "dst_sel")
        place, width = _bits(selection)
        mask = (1 << width) - 1
        number = row.expression if row.results in "uhw" else f"as_u32({row.expression})"
        part = f"((({number}) & {mask:#x}) << {place})"
        if unused == _PAD:
            return VectorRow("u", row.sources, part)
        rest = 0xFFFFFFFF & ~(mask << place)
        return VectorRow("u", row.sources + "D", f"{part} | (as_u32({{{len(row.sources)}}}) & {rest:#x})")


def _bits(selection: int) -> tuple[int, int]:
    """First bit and number of bits of a byte (0 to 3) or word (4 and 5)."""
    return (8 * selection, 8) if selection < 4 else (16 * (selection - 4), 16)
