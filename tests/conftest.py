"""Fixtures of tests in several folders."""

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def own_triton() -> Callable[[pytest.MonkeyPatch, Path], None]:
    """Makes Triton ready for an emulated driver and this cache, until the patch is undone."""

    def prepare(patch: pytest.MonkeyPatch, cache: Path) -> None:
        from oracles.backends import gfx942

        triton, compiler = map(importlib.import_module, ("triton", "triton.compiler.compiler"))
        for name, value in gfx942.BACKEND.environment().items():
            patch.setenv(name, value)
        patch.setenv("TRITON_CACHE_DIR", str(cache))
        patch.setattr(triton.runtime.driver, "_active", None)
        for module in (compiler, triton.compiler, triton):
            patch.setattr(module, "compile", compiler.compile)

    return prepare


@pytest.fixture(scope="session")
def kernel_module() -> Callable[[pytest.MonkeyPatch, Path], ModuleType]:
    """Executes a file of kernels as a module of its own name, until the patch is undone."""

    def load(patch: pytest.MonkeyPatch, path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def seed() -> Iterator[ModuleType]:
    """The module ``warm``, whose ``started`` is the process that nurseries can be forked from."""
    spec = importlib.util.spec_from_file_location("warm", Path(__file__).with_name("warm.py"))
    assert spec is not None
    assert spec.loader is not None
    warm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(warm)
    warm.started = warm.Seed(os.environ)
    yield warm
    warm.started.close()


@pytest.fixture
def warm_nurseries(seed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions in this process get nurseries that need not import torch."""
    monkeypatch.setattr("oracles.session.start_nursery", functools.partial(seed.nursery, seed.started.control))
