"""Source trees: where the text of an upstream project's files comes from.

Nothing is ever extracted, imported or written. A tree answers ``None`` for a file that it does not have, and refuses
(``ProviderError``) a path that could mean a file outside of it, a file that is too large or no UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from oracles.providers.base import ProviderError

MOST_BYTES = 8 << 20
"""Largest file that is read. The longest source file of vLLM is a tenth of it."""


class Tree(Protocol):
    """The files of one project at one version."""

    @property
    def label(self) -> str:
        """Project and version, as a reader of a report should see them."""

    def read(self, path: str) -> str | None:
        """The text of a file, its line ends unified, or ``None`` where the tree has no such file."""

    def has(self, package: str) -> bool:
        """Whether there is any file in the folder of a package."""


def checked(path: str) -> str:
    """The path itself; refused: absolute, ``..``, ``.``, empty parts, backslashes, control characters."""
    if not path or "\\" in path or any(ord(char) < 32 for char in path):
        raise ProviderError(f"{path!r} is not a path inside a source tree")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ProviderError(f"{path!r} is not a path inside a source tree: it must be relative, without '.' or '..'")
    return path


def decoded(content: bytes, where: str) -> str:
    """Content as text; refused: too large, not UTF-8. Line ends are unified, as Python reads them."""
    if len(content) > MOST_BYTES:
        raise ProviderError(f"{where}: larger than {MOST_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProviderError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


class TextTree:
    """A tree held in memory."""

    def __init__(self, files: Mapping[str, str], label: str = "text") -> None:
        self.files = {checked(path): text for path, text in files.items()}
        self.label = label

    def read(self, path: str) -> str | None:
        """The text given for that path."""
        return self.files.get(checked(path))

    def has(self, package: str) -> bool:
        """Whether a path begins so."""
        return any(path.startswith(f"{package}/") for path in self.files)


class DirectoryTree:
    """A checkout, or the ``site-packages`` that a project is installed in.

    Refused, besides what every tree refuses: a symbolic link that leaves the directory. One that stays inside is
    followed.
    """

    def __init__(self, root: Path, label: str) -> None:
        self.root = root.resolve()
        self.label = label

    def read(self, path: str) -> str | None:
        """The text of a regular file."""
        named = self.root / checked(path)
        try:
            real = named.resolve()
            if not real.is_relative_to(self.root):
                raise ProviderError(f"{named}: a symbolic link leaves {self.root}")
            if not real.is_file():
                return None
            with real.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except (OSError, RuntimeError) as error:  # Python 3.11 and 3.12 report a loop of links as a RuntimeError
            raise ProviderError(f"{named}: cannot be read: {error}") from error
        return decoded(content, str(named))

    def has(self, package: str) -> bool:
        """Whether the folder is there, and not empty."""
        return next((self.root / package).glob("*"), None) is not None
