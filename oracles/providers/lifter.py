"""Run single functions and classes of a big project without importing the project.

The wanted names of a file, and what they read at top level, are executed in a module of their own. The text and its
line numbers stay what they are in the tree, so ``inspect.getsource``, Triton's JIT, dataclasses and tracebacks work;
nothing is written to disk.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import hashlib
import importlib
import io
import itertools
import linecache
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from oracles.providers.imports import Imports, Report, absolute, dotted, note
from oracles.providers.standins import StandIn
from oracles.providers.toplevel import SourceFile, Unit, imports
from oracles.providers.trees import Tree

Edits = Mapping[str, Sequence[tuple[str, str]]]

_numbers = itertools.count(1)


class LiftError(LookupError):
    """Something is not in the tree as it was asked for."""


@dataclass(frozen=True)
class Lifted:
    """The objects of one file. ``report`` belongs to the lifter and grows when lifted functions import more."""

    file: str
    label: str
    objects: Mapping[str, Any]
    report: Report

    def __getitem__(self, name: str) -> Any:
        return self.objects[name]

    @property
    def missing(self) -> list[str]:
        """The imports that have a stand-in."""
        return self.report.missing


class Lifter:
    """Takes names out of the files of one tree.

    ``project`` names the top-level packages of the tree. ``stubs`` replace ``"module:name"`` or a whole ``"module"``,
    definitions of a lifted file included; ``follow`` lists the modules of the tree that may be lifted in turn.
    ``edits`` maps a file to replacements made in its text before it is parsed: the only way to change a kernel, whose
    source Triton reads again.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        project: Collection[str],
        stubs: Mapping[str, Any] | None = None,
        follow: Iterable[str] = (),
        edits: Edits | None = None,
    ) -> None:
        self.tree = tree
        self.edits = dict(edits or {})
        self._files: dict[str, LiftedFile | None] = {}
        self.imports = Imports(
            project=frozenset(project),
            stubs=stubs or {},
            follow=follow,
            label=tree.label,
            file_of=self.file_of,
            has_module=self.has_module,
        )

    def lift(self, path: str, wanted: Iterable[str]) -> Lifted:
        """Bring names (``function``, ``CONSTANT``, ``Class``, ``Class.method``) of a file to life.

        A method comes alone, as a plain function whose first argument is ``self`` or the class. A name that the file
        only re-exports is taken from the file that defines it. Refused with ``LookupError``: a file or a name that is
        not there, an edit that does not match once.
        """
        file = self.file(path)
        if file is None:
            raise LiftError(f"{self.tree.label} has no file {path}")
        return Lifted(path, self.tree.label, {name: file.wanted(name) for name in wanted}, self.imports.report)

    def file(self, path: str) -> LiftedFile | None:
        """A file of the tree, edited and parsed once."""
        if path not in self._files:
            text = self.tree.read(path)
            self._files[path] = None if text is None else LiftedFile(self, path, self._edited(path, text))
        return self._files[path]

    def file_of(self, module: str) -> LiftedFile | None:
        """The file that a module of the project is."""
        base = module.replace(".", "/")
        return self.file(f"{base}.py") or self.file(f"{base}/__init__.py")

    def has_module(self, module: str) -> bool:
        """Whether the tree has a module, without parsing it."""
        base = module.replace(".", "/")
        return any(self.tree.read(f"{base}{end}") is not None for end in (".py", "/__init__.py"))

    def _edited(self, path: str, text: str) -> str:
        for old, new in self.edits.get(path, ()):
            count = text.count(old)
            if count != 1:
                raise LiftError(f"{self.tree.label}: {path}: the edit of {old!r} fits {count} places, not one")
            text = text.replace(old, new)
            note(self.imports.report.edited, path)
        return text


class LiftedFile:
    """One file of the tree as a module that fills up with the names that are asked for."""

    def __init__(self, lifter: Lifter, path: str, text: str) -> None:
        self.lifter = lifter
        self.imports = lifter.imports
        self.path = path
        self.module_name = dotted(path)
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        filename = f"<{lifter.tree.label} {digest}>/{path}"
        self.source = SourceFile(text, filename)
        # Without a time stamp linecache never looks for the file on disk.
        linecache.cache[filename] = (len(text), None, io.StringIO(text).readlines(), filename)
        self.module = ModuleType(f"lifted_{next(_numbers)}_{re.sub(r'[^0-9A-Za-z_]', '_', self.module_name)}")
        self.module.__file__ = filename
        self.names = self.module.__dict__
        self.names["__builtins__"] = {**vars(builtins), "__import__": self._import}
        sys.modules[self.module.__name__] = self.module
        self._seen: set[str] = set()
        self._looking: set[str] = set()
        self._lenient = False

    def offers(self, name: str) -> bool:
        """Whether the file binds a name, itself or by a star import, or a stub does so in its place."""
        return f"{self.module_name}:{name}" in self.imports.stubs or name in self.source.binders or self._has_star(name)

    def wanted(self, name: str) -> Any:
        """The object of a name that the caller of the lifter asked for."""
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)?", name):
            raise LiftError(f"{name!r} is neither a name nor Class.method")
        stub = f"{self.module_name}:{name}"
        if stub in self.imports.stubs:
            note(self.imports.report.stubbed, stub)
            return self.imports.stubs[stub]
        if "." in name:
            return self._bring_method(name)
        if not self.offers(name):
            raise self._unknown(name)
        self._follow_export(name)
        return self.bring_one(name)

    def bring_one(self, name: str) -> Any:
        """The object of one name, with everything it reads."""
        self._bring([name])
        if name not in self.names:
            raise LiftError(
                f"{self.lifter.tree.label}: {self.path} mentions {name}, but nothing binds it here: the import is "
                f"circular, or the definition depends on a condition that does not hold"
            )
        return self.names[name]

    def _bring(self, wanted: Iterable[str]) -> None:
        todo, units = list(wanted), []
        while todo:
            name = todo.pop()
            if name in self._seen or self._take_stub(name):
                continue
            self._seen.add(name)
            if name not in self.source.binders and not hasattr(builtins, name):
                self._take_star(name)
            for unit in self.source.binders.get(name, ()):
                if not unit.brought:
                    unit.brought = True
                    units.append(unit)
                    todo += self.source.reads(unit.node)
        for unit in sorted(units, key=lambda unit: unit.index):
            self._run(unit)

    def _run(self, unit: Unit) -> None:
        if not unit.alias:
            for name in sorted(unit.binds):
                note(self.imports.report.lifted, f"{self.path}:{name}")
            self._foresee(unit.node)
        with self._lenient_imports(unit.alias):
            self._execute(unit.node)
        for name in unit.binds:
            self._take_stub(name)

    def _execute(self, node: ast.stmt, local: dict[str, Any] | None = None) -> None:
        for item in ast.walk(node):
            if isinstance(item, ast.ClassDef):
                self._quote_annotations(item)
        try:
            exec(self.source.compile([node]), self.names, self.names if local is None else local)
        except Exception as error:
            error.add_note(f"while lifting line {node.lineno} of {self.path} of {self.lifter.tree.label}")
            raise

    def _quote_annotations(self, node: ast.ClassDef) -> None:
        """Turn a field's annotation into text where it needs what is not there; dataclasses do not evaluate it."""
        for item in node.body:
            if isinstance(item, ast.AnnAssign):
                names = [name.id for name in ast.walk(item.annotation) if isinstance(name, ast.Name)]
                known = [self.names.get(name, getattr(builtins, name, None)) for name in names]
                if any(value is None or isinstance(value, StandIn) for value in known):
                    item.annotation = ast.copy_location(ast.Constant(ast.unparse(item.annotation)), item.annotation)

    def _bring_method(self, name: str) -> Any:
        found = self.source.methods(name)
        if found is None:
            raise self._unknown(name)
        owner, functions = found
        # The method keeps a class of its own: private names stay mangled, and tracebacks and getsource find it.
        shell = ast.copy_location(ast.ClassDef(owner.name, [], [], list(functions), []), owner)
        self._bring(self.source.reads(shell))
        self._foresee(shell)
        local: dict[str, Any] = {}
        self._execute(shell, local)
        note(self.imports.report.lifted, f"{self.path}:{name}")
        return plain_function(vars(local[owner.name])[name.partition(".")[2]])

    def _follow_export(self, name: str) -> None:
        """Allow the modules that a wanted name is merely passed on from: asking for the name means asking for it."""
        file, seen = self, set[tuple[str, str]]()
        while (file.path, name) not in seen:
            seen.add((file.path, name))
            source = file._exporter(name)
            if source is None or f"{source[0]}:{source[1]}" in self.imports.stubs:
                return
            module, name = source
            exporter = self.lifter.file_of(module)
            if exporter is None or not exporter.offers(name):
                place = "which is not there" if exporter is None else "which does not have it"
                raise LiftError(f"{self.lifter.tree.label}: {file.path} takes {name} from {module}, {place}")
            self.imports.follow.add(module)
            file = exporter

    def _exporter(self, name: str) -> tuple[str, str] | None:
        """The module of the project, and the name in it, that a name of this file is imported from."""
        units = self.source.binders.get(name, ())
        if not units:
            modules = (module for module in self._star_modules() if self.imports.is_project(module))
            return next(((module, name) for module in modules if self._star_offers(module, name)), None)
        node = units[-1].node
        if not isinstance(node, ast.ImportFrom) or not all(unit.alias for unit in units):
            return None
        module = absolute(self.path, node.module or "", node.level)
        original = node.names[0].name
        # `from . import part` may name a module instead of something in one.
        if not self.imports.is_project(module) or self.lifter.has_module(f"{module}.{original}"):
            return None
        return module, original

    def _take_stub(self, name: str) -> bool:
        key = f"{self.module_name}:{name}"
        if key not in self.imports.stubs:
            return False
        note(self.imports.report.stubbed, key)
        self.names[name] = self.imports.stubs[key]
        return True

    def _star_modules(self) -> Iterator[str]:
        for module, level in reversed(self.source.stars):
            yield absolute(self.path, module, level)

    def _has_star(self, name: str) -> bool:
        if name in self._looking:  # two files that import each other's names with a star
            return False
        self._looking.add(name)
        try:
            return any(self._star_offers(module, name) for module in self._star_modules())
        finally:
            self._looking.discard(name)

    def _star_offers(self, module: str, name: str) -> bool:
        if f"{module}:{name}" in self.imports.stubs:
            return True
        if self.imports.is_project(module):
            file = self.lifter.file_of(module)
            return file is not None and file is not self and file.offers(name)
        try:
            return hasattr(importlib.import_module(module), name)
        except ImportError:
            return False

    def _take_star(self, name: str) -> None:
        for module in self._star_modules():
            if self._star_offers(module, name):
                self.names[name] = self.imports.attribute(module, name, self.path)
                return

    def _foresee(self, node: ast.stmt) -> None:
        for module, level, names in imports(node):
            self.imports.foresee(absolute(self.path, module, level), names)

    @contextmanager
    def _lenient_imports(self, lenient: bool) -> Iterator[None]:
        before, self._lenient = self._lenient, lenient
        try:
            yield
        finally:
            self._lenient = before

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """``__import__`` for the code of this file."""
        module = absolute(self.path, name, level)
        return self.imports.module(module, tuple(fromlist or ()), self.path, lenient=self._lenient)

    def _unknown(self, name: str) -> LiftError:
        known = self.source.names()
        near = difflib.get_close_matches(name, known, n=5, cutoff=0.5) or sorted(known)[:20]
        hint = f"; near: {', '.join(near)}" if near else ""
        return LiftError(f"{self.lifter.tree.label}: {self.path} has no {name}{hint}")


def plain_function(member: Any) -> Any:
    """The function inside a static method, class method or property."""
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, functools.cached_property) else member
