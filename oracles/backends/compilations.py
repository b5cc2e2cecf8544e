"""The key of a compilation, the same on every backend that runs without a device: what Triton's JIT tells apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def compilation(
    kernel: str, parameters: Iterable[str], specialization: Sequence[tuple[Any, Any]], options: Mapping[str, Any]
) -> str:
    """One line: the kernel, each parameter with its type and what was assumed of it, and the options of the launch.

    ``specialization`` pairs type and assumption, in the order of the parameters, as the JIT's binder gives them.
    """
    shown = [f"{name}={_shown(item)}" for name, item in zip(parameters, specialization, strict=True)]
    shown += [f"{name}={_plain(value)}" for name, value in sorted(options.items())]
    return f"{kernel} ({', '.join(shown)})"


def _shown(item: tuple[Any, Any]) -> str:
    kind, detail = item
    return str(_plain(kind)) if detail in (None, "") else f"{_plain(kind)}:{_plain(detail)}"


def _plain(value: Any) -> Any:
    """A value as it may stand in a key: functions by name, because their default text holds an address."""
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    function = getattr(value, "fn", value)
    if callable(function) and hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    return value if isinstance(value, str) else repr(value)
