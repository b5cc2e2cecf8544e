"""The oracles inside pytest: one test an implementation, contract and backend.

Loaded by this project's ``conftest.py``, elsewhere by ``-p oracles.pytest_plugin``. A test that takes the fixture
``oracle`` is run once for everything that ``--impl``, ``--contract`` and ``--backend`` stand for. Where one of them is
given and no file is, pytest runs such a test of its own, whose id begins with ``oracles/plugin/suite.py`` wherever it
lies. Nothing here imports torch: the device of one of xdist's workers is set before anything does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from oracles.backends.cuda import VENDOR as CUDA
from oracles.backends.device.pinning import claim, devices
from oracles.backends.device.vendor import torch_facts
from oracles.backends.rocm import VENDOR as ROCM
from oracles.plugin.jobs import Job, jobs_of, refuse_numbers, refuse_state
from oracles.plugin.oracle import Oracle
from oracles.plugin.reporting import Reporting
from oracles.results import PROFILES, Result
from oracles.worker import PR_SET_PDEATHSIG

SUITE = Path(__file__).with_name("plugin") / "suite.py"
SUITE_ID = "oracles/plugin/suite.py"
STATE = Path(".oracles")
PLAIN_NAMES = ("--impl", "--contract", "--backend", "--no-known", "--require")
"""Options that ``oracles check`` has too; other plugins may want these words. The rest begin with ``--oracle-``."""

_jobs = pytest.StashKey[list[Job]]()
_unfinished = pytest.StashKey[dict[str, Result]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in a group of their own in ``pytest --help``."""
    try:
        _add_options(parser)
    except argparse.ArgumentError as error:
        raise _taken(error) from error


def _add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("oracles", "metadata oracles: judge implementations against their contracts")
    many = {"action": "append", "default": []}
    forms = "optimized (the default), vllm, vllm:WHEEL, vllm:DIR, vllm:git+REPO@REV (aiter likewise), or FILE.py:NAME"
    option = group.addoption
    option("--impl", dest="oracle_impl", **many, metavar="SPEC", help=f"What to judge: {forms}; may be repeated.")
    contracts = "A family or a contract, instead of all; may be repeated."
    option("--contract", dest="oracle_contract", **many, metavar="NAME", help=contracts)
    option("--backend", dest="oracle_backend", **many, metavar="NAME", help="Where to run; may be repeated.")
    option("--oracle-profile", choices=list(PROFILES), default="ci", help="How much is tried (default: ci).")
    option("--oracle-examples", type=int, metavar="N", help="Drawn inputs a test, instead of the profile's number.")
    option("--oracle-shards", type=int, default=1, metavar="N", help="Split each test into N with inputs of their own.")
    option("--oracle-time-limit", type=float, metavar="SECONDS", help="Per case, instead of the backend's.")
    option("--oracle-state", type=Path, default=STATE, metavar="DIR", help="Where findings are kept.")
    flag: dict[str, Any] = {"action": "store_true"}
    option("--no-known", dest="oracle_no_known", **flag, help="Report known findings like new ones.")
    missing = "Fail, instead of skip, what is missing or could not be judged."
    option("--require", dest="oracle_require", **flag, help=missing)


def _taken(error: Exception) -> Exception:
    """What to raise where an option is defined twice: a usage error that says which, and whose."""
    ours = sorted(set(re.findall(r"--[\w-]+", str(error))) & set(PLAIN_NAMES))
    if not ours:
        return error
    names = ", ".join(ours)
    return pytest.UsageError(
        f"{names}: oracles.pytest_plugin and another plugin or conftest.py both define this option; "
        f"rename it there, or leave out one of the two (-p no:oracles.pytest_plugin)"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Where this is called, the project's own ``conftest.py`` is not in charge, so a checkout's must not be loaded.

    Refused: a ``conftest.py`` that defines an option of this plugin.
    """
    asked = early_config.known_args_namespace
    if _is_asked(asked) and all(name.startswith(SUITE_ID) for name in asked.file_or_dir):
        asked.confcutdir = str(SUITE.parent)
    try:
        result = yield
        parser.parse_known_args([])  # older releases of pytest see only now that an option is defined twice
    except argparse.ArgumentError as error:
        raise _taken(error) from error
    return result


def _is_asked(option: Any) -> bool:
    return bool(option.oracle_impl or option.oracle_contract or option.oracle_backend)


def pytest_configure(config: pytest.Config) -> None:
    """Pin this process to its device, refuse what means nothing, and choose the test if no file is named.

    An xdist worker ends with the process that started it, so that nothing goes on judging behind a killed run.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    worker = hasattr(config, "workerinput")
    if worker:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if worker and name.isdecimal():
        os.environ.update(_device_of(int(name)))
    refuse_numbers(config.option)
    unfinished = config.stash[_unfinished] = {}
    config.args = _found(config.args, config.invocation_params.dir)
    if _is_asked(config.option):
        config.stash[_jobs] = jobs_of(config.option)
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args = [str(SUITE)]
    elif not worker and config.option.oracle_state != STATE:
        refuse_state(config.option)
    if not worker:
        config.pluginmanager.register(Reporting(config, unfinished), "oracles-reporting")


def _found(names: Sequence[str], folder: Path) -> list[str]:
    """Arguments with the id of this plugin's own test replaced by where it lies."""
    here = (folder / SUITE_ID).exists()
    return [name if here else re.sub(f"^{SUITE_ID}(?=::|$)", lambda _: str(SUITE), name) for name in names]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """An id for this plugin's own test that can be given back to pytest; it has none where it lies outside rootdir."""
    if module_path != SUITE:
        return None
    module: pytest.Module = pytest.Module.from_parent(parent, path=module_path, nodeid=SUITE_ID)
    return module


def _device_of(worker: int) -> dict[str, str]:
    """The variables that give one of xdist's workers its device. Reads text and locks files; imports nothing."""
    facts = torch_facts() or {}
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getppid()))
    folder = Path(tempfile.gettempdir()) / f"oracles-devices-{os.getuid()}" / run
    for vendor in (CUDA, ROCM):
        names, entries = devices(vendor, os.environ) if facts.get(vendor.build) else ((), [])
        if entries:
            return dict.fromkeys(names, entries[claim(len(entries), worker, folder)])
    return {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a job."""
    if "oracle" not in metafunc.fixturenames:
        return
    stash = metafunc.config.stash
    if _jobs not in stash:
        stash[_jobs] = jobs_of(metafunc.config.option)
    jobs = stash[_jobs]
    metafunc.parametrize("oracle", jobs, ids=[job.label for job in jobs], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every case has a time limit of its own; one for the whole test would end long profiles."""
    for item in items:
        if config.pluginmanager.has_plugin("timeout") and "oracle" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Judges one implementation of one contract on one backend: ``oracle.check()``."""
    return Oracle(request.node, request.param, request.config.stash[_unfinished])
