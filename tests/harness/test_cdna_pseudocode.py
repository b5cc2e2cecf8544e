"""The tables against AMD's own pseudocode of integer instructions, as tinygrad's wheel carries it."""

import random
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

from oracles.backends.cdna.ir import Instruction
from oracles.backends.cdna.lanes import VALUES
from oracles.backends.cdna.tables.forms import row_of
from oracles.backends.cdna.tables.memory import ACCESS, ATOMIC
from oracles.backends.cdna.tables.packed import PACKED
from oracles.backends.cdna.tables.rows import ScalarRow, VectorRow
from oracles.backends.cdna.tables.scalar import SAVEEXEC, SCALAR, SCALAR_COMPARE, SCALAR_TEST, WREXEC
from oracles.backends.cdna.tables.vector import VECTOR

PSEUDOCODE = runpy.run_path(str(Path(__file__).with_name("amd_pseudocode.py")))
Cell, Number, run, translated = (PSEUDOCODE[name] for name in ("Cell", "Number", "run", "translated"))

DTYPES = {"u": np.uint32, "i": np.int32, "w": np.uint32, "U": np.uint64, "I": np.int64}
EDGES = (0, 1, 2, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001,
         0xFFFFFFFE, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF)  # fmt: skip
LANES, ALL_64 = 64, (1 << 64) - 1

NOT_TRANSLATED = {
    "v_bitop3_b32": "takes its table from fields of the encoding",
    "v_bitop3_b16": "takes its table from fields of the encoding",
    "v_perm_b32": "defines a function of several statements",
    "v_sad_u32": "defines a function",
}
"""Integer instructions whose pseudocode is not run, and why; they have values worked out by hand."""

NOT_DESCRIBED = dict.fromkeys(
    ("s_bcnt0_i32_b64", "s_bcnt1_i32_b64"), "takes SCC from 64 bits of which the result is only 32"
)


class Draw:
    """Numbers of 64 bits: edges, small ones and any."""

    def __init__(self) -> None:
        self.source = random.Random(1)

    def __call__(self) -> int:
        kind = self.source.randrange(3)
        return self.source.choice(EDGES) if kind == 0 else self.source.getrandbits(64 if kind == 1 else 7)


@pytest.fixture(scope="module")
def pseudocode() -> dict[str, str]:
    """Text by mnemonic, without the suffix of the encoding."""
    module = pytest.importorskip(
        "tinygrad.runtime.autogen.amd.cdna.str_pcode",
        reason="tinygrad, whose wheel has AMD's pseudocode, is not installed",
    )
    kinds = ("VOP", "SOP", "DSOp", "GLOBALOp")
    found = {op.name.lower(): text for op, text in module.PCODE.items() if type(op).__name__.startswith(kinds)}
    return {re.sub(r"_e(32|64)$", "", name): text for name, text in found.items()}


def differences(
    rows: Mapping[str, Any], pseudocode: dict[str, str], compare: Callable[[Any, CodeType, Draw], str]
) -> dict[str, str]:
    """Where rows and pseudocode differ, by mnemonic. Every row has to have pseudocode that runs."""
    draw = Draw()
    compiled = {name: compile(translated(pseudocode[name]), name, "exec") for name in rows}
    return {name: text for name, row in rows.items() if (text := compare(row, compiled[name], draw))}


def integer_rows() -> dict[str, VectorRow]:
    packed = [name for name in PACKED if not name.endswith(("f16", "f32", "mov_b32"))]
    names = [name for name in (*VECTOR, *sorted(packed)) if name not in NOT_TRANSLATED]
    modifiers = {name: {"op_sel_hi": 7} for name in packed}
    rows = {name: row_of(Instruction(0, name, (), modifiers.get(name, {})), "gfx950") for name in names}
    return {
        name: row for name, row in rows.items() if not set(row.results + VECTOR.get(name, row).sources) & set("fhFpVO")
    }


def width_of(letter: str) -> int:
    return {"m": 1, "w": 16}.get(letter, 8 * np.dtype(DTYPES.get(letter, np.uint32)).itemsize)


def typed(letter: str, values: list[int]) -> np.ndarray:
    if letter == "m":
        return np.array([value & 1 for value in values], bool)
    if letter == "D":
        return np.array(values, np.uint64).astype(np.uint32).view(np.float32)
    return np.array(values, np.uint64).astype(f"u{np.dtype(DTYPES[letter]).itemsize}").view(DTYPES[letter])


def compare_vector(row: VectorRow, code: CodeType, draw: Draw) -> str:
    values = [[draw() for _ in range(LANES)] for _ in row.sources]
    text = row.expression.format(*(f"s[{k}]" for k in range(len(values))))
    with np.errstate(all="ignore"):
        results = eval(text, dict(VALUES), {"s": [typed(*source) for source in zip(row.sources, values, strict=True)]})
    results = results if len(row.results) == 2 else (results,)
    for lane in range(LANES):
        inputs = [source[lane] for source in values]
        old = inputs[-1] if row.sources.endswith("D") else draw()
        carry = inputs[2] & 1 if row.sources.endswith("m") else 0
        d0, d1, vcc = Cell(old), Cell(0), Cell(carry << lane)
        run(
            code, D0=d0, D1=d1, VCC=vcc, laneId=Number(lane), **{f"S{k}": Cell(value) for k, value in enumerate(inputs)}
        )
        mask = d1.get() if "D1" in code.co_names else (vcc if len(row.results) == 2 else d0).get() >> lane
        for letter, result in zip(row.results, results, strict=True):
            expected = (mask if letter == "m" else d0.get()) & (1 << width_of(letter)) - 1
            if int(result[lane]) & (1 << width_of(letter)) - 1 != expected:
                return f"{[hex(value) for value in inputs]}: {int(result[lane]):#x}, pseudocode {expected:#x}"
    return ""


def test_vector_rows_do_what_pseudocode_says(pseudocode):
    rows = integer_rows()
    assert differences(rows, pseudocode, compare_vector) == {}
    assert len(rows) >= 130


def scalar_value(letter: str, value: int, width: int) -> int:
    """The number that a source of a scalar row is."""
    bits = {"K": 16, "B": 32, "i": 32, "D": width, "d": width}.get(letter, 64)
    value &= (1 << bits) - 1
    return value - (1 << bits) if letter in "ijKd" and value >> bits - 1 else value


def compare_scalar(row: ScalarRow, code: CodeType, draw: Draw) -> str:
    for _ in range(100):
        old, scc = draw(), draw() & 1
        inputs = [old if letter in "Dd" else draw() for letter in row.sources]
        texts = [f"({scalar_value(*pair, row.width)})" for pair in zip(row.sources, inputs, strict=True)]
        t = eval(row.value.format(*texts), {"SCC": scc})
        new_scc = eval(row.scc.format(*texts), {"SCC": scc, "t": t}) if row.scc else scc
        d0 = Cell(old)
        operands = [value for letter, value in zip(row.sources, inputs, strict=True) if letter not in "Dd"]
        after = run(code, D0=d0, SCC=Number(scc), **{f"S{k}": Cell(value) for k, value in enumerate(operands)})
        mask = (1 << row.width) - 1
        if (t & mask, new_scc) != (d0.get() & mask, int(after["SCC"])):
            return f"{texts}: {t & mask:#x} SCC {new_scc}, pseudocode {d0.get() & mask:#x} SCC {int(after['SCC'])}"
    return ""


def test_scalar_rows_do_what_pseudocode_says(pseudocode):
    rows = {name: row for name, row in SCALAR.items() if name not in NOT_DESCRIBED}
    assert differences(rows, pseudocode, compare_scalar) == {}
    assert len(rows) >= 75


def compare_condition(row: tuple[str, str], code: CodeType, draw: Draw) -> str:
    letters, expression = row
    for _ in range(100):
        inputs = [draw(), draw()]
        texts = [f"({scalar_value(letter, value, 64)})" for letter, value in zip(letters, inputs, strict=True)]
        after = run(code, S0=Cell(inputs[0]), S1=Cell(inputs[1]), SCC=Number(0))
        if int(eval(expression.format(*texts))) != int(after["SCC"]):
            return f"{texts}: pseudocode {int(after['SCC'])}"
    return ""


def test_scalar_conditions_do_what_pseudocode_says(pseudocode):
    rows = {name: (letter * 2, f"{{0}} {operator} {{1}}") for name, (letter, operator) in SCALAR_COMPARE.items()}
    rows |= SCALAR_TEST
    for name in rows:
        if name.startswith("s_cmpk"):  # the literal has 16 bits, of the sign that the mnemonic names
            rows[name] = (rows[name][0][0] + ("K" if name.endswith("i32") else "k"), rows[name][1])
    assert differences(rows, pseudocode, compare_literal_condition) == {}


def compare_literal_condition(row: tuple[str, str], code: CodeType, draw: Draw) -> str:
    """Like ``compare_condition``, with ``k`` for an unsigned literal of 16 bits."""
    letters, expression = row
    if not letters.endswith("k"):
        return compare_condition(row, code, draw)
    literal = "({1} & 0xffff)"
    return compare_condition((letters[0] + "B", expression.replace("{1}", literal)), code, draw)


def compare_exec(expressions: tuple[str, bool], code: CodeType, draw: Draw) -> str:
    expression, gets_new = expressions
    for _ in range(100):
        source, old = draw(), draw()
        new = eval(expression.format(f"({source})"), {"E": old}) & ALL_64
        d0, executing = Cell(draw()), Cell(old)
        after = run(code, S0=Cell(source), D0=d0, EXEC=executing, SCC=Number(0))
        if (new, new if gets_new else old, new != 0) != (executing.get(), d0.get(), bool(after["SCC"])):
            return f"{source:#x} {old:#x}: {new:#x}, pseudocode {executing.get():#x}"
    return ""


def test_exec_rows_do_what_pseudocode_says(pseudocode):
    rows = {name: (text, False) for name, text in SAVEEXEC.items()} | {
        name: (text, True) for name, text in WREXEC.items()
    }
    assert differences(rows, pseudocode, compare_exec) == {}


def compare_atomic(name: str, code: CodeType, draw: Draw) -> str:
    row = ATOMIC[name]
    width = width_of(row.type)
    mask = (1 << width) - 1
    for _ in range(100):
        old, first, second = (value & mask for value in (draw(), draw(), draw()))
        second = old if draw() & 1 else second
        values = [typed(row.type, [value]) for value in (old, first, second)]
        with np.errstate(all="ignore"):
            new = int(eval(row.expression.format("s[0]", "s[1]", "s[2]"), dict(VALUES), {"s": values})[0]) & mask
        cell, returned = Cell(old), Cell(0)
        # DS instructions name the operand to compare with first and the new value second; others have one wide operand.
        lds = row.operands == 2 and "DATA2" in code.co_names
        data = (second, first) if lds else (first | second << width if row.operands == 2 else first, 0)
        run(code, MEM=[cell], DATA=Wide(data[0]), DATA2=Cell(data[1]), RETURN_DATA=returned)
        if (new, old) != (cell.get() & mask, returned.get() & mask):
            return f"{old:#x} {first:#x} {second:#x}: {new:#x}, pseudocode {cell.get() & mask:#x}"
    return ""


class Wide(Cell):
    """A register of up to 128 bits, of which ranges are read."""

    def __getitem__(self, place):
        return Cell(self.get() >> int(place.stop) & (1 << int(place.start) - int(place.stop) + 1) - 1)


def test_atomics_do_what_pseudocode_says(pseudocode):
    rows = {
        name: access.atomic
        for name, access in ACCESS.items()
        if access.what == "atomic" and access.space in ("global", "lds") and ATOMIC[access.atomic].type in "uUiI"
        if not access.atomic.startswith("pk_")
    }
    assert differences(rows, pseudocode, compare_atomic) == {}
    assert len(rows) >= 76
