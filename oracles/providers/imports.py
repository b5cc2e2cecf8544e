"""How lifted code imports.

The first of these that applies gives the object: a stub; for modules that are not the project's, the real import; a
file of the same tree, if the module is on the list of those to follow; a stand-in that raises when it is used.
The same rules hold for imports at top level, inside ``try`` and inside functions, because lifted code gets an
``__import__`` of its own.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oracles.providers.standins import StandIn

if TYPE_CHECKING:
    from oracles.providers.lifter import LiftedFile


@dataclass
class Report:
    """What came from where: ``file:name`` for ``lifted``, ``module:name`` for the others, each once, in order."""

    lifted: list[str] = field(default_factory=list)
    stubbed: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)


def note(items: list[str], what: str) -> None:
    """Append what is not there yet."""
    if what not in items:
        items.append(what)


class Namespace:
    """A module of the project, or one that a stub touches: each attribute is resolved when it is asked for."""

    def __init__(self, imports: Imports, module: str, importer: str) -> None:
        self.__imports = imports
        self.__name__ = module
        self.__importer = importer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.__imports.attribute(self.__name__, name, self.__importer)

    def __repr__(self) -> str:
        return f"<names of {self.__name__}>"


class Imports:
    """The import rules of one lifter. ``stubs`` are keyed ``module:name`` or, for a whole module, ``module``."""

    def __init__(
        self,
        *,
        project: Collection[str],
        stubs: Mapping[str, Any],
        follow: Iterable[str],
        label: str,
        file_of: Callable[[str], LiftedFile | None],
        has_module: Callable[[str], bool],
    ) -> None:
        self.project = project
        self.stubs = dict(stubs)
        self.follow = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in follow}
        self.label = label
        self.file_of = file_of
        self.has_module = has_module
        self.report = Report()

    def module(self, name: str, names: tuple[str, ...], importer: str, *, lenient: bool) -> Any:
        """What ``__import__`` answers. ``lenient``: an import that fails gives a stand-in instead of an error."""
        subject = name if names else name.partition(".")[0]
        if self.is_project(name) or self._is_stubbed(name):
            return Namespace(self, subject, importer)
        try:
            found = builtins.__import__(name, None, None, names, 0)
        # Packages that need a device or a driver fail at import with whatever error they like.
        except Exception:
            if not lenient:
                raise
            return Namespace(self, subject, importer)
        if lenient and not all(hasattr(found, wanted) for wanted in names):
            return Namespace(self, subject, importer)
        return found

    def attribute(self, module: str, name: str, importer: str) -> Any:
        """What ``from module import name`` binds, or ``module.name`` reads."""
        key = f"{module}:{name}"
        for stub in (key, f"{module}.{name}"):
            if stub in self.stubs:
                note(self.report.stubbed, stub)
                return self.stubs[stub]
        if module in self.stubs:
            note(self.report.stubbed, key)
            return getattr(self.stubs[module], name)
        if self._is_stubbed(f"{module}.{name}"):
            return Namespace(self, f"{module}.{name}", importer)
        if not self.is_project(module):
            return self._third_party(module, name, importer)
        if module in self.follow:
            file = self.file_of(module)
            if file is not None and file.offers(name):
                note(self.report.followed, key)
                return file.bring_one(name)
        if self.has_module(f"{module}.{name}"):
            return Namespace(self, f"{module}.{name}", importer)
        return self._stand_in(key, importer, self._reason(module))

    def foresee(self, module: str, names: tuple[str, ...]) -> None:
        """List as missing what an import inside a function will not find, before that function runs."""
        if not self.is_project(module) or module in self.follow or module in self.stubs:
            return
        for name in names:
            full = f"{module}.{name}"
            if f"{module}:{name}" not in self.stubs and not self._is_stubbed(full) and not self.has_module(full):
                note(self.report.missing, f"{module}:{name}")

    def is_project(self, module: str) -> bool:
        """Whether a module belongs to the project whose tree is read."""
        return module.partition(".")[0] in self.project

    def _is_stubbed(self, module: str) -> bool:
        return any(key == module or key.startswith((f"{module}:", f"{module}.")) for key in self.stubs)

    def _third_party(self, module: str, name: str, importer: str) -> Any:
        try:
            found = importlib.import_module(module)
            return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")
        except Exception as error:
            reason = f"it cannot be imported here ({type(error).__name__}: {error})"
            return self._stand_in(f"{module}:{name}", importer, reason)

    def _reason(self, module: str) -> str:
        if module not in self.follow:
            return "it is neither stubbed nor followed"
        return "the module is followed, but does not have it"

    def _stand_in(self, key: str, importer: str, reason: str) -> StandIn:
        note(self.report.missing, key)
        return StandIn(key, f"{reason}; imported by {importer} of {self.label}")


def absolute(path: str, module: str, level: int) -> str:
    """The full name of a module that the file at ``path`` imports; refused: dots that lead out of the tree."""
    if level == 0:
        return module
    package = path.split("/")[:-1]
    if level > len(package):
        raise ImportError(f"{path}: the relative import {'.' * level}{module} leads out of the tree")
    return ".".join([*package[: len(package) - level + 1], *([module] if module else [])])


def dotted(path: str) -> str:
    """The module that a file is."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
