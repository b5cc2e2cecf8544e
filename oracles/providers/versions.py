"""Which project a source tree holds, and at which version."""

from __future__ import annotations

import ast
import email.parser
import re
from collections.abc import Sequence
from pathlib import Path

from oracles.providers.base import ProviderError

UNKNOWN = "unknown version"

_MOST_METADATA = 1 << 20


def canonical(name: str) -> str:
    """A distribution's name in the one spelling that package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def metadata_fields(content: bytes, where: str) -> tuple[str, str]:
    """Name and version of a core metadata file; refused: one of them missing, or given twice."""
    message = email.parser.BytesHeaderParser().parsebytes(content[:_MOST_METADATA])
    values = [[str(value).strip() for value in message.get_all(field, [])] for field in ("Name", "Version")]
    if any(len(value) != 1 or not re.fullmatch(r"[\w.+!-]+", value[0], re.ASCII) for value in values):
        raise ProviderError(f"{where}: no metadata with one Name and one Version")
    return values[0][0], values[1][0]


def directory_version(root: Path, package: str, distributions: Sequence[str]) -> str:
    """The version of an installed or checked-out package.

    It comes from the one ``dist-info`` folder beside the package, else from a literal ``__version__`` in the files
    that by custom hold it. Where nothing says it, or two installations do, it is unknown.
    """
    names = {canonical(name) for name in distributions}
    found = [
        path
        for path in root.glob("*.dist-info")
        if canonical(path.name.removesuffix(".dist-info").split("-")[0]) in names
    ]
    if len(found) == 1:
        try:
            return metadata_fields((found[0] / "METADATA").read_bytes(), str(found[0] / "METADATA"))[1]
        except OSError:
            return UNKNOWN
    if found:
        return UNKNOWN
    files = (root / package / name for name in ("_version.py", "version.py", "__init__.py"))
    return next((version for file in files if (version := _literal_version(file))), UNKNOWN)


def _literal_version(file: Path) -> str | None:
    try:
        body = ast.parse(file.read_bytes()[:_MOST_METADATA]).body
    except (OSError, SyntaxError, ValueError):
        return None
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if "__version__" in names:
                return node.value.value
    return None
