"""One binding on one source tree: which of its symbol sets the tree has, and how its functions come to life."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracles.contract import Binding
from oracles.providers.base import Bound, Symbols
from oracles.providers.importing import IMPORT_SECONDS, NotImported, imported, why_not_imported
from oracles.providers.imports import Report
from oracles.providers.lifter import Lifter
from oracles.providers.projects import project
from oracles.providers.standins import MissingImport, StandIn
from oracles.providers.toplevel import SourceFile
from oracles.providers.trees import Tree

ABSENT = "not in this release: "
Files = dict[str, SourceFile | str]
"""What was parsed of a tree, or why a file could not be."""


@dataclass(frozen=True)
class Choice:
    """The symbol set that a tree has, and which one it is, from 1; or in ``lacking`` why it has none."""

    symbols: Symbols
    number: int = 1
    lacking: str | None = None


def chosen(tree: Tree, binding: Binding, files: Files) -> Choice:
    """The first symbol set of a binding that a tree has completely. ``files`` keeps what was parsed of the tree."""
    lacking: list[str] = []
    for number, symbols in enumerate((binding.symbols, *binding.other_symbols), 1):
        facts = [fact for path, names in symbols.items() for fact in _lacks(tree, path, names, files)]
        if not facts:
            return Choice(symbols, number)
        lacking += facts
    first, *rest = lacking
    return Choice(binding.symbols, 1, "; ".join([first, *(fact.removeprefix(ABSENT) for fact in rest)]))


def _lacks(tree: Tree, path: str, names: tuple[str, ...], files: Files) -> Iterator[str]:
    """Why names of a file cannot be lifted, from its text alone."""
    if path not in files:
        files[path] = _parsed(tree, path)
    file = files[path]
    if isinstance(file, str):
        yield f"{file} ({', '.join(names)})"
        return
    gone = [name for name in names if not file.has(name)]
    if gone:
        yield f"{ABSENT}{path} has no {', '.join(gone)}"


def _parsed(tree: Tree, path: str) -> SourceFile | str:
    text = tree.read(path)
    if text is None:
        return f"{ABSENT}there is no {path}"
    try:
        return SourceFile(text, path)
    except SyntaxError as error:
        return f"this Python cannot parse {path}: {error.msg} (line {error.lineno})"


@dataclass
class LiftedBinding:
    """Lifts a binding when it is called.

    ``report`` then says what was lifted, stubbed, followed and is missing, and ``bound`` what it was bound to.
    """

    open: Callable[[], Tree]
    binding: Binding
    choice: Choice
    report: Report | None = field(default=None)
    bound: Bound | None = field(default=None)

    def __call__(self) -> Callable[..., Any]:
        """The canonical callable; refused with ``LookupError``: what the tree turns out not to have."""
        about = project(self.binding.project)
        tree = self.open()
        lifter = Lifter(
            tree,
            project=(about.package,),
            stubs={**about.stubs(), **self.binding.stubs},
            follow=(*about.follow, *self.binding.follow),
        )
        self.report = lifter.imports.report
        objects: dict[str, Any] = {}
        for path, names in self.choice.symbols.items():
            for name, value in lifter.lift(path, names).objects.items():
                if name in objects:
                    raise LookupError(f"the binding takes {name} from two files; {path} is the second")
                objects[name] = value
        self.bound = bound(self.binding, self.choice, objects, Bound(version=tree.label, how="lifted", functions=()))
        function = self.binding.adapt(objects)
        return _telling(function, self.report) if self.report.missing else function


def _telling(function: Callable[..., Any], report: Report) -> Callable[..., Any]:
    """The function, which says ``MissingImport`` where a library complains of a stand-in that it was handed."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            if StandIn.__name__ not in str(error):
                raise
            raise MissingImport(f"a library was handed a stand-in for one of {', '.join(report.missing)}") from error

    return call


@dataclass
class InstalledBinding:
    """Imports a binding's functions when it is called, and lifts them where that cannot be done; ``bound`` says which.

    The import is tried in another process first, at most ``seconds`` long: a package that ends or hangs the process,
    or that is another one without a GPU driver, is lifted.
    """

    lifted: LiftedBinding
    root: Path
    seconds: float = IMPORT_SECONDS
    bound: Bound | None = field(default=None)

    def __call__(self) -> Callable[..., Any]:
        """The canonical callable, from one or the other."""
        binding, choice = self.lifted.binding, self.lifted.choice
        objects = self._imported()
        if isinstance(objects, str):
            function = self.lifted()
            assert self.lifted.bound is not None
            self.bound = dataclasses.replace(self.lifted.bound, reason=objects)
            return function
        how = Bound(version=self.lifted.open().label, how="imported", functions=())
        self.bound = bound(binding, choice, objects, how)
        return binding.adapt(objects)

    def _imported(self) -> dict[str, Any] | str:
        """The objects, or why they have to be lifted."""
        binding, symbols = self.lifted.binding, self.lifted.choice.symbols
        if binding.stubs:
            return f"the binding replaces {', '.join(sorted(binding.stubs))}, which an import would not"
        needs = project(binding.project).needs
        reason = why_not_imported(self.root, symbols, needs, seconds=self.seconds)
        if reason is not None:
            return reason
        try:
            return imported(self.root, symbols, needs)
        except NotImported as error:
            return str(error)


def bound(binding: Binding, choice: Choice, objects: Mapping[str, Any], how: Bound) -> Bound:
    """``how``, with the functions that were bound. Refused with ``LookupError``: a signature that nobody knows."""
    functions = []
    for path, names in choice.symbols.items():
        for name in names:
            parameters = _parameters(objects[name])
            if name in binding.signatures and not any(
                _takes(parameters or [], known) for known in binding.signatures[name]
            ):
                shown = " or ".join(f"({', '.join(known)})" for known in binding.signatures[name])
                raise LookupError(f"{path}: {name}{_written(parameters)} is not what the binding knows, {name}{shown}")
            functions.append(f"{path}:{name}{_written(parameters)}")
    sets = 1 + len(binding.other_symbols)
    return dataclasses.replace(how, functions=tuple(functions), number=choice.number, sets=sets)


def _parameters(value: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None  # a constant, or a callable that does not tell


def _written(parameters: list[inspect.Parameter] | None) -> str:
    return "" if parameters is None else f"({', '.join(parameter.name for parameter in parameters)})"


def _takes(parameters: list[inspect.Parameter], known: tuple[str, ...]) -> bool:
    """Whether a function has the parameters of a list, and further ones at most with defaults."""
    names = tuple(parameter.name for parameter in parameters[: len(known)])
    return names == known and all(
        parameter.default is not parameter.empty or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in parameters[len(known) :]
    )
