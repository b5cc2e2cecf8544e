"""Where implementations come from: one record for each callable that can be judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from oracles.contract import Narrowing
from oracles.lines import line_of
from oracles.verdict import described

Symbols = Mapping[str, tuple[str, ...]]
"""Files of a project, and the names taken from each."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How a binding came to life in the worker.

    ``version`` is the label of the tree, ``how`` says whether its code was imported as a package or lifted from its
    text, and ``reason`` why an installed package was lifted after all. ``functions`` are ``file:name(parameters)``;
    ``number`` of ``sets`` says which of the binding's symbol sets they are.
    """

    version: str
    how: Literal["imported", "lifted"]
    functions: tuple[str, ...]
    number: int = 1
    sets: int = 1
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A callable that claims to satisfy a contract, and what is needed to judge it fairly.

    ``spec`` is what the user typed, a git revision resolved to its commit; ``provider`` is a readable origin such as
    ``vllm 0.33.0 (wheel)``, ``name`` the callable. ``load`` is called in the worker process only. ``refuses``: whether
    refusals are judged (G8), and ``refusal_types`` which exceptions count as one. ``unsupported`` says why it cannot be
    judged at all. ``graphs``: whether its calls are captured and replayed (G10). ``bound`` is known of a binding, once
    it is loaded.
    """

    spec: str
    provider: str
    name: str
    contract: str
    runs: Literal["host", "triton"]
    load: Callable[[], Callable[..., Any]]
    narrowings: tuple[Narrowing, ...] = ()
    refuses: bool = True
    graphs: bool = True
    refusal_types: tuple[type[BaseException], ...] = (ValueError,)
    unsupported: str | None = None
    bound: Bound | None = None


class ProviderError(ValueError):
    """A provider spec that cannot be used: a usage error, with the spec and the reason."""


def why_not_loaded(error: BaseException) -> str:
    """What loading an implementation raised, in one line: a refusal as it stands, else with its type and where."""
    if isinstance(error, ProviderError):
        return " ".join(str(error).split())
    text, line = " ".join(described(error).split()).removesuffix(":"), line_of(error)
    return f"{text}, at {line}" if line else text
