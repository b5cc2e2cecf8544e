"""Kernels of a released wheel, lifted, on an emulated chip."""

import contextlib
import random

import numpy as np
import pytest
from packaging.version import Version

from oracles.arrays import array
from oracles.backends.base import Variation
from oracles.backends.cdna.backend import CdnaBackend
from oracles.providers.archives import ArchiveTree
from oracles.providers.lifter import Lifter
from oracles.providers.projects import project

ORDERS = ("forward", "reverse", "random")


@pytest.fixture
def lifted(monkeypatch, tmp_path_factory, own_triton):
    """``lifted(wheel, module, *edits)``: the module's kernel, in a process whose Triton is put back afterwards.

    The test is skipped for a release that does not have the kernel yet, or had it with other parameters.
    """
    pytest.importorskip("triton", reason="the emulated backends compile with Triton")
    own_triton(monkeypatch, tmp_path_factory.getbasetemp() / "triton")
    about = project("vllm")
    follow = (*about.follow, "vllm.v1.worker.gpu.buffer_utils")

    def lift(wheel, module, *edits):
        file, name, since = module["FILE"], module["KERNEL"], module["SINCE"]
        if Version(wheel.name.split("-")[1]) < Version(since):
            pytest.skip(f"vLLM has {name} with these parameters since {since}")
        changed = {file: edits} if edits else {}
        with contextlib.closing(ArchiveTree(wheel)) as tree:
            lifter = Lifter(tree, project=(about.package,), stubs=about.stubs(), follow=follow, edits=changed)
            return lifter.lift(file, [name])[name]

    return lift


@pytest.fixture
def emulate():
    """``emulate(kernel, architecture, drawn, number)``: what one launch left in its outputs, and what was observed.

    The number also picks the poison around tensors and the order in which workgroups and waves run.
    """

    def run(kernel, architecture, drawn, number):
        backend = CdnaBackend(architecture)
        backend.prepare()
        variation = Variation(number % 2, ORDERS[number % 3], number)
        memory = backend.memory(variation)
        tensors = {
            name: memory.place(value, name, device=True, writable=kind == "outputs")
            for kind in ("inputs", "outputs")
            for name, value in drawn[kind].items()
        }
        for name, pointed in drawn.get("pointers", {}).items():
            addresses = array([tensors[one].data_ptr() for one in pointed], "uint64")
            tensors[name] = memory.place(addresses, name, device=True)
        arguments = {name: tensors[one] if isinstance(one, str) else one for name, one in drawn["arguments"].items()}
        with backend.watch(memory, variation) as seen:
            kernel[drawn["grid"]](**arguments)
        reports = [*seen.failures, *memory.faults()]
        unwritten = backend.unwritten_load(memory)
        if unwritten is not None:
            reports.append(unwritten)
        return {name: memory.read(tensors[name]) for name in drawn["outputs"]}, reports, seen

    return run


class Numbers:
    """Random numbers for inputs: the first ones take the edges in turn, all later ones anything."""

    def __init__(self, name, number):
        self.number = number
        self.random = random.Random(f"{name}/{number}")
        self.numpy = np.random.default_rng([number, *name.encode()])

    def edge(self, edges, low, high):
        """One of the edges while there are some left, then a number from ``low`` to ``high``."""
        return edges[self.number] if self.number < len(edges) else self.random.randint(low, high)

    def turn(self, *values):
        """The values one after the other."""
        return values[self.number % len(values)]

    def choice(self, *values):
        """Any of the values."""
        return self.random.choice(values)

    def flip(self, probability=0.5):
        """True with that probability."""
        return self.random.random() < probability

    def integers(self, low, high, shape):
        """Integers from ``low`` to ``high``."""
        return self.numpy.integers(low, high, shape, endpoint=True)


@pytest.fixture
def draw():
    """``draw(module, name, number)``: the input by that number."""
    return lambda module, name, number: module["DRAWS"][name](Numbers(name, number))
