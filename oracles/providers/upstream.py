"""Implementations of upstream projects: every binding of the contracts asked for, from one source tree."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oracles.contract import Binding, Contract
from oracles.providers.archives import ArchiveTree
from oracles.providers.base import Implementation, ProviderError
from oracles.providers.binding import Files, InstalledBinding, LiftedBinding, chosen
from oracles.providers.git import GitTree
from oracles.providers.projects import Project, project
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

    A contract without a binding is left out, unless it was named on the command line. Refused with ``ProviderError``:
    a tree without a file of the project's package.
    """
    about = project(name)
    tree = open_tree(place, about)
    if not tree.has(about.package):
        if isinstance(tree, ArchiveTree):
            tree.close()
        raise ProviderError(f"{spec}: {tree.label} is no {about.package}: there is no file of that package in it")
    if isinstance(tree, GitTree):
        # A branch may move meanwhile, and HEAD~1 means another commit tomorrow: the worker and a replay get this one.
        place = f"git+{tree.repository}@{tree.commit}"
        spec = f"{name}:{place}"
    files: Files = {}
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


def _implementation(
    spec: str, place: str, contract: Contract, binding: Binding, tree: Tree, files: Files
) -> Implementation:
    choice = chosen(tree, binding, files)
    load: Callable[[], Callable[..., Any]] = _refusing(choice.lacking or "")
    if choice.lacking is None:
        load = lifted = LiftedBinding(functools.partial(open_tree, place, project(binding.project)), binding, choice)
        if not place and isinstance(tree, DirectoryTree):
            load = InstalledBinding(lifted, tree.root)
    return Implementation(
        spec=spec,
        provider=tree.label,
        name=binding.name,
        contract=contract.full_name,
        runs=binding.runs,
        load=load,
        narrowings=binding.narrowings,
        refuses=binding.refuses is not None,
        graphs=binding.graphs,
        refusal_types=binding.refusal_types,
        unsupported=choice.lacking,
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
