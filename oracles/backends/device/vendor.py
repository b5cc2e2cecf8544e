"""What sets one make of device apart, and whether one is here, found out without importing torch."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INDEX = "ORACLES_DEVICE"
"""Environment variable: which of the visible devices is used."""

HIDDEN = ("", "-1", "NoDevFiles")
"""Values of a variable of visible devices that leave none."""


class DeviceUnavailable(RuntimeError):
    """The device cannot be used; the message says what is missing."""


@dataclass(frozen=True)
class Vendor:
    """One make of device.

    ``build`` is the attribute of ``torch.version`` that a build of torch for it has; ``nodes`` are patterns below
    ``/dev`` of which one exists where its driver is loaded; ``visible`` are the variables that choose among devices, of
    which those in ``selecting`` are names of one list that is applied last, the first one where the caller set none.
    """

    name: str
    title: str
    build: str
    nodes: tuple[str, ...]
    visible: tuple[str, ...]
    selecting: tuple[str, ...]

    def unavailable(self, dev: Path = Path("/dev")) -> str | None:
        """Why no device of this make can be used, by facts that cost nothing; else ``None``."""
        facts = torch_facts()
        if facts is None:
            return "torch is not installed"
        if not facts.get(self.build):
            return f"the installed torch {facts.get('__version__', '')} is not built for {self.title}".replace(
                "  ", " "
            )
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if not any(path for pattern in self.nodes for path in dev.glob(pattern)):
            return f"no driver is loaded: there is no {' or '.join(str(dev / pattern) for pattern in self.nodes)}"
        for name in self.visible:
            if os.environ.get(name, "0").strip() in HIDDEN:
                return f"{name} hides every device"
        try:
            chosen_index()
        except DeviceUnavailable as reason:
            return str(reason)
        return None


def chosen_index() -> int:
    """The index among the visible devices that the caller asked for."""
    text = os.environ.get(INDEX, "0").strip()
    if not text.isdecimal():
        raise DeviceUnavailable(f"{INDEX} is {text!r}, which is no index of a device")
    return int(text)


def torch_facts() -> Mapping[str, str | None] | None:
    """What ``torch/version.py`` says, read as text: importing torch takes seconds, and may start a device."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "version.py"
    try:
        return facts_in(path.read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return {}


def facts_in(source: str) -> Mapping[str, str | None]:
    """The names that a module assigns a string or ``None``."""
    found: dict[str, str | None] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign):
            targets: list[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        value = statement.value
        if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
            found.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return found
