"""Implementations of upstream projects: every binding of the contracts asked for, lifted from one source tree."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracles.contract import Binding, Contract
from oracles.providers.archives import ArchiveTree
from oracles.providers.base import Implementation, ProviderError
from oracles.providers.git import GitTree
from oracles.providers.imports import Report
from oracles.providers.lifter import Lifter
from oracles.providers.projects import Project, project
from oracles.providers.toplevel import SourceFile
from oracles.providers.trees import DirectoryTree, Tree
from oracles.providers.versions import UNKNOWN, directory_version
from oracles.verdict import Unsupported


def open_tree(place: str, about: Project) -> Tree:
    """The tree that a spec names: ``""`` for the installed package, a directory, a wheel, a zip, ``git+REPO@REV``."""
    if not place:
        return _installed(about)
    if place.startswith("git+"):
        repository, at, revision = place.removeprefix("git+").rpartition("@")
        if not at or not repository:
            raise ProviderError(f"{place}: say which revision: git+REPOSITORY@REVISION")
        return GitTree(repository, revision, about.package)
    if "://" in place:
        raise ProviderError(f"{place}: nothing is downloaded: give a local wheel, zip, directory or git clone")
    path = Path(place).expanduser()
    if path.is_dir():
        return _directory(path, about, "directory")
    if path.is_file():
        return ArchiveTree(path)
    raise ProviderError(f"{path}: there is no such file or directory")


def implementations(
    spec: str, name: str, place: str, contracts: Sequence[Contract], *, named: bool
) -> list[Implementation]:
    """One record a binding. What this tree does not have is said in ``unsupported``, and nothing is imported yet.

    A contract without a binding is left out, unless it was named on the command line.
    """
    about = project(name)
    tree = open_tree(place, about)
    files: dict[str, SourceFile | str] = {}
    found = []
    for contract in contracts:
        bindings = [binding for binding in contract.bindings if binding.project == name]
        found += [_implementation(spec, place, contract, binding, tree, files) for binding in bindings]
        if named and not bindings:
            reason = f"nothing of {name} is bound to {contract.full_name}"
            found.append(_unbound(spec, name, tree.label, contract, reason))
    if isinstance(tree, ArchiveTree):
        tree.close()
    return found


@dataclass
class LiftedBinding:
    """Lifts a binding when it is called; ``report`` then says what was lifted, stubbed, followed and is missing."""

    place: str
    binding: Binding
    report: Report | None = field(default=None)

    def __call__(self) -> Callable[..., Any]:
        """The canonical callable; refused with ``LookupError``: what the tree turns out not to have."""
        about = project(self.binding.project)
        lifter = Lifter(
            open_tree(self.place, about),
            project=(about.package,),
            stubs={**about.stubs(), **self.binding.stubs},
            follow=(*about.follow, *self.binding.follow),
        )
        self.report = lifter.imports.report
        return self.binding.adapt(_objects(lifter, self.binding.symbols))


def _objects(lifter: Lifter, symbols: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    objects: dict[str, Any] = {}
    for path, names in symbols.items():
        for name, value in lifter.lift(path, names).objects.items():
            if name in objects:
                raise LookupError(f"the binding takes {name} from two files; {path} is the second")
            objects[name] = value
    return objects


def _implementation(
    spec: str,
    place: str,
    contract: Contract,
    binding: Binding,
    tree: Tree,
    files: dict[str, SourceFile | str],
) -> Implementation:
    reasons = [
        reason for path, names in binding.symbols.items() for reason in _lacks(tree, path, names, files) if reason
    ]
    return Implementation(
        spec=spec,
        provider=tree.label,
        name=binding.name,
        contract=contract.full_name,
        runs=binding.runs,
        load=_refusing(reasons[0]) if reasons else LiftedBinding(place, binding),
        narrowings=binding.narrowings,
        refuses=binding.refuses is not None,
        refusal_types=binding.refusal_types,
        unsupported=reasons[0] if reasons else None,
    )


def _unbound(spec: str, name: str, label: str, contract: Contract, reason: str) -> Implementation:
    return Implementation(
        spec=spec,
        provider=label,
        name=name,
        contract=contract.full_name,
        runs=contract.runs,
        load=_refusing(reason),
        unsupported=reason,
    )


def _lacks(tree: Tree, path: str, names: Iterable[str], files: dict[str, SourceFile | str]) -> Iterable[str]:
    """Why names of a file cannot be lifted, from its text alone. ``files`` keeps what was parsed, or why not."""
    if path not in files:
        files[path] = _parsed(tree, path)
    file = files[path]
    if isinstance(file, str):
        return [file]
    return [f"not in this release: {path} has no {name}" for name in names if not file.has(name)]


def _parsed(tree: Tree, path: str) -> SourceFile | str:
    text = tree.read(path)
    if text is None:
        return f"not in this release: there is no {path}"
    try:
        return SourceFile(text, path)
    except SyntaxError as error:
        return f"this Python cannot parse {path}: {error.msg} (line {error.lineno})"


def _refusing(reason: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        raise Unsupported(reason)

    return load


def _directory(path: Path, about: Project, kind: str) -> DirectoryTree:
    # The package itself may be named instead of the folder that holds it.
    if path.name == about.package and (path / "__init__.py").is_file() and not (path / about.package).is_dir():
        path = path.resolve().parent
    version = directory_version(path.resolve(), about.package, about.distributions)
    comma = "," if version == UNKNOWN else ""
    return DirectoryTree(path, f"{about.package}{comma} {version} ({kind})")


def _installed(about: Project) -> DirectoryTree:
    """The tree of the installed package, found without importing it."""
    for distribution in about.distributions:
        try:
            importlib.metadata.distribution(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        try:
            spec = importlib.util.find_spec(about.package)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin is not None:
            return _directory(Path(spec.origin).parent.parent, about, "installed")
        raise ProviderError(f"{distribution} is installed, but its package {about.package} is not found")
    ways = f"{about.package}:FILE.whl, {about.package}:DIR or {about.package}:git+REPOSITORY@REVISION"
    raise ProviderError(f"{about.package} is not installed in this environment: install it, or give {ways}")
