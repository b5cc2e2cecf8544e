"""Where implementations come from: one record for each callable that can be judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from oracles.contract import Narrowing


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A callable that claims to satisfy a contract, and what is needed to judge it fairly.

    ``spec`` is what the user typed, ``provider`` a readable origin such as ``vllm 0.33.0 (wheel)``, ``name`` the
    callable. ``load`` is called in the worker process only. ``refuses``: whether refusals are judged (G8), and
    ``refusal_types`` which exceptions count as one. ``unsupported`` says why it cannot be judged at all.
    """

    spec: str
    provider: str
    name: str
    contract: str
    runs: Literal["host", "triton"]
    load: Callable[[], Callable[..., Any]]
    narrowings: tuple[Narrowing, ...] = ()
    refuses: bool = True
    refusal_types: tuple[type[BaseException], ...] = (ValueError,)
    unsupported: str | None = None


class ProviderError(ValueError):
    """A provider spec that cannot be used: a usage error, with the spec and the reason."""
