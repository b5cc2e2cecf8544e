"""Code that is made of the tables' expressions computes what the expressions say."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from oracles.backends.cdna.emit import RUNTIME, Emitter, bits, flags
from oracles.backends.cdna.expressions import DTYPES, name_of, number, template
from oracles.backends.cdna.ir import Integer, Real
from oracles.backends.cdna.lanes import VALUES
from oracles.backends.cdna.tables.vector import VECTOR

PROGRAMS = runpy.run_path(str(Path(__file__).with_name("cdna_programs.py")))


def sources_of(kinds, generator):
    """Random bits of each type, masks for the types that are masks."""
    for kind in kinds:
        dtype = np.dtype(DTYPES.get(kind, np.float32 if kind == "D" else bool))
        if dtype.kind == "b":
            yield generator.random(64) < 0.5
        else:
            yield generator.integers(0, 256, 64 * dtype.itemsize, np.uint8).view(dtype)


def same(got, expected):
    parts = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    return all(np.asarray(left).tobytes() == np.asarray(right).tobytes() for left, right in parts)


@pytest.mark.parametrize("literal", [None, 0, 1, 2])
def test_every_row_gives_what_its_expression_says(literal):
    generator = np.random.default_rng(1)
    seen = 0
    for name, row in VECTOR.items():
        if literal is not None and (literal >= len(row.sources) or row.sources[literal] not in DTYPES):
            continue
        expression = row.expression.replace("{bitop3}", "0x9a").replace("{op_sel}", "0")
        arrays = list(sources_of(row.sources, generator))
        emitter = Emitter("gfx950", namespace := dict(RUNTIME))
        given = [emitter.bind(array) for array in arrays]
        if literal is not None:
            given[literal] = Integer(int(generator.integers(-16, 65)))
            arrays[literal] = emitter.constant(given[literal], row.sources[literal])
        with np.errstate(all="ignore"):
            plain = expression.format(*map(name_of, range(len(arrays))))
            names = {name_of(place): array for place, array in enumerate(arrays)}
            expected = eval(plain, dict(VALUES), names)
            got = eval(emitter.expression(expression, row.sources, given), namespace)
        assert same(got, expected), name
        seen += 1
    assert seen > (250 if literal is None else 50)


def test_what_depends_on_literals_only_is_computed_once():
    made = template("{1} << ({0} & 31)", "uu", frozenset({0}))
    assert made.text == "source_1 << part_0"
    assert len(made.parts) == 1
    made = template("{1} << ({0} & 31)", "uu", frozenset())
    assert made.text.startswith("source_1 << (source_0 & number_")
    assert [(kind, value) for _, kind, value in made.numbers] == [("u", 31)]


def test_numbers_are_shared_and_cannot_be_written_to():
    assert number("u", 31) is number("u", 31)
    with pytest.raises(ValueError, match="read-only"):
        number("u", 31)[0] = 1


@pytest.mark.parametrize(
    ("literal", "kind", "pattern"),
    [
        (Integer(-1), "u", 0xFFFFFFFF),
        (Integer(-1), "U", 0xFFFFFFFFFFFFFFFF),
        (Integer(0x80000000), "U", 0x80000000),
        (Integer(0x3F800000), "f", 0x3F800000),
        (Real(1.0), "u", 0x3F800000),
        (Real(1.0), "F", 0x3FF0000000000000),
        (Real(1.0), "h", 0x3C00),
        (Real(1.0), "p", 0x3F8000003F800000),
        (Integer(0x40100000), "F", 0x4010000000000000),
        (Integer(-16), "F", 0xFFFFFFFFFFFFFFF0),
    ],
)
def test_literals_as_sources_see_them(literal, kind, pattern):
    array = Emitter.constant(literal, kind)
    assert set(array.view(f"u{array.dtype.itemsize}").tolist()) == {pattern}


def test_masks_and_flags():
    generator = np.random.default_rng(2)
    for value in (0, 1, 1 << 63, 2**64 - 1, *generator.integers(0, 2**63, 50).tolist()):
        lanes = flags(value)
        assert [lane for lane in range(64) if lanes[lane]] == [lane for lane in range(64) if value >> lane & 1]
        assert bits(np.array(lanes)) == value


def test_a_block_is_made_when_a_wave_comes_to_it_and_kept():
    kernel = PROGRAMS["kernel_of"]("s_cmp_eq_u32 s2, 0\ns_cbranch_scc1 .Lend\ns_nop 0\n.Lend:\n")
    assert kernel.blocks.at(0) is kernel.blocks.at(0)
    assert "return 3 if SCC else 2" in kernel.blocks.source(0)
    assert kernel.blocks.source(3).endswith("w.scc = SCC; w.executed += 1\n return -1\n")
