"""Expressions of the tables as code that runs fast on NumPy.

What depends on literals of the instruction only is computed when the code is made, and plain numbers in an expression
become arrays of the other operand's type: NumPy takes more than twice as long for an array and a number.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from oracles.backends.cdna.ir import LANES
from oracles.backends.cdna.lanes import VALUES

DTYPES: dict[str, Any] = {
    "u": np.uint32, "w": np.uint32, "h": np.uint32, "i": np.int32, "f": np.float32,
    "U": np.uint64, "I": np.int64, "F": np.float64, "p": np.uint64,
}  # fmt: skip
"""What an array of each type of source holds."""

_KIND_OF_SOURCE = {**{kind: kind for kind in "uifUIF"}, "w": "u", "h": "u", "p": "U"}
_KIND_OF_CALL = {
    "as_u32": "u", "as_i32": "i", "as_f32": "f", "as_u64": "U", "as_i64": "I", "as_f64": "F", "low": "u", "high": "u",
    "pair": "U", "ones": "u", "signed16": "i", "bit": "u", "count_bits": "u", "leading_zeros": "u",
    "trailing_zeros": "u", "to_u32": "u", "to_i32": "i", "to_f32": "f", "to_f64": "F", "from_f16": "f",
    "from_bf16": "f", "from_fp8": "f",
}  # fmt: skip
_SAME_AS_SOURCES = ("minimum", "maximum", "truncate", "floor", "ceil", "round_even", "magnitude")


class Part(NamedTuple):
    """A fixed part: its name in the text, and the code that computes it from the fixed sources."""

    name: str
    code: CodeType


class Template(NamedTuple):
    """An expression in which source ``k`` is called ``source_k``."""

    text: str
    parts: tuple[Part, ...]
    numbers: tuple[tuple[str, str, float], ...]


def name_of(source: int) -> str:
    """What a source is called."""
    return f"source_{source}"


@cache
def template(expression: str, kinds: str, fixed: frozenset[int]) -> Template:
    """The template of a row's expression with sources of these types, of which ``fixed`` are literals."""
    text = expression.format(*map(name_of, range(len(kinds))))
    tree = ast.parse(text, mode="eval")
    folding = _Folding({name_of(source) for source in fixed})
    tree = folding.visit(tree)
    typing = _Typing({name_of(number): _KIND_OF_SOURCE.get(kind, "") for number, kind in enumerate(kinds)})
    tree = typing.visit(tree)
    return Template(ast.unparse(tree), tuple(folding.parts), tuple(sorted(typing.numbers)))


@cache
def number(kind: str, value: float) -> npt.NDArray[Any]:
    """A number in every lane, not to be written to."""
    array = np.full(LANES, value, DTYPES[kind])
    array.flags.writeable = False
    return array


def filled(
    made: Template, sources: list[str], fixed: dict[int, npt.NDArray[Any]], bind: Callable[[Any], str]
) -> dict[str, str]:
    """What stands for each name of a template's text."""
    names = {name_of(number_): text for number_, text in enumerate(sources)}
    known = {name_of(source): array for source, array in fixed.items()}
    for part in made.parts:
        with np.errstate(all="ignore"):
            value = eval(part.code, dict(VALUES), known)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        names[part.name] = bind(value)
    for name, kind, value in made.numbers:
        names[name] = bind(number(kind, value))
    return names


class _Folding(ast.NodeTransformer):
    def __init__(self, fixed: set[str]) -> None:
        self._fixed = fixed
        self.parts: list[Part] = []

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call) or not self._foldable(node):
            return self.generic_visit(node)
        name = f"part_{len(self.parts)}"
        code = compile(ast.unparse(node), "<a fixed part>", "eval")
        self.parts.append(Part(name, code))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _foldable(self, node: ast.AST) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return bool(names & self._fixed) and names <= self._fixed | set(VALUES)


class _Typing(ast.NodeTransformer):
    """Gives numbers the type of what they meet."""

    def __init__(self, kinds: dict[str, str]) -> None:
        self._kinds = kinds
        self.numbers: set[tuple[str, str, float]] = set()

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        node.left, node.right = self._alike(node.left, node.right)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.comparators) == 1:
            node.left, node.comparators[0] = self._alike(node.left, node.comparators[0])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("minimum", "maximum") and len(node.args) == 2:
            node.args[:] = self._alike(*node.args)
        return node

    def _alike(self, left: ast.expr, right: ast.expr) -> tuple[ast.expr, ast.expr]:
        return self._typed(left, self._kind(right)), self._typed(right, self._kind(left))

    def _typed(self, node: ast.expr, kind: str) -> ast.expr:
        if not kind or not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
            return node
        name = f"number_{kind}_{len(self.numbers)}"
        self.numbers.add((name, kind, node.value))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _kind(self, node: ast.expr) -> str:
        """The type of an expression, empty where it is not certain."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id, "")
        if isinstance(node, ast.BinOp):
            return self._kind(node.left) or self._kind(node.right)
        if isinstance(node, ast.UnaryOp):
            return self._kind(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._kind_of_call(node.func.id, node.args)
        return ""

    def _kind_of_call(self, name: str, arguments: list[ast.expr]) -> str:
        if name == "wide":
            return {"u": "U", "i": "I"}.get(self._kind(arguments[0]), "")
        if name in _SAME_AS_SOURCES:
            return next(filter(None, map(self._kind, arguments)), "")
        return _KIND_OF_CALL.get(name, "")
