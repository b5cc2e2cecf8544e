"""One revision of a local git repository, read through plumbing commands.

Only ``rev-parse``, ``ls-tree`` and ``cat-file`` run: none of them starts a hook, a filter, a pager or an external
diff that the repository's configuration could name, and none of them writes.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from oracles.providers.base import ProviderError
from oracles.providers.trees import MOST_BYTES, checked, decoded

_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./^~+-]*", re.ASCII)
_SECONDS = 60


class GitTree:
    """The files of a commit.

    Refused: a URL (clone it first), a folder that is no repository, a revision that is no commit there or whose name
    could be taken for something else, a file that is a symbolic link.
    """

    def __init__(self, repository: str, revision: str, project: str) -> None:
        if "://" in repository or re.match(r"[\w.-]+@[\w.-]+:", repository):
            raise ProviderError(f"{repository}: only a local repository can be read: clone it, then name the clone")
        self.repository = Path(repository).expanduser()
        if not self.repository.is_dir():
            raise ProviderError(f"{self.repository}: there is no such directory")
        if not _REVISION.fullmatch(revision):
            raise ProviderError(f"{revision!r} is not a revision: give a commit, a tag or a branch")
        name = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if name is None:
            reason = "has no commit" if self._git("rev-parse", "--git-dir") else "is no readable git repository, so no"
            raise ProviderError(f"{self.repository} {reason} {revision!r}")
        self.commit = name.decode().strip()
        self.label = f"{project} at {self.commit[:10]} (git)"

    def read(self, path: str) -> str | None:
        """The text of a file as it was committed."""
        listing = self._git("ls-tree", "-l", "-z", "--full-tree", self.commit, "--", checked(path))
        where = f"{self.repository}@{self.commit[:10]}: {path}"
        if listing is None:
            raise ProviderError(f"{where}: git cannot list it")
        if not listing:
            return None
        mode, kind, name, size = listing.split(b"\t", 1)[0].split()
        if mode == b"120000":
            raise ProviderError(f"{where} is a symbolic link")
        if kind != b"blob":
            return None
        if int(size) > MOST_BYTES:
            raise ProviderError(f"{where}: larger than {MOST_BYTES} bytes")
        content = self._git("cat-file", "blob", name.decode())
        if content is None:
            raise ProviderError(f"{where}: git cannot read it; a partial clone has to be completed first")
        return decoded(content, where)

    def has(self, package: str) -> bool:
        """Whether the folder was committed; git keeps none that is empty."""
        return bool(self._git("ls-tree", "-z", "--full-tree", self.commit, "--", f"{package}/"))

    def _git(self, *arguments: str) -> bytes | None:
        """What a git command prints, or ``None`` where it fails."""
        try:
            done = subprocess.run(
                ["git", "--no-pager", "--literal-pathspecs", "-C", str(self.repository), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=_environment(),
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProviderError(f"{self.repository}: git cannot be run: {error}") from error
        return done.stdout if done.returncode == 0 else None


def _environment() -> dict[str, str]:
    """The environment without what redirects git, and with network access of partial clones off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}
