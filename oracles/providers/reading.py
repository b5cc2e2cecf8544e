"""What each top-level statement of a user's file binds, uses, and may alter while the file is imported.

Unlike the lifter's cut of a file, nothing is left out: a registration or a patched attribute decides what a callable
reaches. Only what runs for type checkers or scripts alone is passed over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from oracles.providers.toplevel import Function, SourceFile, bound_names

Chain = tuple[str, ...]
"""``a.b.c`` as its names, begun by one that is global."""

OPAQUE = frozenset(("eval", "exec", "globals", "import_module", "__import__", "vars"))
"""Who uses one of these may use anything."""


@dataclass(frozen=True)
class Alias:
    """An import of ``taken`` (none: the module itself) from a module. ``loads``: the module that is executed."""

    module: str
    loads: str
    level: int = 0
    taken: Chain = ()


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement, or one alias of an import.

    ``chains``: what it uses, the functions in it included; ``inner``: the imports in it; ``opaque``: both are not all.
    While the file is imported, ``stores`` names whose attributes or items change, ``calls`` what is called, and
    ``shown`` what a call sees. ``mutable``: it binds data that a call can change. ``module``: it stands for its file.
    """

    file: Path = Path()
    binds: frozenset[str] = frozenset()
    alias: Alias | None = None
    chains: frozenset[Chain] = frozenset()
    inner: tuple[Alias, ...] = ()
    opaque: bool = False
    stores: frozenset[str] = frozenset()
    calls: frozenset[Chain] = frozenset()
    shown: frozenset[Chain] = frozenset()
    mutable: bool = False
    module: bool = False


class Reading:
    """A file as statements. Refused with ``SyntaxError``: what this Python cannot compile."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.whole = Statement(file, module=True)
        self.statements: list[Statement] = []
        self.imports: list[Alias] = []
        self.stars: list[Alias] = []
        self._source = SourceFile(text, str(file))
        body = [node for node in ast.parse(text).body if not _passed_over(node)]
        self._bound = {name for node in body for name in bound_names(node)}
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_imports(node)
            else:
                self._add(node)

    def binders(self, name: str) -> list[Statement]:
        """The statements that may bind a name."""
        return [statement for statement in self.statements if name in statement.binds]

    def _add_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        for name, alias in _aliases(node):
            self.imports.append(alias)
            if name == "*":
                self.stars.append(alias)
            else:
                self.statements.append(Statement(self.file, frozenset({name}), alias))

    def _add(self, node: ast.stmt) -> None:
        inside, now = list(ast.walk(node)), list(_run_on_import(node))
        reads = self._source.reads(node) - (_local_names(inside) - self._bound)
        written = {name for item in inside if isinstance(item, ast.Global) for name in item.names}
        imports = [item for item in inside if isinstance(item, ast.Import | ast.ImportFrom)]
        inner = tuple(alias for item in imports for _, alias in _aliases(item))
        self.imports += inner
        calls = [item for item in now if isinstance(item, ast.Call)]
        decorators = [each for item in now for each in getattr(item, "decorator_list", ())]
        self.statements.append(
            Statement(
                self.file,
                frozenset(bound_names(node) | written),
                chains=_chains(inside, reads),
                inner=inner,
                opaque=any(_last_name(item) in OPAQUE for item in inside),
                stores=frozenset(_stored(now)),
                calls=_chains([*(call.func for call in calls), *decorators], reads),
                shown=_chains([item for call in calls for item in ast.walk(call)], reads),
                mutable=not isinstance(node, Function | ast.ClassDef) and not _constant(node),
            )
        )


def _aliases(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Alias]]:
    """Each alias with the name that it binds."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            taken = () if alias.name == "*" else (alias.name,)
            yield alias.asname or alias.name, Alias(node.module or "", node.module or "", node.level, taken)
        elif alias.asname:
            yield alias.asname, Alias(alias.name, alias.name)
        else:
            top = alias.name.partition(".")[0]
            yield top, Alias(top, alias.name)


def _passed_over(node: ast.stmt) -> bool:
    """``if TYPE_CHECKING:`` and ``if __name__ == "__main__":`` without an ``else``."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    first = node.test.left if isinstance(node.test, ast.Compare) else node.test
    return _last_name(first) in ("TYPE_CHECKING", "__name__")


def _run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs at once: all but the bodies of functions."""
    yield node
    for field, value in ast.iter_fields(node):
        if isinstance(node, Function | ast.Lambda) and field == "body":
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield from _run_on_import(item)


def _local_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that bytecode reads like global ones, though class bodies and ``except`` bind them."""
    found = {item.name for item in nodes if isinstance(item, ast.ExceptHandler) and item.name}
    for item in nodes:
        if isinstance(item, ast.ClassDef):
            found |= {name for line in item.body for name in bound_names(line)}
    return found


def _chains(nodes: Sequence[ast.AST], reads: set[str]) -> frozenset[Chain]:
    """The chains that begin with a name in ``reads``, each as long as it is written somewhere."""
    inner = {id(item.value) for item in nodes if isinstance(item, ast.Attribute)}
    found = {_chain(item) for item in nodes if id(item) not in inner}
    return frozenset(chain for chain in found if chain and chain[0] in reads)


def _chain(node: ast.AST) -> Chain:
    """``a.b`` of ``a.b``, ``a.b(...)`` and ``a.b[...]``; ``a`` is ``""`` where it is no name."""
    if isinstance(node, ast.Call):
        return _chain(node.func)
    if isinstance(node, ast.Subscript):
        return _chain(node.value)
    if isinstance(node, ast.Attribute):
        begin = _chain(node.value)
        return (*begin, node.attr) if begin else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


def _stored(nodes: list[ast.AST]) -> Iterator[str]:
    """The names whose attributes or items are set."""
    for item in nodes:
        if isinstance(item, ast.Attribute | ast.Subscript) and isinstance(item.ctx, ast.Store | ast.Del):
            yield from _chain(item)[:1]
        elif isinstance(item, ast.Call) and _last_name(item.func) == "setattr":
            yield from (name for argument in item.args[:1] for name in _chain(argument)[:1])


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.stmt) -> bool:
    """Whether a statement gives names nothing but a number or a text."""
    return isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
