"""Wheels and zips of sources, read in place."""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from pathlib import Path

from oracles.providers.base import ProviderError
from oracles.providers.trees import MOST_BYTES, checked, decoded
from oracles.providers.versions import canonical, metadata_fields

WORST_RATIO = 200
"""How often smaller than its text a source file may be: real ones reach about 12, a bomb about 1000."""

_WHEEL_NAME = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl", re.ASCII)
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


class ArchiveTree:
    """The source files of a wheel or a zip, without extracting one.

    Refused: what is not a zip or is cut short; an entry whose name is absolute, climbs, or is there twice; an
    encrypted entry; a source file that is too large or absurdly compressed; a file whose checksum is wrong, when it
    is read; a wheel whose file name and METADATA tell different projects or versions.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise ProviderError(f"{path}: not a readable wheel or zip: {error}") from error
        try:
            self._entries = self._inspected()
            self._prefix = self._single_folder()
            self.label = self._labelled()
        except ProviderError:
            self._zip.close()
            raise

    def read(self, path: str) -> str | None:
        """The text of an entry."""
        info = self._entries.get(self._prefix + checked(path))
        if info is None:
            return None
        if stat.S_ISLNK(info.external_attr >> 16):
            raise ProviderError(f"{self.path}: {info.filename} is a symbolic link")
        return decoded(self._content(info), f"{self.path}: {info.filename}")

    def has(self, package: str) -> bool:
        """Whether the name of an entry begins so."""
        return any(name.startswith(f"{self._prefix}{package}/") for name in self._entries)

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        try:
            with self._zip.open(info) as file:
                return file.read(MOST_BYTES + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
            raise ProviderError(f"{self.path}: {info.filename} cannot be read: {error}") from error

    def _inspected(self) -> dict[str, zipfile.ZipInfo]:
        entries: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            fault = _fault(info)
            if fault is None and info.filename in entries:
                fault = "is there twice"
            if fault is not None:
                raise ProviderError(f"{self.path}: entry {info.orig_filename!r} {fault}")
            if not info.is_dir():
                entries[info.filename] = info
        return entries

    def _single_folder(self) -> str:
        """The folder that a forge's zip of a repository holds everything in, with its slash; else nothing."""
        tops = {name.partition("/")[0] for name in self._entries}
        top = next(iter(tops)) if len(tops) == 1 else ""
        marks = (f"{top}/{mark}" for mark in ("pyproject.toml", "setup.py", "PKG-INFO"))
        return f"{top}/" if any(mark in self._entries for mark in marks) else ""

    def _labelled(self) -> str:
        if self.path.suffix == ".whl":
            name, version = self._wheel_identity()
            return f"{name} {version} (wheel)"
        info = self._entries.get(f"{self._prefix}PKG-INFO")
        if info is None:
            return f"{self.path.stem}, unknown version (zip)"
        name, version = metadata_fields(self._content(info), f"{self.path}: {info.filename}")
        return f"{canonical(name)} {version} (zip)"

    def _wheel_identity(self) -> tuple[str, str]:
        match = _WHEEL_NAME.fullmatch(self.path.name)
        if match is None:
            raise ProviderError(f"{self.path}: {self.path.name!r} is not the name of a wheel (project-version-...whl)")
        found = [info for name, info in self._entries.items() if _METADATA.fullmatch(name)]
        if len(found) != 1:
            raise ProviderError(f"{self.path}: {len(found)} *.dist-info/METADATA files; a wheel has one")
        name, version = metadata_fields(self._content(found[0]), f"{self.path}: {found[0].filename}")
        # A wheel's file name writes the version's dashes as underscores.
        same_version = version.replace("-", "_").lower() == match["version"].lower()
        if canonical(name) != canonical(match["name"]) or not same_version:
            raise ProviderError(
                f"{self.path}: the file name says {match['name']} {match['version']}, its METADATA {name} {version}"
            )
        return canonical(name), version


def _fault(info: zipfile.ZipInfo) -> str | None:
    """What is wrong with an entry, before anything of it is read."""
    if info.orig_filename != info.filename:
        return "has a name that cannot be trusted"
    try:
        checked(info.filename.removesuffix("/"))
    except ProviderError:
        return "has a name that is absolute or leaves the archive"
    if info.flag_bits & 1:
        return "is encrypted"
    if not info.filename.endswith((".py", ".dist-info/METADATA", "PKG-INFO")):
        return None
    if info.file_size > MOST_BYTES:
        return f"is larger than {MOST_BYTES} bytes"
    if info.file_size > 1 << 16 and info.file_size > WORST_RATIO * info.compress_size:
        return f"is compressed more than {WORST_RATIO}-fold"
    return None
