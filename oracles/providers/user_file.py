"""A callable in a user's file: inspected as text in the parent process, executed in the worker only."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.contract import Contract
from oracles.providers.base import Implementation, ProviderError
from oracles.providers.reach import reaches_triton
from oracles.providers.toplevel import bound_names, imports

_PROJECT = str(Path(__file__).resolve().parents[2])
MOST_HINTS = 20
"""Names that a refusal lists."""


def implementation(spec: str, file: str, name: str, contracts: Sequence[Contract], *, named: bool) -> Implementation:
    """The record of ``FILE.py:NAME``.

    Refused: a file that is not there or is no Python, a name that it does not bind at top level, and a callable of
    which it is not clear what contract it claims to satisfy.
    """
    path = Path(file).expanduser()
    tree = _parsed(path)
    if not name.isidentifier():
        raise ProviderError(f"{path}: {name!r} is not a name at the top level of a file")
    _check_bound(path, tree, name)
    refuses = _attribute(path, tree, name, "refuses")
    if not isinstance(refuses, bool | None):
        raise ProviderError(f"{path}: {name}.refuses is {refuses!r}; it is True or False")
    return Implementation(
        spec=spec,
        provider=path.name,
        name=name,
        contract=_contract(path, tree, name, contracts, named=named).full_name,
        runs="triton" if reaches_triton(path, name, [str(path.parent), _PROJECT]) else "host",
        load=Execution(path.resolve(), name),
        refuses=refuses is not False,
    )


@dataclass(frozen=True)
class Execution:
    """Executes the file when it is called, as a module of its own, with the file's folder first on ``sys.path``.

    Whatever the file raises comes out as it is, with the file's own lines in its traceback. Nothing is written: no
    byte code is kept, neither of the file nor of what it imports meanwhile.
    """

    path: Path
    name: str

    def __call__(self) -> Callable[..., Any]:
        """The callable; refused: one that the executed file does not have, or that cannot be called."""
        module = self._module()
        if not hasattr(module, self.name):
            names = [name for name, value in vars(module).items() if callable(value)]
            raise ProviderError(f"{self.path}: executed, but it has no {self.name}; {_hint(self.name, names)}")
        found: Callable[..., Any] = getattr(module, self.name)
        if not callable(found):
            raise ProviderError(f"{self.path}: {self.name} is of type {type(found).__name__}, which cannot be called")
        return found

    def _module(self) -> Any:
        source = self.path.read_bytes()
        digest = hashlib.blake2b(str(self.path).encode() + b"\0" + source, digest_size=6).hexdigest()
        name = f"user_file_{re.sub(r'[^0-9A-Za-z_]', '_', self.path.stem)}_{digest}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None:
            raise ProviderError(f"{self.path}: Python does not take it for a source file")
        module = importlib.util.module_from_spec(spec)
        folder = str(self.path.parent)
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
        # dataclasses, inspect and Triton look the module up while it is still running.
        sys.modules[name] = module
        keeps_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            exec(compile(source, str(self.path), "exec", dont_inherit=True), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.dont_write_bytecode = keeps_no_bytecode
        return module


def _parsed(path: Path) -> ast.Module:
    if not path.exists():
        raise ProviderError(f"{path}: there is no such file")
    try:
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the worker shows them, when the file is executed
            compile(source, str(path), "exec", dont_inherit=True)
            return ast.parse(source, str(path))
    except OSError as error:
        raise ProviderError(f"{path}: cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        raise ProviderError(f"{path}:{error.lineno}: not valid Python: {error.msg}") from error
    except ValueError as error:
        raise ProviderError(f"{path}: not valid Python: {error}") from error


def _check_bound(path: Path, tree: ast.Module, name: str) -> None:
    names = {bound for node in tree.body for bound in bound_names(node)}
    stars = any("*" in taken for node in tree.body for _, _, taken in imports(node))
    if name not in names and not stars:
        callables = {bound for node in tree.body if not _binds_no_callable(node) for bound in bound_names(node)}
        raise ProviderError(f"{path} has no {name} at top level; {_hint(name, callables)}")


def _binds_no_callable(node: ast.stmt) -> bool:
    """Whether a statement only imports, or binds a plain value; what is imported is rarely what is to be judged."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(node, ast.Import | ast.ImportFrom) or isinstance(
        value, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.JoinedStr
    )


def _hint(name: str, callables: Iterable[str]) -> str:
    """What can be asked for instead of ``name``, the most similar first."""

    def unlike(other: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio(), other

    near = sorted(callables, key=unlike)[:MOST_HINTS]
    return f"it has {', '.join(near)}" if near else "it binds nothing that can be called"


def _attribute(path: Path, tree: ast.Module, name: str, attribute: str) -> object:
    """The constant that ``NAME.attribute = ...``, or a class body, sets; refused: anything but a constant."""
    values = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            inner = (item for item in node.body if isinstance(item, ast.Assign))
            values += [item.value for item in inner if any(_is_name(target, attribute) for target in item.targets)]
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == attribute and _is_name(target.value, name):
                    values.append(node.value)
    if not values:
        return None
    if not isinstance(values[-1], ast.Constant):
        raise ProviderError(f"{path}:{values[-1].lineno}: {name}.{attribute} has to be a plain constant")
    return values[-1].value


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _contract(path: Path, tree: ast.Module, name: str, contracts: Sequence[Contract], *, named: bool) -> Contract:
    """The one contract named on the command line; else the callable's ``contract``; else the one of its name."""
    if named and len(contracts) == 1:
        return contracts[0]
    claimed = _attribute(path, tree, name, "contract")
    if not isinstance(claimed, str | None):
        raise ProviderError(f"{path}: {name}.contract is {claimed!r}; it is the name of a contract")
    wanted = claimed or name
    found = [contract for contract in contracts if contract.full_name == wanted]
    found = found or [contract for contract in contracts if contract.name == wanted]
    if len(found) == 1:
        return found[0]
    known = ", ".join(contract.full_name for contract in contracts)
    among = "those named" if named else "those known"
    if found:
        raise ProviderError(f"{path}:{name}: {wanted} is more than one contract: {_names(found)}")
    if claimed:
        raise ProviderError(f"{path}: {name}.contract is {claimed!r}, which is not among {among}: {known}")
    raise ProviderError(
        f"{path}: it is not clear what contract {name} claims to satisfy: name one on the command line, or set "
        f"{name}.contract in the file; {among}: {known}"
    )


def _names(contracts: Sequence[Contract]) -> str:
    return ", ".join(contract.full_name for contract in contracts)
