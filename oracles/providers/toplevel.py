"""What a Python file binds at top level, and what each of its statements reads.

A file is cut into units: one top-level statement each, one alias of a top-level import each. Running a wanted unit
means running the units that bind the names it reads, or change their objects, in the order of the file. A call made
for another effect (a registration, a log line) is no unit, and neither is what runs for type checkers or scripts only.
"""

from __future__ import annotations
import __future__

import ast
import dis
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import cast

_READING = frozenset(("LOAD_NAME", "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))
_NEEDS_ANNOTATIONS = frozenset(("jit", "script", "custom_op", "triton_op", "register", "aggregate"))
_CHANGING = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update")
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Unit:
    """A top-level statement that binds names. ``alias`` marks a single import that no ``try`` guards."""

    node: ast.stmt
    index: int
    binds: frozenset[str]
    alias: bool = False
    brought: bool = field(default=False)


class SourceFile:
    """A parsed file. Refused with ``SyntaxError``: what this Python cannot compile."""

    def __init__(self, text: str, filename: str) -> None:
        try:
            tree = ast.parse(text, filename)
        except ValueError as error:  # a null character
            raise SyntaxError(f"{filename}: {error}") from error
        self.filename = filename
        self.flags = _future_flags(tree)
        tree = _Prepare(_annotated_functions(tree)).visit(tree)
        self.units: list[Unit] = []
        self.stars: list[tuple[str, int]] = []
        self._cut(tree.body)
        self.binders: dict[str, list[Unit]] = {}
        for unit in self.units:
            for name in unit.binds:
                self.binders.setdefault(name, []).append(unit)

    def compile(self, nodes: list[ast.stmt]) -> CodeType:
        """Statements compiled as if they were the whole file."""
        module = ast.fix_missing_locations(ast.Module(nodes, []))
        return cast(CodeType, compile(module, self.filename, "exec", flags=self.flags, dont_inherit=True))

    def reads(self, node: ast.stmt) -> set[str]:
        """The global names that a statement reads, now or when the functions in it run."""
        names = set(_global_names(self.compile([node])))
        for item in ast.walk(node):
            # dataclasses looks the names of postponed annotations up in the module.
            if isinstance(item, ast.ClassDef):
                fields = (line.annotation for line in item.body if isinstance(line, ast.AnnAssign))
                names |= {name.id for text in fields for name in ast.walk(text) if isinstance(name, ast.Name)}
        return names

    def methods(self, dotted: str) -> tuple[ast.ClassDef, list[Function]] | None:
        """A class and its functions of one name (several where it is overloaded), for ``Class.method``."""
        owner, _, name = dotted.partition(".")
        classes = [unit.node for unit in self.binders.get(owner, ()) if isinstance(unit.node, ast.ClassDef)]
        for node in reversed(classes):
            found = [
                item
                for item in node.body
                if isinstance(item, Function) and item.name == name and not _is_accessor(item, name)
            ]
            if found:
                return node, found
        return None

    def has(self, wanted: str) -> bool:
        """Whether a name or ``Class.method`` is, or with a star import may be, bound here."""
        if "." in wanted:
            return self.methods(wanted) is not None
        return wanted in self.binders or bool(self.stars)

    def names(self) -> list[str]:
        """Everything that can be asked for."""
        methods = [
            f"{unit.node.name}.{item.name}"
            for unit in self.units
            if isinstance(unit.node, ast.ClassDef)
            for item in unit.node.body
            if isinstance(item, Function)
        ]
        return [*self.binders, *dict.fromkeys(methods)]

    def _cut(self, body: Iterable[ast.stmt]) -> None:
        defined: set[str] = set()
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._cut_import(node)
                continue
            binds = bound_names(node)
            # `f.limit = 3` and `TABLE[k] = v` belong to what this file itself defines, not to an imported module.
            binds |= _changed_names(node) & (defined | binds)
            defined |= binds
            if binds:
                self.units.append(Unit(node, len(self.units), frozenset(binds)))

    def _cut_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*" and isinstance(node, ast.ImportFrom):
                self.stars.append((node.module or "", node.level))
                continue
            single: ast.stmt
            if isinstance(node, ast.Import):
                single = ast.Import([alias])
            elif node.module == "__future__":
                continue
            else:
                single = ast.ImportFrom(node.module, [alias], node.level)
            ast.copy_location(single, node)
            self.units.append(Unit(single, len(self.units), frozenset({_alias_name(alias)}), alias=True))


def bound_names(node: ast.stmt) -> set[str]:
    """The names that running a statement at top level may bind; function and class bodies are scopes of their own."""
    if isinstance(node, Function | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {_alias_name(alias) for alias in node.names if alias.name != "*"}
    names: set[str] = set()
    todo: list[ast.AST] = [node]
    while todo:
        item = todo.pop()
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            names.add(item.id)
        elif isinstance(item, ast.MatchAs | ast.MatchStar) and item.name:
            names.add(item.name)
        for child in ast.iter_child_nodes(item):
            if isinstance(child, Function | ast.ClassDef | ast.Import | ast.ImportFrom):
                names |= bound_names(child)
            elif not isinstance(child, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                todo.append(child)
    return names


def _changed_names(node: ast.stmt) -> set[str]:
    """The names whose object a statement changes: by an item, an attribute, or a container's method."""
    if isinstance(node, Function | ast.ClassDef):
        return set()
    changed: set[str] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute | ast.Subscript) and isinstance(item.ctx, ast.Store | ast.Del):
            changed.add(_first_name(item))
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in _CHANGING:
            changed.add(_first_name(item.func))
    return changed


def imports(node: ast.AST) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Every import inside a statement: module, level, and the names taken from it (none: the module itself)."""
    for item in ast.walk(node):
        if isinstance(item, ast.Import):
            for alias in item.names:
                yield alias.name, 0, ()
        elif isinstance(item, ast.ImportFrom):
            yield item.module or "", item.level, tuple(alias.name for alias in item.names)


def _alias_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READING:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _future_flags(tree: ast.Module) -> int:
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def _last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c`` and of ``a.b.c(...)``."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _first_name(node: ast.expr) -> str:
    """``a`` of ``a.b[0].c``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _annotated_functions(tree: ast.Module) -> frozenset[str]:
    """Functions that reach a compiler by a call, ``kernel = triton.jit(function)``, instead of by a decorator."""
    return frozenset(
        argument.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _last_name(call.func) in _NEEDS_ANNOTATIONS
        for argument in call.args
        if isinstance(argument, ast.Name)
    )


def _is_accessor(node: Function, name: str) -> bool:
    """Whether a method is the setter or deleter of a property of the same name."""
    return any(
        isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == name
        for item in node.decorator_list
    )


class _Prepare(ast.NodeTransformer):
    """Removes what only type checkers and scripts need.

    Annotations of host functions go, because they name half of the project; those of kernels stay, because Triton
    reads them. Fields of classes keep theirs: dataclasses are made of them.
    """

    def __init__(self, annotated: frozenset[str]) -> None:
        self.annotated = annotated
        self.scopes: list[type[ast.AST]] = []

    def _function(self, node: Function) -> Function:
        if node.name in self.annotated or any(_last_name(item) in _NEEDS_ANNOTATIONS for item in node.decorator_list):
            return node
        node.returns = None
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for argument in [*plain, arguments.vararg, arguments.kwarg]:
            if argument is not None:
                argument.annotation = None
        self._inside(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._inside(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if self.scopes:
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if self.scopes:
            return node
        if _last_name(node.test) == "TYPE_CHECKING" or _is_main_guard(node.test):
            return node.orelse or ast.copy_location(ast.Pass(), node)
        if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
            return node.body if _last_name(node.test.operand) == "TYPE_CHECKING" else node
        return node

    def _inside(self, node: ast.AST) -> None:
        self.scopes.append(type(node))
        self.generic_visit(node)
        self.scopes.pop()


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
