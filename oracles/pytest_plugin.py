"""The oracles inside pytest: one test an implementation, contract and backend.

Loaded by this project's ``conftest.py``, elsewhere by ``-p oracles.pytest_plugin``. A test that takes the fixture
``oracle`` is run once for everything that ``--impl``, ``--contract`` and ``--backend`` stand for. Where one of them is
given and no file is, pytest runs such a test of its own. Nothing here imports torch: the device of one of xdist's
workers is set before anything does.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from oracles.backends.cuda import VENDOR as CUDA
from oracles.backends.device.pinning import claim, devices
from oracles.backends.device.vendor import torch_facts
from oracles.backends.rocm import VENDOR as ROCM
from oracles.plugin.jobs import Job, jobs_of, refuse_numbers
from oracles.plugin.oracle import Oracle
from oracles.plugin.reporting import Reporting
from oracles.results import PROFILES, Result

SUITE = Path(__file__).with_name("plugin") / "suite.py"

_jobs = pytest.StashKey[list[Job]]()
_unfinished = pytest.StashKey[list[Result]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in a group of their own in ``pytest --help``."""
    group = parser.getgroup("oracles", "metadata oracles: judge implementations against their contracts")
    many = {"action": "append", "default": []}
    forms = "optimized (the default), vllm, vllm:WHEEL, vllm:DIR, vllm:git+REPO@REV (aiter likewise), or FILE.py:NAME"
    option = group.addoption
    option("--impl", **many, metavar="SPEC", help=f"What to judge: {forms}; may be repeated.")
    option("--contract", **many, metavar="NAME", help="A family or a contract, instead of all; may be repeated.")
    option("--backend", **many, metavar="NAME", help="Where to run; may be repeated.")
    option("--oracle-profile", choices=list(PROFILES), default="ci", help="How much is tried (default: ci).")
    option("--oracle-examples", type=int, metavar="N", help="Drawn inputs a test, instead of the profile's number.")
    option("--oracle-shards", type=int, default=1, metavar="N", help="Split each test into N with inputs of their own.")
    option("--oracle-time-limit", type=float, metavar="SECONDS", help="Per case, instead of the backend's.")
    option("--oracle-state", type=Path, default=Path(".oracles"), metavar="DIR", help="Where findings are kept.")
    option("--no-known", action="store_true", help="Report known findings like new ones.")
    option("--require", action="store_true", help="Fail, instead of skip, what is missing or could not be judged.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Where this is called, the project's own ``conftest.py`` is not in charge, so a checkout's must not be loaded."""
    asked = early_config.known_args_namespace
    if (asked.impl or asked.contract or asked.backend) and not asked.file_or_dir:
        asked.confcutdir = str(SUITE.parent)


def pytest_configure(config: pytest.Config) -> None:
    """Pin this process to its device, refuse what means nothing, and choose the test if no file is named."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    worker = hasattr(config, "workerinput")
    if worker and name.isdecimal():
        os.environ.update(_device_of(int(name)))
    refuse_numbers(config.option)
    unfinished = config.stash[_unfinished] = []
    if config.option.impl or config.option.contract or config.option.backend:
        config.stash[_jobs] = jobs_of(config.option)
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args = [str(SUITE)]
    if not worker:
        config.pluginmanager.register(Reporting(config, unfinished), "oracles-reporting")


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
