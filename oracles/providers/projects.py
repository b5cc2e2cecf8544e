"""What is particular about each upstream project: its packages, and what its code expects around itself."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _none() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Project:
    """``stubs`` is called in the worker, because it imports torch and Triton; a binding's own stubs go before it.

    ``needs`` maps a ``module:name`` that must be true in an imported package to what it means where it is not: such a
    package is lifted.
    """

    package: str
    distributions: tuple[str, ...]
    stubs: Callable[[], Mapping[str, Any]] = _none
    follow: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)


def _vllm_stubs() -> dict[str, Any]:
    """The real Triton, and the few services that vLLM's functions use and that change no result.

    vLLM wraps Triton in a package that swaps it for placeholders where there is no GPU driver; its pinned-memory
    test asks the platform object, which needs the whole configuration.
    """
    stubs: dict[str, Any] = {
        "vllm.logger:init_logger": logging.getLogger,
        "vllm.utils.gpu_sync_debug:gpu_sync_allowed": contextlib.nullcontext,
        "vllm.utils.platform_utils:is_pin_memory_available": _can_pin,
        "vllm.utils:is_pin_memory_available": _can_pin,
        # One release computes it in the module's __getattr__, which no text shows as a name of the module.
        "vllm.utils.torch_utils:PIN_MEMORY": _can_pin(),
        "vllm.triton_utils:HAS_TRITON": True,
    }
    for name, module in (("triton", "triton"), ("tl", "triton.language")):
        with contextlib.suppress(ImportError):
            stubs[f"vllm.triton_utils:{name}"] = importlib.import_module(module)
    return stubs


def _can_pin() -> bool:
    return bool(importlib.import_module("torch").cuda.is_available())


PROJECTS = {
    "vllm": Project(
        package="vllm",
        distributions=("vllm",),
        stubs=_vllm_stubs,
        follow=("vllm.triton_utils", "vllm.utils", "vllm.utils.math_utils", "vllm.utils.torch_utils"),
        needs={"vllm.triton_utils:HAS_TRITON": "without a GPU driver, vLLM puts a placeholder in Triton's place"},
    ),
    "aiter": Project(package="aiter", distributions=("amd-aiter",)),
}


def project(name: str) -> Project:
    """The description of a project; one that has none is a package of that name without defaults."""
    return PROJECTS.get(name) or Project(package=name, distributions=(name,))
