"""Whether a callable of a user's file reaches Triton, told from text: nothing is imported or executed.

Followed are the top-level names that the callable uses, in its own file and in the files beside it, or of this project,
that are imported. A doubt counts as "it does": kernels cannot run on the host, but plain code runs in the interpreter.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from oracles.providers.optimized import source_of
from oracles.providers.reading import Alias, Chain, Reading, Statement

KNOWN_NAMES = frozenset(dir(builtins))
"""Names that a module has without binding them, beside its ``__dunder__`` names."""

TRITON = Statement()
"""Stands for everything that Triton is."""


def reaches_triton(file: Path, name: str, folders: Sequence[str]) -> bool:
    """Whether ``name`` of ``file`` does.

    Absolute imports are looked for in ``folders`` only: what lies elsewhere is taken for a library.
    """
    return _Neighbourhood(file.resolve(), list(folders)).reaches(name)


class _Neighbourhood:
    """A file, and those files in ``folders`` that it imports, directly or through others."""

    def __init__(self, file: Path, folders: list[str]) -> None:
        self.file = file
        self.folders = folders
        self.readings: dict[Path, Reading | None] = {}
        self.sources: dict[tuple[str, ...], Path | None] = {}

    def reaches(self, name: str) -> bool:
        """From the callable outwards; then what may alter something that was reached on the way, while importing."""
        whole = self._closure(self._whole(self.file))
        reached = self._closure(self._uses(self.file, (name,)))
        while TRITON not in reached:
            more = [item for item in whole - reached if self._alters(item, reached)]
            if not more:
                return False
            reached |= self._closure(more)
        return True

    def _closure(self, statements: Iterable[Statement]) -> set[Statement]:
        found: set[Statement] = set()
        todo = list(statements)
        while todo:
            statement = todo.pop()
            if statement not in found:
                found.add(statement)
                todo += self._used_by(statement)
        return found

    def _used_by(self, statement: Statement) -> Iterator[Statement]:
        """What running a statement, or a function in it, may use."""
        file = statement.file
        if statement.module:
            yield from self._content(file)
        elif statement.opaque:
            yield from self._whole(file)
        for chain in statement.chains:
            yield from self._uses(file, chain)
        for alias in statement.inner:
            yield from self._imported(file, alias, ())

    def _alters(self, statement: Statement, reached: set[Statement]) -> bool:
        """Whether importing may put something into what was reached: into its attributes, or by a call that sees it."""
        file = statement.file
        if any(target in reached for name in statement.stores for target in self._uses(file, (name,))):
            return True
        seen = {target for chain in statement.shown for target in self._uses(file, chain)}
        called = (target for chain in statement.calls for target in self._uses(file, chain))
        seen |= self._closure(called)
        return any(target.mutable for target in seen & reached)

    def _uses(self, file: Path, chain: Chain) -> Iterator[Statement]:
        """The statements behind ``name.attribute...`` in a file."""
        reading = self._reading(file)
        if reading is None:
            return
        binders = reading.binders(chain[0])
        for statement in binders:
            yield statement
            if statement.alias is not None:
                yield from self._imported(file, statement.alias, chain[1:])
        if binders or chain[0] in KNOWN_NAMES or chain[0].startswith("__"):
            return
        if reading.binders("__getattr__"):
            yield from reading.binders("__getattr__")
        elif reading.stars:
            for star in reading.stars:
                yield from self._imported(file, star, chain)
        else:
            yield from self._whole(file)  # put there by something that this text does not show

    def _imported(self, file: Path, alias: Alias, rest: Chain) -> Iterator[Statement]:
        """What an import of ``file`` brings, of which ``rest`` is asked for."""
        names = (*alias.module.split("."), *alias.taken, *rest) if alias.module else (*alias.taken, *rest)
        if not alias.level and names[0] == "triton":
            yield TRITON
            return
        found = None
        for count in range(1, len(names) + 1):
            source = self._source_of(file, ".".join(names[:count]), alias.level)
            found = (source, names[count:]) if source is not None else found
        if found is not None:
            source, chain = found
            yield from self._uses(source, chain) if chain else self._whole(source)

    def _source_of(self, file: Path, module: str, level: int) -> Path | None:
        folders = [str(file.parents[min(level, len(file.parents)) - 1])] if level else self.folders
        key = (module, *folders)
        if key not in self.sources:
            source = source_of(module, folders)
            self.sources[key] = source.resolve() if source is not None else None
        return self.sources[key]

    def _whole(self, file: Path) -> Iterator[Statement]:
        """All of a file, as one."""
        reading = self._reading(file)
        if reading is not None:
            yield reading.whole

    def _content(self, file: Path) -> Iterator[Statement]:
        """Every statement of a file, and all of the files that it imports."""
        reading = self._reading(file)
        assert reading is not None, file
        yield from reading.statements
        for alias in reading.imports:
            yield from self._imported(file, replace(alias, module=alias.loads, taken=()), ())
            yield from self._imported(file, alias, ())

    def _reading(self, file: Path) -> Reading | None:
        if file not in self.readings:
            self.readings[file] = None
            # A file that cannot be read or parsed tells its own error when it is executed.
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                self.readings[file] = Reading(file, file.read_text(encoding="utf-8"))
        return self.readings[file]
